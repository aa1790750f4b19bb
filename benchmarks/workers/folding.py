"""What a window of five seconds costs where its results are asked for at its end, with all that the window left in the ring.

Arguments: readings of the window, how often it is folded.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from accelmetrics import Sampler
from accelmetrics.schemas.ring import Row, row_of
from accelmetrics.schemas.statistics import WindowAggregator

WARM_UP = 3


def main() -> None:
    """Print the median CPU seconds of all results of the window, and its keys."""
    readings, times = map(int, sys.argv[1:])
    step = 5.0 / readings
    rows: list[Row] = []
    with Sampler(["nvidia", "host"]) as sampler:
        for number in range(WARM_UP + readings):
            rows.append(row_of(sampler.sample(), number * step))
            time.sleep(0.02)
    begin = (WARM_UP - 0.5) * step
    spent = []
    for _ in range(times):
        started = time.process_time()
        window = WindowAggregator(begin, rows[WARM_UP - 2 : WARM_UP])
        window.fold(rows[WARM_UP:])
        window.summary(), window.energy_joules(), window.devices()
        spent.append(time.process_time() - started)
    sys.stdout.write(json.dumps({"seconds": statistics.median(spent), "keys": len(rows[-1].layout)}) + "\n")


if __name__ == "__main__":
    main()
