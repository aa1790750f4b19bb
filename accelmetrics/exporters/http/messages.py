"""Requests and responses: what is understood of HTTP/1.1, and nothing more.

``GET`` and ``HEAD`` without a body. Whatever deviates is refused rather than guessed at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import unquote

_REQUEST_LINE = re.compile(r"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.([01])")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_SCRAPE_TIMEOUT = "x-prometheus-scrape-timeout-seconds"
_TEXT = "text/plain; charset=utf-8"
_NO_HEADERS: Mapping[str, str] = {}


class Request(NamedTuple):
    """One request.

    Attributes:
        method: ``GET`` or ``HEAD``, or another one, which is refused.
        path: Without the query, percent-decoded.
        query: What stands behind the question mark, as sent.
        headers: By lower-case name; repeated ones are joined by commas.
        keep: Whether the client wants to ask again on this connection.
    """

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    keep: bool

    def header(self, name: str) -> str:
        """A header by its lower-case name, empty when it was not sent."""
        return self.headers.get(name, "")

    @property
    def scrape_timeout(self) -> float | None:
        """How long Prometheus waits for the answer, in seconds; None when it does not say."""
        try:
            seconds = float(self.header(_SCRAPE_TIMEOUT))
        except ValueError:
            return None
        return seconds if 0 < seconds < float("inf") else None


class Response(NamedTuple):
    """One answer.

    Attributes:
        status: HTTP status.
        body: What is sent, but for ``HEAD``.
        content_type: What the body is.
        headers: Beside those that every answer has.
    """

    status: int
    body: bytes
    content_type: str = _TEXT
    headers: Mapping[str, str] = _NO_HEADERS

    def head(self, keep: bool) -> bytes:
        """Status line and headers."""
        lines = [
            f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}",
            f"Content-Type: {self.content_type}",
            f"Content-Length: {len(self.body)}",
            "X-Content-Type-Options: nosniff",
            "Cache-Control: no-store",
            *(f"{name}: {value}" for name, value in self.headers.items()),
            *(() if keep else ("Connection: close",)),
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


Handler = Callable[[Request], Response]
"""Answers a request. Called on a thread of the listener, one request at a time: it must compute, not wait."""


class RefusedError(Exception):
    """A request is answered with an error."""

    def __init__(self, status: int, why: str, headers: Mapping[str, str] = _NO_HEADERS) -> None:
        super().__init__(why)
        self.response = Response(status, f"{why}\n".encode(), headers=headers)


def parse(head: bytes) -> Request:
    """A request from its first line and headers, the empty line included.

    Raises:
        RefusedError: It is no such request.
    """
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    found = _REQUEST_LINE.fullmatch(first)
    if found is None:
        raise RefusedError(400, "this is no HTTP/1.1 request")
    method, target, minor = found.groups()
    headers = _headers(lines)
    if headers.get("transfer-encoding") or headers.get("content-length", "0") != "0":
        raise RefusedError(413, "a request must not have a body")
    path, _, query = target.partition("?")
    return Request(method, unquote(path), query, headers, _keeps(minor, headers.get("connection", "")))


def _headers(lines: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        found = _HEADER.fullmatch(line)
        if found is None:
            raise RefusedError(400, "a header is malformed")
        name, value = found[1].lower(), found[2].strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _keeps(minor: str, connection: str) -> bool:
    wishes = {word.strip().lower() for word in connection.split(",")}
    return "close" not in wishes and (minor == "1" or "keep-alive" in wishes)
