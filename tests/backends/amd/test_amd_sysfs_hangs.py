"""A file of the kernel's that does not answer, as when a card's firmware hangs: it costs its own card until it answers."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelmetrics import Reason, Sampler
from accelmetrics.sampling.sources import SourceRegistry
from tests.sampling.conftest import until
from tests.simulators.amdgpu import Device, Tree, machines

TIMEOUT = 0.5


@pytest.fixture
def cards(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> tuple[Device, Device]:
    """Two cards on a machine without ROCm, of which none was read yet."""
    monkeypatch.setattr("accelmetrics.sampling.sampler.SHARED", SourceRegistry())
    return machines.mi250(tree)


class HungFile:
    """A file that opening waits for: a pipe without a writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = path.read_bytes()
        path.unlink()
        os.mkfifo(path)

    def answer(self) -> None:
        """Let go of what waits, and be a file again."""
        waiting = self._path.with_name("waiting")
        self._path.rename(waiting)
        self._path.write_bytes(self._content)
        os.close(os.open(waiting, os.O_RDWR | os.O_NONBLOCK))


@pytest.fixture
def hung(cards: tuple[Device, Device]) -> Iterator[HungFile]:
    """The second card's activity does not answer."""
    made = HungFile(cards[1].path / "gpu_busy_percent")
    yield made
    if not (cards[1].path / "waiting").exists():
        made.answer()


def test_a_file_that_hangs_costs_its_own_card_alone(cards: tuple[Device, Device], hung: HungFile) -> None:
    """The other is fresh at every reading, which does not wait for the file; when that answers, everything is back."""
    with Sampler(["amd"], timeout=TIMEOUT) as sampler:
        for busy in (41, 42, 43):
            cards[0].write({"gpu_busy_percent": busy})
            snapshot = sampler.sample()
            assert snapshot.metrics["gpu.0.gpu"] == busy
            assert "gpu.0.powerWatts" in snapshot.metrics
            assert not any(key.startswith("gpu.1.") for key in snapshot.metrics)
            assert snapshot.unavailable["gpu.1.temp"].reason == Reason.TIMED_OUT
        assert snapshot.backends[0].status == "degraded"
        hung.answer()
        until(lambda: sampler.sample().metrics.get("gpu.1.gpu") == 98)
        after = sampler.sample()
        assert after.backends[0].status == "ok"
        assert {"gpu.1.temp", "gpu.1.memoryAllocated"} <= after.metrics.keys()
