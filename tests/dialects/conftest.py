"""Simulated GPUs for tests of dialects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulators.nvml import NvmlSimulator


@pytest.fixture
def simulator() -> Iterator[NvmlSimulator]:
    """Two simulated H100s."""
    with NvmlSimulator(gpus=2) as made:
        yield made
