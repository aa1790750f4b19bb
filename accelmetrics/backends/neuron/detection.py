"""Whether Neuron devices are on this machine: by PCI ids, the device node and the driver's sysfs tree.

Amazon's vendor id alone says nothing: every network card and disk of an EC2 instance carries it.
"""

from __future__ import annotations

import re

from accelmetrics.backends.contract import Detection
from accelmetrics.backends.kit.system import list_directory, pci_devices, read_text
from accelmetrics.backends.neuron import sysfs

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
    addresses = _on_bus()
    if node:
        return Detection(True, f"{node} is there; the driver shows no counters in {sysfs.ROOT}", max(len(addresses), 1))
    if addresses:
        words = f"{_count(len(addresses), 'Neuron device')} on the PCI bus ({', '.join(addresses)}), but the driver is not loaded"
        return Detection(True, words, len(addresses), LOAD_DRIVER)
    return Detection(False, f"no accelerator of AWS ({VENDOR}) on the PCI bus, no {NODE}")


def nodes() -> list[str]:
    """The device nodes: where there is one, the driver is loaded."""
    return [f"/dev/{name}" for name in list_directory("/dev") if _NODE.fullmatch(name)]


def _on_bus() -> list[str]:
    found = []
    for address in pci_devices(VENDOR):
        base = f"/sys/bus/pci/devices/{address}"
        if read_text(f"{base}/device") in CHIPS or (read_text(f"{base}/class") or "").startswith(ACCELERATOR):
            found.append(address)
    return found


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
