"""The files of the page: those of this package and no other, each a route of its own, held in memory."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
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
        yield path, Route, {"compute": _answering(name, body), "linked": True}


def _answering(name: str, body: bytes) -> Callable[[HTTPServerRequest], HttpAnswer]:
    """Return what answers with one file. Clients keep it and ask whether it has changed: another release may be served here tomorrow."""
    content_type = CONTENT_TYPES[name[name.rfind(".") :]]
    headers = {"Cache-Control": "no-cache", "Etag": f'"{hashlib.sha256(body).hexdigest()[:16]}"', "Vary": "Accept-Encoding"}
    plain = HttpAnswer(body, content_type, headers)
    packed = HttpAnswer(gzip.compress(body, mtime=0), content_type, {**headers, "Content-Encoding": "gzip"})
    return lambda request: packed if accepts_gzip(request.headers.get("Accept-Encoding", "")) else plain
