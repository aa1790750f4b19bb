"""JAX: the loss is logged without waiting for the device, each row has what the devices did since the row before. Runs on CPU.

pip install accelmetrics jax
python examples/jax_loop.py [output file]
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

import accelmetrics

STEPS, STEPS_PER_ROW, BATCH, WIDTH = 40, 10, 512, 256


@jax.jit
def train(weights, key):
    """Make one step of a linear regression whose weights are all 1."""
    inputs = jax.random.normal(key, (BATCH, WIDTH))
    targets = inputs.sum(axis=1)
    loss, gradient = jax.value_and_grad(lambda now: jnp.mean((inputs @ now - targets) ** 2))(weights)
    return weights - 0.1 * gradient, loss, jnp.linalg.norm(gradient)


def main(path="rows.jsonl"):
    """Train, and write a row every ten steps."""
    weights = jnp.zeros(WIDTH)
    keys = jax.random.split(jax.random.key(0), STEPS)
    with Path(path).open("w") as rows, accelmetrics.training(interval=0.05) as run:
        for step in range(1, STEPS + 1):
            weights, loss, norm = train(weights, keys[step - 1])
            run.step(step, loss=loss, grad_norm=norm, samples=BATCH)
            if step % STEPS_PER_ROW == 0:
                rows.write(json.dumps({"step": step, "loss": float(loss), **run.row()}) + "\n")
    for step in run.monitor.steps:
        print(step.step, step.values)


if __name__ == "__main__":
    main(*sys.argv[1:])
