"""How long one reading takes: ours and the bare loop by turns, in one process.

Arguments: "sampler" for `Sampler.sample()`, "monitor" for a Monitor's own readings or "tick" for its whole ticks; how many readings
per turn, how many turns, by how many seconds the sampler's clock goes forward at each reading (0: it has the system's), and where the
threads run: "free", "together" on one core, or "apart" on two.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

from accelmetrics import Monitor, Sampler, Snapshot
from accelmetrics.backends.nvidia import NvidiaBackend
from accelmetrics.sampling.threads import Flag
from accelmetrics.testing import FakeClock
from benchmarks.workers import bare

Turn = Callable[[int], float]
"""So many readings in a row: the seconds that one takes."""

SHORTEST = 0.01
"""Seconds from one tick of a Monitor to the next, by its clock, which does not wait."""


def main() -> None:
    """Print the median seconds of either and their ratio."""
    who, readings, turns, step, placement = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), sys.argv[5]
    gpus = bare.open_driver()
    with sampling(step) if who == "sampler" else monitoring(whole=who == "tick") as (own, keys):
        own(1)
        place(placement)
        ours, theirs = [], []
        for turn in range(turns + 1):
            pair = own(readings), batch(lambda: bare.read_all(gpus), readings)
            if turn:  # the first one warms up
                ours.append(pair[0])
                theirs.append(pair[1])
        count = keys()
    ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
    result = {"ours": statistics.median(ours), "bare": statistics.median(theirs), "ratio": ratio, "keys": count}
    sys.stdout.write(json.dumps(result) + "\n")


@contextmanager
def sampling(step: float) -> Iterator[tuple[Turn, Callable[[], int]]]:
    """Readings of a sampler, each with its metrics in a dict, and how many keys they have."""
    clock = FakeClock() if step else None
    with Sampler(backends=[NvidiaBackend(clock) if clock else "nvidia"], clock=clock) as sampler:

        def read() -> object:
            if clock:
                clock.advance(step)
            return sampler.sample().metrics

        yield lambda count: batch(read, count), lambda: len(sampler.sample().metrics)


class SteppingClock(FakeClock):
    """A clock by which a monitor ticks back to back, so many times at a go: between two goes its thread takes no time from others.

    Attributes:
        readings: The seconds that each reading has taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self.ticks: list[float] = []  # when each ended
        self.readings: list[float] = []
        self.go, self.done = threading.Event(), threading.Event()

    def wait(self, woken: Flag, seconds: float) -> None:
        """Let seconds pass at once, or stand until the next go."""
        self.ticks.append(time.perf_counter())
        self.left -= 1
        if self.left <= 0:
            self.done.set()
            self.go.wait()
            self.go.clear()
        super().wait(woken, seconds)

    def run(self, ticks: int) -> None:
        """Let so many ticks pass."""
        self.done.wait()
        self.done.clear()
        self.left, self.ticks, self.readings = ticks, [time.perf_counter()], []
        self.go.set()
        self.done.wait()


@contextmanager
def monitoring(whole: bool) -> Iterator[tuple[Turn, Callable[[], int]]]:
    """A Monitor's readings, each with its metrics in a dict, or its whole ticks: without a history, a window or an exporter."""
    clock = SteppingClock()
    sample = Sampler.sample

    def timed(sampler: Sampler) -> Snapshot:
        started = time.perf_counter()
        snapshot = sample(sampler)
        if snapshot.metrics:
            clock.readings.append(time.perf_counter() - started)
        return snapshot

    def run(ticks: int) -> float:
        clock.run(ticks)
        return statistics.median([after - before for before, after in pairwise(clock.ticks)] if whole else clock.readings)

    if not whole:
        Sampler.sample = timed  # type: ignore[method-assign, assignment]
    with Monitor(SHORTEST, backends=[NvidiaBackend(clock)], clock=clock, history=0) as monitor:
        yield run, lambda: len(monitor.latest.metrics) if monitor.latest is not None else 0
        clock.left = sys.maxsize
        clock.go.set()


def place(placement: str) -> None:
    """Pin this thread and the sampler's; what is left free goes where the scheduler puts it."""
    if placement == "free":
        return
    first, *others = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {first})
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and thread.native_id is not None:
            os.sched_setaffinity(thread.native_id, {others[0] if placement == "apart" else first})


def batch(read: Callable[[], object], count: int) -> float:
    """The median seconds of so many readings in a row."""
    spent = []
    for _ in range(count):
        started = time.perf_counter()
        read()
        spent.append(time.perf_counter() - started)
    return statistics.median(spent)


if __name__ == "__main__":
    main()
