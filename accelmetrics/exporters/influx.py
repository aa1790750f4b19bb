"""Writes records in InfluxDB's line protocol: to a server over HTTP, or to a file.

The server is InfluxDB 1, 2 or 3, VictoriaMetrics or any other that accepts the protocol. A file can be imported with their tools. A
record becomes a point per device, one for the host, one per logged step and one for the monitor. Each point is a line. No client
library is used, because each one supports a single server version.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Literal

from accelmetrics.exporters.fields import INT64, by_device, identity_tags, step_tags, utf8
from accelmetrics.exporters.files import LineFile, growing_path
from accelmetrics.exporters.network import USER_AGENT, RejectedError, check_timeout
from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.http_client import HttpClient, words
from accelmetrics.schemas.reading import NumberTemplate
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.selection import ALL, MetricChoice, MetricSelection

HEADER = b"# accelmetrics line protocol\n"
"""First line of a file, a comment of the protocol. It identifies files of this exporter; others are not modified."""
PASSING_STATUSES = frozenset({408, 429})
"""Statuses below 500 after which a retry may succeed."""

# Targets that miss http://: with a user name, or with a host and a port.
_HALF_AN_ADDRESS = re.compile(r"^//|^[^/]*@|^[^/]*:\d+(/|$)|@[^/]*:\d+(/|$)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_AMBIGUOUS = re.compile(r"\\+(?=[\\,= ]|$)")
_SPECIAL = re.compile(r"([,= ])")


class InfluxExporter:
    """Writes line protocol to a server or a file.

    Args:
        target: ``http://HOST:PORT``, with or without the path of the write endpoint, or the path of a file.
        db: Database, for version 1 and VictoriaMetrics.
        rp: Retention policy, for version 1.
        org: Organisation, for version 2.
        bucket: Bucket, for version 2. If the target has no path, a bucket selects the endpoint of version 2.
        precision: Unit of the timestamps: ``ns``, ``us``, ``ms``, ``s``. A file always has nanoseconds.
        token_file: A file with the API token, or with ``NAME:PASSWORD``. It is read before each record, so it may be replaced at any time.
        prefix: Prefix of every measurement's name.
        ca_file: PEM file with the certificate authorities to trust. None uses the system's.
        timeout: Seconds after which a request fails.
        metrics: Metrics to export: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        InvalidOptionError: An option has an invalid value.
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
        metrics: MetricChoice = ALL,
    ) -> None:
        check_timeout("influx", timeout)
        if prefix.startswith("#"):
            raise InvalidOptionError("influx?prefix begins with #: that would make every line a comment")
        self.metrics = MetricSelection(metrics)
        self._token_file = token_file
        self._target: LineFile | HttpClient
        # Messages about an invalid target do not repeat it: it may contain a password.
        scheme, mark, _ = target.partition("://")
        if mark and scheme.lower() not in ("http", "https"):
            raise InvalidOptionError("influx: the address must begin with http:// or https://")
        if not mark and _HALF_AN_ADDRESS.search(target):
            raise InvalidOptionError("influx: the target looks like an address: write http:// before it, or ./ before the name of a file")
        if mark:
            client = self._target = HttpClient(target, timeout, "influx", {"user-agent": USER_AGENT}, (ca_file, None, None))
            # Path and query depend on the version of the server.
            if client.url.path in ("", "/"):
                client.url = client.url.copy_with(path="/api/v2/write" if bucket else "/write")
            version_1 = client.url.path.endswith("/write") and not client.url.path.endswith("/api/v2/write")
            query = {"db": db, "rp": rp, "org": org, "bucket": bucket, "precision": "u" if version_1 and precision == "us" else precision}
            client.url = client.url.copy_merge_params({name: value for name, value in query.items() if value})
        else:
            precision = "ns"
            # A line without a line break is never complete: nobody knows how many digits its last number misses.
            self._target = LineFile(growing_path(target), HEADER, lambda _: False, fsync_every=60)
        self._points = PointWriter(prefix, precision)

    def open(self) -> None:
        self._target.open()

    def export(self, record: Record) -> None:
        if isinstance(self._target, LineFile):
            self._target.write(lambda head: self.lines(record, head), record.snapshot.time_ns)
            return
        headers = {"content-type": "text/plain; charset=utf-8"}
        if self._token_file is not None:
            secret = Path(self._token_file).read_text("utf-8").strip()
            if not secret or not (secret.isascii() and secret.isprintable()):  # the message does not repeat it
                raise InvalidOptionError("influx: the token file must contain one line of printable ASCII")
            headers["authorization"] = f"Basic {base64.b64encode(secret.encode()).decode()}" if ":" in secret else f"Token {secret}"
        status, _, answer = self._target.ask("POST", self._points.text(record).encode(), headers)
        if not 200 <= status < 300:
            message = f"{self._target.shown}: HTTP {status}: {words(answer)}"
            raise (ConnectionError if status >= 500 or status in PASSING_STATUSES else RejectedError)(message)

    def lines(self, record: Record, head: bytes, fresh: bool = False) -> bytes:
        """Return a record's lines for a file with this first line, like :meth:`~accelmetrics.exporters.files.FileExporter.lines`."""
        del fresh
        body = self._points.text(record).encode()
        return body if head else HEADER + body

    def wrote(self) -> None:
        """Do nothing: no line depends on earlier ones."""

    def flush(self) -> None:
        """Sync a file to the disk. For a server there is nothing to do."""
        if isinstance(self._target, LineFile):
            self._target.sync()

    def close(self) -> None:
        self._target.close()


# Line protocol


class PointWriter:
    """Formats records as line protocol. The text around the numbers is built once per header.

    Args:
        prefix: Prefix of every measurement's name.
        precision: Unit of the timestamps: ``ns``, ``us``, ``ms``, ``s``.
    """

    def __init__(self, prefix: str = "", precision: str = "ns") -> None:
        self._prefix, self._unit = prefix, {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}[precision]

    def text(self, record: Record) -> str:
        """Return the lines of a record: devices and host, logged steps, monitor."""
        snapshot, prefix = record.snapshot, self._prefix
        numbers, header = snapshot.numbers, snapshot.header
        moment = snapshot.time_ns // self._unit
        common = {**record.labels, "host": snapshot.hostname}
        whole = header.kept("integers", lambda: [place for key, place in header.places.items() if (row := match(key)) and row.integer])
        too_large = frozenset([place for place in whole if not -INT64 <= numbers[place] < INT64])  # an integer field has 64 bits

        def measured() -> tuple[list[type[int | float | str]], NumberTemplate]:
            # A field keeps its type even if the driver's answers vary: a server refuses a field that changes its type.
            types: list[type[int | float | str]] = [float] * len(numbers)
            for place in whole:
                types[place] = str if place in too_large else int
            parts: list[str | int] = []
            for slot, named in by_device(snapshot):
                head = _head(f"{prefix}{slot.identity.kind}", {**common, **identity_tags(slot)}) if slot else _head(f"{prefix}host", common)
                fields = {escaped(_free(name)): header.places[key] for name, key in named.items() if name}
                left = [(name, place) for name, place in fields.items() if place not in too_large]
                for number, (name, place) in enumerate(left):
                    parts += [f"{',' if number else f'{head} '}{name}=", place, "i" if types[place] is int else ""]
                parts += [" ", len(numbers), "\n"] if left else []
            return types, NumberTemplate(parts)

        types, template = header.kept(("influx", prefix, *record.labels.items(), too_large), measured)
        texts = [repr(as_type(number)) for as_type, number in zip(types, numbers, strict=True)]
        lines = [template.fill([*texts, str(moment)])]
        for step in record.steps:
            logged = {name: _float(value) for name, value in step.values.items() if isfinite(value)}  # the protocol has no NaN or infinity
            if step.step is not None:
                logged["step"] = _integer(step.step)
            lines.append(_line(_head(f"{prefix}training", {**common, **step_tags(step)}), _named(logged), step.time_ns // self._unit))
        if record.monitor is not None:
            counted = {name.removeprefix("monitor."): _integer(value) for name, value in record.monitor.flat().items()}
            counted["interval"] = _float(record.monitor.interval)  # all others are counters, thus integers
            lines.append(_line(_head(f"{prefix}monitor", common), _named(counted), moment))
        return "".join(lines)


def _named(fields: Mapping[str, str]) -> dict[str, str]:
    """Return fields with their names escaped. Fields without a name are left out."""
    return {escaped(_free(name)): value for name, value in fields.items() if name}


def _line(head: str, fields: Mapping[str, str], timestamp: int) -> str:
    """Format a point; empty if no field is left. Fields without a value are left out."""
    # A field is empty if its integer does not fit into 64 bits. The protocol has no points without fields.
    written = ",".join([f"{name}={value}" for name, value in fields.items() if value])
    return f"{head} {written} {timestamp}\n" if written else ""


def _head(measurement: str, tags: Mapping[str, str]) -> str:
    """Format the measurement and the tags of a point."""
    # Sorted tags, as InfluxDB recommends: the server need not sort them.
    texts = {escaped(_free(tag)): escaped(value) for tag, value in tags.items() if tag and value}
    return measurement_name(measurement) + "".join(f",{tag}={texts[tag]}" for tag in sorted(texts))


def _integer(value: int | float) -> str:
    """Format an integer with the suffix ``i``; empty if it does not fit into 64 bits."""
    return f"{int(value)}i" if -INT64 <= value < INT64 else ""


def _float(value: int | float) -> str:
    return repr(float(value))


def _free(name: str) -> str:
    """Return the name, with an underscore appended if InfluxDB reserves it."""
    return f"{name}_" if name in ("time", "_field", "_measurement") else name


@lru_cache(maxsize=8192)
def escaped(text: str) -> str:
    r"""Return a tag's name or value, or a field's name, with commas, equals signs and spaces escaped.

    Control characters, which the protocol cannot carry, become a space. A backslash before a special character, before another
    backslash or at the end becomes a slash, because servers differ in how they read it.
    """
    return _SPECIAL.sub(r"\\\1", _plain(text))


def measurement_name(text: str) -> str:
    """Return a measurement's name with commas and spaces escaped."""
    return re.sub(r"([, ])", r"\\\1", _plain(text))


def _plain(text: str) -> str:
    return _AMBIGUOUS.sub(lambda found: "/" * len(found[0]), _CONTROL.sub(" ", utf8(text)))
