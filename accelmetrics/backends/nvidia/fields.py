"""Values of batched fields: each comes with its own type and return code."""

from __future__ import annotations

import struct

LAYOUTS = {0: "d", 1: "I4x", 2: "Q" if struct.calcsize("L") == 8 else "I4x", 3: "Q", 4: "q", 5: "i4x", 6: "H6x"}
"""``nvmlValueType_t`` to the part of ``nvmlValue_t`` that holds the value; the bytes beyond a narrow one are not defined."""
_LARGEST = {"I4x": 2**32 - 2, "H6x": 2**16 - 2}
UNSIGNED_LONG_LONG = 3
NUMBERS = 2
"""How many numbers a field's slot has: its signature, and its value."""


def type_of(signature: int) -> int:
    """The type out of a field's type and return code, read as one number."""
    return signature & 0xFFFFFFFF


def status_of(signature: int) -> int:
    """The return code out of the same."""
    return signature >> 32


def layout_of(signature: int) -> str:
    """Where a field's value stands; a type that is newer than the table is read like the widest one."""
    return LAYOUTS.get(type_of(signature), "Q")


def largest(signature: int) -> int:
    """The largest value that a field of this type can have: all-ones means that there is none."""
    return _LARGEST.get(layout_of(signature), 2**63 - 1)
