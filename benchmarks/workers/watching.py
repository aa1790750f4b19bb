"""Resident memory of a program with a monitor, after a few and after many ticks, back to back on an injected clock.

With one arena of the C library's for all threads: each further one takes a few hundred KiB sooner or later, by chance, which
says nothing about what is left behind.

Arguments: few, many, seconds between two ticks on that clock, readings in the history.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time

import psutil

from accelmetrics.backends.nvidia import NvidiaBackend
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.monitor.window import Window
from accelmetrics.sampling.threads import Flag
from accelmetrics.schemas.record import Record
from accelmetrics.testing.fake import FakeClock

WINDOW = 8
"""Ticks that a window lasts."""
ARENAS = "MALLOC_ARENA_MAX"
"""Read by the C library when a program begins."""
LOOKS = 9
"""Allocators hold now more, now less: half a mebibyte either way."""


class Program:
    """Stands for an exporter and for the program: it opens and closes windows and logs steps as records go by."""

    name = "program"

    def __init__(self) -> None:
        self.monitor: Monitor | None = None
        self.count = 0
        self._window: Window | None = None

    def open(self) -> None:
        """Nothing is needed."""

    def export(self, record: Record) -> None:
        """Take notice of a tick."""
        assert self.monitor is not None
        self.count += 1
        for half in (1, 2):
            self.monitor.log(step=2 * self.count + half, loss=1 / self.count, tokens=4096)
        if self.count % WINDOW == 0:
            if self._window is not None:
                self._window.end()
            self._window = self.monitor.window("epoch").begin()

    def flush(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""


class Clock(FakeClock):
    """A clock that goes on when the program has taken notice of the last tick.

    At a pace that no exporter keeps, its queue would be what is measured.
    """

    def __init__(self, program: Program) -> None:
        super().__init__()
        self._program = program

    def wait(self, woken: Flag, seconds: float) -> None:
        """Let so much time pass at once, unless the event is set."""
        monitor = self._program.monitor
        while monitor is not None and monitor.status.ticks > self._program.count:
            time.sleep(0.0001)
        super().wait(woken, seconds)


def main() -> None:
    """Prints the two sizes in bytes, and how much is read."""
    few, many, interval, history = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    program = Program()
    clock = Clock(program)
    monitor = program.monitor = Monitor(interval, [program], backends=[NvidiaBackend(clock)], clock=clock, history=history)
    with monitor:
        look(monitor, few // 2)  # what looking itself needs
        early = resident_after(monitor, few)
        late = resident_after(monitor, many)
        keys = len(monitor.latest.metrics) if monitor.latest is not None else 0
    failed = sum(exporter.failed for exporter in monitor.status.exporters)
    result = {"early": early, "late": late, "keys": keys, "ticks": monitor.status.ticks, "failed": failed}
    sys.stdout.write(json.dumps(result) + "\n")


def resident_after(monitor: Monitor, ticks: int) -> int:
    """Resident bytes when so many ticks have passed and everything was delivered: the median of a few looks."""
    return int(statistics.median(look(monitor, ticks + number * ticks // 50) for number in range(LOOKS)))


def look(monitor: Monitor, ticks: int) -> int:
    """Resident bytes at one moment."""
    while monitor.status.ticks < ticks:
        time.sleep(0.002)
    monitor.pause()
    monitor.flush(30)
    resident: int = psutil.Process().memory_info().rss
    monitor.resume()
    return resident


if __name__ == "__main__":
    if ARENAS not in os.environ:
        os.execve(sys.executable, sys.orig_argv, {**os.environ, ARENAS: "1"})
    main()
