"""The host: CPU, memory, disks, network and the watched process, with the cgroup's limits.

A folder of small files, one per group of keys: ``linux`` puts the parts together, ``part`` says what a part is, ``files``
keeps descriptors open, ``numbers`` holds the counters from which each reader takes its own differences.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from accelmetrics.backends.contract import Coverage, Detection, Driver, catalogued
from accelmetrics.schemas.identity import DeviceKind
from accelmetrics.schemas.metric import Metric

# Asked at run time and kept in a name: both branches are type-checked on every platform.
_ON_LINUX: bool = sys.platform.startswith("linux")


def _system_words() -> str:
    if not hasattr(os, "uname"):
        return sys.platform
    system = os.uname()
    return f"{system.sysname} {system.release}"


class HostBackend:
    """The machine itself: exactly one unit, whose names are whole keys."""

    name = "host"
    kind: DeviceKind | None = None
    interval = 0.0

    def detect(self) -> Detection:
        words = [_system_words(), f"{os.cpu_count()} CPUs"]
        if _ON_LINUX:
            from accelmetrics.backends.host.evidence import cgroup_words

            words.append(cgroup_words(os.getpid()))
        return Detection(present=True, evidence=", ".join(words))

    def open(self) -> Driver:
        if _ON_LINUX:
            from accelmetrics.backends.host.linux import LinuxDriver

            return LinuxDriver()
        from accelmetrics.backends.host.portable import PortableDriver

        return PortableDriver()

    def coverage(self) -> Coverage:
        return catalogued(self.name)

    def own_metrics(self) -> Iterable[Metric]:
        return ()


backend = HostBackend()
