"""Is there NVIDIA hardware here? Answered from the loader and the PCI bus; no driver is initialised."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from accelmetrics.backends.contract import Detection
from accelmetrics.backends.kit.system import pci_devices
from accelmetrics.backends.nvidia.machine import missing_devices_advice, missing_library_advice

VENDOR = "0x10de"
GPU_CLASSES = ("0x0300", "0x0302")
"""VGA and 3D controllers. Audio and USB functions on the same board have other classes."""


def detect() -> Detection:
    """Look for the library and for GPUs on the PCI bus."""
    library = library_loads()
    gpus = len(pci_devices(VENDOR, GPU_CLASSES))
    evidence = f"{_library_words(library)}; {_pci_words(gpus)}"
    return Detection(library or gpus > 0, evidence, gpus, _advice(library, gpus))


def library_name() -> str:
    """The library as people know it."""
    return "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"


def library_loads() -> bool:
    """Whether the loader finds NVML. Loading it runs no driver code: that begins with ``nvmlInit``."""
    return any(_loads(candidate) for candidate in _candidates())


def _candidates() -> list[str]:
    """What pynvml tries: a name for the loader, and on Windows the two places where drivers put it."""
    if sys.platform == "win32":
        system = Path(os.environ.get("WINDIR", "C:/Windows"), "System32", "nvml.dll")
        programs = Path(os.environ.get("PROGRAMFILES", "C:/Program Files"), "NVIDIA Corporation", "NVSMI", "nvml.dll")
        return [str(system), str(programs)]
    return [library_name()]


def _loads(path: str) -> bool:
    try:
        ctypes.CDLL(path)
    except OSError:
        return False
    return True


def _library_words(library: bool) -> str:
    return f"{library_name()} loads" if library else f"{library_name()} is not installed"


def _pci_words(gpus: int) -> str:
    if not gpus:
        return "no NVIDIA GPU on the PCI bus"
    return f"{gpus} NVIDIA GPU{'s' if gpus > 1 else ''} on the PCI bus"


def _advice(library: bool, gpus: int) -> str:
    if gpus and not library:
        return missing_library_advice()
    return missing_devices_advice() if library else ""
