"""What the sampler's tests share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

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


def at_once(*works: Callable[[], object]) -> None:
    """Call functions on a thread each, and wait for all of them."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def beside(work: Callable[[], object]) -> Generator[None, None, None]:
    """Have a thread do something again and again during the block."""
    stop = threading.Event()

    def again() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


until = wait_for
