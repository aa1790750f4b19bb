"""Unified memory: where GPU and CPU share theirs, NVML has no memory to report and the host's is the device's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from accelmetrics.backends.contract import Block
from accelmetrics.backends.kit.system import read_text
from accelmetrics.backends.nvidia.errors import NOT_SUPPORTED
from accelmetrics.backends.nvidia.layouts import MEMORY_NAMES
from accelmetrics.backends.nvidia.library import Library
from accelmetrics.schemas.reasons import Reason, Unavailable

_LINE = re.compile(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", re.MULTILINE)
_MISSING = dict.fromkeys(
    MEMORY_NAMES, Unavailable(Reason.NOT_SUPPORTED, "the device shares the host's memory, and /proc/meminfo cannot be read")
)


class HostMemory(NamedTuple):
    """The host's memory in bytes, without swap."""

    total: int
    available: int


class DeviceMemory(NamedTuple):
    """What NVML says of a device's memory at enumeration.

    Attributes:
        total: Bytes, None where the question failed.
        unified: Whether the device has none of its own.
    """

    total: int | None
    unified: bool = False


def ask_memory(library: Library, handle: Any) -> DeviceMemory:
    """The device's memory. ``NVMLError`` other than "not supported" is the caller's to handle."""
    nvml = library.nvml
    try:
        total = int(_memory_info(library, handle).total)
    except nvml.NVMLError as error:
        if error.value != NOT_SUPPORTED:
            raise
        total = 0
    if total:
        return DeviceMemory(total)
    host = host_memory()
    return DeviceMemory(host.total if host else None, True)


def _memory_info(library: Library, handle: Any) -> Any:
    # The same function that readings use: what it does not support must not be found in its older form.
    version = library.nvml.nvmlMemory_v2 if library.function("nvmlDeviceGetMemoryInfo_v2") else None
    return library.ask("nvmlDeviceGetMemoryInfo", handle, *([] if version is None else [version]))


def host_memory() -> HostMemory | None:
    """The host's memory, None where ``/proc/meminfo`` does not say."""
    found = dict(_LINE.findall(read_text("/proc/meminfo") or ""))
    if "MemTotal" not in found or "MemAvailable" not in found or not int(found["MemTotal"]):
        return None
    return HostMemory(int(found["MemTotal"]) * 1024, int(found["MemAvailable"]) * 1024)


def unified_block() -> tuple[Block, Mapping[str, Unavailable]]:
    """The memory metrics of a device that shares the host's: total, and total less what is still available."""
    host = host_memory()
    if host is None:
        return Block((), ()), _MISSING
    used = host.total - host.available
    return Block(MEMORY_NAMES, (used / host.total * 100, used, host.total, host.available)), {}
