"""What the sampler's tests share."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from accelmetrics.testing import FakeBackend
from tests.support.threads import own_threads
from tests.support.waiting import wait_for


@pytest.fixture
def gpus() -> Generator[FakeBackend, None, None]:
    """Four scripted GPUs; whatever hangs in the end is let go, so that no test leaves a stuck thread to the next."""
    backend = FakeBackend(devices=4)
    for number, device in enumerate(backend.all_devices()):
        device.set(powerWatts=100.0 + number, temp=40 + number)
    yield backend
    backend.opening.release()
    for device in backend.all_devices():
        device.release()


def workers() -> int:
    """How many threads the scripted backend has."""
    return len(own_threads("accelmetrics-fake-"))


until = wait_for
