"""What a process that shares a reading pays to look at itself.

Argument: how many looks, one a second. In the middle between two of them the files that they read are read alone, as a control; the process
sleeps before either, which leaves the caches cold.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

from accelmetrics.sampling.node_view import OwnFacts
from accelmetrics.sampling.options import checked

HALF = 0.5
FILES = ("/proc/self/cgroup", "/proc/meminfo", "/proc/self/stat")


def spent(call: Callable[[], object]) -> float:
    """CPU seconds of the whole process for one call."""
    before = time.process_time()
    call()
    return time.process_time() - before


def main() -> None:
    """Print the median CPU seconds of a look and of the control, and how many keys a look gives."""
    facts = OwnFacts(["host"], checked())
    descriptors = [os.open(path, os.O_RDONLY) for path in FILES]
    for _ in range(2):  # the second has the first rates
        values, _ = facts.read()
    looks, control = [], []
    for _ in range(int(sys.argv[1])):
        time.sleep(HALF)
        control.append(spent(lambda: [os.pread(descriptor, 4096, 0) for descriptor in descriptors]))
        time.sleep(HALF)
        looks.append(spent(facts.read))
    found = {"look": statistics.median(looks), "files": statistics.median(control), "keys": len(values)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
