"""The last readings of a monitor, by column, in bounded memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from math import isfinite
from typing import NamedTuple

from accelmetrics.sampling.rows import Block, Row
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError

BLOCK = 64
"""Rows in a block: keys that come and go cost a new block each time, and memory is given back a block at a time."""


class Series(NamedTuple):
    """One metric over time.

    Attributes:
        times: Seconds since 1970, rising.
        values: The readings at those times.
    """

    times: list[float]
    values: list[float]


class History:
    """What a monitor remembers. Eight bytes a value: an hour at 1 Hz of 320 keys is 9 MiB.

    Args:
        bound: How many readings are kept, or for how long; 0 keeps none.
    """

    def __init__(self, bound: int | timedelta) -> None:
        self._count, self._age = _bounds(bound)
        self._blocks: deque[Block] = deque()
        self._length = 0
        self._lock = threading.Lock()

    def add(self, row: Row) -> None:
        """Remember a reading and forget what is beyond the bound."""
        if self._count == 0:
            return
        with self._lock:
            blocks = self._blocks
            if not blocks or blocks[-1].layout is not row.layout or len(blocks[-1].ats) >= BLOCK:
                blocks.append(Block(row.layout))
            blocks[-1].append(row)
            self._length += 1
            self._trim(row.at)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._blocks.clear()
            self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def times(self) -> list[float]:
        """When each reading was taken, in seconds since 1970."""
        with self._lock:
            return [moment for block in self._blocks for moment in block.moments()]

    def keys(self) -> tuple[str, ...]:
        """Every key that some reading has."""
        with self._lock:
            return tuple(dict.fromkeys(key for block in self._blocks for key in block.layout))

    def __contains__(self, key: str) -> bool:
        return key in self.keys()

    def column(self, key: str) -> list[float | None]:
        """A key's value at each of ``times``; None where it was absent, or had not been read anew."""
        with self._lock:
            return [value for block in self._blocks for value in _column(block, key)]

    def series(self, key: str) -> Series:
        """A key's readings, without the times at which it had none.

        Raises:
            UnknownNameError: No reading has that key.
        """
        keys = self.keys()
        if key not in keys:
            raise UnknownNameError("key of the history", key, keys)
        with self._lock:
            pairs = [
                (moment, value)
                for block in self._blocks
                for moment, value in zip(block.moments(), _column(block, key), strict=True)
                if value is not None
            ]
        return Series([moment for moment, _ in pairs], [value for _, value in pairs])

    def to_dict(self) -> dict[str, list[float | None]]:
        """All columns, ``time`` first: what ``pandas.DataFrame`` takes."""
        columns: dict[str, list[float | None]] = {"time": list(self.times)}
        return columns | {key: self.column(key) for key in self.keys()}

    def _trim(self, now: float) -> None:
        while self._length > self._count:
            self._drop(1)
        while self._age is not None and self._length and now - self._blocks[0].ats[-len(self._blocks[0])] > self._age:
            self._drop(1)

    def _drop(self, count: int) -> None:
        self._blocks[0].skip(count)
        self._length -= count
        if not len(self._blocks[0]):
            self._blocks.popleft()


def _bounds(bound: int | timedelta) -> tuple[float, float | None]:
    if isinstance(bound, timedelta) and bound > timedelta():
        return float("inf"), bound.total_seconds()
    if isinstance(bound, int) and not isinstance(bound, bool) and bound >= 0:
        return bound, None
    raise InvalidOptionError(f"history is {bound!r}: it must be a number of readings from 0 up, or a timedelta above 0")


def _column(block: Block, key: str) -> Iterator[float | None]:
    if key not in block.layout:
        return iter([None] * len(block))
    return (value if isfinite(value) else None for value in block.column(block.layout.index(key)))
