"""NVML's own numbers by name, for tests that configure the simulator."""

from __future__ import annotations

import enum
from typing import cast


class Ret(enum.IntEnum):
    """What an NVML call may answer (`nvmlReturn_t`). As the value of a setting it means: reading this answers that."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999


class ValueType(enum.IntEnum):
    """How a field value is encoded (`nvmlValueType_t`)."""

    DOUBLE = 0
    UNSIGNED_INT = 1
    UNSIGNED_LONG = 2
    UNSIGNED_LONG_LONG = 3
    SIGNED_LONG_LONG = 4
    SIGNED_INT = 5
    UNSIGNED_SHORT = 6


class Location(enum.IntEnum):
    """The index into the `ecc_*` families (`nvmlMemoryLocation_t`)."""

    L1_CACHE = 0
    L2_CACHE = 1
    DRAM = 2
    REGISTER_FILE = 3
    TEXTURE_MEMORY = 4
    TEXTURE_SHM = 5
    CBU = 6
    SRAM = 7


class Threshold(enum.IntEnum):
    """The index into `temp_threshold` (`nvmlTemperatureThresholds_t`)."""

    SHUTDOWN = 0
    SLOWDOWN = 1
    MEM_MAX = 2
    GPU_MAX = 3
    ACOUSTIC_MIN = 4
    ACOUSTIC_CURR = 5
    ACOUSTIC_MAX = 6
    GPS_CURR = 7


class Crash(enum.IntEnum):
    """What a call with a crash rule does to its process."""

    EXIT = 1
    ABORT = 2
    EXIT_NOW = 3
    SEGFAULT = 4


ALL_LINKS = 0xFFFFFFFF
NOT_AVAILABLE = 0xFFFFFFFFFFFFFFFF
"""A process's memory when the driver does not know it (`NVML_VALUE_NOT_AVAILABLE`)."""


def field_id(field: int | str) -> int:
    """The number of a field, given as `NVML_FI_DEV_MEMORY_TEMP`, as `MEMORY_TEMP`, or already a number."""
    return field if isinstance(field, int) else _constant(field, "NVML_FI_DEV_", "NVML_FI_")


def gpm_id(metric: int | str) -> int:
    """The number of a GPM metric, given as `NVML_GPM_METRIC_SM_UTIL`, as `SM_UTIL`, or already a number."""
    return metric if isinstance(metric, int) else _constant(metric, "NVML_GPM_METRIC_")


def _constant(name: str, *prefixes: str) -> int:
    import pynvml

    for candidate in (name, *(prefix + name for prefix in prefixes)):
        if hasattr(pynvml, candidate):
            return cast(int, getattr(pynvml, candidate))
    raise KeyError(f"pynvml knows no {name!r}")
