"""An HTTP client for one URL, on httpx: exporters post to it, endpoints of metrics are read with it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from accelmetrics.schemas.errors import InvalidOptionError, require
from accelmetrics.schemas.text import clipped

if TYPE_CHECKING:
    import httpx

MAX_ANSWER = 65536
"""Default limit of an answer in bytes: enough for any error message."""

PemFiles = tuple[str | None, str | None, str | None]
"""Paths of PEM files: certificate authorities, client certificate, client key. None: the system's authorities, no client
certificate."""


def words(text: str | bytes) -> str:
    """Return a server's answer as one line for a message, cut to a readable length; ``no details`` if it is empty."""
    text = text if isinstance(text, str) else text.decode("utf-8", "replace")
    return clipped(" ".join(text.split()), 300) or "no details"


class HttpClient:
    """A client for one URL. Redirects are not followed, so that a request never goes to another address.

    Args:
        url: The URL. A name and password in it are sent as basic authentication and never shown.
        timeout: Seconds for each step, and for the whole answer.
        extra: The extra that installs httpx.
        headers: Headers of every request.
        files: Files for TLS.
        largest: Most bytes of an answer to read.

    Attributes:
        url: The URL, with its secrets.

    Raises:
        InvalidOptionError: The URL is invalid.
        MissingDependencyError: httpx is not installed.
    """

    def __init__(
        self,
        url: str,
        timeout: float,
        extra: str,
        headers: Mapping[str, str],
        files: PemFiles = (None, None, None),
        largest: int = MAX_ANSWER,
    ) -> None:
        self._httpx = require("httpx", extra)
        try:
            self.url: httpx.URL = self._httpx.URL(url)
        except self._httpx.InvalidURL as error:
            why = "is its password percent-encoded?" if "@" in url else str(error)  # the error may contain a part of the password
            raise InvalidOptionError(f"{extra}: the address is invalid: {why}") from None
        if self.url.scheme not in ("http", "https") or not self.url.host:
            raise InvalidOptionError(f"{extra}: {self.shown!r} is not an http:// or https:// address")
        self._timeout = timeout
        self._headers = headers
        self._files = files
        self._largest = largest
        self._client: httpx.Client | None = None

    @property
    def shown(self) -> str:
        """The address to show: without a password, and without the query, since that may contain one."""
        return str(self.url.copy_with(userinfo=b"", query=None, fragment=None))

    def open(self) -> None:
        """Load the certificates and create the client. Nothing is sent.

        Raises:
            OSError: A file cannot be read.
        """
        import ssl

        authorities, certificate, key = self._files
        context = ssl.create_default_context(cafile=authorities) if authorities or certificate else None
        if context is not None and certificate:
            context.load_cert_chain(certificate, key)
        # No compression: a small compressed answer could expand to any size.
        self._client = self._httpx.Client(
            verify=context or True,
            timeout=self._timeout,
            follow_redirects=False,
            headers={"accept-encoding": "identity", **self._headers},
        )

    def ask(self, method: str = "GET", body: bytes | None = None, headers: Mapping[str, str] | None = None) -> tuple[int, str, bytes]:
        """Send a request and wait for the answer.

        Returns:
            The status, the content type (lower case, without parameters), and the body, cut to the limit.

        Raises:
            ConnectionError: The server cannot be reached, or closed the connection.
            TimeoutError: It did not answer in time.
        """
        assert self._client is not None
        received = bytearray()
        try:
            with self._client.stream(method, self.url, content=body, headers=headers) as response:
                # httpx limits each read. This limits the whole answer, since a server may send a byte now and then.
                due = time.monotonic() + self._timeout
                for chunk in response.iter_raw():
                    received += chunk
                    if len(received) >= self._largest:
                        break
                    if time.monotonic() > due:
                        raise TimeoutError(f"{self.shown}: the answer was not complete within {self._timeout:g} s")
        except self._httpx.TimeoutException:
            raise TimeoutError(f"{self.shown}: no answer within {self._timeout:g} s") from None
        except self._httpx.TransportError as error:
            raise ConnectionError(f"{self.shown}: {str(error) or type(error).__name__}") from None
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        return response.status_code, kind, bytes(received[: self._largest])

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()
            self._client = None
