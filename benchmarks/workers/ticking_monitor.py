"""CPU time of a monitor's ticks at a steady pace, GPUs and host, with a window open all the time.

Arguments: readings a second, seconds.
"""

from __future__ import annotations

import json
import sys
import time

from accelmetrics import Monitor

WARM_UP = 1.0


def main() -> None:
    """Prints the CPU seconds per tick of this whole process."""
    rate, seconds = map(float, sys.argv[1:])
    with Monitor(1 / rate, backends=["nvidia", "host"]) as monitor, monitor.window("all"):
        time.sleep(WARM_UP)
        before, spent = monitor.status.ticks, time.process_time()
        time.sleep(seconds)
        ticks, spent = monitor.status.ticks - before, time.process_time() - spent
    sys.stdout.write(json.dumps({"cpu": spent / max(1, ticks), "ticks": ticks, "missed": monitor.status.missed_ticks}) + "\n")


if __name__ == "__main__":
    main()
