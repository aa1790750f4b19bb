"""Apple silicon: the GPU, and metrics of the chip that the host backend does not give on macOS.

macOS has no single source of power for all users, so several sources are merged metric by metric, best first: ``macmon`` (a tool that users
install; everything except the GPU's memory), ``ioreg`` (always installed, needs no rights; utilisation and memory) and, without macmon,
``powermetrics`` (root only; power and clocks). See :mod:`~accelmetrics.backends.apple.sources`.

The host backend gives ``cpu.avg_temp`` and ``cpu.powerWatts`` too, but only on Linux. On a Mac they come from this backend, and its values
replace the host's reasons.

Tested with stand-ins for these commands only, never on a real Mac.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from accelmetrics.backends.contract import Coverage, Detection
from accelmetrics.schemas.errors import Reason, SourceError

if TYPE_CHECKING:
    from accelmetrics.backends.kit.polled import PolledDriver
    from accelmetrics.schemas.identity import DeviceKind
    from accelmetrics.schemas.metric import Metric

DIRECTORIES = ("/opt/homebrew/bin", "/usr/local/bin", "/opt/local/bin", os.path.expanduser("~/.cargo/bin"))  # noqa: PTH111 - never raises
"""Directories where package managers install commands."""
INSTALL_MACMON = "for power, temperature and clocks without root: brew install macmon"


class AppleBackend:
    """The GPU of an Apple chip, and the chip around it. Detection loads nothing else on other machines."""

    name = "apple"
    kind: ClassVar[DeviceKind | None] = "gpu"
    interval = 1.0  # the interval at which macmon prints

    def detect(self) -> Detection:
        """Look at the kernel's name, and whether macmon is installed. Starts nothing."""
        if not hasattr(os, "uname"):
            return Detection(False, "this system: not macOS on Apple silicon")
        kernel = os.uname()
        if kernel.sysname != "Darwin":
            return Detection(False, f"{kernel.sysname} {kernel.machine}: not macOS on Apple silicon")
        # A program that Rosetta translates sees an Intel processor in `machine`.
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
        from accelmetrics.backends.apple.sources import POLLED

        return POLLED.open()

    def coverage(self) -> Coverage:
        from accelmetrics.backends.apple.sources import POLLED

        return POLLED.coverage()

    def own_metrics(self) -> Iterable[Metric]:
        return ()


backend = AppleBackend()
