"""The SDK's strings as numbers.

It tells of devices by position, and the runtime's numbers stand for the positions in their order. Links are told by the
place of their chip (``tray1.chip3.ici0.int: 0``): a chip is as sound as its worst link, and the places in their order are
the chips in theirs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from accelmetrics.backends.contract import Number
from accelmetrics.backends.tpu.fields import LINK_HEALTH, DeviceField, Value, checked
from accelmetrics.backends.tpu.labels import sanitized
from accelmetrics.schemas.reasons import Reason, Unavailable

_LINK = re.compile(r"(?P<chip>.*?)\.?\bici\d+[^:]*:\s*(?P<score>\S+)", re.IGNORECASE | re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?(e[+-]?\d+)?|nan|inf(inity)?)", re.IGNORECASE | re.ASCII)
_DIGITS = re.compile(r"(\d+)", re.ASCII)
LONGEST = 60


def number(text: str) -> Number | None:
    """A number, whole ones as int; None when it is none."""
    text = text.strip()
    if len(text) > LONGEST or not _NUMBER.fullmatch(text):
        return None
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def device_values(
    field: DeviceField, data: Sequence[str], chips: Sequence[Sequence[int]], per_chip: int
) -> Mapping[int, Value] | Unavailable:
    """One metric of every device, by the runtime's number.

    Args:
        field: The metric.
        data: What the SDK said.
        chips: By chip, in order, the numbers of its devices.
        per_chip: How many devices share a duty cycle.
    """
    if field.name == LINK_HEALTH and any(map(_LINK.fullmatch, data)):
        return _links(field, data, chips)
    values = [checked(field, found if (found := number(text)) is not None else text) for text in data]
    devices = [device for chip in chips for device in chip]
    if len(values) == len(devices):
        return dict(zip(devices, values, strict=True))
    if len(values) == len(chips) and (field.name == LINK_HEALTH or (field.duty_cycle and per_chip > 1)):
        return {device: value for chip, value in zip(chips, values, strict=True) for device in chip}
    return Unavailable(Reason.PARSE_ERROR, f"libtpu's SDK tells of {len(values)} devices, and {len(devices)} are in use")


def _links(field: DeviceField, data: Sequence[str], chips: Sequence[Sequence[int]]) -> Mapping[int, Value] | Unavailable:
    by_place: dict[str, list[Value]] = {}
    for text in data:
        link = _LINK.fullmatch(text.strip())
        if link is None:
            return Unavailable(Reason.PARSE_ERROR, f"no link and its score: {text[:LONGEST]!r}")
        score = number(link["score"])
        by_place.setdefault(link["chip"], []).append(checked(field, link["score"] if score is None else score))
    places = sorted(by_place, key=_in_order)
    if len(places) != len(chips):
        return Unavailable(Reason.PARSE_ERROR, f"libtpu's SDK tells of the links of {len(places)} chips, and {len(chips)} are in use")
    worst = [_worst(by_place[place]) for place in places]
    return {device: value for chip, value in zip(chips, worst, strict=True) for device in chip}


def _worst(scores: Sequence[Value]) -> Value:
    """The highest score; where one is not understood, it might have been that."""
    broken = [score for score in scores if isinstance(score, Unavailable)]
    return broken[0] if broken else max(score for score in scores if not isinstance(score, Unavailable))


def _in_order(place: str) -> list[tuple[int, str]]:
    """``tray1.chip10`` comes after ``tray1.chip9``."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in _DIGITS.split(place)]


def statistic_names(description: str, count: int) -> tuple[str, ...]:
    """What so many numbers in a row are, as W&B reads them: the SDK says it in words, if at all."""
    words = description.lower()
    if count == 5:
        return ("mean", "p50", "p90", "p99" if "p99" in words.replace("p999", "") and "p95" not in words else "p95", "p999")
    if count == 4:
        return ("p50", "p90", "p95", "p999")
    return tuple(f"stat{position}" for position in range(count))


def labelled(description: str, data: Sequence[str]) -> dict[str, dict[str, Number]]:
    """Of ``label, mean, p50, …``, one string each: by label, the statistics by name."""
    found = {}
    for text in data:
        label, *numbers = _split(text)[:64] or [""]
        if numbers:
            found[sanitized(label)] = _named(description, numbers)
    return found


def flat(description: str, data: Sequence[str]) -> dict[str, Number]:
    """Of ``mean, p50, …``, in one string or in several: the statistics by name."""
    return _named(description, _split(data[0]) if len(data) == 1 else [text.strip() for text in data])


def counts(data: Sequence[str]) -> dict[str, Number]:
    """Of ``label: count``, one string each: the counts by label, those of one label added up."""
    found: dict[str, Number] = {}
    for position, text in enumerate(data):
        label, separator, value = text.rpartition(":")
        known = number(value)
        if known is not None:
            key = sanitized(label) if separator else f"item_{position}"
            found[key] = found.get(key, 0) + known
    return found


def _named(description: str, numbers: Sequence[str]) -> dict[str, Number]:
    pairs = zip(statistic_names(description, len(numbers)), map(number, numbers), strict=True)
    return {name: value for name, value in pairs if value is not None}


def _split(text: str) -> list[str]:
    parts = (part.strip().strip("\"'") for part in text.strip().strip("[]").split(","))
    return [part for part in parts if part]
