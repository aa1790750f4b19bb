"""The registration: what the sampler asks before anything of NVIDIA's is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock
from accelmetrics.backends.nvidia.errors import BACKEND

if TYPE_CHECKING:
    from accelmetrics.backends.contract import Coverage, Detection, Driver
    from accelmetrics.schemas.identity import DeviceKind
    from accelmetrics.schemas.metric import Metric


class NvidiaBackend:
    """NVIDIA GPUs through NVML.

    Args:
        clock: What the paces of slow values and the intervals of rates are measured on.
    """

    name = BACKEND
    kind: DeviceKind | None = "gpu"
    interval = 0.0

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock

    def detect(self) -> Detection:
        from accelmetrics.backends.nvidia.detection import detect

        return detect()

    def open(self) -> Driver:
        from accelmetrics.backends.nvidia.driver import open_driver

        return open_driver(self._clock)

    def coverage(self) -> Coverage:
        from accelmetrics.backends.contract import catalogued

        return catalogued(self.name)

    def own_metrics(self) -> Iterable[Metric]:
        return ()
