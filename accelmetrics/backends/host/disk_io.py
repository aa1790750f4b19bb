"""``disk.in`` (read) and ``disk.out`` (written), for the host and per device, from ``/proc/diskstats``.

Totals are MiB since this reader's first reading, rates are bytes per second over its last interval.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from accelmetrics.backends.host.numbers import FIRST, MIB, Counter, SumCounter, count, per_second
from accelmetrics.backends.host.part import Moment, Source
from accelmetrics.backends.kit.system import reason_of
from accelmetrics.schemas.reasons import Reason, Unavailable

# The kernel counts in sectors of 512 bytes whatever the device's own are.
_SECTOR = 512
_TOTALS = ("disk.in", "disk.out")
_NO_DEVICE = Unavailable(Reason.NOT_SUPPORTED, "the system lists no disk")


class DiskIo(NamedTuple):
    """Bytes read from and written to one device since boot, and its number."""

    read: int
    written: int
    number: tuple[int, int]


def parse_diskstats(data: bytes) -> dict[str, DiskIo]:
    """Every device by name, partitions and idle ones too.

    Raises:
        ValueError: A line has too few fields, or one is not a number.
    """
    return dict([_parse_line(line) for line in data.split(b"\n") if line])


@lru_cache(maxsize=256)
def _parse_line(line: bytes) -> tuple[str, DiskIo]:
    """One device. Most are idle between two readings, and their lines the same."""
    fields = line.split(None, 10)
    if len(fields) < 10:
        raise ValueError(f"{len(fields)} fields in a line, 10 are needed")
    number = count(fields[0]), count(fields[1])
    return os.fsdecode(fields[2]), DiskIo(count(fields[5]) * _SECTOR, count(fields[9]) * _SECTOR, number)


class Chosen(NamedTuple):
    """Which devices count.

    Attributes:
        reported: Names that get keys of their own.
        summed: Names that ``disk.in`` and ``disk.out`` add up.
    """

    reported: tuple[str, ...]
    summed: tuple[str, ...]


class _Device:
    """The counters of one device and its keys."""

    def __init__(self, name: str) -> None:
        self.read = Counter()
        self.written = Counter()
        self.keys = (
            (self.read, f"disk.{name}.in", f"disk.{name}.readBps"),
            (self.written, f"disk.{name}.out", f"disk.{name}.writeBps"),
        )


class DiskIoPart:
    """What moved to and from the block devices."""

    def __init__(self, source: Source[dict[str, DiskIo]], choose: Callable[[dict[str, DiskIo]], Chosen]) -> None:
        self._source = source
        self._choose = choose
        self._names: tuple[str, ...] = ()
        self._chosen = Chosen((), ())
        self._devices: dict[str, _Device] = {}
        self._sums = (SumCounter(), SumCounter())
        self._then = 0.0

    def read(self, moment: Moment) -> None:
        try:
            stats = self._source.read()
        except (OSError, ValueError) as error:
            moment.miss(_TOTALS, reason_of(error, self._source.what))
            return
        now = moment.clock()
        elapsed, self._then = now - self._then, now
        self._look_at(stats)
        self._total(moment, {name: stats[name] for name in self._chosen.summed})
        for name in self._chosen.reported:
            self._one(moment, self._devices[name], stats[name], elapsed)

    def _look_at(self, stats: dict[str, DiskIo]) -> None:
        """Choose the devices again when one has come or gone."""
        names = tuple(stats)
        if names != self._names:
            self._names = names
            self._chosen = self._choose(stats)
            known = self._devices
            # A device that was away is counted anew when it is back.
            self._devices = {name: known.get(name) or _Device(name) for name in self._chosen.reported}

    def _total(self, moment: Moment, stats: dict[str, DiskIo]) -> None:
        if not stats:
            moment.miss(_TOTALS, _NO_DEVICE)
            return
        read, written = self._sums
        read.feed({name: io.read for name, io in stats.items()})
        written.feed({name: io.written for name, io in stats.items()})
        for key, counter in zip(_TOTALS, self._sums, strict=True):
            moment.put(key, FIRST if counter.seen == 1 else counter.total / MIB)

    @staticmethod
    def _one(moment: Moment, device: _Device, io: DiskIo, elapsed: float) -> None:
        device.read.feed(io.read)
        device.written.feed(io.written)
        for counter, total, rate in device.keys:
            if counter.seen == 1:
                moment.miss((total, rate), FIRST)
                continue
            moment.values[total] = counter.total / MIB
            moment.put(rate, per_second(counter.gain, elapsed))
