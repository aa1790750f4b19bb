"""AMD GPUs.

Where the numbers come from is a list of sources, the best first; the first that opens is used. Each is a module with a
driver of its own (:mod:`~accelmetrics.backends.amd.rocm_smi` runs the command of that name), and adding one adds its
module and its place in the list. They give the same metrics under the same names; whether the hardware is here is not
their question but :mod:`~accelmetrics.backends.amd.detection`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from accelmetrics.backends.amd.detection import detect
from accelmetrics.backends.amd.rocm_smi import RocmSmiDriver
from accelmetrics.backends.amd.rounds import BACKEND, INTERVAL
from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock
from accelmetrics.backends.contract import Detection, Driver
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.identity import DeviceKind
from accelmetrics.schemas.metric import Metric

Opener = Callable[[Clock], Driver]

SOURCES: tuple[Opener, ...] = (RocmSmiDriver,)


class AmdBackend:
    """AMD GPUs, through the best source that opens.

    Args:
        clock: Where intervals are taken from.
        sources: What to try, in order.
    """

    name = BACKEND
    kind: ClassVar[DeviceKind | None] = "gpu"
    interval = INTERVAL

    def __init__(self, clock: Clock = SYSTEM_CLOCK, sources: Sequence[Opener] = SOURCES) -> None:
        self._clock = clock
        self._sources = sources

    def detect(self) -> Detection:
        return detect()

    def open(self) -> Driver:
        failures: list[SourceError] = []
        for source in self._sources:
            try:
                return source(self._clock)
            except SourceError as error:
                failures.append(error)
        raise self._explained(failures)

    def own_metrics(self) -> tuple[Metric, ...]:
        return ()

    def _explained(self, failures: list[SourceError]) -> SourceError:
        """The best source's failure, with what the kernel shows to be wrong first among the advice."""
        first = failures[0]
        message = "; ".join(error.message for error in failures)
        advice = dict.fromkeys(words for words in (detect().advice, *(error.advice for error in failures)) if words)
        return type(first)(first.reason, message, backend=self.name, advice="; ".join(advice))


backend = AmdBackend()
