"""Backends that the command finds registered while a test of this folder runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelmetrics.backends.contract import Detection, Reading
from accelmetrics.schemas.errors import Reason
from accelmetrics.testing import FakeBackend

Printed = Callable[..., str]
"""Runs a command line that succeeds; returns what it prints."""


class Rig:
    """A scripted vendor with three GPUs, one of which needs an interval for its rate."""

    def __init__(self) -> None:
        self.backend = FakeBackend("rig", devices=3)
        for number in range(3):
            self.backend.device(number).set(powerWatts=100.5 + number, temp=40 + number, memoryTotalBytes=80 * 1024**3)
            self.backend.device(number).miss("fanSpeed", Reason.NOT_SUPPORTED, "passively cooled")

    def rated(self) -> Rig:
        """Let the first GPU give a rate from its second reading on."""
        device = self.backend.device(0)
        device.miss("pcieTxBytes", Reason.NEEDS_INTERVAL, "first reading")
        read = device.read

        def read_and_remember(progress: list[Any]) -> Reading:
            reading = read(progress)
            device.set(pcieTxBytes=1024)
            return reading

        device.read = read_and_remember  # type: ignore[method-assign]  # as a device does whose counter has been read once
        return self

    def empty(self) -> Rig:
        """Let there be nothing."""
        self.backend.detection = Detection(False, "no such card on the bus")
        return self


current = Rig()


def backend() -> FakeBackend:
    """The entry point."""
    return current.backend
