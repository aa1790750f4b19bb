"""The output of ``amd-smi … --json`` as cards, in both shapes that it has had.

Up to ROCm 6.4 it is a list, ``[{"gpu": 0, "usage": {…}}, …]``; since 7.0 the list stands in ``{"gpu_data": […]}``. Around it
stand warnings and headings, several documents may follow one another, and the last may be cut. What all have in common is an
object that begins with the card's number, so those are picked out, wherever they stand; one that is not complete is not there.

A value is ``{"value": 42, "unit": "%"}``, or plain, or ``"N/A"``; so may be a whole section. A record has them by their paths,
``usage.gfx_activity``, with lists numbered. Pure: text in, records out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from accelmetrics.backends.amd.table import Record

MAX_CARDS = 256
DEPTH = 8
_START = re.compile(r'\{\s*"gpu"\s*:\s*(\d{1,4})\s*(?=[,}])', re.ASCII)
_DECODER = json.JSONDecoder()


class Output(NamedTuple):
    """What one run printed.

    Attributes:
        cards: By the tool's number.
        complete: Whether none was cut.
    """

    cards: dict[int, Record]
    complete: bool


def parse(text: str) -> Output:
    """Read what the tool printed. Any text is fine; what is not understood gives no cards."""
    cards: dict[int, Record] = {}
    complete, end = True, 0
    for start in _START.finditer(text):
        if start.start() < end:
            continue
        if len(cards) == MAX_CARDS:
            break
        try:
            value, end = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError):  # malformed or cut; a number too long for int(); nested beyond reason
            complete = False
            continue
        cards[int(start.group(1))] = dict(_flat(value, "", DEPTH))
    return Output(cards, complete)


def _flat(value: object, path: str, depth: int) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict) and "value" in value:
        value = value["value"]
    if isinstance(value, dict) and depth:
        for name, item in value.items():
            yield from _flat(item, f"{path}.{name}".lower().lstrip("."), depth - 1)
    elif isinstance(value, list) and depth:
        for number, item in enumerate(value):
            yield from _flat(item, f"{path}.{number}", depth - 1)
    else:
        yield path, value
