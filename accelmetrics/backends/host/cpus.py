"""``cpu.{i}.cpu_percent``: how busy each CPU of the host was, from ``/proc/stat``."""

from __future__ import annotations

import re
from typing import NamedTuple

from accelmetrics.backends.host.numbers import FIRST, RESET, TOO_SOON
from accelmetrics.backends.host.part import Moment, Source
from accelmetrics.schemas.reasons import Unavailable

PACE = 0.45
"""Seconds between two looks at the CPUs: the kernel counts in clock ticks of 10 ms, so that a tenth of a second has ten steps."""
# Guest time stands in user and nice already, so the columns after steal are left out.
_COLUMNS = 8
_LINE = re.compile(rb"^cpu(\d{1,6}) +(\d[\d ]*)$", re.MULTILINE)


class CpuTime(NamedTuple):
    """Clock ticks of one CPU since boot."""

    total: int
    idle: int


def parse_stat(data: bytes) -> dict[int, CpuTime]:
    """Times by number of every CPU that is on.

    Raises:
        ValueError: The text names no CPU.
    """
    found = {}
    for number, columns in _LINE.findall(data):
        ticks = [int(word) for word in columns.split()[:_COLUMNS]]
        # Waiting for a disk is idle time with a note on it.
        found[int(number)] = CpuTime(sum(ticks), sum(ticks[3:5]))
    if not found:
        raise ValueError("no CPU is listed")
    return found


def busy_percent(before: CpuTime, after: CpuTime) -> float | Unavailable:
    """Share of the time between two readings that was not idle, in percent."""
    total = after.total - before.total
    if total <= 0:
        return TOO_SOON if total == 0 else RESET
    # The kernel corrects idle and iowait downwards at times.
    idle = min(max(after.idle - before.idle, 0), total)
    return 100.0 * (1.0 - idle / total)


class CpuPart:
    """The busy share of each CPU; tells the parts after it which CPUs are on."""

    def __init__(self, source: Source[dict[int, CpuTime]]) -> None:
        self._source = source
        self._last: dict[int, CpuTime] = {}
        self._names: dict[int, str] = {}

    def read(self, moment: Moment) -> None:
        try:
            times = self._source.read()
        except (OSError, ValueError):
            # Without the file no CPU is known, so there is no key that could carry the reason.
            moment.failed = True
            moment.online = ()
            return
        moment.online = tuple(times)
        if times.keys() != self._names.keys():
            self._names = {number: f"cpu.{number}.cpu_percent" for number in times}
        for number, time in times.items():
            before = self._last.get(number)
            moment.put(self._names[number], FIRST if before is None else busy_percent(before, time))
        self._last = times
