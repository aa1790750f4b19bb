"""NVML's functions over the readings that ``accelmetrics run --as-nvml`` writes: what a binding calls in place of the library.

Each function takes what C's would (ctypes values, and pointers made by ``byref``) and answers a return code. Codes of errors are raised as
the binding's own ``NVMLError`` at once, since some of the binding's functions forget to look at them. A reading has what a device answers,
in NVML's units, under the function's name with its numbers behind it (``nvmlDeviceGetClockInfo:1``); nothing else is answered.

Runs in any Python from 3.6 on, without accelmetrics.
"""

import ctypes
import json
import os
import re
import sys
import time
from typing import Any

INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, INSUFFICIENT_SIZE = 2, 3, 6, 7
DRIVER_NOT_LOADED, TIMEOUT, GPU_IS_LOST = 9, 10, 15
WORDS = {
    0: "Success",
    INVALID_ARGUMENT: "Invalid Argument",
    NOT_SUPPORTED: "Not Supported",
    4: "Insufficient Permissions",
    NOT_FOUND: "Not Found",
    INSUFFICIENT_SIZE: "Insufficient Size",
    DRIVER_NOT_LOADED: "Driver Not Loaded",
    TIMEOUT: "Timeout",
    GPU_IS_LOST: "GPU is lost",
    16: "GPU requires reset",
}
UNKNOWN_MEMORY, NO_INSTANCE = 2**64 - 1, 2**32 - 1
UNSIGNED_INT, UNSIGNED_LONG_LONG = 1, 3
"""What a field's value is."""
ASCII = 1
"""The kind of UUID that is a text."""
COUNTING = ("nvmlInit", "nvmlInitWithFlags", "nvmlDeviceGetCount")
SCHEDULERS = ("dask_cuda", "ray", "sglang", "vllm")
"""Packages that place work on the devices that they count. Most releases have a binding of their own, which is left alone; others use the
program's, and are told that there is no driver: CUDA has none of these devices."""
VERSION = re.compile(r"_v\d+$")
PCI = re.compile(r"(?:([0-9a-f]+):)?([0-9a-f]+):([0-9a-f]+)(?:\.([0-9a-f]))?$", re.IGNORECASE)


class RefusedError(Exception):
    """A return code other than success."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Readings:
    """The latest reading, and the handles of devices.

    A handle is the address of a byte of ours, as programs hand it on as a pointer. It stays its device's, whichever number that has.

    Args:
        folder: Where the reading lies.
    """

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "reading.json")
        self._latest: Any = (None, {})
        self._bytes: "dict[str, Any]" = {}
        self._anchors: "dict[int, str]" = {}

    def latest(self) -> Any:
        """Return the latest reading.

        Raises:
            RefusedError: There is none, or it is old: what writes it has ended or hangs.
        """
        try:
            found = os.stat(self._path)
            mark = (found.st_mtime_ns, found.st_ino)
            if mark != self._latest[0]:
                with open(self._path, encoding="utf-8") as file:
                    self._latest = (mark, json.load(file))
        except (OSError, ValueError):
            raise RefusedError(TIMEOUT) from None
        reading = self._latest[1]
        if time.monotonic() - reading["monotonic"] > reading["valid_seconds"]:
            raise RefusedError(TIMEOUT)
        return reading

    def handle(self, device: Any) -> int:
        """Return a device's handle."""
        address = ctypes.addressof(self._bytes.setdefault(device["anchor"], ctypes.c_char()))
        self._anchors[address] = device["anchor"]
        return address

    def device(self, handle: Any) -> Any:
        """Return what the latest reading has of a device.

        Raises:
            RefusedError: It is no handle, or the device is gone.
        """
        try:
            address = ctypes.c_void_p.from_buffer(handle).value
        except (TypeError, ValueError):
            address = None
        anchor = self._anchors.get(address or 0)
        reading = self.latest()
        if anchor is None:
            raise RefusedError(INVALID_ARGUMENT)
        for device in reading["devices"]:
            if device["anchor"] == anchor:
                return device
        raise RefusedError(GPU_IS_LOST)


def _value(argument: Any) -> Any:
    """Return the plain value of an argument: a number, bytes."""
    return getattr(argument, "value", argument)


def _target(pointer: Any) -> Any:
    """Return what a pointer points to: that of ``byref`` or ``pointer``, or an array itself."""
    if hasattr(pointer, "_obj"):
        return pointer._obj
    return pointer.contents if hasattr(pointer, "contents") else pointer


def _text(argument: Any) -> str:
    value = _value(argument)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _write_text(words: str, buffer: Any, length: Any) -> None:
    """Write a text as C does.

    Raises:
        RefusedError: It does not fit.
    """
    data = words.encode("utf-8")
    if len(data) >= _value(length):
        raise RefusedError(INSUFFICIENT_SIZE)
    buffer.value = data


def _address(words: str) -> "tuple[int, ...]":
    """Return the numbers of a PCI address; none where it is no such text."""
    found = PCI.match(words.strip())
    return tuple(int(part or "0", 16) for part in found.groups()) if found else ()


def _answer(device: Any, name: str) -> Any:
    """Return what a device answers under a name.

    Raises:
        RefusedError: It answers nothing, or says why not.
    """
    if name in device["values"]:
        return device["values"][name]
    raise RefusedError(device["errors"].get(name, NOT_SUPPORTED))


def _resize(count: Any, entries: Any, wanted: int) -> bool:
    """Write how many there are; return whether they fit into what the caller has.

    Raises:
        RefusedError: They do not fit; the caller then asks again, with more room.
    """
    room = _target(count)
    had, room.value = room.value, wanted
    if wanted and (entries is None or had < wanted):
        raise RefusedError(INSUFFICIENT_SIZE)
    return entries is not None


class Functions(Readings):
    """The functions whose arguments are not a handle, numbers, and where the answer goes. None has a version in its name."""

    def nvmlInit(self, *_flags: Any) -> None:
        """Begin; without a device there is no driver."""
        if not self.latest()["devices"]:
            raise RefusedError(DRIVER_NOT_LOADED)

    nvmlInitWithFlags = nvmlInit

    def nvmlShutdown(self) -> None:
        """End."""

    def nvmlSystemGetDriverVersion(self, buffer: Any, length: Any) -> None:
        """Write the driver's version, as the vendor has it."""
        words = self.latest()["driver_version"]
        if not words:
            raise RefusedError(NOT_SUPPORTED)
        _write_text(words, buffer, length)

    def nvmlDeviceGetCount(self, count: Any) -> None:
        """Write how many devices there are."""
        _target(count).value = len(self.latest()["devices"])

    def nvmlDeviceGetHandleByIndex(self, index: Any, handle: Any) -> None:
        """Write the handle of the device with a number."""
        devices = self.latest()["devices"]
        if not 0 <= _value(index) < len(devices):
            raise RefusedError(INVALID_ARGUMENT)
        self._write_handle(devices[_value(index)], handle)

    def _find(self, handle: Any, wanted: Any, read: Any) -> None:
        """Write the handle of the device of which this is read."""
        for device in self.latest()["devices"]:
            if read(device["values"]) == wanted:
                return self._write_handle(device, handle)
        raise RefusedError(NOT_FOUND)

    def _write_handle(self, device: Any, handle: Any) -> None:
        ctypes.c_void_p.from_buffer(_target(handle)).value = self.handle(device)

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> None:
        """Write the handle of the device with a UUID."""
        self._find(handle, _text(uuid), lambda values: values.get("nvmlDeviceGetUUID"))

    def nvmlDeviceGetHandleByUUIDV(self, uuid: Any, handle: Any) -> None:
        """Write the handle of the device with a UUID that is a text."""
        if _target(uuid).type != ASCII:
            raise RefusedError(NOT_FOUND)
        self.nvmlDeviceGetHandleByUUID(_target(uuid).value.str, handle)

    def nvmlDeviceGetHandleBySerial(self, serial: Any, handle: Any) -> None:
        """Write the handle of the device with a serial number."""
        self._find(handle, _text(serial), lambda values: values.get("nvmlDeviceGetSerial"))

    def nvmlDeviceGetHandleByPciBusId(self, address: Any, handle: Any) -> None:
        """Write the handle of the device with a PCI address."""
        wanted = _address(_text(address))
        if not wanted:
            raise RefusedError(INVALID_ARGUMENT)
        self._find(handle, wanted, lambda values: _address(values.get("nvmlDeviceGetPciInfo", "")))

    def nvmlDeviceGetIndex(self, handle: Any, index: Any) -> None:
        """Write the number that a device has now."""
        _target(index).value = self.latest()["devices"].index(self.device(handle))

    def nvmlDeviceGetPciInfo(self, handle: Any, info: Any) -> None:
        """Write a PCI address; the ids of the maker and the model are not known, and stay 0."""
        domain, bus, slot, function = _address(_answer(self.device(handle), "nvmlDeviceGetPciInfo"))
        target = _target(info)
        target.domain, target.bus, target.device = domain, bus, slot
        target.busId = ("%08X:%02X:%02X.%X" % (domain, bus, slot, function)).encode()
        if hasattr(target, "busIdLegacy"):
            target.busIdLegacy = ("%04X:%02X:%02X.%X" % (domain, bus, slot, function)).encode()

    def nvmlDeviceGetMemoryInfo(self, handle: Any, info: Any) -> None:
        """Write how the memory is used. The second version has the driver's reserve by itself, the first counts it as used."""
        total, used, free = _answer(self.device(handle), "nvmlDeviceGetMemoryInfo")
        target = _target(info)
        target.total, target.free, target.used = total, free, total - free
        if hasattr(target, "reserved"):
            target.used, target.reserved = used, total - free - used

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> None:
        """Write both shares. That of the memory is 0 where it is not known: without it, the other would be lost too."""
        device, target = self.device(handle), _target(rates)
        target.gpu = _answer(device, "nvmlDeviceGetUtilizationRates")
        target.memory = device["values"].get("memory", 0)

    def nvmlDeviceGetTemperatureV(self, handle: Any, temperature: Any) -> None:
        """Write a temperature."""
        target = _target(temperature)
        target.temperature = _answer(self.device(handle), "nvmlDeviceGetTemperature:%d" % target.sensorType)

    def nvmlDeviceGetEncoderUtilization(self, handle: Any, share: Any, _period: Any) -> None:
        """Write a share; over which time it was taken is not known, and stays 0."""
        _target(share).value = _answer(self.device(handle), "nvmlDeviceGetEncoderUtilization")

    def nvmlDeviceGetDecoderUtilization(self, handle: Any, share: Any, _period: Any) -> None:
        """Write a share; over which time it was taken is not known, and stays 0."""
        _target(share).value = _answer(self.device(handle), "nvmlDeviceGetDecoderUtilization")

    def nvmlDeviceGetFieldValues(self, handle: Any, count: Any, fields: Any) -> None:
        """Write numbers of several fields, each with its own return code. Those of one scope (a link, the memory) are not known."""
        device, microseconds = self.device(handle), self.latest()["microseconds"]
        targets = _target(fields)
        for number in range(_value(count)):
            field = targets[number]
            name = "field:%d" % field.fieldId if not getattr(field, "scopeId", 0) else ""
            field.timestamp, field.latencyUsec = microseconds, 0
            try:
                answer = _answer(device, name)
            except RefusedError as refused:
                field.nvmlReturn = refused.code
                continue
            field.nvmlReturn = 0
            # A counter of joules may be large; the rest fits into what a driver gives it in.
            field.valueType = UNSIGNED_LONG_LONG if answer > NO_INSTANCE or field.fieldId in device["wide_fields"] else UNSIGNED_INT
            field.value.ullVal = answer

    def _processes(self, kind: str, handle: Any, count: Any, entries: Any) -> None:
        device = self.device(handle)
        found = [process for process in _answer(device, "processes") if kind in process["kinds"]]
        if _resize(count, entries, len(found)):
            for entry, process in zip(_target(entries), found):
                entry.pid = process["pid"]
                entry.usedGpuMemory = UNKNOWN_MEMORY if process["bytes"] is None else process["bytes"]
                for name in ("gpuInstanceId", "computeInstanceId"):
                    if hasattr(entry, name):
                        setattr(entry, name, NO_INSTANCE)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any, count: Any, entries: Any) -> None:
        """Write which processes compute on a device."""
        self._processes("compute", handle, count, entries)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Any, count: Any, entries: Any) -> None:
        """Write which processes draw on a device."""
        self._processes("graphics", handle, count, entries)

    def nvmlDeviceGetProcessUtilization(self, handle: Any, entries: Any, count: Any, since: Any) -> None:
        """Write what processes use of a device, where that was read since a moment."""
        device, microseconds = self.device(handle), self.latest()["microseconds"]
        processes = _answer(device, "processes")
        known = [process for process in processes if process["utilization"] is not None]
        if processes and not known:
            raise RefusedError(NOT_SUPPORTED)
        if not known or _value(since) >= microseconds:
            raise RefusedError(NOT_FOUND)
        if _resize(count, entries, len(known)):
            for entry, process in zip(_target(entries), known):
                entry.pid, entry.timeStamp = process["pid"], microseconds
                entry.smUtil, entry.memUtil = process["utilization"], process["memory_utilization"] or 0

    def other(self, name: str, arguments: Any) -> None:
        """Write the answer of a function that takes a handle, numbers, and where the answer goes.

        Raises:
            RefusedError: The device has no such answer, or it is no function of a device.
        """
        if not name.startswith("nvmlDevice") or not arguments:
            raise RefusedError(NOT_SUPPORTED)
        device = self.device(arguments[0])
        if name in device["values"] and isinstance(device["values"][name], str) and len(arguments) == 3:
            return _write_text(device["values"][name], arguments[1], arguments[2])
        answer = _answer(device, ":".join([name] + [str(_value(number)) for number in arguments[1:-1]]))
        if isinstance(answer, (str, list)) or len(arguments) == 1:
            raise RefusedError(NOT_SUPPORTED)
        _target(arguments[-1]).value = answer
        return None


class NvmlStandIn:
    """What a binding takes for the loaded library.

    Args:
        binding: The module; None where no binding stands in between, and codes are returned.
        folder: Where the readings lie.
    """

    def __init__(self, binding: Any, folder: str) -> None:
        self._error = getattr(binding, "NVMLError", None)
        self._names = getattr(binding, "__dict__", None)
        self._functions = Functions(folder)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)
        if name == "nvmlErrorString":
            return lambda code: WORDS.get(_value(code), "Unknown Error").encode()
        plain = VERSION.sub("", name)
        own = getattr(self._functions, plain, None)

        def function(*arguments: Any) -> int:
            try:
                if plain in COUNTING and self._asked_by_scheduler():
                    raise RefusedError(DRIVER_NOT_LOADED)
                if own is None:
                    self._functions.other(plain, arguments)
                else:
                    own(*arguments)
            except RefusedError as refused:
                if self._error is not None and refused.code != INSUFFICIENT_SIZE:
                    raise self._error(refused.code) from None
                return refused.code
            return 0

        function.__name__ = name
        return function

    def _asked_by_scheduler(self) -> bool:
        """Return whether what called the binding places work on devices."""
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_globals is self._names:
            frame = frame.f_back
        return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in SCHEDULERS


def attach(module: Any, folder: str) -> None:
    """Give a binding's module the stand-in, where it would keep its library, and note that one was given."""
    for name in ("nvmlLib", "nvml_lib"):
        if hasattr(module, name):
            setattr(module, name, NvmlStandIn(module, folder))
    for cache in ("_nvmlGetFunctionPointer_cache", "_func_pointer_cache"):
        getattr(module, cache, {}).clear()
    try:
        with open(os.path.join(folder, "attached"), "a", encoding="utf-8"):
            pass
    except OSError:  # it is another user's
        pass
