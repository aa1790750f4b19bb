"""Readings beside a thread that never stops computing.

Arguments: "thread" or "process" for the isolation, how many readings.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from typing import cast

from accelmetrics import Sampler
from accelmetrics.sampling.options import Isolation

PAUSE = 0.01


def main() -> None:
    """Prints how many readings said `timed_out`, and how long they took: the median and the longest."""
    isolation, count = cast(Isolation, sys.argv[1]), int(sys.argv[2])
    stop = threading.Event()
    with Sampler(backends=["nvidia"], isolation=isolation) as sampler:
        sampler.sample()
        busy = threading.Thread(target=compute, args=(stop,), daemon=True)
        busy.start()
        spent, timed_out = [], 0
        for _ in range(count):
            time.sleep(PAUSE)
            started = time.perf_counter()
            snapshot = sampler.sample()
            spent.append(time.perf_counter() - started)
            timed_out += any(str(why.reason) == "timed_out" for why in snapshot.unavailable.values())
        stop.set()
        busy.join()
        result = {"timed_out": timed_out, "median": statistics.median(spent), "longest": max(spent), "late": sampler.statistics.late}
    sys.stdout.write(json.dumps(result) + "\n")


def compute(stop: threading.Event) -> None:
    """Pure Python, which gives the interpreter away only when it has to."""
    number = 1
    while not stop.is_set():
        for _ in range(10_000):
            number = number * 1_103_515_245 % 2_147_483_647


if __name__ == "__main__":
    main()
