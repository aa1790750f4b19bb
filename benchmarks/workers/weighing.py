"""Resident memory of a whole program with a monitor and its history, or of one that has loaded NVIDIA's own binding and nothing else.

With one arena of the C library's for all threads, as in ``watching``.

Arguments: readings in the history; 0 for the binding.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

ARENAS = "MALLOC_ARENA_MAX"


def main() -> None:
    """Prints the resident bytes, and how many keys are remembered."""
    readings = int(sys.argv[1])
    keys = watched(readings) if readings else binding()
    sys.stdout.write(json.dumps({"resident": resident(), "keys": keys}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a monitor that still runs is what was weighed


def binding() -> int:
    """Load what a program that reads NVML by itself loads."""
    import pynvml

    return int(not pynvml.nvmlInit)


def watched(readings: int) -> int:
    """One reading a second of all metrics, back to back on an injected clock, until the history is full."""
    from accelmetrics.backends.nvidia import NvidiaBackend
    from accelmetrics.monitor.monitor import Monitor
    from accelmetrics.testing.fake import FakeClock

    clock = FakeClock()
    monitor = Monitor(1.0, backends=[NvidiaBackend(clock)], clock=clock, history=readings)
    monitor.start()
    while monitor.status.ticks < readings:
        time.sleep(0.005)
    return len(monitor.latest.metrics) if monitor.latest is not None else 0


def resident() -> int:
    """Without psutil, which would be weighed with it."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    if ARENAS not in os.environ:
        os.execve(sys.executable, sys.orig_argv, {**os.environ, ARENAS: "1"})
    main()
