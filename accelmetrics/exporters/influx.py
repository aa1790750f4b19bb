"""Writes records as InfluxDB's line protocol: to a server over HTTP, or to a file.

The servers are InfluxDB 1, 2 and 3, VictoriaMetrics and whatever else takes the protocol; a file is what their tools import.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Literal, Protocol

from accelmetrics.exporters.files import FileExporter
from accelmetrics.exporters.http_post import Answer, Files, Poster, check_timeout
from accelmetrics.exporters.line_protocol import lines
from accelmetrics.exporters.rejected import RejectedError, words
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.record import Record

HEADER = b"# accelmetrics line protocol\n"
"""A comment: by it a file of ours is known from one that must not be touched."""

REFUSALS_THAT_PASS = frozenset({408, 429})
_HALF_AN_ADDRESS = re.compile(r"^[^/]*@|^[^/]*:\d+(/|$)|@[^/]*:\d+(/|$)")
_MICROSECONDS_OF_VERSION_1 = {"us": "u"}


class Target(Protocol):
    """Where the lines go: the methods of an exporter."""

    def open(self) -> None: ...
    def export(self, record: Record) -> None: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class InfluxExporter:
    """Line protocol for a server or a file.

    Args:
        target: ``http://HOST:PORT``, with or without the path of the write endpoint, or the path of a file.
        db: Database, for version 1 and VictoriaMetrics.
        rp: Retention policy, for version 1.
        org: Organisation, for version 2.
        bucket: Bucket, for version 2: without a path in the target, it is what tells the versions apart.
        precision: Unit of the timestamps: ``ns``, ``us``, ``ms``, ``s``. A file has always nanoseconds.
        token_file: A file with the API token, or with ``NAME:PASSWORD``. Read before each record, so that it may be exchanged.
        prefix: What every measurement's name begins with.
        ca_file: Authorities to trust, PEM. None: the system's.
        timeout: Seconds until a request has failed.

    Raises:
        InvalidOptionError: An option cannot be used.
        MissingDependencyError: httpx is not installed, and the target is a server.
    """

    name = "influx"

    def __init__(  # noqa: PLR0913  # each is an option of the string form
        self,
        target: str,
        *,
        db: str = "",
        rp: str = "",
        org: str = "",
        bucket: str = "",
        precision: Literal["ns", "us", "ms", "s"] = "ns",
        token_file: str | None = None,
        prefix: str = "",
        ca_file: str | None = None,
        timeout: float = 5.0,
    ) -> None:
        check_timeout("influx", timeout)
        if prefix.startswith("#"):
            raise InvalidOptionError("influx?prefix begins with #: that would make every line a comment")
        self._target: Target
        if _is_server(target):
            query = {"db": db, "rp": rp, "org": org, "bucket": bucket}
            self._target = _Server(Poster(target, timeout, Files(ca_file), "influx"), query, precision, token_file, prefix)
        else:
            self._target = _File(target, prefix)

    def open(self) -> None:
        self._target.open()

    def export(self, record: Record) -> None:
        self._target.export(record)

    def flush(self) -> None:
        self._target.flush()

    def close(self) -> None:
        self._target.close()


def _is_server(target: str) -> bool:
    """Whether the target is a server rather than a file. A message about one that is neither may not repeat it: see the password."""
    scheme, mark, _ = target.partition("://")
    if mark and scheme.lower() not in ("http", "https"):
        raise InvalidOptionError("influx: the address must begin with http:// or https://")
    if not mark and _HALF_AN_ADDRESS.search(target):
        raise InvalidOptionError("influx: the target looks like an address: write http:// before it, or ./ before the name of a file")
    return bool(mark)


class _File(FileExporter):
    """A file of lines."""

    name = "influx"
    beginning = HEADER

    def __init__(self, path: str, prefix: str) -> None:
        super().__init__(path)
        self._prefix = prefix

    def lines(self, record: Record, head: bytes) -> bytes:
        return (b"" if head else HEADER) + _body(record, self._prefix, "ns")

    def complete(self, tail: bytes) -> bool:
        """Never: of a cut line nobody knows how many digits its last number lacks."""
        return False


class _Server:
    """A write endpoint."""

    def __init__(self, poster: Poster, query: dict[str, str], precision: str, token_file: str | None, prefix: str) -> None:
        if poster.url.path in ("", "/"):
            poster.url = poster.url.copy_with(path="/api/v2/write" if query["bucket"] else "/write")
        version_1 = poster.url.path.endswith("/write") and not poster.url.path.endswith("/api/v2/write")
        unit = _MICROSECONDS_OF_VERSION_1.get(precision, precision) if version_1 else precision
        poster.url = poster.url.copy_merge_params({**{name: value for name, value in query.items() if value}, "precision": unit})
        self._poster = poster
        self._precision = precision
        self._token_file = token_file
        self._prefix = prefix

    def open(self) -> None:
        self._poster.open()

    def export(self, record: Record) -> None:
        headers = {"content-type": "text/plain; charset=utf-8"}
        if self._token_file is not None:
            headers["authorization"] = _authorization(Path(self._token_file).read_text("utf-8").strip())
        answer = self._poster.post(_body(record, self._prefix, self._precision), headers)
        if not 200 <= answer.status < 300:
            raise self._told(answer)

    def _told(self, answer: Answer) -> Exception:
        message = f"{self._poster.shown}: HTTP {answer.status}: {words(answer.text) or 'no details'}"
        if answer.status >= 500 or answer.status in REFUSALS_THAT_PASS:
            return ConnectionError(message)
        return RejectedError(message)

    def flush(self) -> None:
        """Nothing waits here: each record is delivered when ``export`` returns."""

    def close(self) -> None:
        self._poster.close()


def _body(record: Record, prefix: str, precision: str) -> bytes:
    return "".join(f"{line}\n" for line in lines(record, prefix, precision)).encode()


def _authorization(secret: str) -> str:
    """A header from a token, or from a name and a password. A message about a bad one does not repeat it."""
    if not secret or not (secret.isascii() and secret.isprintable()):
        raise InvalidOptionError("influx: the token file must hold one line of printable ASCII")
    if ":" in secret:
        return f"Basic {base64.b64encode(secret.encode()).decode()}"
    return f"Token {secret}"
