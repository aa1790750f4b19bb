"""Simulated GPUs for tests of dialects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulators.nvml import NvmlSimulator, SimulatorUnavailable


@pytest.fixture
def simulator() -> Iterator[NvmlSimulator]:
    """Two simulated H100s."""
    try:
        made = NvmlSimulator(gpus=2)
    except SimulatorUnavailable as unavailable:
        pytest.skip(str(unavailable))
    with made:
        yield made
