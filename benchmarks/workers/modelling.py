"""What watching a model costs a training: a transformer on one core, every other step measured.

Argument: steps. It runs in an environment that has PyTorch.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
from torch import nn

import accelmetrics

WARM_UP = 4
WIDTH, HEADS, LAYERS, TOKENS, BATCH = 256, 4, 8, 64, 4


def main() -> None:
    """Print the median CPU seconds of a step that is measured and of one that is not, and how many numbers are logged."""
    torch.set_num_threads(1)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True)
    model = nn.TransformerEncoder(layer, LAYERS)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(BATCH, TOKENS, WIDTH)
    seconds: tuple[list[float], list[float]] = ([], [])
    with accelmetrics.training(1.0, backends=["host"], share=None) as run:
        run.watch(model, every=2)
        for step in range(WARM_UP + int(sys.argv[1])):
            began = time.thread_time()
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            run.step(step, loss=loss)
            if step >= WARM_UP:
                seconds[step % 2].append(time.thread_time() - began)
    names = max(len([name for name in step.values if name.startswith("watch/")]) for step in run.monitor.steps)
    measured, plain = map(statistics.median, seconds)
    sys.stdout.write(json.dumps({"measured": measured, "plain": plain, "numbers": names}) + "\n")


if __name__ == "__main__":
    main()
