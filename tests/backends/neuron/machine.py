"""What the tests of this backend share."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import psutil

from accelmetrics import Sampler
from accelmetrics.backends.neuron import NeuronBackend
from accelmetrics.schemas.snapshot import Snapshot

PERIOD = 0.1


@contextmanager
def sampler(**options: object) -> Generator[Sampler, None, None]:
    """A sampler of this backend alone, ten reports a second."""
    with Sampler([NeuronBackend(period=PERIOD)], **options) as made:  # type: ignore[arg-type]
        yield made


def once(**options: object) -> Snapshot:
    """One snapshot."""
    with sampler(**options) as made:
        return made.sample()


def until(made: Sampler, condition: Callable[[Snapshot], bool], seconds: float = 10.0) -> Snapshot:
    """Sample until something holds that must come to hold."""
    end = time.monotonic() + seconds
    while True:
        snapshot = made.sample()
        if condition(snapshot):
            return snapshot
        assert time.monotonic() < end, (snapshot.backends, dict(list(snapshot.unavailable.items())[:3]))
        time.sleep(PERIOD / 4)


def come_true(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something that must come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.01)


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not: who reaps an orphan is not ours to say."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
