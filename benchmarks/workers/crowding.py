"""Measures the CPU of warm readings of a machine that has an accelerator of each of several vendors.

Argument: how many readings. Polls of commands go on beside it in the background, and count: they are part of what a program pays.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from accelmetrics import Sampler
from accelmetrics.backends import registry

PATIENCE = 20.0
"""Seconds for which every vendor may take to be read once."""


def main() -> None:
    """Print the median CPU seconds of a reading, of the whole process, and how many vendors and devices it has."""
    backends = registry.select("accelerators")
    with Sampler(backends, timeout=5.0) as sampler:
        until = time.monotonic() + PATIENCE
        while any(status.status not in ("ok", "absent") for status in sampler.sample().backends):
            if time.monotonic() > until:
                raise SystemExit(f"not all can be read: {sampler.sample().backends}")
            time.sleep(0.1)
        spent = []
        for _ in range(int(sys.argv[1])):
            began = time.process_time()
            snapshot = sampler.sample()
            spent.append(time.process_time() - began)
            time.sleep(0.02)
    vendors = sum(status.status == "ok" for status in snapshot.backends)
    sys.stdout.write(json.dumps({"reading": statistics.median(spent), "vendors": vendors, "devices": len(snapshot.devices)}) + "\n")


if __name__ == "__main__":
    main()
