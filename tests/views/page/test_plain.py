"""The page without scripts: the same rows, as text."""

from __future__ import annotations

from accelmetrics.schemas.identity import BackendStatus
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
    assert lost[1:] == ["X lost", *["-"] * 5, "NVML_ERROR_GPU_IS_LOST"]


def test_a_fact_is_said_once() -> None:
    """What a finding or a device's row says is neither in the device's note nor in its source's words again."""
    node = Node(2)
    node.silence("gpu.1", "device_lost", "NVML_ERROR_GPU_IS_LOST")
    node.sources["nvidia"] = BackendStatus("nvidia", "degraded", "2 devices; gpu.1: device_lost: NVML_ERROR_GPU_IS_LOST", "nvml", 0.01)
    node.set("gpu.0", {"temp": 91})
    view = node_view(node.record())
    [hot] = [note for note in view.devices[0].notes if "91" in note]
    node.find("hot", "warning", "gpu.0", hot)
    node.find("device_lost", "critical", "gpu.1", "lost: NVML_ERROR_GPU_IS_LOST")
    page = plain_page(node_view(node.record()))
    assert page.count(hot) == 1
    assert page.count("NVML_ERROR_GPU_IS_LOST") == 1
    assert ["nvidia", "degraded", "2 devices"] in Reading(page).rows


def test_what_holds_of_several_devices_is_said_once() -> None:
    node = Node(3)
    for number in range(3):
        node.find("power_brake", "critical", f"gpu.{number}", "the power supply slows it down")
    node.find("hot", "warning", "gpu.2", "91 degrees")
    page = plain_page(node_view(node.record()))
    said = [line.partition("</li>")[0] for line in page.split("<li>")[1:]]
    assert [line.partition(". ")[0] for line in said] == [
        "critical: gpu.0 to gpu.2: the power supply slows it down",
        "warning: gpu.2: 91 degrees",
    ]


def test_texts_are_texts() -> None:
    node = Node(0, hostname="<b>node</b>")
    node.add(name='</td><img src=x onerror="alert(1)">')
    page = Reading(plain_page(node_view(node.record())))
    assert "onerror" in page.rows[1][0]
    assert not {tag for tag, _ in page.tags} & {"img", "b", "script"}
