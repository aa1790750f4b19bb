"""The page's files: those of the package and no other, kept by browsers until they change."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from accelmetrics.exporters.http.server import CONTENT_POLICY
from accelmetrics.exporters.prometheus import PrometheusExporter
from accelmetrics.views.page.documents import INDEX, file_routes, page_files
from tests.support.waiting import HANG

UPLOT = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}
"""SHA-256 of the files in the npm package uplot 1.6.32."""


@contextmanager
def answering(routes: Iterable[Any]) -> Iterator[str]:
    """A server with these routes, and where it is."""
    endpoint = PrometheusExporter("127.0.0.1:0")
    endpoint.routes = [*routes]
    endpoint.open()
    try:
        yield f"http://{endpoint.address}"
    finally:
        endpoint.close()


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """Where a server has the page."""
    with answering(file_routes()) as address:
        yield address


def ask(url: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer."""
    request = Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()}, method=method)
    try:
        with urlopen(request, timeout=HANG) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def test_every_file_of_the_package_is_served(base: str) -> None:
    """With its type, and what a browser may do with it; the page itself stands at /."""
    types = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}
    assert {INDEX, *UPLOT} <= page_files().keys()
    for name, body in page_files().items():
        status, headers, said = ask(base + ("/" if name == INDEX else f"/static/{name}"))
        assert (status, said, headers["Content-Type"]) == (200, body, types[name.rpartition(".")[2]])
        assert headers["Content-Security-Policy"] == CONTENT_POLICY
        assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
    assert "default-src 'none'" in CONTENT_POLICY and "frame-ancestors 'none'" in CONTENT_POLICY and "unsafe" not in CONTENT_POLICY


def test_a_browser_keeps_a_file_until_it_changes(base: str) -> None:
    """It asks each time, and is told in no bytes that nothing has changed; packed where it takes that."""
    url = f"{base}/static/uPlot.iife.min.js"
    status, headers, body = ask(url, Accept_Encoding="gzip")
    assert (headers["Cache-Control"], headers["Content-Encoding"]) == ("no-cache", "gzip")
    assert hashlib.sha256(gzip.decompress(body)).hexdigest() == UPLOT["uPlot.iife.min.js"]
    assert ask(url, If_None_Match=headers["Etag"])[::2] == (304, b"")
    assert ask(url, If_None_Match='"of another release"')[0] == 200
    status, told, body = ask(url, "HEAD")
    assert (status, told["Content-Length"], body) == (200, str(len(page_files()["uPlot.iife.min.js"])), b"")


@pytest.mark.parametrize(
    "path",
    [
        "/static/",
        "/static/none.js",
        "/static/uPlotXminXcss",
        "/static/../files.py",
        "/static/%2e%2e/files.py",
        "/static/..%2ffiles.py",
        "/static//etc/passwd",
        "/static/index.html",
        "/static/uPlot.LICENSE",
        "/static/app.js/../../files.py",
        "//static/uPlot.min.css",
        "/static/uPlot.min.css%00.js",
    ],
)
def test_nothing_else_is_served(base: str, path: str) -> None:
    """Whatever the path tries."""
    assert ask(base + path)[0] in (400, 404)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(base: str, method: str) -> None:
    """Only GET and HEAD are answered."""
    status, headers, _ = ask(f"{base}/", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_links_of_other_sites_lead_to_the_page(base: str) -> None:
    """It tells nothing of the machine: what does is refused to them."""
    assert ask(f"{base}/", Sec_Fetch_Site="cross-site")[0] == 200


def test_the_page_asks_no_other_server() -> None:
    """All that it loads lies beside it, and nothing runs that stands in the text of the page itself."""
    page = page_files()[INDEX].decode()
    for address in re.findall(r"""(?:src|href)\s*=\s*["']([^"']*)""", page):
        assert not re.match(r"(?:https?:)?//", address), address
        if address.startswith("static/"):
            assert address.removeprefix("static/") in page_files(), address
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+\s*=|\sstyle\s*=", page)


def test_uplot_is_what_its_authors_published() -> None:
    """Byte for byte, with its licence beside it."""
    assert {name: hashlib.sha256(page_files()[name]).hexdigest() for name in UPLOT} == UPLOT
