"""The last readings of a monitor, by column, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from datetime import timedelta
from math import isfinite
from typing import NamedTuple

from accelmetrics.monitor.inbox import Inbox
from accelmetrics.monitor.rows import Block, Layout, Row
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError

BLOCK = 64
"""Rows in a block at most: keys that come and go cost a new block each time, and memory is given back a block at a time."""
BLOCK_BYTES = 2**16
"""Of values in a block of at least eight rows: larger ones leave gaps in the process's memory when they are given back."""


class Series(NamedTuple):
    """One metric over time.

    Attributes:
        times: Seconds since 1970, as the machine's clock had it then.
        values: The readings at those times.
    """

    times: list[float]
    values: list[float]


class _Part(NamedTuple):
    """Rows of a block as they were at one moment: the block may grow meanwhile, and forget, but not change."""

    block: Block
    rows: range

    def times(self) -> list[float]:
        return list(self.block.times[self.rows.start : self.rows.stop])

    def column(self, key: str) -> Iterator[float | None]:
        layout = self.block.layout
        if key not in layout:
            return iter([None] * len(self.rows))
        return (value if isfinite(value) else None for value in self.block.column(layout.index(key), self.rows))


class History:
    """What a monitor remembers. Eight bytes a value: an hour at 1 Hz of 320 keys is 9 MiB.

    Reading it out, however much that is, keeps no reading waiting.

    Args:
        bound: How many readings are kept, or for how long; 0 keeps none.
    """

    def __init__(self, bound: int | timedelta) -> None:
        self.bound = bound
        self._count, self._age = _bounds(bound)
        self._blocks: deque[Block] = deque()
        self._length = 0
        self._inbox = Inbox[Row]()

    def add(self, row: Row) -> None:
        """Remember a reading and forget what is beyond the bound. Waits for nobody."""
        if self._count != 0:
            self._inbox.put(row, self._take)

    def clear(self) -> None:
        """Forget everything."""
        self._inbox.read(self._forget, self._take)

    def __len__(self) -> int:
        return self._inbox.read(lambda: self._length, self._take)

    @property
    def times(self) -> list[float]:
        """When each reading was taken, in seconds since 1970."""
        return _times(self._parts())

    def keys(self) -> tuple[str, ...]:
        """Every key that some reading has."""
        return _keys(self._parts())

    def __contains__(self, key: str) -> bool:
        return any(key in part.block.layout for part in self._parts())

    def column(self, key: str) -> list[float | None]:
        """A key's value at each of ``times``; None where it was absent, or had not been read anew."""
        return _column(self._parts(), key)

    def series(self, key: str) -> Series:
        """A key's readings, without the times at which it had none.

        Raises:
            UnknownNameError: No reading has that key.
        """
        parts = self._parts()
        if not any(key in part.block.layout for part in parts):
            raise UnknownNameError("key of the history", key, _keys(parts))
        pairs = [(moment, value) for moment, value in zip(_times(parts), _column(parts, key), strict=True) if value is not None]
        return Series([moment for moment, _ in pairs], [value for _, value in pairs])

    def to_dict(self) -> dict[str, list[float | None]]:
        """All columns, ``time`` first: what ``pandas.DataFrame`` takes."""
        parts = self._parts()
        columns: dict[str, list[float | None]] = {"time": list(_times(parts))}
        return columns | {key: _column(parts, key) for key in _keys(parts)}

    def _parts(self) -> list[_Part]:
        return self._inbox.read(lambda: [_Part(block, block.rows) for block in self._blocks], self._take)

    def _take(self, rows: deque[Row]) -> None:
        blocks = self._blocks
        while rows:
            row = rows.popleft()
            if not blocks or blocks[-1].layout is not row.layout or len(blocks[-1].ats) >= _rows(row.layout):
                blocks.append(Block(row.layout))
            blocks[-1].append(row)
            self._length += 1
            self._trim(row.at)

    def _forget(self) -> None:
        self._blocks.clear()
        self._length = 0

    def _trim(self, now: float) -> None:
        while self._length > self._count:
            self._drop()
        while self._age is not None and self._length and now - self._blocks[0].ats[self._blocks[0].skipped] > self._age:
            self._drop()

    def _drop(self) -> None:
        self._blocks[0].skip(1)
        self._length -= 1
        if not len(self._blocks[0]):
            self._blocks.popleft()


def _bounds(bound: int | timedelta) -> tuple[float, float | None]:
    if isinstance(bound, timedelta) and bound > timedelta():
        return float("inf"), bound.total_seconds()
    if isinstance(bound, int) and not isinstance(bound, bool) and bound >= 0:
        return bound, None
    raise InvalidOptionError(f"history is {bound!r}: it must be a number of readings from 0 up, or a timedelta above 0")


def _rows(layout: Layout) -> int:
    """In a block of this layout."""
    return min(BLOCK, max(8, BLOCK_BYTES // (8 * len(layout) or 1)))


def _times(parts: Iterable[_Part]) -> list[float]:
    return [moment for part in parts for moment in part.times()]


def _keys(parts: Iterable[_Part]) -> tuple[str, ...]:
    layouts = {id(part.block.layout): part.block.layout for part in parts}
    return tuple(dict.fromkeys(key for layout in layouts.values() for key in layout))


def _column(parts: Iterable[_Part], key: str) -> list[float | None]:
    return [value for part in parts for value in part.column(key)]
