"""The page without scripts: the same rows, as text."""

from __future__ import annotations

from accelmetrics.views.node_view import node_view
from accelmetrics.views.page.documents import plain_page
from tests.views.nodes import Node
from tests.views.report.test_html import Reading


def test_each_device_is_a_row_with_what_is_missing_in_words() -> None:
    node = Node(2)
    node.silence("gpu.1", "device_lost", "NVML_ERROR_GPU_IS_LOST")
    rows = Reading(plain_page(node_view(node.record()))).rows
    sound, lost = rows[1], rows[2]
    assert sound[:7] == ["gpu.0 H100 80GB HBM3", " ok", "93 %", "57 %", "612/700 W", "71 °C", "1980 MHz"]
    assert lost[1] == "X lost"
    assert lost[4] == "- lost"
    assert "NVML_ERROR_GPU_IS_LOST" in lost[-1]


def test_texts_are_texts() -> None:
    node = Node(0, hostname="<b>node</b>")
    node.add(name='</td><img src=x onerror="alert(1)">')
    page = Reading(plain_page(node_view(node.record())))
    assert "onerror" in page.rows[1][0]
    assert not {tag for tag, _ in page.tags} & {"img", "b", "script"}
