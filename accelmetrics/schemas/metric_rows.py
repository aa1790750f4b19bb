"""Metrics before they are a dict: in the parts in which they were read, or as a row that another process has sent.

Most readings are never looked at key by key. A row of doubles, which is what a history and windows need of them, is made of either
without a dict.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, chain, compress
from operator import is_not
from struct import Struct

from accelmetrics.schemas.named_tuple import NamedTuple

LARGEST_EXACT = 2**53
"""Up to here every whole number is a double."""


class MetricParts(NamedTuple):
    """Metrics as sampling has them: made a dict of when they are looked at.

    Attributes:
        keys: The keys in order, the same object in readings that follow each other with the same ones.
        parts: Their values, in the same order; a part in which nothing has changed since the reading before is the same object.
        lengths: How many values each part has; the same object while that is so, and the keys are the same.
    """

    keys: tuple[str, ...]
    parts: tuple[tuple[int | float, ...], ...]
    lengths: tuple[int, ...]

    def numbers(self) -> Iterable[int | float]:
        """Return the values in the order of the keys."""
        return chain.from_iterable(self.parts)


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
        self._lengths: tuple[int, ...] = ()
        self._parts: Sequence[object] = ()
        self._writers: list[Callable[..., None]] = []

    def values(self, metrics: MetricParts | MetricRow) -> array[float]:
        """Return a new row of these metrics."""
        if isinstance(metrics, MetricRow):
            return metrics.values[:]
        parts = metrics.parts
        if metrics.lengths is not self._lengths:
            self._values = array("d", bytes(8 * len(metrics.keys)))
            offsets = accumulate(metrics.lengths, initial=0)
            self._writers = [
                partial(Struct(f"{length}d").pack_into, self._values, 8 * offset)
                for length, offset in zip(metrics.lengths, offsets, strict=False)
            ]
            self._lengths, self._parts = metrics.lengths, (None,) * len(parts)
        for place in compress(range(len(parts)), map(is_not, parts, self._parts)):
            self._writers[place](*parts[place])
        self._parts = parts
        return self._values[:]
