"""What each NVML return code means: the one table from codes to reasons, words and advice.

The codes are those of ``nvmlReturn_t`` in NVIDIA's header. They are written down here rather than taken from the Python
binding, so that a binding older than the driver does not leave a code without a meaning.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple, NoReturn

from accelmetrics.schemas.errors import DriverGoneError, SourceError
from accelmetrics.schemas.reasons import Reason, Unavailable

BACKEND = "nvidia"

SUCCESS = 0
UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
LIB_RM_VERSION_MISMATCH = 18
GPU_NOT_FOUND = 28

GONE = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH})
"""Answers after which only opening the driver again can help."""
NO_DEVICE = frozenset({NOT_FOUND, GPU_NOT_FOUND})
"""Answers of ``nvmlInit`` on a machine whose driver has no GPU."""


class Meaning(NamedTuple):
    """One NVML return code.

    Attributes:
        symbol: Its name in the header.
        reason: The reason under which a value goes missing because of it.
        words: What it says, in words.
        advice: What can be done about it, if anything can.
    """

    symbol: str
    reason: Reason
    words: str
    advice: str = ""


_LOAD = "load the driver's kernel module (`modprobe nvidia`), or install the driver that fits the running kernel"
_PERMIT = "run as a user who may read /dev/nvidia*, or ask for the permission that the driver wants (root, CAP_SYS_ADMIN)"
_CONTAINER = "start the container with its GPUs (`docker run --gpus all`), and check that its device cgroup allows /dev/nvidia*"
_RESET = "stop what runs on the GPU and reset it (`nvidia-smi --gpu-reset -i N`), or reboot"
_LOST = "look for Xid messages in the kernel log; the GPU comes back with a reset or a reboot, if the hardware is sound"

MEANINGS: dict[int, Meaning] = {
    1: Meaning("NVML_ERROR_UNINITIALIZED", Reason.DRIVER_UNAVAILABLE, "the driver's library is not initialised"),
    2: Meaning("NVML_ERROR_INVALID_ARGUMENT", Reason.DRIVER_ERROR, "the driver refuses the call's arguments"),
    3: Meaning("NVML_ERROR_NOT_SUPPORTED", Reason.NOT_SUPPORTED, "this GPU does not have it"),
    4: Meaning("NVML_ERROR_NO_PERMISSION", Reason.NO_PERMISSION, "this user may not ask the driver", _PERMIT),
    5: Meaning("NVML_ERROR_ALREADY_INITIALIZED", Reason.DRIVER_ERROR, "the library was initialised before"),
    6: Meaning("NVML_ERROR_NOT_FOUND", Reason.DRIVER_ERROR, "the driver does not find what was asked for"),
    7: Meaning("NVML_ERROR_INSUFFICIENT_SIZE", Reason.DRIVER_ERROR, "the answer did not fit"),
    8: Meaning("NVML_ERROR_INSUFFICIENT_POWER", Reason.DRIVER_ERROR, "the GPU's power cables are not attached properly"),
    9: Meaning("NVML_ERROR_DRIVER_NOT_LOADED", Reason.DRIVER_UNAVAILABLE, "the NVIDIA kernel driver is not loaded", _LOAD),
    10: Meaning("NVML_ERROR_TIMEOUT", Reason.TIMED_OUT, "the driver gave up waiting for the GPU"),
    11: Meaning("NVML_ERROR_IRQ_ISSUE", Reason.DRIVER_ERROR, "the kernel driver has trouble with the GPU's interrupts"),
    12: Meaning("NVML_ERROR_LIBRARY_NOT_FOUND", Reason.DRIVER_UNAVAILABLE, "the driver's library is not installed"),
    13: Meaning("NVML_ERROR_FUNCTION_NOT_FOUND", Reason.NOT_SUPPORTED, "the installed driver does not have this function"),
    14: Meaning("NVML_ERROR_CORRUPTED_INFOROM", Reason.DRIVER_ERROR, "the GPU's infoROM is corrupted"),
    15: Meaning("NVML_ERROR_GPU_IS_LOST", Reason.DEVICE_LOST, "the GPU has fallen off the bus or cannot be reached", _LOST),
    16: Meaning("NVML_ERROR_RESET_REQUIRED", Reason.RESET_REQUIRED, "the GPU must be reset before it answers", _RESET),
    17: Meaning("NVML_ERROR_OPERATING_SYSTEM", Reason.NO_PERMISSION, "the operating system or a cgroup blocks the GPU", _CONTAINER),
    18: Meaning("NVML_ERROR_LIB_RM_VERSION_MISMATCH", Reason.DRIVER_UNAVAILABLE, "kernel module and library are of different versions"),
    19: Meaning("NVML_ERROR_IN_USE", Reason.DRIVER_ERROR, "the GPU is in use"),
    20: Meaning("NVML_ERROR_MEMORY", Reason.DRIVER_ERROR, "the driver is out of memory"),
    21: Meaning("NVML_ERROR_NO_DATA", Reason.DRIVER_ERROR, "the driver has no data"),
    22: Meaning("NVML_ERROR_VGPU_ECC_NOT_SUPPORTED", Reason.NOT_SUPPORTED, "not available while ECC is on"),
    23: Meaning("NVML_ERROR_INSUFFICIENT_RESOURCES", Reason.DRIVER_ERROR, "the driver is out of resources"),
    24: Meaning("NVML_ERROR_FREQ_NOT_SUPPORTED", Reason.NOT_SUPPORTED, "this GPU does not have the clock"),
    25: Meaning("NVML_ERROR_ARGUMENT_VERSION_MISMATCH", Reason.NOT_SUPPORTED, "the installed driver knows another form of the call"),
    26: Meaning("NVML_ERROR_DEPRECATED", Reason.NOT_SUPPORTED, "the installed driver has given the function up"),
    27: Meaning("NVML_ERROR_NOT_READY", Reason.DRIVER_ERROR, "the system is not ready"),
    28: Meaning("NVML_ERROR_GPU_NOT_FOUND", Reason.DEVICE_LOST, "the driver does not find the GPU", _LOST),
    29: Meaning("NVML_ERROR_INVALID_STATE", Reason.DRIVER_ERROR, "the GPU is not in a state to answer"),
    30: Meaning("NVML_ERROR_RESET_TYPE_NOT_SUPPORTED", Reason.NOT_SUPPORTED, "this GPU does not have the kind of reset"),
    999: Meaning("NVML_ERROR_UNKNOWN", Reason.DRIVER_ERROR, "an internal error of the driver"),
}


def meaning(code: int) -> Meaning:
    """What a return code means; codes of a newer driver are an error without a name."""
    return MEANINGS.get(code) or Meaning(f"NVML error {code}", Reason.DRIVER_ERROR, "an error that is newer than this table")


@cache
def unavailable(code: int) -> Unavailable:
    """A failed call as the reason of the values that it would have given; the same object for the same code."""
    found = meaning(code)
    plain = code == NOT_SUPPORTED
    return Unavailable(found.reason, found.symbol if plain else f"{found.symbol}: {found.words}")


@cache
def field_unavailable(code: int) -> Unavailable:
    """The same for one field of a batch, where a driver answers INVALID_ARGUMENT for a field that it does not know."""
    if code == INVALID_ARGUMENT:
        return Unavailable(Reason.NOT_SUPPORTED, "NVML_ERROR_INVALID_ARGUMENT: the installed driver does not know the field")
    return unavailable(code)


@cache
def impossible(function: str) -> Unavailable:
    """The reason of a value that cannot be: a sentinel, a utilisation of 4,000 %."""
    return Unavailable(Reason.INVALID_VALUE, f"{function} answered something impossible")


def source_error(code: int, doing: str) -> SourceError:
    """A failure that costs a whole device, or the whole driver."""
    found = meaning(code)
    kind = DriverGoneError if code in GONE else SourceError
    return kind(found.reason, f"{doing}: {found.words} ({found.symbol})", backend=BACKEND, advice=found.advice)


def check_device(code: int, doing: str) -> None:
    """Raise where a call's answer speaks for the whole device or driver, not for the call's own values alone."""
    if code == GPU_IS_LOST or code in GONE:
        fail(code, doing)


def fail(code: int, doing: str) -> NoReturn:
    """Raise the failure."""
    raise source_error(code, doing)
