"""Readings as rows of plain doubles, and the last of them by column, in bounded memory.

A row costs eight bytes a value and is made by one call in C. Rows of the same keys share one tuple of them; a key that
was not read has no column. ``REPEATED`` stands for a value of a source with a pace of its own that was served again and had
not been read anew: a reading is counted once, and the time that it stands for is not lost.
"""

from __future__ import annotations

import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import lru_cache
from itertools import groupby
from math import isfinite
from operator import itemgetter
from struct import pack, unpack_from
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
WORTH = 0.75
"""Share of the keys that are wanted up to which leaving out the others costs less than keeping them."""
TIME, FIRST_VALUE = 1, 2
"""Where a remembered reading's time and its first value stand, behind its moment."""

Layout = tuple[str, ...]
Parts = Sequence[tuple[Layout, "array[float]"]]


@lru_cache(maxsize=64)
def device_columns(layout: Layout) -> Mapping[str, Mapping[str, int]]:
    """Return, by name of a metric, the column of each device that has it; not of partitions, nor of processes on a device."""
    found: dict[str, dict[str, int]] = {}
    for column, key in enumerate(layout):
        parts = device_key(key)
        if parts is not None and not parts.process and parts.device.count(".") == 1:
            found.setdefault(parts.name, {})[parts.device] = column
    return found


class HistoryRow(NamedTuple):
    """One reading.

    Attributes:
        layout: The keys.
        values: Their values, in that order.
        at: When it was taken, on the monitor's monotonic clock, in seconds.
        time: The same on the wall clock, in seconds since 1970.
        joined: Whether nothing was left out between the row before and this one (a pause, a start).
    """

    layout: Layout
    values: array[float]
    at: float
    time: float
    joined: bool


def row_of(snapshot: Snapshot, before: Snapshot | None, at: float, joined: bool, wanted: Callable[[str], bool] | None = None) -> HistoryRow:
    """Return the row of a snapshot. A source that served the same reading in the one before has its columns marked.

    Windows take every reading and the history only ticks, so each compares with another one: a reading between two ticks is new to the
    history at the next tick.

    Args:
        snapshot: The snapshot.
        before: The one before it; None for the first.
        at: When it was taken, on the monitor's monotonic clock.
        joined: Whether nothing was left out between both.
        wanted: Whether rows are to have a key; all when left out.
    """
    header = snapshot.header
    keys, numbers = header.keys, cast("Sequence[float]", snapshot.numbers)
    if wanted is not None:
        keys, places = header.kept(("columns", wanted), lambda: _chosen(header.keys, wanted))
        if places is not None:
            numbers = places(numbers)
    values = array("d", pack(f"{len(keys)}d", *numbers))
    served = {status.name: status.sequence for status in (() if before is None else before.backends)}
    repeated = [status.name for status in snapshot.backends if status.sequence and served.get(status.name) == status.sequence]
    if repeated:
        owners = header.kept("owners", lambda: dict(zip(header.keys, _owners(header), strict=True)))
        runs = header.kept(("runs", keys), lambda: _runs(keys, owners))
        for source in repeated:
            for run, marks in runs.get(source, ()):
                values[run] = marks
    return HistoryRow(keys, values, at, snapshot.time_ns / 1e9, joined)


def _chosen(keys: Layout, wanted: Callable[[str], bool]) -> tuple[Layout, Callable[[Sequence[float]], Sequence[float]] | None]:
    """Return the wanted keys and what selects their numbers; all keys where leaving out the others would cost more than keeping them."""
    places = [place for place, key in enumerate(keys) if wanted(key)]
    few = 1 < len(places) < WORTH * len(keys)
    return (tuple([keys[place] for place in places]), itemgetter(*places)) if few else (keys, None)


def _runs(keys: Layout, owners: Mapping[str, str]) -> dict[str, list[tuple[slice, array[float]]]]:
    """Return by source the runs of columns whose values it gave, each with as many marks."""
    found: dict[str, list[tuple[slice, array[float]]]] = {}
    for owner, run in groupby(enumerate(keys), lambda column: owners[column[1]]):
        columns = [column for column, _ in run]
        found.setdefault(owner, []).append((slice(columns[0], columns[-1] + 1), array("d", [REPEATED] * len(columns))))
    return found


def _owners(header: Header) -> Iterator[str]:
    """Yield, by key, the name of the backend that the value came from; empty where that is not known."""
    devices = {slot.key: slot.backend for slot in header.identities}
    names = [status.name for status in header.backends]
    for key in header.keys:
        kind, _, rest = key.partition(".")
        owner = devices.get(f"{kind}.{rest.removeprefix('process.').partition('.')[0]}")
        if not owner:
            row = match(key)
            owner = next((name for name in names if row is not None and name in given_by().get(row.key, ())), "")
        yield owner


class TimeSeries(NamedTuple):
    """One metric over time.

    Attributes:
        times: Seconds since 1970, as the machine's clock had it then.
        values: The readings at those times.
    """

    times: list[float]
    values: list[float]


class History:
    """The last readings of a monitor. Eight bytes a value: an hour at 1 Hz of 320 keys is 9 MiB.

    Only the monitor's thread adds to it. What is read out is of one moment: from a copy of the readings, which is one call in C.

    Args:
        bound: How many readings are kept, or for how long; 0 keeps none.

    Raises:
        InvalidOptionError: The bound cannot be used.
    """

    def __init__(self, bound: int | timedelta) -> None:
        count, self._age = None, float("inf")
        if isinstance(bound, timedelta) and bound > timedelta():
            self._age = bound.total_seconds()
        elif isinstance(bound, int) and not isinstance(bound, bool) and bound >= 0:
            count = min(bound, sys.maxsize)
        else:
            raise InvalidOptionError(f"history is {bound!r}: it must be a number of readings from 0 up, or a timedelta above 0")
        # By reading its layout, and its moment, time and values: as bytes, since an array for each takes 5 % more.
        self._readings: deque[tuple[Layout, bytes]] = deque(maxlen=count)

    def add(self, row: HistoryRow) -> None:
        """Remember a reading and forget what is beyond the bound."""
        readings = self._readings
        readings.append((row.layout, b"".join((pack("dd", row.at, row.time), row.values))))
        while readings and row.at - unpack_from("d", readings[0][1])[0] > self._age:
            readings.popleft()

    def clear(self) -> None:
        """Forget everything."""
        self._readings.clear()

    def __len__(self) -> int:
        return len(self._readings)

    @property
    def times(self) -> list[float]:
        """When each reading was taken, in seconds since 1970."""
        return _times(self._parts())

    def keys(self) -> tuple[str, ...]:
        """List every key that some reading has."""
        return _keys(self._parts())

    def __contains__(self, key: str) -> bool:
        return key in self.keys()

    def column(self, key: str) -> list[float | None]:
        """Return a key's value at each of ``times``; None where it was absent, or had not been read anew."""
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
        """Return the columns of all keys, or of those that are wanted, ``time`` first: what ``pandas.DataFrame`` takes."""
        parts = self._parts()
        columns: dict[str, list[float | None]] = {"time": list(_times(parts))}
        return columns | {key: _column(parts, key) for key in _keys(parts) if wanted(key)}

    def to_pandas(self) -> pandas.DataFrame:
        """Return all columns as a data frame, by time in UTC; NaN where a value was absent, or had not been read anew.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        from accelmetrics.schemas.notebook import frame

        parts = self._parts()
        return frame(_times(parts), {key: _column(parts, key) for key in _keys(parts)})

    def __repr__(self) -> str:
        times = self.times
        return f"<History: {len(times)} readings over {times[-1] - times[0] if times else 0:.0f} s>"

    def _parts(self) -> Parts:
        """Return the readings that follow each other with the same keys: their layout, and the numbers of all one after another."""
        groups = groupby(self._readings.copy(), itemgetter(0))
        return [(layout, array("d", b"".join(packed for _, packed in same))) for layout, same in groups]


def _times(parts: Parts) -> list[float]:
    return [moment for layout, numbers in parts for moment in numbers[TIME :: FIRST_VALUE + len(layout)]]


def _keys(parts: Parts) -> tuple[str, ...]:
    layouts = {id(layout): layout for layout, _ in parts}
    return tuple(dict.fromkeys(key for layout in layouts.values() for key in layout))


def _column(parts: Parts, key: str) -> list[float | None]:
    found: list[float | None] = []
    for layout, numbers in parts:
        width = FIRST_VALUE + len(layout)
        if key in layout:
            found += [value if isfinite(value) else None for value in numbers[FIRST_VALUE + layout.index(key) :: width]]
        else:
            found += [None] * (len(numbers) // width)
    return found
