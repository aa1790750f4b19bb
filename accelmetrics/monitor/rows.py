"""Readings as rows of plain doubles: what history and windows are made of.

A row costs eight bytes a value and is made by one call in C. Keys stand once per block of rows, not in every row; one that
was not read has no column. ``REPEATED`` stands for a value of a source with a pace of its own that was served again and had
not been read anew: a reading is counted once, and the time that it stands for is not lost.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import NamedTuple

from accelmetrics.schemas.catalogue import given_by, match
from accelmetrics.schemas.metric import is_kind
from accelmetrics.schemas.snapshot import Snapshot

REPEATED = float("inf")
LAYOUTS = 16
"""Sets of keys that are remembered: keys that come and go do not make a new one each time."""

Layout = tuple[str, ...]
Sequences = dict[str, int]


def split(key: str) -> tuple[str, str]:
    """Device key and name; an empty device where the key belongs to none, to a partition of one or to a process on it."""
    kind, _, rest = key.partition(".")
    number, _, name = rest.partition(".")
    return (f"{kind}.{number}", name) if is_kind(kind) and number.isdecimal() else ("", key)


class Row(NamedTuple):
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


class RowMaker:
    """Turns snapshots into rows, with the same layout object while the keys are the same.

    Who takes every reading and who takes only ticks each have rows of their own: a reading that came between two ticks is new
    to the second one at the next tick.
    """

    def __init__(self) -> None:
        self._layout: Layout = ()
        self._layouts: dict[Layout, tuple[Layout, list[str]]] = {}
        self._identities: object = None
        self._seen: Sequences = {}
        self._seen_at_tick: Sequences = {}
        self._marked = False

    def row(self, snapshot: Snapshot, at: float, joined: bool) -> Row:
        """The row of a snapshot that was taken at this moment."""
        sequences = _sequences(snapshot)
        before, self._seen = self._seen, sequences
        return self._made(snapshot, at, joined, _repeated(sequences, before))

    def tick_row(self, snapshot: Snapshot, row: Row) -> Row:
        """The same for who takes only ticks, from the row of :meth:`row`."""
        before, self._seen_at_tick = self._seen_at_tick, self._seen
        repeated = _repeated(self._seen, before)
        if not repeated and not self._marked:
            return row
        return self._made(snapshot, row.at, row.joined, repeated)

    def _made(self, snapshot: Snapshot, at: float, joined: bool, repeated: frozenset[str]) -> Row:
        metrics = snapshot.metrics
        layout = tuple(metrics)
        if layout != self._layout or snapshot.identities is not self._identities:
            self._layout = self._known(layout, snapshot)
        values = array("d", list(metrics.values()))  # twice as quick as without the list
        self._marked = bool(repeated)
        if repeated:
            owners = self._owners(snapshot)
            for column in compress(range(len(values)), [owner in repeated for owner in owners]):
                values[column] = REPEATED
        return Row(self._layout, values, at, snapshot.time_ns / 1e9, joined)

    def _known(self, layout: Layout, snapshot: Snapshot) -> Layout:
        if snapshot.identities is not self._identities or len(self._layouts) >= LAYOUTS:
            self._layouts.clear()
            self._identities = snapshot.identities
        return self._layouts.setdefault(layout, (layout, []))[0]

    def _owners(self, snapshot: Snapshot) -> Sequence[str]:
        """By column of the present layout, the backend that the value came from: found out once, and only where it matters."""
        owners = self._layouts[self._layout][1]
        if not owners:
            owners.extend(_owners(snapshot))
        return owners


def _sequences(snapshot: Snapshot) -> Sequences:
    return {status.name: status.sequence for status in snapshot.backends}


def _repeated(sequences: Sequences, before: Sequences) -> frozenset[str]:
    """The sources that served the reading of the last time again."""
    return frozenset(name for name, sequence in sequences.items() if sequence and before.get(name) == sequence)


def _owners(snapshot: Snapshot) -> Iterator[str]:
    """By column, the name of the backend that the value came from; empty where that is not known."""
    devices = {place.key: place.backend for place in snapshot.identities}
    names = [status.name for status in snapshot.backends]
    return (_owner(key, devices, names) for key in snapshot.metrics)


def _owner(key: str, devices: dict[str, str], names: Sequence[str]) -> str:
    kind, _, rest = key.partition(".")
    number = rest.removeprefix("process.").partition(".")[0]
    if owner := devices.get(f"{kind}.{number}"):
        return owner
    row = match(key)
    return next((name for name in names if row is not None and name in given_by().get(row.key, ())), "")


class Block:
    """Rows of one layout, in the order of time."""

    __slots__ = ("ats", "data", "joined", "layout", "skipped", "times")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.ats = array("d")
        self.times = array("d")
        self.joined: list[bool] = []
        self.data = array("d")
        self.skipped = 0

    def __len__(self) -> int:
        return len(self.ats) - self.skipped

    def append(self, row: Row) -> None:
        """Add a row, which must be of this layout."""
        self.data.extend(row.values)
        self.joined.append(row.joined)
        self.times.append(row.time)
        self.ats.append(row.at)

    def skip(self, count: int) -> None:
        """Forget so many of the oldest rows."""
        self.skipped += count

    @property
    def rows(self) -> range:
        """The rows there are."""
        return range(self.skipped, len(self.ats))

    def column(self, position: int, rows: range | None = None) -> array[float]:
        """One key's values, of all rows or of some that follow each other."""
        width = len(self.layout)
        first, end = (self.skipped, len(self.ats)) if rows is None else (rows.start, rows.stop)
        return self.data[first * width + position : end * width : width]

    def columns(self) -> Iterator[tuple[str, array[float]]]:
        """Each key with its values."""
        for position, key in enumerate(self.layout):
            yield key, self.column(position)
