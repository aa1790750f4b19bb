"""What the tests of this backend share."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from accelmetrics import Sampler
from accelmetrics.backends.neuron import backend
from accelmetrics.schemas.snapshot import Snapshot
from tests.support.waiting import wait_for

PERIOD = 0.3


@contextmanager
def sampler(**options: object) -> Generator[Sampler, None, None]:
    """A sampler of this backend alone, three reports a second."""
    with Sampler([backend], **options) as made:  # type: ignore[arg-type]
        yield made


def once(**options: object) -> Snapshot:
    """One snapshot."""
    with sampler(**options) as made:
        return made.sample()


def until(made: Sampler, condition: Callable[[Snapshot], bool]) -> Snapshot:
    """Sample until something holds that must come to hold."""
    latest: list[Snapshot] = []

    def holds() -> bool:
        latest[:] = [made.sample()]
        return condition(latest[0])

    wait_for(holds, what=lambda: (latest[0].backends, dict(list(latest[0].unavailable.items())[:3])))
    return latest[0]
