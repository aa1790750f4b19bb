"""Apple silicon: the GPU of the chip, and what else of the chip the host backend does not give.

Nothing of the system may be asked for power without a helper, so there are several sources, merged metric by metric, the
best first: :mod:`~accelmetrics.backends.apple.macmon` (a program that users install; everything but memory of the GPU),
:mod:`~accelmetrics.backends.apple.ioreg` (always there, needs no rights; utilisation and memory) and, where there is no
macmon, :mod:`~accelmetrics.backends.apple.powermetrics` (for root alone; power and clocks).

``cpu.avg_temp`` and ``cpu.powerWatts`` are the host backend's names too, which answers on Linux only: on a Mac the values are
this backend's, and where one source has a value the other's reason gives way.

Read on stand-ins for these commands only, never yet on a real Mac.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from accelmetrics.backends.apple.detection import BACKEND, detect, require
from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock
from accelmetrics.backends.contract import Coverage, Detection, Driver
from accelmetrics.schemas.identity import DeviceKind
from accelmetrics.schemas.metric import Metric


class AppleBackend:
    """The GPU of Apple's chips, and the chip around it.

    Args:
        clock: Where ages are taken from.
    """

    name = BACKEND
    kind: ClassVar[DeviceKind | None] = "gpu"
    interval = 1.0  # as macmon prints

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock

    def detect(self) -> Detection:
        return detect()

    def open(self) -> Driver:
        from accelmetrics.backends.apple.driver import AppleDriver  # commands and parsers, which other machines never need

        require()
        return AppleDriver(self._clock)

    def coverage(self) -> Coverage:
        from accelmetrics.backends.apple.coverage import COVERAGE

        return COVERAGE

    def own_metrics(self) -> Iterable[Metric]:
        return ()


backend = AppleBackend()
