"""A node in a line: what another machine says of itself is checked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accelmetrics.schemas.errors import DocumentError, Reason
from accelmetrics.schemas.identity import BackendStatus
from accelmetrics.views.node_view import NodeSummary, node_view
from tests.views.nodes import Node


def summary() -> NodeSummary:
    node = Node(3)
    node.silence("gpu.1", Reason.DEVICE_LOST, "gone")
    node.set("gpu.2", {"temp": 88})
    node.find("hot", "warning", "gpu.2", "core at 88 °C")
    node.sources["amd"] = BackendStatus("amd", "failed", "no driver", devices=1)
    return node_view(node.record()).summary


def test_it_names_the_worst_device_and_counts_the_rest() -> None:
    found = summary()
    assert found.worst is not None
    assert (found.worst.key, found.worst.state, found.worst.note) == ("gpu.1", "bad", "lost")
    assert [device.utilization for device in found.devices] == [93.0, None, 93.0]
    assert (found.lost, found.hot, found.failed, found.findings) == (1, 1, 1, {"warning": 1})
    assert found.silent == ("amd failed: no driver",)
    assert found.state == "bad"


def test_it_reads_back_what_it_wrote() -> None:
    assert NodeSummary.from_json(json.dumps(summary().to_dict())) == summary()


def test_a_newer_release_may_say_more() -> None:
    assert NodeSummary.from_dict({**summary().to_dict(), "mood": "fine"}) == summary()


@pytest.mark.parametrize(
    "wrong",
    [
        {"hostname": None},
        {"hostname": "n" * 2000},
        {"utilization": float("nan")},
        {"devices": [{"key": "gpu.0", "state": "sunny"}]},
        {"devices": [{"key": "gpu.0", "state": "ok", "utilization": float("inf")}]},
        {"devices": [{"key": "gpu.0", "state": "ok"}] * 5000},
        {"time_ns": "yesterday"},
    ],
    ids=lambda wrong: next(iter(wrong)) + str(len(str(wrong))),
)
def test_what_is_no_summary_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DocumentError, match="not a summary of a node"):
        NodeSummary.from_dict({**summary().to_dict(), **wrong})


@pytest.mark.parametrize("text", ["", "null", "[]", "{", "[" * 100_000, '{"hostname": 1}', "\x00"], ids=lambda text: ascii(text[:9]))
def test_whatever_another_machine_says_is_refused_in_words(text: str) -> None:
    with pytest.raises(DocumentError, match="not a summary of a node"):
        NodeSummary.from_json(text)


def test_a_sound_node_has_no_worst_device() -> None:
    found = node_view(Node(2).record()).summary
    assert (found.worst, found.state) == (None, "ok")


def test_long_words_of_a_driver_are_cut_so_that_another_machine_takes_them() -> None:
    node = Node(1)
    node.find("hot", "critical", "gpu.0", "w" * 5000)
    found = node_view(node.record()).summary
    assert NodeSummary.from_dict(found.to_dict()) == found
    assert found.worst is not None and found.worst.note == "w" * 1000
