"""How long one reading takes: `Sampler.sample()` and the bare loop by turns, in one process.

Arguments: how many readings per turn, how many turns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

from accelmetrics import Sampler
from benchmarks.workers import bare


def main() -> None:
    """Prints the median seconds of either and their ratio."""
    readings, turns = map(int, sys.argv[1:])
    gpus = bare.open_driver()
    with Sampler(backends=["nvidia"]) as sampler:
        ours, theirs = [], []
        for turn in range(turns + 1):
            own = batch(sampler.sample, readings)
            bare_loop = batch(lambda: bare.read_all(gpus), readings)
            if turn:  # the first one warms up
                ours.append(own)
                theirs.append(bare_loop)
        keys = len(sampler.sample().metrics)
    ratio = statistics.median(own / other for own, other in zip(ours, theirs, strict=True))
    result = {"sampler": statistics.median(ours), "bare": statistics.median(theirs), "ratio": ratio, "keys": keys}
    sys.stdout.write(json.dumps(result) + "\n")


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
