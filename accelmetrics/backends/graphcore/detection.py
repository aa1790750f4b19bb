"""Whether IPUs can be read here: PCI cards and device nodes, and whether ``gcipuinfo`` could be imported.

The module is looked for and not imported: importing it loads the vendor's library. It alone is reason enough to try, since
the IPUs of an IPU-Machine are reached over the network and show neither on the PCI bus nor below ``/dev``.
"""

from __future__ import annotations

import re
from importlib.util import find_spec

from accelmetrics.backends.contract import Detection
from accelmetrics.backends.graphcore.library import INSTALL, MODULE, PASS_DEVICES
from accelmetrics.backends.kit.sysroot import list_directory, pci_devices

VENDOR = "0x1d95"

_NODE = re.compile(r"ipu\d+", re.ASCII)


def detect() -> Detection:
    """Look at the PCI bus, the device nodes and the import path."""
    cards = pci_devices(VENDOR)
    nodes = [name for name in list_directory("/dev") if _NODE.fullmatch(name)]
    found = _hardware(cards, nodes)
    # IPUs keep the vendor's own numbers: none need be reserved, the number is for people.
    count = max(len(cards), len(nodes))
    hidden = PASS_DEVICES if cards and not nodes else ""
    if not importable():
        advice = "; ".join(filter(None, (hidden, INSTALL if found else "")))
        return Detection(bool(found), f"{found or _NO_HARDWARE}, no Python module gcipuinfo", count, advice)
    words = f"Python module gcipuinfo, {found or 'none on this PCI bus (IPU-Machines are reached over the network)'}"
    return Detection(True, words, count, hidden)


_NO_HARDWARE = "no device of Graphcore (0x1d95) on the PCI bus, no /dev/ipu*"


def _hardware(cards: list[str], nodes: list[str]) -> str:
    on_bus = f"{_count(len(cards))} on the PCI bus ({', '.join(cards)})" if cards else ""
    below_dev = f"/dev/{', /dev/'.join(nodes)}" if nodes else "no /dev/ipu*" if cards else ""
    return ", ".join(filter(None, (on_bus, below_dev)))


def importable() -> bool:
    """Whether an import of the module would find it."""
    try:
        return find_spec(MODULE) is not None
    except ValueError:  # something of that name was put among the loaded modules by hand
        return False


def _count(number: int) -> str:
    return "1 IPU" if number == 1 else f"{number} IPUs"
