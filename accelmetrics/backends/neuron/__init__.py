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
from collections.abc import Collection
from functools import partial

from accelmetrics.backends.contract import MOST_DEVICES, SYSTEM_CLOCK, Clock, Coverage, Detection, Driver
from accelmetrics.backends.kit.sources import Open, SourcesBackend
from accelmetrics.backends.kit.system import find_nodes, find_pci, list_directory, read_text, system_path
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.text import counted

TOOL = "neuron-monitor"
DIRECTORIES = ("/opt/aws/neuron/bin",)
"""Where the vendor's packages put the tool, which is on no ``PATH`` by itself."""
PERIOD = 1.0
"""Seconds between two reports."""
ROOT = "/sys/devices/virtual/neuron_device"
PARTS = ("stats/other_info", "stats/memory_usage/device_mem")
"""Below a core's directory, where drivers before 2.31 keep its counters."""
MOVED = "neuron driver 2.31 moved counters, and only neuron-monitor is read there"

PCI = (*(f"1d0f:{device}" for device in ("7064", "7065", "7066", "7067", "7164", "7264", "7364")), "1d0f:*:12")
"""Inferentia, Trainium, Inferentia2, Trainium2, and what calls itself a processing accelerator, as older chips do not."""
NODE = "/dev/neuron0"
"""The first chip's; a container may have been given others alone."""
LOAD_DRIVER = "load the kernel driver: sudo modprobe neuron (package aws-neuronx-dkms)"
INSTALL_TOOL = "install neuron-monitor: package aws-neuronx-tools"
PASS_DEVICE = "in a container, start it with --device=/dev/neuron0"


def chips() -> dict[int, dict[int, str]]:
    """Return, by the number of each chip that the driver shows, the directories of its cores.

    Cores are numbered as the tool numbers them without joined cores: chip by chip.
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
    """Return the core that ``LOCAL_RANK`` stands for; None where it is unset, no number, or no core has that number."""
    rank = _number(os.environ.get("LOCAL_RANK", "").strip(), -1)
    return rank if rank in cores else None


def detect() -> Detection:
    """Look at the driver's tree, the device nodes and the PCI bus.

    The driver's tree tells how many cores there are, which is how many devices; without it each chip counts as one, since a chip
    that is there and cannot be read is to be told as that.
    """
    found, nodes = chips(), find_nodes(["/dev/neuron*"])
    if found:
        paths = [path for cores in found.values() for path in cores.values()]
        words = f"{counted(len(found), 'Neuron device')} with {counted(len(paths), 'core')} in {ROOT}" + ("" if nodes else f", no {NODE}")
        if not any(all(system_path(f"{path}/{part}").is_dir() for part in PARTS) for path in paths):
            words += f"; counters are not where they are looked for: {MOVED}"
        return Detection(True, words, len(paths), "" if nodes else PASS_DEVICE)
    addresses = find_pci(PCI)
    if nodes:
        return Detection(True, f"{nodes[0]} is there; the driver shows no counters in {ROOT}", max(len(addresses), 1))
    if addresses:
        words = f"{counted(len(addresses), 'Neuron device')} on the PCI bus ({', '.join(addresses)}), but the driver is not loaded"
        return Detection(True, words, len(addresses), LOAD_DRIVER)
    return Detection(False, f"no accelerator of AWS (0x1d0f) on the PCI bus, no {NODE}")


def open_monitor(clock: Clock, period: float = PERIOD) -> Driver:
    """Start the tool."""
    from accelmetrics.backends.neuron import monitor, sysfs

    return monitor.polled(clock, period, (sysfs.POWER_SOURCE,)).open()


def open_sysfs(clock: Clock) -> Driver:
    """Read the driver's counters."""
    from accelmetrics.backends.neuron import sysfs

    return sysfs.polled(clock).open()


def open_best(clock: Clock, period: float = PERIOD) -> Driver:
    """Start the tool where it may be run; else read the driver's counters."""
    from accelmetrics.backends.kit.commands import find, may_run

    tool = find(TOOL, DIRECTORIES)
    if tool is not None and may_run(tool):
        return open_monitor(clock, period)
    if chips():
        return open_sysfs(clock)
    if tool is not None:
        raise SourceError(Reason.NO_PERMISSION, f"{tool} may not be executed by this user")
    words = f"{TOOL} is neither on PATH nor in {DIRECTORIES[0]}, and {ROOT} is not there"
    advice = INSTALL_TOOL if detect().present else f"{LOAD_DRIVER}; {INSTALL_TOOL}"  # what detection advises comes first
    raise SourceError(Reason.DRIVER_UNAVAILABLE, words, advice=advice)


def coverage() -> Coverage:
    """Return what the tool prints, and what of it the driver counts too."""
    from accelmetrics.backends.kit.fields import joined_words
    from accelmetrics.backends.neuron import monitor, sysfs

    both = [made.coverage() for made in (monitor.polled(), sysfs.polled())]
    devices, machine, optional = (
        joined_words(pair for each in both for pair in getattr(each, part).items()) for part in ("devices", "machine", "optional")
    )
    return Coverage(devices, machine=machine, optional=optional)


def neuron_backend(clock: Clock = SYSTEM_CLOCK, period: float = PERIOD) -> SourcesBackend:
    """Make the backend of NeuronCores, through the tool or the driver's counters.

    Args:
        clock: Where ages and rates are taken from.
        period: Seconds between two reports of the tool. The counters are read when asked.
    """
    sources: dict[str, Open] = {TOOL: partial(open_monitor, period=period), "sysfs": open_sysfs}
    return SourcesBackend(
        "neuron", "trn", sources, default=(partial(open_best, period=period),), detect=detect, coverage=coverage, clock=clock
    )


backend = neuron_backend()
