"""What the sampler's tests share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator

import pytest

from accelmetrics.testing import FakeBackend


@pytest.fixture(autouse=True)
def _known_threads() -> None:
    from tests.monitor.watching import remember_threads  # it imports this module

    remember_threads()


@pytest.fixture
def gpus() -> Generator[FakeBackend, None, None]:
    """Four scripted GPUs; whatever hangs in the end is let go, so that no test leaves a stuck thread to the next."""
    until(lambda: lanes() == 0)
    backend = FakeBackend(devices=4)
    for number, device in enumerate(backend.all_devices()):
        device.set(powerWatts=100.0 + number, temp=40 + number)
    yield backend
    backend.release_open()
    for device in backend.all_devices():
        device.release()


def lanes() -> int:
    """How many threads the scripted backend has."""
    return sum(thread.name.startswith("accelmetrics-fake-") for thread in threading.enumerate())


def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait for something that must come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.005)
