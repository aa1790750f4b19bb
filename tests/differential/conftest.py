"""Both streams, collected once for all tests and all of their processes."""

from __future__ import annotations

import pytest

from benchmarks.environments import wandb_python
from tests.differential import streams
from tests.support.session import made_once


@pytest.fixture(scope="session")
def both(tmp_path_factory: pytest.TempPathFactory) -> streams.Streams:
    """What W&B's collector and accelmetrics said about the same simulated machine."""
    return streams.read(made_once(tmp_path_factory, "differential", lambda directory: streams.collect(wandb_python(), directory)))
