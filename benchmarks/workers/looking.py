"""Measures the first look at a device's typed view, or the first model of pydantic's own, in a process that has taken a reading."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import accelmetrics


def main() -> None:
    """Print the CPU seconds and the bytes of resident memory that it takes, imports among them."""
    (what,) = sys.argv[1:]
    (device, *_) = accelmetrics.sample(["nvidia"]).devices
    before, began = _resident(), time.process_time()
    if what == "view":
        found = device.metrics.power_watts
    else:
        from pydantic import BaseModel, ConfigDict

        class One(BaseModel):
            model_config = ConfigDict(defer_build=True)

            power_watts: float | None = None

        found = One.model_construct(power_watts=device.values["powerWatts"]).power_watts
    spent, grown = time.process_time() - began, _resident() - before
    if found is None:
        raise SystemExit("the simulated device says no power")
    sys.stdout.write(json.dumps({"cpu": spent, "resident": grown}) + "\n")


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    main()
