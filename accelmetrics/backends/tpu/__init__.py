"""Google TPUs.

The chips are found on the PCI bus. Their metrics come from the runtime inside the program that holds them, and exist only while a program
does. ``devices`` looks at the machine, ``runtime`` asks the runtimes over gRPC and parses the answers, ``values`` turns the answers into
metrics, ``sdk`` asks libtpu in a child process, and ``driver`` combines them.
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
    interval = 1.0  # read in the background, so that a runtime that hangs delays no reading

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
