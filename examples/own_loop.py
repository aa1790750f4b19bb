"""A training loop of your own: each row that it logs has what the devices did since the row before. Needs no framework, runs on CPU.

pip install accelmetrics
python examples/own_loop.py [output file]
"""

import json
import random
import sys
from pathlib import Path

import accelmetrics

STEPS, STEPS_PER_ROW, BATCH = 2000, 500, 256


def main(path="rows.jsonl"):
    """Fit y = 3 x + 1 by stochastic gradient descent."""
    numbers = random.Random(0)
    slope = offset = 0.0
    with Path(path).open("w") as rows, accelmetrics.training(interval=0.1) as run:
        for step in range(1, STEPS + 1):
            xs = [numbers.uniform(-1, 1) for _ in range(BATCH)]
            errors = [slope * x + offset - (3 * x + 1) for x in xs]
            slope -= 0.1 * sum(error * x for error, x in zip(errors, xs, strict=True)) / BATCH
            offset -= 0.1 * sum(errors) / BATCH
            loss = sum(error * error for error in errors) / BATCH
            run.step(step, loss=loss, lr=0.1, samples=BATCH)
            if step % STEPS_PER_ROW == 0:
                row = {"step": step, "loss": loss, **run.row()}
                rows.write(json.dumps(row) + "\n")
                print(row)
    return slope, offset


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
