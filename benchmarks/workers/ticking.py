"""CPU time of readings at a steady pace, GPUs and host.

Arguments: readings a second, seconds.
"""

from __future__ import annotations

import json
import sys
import time

from accelmetrics import Sampler

WARM_UP = 1.0


def main() -> None:
    """Prints the CPU seconds per reading of this whole process."""
    rate, seconds = map(float, sys.argv[1:])
    with Sampler(backends=["nvidia", "host"]) as sampler:
        due = time.monotonic()
        began = due + WARM_UP
        spent, count = 0.0, 0
        while due < began + seconds:
            if spent == 0.0 and due >= began:
                spent, count = time.process_time(), 0
            sampler.sample()
            count += 1
            due += 1 / rate
            time.sleep(max(0.0, due - time.monotonic()))
        spent = time.process_time() - spent
        keys = len(sampler.sample().metrics)
    sys.stdout.write(json.dumps({"cpu": spent / count, "readings": count, "keys": keys}) + "\n")


if __name__ == "__main__":
    main()
