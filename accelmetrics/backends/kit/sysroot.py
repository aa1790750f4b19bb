"""The one way to files below ``/sys``, ``/proc`` and ``/dev``.

``ACCELMETRICS_SYSROOT`` puts another directory in front of all of them: a mounted host root in a monitoring container
(``/host``), or a tree of fixtures in a test. It is looked up at every call, which is rare: hot paths keep descriptors.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

VARIABLE = "ACCELMETRICS_SYSROOT"
PCI = "/sys/bus/pci/devices"


def sysroot() -> str:
    """The directory in front of ``/sys``, ``/proc`` and ``/dev``: empty for the machine's own."""
    return os.environ.get(VARIABLE, "").rstrip("/")


def system_path(path: str) -> Path:
    """Where an absolute system path really is."""
    return Path(sysroot() + path)


def read_text(path: str) -> str | None:
    """The text of a system file without the white space around it; None when it is not there or may not be read."""
    try:
        with open(sysroot() + path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - read often, and pathlib keeps every name
            return file.read().strip()
    except OSError:
        return None


def pci_devices(vendor: str, classes: tuple[str, ...] = ()) -> list[str]:
    """PCI addresses of one vendor's devices, in address order.

    Args:
        vendor: The vendor id as sysfs writes it: ``0x10de``.
        classes: Prefixes of class codes to accept, such as ``("0x03", "0x12")``; all when empty.
    """
    found = _BUS.vendors().get(vendor, [])
    return [address for address in found if not classes or (read_text(f"{PCI}/{address}/class") or "").startswith(classes)]


class PciBus:
    """Whose the functions on the PCI bus are: a look that lasts a second, so that one serves every backend that detects.

    There are hundreds of functions in a server, and each vendor's id is a file of its own. A function that came or went is seen
    at once, one that took another's address after that second. There is no lock, which a fork could copy in its locked state:
    what is remembered is replaced whole, and at worst two threads look at the same time.
    """

    LASTS = 1.0

    def __init__(self) -> None:
        self._latest: tuple[object, float, dict[str, list[str]]] = (None, 0.0, {})

    def vendors(self) -> dict[str, list[str]]:
        """By vendor id, the addresses of its functions, in order. Not to be changed."""
        addresses = list_directory(PCI)
        root = sysroot()
        mark, now = (os.getpid(), root, addresses), time.monotonic()
        known, until, found = self._latest
        if known != mark or now >= until:
            found = {}
            for address in addresses:
                found.setdefault(_vendor(f"{root}{PCI}/{address}/vendor"), []).append(address)
            self._latest = (mark, now + self.LASTS, found)
        return found


def _vendor(path: str) -> str:
    """A vendor id; empty when it may not be read."""
    try:
        fd = os.open(path, os.O_RDONLY)  # a third of what a text file costs
    except OSError:
        return ""
    try:
        return os.read(fd, 32).decode("ascii", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(fd)


_BUS = PciBus()


def list_directory(path: str) -> list[str]:
    """Names in a system directory, sorted; empty when it is not there."""
    try:
        return sorted(os.listdir(sysroot() + path))  # noqa: PTH208 - names alone are wanted
    except OSError:
        return []
