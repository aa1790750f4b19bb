"""Google TPUs.

The chips are found on the PCI bus. Their metrics come from the runtime inside the program that holds them, and exist only while a program
does. ``devices`` looks at the machine, ``runtime`` asks the runtimes over gRPC and parses the answers, ``values`` turns the answers into
metrics, ``sdk`` asks libtpu in a child process, and ``driver`` combines them.
"""

from __future__ import annotations

from accelmetrics.backends.contract import Clock, Coverage, Driver
from accelmetrics.backends.kit.sources import SourcesBackend
from accelmetrics.backends.tpu.devices import detect


def _open(clock: Clock) -> Driver:
    from accelmetrics.backends.tpu.driver import TpuDriver

    return TpuDriver(clock)


def _coverage() -> Coverage:
    from accelmetrics.backends.tpu.values import COVERAGE

    return COVERAGE


backend = SourcesBackend("tpu", "tpu", {"grpc": _open}, detect=detect, coverage=_coverage)
