"""The files of the page: those of this package and no other, each a route of its own, held in memory."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any

from tornado.httputil import HTTPServerRequest

from accelmetrics.exporters.http.server import HttpAnswer, Route
from accelmetrics.exporters.scrape_cache import accepts_gzip

CONTENT_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Files with these endings are served."""
INDEX = "index.html"


def page_files() -> Mapping[str, bytes]:
    """Read the files of the page, by name."""
    views = files("accelmetrics.views")
    return {
        file.name: file.read_bytes()
        for folder in (views / "page" / "static", views / "assets")
        for file in folder.iterdir()
        if file.is_file() and file.name[file.name.rfind(".") :] in CONTENT_TYPES
    }


def file_routes() -> Iterator[tuple[str, type[Route], dict[str, Any]]]:
    """Yield what answers with the page, at ``/``, and with its files, below ``/static/``."""
    for name, body in page_files().items():
        path = "/" if name == INDEX else re.escape(f"/static/{name}")
        yield path, Route, {"compute": PageFile(name, body), "linked": True}


class PageFile:
    """Answers with one file. Clients keep it and ask whether it has changed: another release may be served here tomorrow.

    Args:
        name: Its name, whose ending says its type.
        body: Its content.
    """

    def __init__(self, name: str, body: bytes) -> None:
        content_type = CONTENT_TYPES[name[name.rfind(".") :]]
        headers = {"Cache-Control": "no-cache", "Etag": f'"{hashlib.sha256(body).hexdigest()[:16]}"', "Vary": "Accept-Encoding"}
        self._plain = HttpAnswer(body, content_type, headers)
        self._packed = HttpAnswer(gzip.compress(body, mtime=0), content_type, {**headers, "Content-Encoding": "gzip"})

    def __call__(self, request: HTTPServerRequest) -> HttpAnswer:
        """Return the file, packed where the client takes that."""
        return self._packed if accepts_gzip(request.headers.get("Accept-Encoding", "")) else self._plain
