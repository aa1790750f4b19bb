"""The output of ``rocm-smi --json`` as cards, whatever stands around it and however much of it there is.

What the tool prints, in every release from 2.x on, is one object: ``{"card0": {"GPU use (%)": "7", …}, "card1": {…},
"system": {…}}``, all values strings. Around it stand warnings, exceptions of libraries and progress of other tools; the
object may be cut. So every object in the text is tried, those that hold cards are taken together, and when there is none
the complete cards of a cut one are picked out by their numbers: a card that is not complete is not there.

Pure: text in, records out. Nothing here knows what a key means; see :mod:`accelmetrics.backends.amd.fields`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

Card = Mapping[str, object]
"""One card: keys in lower case without white space around them, since releases differ in nothing else ("Card series",
"Card Series"; "(C)", "(c)"). Values as printed: strings, in one tool derived from this numbers."""

MAX_ATTEMPTS = 64
"""Objects that are tried before the text counts as noise."""

_OBJECT = re.compile(r'\{\s*"')
_CARD = re.compile(r"card(\d{1,4})", re.IGNORECASE | re.ASCII)
_CARD_START = re.compile(r'"card(\d{1,4})"\s*:\s*(?=\{)', re.IGNORECASE | re.ASCII)
_SYSTEM = "system"
_DECODER = json.JSONDecoder()


class Output(NamedTuple):
    """What one run printed.

    Attributes:
        cards: By card number, which is the tool's own and not a position.
        system: What concerns no single card; empty where the tool did not print it.
        complete: Whether the cards stood in an object that was printed to its end.
    """

    cards: dict[int, Card]
    system: Card
    complete: bool


def parse(text: str) -> Output:
    """Read what the tool printed. Any text is fine; what is not understood gives no cards."""
    cards: dict[int, Card] = {}
    system: Card = {}
    for document in _objects(text):
        cards.update(_cards(document))
        system = _record(document.get(_SYSTEM)) or system
    if cards:
        return Output(cards, system, True)
    return Output(dict(_whole_cards(text)), {}, False)


def _objects(text: str) -> Iterator[dict[str, object]]:
    """Every object in the text that is complete, outermost ones only."""
    position = 0
    for _ in range(MAX_ATTEMPTS):
        start = _OBJECT.search(text, position)
        if start is None:
            return
        value, position = _decode(text, start.start())
        if value is not None:
            yield value


def _decode(text: str, start: int) -> tuple[dict[str, object] | None, int]:
    """The object that begins at ``start``, None when there is none, and where to go on."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):  # malformed or cut; a number too long for int(); nested beyond reason
        return None, start + 1
    return value, end


def _cards(document: Mapping[str, object]) -> Iterator[tuple[int, Card]]:
    for key, value in document.items():
        match = _CARD.fullmatch(key.strip())
        if match and isinstance(value, dict):
            yield int(match.group(1)), _record(value)


def _whole_cards(text: str) -> Iterator[tuple[int, Card]]:
    """The cards of a cut object that are complete themselves."""
    for attempt, start in enumerate(_CARD_START.finditer(text)):
        if attempt == MAX_ATTEMPTS:
            return
        value, _ = _decode(text, start.end())
        if value is not None:
            yield int(start.group(1)), _record(value)


def _record(value: object) -> Card:
    if not isinstance(value, dict):
        return {}
    return {key.strip().lower(): item.strip() if isinstance(item, str) else item for key, item in value.items()}
