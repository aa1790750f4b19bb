"""What more devices cost a warm reading: so many of our own functions for each, however many there are."""

from __future__ import annotations

import math
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest

import accelmetrics
from accelmetrics import Sampler
from accelmetrics.backends.nvidia import NvidiaBackend
from accelmetrics.sampling import engine
from accelmetrics.testing import FakeClock
from tests.simulators.nvml import NvmlSimulator

pytest.importorskip("pynvml")

PACKAGE = str(Path(accelmetrics.__file__).parent)
WARM_UP, SAMPLES = 5, 20


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots as users take them, which are not held to the schema."""
    monkeypatch.delenv("ACCELMETRICS_VALIDATE", raising=False)


def standing() -> Sampler:
    """A sampler for which no time passes: nothing slow is due."""
    clock = FakeClock()
    return Sampler([NvidiaBackend(clock)], timeout=60, clock=clock)


def passed(gpus: int) -> int:
    """Count the calls of our own functions in a warm sample: the least of several, since a wait that is long is looked at again."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            calls.append(frame.f_code.co_name)

    found: list[int] = []
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        with NvmlSimulator(gpus) as simulator:
            simulator.load()
            with standing() as sampler:
                for number in range(WARM_UP + SAMPLES):
                    calls.clear()
                    sampler.sample()
                    if number >= WARM_UP:
                        found.append(len(calls))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return min(found)


def test_each_device_costs_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SLOW_READING", math.inf)  # no call is timed
    monkeypatch.setattr(engine, "LONGEST_SLICE", math.inf)  # and a wait on a busy machine is not looked at again
    few, more, many = (passed(gpus) for gpus in (8, 40, 128))
    # A worker more or less takes part by chance, and has a call or two of its own.
    assert (many - more) / 88 == pytest.approx((more - few) / 32, abs=0.1)


def test_what_does_not_change_is_not_made_again() -> None:
    """Of many devices as of one: reasons, processes and devices are the same objects from one reading to the next."""
    with NvmlSimulator(64) as simulator:
        simulator.load()
        with standing() as sampler:
            for _ in range(WARM_UP):
                before = sampler.sample()
            now = sampler.sample()
    assert now.unavailable is before.unavailable
    assert now.processes is before.processes
    assert now.unlisted is before.unlisted
    assert now.identities is before.identities
    assert now._devices is None
    assert now._by_device is None
