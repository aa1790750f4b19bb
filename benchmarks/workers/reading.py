"""How long one reading takes: `Sampler.sample()` and the bare loop by turns, in one process.

Arguments: how many readings per turn, how many turns, by how many seconds the sampler's clock goes forward at each reading (0: it
has the system's), and where the threads run: "free", "together" on one core, or "apart" on two.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable

from accelmetrics import Sampler, Snapshot
from accelmetrics.backends.nvidia import NvidiaBackend
from benchmarks.workers import bare
from benchmarks.workers.stepping import SteppingClock


def main() -> None:
    """Prints the median seconds of either and their ratio."""
    readings, turns, step, placement = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    gpus = bare.open_driver()
    clock = SteppingClock() if step else None
    with Sampler(backends=[NvidiaBackend(clock) if clock else "nvidia"], clock=clock) as sampler:
        read = stepping(sampler, clock, step) if clock else sampler.sample
        read()
        place(placement)
        ours, theirs = [], []
        for turn in range(turns + 1):
            own = batch(read, readings)
            bare_loop = batch(lambda: bare.read_all(gpus), readings)
            if turn:  # the first one warms up
                ours.append(own)
                theirs.append(bare_loop)
        keys = len(read().metrics)
    ratio = statistics.median(own / other for own, other in zip(ours, theirs, strict=True))
    result = {"sampler": statistics.median(ours), "bare": statistics.median(theirs), "ratio": ratio, "keys": keys}
    sys.stdout.write(json.dumps(result) + "\n")


def stepping(sampler: Sampler, clock: SteppingClock, step: float) -> Callable[[], Snapshot]:
    """Readings that find the clock gone forward."""

    def read() -> Snapshot:
        clock.now += step
        return sampler.sample()

    return read


def place(placement: str) -> None:
    """Pins this thread and the sampler's; what is left free goes where the scheduler puts it."""
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
