"""What the tests of this backend share."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial

from accelmetrics import Sampler
from accelmetrics.backends import neuron
from accelmetrics.backends.kit.sources import Open, SourcesBackend
from accelmetrics.schemas.snapshot import Snapshot
from tests.support.waiting import wait_for

PERIOD = 0.3


def quick_backend() -> SourcesBackend:
    """The backend with three reports a second, and with devices that are numbered anew."""
    sources: dict[str, Open] = {neuron.TOOL: partial(neuron.open_monitor, period=PERIOD), "sysfs": neuron.open_sysfs}
    default = (partial(neuron.open_best, period=PERIOD),)
    return SourcesBackend("neuron", "trn", sources, default=default, detect=neuron.detect, coverage=neuron.coverage)


@contextmanager
def sampler(**options: object) -> Generator[Sampler, None, None]:
    """A sampler of this backend alone, three reports a second."""
    with Sampler([quick_backend()], **options) as made:  # type: ignore[arg-type]
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
