"""Readings as rows of plain doubles: what history and windows are made of.

A row costs eight bytes a value and is made by one call in C. Keys stand once per block of rows, not in every row. Two values
say that there is none: ``ABSENT`` (the key was missing) and ``REPEATED`` (a source with a pace of its own was served again and
had not been read anew), which is told apart so that a reading is counted once and its time is not lost.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import NamedTuple

from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.snapshot import Snapshot

ABSENT = float("nan")
REPEATED = float("inf")
VENDORS = {"google": "tpu", "aws": "neuron"}
"""Where a backend is not named after the vendor whose devices it lists."""

Layout = tuple[str, ...]


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
    """Turns snapshots into rows, with the same layout object while the keys are the same."""

    def __init__(self) -> None:
        self._layout: Layout = ()
        self._owners: tuple[str, ...] = ()
        self._sequences: dict[str, int] = {}
        self._identities: object = None

    def row(self, snapshot: Snapshot, at: float, joined: bool) -> Row:
        """The row of a snapshot that was taken at this moment."""
        metrics = snapshot.metrics
        layout = tuple(metrics)
        if layout != self._layout or snapshot.identities is not self._identities:
            self._layout, self._identities = layout, snapshot.identities
            self._owners = _owners(snapshot)
        values = array("d", metrics.values())
        repeated = self._repeated(snapshot)
        if repeated:
            for column in compress(range(len(values)), [owner in repeated for owner in self._owners]):
                values[column] = REPEATED
        return Row(self._layout, values, at, snapshot.time_ns / 1e9, joined)

    def _repeated(self, snapshot: Snapshot) -> frozenset[str]:
        """The sources that served the reading of the last time again."""
        last = self._sequences
        self._sequences = {status.name: status.sequence for status in snapshot.backends}
        return frozenset(name for name, sequence in self._sequences.items() if sequence and last.get(name) == sequence)


def _owners(snapshot: Snapshot) -> tuple[str, ...]:
    """By column, the name of the backend that the value came from; empty where that is not known."""
    devices = {place.key: VENDORS.get(place.identity.vendor, place.identity.vendor) for place in snapshot.identities}
    names = [status.name for status in snapshot.backends]
    return tuple(_owner(key, devices, names) for key in snapshot.metrics)


def _owner(key: str, devices: dict[str, str], names: Sequence[str]) -> str:
    kind, _, rest = key.partition(".")
    number = rest.removeprefix("process.").partition(".")[0]
    if owner := devices.get(f"{kind}.{number}"):
        return owner
    row = match(key)
    return next((name for name in names if row is not None and name in row.sources), "")


class Block:
    """Rows of one layout, in the order of time."""

    __slots__ = ("_skipped", "ats", "data", "joined", "layout", "times")

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.ats = array("d")
        self.times = array("d")
        self.joined: list[bool] = []
        self.data = array("d")
        self._skipped = 0

    def __len__(self) -> int:
        return len(self.ats) - self._skipped

    def append(self, row: Row) -> None:
        """Add a row, which must be of this layout."""
        self.ats.append(row.at)
        self.times.append(row.time)
        self.joined.append(row.joined)
        self.data.extend(row.values)

    def skip(self, count: int) -> None:
        """Forget so many of the oldest rows."""
        self._skipped += count

    def moments(self) -> array[float]:
        """The rows' times on the wall clock."""
        return self.times[self._skipped :]

    def column(self, position: int) -> array[float]:
        """One key's values."""
        return self.data[self._skipped * len(self.layout) + position :: len(self.layout)]

    def columns(self) -> Iterator[tuple[str, array[float]]]:
        """Each key with its values."""
        for position, key in enumerate(self.layout):
            yield key, self.column(position)
