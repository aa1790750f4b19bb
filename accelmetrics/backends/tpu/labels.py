"""What an entry is about: which device, or under which label its numbers stand."""

from __future__ import annotations

import re

from accelmetrics.backends.tpu.messages import Attribute, Scalar

HIGHEST_DEVICE = 2**31 - 1
BUFFER_SIZE = "buffer-size"
ORDINAL, CORE_TYPE = "device_ordinal", "core_type"
DEVICE_KEYS = frozenset({"device-id", "device_id", ORDINAL})
UNKNOWN = "unknown"

_NUMBER = re.compile(r"\d{1,10}", re.ASCII)
_OTHERS = re.compile(r"[^a-z0-9]+")


def sanitized(label: str) -> str:
    """A label as it stands in keys, spelled as W&B does: ``8MB+`` gives ``8mb_plus``, ``tensor_core-0`` ``tensor_core_0``."""
    text = label.strip().lower().replace("+", "_plus_").replace("%", "pct")
    return _OTHERS.sub("_", text).strip("_") or UNKNOWN


def device_id(attribute: Attribute | None) -> int | None:
    """The runtime's number of the device; None when the attribute names none.

    An integer is one whatever its key, which differs between releases (``device-id``, ``device_id``). Digits in a string are
    one under these keys alone; newer releases write them so.
    """
    if attribute is None:
        return None
    if attribute.parts:
        named = [part for part in attribute.parts if part.key in DEVICE_KEYS]
        return next((number for number in map(device_id, named) if number is not None), None)
    value = attribute.value
    if isinstance(value, str) and _NUMBER.fullmatch(value) and attribute.key in DEVICE_KEYS:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= HIGHEST_DEVICE else None


def label(attribute: Attribute | None, position: int) -> str:
    """Under which label an entry's numbers stand.

    A core is told as the SDK does it, by its type and number; a transfer by the size of its buffers; anything else by the
    first thing that is said of it, and an entry of which nothing is said by its position, as W&B has it.
    """
    said = dict(_said(attribute))
    if ORDINAL in said and CORE_TYPE in said:
        return sanitized(f"{said[CORE_TYPE]}-{said[ORDINAL]}")
    words = said.get(BUFFER_SIZE) or next(filter(None, said.values()), "")
    return sanitized(words) if words else f"item_{position}"


def _said(attribute: Attribute | None) -> list[tuple[str, str]]:
    if attribute is None:
        return []
    parts = attribute.parts or (attribute,)
    return [(part.key, _text(part.value)) for part in parts]


def _text(value: Scalar | None) -> str:
    return "" if value is None else str(value)
