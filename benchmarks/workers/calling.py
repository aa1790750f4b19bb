"""Readings by a clock that goes forward by one interval at each of them: what a steady state calls, without waiting for it.

Arguments: seconds from one reading to the next, how many readings to warm up, how many to count.
Prints a line when the counting is to begin and waits for one, then ends.
"""

from __future__ import annotations

import json
import sys
import time

from accelmetrics import Sampler
from accelmetrics.backends.nvidia import NvidiaBackend
from benchmarks.workers.stepping import SteppingClock


def main() -> None:
    """Reads and reads."""
    interval, warm_up, count = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    clock = SteppingClock()
    with Sampler(backends=[NvidiaBackend(clock)], clock=clock) as sampler:
        for _ in range(warm_up):
            _step(sampler, clock, interval)
        sys.stdout.write("{}\n")
        sys.stdout.flush()
        sys.stdin.readline()
        for _ in range(count):
            _step(sampler, clock, interval)
        keys = len(sampler.sample().metrics)
    sys.stdout.write(json.dumps({"readings": count, "keys": keys}) + "\n")


def _step(sampler: Sampler, clock: SteppingClock, interval: float) -> None:
    clock.now += interval
    time.sleep(0.0002)  # NVML, simulated or not, wants two GPM samples to differ in time
    sampler.sample()


if __name__ == "__main__":
    main()
