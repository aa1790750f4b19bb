"""Readings by a clock that goes forward by one interval at each of them: what a steady state calls, without waiting for it.

Arguments: seconds from one reading to the next, how many readings to warm up, how many to count, which metrics are read.
Prints a line when the counting is to begin and waits for one, then ends.
"""

from __future__ import annotations

import json
import sys
import time

from accelmetrics import Sampler
from accelmetrics.backends.nvidia import NvidiaBackend
from accelmetrics.testing import FakeClock


def main() -> None:
    """Read and read."""
    interval, warm_up, count = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    clock = FakeClock()
    with Sampler(backends=[NvidiaBackend(clock)], clock=clock, metrics=sys.argv[4]) as sampler:

        def read(times: int) -> None:
            for _ in range(times):
                clock.advance(interval)
                time.sleep(0.0002)  # NVML, simulated or not, wants two GPM samples to differ in time
                sampler.sample()

        read(warm_up)
        sys.stdout.write("{}\n")
        sys.stdout.flush()
        sys.stdin.readline()
        read(count)
        keys = len(sampler.sample().metrics)
    sys.stdout.write(json.dumps({"readings": count, "keys": keys}) + "\n")


if __name__ == "__main__":
    main()
