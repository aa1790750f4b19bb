"""NVML (``libnvidia-ml.so.1``): its return codes, loading it, and single calls for facts about devices.

The kit loads the library, and its functions are called through ``ctypes``. NVIDIA's own binding (nvidia-ml-py) is not imported: it
would take a tenth of a first reading's time, and several MiB. The needed codes, constants and layouts are written down here, and a
test compares them with the binding. NVML counts its users, so another binding in this process is not disturbed.
"""

from __future__ import annotations

import ctypes
import re
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any
from weakref import WeakSet

from accelmetrics.backends.contract import Value
from accelmetrics.backends.guard import at_fork, through
from accelmetrics.backends.kit.library import load_library, loading_failure
from accelmetrics.backends.nvidia import Maker
from accelmetrics.backends.nvidia.metrics import ALL_ONES, MEMORY, MOST_MEMORY
from accelmetrics.schemas.errors import DriverGoneError, Reason, SourceError, Unavailable

# NVML's return codes, without NVML_ERROR_.
SUCCESS = 0
UNINITIALIZED = 1
INVALID_ARGUMENT = 2
NOT_SUPPORTED = 3
NO_PERMISSION = 4
NOT_FOUND = 6
INSUFFICIENT_SIZE = 7
DRIVER_NOT_LOADED = 9
TIMEOUT = 10
LIBRARY_NOT_FOUND = 12
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
LIB_RM_VERSION_MISMATCH = 18
ARGUMENT_VERSION_MISMATCH = 25
GPU_NOT_FOUND = 28

GONE = frozenset({UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH})
"""Return codes after which only reopening the driver can help."""
LOST = GONE | {GPU_IS_LOST}
"""Return codes that concern the whole device or driver, not just the values of one call."""
MISFIT = -1
"""Our own code: the call succeeded, but its answer has another layout than expected."""
NOT_RECORDED = -2
"""Our own code: a bundle replaces the library (``recorded.py``), and has no answer to this call."""


_LOST = "look for {faults} in the kernel log; the {chip} comes back with a reset or a reboot, if the hardware is sound"

MEANINGS: dict[int, tuple[str, Reason, str]] = {
    MISFIT: ("", Reason.PARSE_ERROR, "the driver's answer has an unknown layout"),
    NOT_RECORDED: ("", Reason.DRIVER_UNAVAILABLE, "the bundle has no answer to this call: it was not made while it was recorded"),
    1: ("NVML_ERROR_UNINITIALIZED", Reason.DRIVER_UNAVAILABLE, "the driver's library is not initialised"),
    2: ("NVML_ERROR_INVALID_ARGUMENT", Reason.DRIVER_ERROR, "the driver refuses the call's arguments"),
    3: ("NVML_ERROR_NOT_SUPPORTED", Reason.NOT_SUPPORTED, "this GPU does not have it"),
    4: ("NVML_ERROR_NO_PERMISSION", Reason.NO_PERMISSION, "this user may not ask the driver"),
    5: ("NVML_ERROR_ALREADY_INITIALIZED", Reason.DRIVER_ERROR, "the library was initialised before"),
    6: ("NVML_ERROR_NOT_FOUND", Reason.DRIVER_ERROR, "the driver does not find what was asked for"),
    7: ("NVML_ERROR_INSUFFICIENT_SIZE", Reason.DRIVER_ERROR, "the answer did not fit"),
    8: ("NVML_ERROR_INSUFFICIENT_POWER", Reason.DRIVER_ERROR, "the GPU's power cables are not attached properly"),
    9: ("NVML_ERROR_DRIVER_NOT_LOADED", Reason.DRIVER_UNAVAILABLE, "the NVIDIA kernel driver is not loaded"),
    10: ("NVML_ERROR_TIMEOUT", Reason.TIMED_OUT, "the driver gave up waiting for the GPU"),
    11: ("NVML_ERROR_IRQ_ISSUE", Reason.DRIVER_ERROR, "the kernel driver has trouble with the GPU's interrupts"),
    12: ("NVML_ERROR_LIBRARY_NOT_FOUND", Reason.DRIVER_UNAVAILABLE, "the driver's library is not installed"),
    13: ("NVML_ERROR_FUNCTION_NOT_FOUND", Reason.NOT_SUPPORTED, "the installed driver does not have this function"),
    14: ("NVML_ERROR_CORRUPTED_INFOROM", Reason.DRIVER_ERROR, "the GPU's infoROM is corrupted"),
    15: ("NVML_ERROR_GPU_IS_LOST", Reason.DEVICE_LOST, "the GPU has fallen off the bus or cannot be reached"),
    16: ("NVML_ERROR_RESET_REQUIRED", Reason.RESET_REQUIRED, "the GPU must be reset before it answers"),
    17: ("NVML_ERROR_OPERATING_SYSTEM", Reason.NO_PERMISSION, "the operating system or a cgroup blocks the GPU"),
    18: ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", Reason.DRIVER_UNAVAILABLE, "kernel module and library are of different versions"),
    19: ("NVML_ERROR_IN_USE", Reason.DRIVER_ERROR, "the GPU is in use"),
    20: ("NVML_ERROR_MEMORY", Reason.DRIVER_ERROR, "the driver is out of memory"),
    21: ("NVML_ERROR_NO_DATA", Reason.DRIVER_ERROR, "the driver has no data"),
    22: ("NVML_ERROR_VGPU_ECC_NOT_SUPPORTED", Reason.NOT_SUPPORTED, "not available while ECC is on"),
    23: ("NVML_ERROR_INSUFFICIENT_RESOURCES", Reason.DRIVER_ERROR, "the driver is out of resources"),
    24: ("NVML_ERROR_FREQ_NOT_SUPPORTED", Reason.NOT_SUPPORTED, "this GPU does not have the clock"),
    25: ("NVML_ERROR_ARGUMENT_VERSION_MISMATCH", Reason.NOT_SUPPORTED, "the installed driver knows another form of the call"),
    26: ("NVML_ERROR_DEPRECATED", Reason.NOT_SUPPORTED, "the installed driver no longer has the function"),
    27: ("NVML_ERROR_NOT_READY", Reason.DRIVER_ERROR, "the system is not ready"),
    28: ("NVML_ERROR_GPU_NOT_FOUND", Reason.DEVICE_LOST, "the driver does not find the GPU"),
    29: ("NVML_ERROR_INVALID_STATE", Reason.DRIVER_ERROR, "the GPU is not in a state to answer"),
    30: ("NVML_ERROR_RESET_TYPE_NOT_SUPPORTED", Reason.NOT_SUPPORTED, "this GPU does not have the kind of reset"),
    999: ("NVML_ERROR_UNKNOWN", Reason.DRIVER_ERROR, "an internal error of the driver"),
}
"""By return code: its name in the header, the reason of the values that are missing because of it, and an explanation."""
ADVICE = {
    NO_PERMISSION: "run as a user who may read {nodes}, or ask for the permission that the driver wants (root, CAP_SYS_ADMIN)",
    DRIVER_NOT_LOADED: "load the driver's kernel module{load}, or install the driver that fits the running kernel",
    GPU_IS_LOST: _LOST,
    16: "stop what runs on the {chip} and reset it{reset}, or reboot",
    17: "start the container with its {chip}s{start}, and check that its device cgroup allows {nodes}",
    GPU_NOT_FOUND: _LOST,
}
"""Advice for some return codes, with the maker's words filled in."""
DECISIVE = LOST | {code for code, (_, reason, _) in MEANINGS.items() if reason in (Reason.DEVICE_LOST, Reason.NO_PERMISSION)}
"""Return codes that an older form of the call would give too."""


def meaning(code: int) -> tuple[str, Reason, str]:
    """Look up a return code. Unknown codes, from newer drivers, are an error without a name."""
    return MEANINGS.get(code) or (f"NVML error {code}", Reason.DRIVER_ERROR, "an error that is newer than this table")


@cache
def unavailable(code: int) -> Unavailable:
    """Return the reason for a failed call's code; the same object for the same code."""
    symbol, reason, words = meaning(code)
    if code == NOT_SUPPORTED:
        return Unavailable(reason, symbol)
    return Unavailable(reason, f"{symbol}: {words}" if symbol else words)


@cache
def field_unavailable(code: int) -> Unavailable:
    """Return the reason for one field of a batch. Drivers return INVALID_ARGUMENT for a field that they do not know."""
    if code == INVALID_ARGUMENT:
        return Unavailable(Reason.NOT_SUPPORTED, "NVML_ERROR_INVALID_ARGUMENT: the installed driver does not know the field")
    return unavailable(code)


@cache
def impossible(function: str) -> Unavailable:
    """Return the reason for an impossible value: a sentinel, a utilisation of 4,000 %."""
    return Unavailable(Reason.INVALID_VALUE, f"{function} returned an impossible value")


def is_unsupported(answer: Value) -> bool:
    """Return whether the driver answered that the device does not have the value."""
    return isinstance(answer, Unavailable) and answer.reason == Reason.NOT_SUPPORTED


NvmlFunction = Callable[..., int]
Handle = ctypes.c_void_p


def function_not_found(*_arguments: Any) -> int:
    """Return NVML's code for a function that the installed driver lacks."""
    return FUNCTION_NOT_FOUND


class Forms:
    """A call with its forms, the newest first, until one of them answers.

    If a form fails, the next older one is called, and the failed one is tried again at the next call. Once a form has answered, no
    older one is called: a later failure is then a reason, and no other number. Version 1 of the memory call, for example, counts
    the driver's reserve as used.

    Args:
        forms: The functions.
        answers: The return codes of a form that works.
        chosen: Stores the position of the form that answered, under ``key``.
        key: The device and the call.

    Attributes:
        forms: The functions that may still be called.
    """

    def __init__(
        self,
        forms: Sequence[NvmlFunction],
        answers: frozenset[int] = frozenset({SUCCESS}),
        chosen: dict[object, int] | None = None,
        key: object = None,
    ) -> None:
        self._chosen: dict[object, int] = {} if chosen is None else chosen
        self._key = key
        self._answers = answers
        self.forms = forms[: self._chosen.get(key, len(forms)) + 1]

    def __call__(self, *arguments: Any) -> int:
        if len(self.forms) == 1:
            return self.forms[0](*arguments)
        failure = FUNCTION_NOT_FOUND
        for place, form in enumerate(self.forms):
            status = form(*arguments)
            if status in self._answers:
                self._chosen[self._key] = place
                self.forms = self.forms[: place + 1]
                return status
            # An older form would give the same answer.
            if status in DECISIVE:
                return status
            if failure in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):  # any other failure says more than a missing function or value
                failure = status
        return failure


OLDER = {
    "nvmlDeviceGetCount_v2": "nvmlDeviceGetCount",
    "nvmlSystemGetCudaDriverVersion_v2": "nvmlSystemGetCudaDriverVersion",
}
"""Older forms with the same arguments and the same answer."""


class Library:
    """The loaded NVML.

    Args:
        loaded: The shared library.
        maker: Its maker.

    Attributes:
        maker: Its maker.
        chosen: The position of the source that answered first, by device and call or metric. It stays the source while the driver
            is open.
    """

    def __init__(self, loaded: ctypes.CDLL, maker: Maker) -> None:
        self._loaded = loaded
        self.maker = maker
        self.chosen: dict[object, int] = {}

    def forms(self, *names: str) -> list[NvmlFunction]:
        """Return the functions of these names that the driver has, in order."""
        return [getattr(self._loaded, name) for name in map(self.maker.spell, names) if hasattr(self._loaded, name)]

    def function(self, name: str) -> NvmlFunction:
        """Return a function; if it is missing, one that returns NVML's code for that."""
        return next(iter(self.forms(name)), function_not_found)

    def close(self) -> None:
        """Shut NVML down. It counts its users, so another user in this process is not disturbed."""
        self.function("nvmlShutdown")()  # its code is ignored: a driver that is gone has nothing left to free

    def error(self, code: int, doing: str) -> SourceError:
        """Return the error for a failure of a whole device, or of the whole driver."""
        symbol, reason, words = meaning(code)
        kind = DriverGoneError if code in GONE else SourceError
        maker = self.maker
        return kind(reason, maker.spell(f"{doing}: {words} ({symbol})"), backend=maker.name, advice=advice_for(code, maker))

    def check(self, code: int, doing: str) -> None:
        """Raise ``SourceError`` for a code that concerns the whole device or driver."""
        if code in LOST:
            raise self.error(code, doing)


class Queries:
    """Single calls for facts about devices. If a call fails, only its own fact is missing.

    Args:
        library: The open library.
        progress: Grows with every call.
        fatal: Return codes that are raised as errors.

    Attributes:
        status: The return code of the last call.
        complete: Whether every answer so far is final: a value, or known not to exist.
    """

    def __init__(self, library: Library, progress: list[Any], fatal: frozenset[int]) -> None:
        self.status = SUCCESS
        self.complete = True
        self._library = library
        self._progress = progress
        self._fatal = fatal

    def call(self, name: str, *arguments: Any) -> bool:
        """Call a function, or its older form if it fails. Returns whether it succeeded."""
        return self._ask(name, Forms(self._library.forms(name, *(OLDER[name],) if name in OLDER else ())), *arguments)

    def _ask(self, name: str, call: Forms, *arguments: Any) -> bool:
        self.status = call(*arguments)
        self._progress.append(name)
        if self.status in self._fatal:
            raise self._library.error(self.status, name)
        # These answers are final. After any other, the fact is asked for again.
        self.complete = self.complete and self.status in (SUCCESS, NOT_SUPPORTED, FUNCTION_NOT_FOUND)
        return self.status == SUCCESS

    def number(self, name: str, *arguments: Any, most: int = 2**32 - 2) -> int | None:
        """Ask for an unsigned number; None if there is none, or one above the largest possible."""
        answer = (ctypes.c_uint * 4)(ALL_ONES)  # starts as "not available"; with room for a wider number
        return answer[0] if self.call(name, *arguments, ctypes.byref(answer)) and answer[0] <= most else None

    def text(self, name: str, *arguments: Any) -> str:
        """Ask for a text; empty if there is none, or a garbled one."""
        buffer = ctypes.create_string_buffer(4 * LONGEST_TEXT)
        return decode_text(buffer.raw) if self.call(name, *arguments, buffer, LONGEST_TEXT) else ""

    def handle(self, name: str, *arguments: Any) -> Handle | None:
        """Ask for a handle."""
        found = Handle()
        return found if self.call(name, *arguments, ctypes.byref(found)) else None

    def pci(self, handle: Handle) -> tuple[str, str]:
        """Ask for a GPU's PCI address in NVML's form (``00000000:C1:00.0``), and its vendor and device id (``10de:2330``)."""
        return self._pci(("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"), handle)

    def remote_pci(self, handle: Handle, link: int) -> str:
        """Ask for the PCI address of an NVLink's peer."""
        return self._pci(("nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo"), handle, link)[0]

    def _pci(self, names: Sequence[str], *arguments: Any) -> tuple[str, str]:
        info = ctypes.create_string_buffer(4 * PCI_INFO_SIZE)
        if not self._ask(names[0], Forms(self._library.forms(*names)), *arguments, info):
            return "", ""
        domain, bus, device, identifier, text = struct.unpack_from(self._library.maker.pci, info)
        address = f"{domain:08X}:{bus:02X}:{device:02X}.0"
        # Older forms end before the long text. In a structure of another layout, the short text does not match the numbers.
        texts = [found.partition(b"\0")[0].decode("ascii", "replace").upper() for found in (text, info.raw)]
        long, short = ((text if _ADDRESS.fullmatch(text) else "") for text in texts)
        words = f"{identifier & 0xFFFF:04x}:{identifier >> 16:04x}" if identifier else ""
        return long or (address if short and address.endswith(short[-8:]) else ""), words

    def platform(self, handle: Handle) -> dict[str, Any]:
        """Ask for a GPU's location in its rack. The older form of the answer has the same bytes under other names."""
        complete = self.complete
        for version in PLATFORM_VERSIONS:
            info = ctypes.create_string_buffer(PLATFORM.size)
            PLATFORM.pack_into(info, 0, version, *[b""] * 2, *[0] * 5)
            if self.call("nvmlDeviceGetPlatformInfo", handle, info):
                _, _, serial, slot, tray, host, _, module = PLATFORM.unpack_from(info)
                places = (slot, tray, host, module)
                known = any(serial) or any(places)
                located = {name: place for name, place in zip(PLACES, places, strict=True) if known and place != NO_PLACE}
                text = serial.rstrip(b"\0")
                return {"chassis_serial": text.decode() if text.isascii() and text.decode().isprintable() else serial.hex(), **located}
            if self.status != ARGUMENT_VERSION_MISMATCH:
                return {}
        self.complete = complete  # final: a driver that knows neither form never will
        return {}

    def architecture(self, handle: Handle) -> str:
        """Ask for the name of a GPU's architecture."""
        return self._library.maker.architectures.get(self.number("nvmlDeviceGetArchitecture", handle) or 0, "")

    def compute_capability(self, handle: Handle) -> str:
        """Ask for a GPU's CUDA compute capability: ``9.0``."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        found = self.call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}" if found and 0 < major.value < 100 and 0 <= minor.value < 10 else ""

    def cpu_affinity(self, handle: Handle) -> str:
        """Ask for the CPUs near to a GPU, as ranges: ``0-31,64-95``."""
        words = (ctypes.c_ulong * (MOST_CPUS // (8 * ctypes.sizeof(ctypes.c_ulong))))()
        if not self.call("nvmlDeviceGetCpuAffinity", handle, len(words), words):
            return ""
        mask = sum(word << 8 * ctypes.sizeof(ctypes.c_ulong) * place for place, word in enumerate(words))
        # Runs of ones; the text begins with the highest CPU.
        runs = [(MOST_CPUS - run.end(), MOST_CPUS - 1 - run.start()) for run in re.finditer("1+", f"{mask:0{MOST_CPUS}b}")]
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in reversed(runs))

    def memory_total(self, handle: Handle) -> int | None:
        """Ask for a device's memory in bytes; None if the driver does not report it."""
        newer, older = (ctypes.c_ulonglong * 16)(MEMORY.version or 0), (ctypes.c_ulonglong * 16)()
        names = {"nvmlDeviceGetMemoryInfo_v2": newer, "nvmlDeviceGetMemoryInfo": older}
        calls = [partial(form, handle, ctypes.byref(info)) for name, info in names.items() for form in self._library.forms(name)]
        given = self._ask("nvmlDeviceGetMemoryInfo_v2", Forms(calls))
        # Version 2 has its version in front of the total.
        total: int = newer[1] or older[0]
        return total if given and 0 < total <= MOST_MEMORY else None


PLATFORM = struct.Struct("=I16s16s5B3x")
"""``nvmlPlatformInfo_v2_t``: InfiniBand GUID, serial number of the chassis, slot, tray, host, type of peer and module."""
PLATFORM_VERSIONS = (0x0200002C, 0x0100002C)
PLACES = ("chassis_slot", "tray_index", "host_id", "module_id")
NO_PLACE = 0xFF
LONGEST_TEXT = 96
"""Bytes of NVML's longest text, a UUID."""
MOST_CPUS = 8192
"""Largest number of CPUs that Linux supports. The driver fills masks of any length."""
PCI_INFO_SIZE = 68
"""Bytes of the longest form of a device's PCI address."""
_ADDRESS = re.compile(r"(?:[0-9A-F]{4,8}:)?[0-9A-F]{2}:[0-9A-F]{2}\.[0-7]")


def decode_text(raw: bytes) -> str:
    """Decode a driver's text; empty if it is garbled.

    In WSL (drivers 555 and others), if the process has a locale, the library takes two UTF-16 characters for one of 32 bits, and
    writes it in the original five-byte UTF-8. This function undoes that.
    """
    text = raw.partition(b"\0")[0]
    try:
        found = text.decode()
    except UnicodeDecodeError:
        found = "".join(map(_two_characters, _LONG_GROUP.findall(text))) if _LONG_GROUPS.fullmatch(text) else ""
    return found if len(text) <= LONGEST_TEXT and found.isprintable() else ""


_LONG_GROUP = re.compile(rb"[\xf8-\xfb][\x80-\xbf]{4}|[\xf0-\xf7][\x80-\xbf]{3}|[\xc0-\xef][\x80-\xbf]+|[\x00-\x7f]")
_LONG_GROUPS = re.compile(rb"(?:[\xf8-\xfb][\x80-\xbf]{4})+(?:[\xf0-\xf7][\x80-\xbf]{3}|[\xc0-\xef][\x80-\xbf]+|[\x00-\x7f])?")
"""Pairs of characters in five bytes each, and the last one alone."""


def _two_characters(group: bytes) -> str:
    """Split the code point of a five-byte group into its two characters."""
    if len(group) < 5:
        return group.decode(errors="replace")
    point = group[0] & 3
    for byte in group[1:]:
        point = point << 6 | byte & 63
    return (chr(point & 0xFFFF) + chr(point >> 16)).rstrip("\0")


# Weak, so that the locks of a closed driver disappear with it.
_LOCKS: WeakSet[threading.RLock] = WeakSet()
_held: list[threading.RLock] = []
LONGEST_HOLD = 0.1
"""Seconds that a fork waits for a call in progress."""


def lock_of_calls() -> threading.RLock:
    """Return a new lock that one of our threads holds while it is in the driver.

    A fork waits for it. Otherwise the child could inherit the library in the middle of a call, with an internal lock that is never
    released.
    """
    lock = threading.RLock()
    _LOCKS.add(lock)
    return lock


def _before_fork() -> None:
    for lock in list(_LOCKS):
        _held.append(lock)  # before acquire(), because Ctrl-C may come between the two
        lock.acquire(timeout=LONGEST_HOLD)


def _after_fork() -> None:
    while _held:
        with suppress(RuntimeError):  # the wait timed out: another thread still holds it
            _held.pop().release()


at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


@through
def load_nvml(maker: Maker) -> Any:
    """Load a vendor's library; None if it does not exist.

    Raises:
        SourceError: It exists, and cannot be loaded.
    """
    for name in maker.paths():
        try:
            return load_library(name)
        except OSError as error:
            failure = loading_failure(name, error, seen=maker.is_installed())
            if failure is not None:
                # Detection's advice comes first. Equal advice is shown once.
                advice = (
                    maker.advise(True)
                    or "install the driver again for this system: `ldd` on the library shows what it lacks, `file` its architecture"
                )
                raise SourceError(failure.reason, failure.detail, backend=maker.name, advice=advice) from error
    return None


def open_library(maker: Maker) -> Library:
    """Load and initialise the library.

    Raises:
        SourceError: It cannot be loaded or initialised; with advice.
    """
    loaded = load_nvml(maker)
    if loaded is None:
        raise _refusal(LIBRARY_NOT_FOUND, None, maker)
    library = Library(loaded, maker)
    flags = [partial(form, 0) for form in library.forms("nvmlInitWithFlags")]
    if status := (flags or library.forms("nvmlInit_v2", "nvmlInit") or [function_not_found])[0]():
        raise _refusal(status, library, maker)
    return library


def advice_for(code: int, maker: Maker) -> str:
    """Return advice for a return code; empty if there is none."""
    return ADVICE.get(code, "").format_map(maker._asdict())


def _refusal(code: int, library: Library | None, maker: Maker) -> SourceError:
    """Return the error for a library that cannot be loaded or initialised."""
    symbol, reason, explanation = meaning(code)
    words, advice = maker.spell(f"{explanation} ({symbol})"), advice_for(code, maker)
    if code in (NOT_FOUND, GPU_NOT_FOUND):
        return no_device(maker)
    if code == LIBRARY_NOT_FOUND:
        advice = maker.advise(False)
    elif code == DRIVER_NOT_LOADED:
        # Detection knows more about this machine, for example that it is a container.
        advice = maker.advise(True) or advice
    elif code == LIB_RM_VERSION_MISMATCH:
        kernel = maker.module_version() or "of an unknown version"
        # NVML puts its own major number in front: ``12.535.161.07``.
        version = Queries(library, [], frozenset()).text("nvmlSystemGetNVMLVersion") if library is not None else ""
        installed = version.partition(".")[2] or "of another version"
        words = f"the loaded kernel module is {kernel}, the installed library {installed} ({symbol})"
        advice = f"reboot, or stop what uses the {maker.chip}s and reload the kernel module; then start this program again"
    return SourceError(reason, words, backend=maker.name, advice=advice)


def no_device(maker: Maker) -> SourceError:
    """Return the error for a driver that works and lists no device."""
    advice = (
        f"check that the {maker.chip} is seated and powered (`lspci -d {maker.vendor_id}:`), not bound to another driver, "
        "and given to this container or machine"
    )
    words = f"the {maker.brand} driver is loaded and lists no {maker.chip}"
    return SourceError(Reason.DRIVER_UNAVAILABLE, words, backend=maker.name, advice=advice)
