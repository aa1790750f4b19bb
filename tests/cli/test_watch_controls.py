"""What keys change about what is seen, without a terminal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from accelmetrics.cli.terminal import MouseReport
from accelmetrics.cli.watch_screen import chosen_by, edited, pointed
from accelmetrics.views.terminal.choices import Choices, InputLine
from accelmetrics.views.terminal.picture import Picture, Spot

DEVICES = tuple(f"gpu.{number}" for number in range(20))
PROCESSES = (40, 30, 50)
METRICS = ("power_watts", "utilization", "temperature_celsius")
SECOND = 1_000_000_000
NEWEST = 1_790_000_000 * SECOND


def after(*keys: str, choices: Choices | None = None, across: int = 1) -> Choices:
    """What is chosen after these keys, on a picture of 20 devices and 3 processes, 5 rows of them at once."""
    shown = choices or Choices(device="gpu.0", process=40)
    for key in keys:
        picture = Picture((), (0, 0), shown, DEVICES, PROCESSES, across=across, page=5, times=(NEWEST - 120 * SECOND, NEWEST))
        shown = chosen_by(key, picture, METRICS)
    return shown


@pytest.mark.parametrize(
    ("keys", "device"),
    [
        (["down"], "gpu.1"),
        (["j", "j"], "gpu.2"),
        (["down", "k"], "gpu.0"),
        (["up"], "gpu.0"),
        (["pagedown"], "gpu.5"),
        (["pagedown", "pagedown", "pageup"], "gpu.5"),
        (["end"], "gpu.19"),
        (["end", "down"], "gpu.19"),
        (["end", "home"], "gpu.0"),
        (["right"], "gpu.0"),
    ],
)
def test_the_chosen_device_moves(keys: list[str], device: str) -> None:
    """By a row, a page, to both ends and no further; in a list left and right go through time."""
    assert after(*keys).device == device


def test_in_a_map_rows_are_as_long_as_it_is_wide() -> None:
    """Left and right move too."""
    assert after("down", across=8).device == "gpu.8"
    assert after("right", "right", "left", "down", across=8).device == "gpu.9"


def test_the_other_pane_has_a_choice_of_its_own() -> None:
    """Tab there and back."""
    moved = after("tab", "down", "down")
    assert (moved.pane, moved.process, moved.device) == ("processes", 50, "gpu.0")
    assert after("backtab", "tab").pane == "devices"


@pytest.mark.parametrize(
    ("keys", "changed"),
    [
        (["o"], {"device_order": "state"}),
        (["o", "O"], {"device_order": "state", "device_reverse": True}),
        (["O", "o"], {"device_order": "state", "device_reverse": False}),
        (["tab", "o", "O"], {"pane": "processes", "process_order": "mem", "process_reverse": True}),
        (["m"], {"metric": "utilization"}),
        (["M"], {"metric": "temperature_celsius"}),
        (["t"], {"scale": "5 min"}),
        (["T"], {"scale": "24 h"}),
        (["-"], {"scale": "2 min"}),
        (["-", "t"], {"scale": "5 min"}),
        (["-", "T"], {"scale": "1 min"}),
        (["+", "=", "+"], {"scale": "15 s"}),
        (["_"] * 20, {"scale": "24 h"}),
        (["["], {"until_ns": NEWEST - 30 * SECOND}),
        (["left", "[", "]"], {"until_ns": NEWEST - 30 * SECOND}),
        (["[", "right"], {}),
        (["["] * 9, {"until_ns": NEWEST - 60 * SECOND}),
        (["[", "0"], {}),
        (["[", "escape"], {}),
        (["b"], {"beside": ("power_watts",), "metric": "utilization"}),
        (["b", "b"], {"beside": ("power_watts", "utilization"), "metric": "temperature_celsius"}),
        (["b", "b", "b"], {"beside": ("power_watts", "utilization"), "metric": "temperature_celsius"}),
        (["b", "b", "B"], {"beside": ("power_watts",), "metric": "utilization"}),
        (["B"], {}),
        (["a"], {"graphs": "lines"}),
        (["a", "a"], {"graphs": "band"}),
        (["v"], {"form": "map"}),
        (["v", "v"], {"form": "list"}),
        ([" "], {"paused": True}),
        ([" ", " "], {"paused": False}),
        (["?"], {"overlay": "help"}),
        (["h", "f1"], {"overlay": ""}),
        (["enter"], {"overlay": "details"}),
        (["f"], {"overlay": "findings"}),
        (["f", "escape"], {"overlay": ""}),
        (["?", "m", "o", "/"], {"overlay": "help"}),
        (["?", "down", "down", "up"], {"overlay": "help", "overlay_top": 1}),
        (["?", "pagedown"], {"overlay": "help", "overlay_top": 5}),
        (["?", "pagedown", "home"], {"overlay": "help", "overlay_top": 0}),
        (["?", "pagedown", "f"], {"overlay": "findings", "overlay_top": 0}),
        (["p"], {"paused": True}),
        (["z"], {"menu": "order"}),
        (["f6", "escape"], {}),
        (["z", "m"], {"device_order": "mem"}),
        (["z", "t", "z", "t"], {"device_order": "temp", "device_reverse": True}),
        (["z", "right", "z", "enter"], {"device_order": "state", "device_reverse": True}),
        (["z", "left", "x", "tab"], {"device_order": "temp", "menu": "order"}),
        (["tab", "z", "c"], {"pane": "processes", "process_order": "cpu%"}),
        (["tab", "z", "g"], {"pane": "processes", "process_reverse": True}),
        (["tab", "right", "right", "left"], {"pane": "processes", "process_left": 8}),
        (["tab", "left"], {"pane": "processes"}),
        (["tab", " ", " "], {"pane": "processes", "process": 50, "tagged": frozenset({40, 30})}),
        (["tab", " ", "up", " ", "p"], {"pane": "processes", "process": 30, "paused": True}),
        (["tab", " ", "escape"], {"pane": "processes", "process": 30}),
        (["c", "x", "e", "x"], {"menu": "columns", "device_hidden": frozenset({"ECC"})}),
        (["c", "p", "tab", "enter"], {"device_hidden": frozenset({"POWER/W"})}),
        (["tab", "c", "c", "h", "escape"], {"pane": "processes", "process_hidden": frozenset({"CPU%", "HELD BY"})}),
        (["Z", "f12", "insert"], {}),
    ],
)
def test_what_is_shown(keys: list[str], changed: dict[str, Any]) -> None:
    """Each key changes one thing; what lies below an overlay stays as it is."""
    assert after(*keys) == replace(Choices(device="gpu.0", process=40), **changed)


def test_no_process_is_opened_where_none_is_shown() -> None:
    """Enter in an empty list changes nothing; the view of a process that has ended can still be closed."""
    chosen = Choices(pane="processes")
    assert chosen_by("enter", Picture((), (0, 0), chosen, DEVICES), METRICS) == chosen
    opened = replace(chosen, overlay="process")
    assert chosen_by("enter", Picture((), (0, 0), opened, DEVICES), METRICS) == chosen


SPOTS = (
    Spot(1, 0, 80, "devices", "gpu.7"),
    Spot(2, 10, 14, "processes", order="mem"),
    Spot(3, 0, 80, "processes", 30),
)


@pytest.mark.parametrize(
    ("report", "changed"),
    [
        (MouseReport("click", 1, 5), {"device": "gpu.7"}),
        (MouseReport("click", 3, 79), {"pane": "processes", "process": 30}),
        (MouseReport("click", 3, 80), {}),
        (MouseReport("click", 0, 0), {}),
        (MouseReport("click", 2, 10), {"pane": "processes", "process_order": "mem"}),
        (MouseReport("down", 1, 0), {"device": "gpu.1"}),
        (MouseReport("down", 3, 0), {"pane": "processes", "process": 30}),
        (MouseReport("up", 9, 9), {}),
    ],
)
def test_the_mouse_chooses_what_it_points_at(report: MouseReport, changed: dict[str, Any]) -> None:
    """A row, or the order by a heading; the wheel goes through the list below it."""
    shown = Choices(device="gpu.0", process=40)
    assert pointed(report, Picture((), (0, 0), shown, DEVICES, PROCESSES, spots=SPOTS)) == replace(shown, **changed)


def test_a_second_click_on_a_heading_turns_the_order_round_and_the_wheel_moves_an_overlay() -> None:
    """Three lines at once, and never above the first."""
    shown = Choices(pane="processes", process_order="mem")
    assert pointed(MouseReport("click", 2, 11), Picture((), (0, 0), shown, spots=SPOTS)).process_reverse
    help_shown = Choices(overlay="help", overlay_top=4)
    assert pointed(MouseReport("down", 1, 1), Picture((), (0, 0), help_shown, spots=SPOTS)).overlay_top == 7
    assert pointed(MouseReport("up", 1, 1), Picture((), (0, 0), replace(help_shown, overlay_top=1), spots=SPOTS)).overlay_top == 0
    assert pointed(MouseReport("click", 1, 1), Picture((), (0, 0), help_shown, spots=SPOTS)) == help_shown


def test_a_filter_is_typed_taken_and_dropped() -> None:
    """Keys are letters meanwhile."""
    typing = after("/", *"state!=ok")
    assert typing.input is not None
    assert (typing.input.text, typing.input.label, typing.overlay) == ("state!=ok", "filter devices", "")
    taken = after("enter", choices=typing)
    assert (taken.device_filter, taken.process_filter, taken.input) == ("state!=ok", "", None)
    again = after("/", choices=taken)
    assert again.input == InputLine("filter devices", "state!=ok", 9)
    assert after("backspace", "escape", choices=again).device_filter == "state!=ok"
    assert after("escape", choices=taken).device_filter == ""
    assert after("tab", "/", *"user=ann", "enter").process_filter == "user=ann"


def test_a_filter_that_cannot_be_used_stays_and_says_why() -> None:
    """Until it is mended."""
    wrong = after("/", *"colour=red", "enter")
    assert wrong.input is not None
    assert "colour" in wrong.input.problem
    assert wrong.device_filter == ""
    mended = after("ctrl-u", choices=wrong)
    assert mended.input == InputLine("filter devices", "", 0)


@pytest.mark.parametrize(
    ("keys", "text", "at"),
    [
        ("left left X", "helXlo", 4),
        ("home X", "Xhello", 1),
        ("ctrl-a delete", "ello", 0),
        ("left delete", "hell", 4),
        ("backspace", "hell", 4),
        ("home backspace", "hello", 0),
        ("left left ctrl-u", "lo", 0),
        ("left ctrl-k", "hell", 4),
        ("right right", "hello", 5),
        ("home right ctrl-e", "hello", 5),
        ("ctrl-w", "", 0),
        ("é", "helloé", 6),
        ("f5 up", "hello", 5),
    ],
)
def test_a_line_is_edited(keys: str, text: str, at: int) -> None:
    """As in a shell."""
    line = InputLine("filter", "hello", 5, "a problem")
    for key in keys.split():
        line = edited(key, line)
    assert (line.text, line.at, line.problem) == (text, at, "")


def test_a_word_is_deleted_by_itself() -> None:
    """With the spaces behind it, and not what follows."""
    assert edited("ctrl-w", InputLine("filter", "one two  three", 9)) == InputLine("filter", "one three", 4)
