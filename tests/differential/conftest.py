"""Both streams, collected once for all tests and all of their processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.environments import EnvironmentUnavailable, wandb_python
from tests.differential import streams
from tests.simulators.nvml import SimulatorUnavailable
from tests.support.session import made_once


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> streams.Streams:
    """What W&B's collector and accelmetrics said about the same simulated machine."""

    def collect(directory: Path) -> None:
        try:
            streams.collect(wandb_python(), directory)
        except (EnvironmentUnavailable, SimulatorUnavailable) as error:
            pytest.skip(str(error))

    return streams.read(made_once(tmp_path_factory, "differential", collect))
