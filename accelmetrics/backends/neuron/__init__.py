"""AWS Trainium and Inferentia: each NeuronCore is a device ``trn.{core}`` under the tool's own number.

Two sources. ``neuron-monitor`` runs as one supervised child and prints a report per period
(:mod:`~accelmetrics.backends.neuron.monitor`). Where it is not installed, or may not be run, the driver's counters in
sysfs are read (:mod:`~accelmetrics.backends.neuron.sysfs`): they need neither a process nor rights, and know nothing of
which program uses what. A tool that is there and fails is reported as failing, not papered over with the lesser source.

Detection looks at the driver's sysfs tree, the device nodes and PCI device ids. Amazon's vendor id alone says nothing: every network
card and disk of an EC2 instance carries it.
"""

from __future__ import annotations

import os
import re
from typing import ClassVar

from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock
from accelmetrics.backends.contract import Coverage, Detection, Driver
from accelmetrics.backends.kit.commands import find
from accelmetrics.backends.kit.system import list_directory, pci_devices, read_text
from accelmetrics.backends.neuron import sysfs
from accelmetrics.backends.neuron.monitor import TOOL, MonitorDriver
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.identity import DeviceKind
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.reasons import Reason

DIRECTORIES = ("/opt/aws/neuron/bin",)
"""Where the vendor's packages put the tool, which is on no ``PATH`` by itself."""
PERIOD = 1.0
"""Seconds between two reports."""
VENDOR = "0x1d0f"
ACCELERATOR = "0x12"
"""The PCI class of processing accelerators."""
CHIPS = {
    "0x7064": "Inferentia",
    "0x7065": "Inferentia",
    "0x7066": "Inferentia",
    "0x7067": "Inferentia",
    "0x7164": "Trainium",
    "0x7264": "Inferentia2",
    "0x7364": "Trainium2",
}
"""PCI device ids; older chips call themselves system peripherals, so their class does not tell."""
NODE = "/dev/neuron0"
"""The first chip's; a container may have been given others alone."""
LOAD_DRIVER = "load the kernel driver: sudo modprobe neuron (package aws-neuronx-dkms)"
PASS_DEVICE = "in a container, start it with --device=/dev/neuron0"

_NODE = re.compile(r"neuron\d+", re.ASCII)


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
        from accelmetrics.backends.neuron.totals import COVERAGE

        return COVERAGE

    def own_metrics(self) -> tuple[Metric, ...]:
        return ()


def detect() -> Detection:
    """Look at the driver's tree, the device nodes and the PCI bus.

    The driver's tree tells how many cores there are, which is how many devices; without it each chip counts as one, since a chip
    that is there and cannot be read is to be told as that.
    """
    chips = sysfs.chips()
    cores = sum(len(chip.cores) for chip in chips)
    node = next(iter(nodes()), "")
    if chips:
        words = f"{_count(len(chips), 'Neuron device')} with {_count(cores, 'core')} in {sysfs.ROOT}" + ("" if node else f", no {NODE}")
        return Detection(True, "; ".join(filter(None, (words, sysfs.elsewhere(chips)))), cores, "" if node else PASS_DEVICE)
    addresses = []
    for address in pci_devices(VENDOR):
        base = f"/sys/bus/pci/devices/{address}"
        if read_text(f"{base}/device") in CHIPS or (read_text(f"{base}/class") or "").startswith(ACCELERATOR):
            addresses.append(address)
    if node:
        return Detection(True, f"{node} is there; the driver shows no counters in {sysfs.ROOT}", max(len(addresses), 1))
    if addresses:
        words = f"{_count(len(addresses), 'Neuron device')} on the PCI bus ({', '.join(addresses)}), but the driver is not loaded"
        return Detection(True, words, len(addresses), LOAD_DRIVER)
    return Detection(False, f"no accelerator of AWS ({VENDOR}) on the PCI bus, no {NODE}")


def nodes() -> list[str]:
    """The device nodes: where there is one, the driver is loaded."""
    return [f"/dev/{name}" for name in list_directory("/dev") if _NODE.fullmatch(name)]


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


backend = NeuronBackend()
