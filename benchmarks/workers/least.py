"""The least that a rank pays whose program logs a step every 100 ms and looks once a second: its wake-ups, and the calls on files.

Argument: seconds. There is no Monitor: it writes a step's bytes and their number, and reads a row's bytes and the files about itself.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

from benchmarks.workers.own_facts import FILES
from benchmarks.workers.ranking import LOOK, STEP
from benchmarks.workers.ticking import WARM_UP

STEP_BYTES, ROW_BYTES = 150, 12_000


def main() -> None:
    """Print the CPU seconds of this process per second."""
    seconds, facts = float(sys.argv[1]), [os.open(path, os.O_RDONLY) for path in FILES]
    with tempfile.TemporaryFile() as file:
        ring = file.fileno()
        os.pwrite(ring, bytes(2 * ROW_BYTES), 0)
        began, spent, steps = time.monotonic() + WARM_UP, 0.0, 0
        while (now := time.monotonic()) < began + seconds:
            if not spent and now >= began:
                spent, steps = time.process_time(), 0
            os.pwrite(ring, bytes(STEP_BYTES), ROW_BYTES)
            os.pwrite(ring, bytes(8), 0)
            steps += 1
            if steps % LOOK == 0:
                os.pread(ring, ROW_BYTES, 0)
                for descriptor in facts:
                    os.pread(descriptor, 4096, 0)
            time.sleep(max(0.0, STEP - (time.monotonic() - now)))
        spent = time.process_time() - spent
    sys.stdout.write(json.dumps({"cpu": spent / seconds}) + "\n")


if __name__ == "__main__":
    main()
