"""Metrics before they are a dict: in the parts in which they were read, or as a row that another process has sent.

Most readings are never looked at key by key. A row of doubles, which is what a history and windows need of them, is made of either
without a dict.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, compress
from operator import is_not
from struct import Struct
from typing import TypeVar

from accelmetrics.schemas.named_tuple import NamedTuple

D = TypeVar("D", bound="dict[str, int | float]")
LARGEST_EXACT = 2**53
"""Up to here every whole number is a double."""


class MetricShape:
    """What readings with the same keys in the same parts have in common; and a dict of the one that was looked at last.

    Args:
        keys: The keys in order.
        lengths: How many of them each part has.

    Attributes:
        keys: The same.
        lengths: The same.
    """

    def __init__(self, keys: tuple[str, ...], lengths: Iterable[int]) -> None:
        self.keys, self.lengths = keys, tuple(lengths)
        self._keys = [keys[end - length : end] for length, end in zip(self.lengths, accumulate(self.lengths), strict=True)]
        self._lock = threading.Lock()
        self._flat: dict[str, int | float] = {}
        self._parts: Sequence[object] = ()  # those in the dict

    def copied(self, parts: Sequence[tuple[int | float, ...]], kind: type[D]) -> D:
        """Make a dict of parts: a copy of the one that is kept, of which those parts are written anew that are other objects.

        Nothing waits here: where another thread is in the middle of this, or one that a signal's handler has interrupted, all are written.
        """
        if not self._lock.acquire(blocking=False):
            return kind(zip(self.keys, chain.from_iterable(parts), strict=True))
        try:
            known, self._parts = self._parts, ()  # until all is written
            if known:
                write = self._flat.update
                for keys, part in compress(zip(self._keys, parts), map(is_not, parts, known)):  # noqa: B905 - as many as lengths
                    write(zip(keys, part))  # noqa: B905 - as long as its length
            else:
                self._flat = dict(zip(self.keys, chain.from_iterable(parts), strict=True))
            self._parts = parts
            return kind(self._flat)
        finally:
            self._lock.release()


class MetricParts(NamedTuple):
    """Metrics as sampling has them: made a dict of when they are looked at.

    Attributes:
        shape: The keys, the same object in readings that follow each other with the same ones in the same parts.
        parts: Their values; a part in which nothing has changed since the reading before is the same object.
    """

    shape: MetricShape
    parts: tuple[tuple[int | float, ...], ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys in order, the same object while they are the same."""
        return self.shape.keys

    def into(self, kind: type[D]) -> D:
        """Make a dict of this kind."""
        return self.shape.copied(self.parts, kind)


class MetricRow(NamedTuple):
    """Metrics as a row of doubles, with what it takes to give each number as it was.

    Attributes:
        keys: The keys in order, the same object in readings that follow each other with the same ones.
        values: Their values as doubles, in the same order.
        whole: A byte for each: 1 where it is an int, 0 where it is a float.
        exact: By place, the ints that no double holds.
    """

    keys: tuple[str, ...]
    values: array[float]
    whole: bytes
    exact: Mapping[int, int]

    def into(self, kind: type[D]) -> D:
        """Make a dict of this kind."""
        return kind(zip(self.keys, self.numbers(), strict=True))

    def numbers(self) -> Iterable[int | float]:
        """Return the values in the order of the keys."""
        numbers: list[int | float] = [int(value) if whole else value for value, whole in zip(self.values, self.whole, strict=True)]
        for place, number in self.exact.items():
            numbers[place] = number
        return numbers


def wholes(numbers: Collection[int | float], first: int = 0) -> tuple[bytes, dict[int, int]]:
    """Return which numbers are ints, a byte for each, and those that no double holds, by place.

    Args:
        numbers: The numbers.
        first: The place of the first.
    """
    whole = bytes([type(number) is int for number in numbers])
    if not numbers or -LARGEST_EXACT <= min(numbers) <= max(numbers) <= LARGEST_EXACT:
        return whole, {}
    places = enumerate(numbers, first)
    return whole, {place: number for place, number in places if isinstance(number, int) and abs(number) > LARGEST_EXACT}


class MetricPage:
    """A row that is kept from reading to reading: most parts of the metrics are the same objects as in the one before."""

    def __init__(self) -> None:
        self._values = array("d")
        self._shape: MetricShape | None = None
        self._parts: Sequence[object] = ()
        self._writers: list[Callable[..., None]] = []

    def values(self, metrics: MetricParts | MetricRow) -> array[float]:
        """Return a new row of these metrics."""
        if isinstance(metrics, MetricRow):
            return metrics.values[:]
        shape, parts = metrics.shape, metrics.parts
        if shape is not self._shape:
            self._values = array("d", bytes(8 * len(shape.keys)))
            offsets = accumulate(shape.lengths, initial=0)
            self._writers = [
                partial(Struct(f"{length}d").pack_into, self._values, 8 * offset)
                for length, offset in zip(shape.lengths, offsets, strict=False)
            ]
            self._shape, self._parts = shape, (None,) * len(parts)
        for place in compress(range(len(parts)), map(is_not, parts, self._parts)):
            self._writers[place](*parts[place])
        self._parts = parts
        return self._values[:]
