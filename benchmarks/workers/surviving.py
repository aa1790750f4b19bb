"""Readings of a process whose shared reading another process takes, until that is killed.

Arguments: readings a second, and the directory of the job.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise

from accelmetrics import Monitor
from accelmetrics.sampling.channel import NodeChannel
from benchmarks.workers.job import join
from benchmarks.workers.ticking import BACKENDS


def main() -> None:
    """Print the role of this process once it has readings; then, when it is told to, the longest time between two of them."""
    rate = float(sys.argv[1])
    moments: list[float] = []
    with Monitor(1 / rate, backends=BACKENDS, share=join(sys.argv[2])) as monitor:
        monitor.subscribe(lambda _: moments.append(time.monotonic()))
        while len(moments) < rate:
            time.sleep(0.01)
        sys.stdout.write(f"{_role(monitor.channel)}\n")
        sys.stdout.flush()
        begun = len(moments) - 1
        sys.stdin.readline()
        gaps = [after - before for before, after in pairwise(moments[begun:])]
        sys.stdout.write(json.dumps({"gap": max(gaps), "role": _role(monitor.channel)}) + "\n")


def _role(channel: NodeChannel) -> str:
    return channel.role


if __name__ == "__main__":
    main()
