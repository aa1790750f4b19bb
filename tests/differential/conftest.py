"""Both streams, collected once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.environments import EnvironmentUnavailable, wandb_python
from tests.differential import streams
from tests.simulators.nvml import SimulatorUnavailable


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> streams.Streams:
    """What W&B's collector and accelmetrics said about the same simulated machine."""
    try:
        return streams.collect(_python(), tmp_path_factory.mktemp("differential"))
    except SimulatorUnavailable as error:
        pytest.skip(str(error))


def _python() -> Path:
    try:
        return wandb_python()
    except EnvironmentUnavailable as error:
        pytest.skip(str(error))
