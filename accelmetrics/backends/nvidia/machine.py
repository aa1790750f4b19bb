"""What the machine says about NVIDIA without its driver: files, device nodes, the container."""

from __future__ import annotations

import os
import re
import sys

from accelmetrics.backends.kit.system import read_text, system_path

CONTROL = "/dev/nvidiactl"
WSL = "/dev/dxg"
_VERSION = re.compile(r"(?:Kernel Module(?: for \S+)?)\s+(\d[\d.]*)")

_START = (
    "start the container with its GPUs: `docker run --gpus all`, `podman run --device nvidia.com/gpu=all`, nvidia.com/gpu in Kubernetes"
)


def kernel_module_version() -> str:
    """The version of the loaded kernel module (``535.161.07``), empty while none is."""
    found = _VERSION.search(read_text("/proc/driver/nvidia/version") or "")
    return found.group(1) if found else ""


def in_container() -> bool:
    """Whether this process runs in a container, as far as the usual marks tell."""
    marks = ("/.dockerenv", "/run/.containerenv")
    return any(system_path(mark).exists() for mark in marks) or bool(os.environ.get("KUBERNETES_SERVICE_HOST"))


def missing_library_advice() -> str:
    """What to do where the hardware is there and the library is not."""
    if _hidden_by_runtime():
        return f"NVIDIA_VISIBLE_DEVICES is {os.environ['NVIDIA_VISIBLE_DEVICES']!r}: the container asks for no GPU; set it to `all`"
    if in_container():
        return f"{_START} (the NVIDIA container toolkit then brings the library in)"
    return "install the NVIDIA driver for this system; it brings libnvidia-ml.so.1"


def missing_devices_advice() -> str:
    """What to do where the library is there and its device nodes are not; empty when they are there."""
    if sys.platform != "linux" or system_path(CONTROL).exists() or system_path(WSL).exists():
        return ""
    if _hidden_by_runtime():
        return f"NVIDIA_VISIBLE_DEVICES is {os.environ['NVIDIA_VISIBLE_DEVICES']!r}: the container asks for no GPU; set it to `all`"
    if in_container():
        return f"{CONTROL} is missing: {_START}"
    if kernel_module_version():
        return f"the kernel module is loaded and {CONTROL} is missing: run `nvidia-modprobe -c 0 -u` or nvidia-smi once as root"
    return "load the driver's kernel module (`modprobe nvidia`), or install the driver that fits the running kernel"


def _hidden_by_runtime() -> bool:
    return os.environ.get("NVIDIA_VISIBLE_DEVICES") in ("", "void", "none")
