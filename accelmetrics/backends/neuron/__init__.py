"""AWS Trainium and Inferentia: each NeuronCore is a device ``trn.{core}`` under the tool's own number.

Two sources. ``neuron-monitor`` runs as one supervised child and prints a report per period
(:mod:`~accelmetrics.backends.neuron.monitor`). Where it is not installed, or may not be run, the driver's counters in
sysfs are read (:mod:`~accelmetrics.backends.neuron.sysfs`): they need neither a process nor rights, and know nothing of
which program uses what. A tool that is there and fails is reported as failing, not papered over with the lesser source.
"""

from __future__ import annotations

import os
from typing import ClassVar

from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock
from accelmetrics.backends.contract import Coverage, Detection, Driver
from accelmetrics.backends.kit.commands import find
from accelmetrics.backends.neuron import sysfs
from accelmetrics.backends.neuron.detection import LOAD_DRIVER, detect, nodes
from accelmetrics.backends.neuron.monitor import TOOL, MonitorDriver
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.identity import DeviceKind
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.reasons import Reason

DIRECTORIES = ("/opt/aws/neuron/bin",)
"""Where the vendor's packages put the tool, which is on nobody's ``PATH`` by itself."""
PERIOD = 1.0
"""Seconds between two reports."""


class NeuronBackend:
    """NeuronCores, through the tool or the driver's counters.

    Args:
        clock: Where ages and rates are taken from.
        period: Seconds between two reports of the tool. The counters are read when asked.
    """

    name = "neuron"
    kind: ClassVar[DeviceKind | None] = "trn"

    def __init__(self, clock: Clock = SYSTEM_CLOCK, period: float = PERIOD) -> None:
        self.interval = period
        self._clock = clock

    def detect(self) -> Detection:
        return detect()

    def open(self) -> Driver:
        tool = find(TOOL, DIRECTORIES)
        if tool is not None and os.access(tool, os.X_OK):
            return MonitorDriver(tool, self._clock, self.interval)
        if sysfs.chips():
            return sysfs.SysfsDriver(self._clock)
        if tool is not None:
            raise SourceError(Reason.NO_PERMISSION, f"{tool} may not be executed by this user", backend=self.name)
        raise SourceError(
            Reason.DRIVER_UNAVAILABLE,
            f"{TOOL} is neither on PATH nor in {DIRECTORIES[0]}, and {sysfs.ROOT} is not there",
            backend=self.name,
            advice=sysfs.INSTALL_TOOL if nodes() else f"{LOAD_DRIVER}; {sysfs.INSTALL_TOOL}",
        )

    def coverage(self) -> Coverage:
        from accelmetrics.backends.neuron.coverage import COVERAGE

        return COVERAGE

    def own_metrics(self) -> tuple[Metric, ...]:
        return ()


backend = NeuronBackend()
