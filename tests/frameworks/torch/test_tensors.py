"""Tensors of PyTorch and arrays of JAX, as they are released: what a step logs is the number of that moment, and nothing waits for it.

The device is the CPU: of PyTorch's, whose values are taken at once; of JAX's, whose computations run beside the program.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
from torch.distributed.tensor import DTensor, Partial, Replicate

import accelmetrics
from tests.frameworks.programs import EXAMPLES, train


@pytest.fixture
def run() -> accelmetrics.TrainingRun:
    return accelmetrics.training(interval=0.05, backends=["host"], metrics="cpu,load.1m", share=None)


def logged(run: accelmetrics.TrainingRun, *names: str) -> list[list[object]]:
    """What was logged under names, once all of it is given out."""
    run.close()
    return [[step.values.get(name) for name in names] for step in run.monitor.steps]


def test_torchs_number_is_that_of_the_moment(run: accelmetrics.TrainingRun) -> None:
    """A tensor of the graph, one that is changed in place afterwards, other types; the graph is not kept."""
    weight = torch.tensor(2.0, requires_grad=True)
    record = torch.zeros((1, 1), dtype=torch.bfloat16)
    with run:
        for step in range(3):
            loss = weight * 3
            record += 0.5
            run.step(step, loss=loss, record=record, count=torch.tensor(step), inside=torch.ones(2), flag=torch.tensor(True))
            loss.backward()
            record.zero_()
    assert logged(run, "loss", "record", "count", "inside", "flag") == [[6.0, 0.5, float(step), None, 1.0] for step in range(3)]


def test_numbers_of_a_training_with_fake_and_meta_tensors_go_on(run: accelmetrics.TrainingRun) -> None:
    """Those have no value: they are left out."""
    with run:
        run.step(0, loss=torch.empty((), device="meta"), other=0.5)
    assert logged(run, "loss", "other") == [[None, 0.5]]


def test_distributed_tensors_are_read_without_a_collective(run: accelmetrics.TrainingRun, tmp_path: Path) -> None:
    """A norm that is not reduced would need the other ranks; a replicated one is there."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        norm = torch.tensor(0.25)
        with run:
            run.step(0, whole=DTensor.from_local(norm, mesh, [Replicate()]), part=DTensor.from_local(norm, mesh, [Partial()]))
        assert logged(run, "whole", "part") == [[0.25, None]]
    finally:
        torch.distributed.destroy_process_group()


def test_jaxs_computation_is_not_waited_for(run: accelmetrics.TrainingRun) -> None:
    """The step is noted while its loss is still computed; the number comes with it."""

    def computed(matrix: Any) -> Any:
        return jax.lax.fori_loop(0, 20, lambda _, now: now @ matrix / 1000.0, matrix).mean()

    long: Any = jax.jit(computed)
    matrix = jnp.ones((1000, 1000))
    expected = float(long(matrix))
    with run:
        loss = long(matrix)
        run.step(1, loss=loss, several=matrix)
        noted = not loss.is_ready()
        loss.block_until_ready()
    assert noted, "the step came back before the loss was computed"
    assert logged(run, "loss", "several") == [[expected, None]]


def test_what_jax_was_given_to_reuse_is_left_out(run: accelmetrics.TrainingRun, caplog: pytest.LogCaptureFixture) -> None:
    """An array that is gone has no number, and costs nothing else."""
    with run:
        loss = jnp.array(0.5)
        loss.delete()
        run.step(1, loss=loss, other=1.5)
    assert logged(run, "loss", "other") == [[None, 1.5]]
    assert "loss is a" in caplog.text


def test_nothing_is_logged_of_what_is_traced(run: accelmetrics.TrainingRun) -> None:
    """Within a compiled function there are no numbers; the function is what it was."""

    def inside(value: Any) -> Any:
        run.step(1, loss=value, other=2.5)
        return value * 2

    with run:
        assert float(jax.jit(inside)(jnp.array(2.0))) == 4.0
    assert logged(run, "loss", "other") == [[None, 2.5]]


def test_the_example_of_jax_runs(tmp_path: Path) -> None:
    """Beside simulated GPUs, whose numbers its rows have."""
    ended = train(tmp_path, EXAMPLES / "jax_loop.py", str(tmp_path / "rows.jsonl"), JAX_PLATFORMS="cpu")
    assert ended.status == 0, ended.said
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [10, 20, 30, 40]
    assert "system/gpu.1.powerWatts" in rows[-1]
    assert rows[-1]["loss"] < 0.01 < rows[0]["loss"]
