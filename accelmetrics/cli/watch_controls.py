"""What keys of ``watch`` change about what is seen: from the picture on the screen to other choices. They do nothing else."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.views.terminal.choices import DEVICE_ORDERS, NODE_ORDERS, PROCESS_ORDERS, Choices, InputLine, Overlay, Pane
from accelmetrics.views.terminal.filters import DEVICE_FIELDS, NODE_FIELDS, PROCESS_FIELDS, parse_filter
from accelmetrics.views.terminal.picture import Picture
from accelmetrics.views.trails import SCALES

T = TypeVar("T")
OVERLAYS: dict[str, Overlay] = {"?": "help", "h": "help", "f1": "help", "enter": "details", "f": "findings"}
MOVES = {"up": -1, "down": 1, "pageup": -1, "pagedown": 1, "home": 0, "end": 0}
"""Keys that go through a list, and which way."""


ROWS: Mapping[Pane, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "devices": ("device", DEVICE_ORDERS, DEVICE_FIELDS),
    "processes": ("process", PROCESS_ORDERS, PROCESS_FIELDS),
    "nodes": ("node", NODE_ORDERS, NODE_FIELDS),
}
"""Of the rows of each list: the word that fields of ``Choices`` begin with, the orders, and what they can be filtered by."""
FLEET_KEYS = frozenset({"o", "O", " ", "/"})
"""Keys that switch something in a fleet too."""
SAME = {"j": "down", "k": "up", "backtab": "tab"}
"""Keys that do what another one does."""
LONGEST_INPUT = 500


def chosen_by(key: str, picture: Picture, metrics: Sequence[str]) -> Choices:
    """Return what is to be seen after a key; for one that changes nothing about that, the same as before.

    Args:
        key: The key's name.
        picture: What stands on the screen.
        metrics: What a graph can show.
    """
    choices = picture.choices
    if choices.input is not None:
        return typed(key, choices, choices.input)
    key = SAME.get(key, key)
    if key == "escape":
        return left(choices)
    if key in OVERLAYS:
        return replace(choices, overlay="" if choices.overlay == OVERLAYS[key] else OVERLAYS[key], overlay_top=0)
    if choices.overlay:
        return scrolled(key, picture)
    if key in MOVES or key in ("left", "right"):
        return moved(key, picture)
    return replace(choices, **_switched(choices, metrics, picture.across > 1).get(key, {}))


def _switched(choices: Choices, metrics: Sequence[str], mapped: bool) -> dict[str, dict[str, Any]]:
    """Return what changes, by the key that changes it."""
    pane, orders, _ = ROWS[choices.pane]
    order, reverse, words = (getattr(choices, f"{pane}_{what}") for what in ("order", "reverse", "filter"))
    switched: dict[str, dict[str, Any]] = {
        "tab": {"pane": "processes" if pane == "device" else "devices"},
        "o": {f"{pane}_order": _next(orders, order), f"{pane}_reverse": False},
        "O": {f"{pane}_reverse": not reverse},
        "m": {"metric": _next(metrics or [choices.metric], choices.metric)},
        "M": {"metric": _next(metrics or [choices.metric], choices.metric, -1)},
        "t": {"scale": _next(tuple(SCALES), choices.scale)},
        "T": {"scale": _next(tuple(SCALES), choices.scale, -1)},
        "a": {"all_devices": not choices.all_devices},
        "v": {"form": "list" if mapped or choices.form == "map" else "map"},
        " ": {"paused": not choices.paused},
        "/": {"input": InputLine(f"filter {choices.pane}", words, len(words))},
    }
    return {key: changes for key, changes in switched.items() if key in FLEET_KEYS} if pane == "node" else switched


def _next(items: Sequence[T], now: T, step: int = 1) -> T:
    """Return the item behind the present one, or before it; the first behind one that is not there."""
    return items[(items.index(now) + step) % len(items)] if now in items else items[0]


def scrolled(key: str, picture: Picture) -> Choices:
    """Return the choices with another part of what is shown in place of the lists."""
    if key not in MOVES:
        return picture.choices
    top = picture.choices.overlay_top + MOVES[key] * (picture.page if key.startswith("page") else 1)
    return replace(picture.choices, overlay_top=max(0, {"home": 0, "end": sys.maxsize}.get(key, top)))


def left(choices: Choices) -> Choices:
    """Return the choices without what was opened last: an overlay, else what is said, else the filter."""
    if choices.overlay:
        return replace(choices, overlay="", overlay_top=0)
    given: dict[str, Any] = {f"{ROWS[choices.pane][0]}_filter": ""}
    return replace(choices, **given)


def moved(key: str, picture: Picture) -> Choices:
    """Return the choices with another row chosen."""
    choices = picture.choices
    rows: Sequence[object] = {"devices": picture.devices, "processes": picture.processes, "nodes": picture.nodes}[choices.pane]
    name, _, _ = ROWS[choices.pane]
    now = getattr(choices, name)
    across = picture.across if choices.pane == "devices" else 1
    if not rows or (key in ("left", "right") and across == 1):
        return choices
    place = rows.index(now) if now in rows else 0
    steps = {"left": -1, "right": 1, "up": -across, "down": across, "pageup": -across * picture.page, "pagedown": across * picture.page}
    place = {"home": 0, "end": len(rows) - 1}.get(key, place + steps.get(key, 0))
    given: dict[str, Any] = {name: rows[min(max(place, 0), len(rows) - 1)]}
    return replace(choices, **given)


def typed(key: str, choices: Choices, line: InputLine) -> Choices:
    """Return the choices after a key while a filter is typed; Enter takes it, Escape leaves the one before."""
    if key == "escape":
        return replace(choices, input=None)
    if key != "enter":
        return replace(choices, input=edited(key, line))
    name, _, fields = ROWS[choices.pane]
    try:
        parse_filter(line.text, fields)
    except (UnknownNameError, InvalidOptionError) as error:
        return replace(choices, input=line._replace(problem=str(error)))
    given: dict[str, Any] = {f"{name}_filter": line.text.strip()}
    return replace(choices, input=None, **given)


def edited(key: str, line: InputLine) -> InputLine:
    """Return a line after one more key."""
    text, at = line.text, line.at
    places = {"left": at - 1, "right": at + 1, "home": 0, "ctrl-a": 0, "end": len(text), "ctrl-e": len(text)}
    match key:
        case "backspace" if at > 0:
            text, at = text[: at - 1] + text[at:], at - 1
        case "delete":
            text = text[:at] + text[at + 1 :]
        case "ctrl-u":
            text, at = text[at:], 0
        case "ctrl-k":
            text = text[:at]
        case "ctrl-w":
            kept = text[: text[:at].rstrip().rfind(" ") + 1]
            text, at = kept + text[at:], len(kept)
        case _ if len(key) == 1 and len(text) < LONGEST_INPUT:
            text, at = text[:at] + key + text[at:], at + 1
        case _:
            at = places.get(key, at)
    return line._replace(text=text, at=min(max(at, 0), len(text)), problem="")
