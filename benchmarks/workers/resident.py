"""Resident memory after a few and after many readings.

Arguments: few, many.
"""

from __future__ import annotations

import json
import sys

import psutil

from accelmetrics import Sampler


def main() -> None:
    """Prints the two sizes in bytes."""
    few, many = map(int, sys.argv[1:])
    process = psutil.Process()
    with Sampler(backends=["nvidia", "host"]) as sampler:
        for _ in range(few):
            sampler.sample()
        early = process.memory_info().rss
        for _ in range(many - few):
            sampler.sample()
        late = process.memory_info().rss
    sys.stdout.write(json.dumps({"early": early, "late": late}) + "\n")


if __name__ == "__main__":
    main()
