"""Posting to a server that may be away, slow or wrong, for the exporters that speak HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from accelmetrics._version import __version__
from accelmetrics.schemas.errors import InvalidOptionError, MissingDependencyError

if TYPE_CHECKING:
    import httpx

USER_AGENT = f"accelmetrics/{__version__}"
MAX_ANSWER = 65536
"""Bytes of an answer that are read: enough for any error message."""


class Answer(NamedTuple):
    """What a server said.

    Attributes:
        status: The HTTP status.
        kind: The content type, lower case, without parameters.
        body: At most the first :data:`MAX_ANSWER` bytes.
    """

    status: int
    kind: str
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode("utf-8", "replace")


class Files(NamedTuple):
    """Paths of PEM files for TLS; None: the system's authorities, no certificate of our own."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None


def check_timeout(exporter: str, timeout: float) -> None:
    """Refuse a timeout that is none.

    Raises:
        InvalidOptionError: It is no finite number above 0.
    """
    if not 0 < timeout < float("inf"):
        raise InvalidOptionError(f"{exporter}?timeout is {timeout:g}: it must be more than 0 seconds, and finite")


class Poster:
    """One URL to post to. Redirects are not followed: a record goes where it was told to, or nowhere.

    Args:
        url: Where to. A name and password in it are sent as basic authentication and shown nowhere.
        timeout: Seconds for each step, and for the whole answer.
        files: For TLS.
        extra: The extra that brings httpx.

    Attributes:
        url: Where to, secrets and all.

    Raises:
        InvalidOptionError: The URL is none.
        MissingDependencyError: httpx is not installed.
    """

    def __init__(self, url: str, timeout: float, files: Files, extra: str) -> None:
        try:
            import httpx
        except ImportError:
            raise MissingDependencyError("httpx", extra) from None
        try:
            self.url = httpx.URL(url)
        except httpx.InvalidURL as error:
            why = "is its password percent-encoded?" if "@" in url else str(error)  # which may hold a part of the password
            raise InvalidOptionError(f"{extra}: the address cannot be read: {why}") from None
        if self.url.scheme not in ("http", "https") or not self.url.host:
            raise InvalidOptionError(f"{extra}: {self.shown!r} is no http:// or https:// address")
        self._timeout = timeout
        self._files = files
        self._client: httpx.Client | None = None

    @property
    def shown(self) -> str:
        """The address as it may be shown: without a password, or the query, which may hold one."""
        return str(self.url.copy_with(userinfo=b"", query=None, fragment=None))

    def open(self) -> None:
        """Read the certificates. Nothing is sent.

        Raises:
            OSError: A file cannot be read.
        """
        import ssl

        import httpx

        files = self._files
        context = ssl.create_default_context(cafile=files.ca) if files.ca or files.certificate else None
        if context is not None and files.certificate:
            context.load_cert_chain(files.certificate, files.key)
        headers = {"user-agent": USER_AGENT}
        self._client = httpx.Client(verify=context or True, timeout=self._timeout, follow_redirects=False, headers=headers)

    def post(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Post, and wait for the answer.

        Raises:
            ConnectionError: The server is away, or broke off.
            TimeoutError: It did not answer in time.
        """
        import httpx

        if self._client is None:
            raise ConnectionError(f"{self.shown}: not open")
        try:
            with self._client.stream("POST", self.url, content=body, headers=dict(headers)) as response:
                kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                return Answer(response.status_code, kind, self._read(response))
        except httpx.TimeoutException:
            raise TimeoutError(f"{self.shown}: no answer within {self._timeout:g} s") from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise ConnectionError(f"{self.shown}: {str(error) or type(error).__name__}") from None

    def _read(self, response: httpx.Response) -> bytes:
        """The body, as far as it is wanted. A server that drips is not waited for longer than one that is silent."""
        due = time.monotonic() + self._timeout
        body = b""
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) >= MAX_ANSWER:
                break
            if time.monotonic() > due:
                raise TimeoutError(f"{self.shown}: the answer was not complete within {self._timeout:g} s")
        return body[:MAX_ANSWER]

    def close(self) -> None:
        """Drop the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None
