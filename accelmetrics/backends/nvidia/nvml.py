"""NVML (``libnvidia-ml.so.1``): the meaning of its return codes, loading it, and single calls for facts about devices.

The kit loads the library, and its functions are called through ``ctypes``. NVIDIA's own binding (nvidia-ml-py) is not imported, which would
be a tenth of the time that a first reading takes, and several MiB: the codes, constants and layouts that are needed here are written down,
and a test holds them equal to the binding's. NVML counts its users, so that another binding in this process goes on undisturbed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, cast

from accelmetrics.backends.kit.library import load_library, loading_failure
from accelmetrics.backends.nvidia import advise, kernel_module_version, library_path
from accelmetrics.backends.nvidia.metrics import MEMORY
from accelmetrics.schemas.errors import DriverGoneError, Reason, SourceError, Unavailable
from accelmetrics.schemas.named_tuple import NamedTuple

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
LOST = GONE | {GPU_IS_LOST}
"""Answers that speak for the whole device or driver, not for the call's own values alone."""


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
_REINSTALL = "install the driver again for this system: `ldd` on the library says what it lacks, `file` for which machine it is"
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
    """Look up a return code; codes of a newer driver are an error without a name."""
    return MEANINGS.get(code) or Meaning(f"NVML error {code}", Reason.DRIVER_ERROR, "an error that is newer than this table")


@cache
def unavailable(code: int) -> Unavailable:
    """Make a failed call's code the reason of its values; the same object for the same code."""
    found = meaning(code)
    plain = code == NOT_SUPPORTED
    return Unavailable(found.reason, found.symbol if plain else f"{found.symbol}: {found.words}")


@cache
def field_unavailable(code: int) -> Unavailable:
    """Give the reason for one field of a batch, where a driver answers INVALID_ARGUMENT for a field that it does not know."""
    if code == INVALID_ARGUMENT:
        return Unavailable(Reason.NOT_SUPPORTED, "NVML_ERROR_INVALID_ARGUMENT: the installed driver does not know the field")
    return unavailable(code)


@cache
def impossible(function: str) -> Unavailable:
    """Make the reason of a value that is impossible: a sentinel, a utilisation of 4,000 %."""
    return Unavailable(Reason.INVALID_VALUE, f"{function} answered something impossible")


def source_error(code: int, doing: str) -> SourceError:
    """Make the error of a failure that costs a whole device, or the whole driver."""
    found = meaning(code)
    kind = DriverGoneError if code in GONE else SourceError
    return kind(found.reason, f"{doing}: {found.words} ({found.symbol})", backend=BACKEND, advice=found.advice)


def check_device(code: int, doing: str) -> None:
    """Raise ``SourceError`` for a code that speaks for the whole device or driver."""
    if code in LOST:
        raise source_error(code, doing)


CONSTANTS = {
    "NVML_TEMPERATURE_GPU": 0,
    "NVML_TEMPERATURE_THRESHOLD_SHUTDOWN": 0,
    "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN": 1,
    "NVML_CLOCK_GRAPHICS": 0,
    "NVML_CLOCK_SM": 1,
    "NVML_CLOCK_MEM": 2,
    "NVML_MEMORY_ERROR_TYPE_CORRECTED": 0,
    "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
    "NVML_VOLATILE_ECC": 0,
    "NVML_AGGREGATE_ECC": 1,
    "NVML_MEMORY_LOCATION_DEVICE_MEMORY": 2,
}
"""Arguments of calls, under the header's names."""
NvmlFunction = Callable[..., int]
Handle = ctypes.c_void_p


def function_not_found(*_arguments: Any) -> int:
    """Answer as NVML does for what the installed driver does not have."""
    return FUNCTION_NOT_FOUND


class Library:
    """NVML, loaded.

    Args:
        loaded: The shared library.
    """

    def __init__(self, loaded: ctypes.CDLL) -> None:
        self._loaded = loaded
        self._functions: dict[str, NvmlFunction] = {}

    def function(self, *names: str) -> NvmlFunction:
        """Look up the first of several exported functions that the driver has; without one, a function that answers as NVML would."""
        for name in names:
            if name not in self._functions:
                with suppress(AttributeError):
                    self._functions[name] = cast("NvmlFunction", self._loaded[name])
            if name in self._functions:
                return self._functions[name]
        return function_not_found

    def has(self, *names: str) -> bool:
        """Return whether the driver has one of these functions."""
        return self.function(*names) is not function_not_found

    def close(self) -> None:
        """Shut NVML down. It counts its users, so another one in this process goes on undisturbed."""
        self.function("nvmlShutdown")()  # a driver that is gone says so, and has nothing left to give back


class Queries:
    """Single calls for facts about devices: one that fails leaves out its own fact alone.

    Args:
        library: The open library.
        progress: Grows with every call.
        fatal: Return codes that are raised as errors.

    Attributes:
        status: The return code of the last call.
        complete: Whether every answer so far is final: given, or known not to exist.
    """

    def __init__(self, library: Library, progress: list[Any], fatal: frozenset[int]) -> None:
        self.status = SUCCESS
        self.complete = True
        self._library = library
        self._progress = progress
        self._fatal = fatal

    def call(self, name: str, *arguments: Any) -> bool:
        """Call a function. Returns: whether it succeeded."""
        self.status = self._library.function(name)(*arguments)
        self._progress.append(name)
        if self.status in self._fatal:
            raise source_error(self.status, name)
        self.complete = self.complete and self.status in (SUCCESS, NOT_SUPPORTED, FUNCTION_NOT_FOUND)
        return self.status == SUCCESS

    def number(self, name: str, *arguments: Any, most: int = 2**32 - 2) -> int | None:
        """Ask for an unsigned number; None where it is not given, or above the most that is possible."""
        answer = ctypes.c_uint()
        return answer.value if self.call(name, *arguments, ctypes.byref(answer)) and answer.value <= most else None

    def text(self, name: str, *arguments: Any) -> str:
        """Ask for a text; empty where it is not given. What is not UTF-8 is replaced."""
        buffer = ctypes.create_string_buffer(LONGEST_TEXT)
        return _decoded(buffer.raw) if self.call(name, *arguments, buffer, LONGEST_TEXT) else ""

    def handle(self, name: str, *arguments: Any) -> Handle | None:
        """Ask for a handle."""
        found = Handle()
        return found if self.call(name, *arguments, ctypes.byref(found)) else None

    def pci_bus_id(self, handle: Handle) -> str:
        """Ask for a GPU's PCI address, as NVML writes it: ``00000000:C1:00.0``."""
        info = ctypes.create_string_buffer(PCI_INFO_SIZE)
        return _decoded(info.raw[PCI_BUS_ID:]) if self.call("nvmlDeviceGetPciInfo_v3", handle, info) else ""

    def architecture(self, handle: Handle) -> str:
        """Ask for a GPU's architecture in words."""
        return ARCHITECTURES.get(self.number("nvmlDeviceGetArchitecture", handle) or 0, "")

    def memory_total(self, handle: Handle) -> int | None:
        """Ask for a device's memory in bytes: 0 where it has none of its own, None where that is not known."""
        # The same function that readings use: what it does not support must not be found in its older form.
        newest = self._library.has("nvmlDeviceGetMemoryInfo_v2")
        info = (ctypes.c_ulonglong * 5)(MEMORY.version or 0)
        if self.call("nvmlDeviceGetMemoryInfo_v2" if newest else "nvmlDeviceGetMemoryInfo", handle, ctypes.byref(info)):
            total: int = info[1 if newest else 0]
            return total if total < 2**63 else None
        return 0 if self.status == NOT_SUPPORTED else None


ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    11: "Orin",
}
"""``NVML_DEVICE_ARCH_…``; numbers that are not here are newer than this table."""
LONGEST_TEXT = 96
"""Bytes: the longest that NVML has, that of a UUID."""
PCI_INFO_SIZE, PCI_BUS_ID = 68, 36
"""Bytes of ``nvmlPciInfo_t``, and where in it the address stands as text."""


def _decoded(text: bytes) -> str:
    return text.partition(b"\0")[0].decode(errors="replace")


def open_library() -> Library:
    """Load and initialise NVML.

    Raises:
        SourceError: Why that is not possible, and what to do about it.
    """
    name = library_path()
    try:
        library = Library(load_library(name))
    except OSError as error:
        failure = loading_failure(name, error)
        if failure is None:
            raise _refusal(LIBRARY_NOT_FOUND, None) from error
        # The same words as detection's, where that has any: they are shown once.
        advice = advise(library=True) or _REINSTALL
        raise SourceError(failure.reason, failure.detail, backend=BACKEND, advice=advice) from error
    if status := library.function("nvmlInitWithFlags")(0):
        raise _refusal(status, library)
    return library


def _refusal(code: int, loaded: Library | None) -> SourceError:
    """Make the error of a library that cannot be loaded, or initialised."""
    found = meaning(code)
    words, advice = f"{found.words} ({found.symbol})", found.advice
    if code in (NOT_FOUND, GPU_NOT_FOUND):
        return no_device()
    if code == LIBRARY_NOT_FOUND:
        advice = advise(library=False)
    elif code == DRIVER_NOT_LOADED:
        advice = advise(library=True) or advice
    elif code == LIB_RM_VERSION_MISMATCH:
        kernel = kernel_module_version() or "of an unknown version"
        # NVML puts its own major number in front: ``12.535.161.07``.
        said = Queries(loaded, [], frozenset()).text("nvmlSystemGetNVMLVersion") if loaded is not None else ""
        library = said.partition(".")[2] or "of another version"
        words = f"the loaded kernel module is {kernel}, the installed library {library} ({found.symbol})"
        advice = "reboot, or stop what uses the GPUs and reload the kernel module; then start this program again"
    return SourceError(found.reason, words, backend=BACKEND, advice=advice)


def no_device() -> SourceError:
    """Make the error of a driver that works and lists no device."""
    advice = (
        "check that the GPU is seated and powered (`lspci -d 10de:`), not bound to another driver, and given to this container or machine"
    )
    return SourceError(Reason.DRIVER_UNAVAILABLE, "the NVIDIA driver is loaded and lists no GPU", backend=BACKEND, advice=advice)
