"""Writes the messages of the runtime's metrics service, from what their ``.proto`` file says.

Put together from the outside in, with lengths computed last; it shares nothing with the package's reader.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Value = bool | int | float | str


def base128(number: int) -> bytes:
    """An integer in groups of seven bits, the lowest first; negative ones as 64-bit two's complement."""
    bits = format(number & 0xFFFF_FFFF_FFFF_FFFF, "b")
    groups = [bits[max(0, end - 7) : end] for end in range(len(bits), 0, -7)]
    return bytes(int(group, 2) + (128 if place < len(groups) - 1 else 0) for place, group in enumerate(groups))


def whole(field: int, number: int) -> bytes:
    """An int32, int64, uint64 or bool."""
    return base128(field * 8) + base128(int(number))


def double(field: int, number: float) -> bytes:
    """A double."""
    return base128(field * 8 + 1) + struct.pack("<d", number)


def block(field: int, *parts: bytes) -> bytes:
    """An embedded message, a string, or a packed list."""
    content = b"".join(parts)
    return base128(field * 8 + 2) + base128(len(content)) + content


def string(field: int, text: str) -> bytes:
    """A string."""
    return block(field, text.encode())


def scalar(value: Value, fields: Mapping[type, int]) -> bytes:
    """One of several: the field is chosen by the value's type."""
    field = fields[type(value)]
    if isinstance(value, str):
        return string(field, value)
    return double(field, value) if isinstance(value, float) else whole(field, value)


class About(NamedTuple):
    """What an entry is about: a key and its value, or a list of such."""

    key: str
    value: Value | Sequence[tuple[str, Value]]

    def encode(self) -> bytes:
        if isinstance(self.value, (bool, int, float, str)):
            inside = scalar(self.value, {str: 1, bool: 2, int: 3, float: 4})
        else:
            inside = block(6, *(block(1, About(key, value).encode()) for key, value in self.value))
        return string(1, self.key) + block(2, inside)


class Exponential(NamedTuple):
    """Buckets that grow: up to scale, then each ``growth`` times as wide, ``finite`` of them, then all the rest."""

    finite: int
    growth: float
    scale: float

    def encode(self) -> bytes:
        return block(6, block(2, whole(1, self.finite), double(2, self.growth), double(3, self.scale)))


class Linear(NamedTuple):
    """Buckets of one width."""

    finite: int
    width: float
    offset: float

    def encode(self) -> bytes:
        return block(6, block(4, whole(1, self.finite), double(2, self.width), double(3, self.offset)))


class Explicit(NamedTuple):
    """Buckets between these bounds."""

    bounds: Sequence[float]
    packed: bool = True

    def encode(self) -> bytes:
        if self.packed:
            return block(6, block(3, block(1, struct.pack(f"<{len(self.bounds)}d", *self.bounds))))
        return block(6, block(3, *(double(1, bound) for bound in self.bounds)))


class Histogram(NamedTuple):
    """A distribution."""

    samples: int
    mean: float
    buckets: Exponential | Linear | Explicit | None = None
    counts: Sequence[int] = ()
    maximum: float = 0.0
    packed: bool = True

    def encode(self) -> bytes:
        parts = [whole(1, self.samples), double(2, self.mean)]
        parts += [double(4, self.maximum)] if self.maximum else []
        parts += [self.buckets.encode()] if self.buckets else []
        if self.packed:
            parts.append(block(7, *(base128(count) for count in self.counts)))
        else:
            parts += [whole(7, count) for count in self.counts]
        return block(5, *parts)


class Quantiles(NamedTuple):
    """A summary."""

    samples: int
    total: float
    values: Mapping[float, float]

    def encode(self) -> bytes:
        quantiles = (block(3, double(1, share), double(2, value)) for share, value in self.values.items())
        return block(6, whole(1, self.samples), double(2, self.total), *quantiles)


Said = Value | Histogram | Quantiles | None


def entry(about: About | None, said: Said, seconds: int = 0) -> bytes:
    """One metric of one thing."""
    parts = [block(1, about.encode())] if about else []
    parts += [block(2, whole(1, seconds), whole(2, 5_000_000))] if seconds else []
    if isinstance(said, (Histogram, Quantiles)):
        parts.append(said.encode())
    elif said is not None:
        parts.append(block(3, scalar(said, {float: 1, int: 2, str: 3, bool: 4})))
    return b"".join(parts)


def response(name: str, *entries: bytes, description: str = "") -> bytes:
    """What ``GetRuntimeMetric`` answers."""
    return block(1, string(1, name), string(2, description), *(block(3, one) for one in entries))


def supported(names: Sequence[str]) -> bytes:
    """What ``ListSupportedMetrics`` answers."""
    return b"".join(block(1, string(1, name)) for name in names)


def asked_for(request: bytes) -> str:
    """The metric's name in a request, which holds that and nothing else."""
    assert request[:1] == b"\x0a"
    assert request[1] == len(request) - 2
    return request[2:].decode()
