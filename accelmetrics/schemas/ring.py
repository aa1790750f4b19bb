"""Readings as rows of doubles, and a ring of the latest rows.

A row refers to its header, so that rows with equal keys are recognised by identity. The rest is packed, eight bytes per number. For
each source, a row has the number of the source's reading. A background source may be served again in the next row: :func:`marked`
replaces its values by ``REPEATED``, so that statistics count a reading once and know how long it stood.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from itertools import groupby
from math import isfinite
from operator import itemgetter
from struct import Struct, pack
from typing import TYPE_CHECKING, cast

from accelmetrics.schemas.catalogue import given_by, match
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.schemas.metric import device_key
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.reading import Header
from accelmetrics.schemas.snapshot import Snapshot

if TYPE_CHECKING:
    import pandas

REPEATED = float("inf")
"""Stands for a value that was served again, not read again."""
KEPT = 2
"""Readings that a ring always keeps: the last one, and the one before it, which shows what was served again."""
# Number, time on the monotonic clock, time in nanoseconds since 1970, joined, tick.
_FACTS = Struct("=qdq??")

Layout = tuple[str, ...]
Served = Mapping[str, int]
"""By source, the number of its reading that was served last."""


@lru_cache(maxsize=64)
def device_columns(layout: Layout) -> Mapping[str, Mapping[str, int]]:
    """Return the column of each device by name of a metric, without partitions and the watched process."""
    found: dict[str, dict[str, int]] = {}
    for column, key in enumerate(layout):
        parts = device_key(key)
        if parts is not None and not parts.process and parts.device.count(".") == 1:
            found.setdefault(parts.name, {})[parts.device] = column
    return found


class Row(NamedTuple):
    """A reading. Create it by :func:`pack_row`.

    Attributes:
        header: Its keys, devices and reasons.
        packed: Its number, times, flags, the sources' reading numbers, and the values.
    """

    header: Header
    packed: bytes

    @property
    def number(self) -> int:
        """Its number in its ring, from 1 on."""
        return cast("int", _FACTS.unpack_from(self.packed)[0])

    @property
    def at(self) -> float:
        """When it was taken, in seconds on the monitor's monotonic clock."""
        return cast("float", _FACTS.unpack_from(self.packed)[1])

    @property
    def time(self) -> float:
        """When it was taken, in seconds since 1970."""
        return cast("float", _FACTS.unpack_from(self.packed)[2] / 1e9)

    @property
    def joined(self) -> bool:
        """Whether nothing was left out (a pause, a start) between the previous row and this one."""
        return cast("bool", _FACTS.unpack_from(self.packed)[3])

    @property
    def tick(self) -> bool:
        """Whether it was due at the interval. Otherwise it was requested in between."""
        return cast("bool", _FACTS.unpack_from(self.packed)[4])

    @property
    def layout(self) -> Layout:
        """The keys."""
        return self.header.keys

    @property
    def sequences(self) -> array[int]:
        """The reading number of each of the header's sources, from 1 on; 0 if the source does not count."""
        return array("q", self.packed[_FACTS.size : self._values_at])

    @property
    def values(self) -> array[float]:
        """The values, in the order of the keys."""
        return values_of((self,))

    @property
    def _values_at(self) -> int:
        return _FACTS.size + 8 * len(self.header.backends)

    def but(self, *, at: float | None = None, joined: bool | None = None) -> Row:
        """Return a copy of the row with another time on the monotonic clock, or another ``joined``."""
        number, was_at, time_ns, was_joined, tick = _FACTS.unpack_from(self.packed)
        facts = (number, was_at if at is None else at, time_ns, was_joined if joined is None else joined, tick)
        return Row(self.header, _FACTS.pack(*facts) + self.packed[_FACTS.size :])

    def narrowed(self, wants: Callable[[str], bool], name: object) -> Row:
        """Return the row with the columns of wanted keys only.

        Args:
            wants: Returns whether a key is wanted.
            name: The name of the selection; selections with equal names must be equal.
        """
        header, places = self.header.selected(wants, name)
        begin, values = self._values_at, self.values
        return Row(header, self.packed[:begin] + array("d", [values[place] for place in places]).tobytes())


def pack_row(
    header: Header,
    numbers: Sequence[float],
    at: float,
    time_ns: int,
    sequences: Sequence[int] = (),
    *,
    joined: bool = True,
    tick: bool = True,
    number: int = 0,
) -> Row:
    """Return the row of a reading.

    Args:
        header: The reading without its numbers.
        numbers: The numbers, in the order of the header's keys.
        at: See :attr:`Row.at`.
        time_ns: When it was taken, in nanoseconds since 1970.
        sequences: The reading numbers, in the order of the header's sources. Default: no source counts.
        joined: See :attr:`Row.joined`.
        tick: See :attr:`Row.tick`.
        number: See :attr:`Row.number`.
    """
    counts = sequences or (0,) * len(header.backends)
    values = numbers.tobytes() if isinstance(numbers, array) else pack(f"{len(numbers)}d", *numbers)
    return Row(header, b"".join((_FACTS.pack(number, at, time_ns, joined, tick), pack(f"{len(counts)}q", *counts), values)))


def values_of(rows: Iterable[Row]) -> array[float]:
    """Return the values of rows, concatenated."""
    values = array("d")
    for row in rows:
        values.frombytes(memoryview(row.packed)[row._values_at :])
    return values


def row_of(snapshot: Snapshot, at: float, joined: bool = True) -> Row:
    """Return the row of a snapshot, outside of any ring."""
    counts = [status.sequence for status in snapshot.backends]
    return pack_row(snapshot.header, snapshot.numbers, at, snapshot.time_ns, counts, joined=joined)


def marked(rows: Sequence[Row], served: Served) -> tuple[list[Row], Served]:
    """Mark values that were served again: the source's reading number is that of the previous row.

    Args:
        rows: Consecutive rows.
        served: The second result of the call for the rows before; empty if there were none.

    Returns:
        The rows, and the reading numbers of the last one.
    """
    found = []
    for row in rows:
        counts = dict(zip(_sources(row.header), row.sequences, strict=True))
        again = [name for name, count in counts.items() if count and count == served.get(name)]
        if again and row.header.keys:
            values, runs = row.values, _runs(row.header)
            for name in again:
                for run, marks in runs.get(name, ()):
                    values[run] = marks
            found.append(Row(row.header, row.packed[: -len(values) * values.itemsize] + values.tobytes()))
        else:
            found.append(row)
        served = counts
    return found, served


def _sources(header: Header) -> tuple[str, ...]:
    return header.kept("sources", lambda: tuple([status.name for status in header.backends]))


def _runs(header: Header) -> Mapping[str, list[tuple[slice, array[float]]]]:
    """Return by source the runs of consecutive columns with its values, each with as many marks."""

    def find() -> dict[str, list[tuple[slice, array[float]]]]:
        devices = {slot.key: slot.backend for slot in header.identities}
        owners = []  # the backend that gave each key's value; empty if unknown
        for key in header.keys:
            kind, _, rest = key.partition(".")
            owner = devices.get(f"{kind}.{rest.removeprefix('process.').partition('.')[0]}")
            if not owner:
                # The machine's keys belong to no device: their backend is the one that gives the row.
                row = match(key)
                owner = next((name for name in _sources(header) if row is not None and name in given_by().get(row.key, ())), "")
            owners.append(owner)
        found: dict[str, list[tuple[slice, array[float]]]] = {}
        for owner, run in groupby(enumerate(owners), itemgetter(1)):
            columns = [column for column, _ in run]
            found.setdefault(owner, []).append((slice(columns[0], columns[-1] + 1), array("d", [REPEATED] * len(columns))))
        return found

    return header.kept("runs", find)


class Ring:
    """The latest readings of a monitor, numbered from 1 on: all within the history's limit, and all not yet consumed.

    One thread appends. Any thread reads from a copy, which is made in one call in C.

    Args:
        bound: The limit of the history: a number of ticks, or a duration; 0 keeps none.

    Attributes:
        unread: The first number not yet consumed. It and later readings are kept in any case.

    Raises:
        InvalidOptionError: The limit is invalid.
    """

    def __init__(self, bound: int | timedelta) -> None:
        self._most, self._age = sys.maxsize, float("inf")
        if isinstance(bound, timedelta) and bound > timedelta():
            self._age = bound.total_seconds()
        elif isinstance(bound, int) and not isinstance(bound, bool) and bound >= 0:
            self._most = min(bound, sys.maxsize)
        else:
            raise InvalidOptionError(f"history is {bound!r}: it must be a number of readings from 0 up, or a timedelta above 0")
        self.unread = sys.maxsize
        # `deque.copy` is one call in C, so that readers need no lock while a thread appends.
        self._rows: deque[Row] = deque()
        self._count = self._ticks = 0

    def add(self, snapshot: Snapshot, at: float, *, joined: bool = True, tick: bool = True) -> Row:
        """Append a snapshot and drop readings beyond the limit. For the arguments see :func:`row_of` and :func:`pack_row`."""
        counts = [status.sequence for status in snapshot.backends]
        return self.append(snapshot.header, snapshot.numbers, at, snapshot.time_ns, counts, joined=joined, tick=tick)

    def append(  # one argument for each part of a row
        self, header: Header, numbers: Sequence[float], at: float, time_ns: int, sequences: Sequence[int], *, joined: bool, tick: bool
    ) -> Row:
        """Append a reading and drop readings beyond the limit. For the arguments see :func:`pack_row`."""
        rows, self._count = self._rows, self._count + 1
        row = pack_row(header, numbers, at, time_ns, sequences, joined=joined, tick=tick, number=self._count)
        rows.append(row)
        self._ticks += tick
        # One tick more than the limit is kept: it shows what was served again in the first tick of the history.
        while len(rows) > KEPT and (first := rows[0]).number < self.unread:
            if first.tick and self._ticks <= self._most + 1 and at - rows[1].at <= self._age:
                break
            rows.popleft()
            self._ticks -= first.tick
        return row

    def span(self, interval: float) -> float:
        """Return the length of the history in seconds, if a tick comes at each interval."""
        return min(self._age, self._most * interval)

    def clear(self) -> None:
        """Drop all readings."""
        self._rows.clear()
        self._ticks = 0

    def newest(self, count: int) -> list[Row]:
        """Return the newest readings in order, at most ``count`` and as far as they are kept: at least two are."""
        return list(self._rows.copy())[-count:]

    def after(self, number: int) -> list[Row]:
        """Return the readings after the one with this number, as far as they are kept."""
        rows = list(self._rows.copy())
        return rows[-(rows[-1].number - number) :] if rows and rows[-1].number > number else []

    def ticks(self) -> list[Row]:
        """Return the readings within the limit, with values that were served again marked."""
        rows = [row for row in self._rows.copy() if row.tick]
        if not rows or not self._most:
            return []
        first = max(0, len(rows) - self._most)
        while rows[-1].at - rows[first].at > self._age:
            first += 1
        return marked(rows, {})[0][first:]


# A ring's readings by column

Part = tuple[Layout, list[float], "array[float]"]
"""Consecutive readings with the same keys: the keys, the times, and the values of all readings, concatenated."""


class TimeSeries(NamedTuple):
    """The values of a metric over time.

    Attributes:
        times: Seconds since 1970, by the machine's clock at that time.
        values: The readings at those times.
    """

    times: list[float]
    values: list[float]


class History:
    """The latest readings of a monitor. It takes eight bytes per value: an hour at 1 Hz of 320 keys is 9 MiB.

    The result of each call is consistent, as of one moment.

    Args:
        ring: The ring with the readings.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    def __len__(self) -> int:
        return len(self._ring.ticks())

    @property
    def times(self) -> list[float]:
        """When each reading was taken, in seconds since 1970."""
        return _times(self._parts())

    def keys(self) -> tuple[str, ...]:
        """Return every key of any reading."""
        return _keys(self._parts())

    def __contains__(self, key: str) -> bool:
        return key in self.keys()

    def column(self, key: str) -> list[float | None]:
        """Return a key's value at each of ``times``; None if it was absent or not read again."""
        return _column(self._parts(), key)

    def series(self, key: str) -> TimeSeries:
        """Return a key's readings, without the times at which it had none.

        Raises:
            UnknownNameError: No reading has that key.
        """
        parts = self._parts()
        if key not in _keys(parts):
            raise UnknownNameError("key of the history", key, _keys(parts))
        pairs = [(moment, value) for moment, value in zip(_times(parts), _column(parts, key), strict=True) if value is not None]
        return TimeSeries([moment for moment, _ in pairs], [value for _, value in pairs])

    def to_dict(self, wanted: Callable[[str], bool] = lambda _: True) -> dict[str, list[float | None]]:
        """Return the columns of all wanted keys, ``time`` first, in the form that ``pandas.DataFrame`` takes.

        By default all keys are wanted.
        """
        parts = self._parts()
        columns: dict[str, list[float | None]] = {"time": list(_times(parts))}
        return columns | {key: _column(parts, key) for key in _keys(parts) if wanted(key)}

    def to_pandas(self) -> pandas.DataFrame:
        """Return all columns as a data frame, indexed by time (UTC). A value that was absent or not read again is NaN.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        from accelmetrics.schemas.notebook import frame

        parts = self._parts()
        return frame(_times(parts), {key: _column(parts, key) for key in _keys(parts)})

    def __repr__(self) -> str:
        times = self.times
        return f"<History: {len(times)} readings over {times[-1] - times[0] if times else 0:.0f} s>"

    def _parts(self) -> list[Part]:
        found = []
        for layout, group in groupby(self._ring.ticks(), lambda row: row.layout):
            rows = list(group)
            found.append((layout, [row.time for row in rows], values_of(rows)))
        return found


def _times(parts: Sequence[Part]) -> list[float]:
    return [moment for _, times, _ in parts for moment in times]


def _keys(parts: Sequence[Part]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for layout, _, _ in parts for key in layout))


def _column(parts: Sequence[Part], key: str) -> list[float | None]:
    found: list[float | None] = []
    for layout, times, values in parts:
        if key in layout:
            found += [value if isfinite(value) else None for value in values[layout.index(key) :: len(layout)]]
        else:
            found += [None] * len(times)
    return found
