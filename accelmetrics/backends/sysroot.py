"""The one way to files below ``/sys``, ``/proc`` and ``/dev``.

``ACCELMETRICS_SYSROOT`` puts another directory in front of all of them: a mounted host root in a monitoring container
(``/host``), or a tree of fixtures in a test. It is looked up at every call, which is rare: hot paths keep descriptors.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "ACCELMETRICS_SYSROOT"


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
    found = []
    for entry in list_directory("/sys/bus/pci/devices"):
        base = f"/sys/bus/pci/devices/{entry}"
        if read_text(f"{base}/vendor") == vendor and (not classes or (read_text(f"{base}/class") or "").startswith(classes)):
            found.append(entry)
    return found


def list_directory(path: str) -> list[str]:
    """Names in a system directory, sorted; empty when it is not there."""
    try:
        return sorted(os.listdir(sysroot() + path))  # noqa: PTH208 - names alone are wanted
    except OSError:
        return []
