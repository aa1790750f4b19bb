"""Fixtures: simulated machines that this process sees, and consumers of the backend on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.nvidia import NvidiaBackend
from accelmetrics.testing import FakeClock
from tests.backends.nvidia.machine import Consume, Consumer, Sample, Simulate
from tests.simulators.nvml import NvmlSimulator, build


@pytest.fixture(scope="session")
def simulator_builds() -> None:
    build()


@pytest.fixture
def simulate(simulator_builds: None) -> Iterator[Simulate]:
    """Makes machines that this process sees; they end with the test."""
    with ExitStack() as stack:

        def make(*arguments: Any, **options: Any) -> NvmlSimulator:
            simulator = stack.enter_context(NvmlSimulator(*arguments, **options))
            simulator.load()
            return simulator

        yield make


@pytest.fixture
def simulator(simulate: Simulate) -> NvmlSimulator:
    """Three H100s."""
    return simulate(gpus=3)


@pytest.fixture
def consume(simulator_builds: None) -> Iterator[Consume]:
    """Opens the backend on the machine of the test; closed before that machine goes."""
    with ExitStack() as stack:

        def make(*arguments: Any, **options: Any) -> Consumer:
            consumer = Consumer(*arguments, **options)
            stack.callback(consumer.driver.close)
            return consumer

        yield make


@pytest.fixture
def consumer(simulator: NvmlSimulator, consume: Consume) -> Consumer:
    """The backend on three H100s."""
    return consume()


@pytest.fixture
def sample(simulator_builds: None) -> Iterator[Sample]:
    """Makes samplers of the simulated machine, each on a clock that stands."""
    with ExitStack() as stack:

        def make(**options: Any) -> tuple[Sampler, FakeClock]:
            clock = FakeClock()
            # An object: it is opened whatever detection says.
            return stack.enter_context(Sampler([NvidiaBackend(clock)], clock=clock, **options)), clock

        yield make


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty machine, whatever the one below is."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return tmp_path
