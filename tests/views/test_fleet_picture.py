"""The picture of a fleet: a line a node, the worst first, on every terminal."""

from __future__ import annotations

import os

import pytest

from accelmetrics.schemas.errors import Reason
from accelmetrics.schemas.identity import BackendStatus
from accelmetrics.schemas.text import cells
from accelmetrics.views.node_view import NodeAnswer, node_view
from accelmetrics.views.terminal.choices import USUAL_CHOICES, Choices, InputLine
from accelmetrics.views.terminal.fleet import fleet_picture
from accelmetrics.views.terminal.picture import Picture
from accelmetrics.views.terminal.style import ScreenStyle
from tests.views.nodes import Node, plain

COLOURLESS = ScreenStyle("none", braille=False)
SIZES = [(1, 1), (20, 2), (20, 5), (40, 10), (80, 24), (120, 40), (200, 60), (250, 80)]


def answers(nodes: int = 8, devices: int = 8) -> list[NodeAnswer]:
    """Nodes of which n3 has a hot device, n5 a lost one, n6 a silent driver, and n7 does not answer."""
    found = []
    for number in range(nodes):
        node = Node(devices, hostname=f"n{number}.cluster.example")
        before = node_view(node.record())
        node.wait(240)
        for place in range(devices):
            node.set(f"gpu.{place}", {"gpu": (number * 10 + place) % 101})
        if number == 3:
            node.set("gpu.6", {"temp": 88})
        if number == 5:
            node.silence("gpu.3", Reason.DEVICE_LOST, "gone")
            node.find("lost_device", "critical", "gpu.3", "it gives nothing")
        if number == 6:
            node.sources["amd"] = BackendStatus("amd", "failed", "amdgpu is not loaded", devices=1)
        summary = node_view(node.record(), before=before).summary
        found.append(
            NodeAnswer(f"n{number}:22235", summary, age_seconds=1.0)
            if number != 7
            else NodeAnswer("n7:22235", failure="no answer: connection refused")
        )
    return found


def draw(
    given: list[NodeAnswer], choices: Choices = USUAL_CHOICES, size: tuple[int, int] = (80, 24), style: ScreenStyle = COLOURLESS
) -> Picture:
    return fleet_picture(given, choices, os.terminal_size(size), style)


@pytest.mark.parametrize(("nodes", "devices"), [(0, 0), (1, 1), (8, 8), (8, 64), (300, 2)])
def test_every_picture_fits_its_terminal(nodes: int, devices: int) -> None:
    given = answers(nodes, devices) if devices != 2 else answers(8, 7) * 30
    strange = NodeAnswer("名前\x1b[2J" * 20, failure="bad\x1b[31m")
    for choices in (
        *(USUAL_CHOICES, Choices(node="n2:22235", node_top=99), Choices(overlay="details"), Choices(overlay="help")),
        *(Choices(node_filter="state=ok"), Choices(node_filter="none"), Choices(input=InputLine("filter", "x" * 300, 300))),
    ):
        for size in SIZES:
            for style in (COLOURLESS, ScreenStyle("true", ascii=True)):
                drawn = draw([*given, strange], choices, size, style)
                lines = plain(drawn)
                assert len(lines) == size[1]
                assert {cells(line) for line in lines} == {size[0]}
                assert all(line.isprintable() for line in lines)
                assert 0 <= drawn.place[0] < size[1]
                assert 0 <= drawn.place[1] < size[0]


def test_the_worst_comes_first_and_says_why() -> None:
    drawn = draw(answers(), size=(120, 24))
    assert set(drawn.nodes[:3]) == {"n5:22235", "n6:22235", "n7:22235"}
    assert drawn.nodes[3] == "n3:22235"
    rows = {line[2:4]: line for line in plain(drawn)}
    assert "X-" in rows["n5"]
    assert "gpu.3 lost for 4 min" in rows["n5"]
    assert "amdgpu is not loaded" in rows["n6"]
    assert "no answer: connection refused" in rows["n7"]
    assert "!36" in rows["n3"]
    assert "88 °C" in rows["n3"]
    assert [line[1] for line in plain(drawn)[2:6]] == ["X", "X", "X", "!"]


def test_the_first_line_is_the_fleet_in_numbers() -> None:
    first = plain(draw(answers(), size=(120, 24)))[0]
    for words in ("8 nodes", "56 gpu", "X 1 no answer", "X 1 lost", "! 1 hot", "kW", "worst first"):
        assert words in first


def test_many_devices_are_a_letter_each() -> None:
    rows = plain(draw(answers(devices=64), size=(120, 24)))
    assert "X" in next(line for line in rows if line[2:4] == "n5")[10:80]


def test_nodes_are_put_in_order_and_filtered() -> None:
    given = answers()
    assert draw(given, Choices(node_order="name", node_reverse=True)).nodes[0] == "n7:22235"
    assert draw(given, Choices(node_order="util")).nodes[0] == "n6:22235"
    assert draw(given, Choices(node_filter="lost>0")).nodes == ("n5:22235",)
    assert "hides all 8 nodes" in "\n".join(plain(draw(given, Choices(node_filter="nothing"))))


def test_what_was_said_long_ago_is_told() -> None:
    (old,) = answers(1)
    rows = plain(draw([old._replace(age_seconds=60.0)], size=(120, 10)))
    assert "1 min old" in rows[2]


def test_details_list_each_device_of_the_chosen_node() -> None:
    text = "\n".join(plain(draw(answers(), Choices(node="n5:22235", overlay="details"))))
    assert "n5.cluster.example" in text
    assert text.index("gpu.3") < text.index("gpu.0")


def test_the_chosen_node_is_seen() -> None:
    given = answers() * 20
    for size in SIZES[3:]:
        drawn = draw(given, Choices(node="n2:22235"), size)
        assert plain(drawn)[drawn.place[0]].startswith("> n2")
