"""Resident memory after a few and after many readings.

Arguments: few, many, seconds over which the few are spread, so that what is read seldom has been read by then.
"""

from __future__ import annotations

import json
import sys
import time

import psutil

from accelmetrics import Sampler


def main() -> None:
    """Prints the two sizes in bytes."""
    few, many, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    process = psutil.Process()
    with Sampler(backends=["nvidia", "host"]) as sampler:
        for _ in range(few):
            sampler.sample()
            time.sleep(seconds / few)
        early = process.memory_info().rss
        for _ in range(many - few):
            sampler.sample()
        late = process.memory_info().rss
    sys.stdout.write(json.dumps({"early": early, "late": late}) + "\n")


if __name__ == "__main__":
    main()
