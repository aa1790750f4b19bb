"""Waiting for events. A limit here ends a test that hangs; no test measures anything with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from accelmetrics import Reason, Sampler, Snapshot
from accelmetrics.testing import FakeClock

T = TypeVar("T")

HANG = 60.0
"""Seconds after which something that was to happen is taken for never happening, on a loaded machine too."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.03


def wait_for(condition: Callable[[], T], limit: float = HANG, what: str | Callable[[], object] = "") -> T:
    """Call a condition again and again until what it returns is true, and return that.

    Args:
        condition: Is called at least twice, the last time after the limit.
        limit: Seconds until the wait fails.
        what: Said in the failure: words, or a callable that describes the state then.

    Raises:
        AssertionError: It was still false at the limit.
    """
    end = time.monotonic() + limit
    pause = SHORTEST_PAUSE
    while not (found := condition()):
        if time.monotonic() > end:
            found = condition()
            words = what() if callable(what) else what
            assert found, f"waited {limit:g} s: {words or condition}"
            break
        time.sleep(pause)
        pause = min(pause * 1.5, LONGEST_PAUSE)
    return found


def until(sampler: Sampler, clock: FakeClock, holds: Callable[[Snapshot], bool], step: float = 1.0) -> Snapshot:
    """Sample until something holds of what the background has read anew, and return that reading.

    Args:
        sampler: Reads by the clock.
        clock: Goes forward before each reading, so that a poll is due.
        holds: What must come to hold.
        step: Seconds by which the clock goes forward.
    """
    latest: list[Snapshot] = []

    def look() -> bool:
        clock.advance(step)
        latest[:] = [sampler.sample()]
        return holds(latest[0])

    wait_for(look, what=lambda: (latest[0].metrics, latest[0].unavailable, latest[0].backends))
    return latest[0]


def until_reason(sampler: Sampler, clock: FakeClock, key: str, expected: Reason | None) -> None:
    """Sample until a key is missing for this reason; until it is not missing where that is None."""

    def holds(snapshot: Snapshot) -> bool:
        why = snapshot.unavailable.get(key)
        return (why.reason if why else None) == expected

    until(sampler, clock, holds)


def idle(seconds: float) -> None:
    """Let time pass in which a test counts what happens of itself, such as CPU time. Never to wait for something."""
    time.sleep(seconds)


class Gate:
    """A call that hangs until it is released; takes any arguments.

    Attributes:
        entered: Is set when the first call has begun.
    """

    def __init__(self) -> None:
        self.entered = threading.Event()
        self._free = threading.Event()

    def __call__(self, *_: object, **__: object) -> None:
        self.entered.set()
        assert self._free.wait(2 * HANG), "the gate was never released"

    def release(self) -> None:
        """Let every call return, later ones too."""
        self._free.set()


def sampled(sampler: Sampler, fits: Callable[[Snapshot], bool]) -> Snapshot:
    """Take readings until one fits, and return that."""

    def look() -> Snapshot | None:
        snapshot = sampler.sample()
        return snapshot if fits(snapshot) else None

    found = wait_for(look)
    assert found is not None
    return found
