"""The page without scripts: the same rows, as text."""

from __future__ import annotations

from html.parser import HTMLParser

from accelmetrics.views.node_view import node_view
from accelmetrics.views.page.documents import plain_page
from tests.views.nodes import Node


class Cells(HTMLParser):
    """The texts of a document's table cells, row by row, and the names of its elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.elements: set[str] = set()
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self._inside = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.rows[-1][-1] += data


def test_each_device_is_a_row_with_what_is_missing_in_words() -> None:
    node = Node(2)
    node.silence("gpu.1", "device_lost", "NVML_ERROR_GPU_IS_LOST")
    rows = Cells(plain_page(node_view(node.record()))).rows
    sound, lost = rows[1], rows[2]
    assert sound[:7] == ["gpu.0 H100 80GB HBM3", " ok", "93 %", "56 %", "612 W of 700 W", "71 °C", "1980 MHz"]
    assert lost[1] == "X bad"
    assert lost[4] == "- LOST"
    assert "NVML_ERROR_GPU_IS_LOST" in lost[-1]


def test_texts_are_texts() -> None:
    node = Node(0, hostname="<b>node</b>")
    node.add(name='</td><img src=x onerror="alert(1)">')
    cells = Cells(plain_page(node_view(node.record())))
    assert "onerror" in cells.rows[1][0]
    assert not cells.elements & {"img", "b", "script"}
