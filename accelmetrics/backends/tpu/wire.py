"""Protocol Buffers on the wire: from bytes to numbered fields, and the little that a request needs the other way.

The runtime's answers are half a dozen messages, and this is all of the format that reading them takes: it spares users the
protobuf package, whose generated code is bound to its release. https://protobuf.dev/programming-guides/encoding

A field that nobody asks for costs nothing but being stepped over. Everything else that is not well formed raises
:class:`WireError`: a number cut short, a length beyond the end, a group (which no message here has), more fields than any
honest answer holds.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types. 3 and 4 were groups, 6 and 7 never were."""
MAX_FIELDS = 100_000
"""Fields of one message, elements of a packed list among them."""
MAX_VARINT = 10
"""Bytes of the longest number."""
_SIGN = 1 << 63
_RANGE = 1 << 64


class WireError(ValueError):
    """Bytes that are no such message."""


class Field(NamedTuple):
    """One field as it stands in a message.

    Attributes:
        number: Its number.
        wire: Its wire type.
        value: An unsigned int, or the bytes of a fixed-width number, a string, a message or a packed list.
    """

    number: int
    wire: int
    value: Any


def parse(data: bytes) -> list[Field]:
    """The fields of a message, in their order.

    Raises:
        WireError: It is not well formed.
    """
    fields: list[Field] = []
    position = 0
    while position < len(data):
        if len(fields) == MAX_FIELDS:
            raise WireError(f"more than {MAX_FIELDS} fields")
        tag, position = _varint(data, position)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise WireError("a field with the number 0")
        value, position = _value(data, position, wire)
        fields.append(Field(number, wire, value))
    return fields


def _value(data: bytes, position: int, wire: int) -> tuple[Any, int]:
    if wire == VARINT:
        return _varint(data, position)
    if wire == BYTES:
        size, position = _varint(data, position)
    elif wire in (FIXED64, FIXED32):
        size = 8 if wire == FIXED64 else 4
    else:
        raise WireError(f"wire type {wire}")
    end = position + size
    if end > len(data):
        raise WireError(f"cut short: {size} bytes announced, {len(data) - position} there")
    return data[position:end], end


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index in range(MAX_VARINT):
        if position + index >= len(data):
            raise WireError("cut short in the middle of a number")
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value % _RANGE, position + index + 1
    raise WireError(f"a number of more than {MAX_VARINT} bytes")


def message(field: Field) -> list[Field]:
    """The fields of an embedded message."""
    return parse(_expect(field, BYTES))


def text(field: Field) -> str:
    """A string; bytes that are no UTF-8 are replaced."""
    return str(_expect(field, BYTES), "utf-8", "replace")


def double(field: Field) -> float:
    """A ``double``."""
    return float(struct.unpack("<d", _expect(field, FIXED64))[0])


def unsigned(field: Field) -> int:
    """A ``uint64``, or a ``bool`` as 0 or 1."""
    return int(_expect(field, VARINT))


def signed(field: Field) -> int:
    """An ``int32`` or ``int64``: negative numbers are written as if they were very large."""
    value = unsigned(field)
    return value - _RANGE if value >= _SIGN else value


def doubles(field: Field) -> list[float]:
    """Elements of a ``repeated double``: one by itself, or packed into a list."""
    if field.wire == FIXED64:
        return [double(field)]
    packed = _expect(field, BYTES)
    if len(packed) % 8 or len(packed) // 8 > MAX_FIELDS:
        raise WireError(f"{len(packed)} bytes are no list of doubles")
    return list(struct.unpack(f"<{len(packed) // 8}d", packed))


def integers(field: Field) -> list[int]:
    """Elements of a ``repeated int64``: one by itself, or packed into a list."""
    if field.wire == VARINT:
        return [signed(field)]
    packed = _expect(field, BYTES)
    found: list[int] = []
    position = 0
    while position < len(packed):
        if len(found) == MAX_FIELDS:
            raise WireError(f"more than {MAX_FIELDS} elements")
        value, position = _varint(packed, position)
        found.append(value - _RANGE if value >= _SIGN else value)
    return found


def _expect(field: Field, wire: int) -> Any:
    if field.wire != wire:
        raise WireError(f"field {field.number} has wire type {field.wire}, not {wire}")
    return field.value


def string_field(number: int, value: str) -> bytes:
    """A string as a field of a message to send."""
    encoded = value.encode("utf-8")
    return _written(number << 3 | BYTES) + _written(len(encoded)) + encoded


def _written(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
