"""What judging a reading by all rules costs the monitor's thread.

Argument: readings. A step with four numbers is judged with each; readings are a second apart on the clock of the rows.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from accelmetrics.monitor.findings import FindingEngine
from accelmetrics.monitor.rules import RULES
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.record import Step
from accelmetrics.schemas.ring import row_of


def main() -> None:
    """Print the median seconds of a reading that is judged, and how much there was to judge."""
    readings = int(sys.argv[1])
    engine, durations = FindingEngine(RULES, 1.0, {}), []
    with Sampler(["nvidia"]) as sampler:
        for second in range(readings):
            snapshot = sampler.sample()
            row = row_of(snapshot, float(second))
            step = Step(snapshot.time_ns, second, {"loss": 2.0, "grad_norm": 1.0 + second % 5, "lr": 1e-4, "tokens": 4096})
            started = time.perf_counter()
            engine.judge(snapshot, row, [step], True)
            durations.append(time.perf_counter() - started)
        found = {"seconds": statistics.median(durations), "rules": len(RULES), "keys": len(snapshot.metrics)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
