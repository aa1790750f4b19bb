"""Google TPUs.

The chips are known from the PCI bus; what they do is known to the runtime inside the program that holds them, and to no other
while none does. ``devices`` looks at the machine, ``runtime`` asks over gRPC and reads the answers, ``values``
turns them into metrics, ``sdk`` asks libtpu in a process of its own, and ``driver`` puts them together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accelmetrics.backends.contract import Coverage, Detection, Driver
    from accelmetrics.schemas.identity import DeviceKind
    from accelmetrics.schemas.metric import Metric


class TpuBackend:
    """Google TPUs through their runtime."""

    name = "tpu"
    kind: DeviceKind | None = "tpu"
    interval = 1.0  # beside the readings: a runtime that hangs holds none of them up

    def detect(self) -> Detection:
        from accelmetrics.backends.tpu.devices import detect

        return detect()

    def open(self) -> Driver:
        from accelmetrics.backends.tpu.driver import TpuDriver

        return TpuDriver()

    def coverage(self) -> Coverage:
        from accelmetrics.backends.tpu.values import COVERAGE

        return COVERAGE

    def own_metrics(self) -> Iterable[Metric]:
        return ()


backend = TpuBackend()
