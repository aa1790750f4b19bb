"""CPU time of readings at a steady pace, GPUs and host.

Arguments: readings a second, seconds, and how many windows are open all the time; with none a Sampler reads, else a Monitor with
its history. With a directory behind them it shares its reading with the other processes that were given the same one.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack

from accelmetrics import Monitor, Sampler
from benchmarks.workers.job import join

BACKENDS = ["nvidia", "host"]
WARM_UP = 1.0


def main() -> None:
    """Print the CPU seconds per reading of this whole process, and how many there were."""
    rate, seconds, windows = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    directory = sys.argv[4] if len(sys.argv) > 4 else ""
    spent, readings = monitored(rate, seconds, windows, directory) if windows else sampled(rate, seconds)
    sys.stdout.write(json.dumps({"cpu": spent / max(1, readings), "readings": readings}) + "\n")


def sampled(rate: float, seconds: float) -> tuple[float, int]:
    """CPU seconds and number of a sampler's readings."""
    with Sampler(backends=BACKENDS) as sampler:
        due = time.monotonic()
        began = due + WARM_UP
        spent, count = 0.0, 0
        while due < began + seconds:
            if spent == 0.0 and due >= began:
                spent, count = time.process_time(), 0
            sampler.sample().metrics.get("cpu")
            count += 1
            due += 1 / rate
            time.sleep(max(0.0, due - time.monotonic()))
        return time.process_time() - spent, count


def monitored(rate: float, seconds: float, windows: int, directory: str) -> tuple[float, int]:
    """CPU seconds and number of a monitor's ticks."""
    with ExitStack() as stack:
        monitor = stack.enter_context(Monitor(1 / rate, backends=BACKENDS, share=join(directory) if directory else None))
        for number in range(windows):
            stack.enter_context(monitor.window(f"window-{number}"))
        while monitor.latest is None:
            time.sleep(0.01)
        time.sleep(WARM_UP)
        before, spent = monitor.status.ticks, time.process_time()
        time.sleep(seconds)
        return time.process_time() - spent, monitor.status.ticks - before


if __name__ == "__main__":
    main()
