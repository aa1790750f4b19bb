"""What a training run costs the training's own thread.

Arguments: steps, and seconds that each computes. Four numbers are logged after each step, a row is taken after every fifty. A method
that does nothing is called after every other step: what cold caches cost any call is in both.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelmetrics

NUMBERS = {"loss": 0.5, "grad_norm": 1.25, "lr": 1e-4, "tokens": 4096}
STEPS_PER_ROW = 50


class Nothing:
    """The control."""

    def step(self, /, step: Any = None, *unused: object, **values: Any) -> None:
        """Do nothing."""


def compute(seconds: float) -> None:
    """Keep the interpreter busy for so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(number * number for number in range(300))


def timed(call: Callable[..., object], *arguments: object, **values: object) -> float:
    """Seconds that one call takes."""
    started = time.perf_counter()
    call(*arguments, **values)
    return time.perf_counter() - started


def main() -> None:
    """Print the median seconds of a step that is logged, of the control, and of a row."""
    steps, duration = int(sys.argv[1]), float(sys.argv[2])
    nothing = Nothing()
    ours, control, rows = [], [], []
    with tempfile.TemporaryDirectory() as folder, accelmetrics.training(0.1, [f"jsonl:{Path(folder) / 'run.jsonl'}"]) as run:
        while run.monitor.latest is None:
            time.sleep(0.01)
        for step in range(steps):
            compute(duration)
            ours.append(timed(run.step, step, **NUMBERS))
            compute(duration)
            control.append(timed(nothing.step, step, **NUMBERS))
            if step % STEPS_PER_ROW == STEPS_PER_ROW - 1:
                rows.append(timed(run.row))
    found = {"ours": statistics.median(ours), "control": statistics.median(control), "row": statistics.median(rows)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
