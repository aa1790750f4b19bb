"""The host: CPU, memory, disks, network and the watched process, measured against the limits of its cgroup.

``drivers`` assembles the collectors. ``collector`` has the table of keys, the reader and the driver. Each other file has one
subject: memory, processor, processes, disks and network. ``references`` reads the same values with psutil, for ``accelmetrics verify``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence

from accelmetrics.backends.contract import Coverage, Detection, Driver, ReadOptions, Reference
from accelmetrics.backends.guard import counted_at
from accelmetrics.schemas.identity import DeviceKind
from accelmetrics.schemas.metric import Metric

# A variable rather than `sys.platform` in the conditions: mypy would check only the branch of its own platform.
_ON_LINUX: bool = sys.platform.startswith("linux")


class HostBackend:
    """The machine itself: exactly one unit, with whole keys as names."""

    name = "host"
    kind: DeviceKind | None = None
    interval = 0.0

    def detect(self) -> Detection:
        system = f"{os.uname().sysname} {os.uname().release}" if hasattr(os, "uname") else sys.platform
        words = [system, f"{os.cpu_count()} CPUs"]
        if _ON_LINUX:
            from accelmetrics.backends.host.memory import limits_in_words

            words.append(limits_in_words(os.getpid()))
        return Detection(present=True, evidence=", ".join(words))

    def open(self) -> Driver:
        if _ON_LINUX:
            from accelmetrics.backends.host.drivers import linux_driver

            # While a recorded machine is replayed, the clock stands still, so that no rate is computed from recorded
            # counters.
            return linux_driver(lambda: counted_at(time.monotonic()))
        from accelmetrics.backends.host.drivers import portable_driver

        return portable_driver()

    def coverage(self) -> Coverage:
        from accelmetrics.backends.host.collector import GROUPS, pace_of

        found = {key: f"{words}, every {pace_of(group):g} s" for group, keys in GROUPS.items() for key, words in keys.items()}
        instances = {key: words for key, words in found.items() if "{" in key}
        return Coverage(machine={key: words for key, words in found.items() if key not in instances}, optional=instances)

    def own_metrics(self) -> Iterable[Metric]:
        return ()

    def references(self, options: ReadOptions) -> Sequence[Reference]:
        """Return psutil as the only reference."""
        from accelmetrics.backends.host.references import Psutil

        return (Psutil(options),)


backend = HostBackend()
