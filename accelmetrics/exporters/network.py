"""What exporters that use the network share: addresses, posting by HTTP, and the error of a peer that says no."""

from __future__ import annotations

import ipaddress
import re
import socket
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from accelmetrics._version import __version__
from accelmetrics.schemas.errors import AccelMetricsError, InvalidOptionError, require
from accelmetrics.schemas.text import clipped

if TYPE_CHECKING:
    import httpx

USER_AGENT = f"accelmetrics/{__version__}"
MAX_ANSWER = 65536
"""Bytes of an answer that are read: enough for any error message."""
MAX_WORDS = 300
LOOPBACK = "127.0.0.1"
_FORM = re.compile(r"(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:\[\]]*))(?::(?P<port>\d{1,5}))?")


class RejectedError(AccelMetricsError):
    """The peer refused a record for good: offering it again would be refused again. The message holds the peer's own words."""


def words(text: str | bytes) -> str:
    """Return a peer's answer as one line of a message, cut to a readable length; ``no details`` where it says nothing."""
    text = text if isinstance(text, str) else text.decode("utf-8", "replace")
    return clipped(" ".join(text.split()), MAX_WORDS) or "no details"


class Address(NamedTuple):
    """A host and a port.

    Attributes:
        host: A name or an address.
        port: 0 lets the system choose.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, port: int) -> Address:
        """Read ``HOST:PORT``, ``[ADDRESS]:PORT``, ``HOST`` or ``PORT``; what is left out is loopback, or ``port``.

        Raises:
            InvalidOptionError: The text is none of these.
        """
        found = _FORM.fullmatch(f":{text}" if text.isascii() and text.isdigit() else text)
        number = int(found["port"] or port) if found else -1
        if found is None or not 0 <= number <= 65535:
            raise InvalidOptionError(f"the address {text!r} is not HOST:PORT, such as {LOOPBACK}:{port} or [::1]:{port}")
        return cls(found["six"] or found["host"] or LOOPBACK, number)

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def resolve(self, kind: socket.SocketKind, flags: int = 0) -> list[tuple[Any, ...]]:
        """Look the host up: family, kind, protocol and address of each end, in the system's order.

        Raises:
            OSError: There is no such host.
        """
        try:
            found = socket.getaddrinfo(self.host, self.port, type=kind, flags=flags)
        except (socket.gaierror, UnicodeError) as error:  # UnicodeError: a label is empty or too long
            why = error.strerror if isinstance(error, OSError) else error
            raise OSError(f"the host {self.host!r} is not found: {why}") from error
        return [(family, kind, protocol, where) for family, kind, protocol, _, where in found]


PemFiles = tuple[str | None, str | None, str | None]
"""Paths of PEM files for a client: authorities, its certificate, its key. None: the system's authorities, no certificate of our own."""


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

    def __init__(self, url: str, timeout: float, files: PemFiles, extra: str) -> None:
        self._httpx = require("httpx", extra)
        try:
            self.url: httpx.URL = self._httpx.URL(url)
        except self._httpx.InvalidURL as error:
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

        authorities, certificate, key = self._files
        context = ssl.create_default_context(cafile=authorities) if authorities or certificate else None
        if context is not None and certificate:
            context.load_cert_chain(certificate, key)
        headers = {"user-agent": USER_AGENT}
        self._client = self._httpx.Client(verify=context or True, timeout=self._timeout, follow_redirects=False, headers=headers)

    def post(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, str, bytes]:
        """Post, and wait for the answer. A server that drips is not waited for longer than one that is silent.

        Returns:
            The status, the content type in lower case without parameters, and at most the first :data:`MAX_ANSWER` bytes.

        Raises:
            ConnectionError: The server is away, or broke off.
            TimeoutError: It did not answer in time.
        """
        assert self._client is not None
        said = b""
        try:
            with self._client.stream("POST", self.url, content=body, headers=dict(headers)) as response:
                due = time.monotonic() + self._timeout
                for chunk in response.iter_bytes():
                    said += chunk
                    if len(said) >= MAX_ANSWER:
                        break
                    if time.monotonic() > due:
                        raise TimeoutError(f"{self.shown}: the answer was not complete within {self._timeout:g} s")
        except self._httpx.TimeoutException:
            raise TimeoutError(f"{self.shown}: no answer within {self._timeout:g} s") from None
        except (self._httpx.TransportError, self._httpx.DecodingError) as error:
            raise ConnectionError(f"{self.shown}: {str(error) or type(error).__name__}") from None
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        return response.status_code, kind, said[:MAX_ANSWER]

    def close(self) -> None:
        """Drop the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None
