"""Is there NVIDIA hardware here? Answered from the loader, the PCI bus and the device nodes; no driver is initialised."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

from accelmetrics.backends.contract import Detection
from accelmetrics.backends.kit.system import pci_devices, read_text, system_path

VENDOR = "0x10de"
GPU_CLASSES = ("0x0300", "0x0302")
"""VGA and 3D controllers. Audio and USB functions on the same board have other classes."""
CONTROL = "/dev/nvidiactl"
WSL = "/dev/dxg"
CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
_VERSION = re.compile(r"(?:Kernel Module(?: for \S+)?)\s+(\d[\d.]*)")
_START = (
    "start the container with its GPUs: `docker run --gpus all`, `podman run --device nvidia.com/gpu=all`, nvidia.com/gpu in Kubernetes"
)


def detect() -> Detection:
    """Look for the library and for GPUs on the PCI bus."""
    name = library_name()
    library = any(map(_loads, _candidates(name)))
    gpus = len(pci_devices(VENDOR, GPU_CLASSES))
    on_the_bus = f"{gpus} NVIDIA GPU{'s' if gpus > 1 else ''}" if gpus else "no NVIDIA GPU"
    evidence = f"{name} {'loads' if library else 'is not installed'}; {on_the_bus} on the PCI bus"
    present = library or gpus > 0
    return Detection(present, evidence, gpus, advise(library) if present else "")


def library_name() -> str:
    """Return the file name of the library."""
    return "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"


def _candidates(name: str) -> list[str]:
    """List what pynvml tries: a name for the loader, and on Windows the two places where drivers put it."""
    if sys.platform == "win32":
        system = Path(os.environ.get("WINDIR", "C:/Windows"), "System32", name)
        programs = Path(os.environ.get("PROGRAMFILES", "C:/Program Files"), "NVIDIA Corporation", "NVSMI", name)
        return [str(system), str(programs)]
    return [name]


def _loads(path: str) -> bool:
    """Return whether the loader finds a library. Loading NVML runs no driver code: that begins with ``nvmlInit``."""
    try:
        ctypes.CDLL(path)
    except OSError:
        return False
    return True


def kernel_module_version() -> str:
    """Return the version of the loaded kernel module (``535.161.07``), empty while none is."""
    found = _VERSION.search(read_text("/proc/driver/nvidia/version") or "")
    return found.group(1) if found else ""


def advise(library: bool) -> str:
    """Say what to do where the library, or else its device nodes, are missing; empty when both are there."""
    if library and (sys.platform != "linux" or system_path(CONTROL).exists() or system_path(WSL).exists()):
        return ""
    asked = os.environ.get("NVIDIA_VISIBLE_DEVICES")
    if asked in ("", "void", "none"):
        return f"NVIDIA_VISIBLE_DEVICES is {asked!r}: the container asks for no GPU; set it to `all`"
    if any(system_path(mark).exists() for mark in CONTAINER_MARKS) or os.environ.get("KUBERNETES_SERVICE_HOST"):
        return f"{CONTROL} is missing: {_START}" if library else f"{_START} (the NVIDIA container toolkit then brings the library in)"
    if not library:
        return "install the NVIDIA driver for this system; it brings libnvidia-ml.so.1"
    if kernel_module_version():
        return f"the kernel module is loaded and {CONTROL} is missing: run `nvidia-modprobe -c 0 -u` or nvidia-smi once as root"
    return "load the driver's kernel module (`modprobe nvidia`), or install the driver that fits the running kernel"
