"""One sample after the other with another tool. Runs in the environment that has it.

Arguments: nvitop or gpustat, how many samples. Prints a line when the counting is to begin and waits for one.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable


def nvitop() -> Callable[[], object]:
    """What nvitop's own documentation calls a snapshot of each device."""
    from nvitop import Device  # type: ignore[import-not-found,unused-ignore]  # in an environment of its own

    devices = Device.all()
    return lambda: [device.as_snapshot() for device in devices]


def gpustat() -> Callable[[], object]:
    """What the `gpustat` command prints."""
    from gpustat import GPUStatCollection  # type: ignore[import-not-found,unused-ignore]  # in an environment of its own

    query: Callable[[], object] = GPUStatCollection.new_query
    return query


def main() -> None:
    """Prints the median seconds of a sample."""
    take = {"nvitop": nvitop, "gpustat": gpustat}[sys.argv[1]]()
    take()
    sys.stdout.write("{}\n")
    sys.stdout.flush()
    sys.stdin.readline()
    spent = []
    for _ in range(int(sys.argv[2])):
        started = time.perf_counter()
        take()
        spent.append(time.perf_counter() - started)
    sys.stdout.write(json.dumps({"median": statistics.median(spent), "readings": len(spent)}) + "\n")


if __name__ == "__main__":
    main()
