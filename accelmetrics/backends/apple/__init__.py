"""Apple silicon: the GPU of the chip, and what else of the chip the host backend does not give.

macOS gives no program power by itself, so there are several sources, merged metric by metric, the best first:
``macmon`` (a program that users install; everything but the GPU's memory), ``ioreg`` (always there, needs no rights; utilisation and
memory) and, where there is no macmon, ``powermetrics`` (for root alone; power and clocks): see
:mod:`~accelmetrics.backends.apple.sources`.

``cpu.avg_temp`` and ``cpu.powerWatts`` are the host backend's names too, which answers on Linux only: on a Mac the values are
this backend's, and where one source has a value the other's reason gives way.

Read on stand-ins for these commands only, never yet on a real Mac.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from accelmetrics.backends.contract import SYSTEM_CLOCK, Coverage, Detection
from accelmetrics.schemas.errors import Reason, SourceError

if TYPE_CHECKING:
    from accelmetrics.backends.kit.polled import PolledBackend, PolledDriver
    from accelmetrics.schemas.identity import DeviceKind
    from accelmetrics.schemas.metric import Metric

DIRECTORIES = ("/opt/homebrew/bin", "/usr/local/bin", "/opt/local/bin", os.path.expanduser("~/.cargo/bin"))  # noqa: PTH111 - never raises
"""Where package managers put what users install."""
INSTALL_MACMON = "for power, temperature and clocks without root: brew install macmon"


class AppleBackend:
    """The GPU of Apple's chips, and the chip around it. Nothing else of it is loaded on other machines."""

    name = "apple"
    kind: ClassVar[DeviceKind | None] = "gpu"
    interval = 1.0  # as macmon prints

    def detect(self) -> Detection:
        """Look at what the kernel is, and whether macmon is there. Nothing is started."""
        if not hasattr(os, "uname"):
            return Detection(False, "this system: not macOS on Apple silicon")
        kernel = os.uname()
        if kernel.sysname != "Darwin":
            return Detection(False, f"{kernel.sysname} {kernel.machine}: not macOS on Apple silicon")
        # A program that is translated (Rosetta) is told of an Intel processor.
        if kernel.machine != "arm64" and "ARM64" not in kernel.version:
            return Detection(False, "a Mac with an Intel processor: only Apple silicon is read")
        from accelmetrics.backends.kit.commands import find

        macmon = find("macmon", DIRECTORIES)
        if macmon is None:
            return Detection(True, "macOS on Apple silicon, no macmon: no power without root", 1, INSTALL_MACMON)
        return Detection(True, f"macOS on Apple silicon, {macmon}", 1)

    def open(self) -> PolledDriver:
        found = self.detect()
        if not found.present:
            raise SourceError(Reason.DRIVER_UNAVAILABLE, found.evidence, backend=self.name)
        return self._polled.open()

    def coverage(self) -> Coverage:
        return self._polled.coverage()

    def own_metrics(self) -> Iterable[Metric]:
        return ()

    @cached_property
    def _polled(self) -> PolledBackend:
        from accelmetrics.backends.apple.sources import polled

        return polled(self.interval, SYSTEM_CLOCK)


backend = AppleBackend()
