"""AWS Trainium and Inferentia. Each NeuronCore is a device ``trn.{core}`` with the number that the vendor's tool uses.

There are two sources. ``neuron-monitor`` runs as one supervised child and prints a report per period
(:mod:`~accelmetrics.backends.neuron.monitor`). If it is not installed or may not be run, the driver's counters in sysfs are read
(:mod:`~accelmetrics.backends.neuron.sysfs`). They need no process and no rights, but do not tell which program uses a core. A tool that
runs and fails is reported as failing; sysfs does not replace it.

Detection looks at the driver's sysfs tree, the device nodes and PCI device ids. Amazon's vendor id alone proves nothing, since every
network card and disk of an EC2 instance has it.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from accelmetrics.backends.contract import MOST_DEVICES, Clock, Coverage, Detection, Driver
from accelmetrics.backends.kit.sources import SourcesBackend
from accelmetrics.backends.kit.system import find_nodes, find_pci, list_directory, read_text, system_path
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.text import counted

TOOL = "neuron-monitor"
DIRECTORIES = ("/opt/aws/neuron/bin",)
"""Directory of the vendor's packages, which is on no default ``PATH``."""
PERIOD = 1.0
"""Seconds between two reports of the tool."""
ROOT = "/sys/devices/virtual/neuron_device"
PARTS = ("stats/other_info", "stats/memory_usage/device_mem")
"""Directories below a core's directory with the counters of drivers before 2.31."""
MOVED = "neuron driver 2.31 moved counters, and they are read only through neuron-monitor"

PCI = (*(f"1d0f:{device}" for device in ("7064", "7065", "7066", "7067", "7164", "7264", "7364")), "1d0f:*:12")
"""Inferentia, Trainium, Inferentia2, Trainium2, and any device of class 12 (processing accelerator). Older chips have another class, so
they are listed by id.
"""
NODE = "/dev/neuron0"
"""Node of the first chip. A container may have been given only other ones."""
LOAD_DRIVER = "load the kernel driver: sudo modprobe neuron (package aws-neuronx-dkms)"
INSTALL_TOOL = "install neuron-monitor: package aws-neuronx-tools"
PASS_DEVICE = "in a container, start it with --device=/dev/neuron0"


def chips() -> dict[int, dict[int, str]]:
    """Return for each chip that the driver shows the directories of its cores by core number.

    Cores are numbered chip by chip, as ``neuron-monitor`` numbers them if no cores are joined.
    """
    found = {}
    for index in _numbered(ROOT, "neuron"):
        path = f"{ROOT}/neuron{index}"
        numbers = _numbered(path, "neuron_core")
        each = min(_number(read_text(f"{path}/core_count") or "", len(numbers)), MOST_DEVICES)
        found[index] = {index * each + number: f"{path}/neuron_core{number}" for number in numbers}
    return found


def _numbered(directory: str, prefix: str) -> list[int]:
    names = (name.removeprefix(prefix) for name in list_directory(directory) if name.startswith(prefix))
    return sorted(number for name in names if 0 <= (number := _number(name, -1)) < MOST_DEVICES)


def _number(printed: str, otherwise: int) -> int:
    return int(printed) if printed.isascii() and printed.isdecimal() and len(printed) < 6 else otherwise


def picked_core(cores: Collection[int]) -> int | None:
    """Return the core with the number in ``LOCAL_RANK``; None if it is unset, no number, or no core has it."""
    rank = _number(os.environ.get("LOCAL_RANK", "").strip(), -1)
    return rank if rank in cores else None


def detect() -> Detection:
    """Look at the driver's tree, the device nodes and the PCI bus.

    The driver's tree shows the number of cores, which is the number of devices. Without it each chip counts as one device.
    """
    found, nodes = chips(), find_nodes(["/dev/neuron*"])
    if found:
        paths = [path for cores in found.values() for path in cores.values()]
        words = f"{counted(len(found), 'Neuron device')} with {counted(len(paths), 'core')} in {ROOT}" + ("" if nodes else f", no {NODE}")
        if not any(all(system_path(f"{path}/{part}").is_dir() for part in PARTS) for path in paths):
            words += f"; counters are not in the expected place: {MOVED}"
        return Detection(True, words, len(paths), "" if nodes else PASS_DEVICE)
    addresses = find_pci(PCI)
    # Chips that exist but cannot be read still count as devices, so that opening fails with a reason.
    if nodes:
        return Detection(True, f"{nodes[0]} is there; the driver shows no counters in {ROOT}", max(len(addresses), 1))
    if addresses:
        words = f"{counted(len(addresses), 'Neuron device')} on the PCI bus ({', '.join(addresses)}), but the driver is not loaded"
        return Detection(True, words, len(addresses), LOAD_DRIVER)
    return Detection(False, f"no accelerator of AWS (0x1d0f) on the PCI bus, no {NODE}")


def open_monitor(clock: Clock, period: float = PERIOD) -> Driver:
    """Start ``neuron-monitor`` and return its driver."""
    from accelmetrics.backends.neuron import monitor, sysfs

    return monitor.polled(clock, period, (sysfs.POWER_SOURCE,)).open()


def open_sysfs(clock: Clock) -> Driver:
    """Return the driver of the counters in sysfs."""
    from accelmetrics.backends.neuron import sysfs

    return sysfs.polled(clock).open()


def open_best(clock: Clock, period: float = PERIOD) -> Driver:
    """Start the tool if this user may run it; else read the driver's counters."""
    from accelmetrics.backends.kit.commands import find, may_run

    tool = find(TOOL, DIRECTORIES)
    # A tool that starts and fails raises here. sysfs does not replace it, because it has fewer metrics.
    if tool is not None and may_run(tool):
        return open_monitor(clock, period)
    if chips():
        return open_sysfs(clock)
    if tool is not None:
        raise SourceError(Reason.NO_PERMISSION, f"{tool} may not be executed by this user")
    words = f"{TOOL} is neither on PATH nor in {DIRECTORIES[0]}, and {ROOT} is not there"
    advice = INSTALL_TOOL if detect().present else f"{LOAD_DRIVER}; {INSTALL_TOOL}"  # the same order as in the advice of detect()
    raise SourceError(Reason.DRIVER_UNAVAILABLE, words, advice=advice)


def coverage() -> Coverage:
    """Return the metrics of both sources, with the words of each source."""
    from accelmetrics.backends.kit.fields import joined_words
    from accelmetrics.backends.neuron import monitor, sysfs

    both = [made.coverage() for made in (monitor.polled(), sysfs.polled())]
    devices, machine, optional = (
        joined_words(pair for each in both for pair in getattr(each, part).items()) for part in ("devices", "machine", "optional")
    )
    return Coverage(devices, machine=machine, optional=optional)


backend = SourcesBackend("neuron", "trn", {TOOL: open_monitor, "sysfs": open_sysfs}, default=(open_best,), detect=detect, coverage=coverage)
