"""CPU time of a process that takes part in a shared reading and does nothing with it.

Arguments: readings a second, seconds, and the directory of the job.
"""

from __future__ import annotations

import json
import sys
import time

from accelmetrics.sampling.channel import NodeChannel
from accelmetrics.sampling.node import NodeSampler
from benchmarks.workers.job import join
from benchmarks.workers.ticking import BACKENDS, WARM_UP


def main() -> None:
    """Print the CPU seconds per reading of this whole process, and how many there were."""
    rate, seconds = float(sys.argv[1]), float(sys.argv[2])
    join(sys.argv[3])
    sampler = NodeSampler({"backends": BACKENDS}, 1 / rate, NodeChannel(), {})
    sampler.scheduled()
    began, spent, readings = time.monotonic() + WARM_UP, 0.0, 0
    while (now := time.monotonic()) < began + seconds:
        if not spent and now >= began:
            spent, readings = time.process_time(), 0
        sampler.scheduled()
        readings += 1
    sys.stdout.write(json.dumps({"cpu": (time.process_time() - spent) / max(1, readings), "readings": readings}) + "\n")


if __name__ == "__main__":
    main()
