"""NVML's functions, which answer from the readings of ``accelmetrics run --as-nvml``. A binding calls them instead of the library.

A function takes the arguments of the C function (ctypes values, and pointers made by ``byref``) and returns a return code. An error is
raised at once as the binding's ``NVMLError``, because some functions of the binding do not check the code. A reading has the answers of a
device in NVML's units, under the name of the function followed by its numeric arguments (``nvmlDeviceGetClockInfo:1``). Functions without
an answer there are not supported.

This file runs in Python 3.6 and later, without accelmetrics.
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
"""NVML's types of a field's value."""
ASCII = 1
"""NVML's format of a UUID that is a text."""
COUNTING = ("nvmlInit", "nvmlInitWithFlags", "nvmlDeviceGetCount")
# Packages that place work on the devices that they count. CUDA has none of these devices, so the answer to these packages is that no driver
# is loaded. Most of their releases have a private copy of the binding, which is left alone. The others use the program's binding.
SCHEDULERS = ("dask_cuda", "ray", "sglang", "vllm")
VERSION = re.compile(r"_v\d+$")
PCI = re.compile(r"(?:([0-9a-f]+):)?([0-9a-f]+):([0-9a-f]+)(?:\.([0-9a-f]))?$", re.IGNORECASE)


class RefusedError(Exception):
    """An error with NVML's return code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _value(argument: Any) -> Any:
    """Return the plain value of an argument: a number, bytes."""
    return getattr(argument, "value", argument)


def _target(pointer: Any) -> Any:
    """Return the object behind ``byref`` or ``pointer``. An array is returned itself."""
    if hasattr(pointer, "_obj"):
        return pointer._obj
    return pointer.contents if hasattr(pointer, "contents") else pointer


def _text(argument: Any) -> str:
    value = _value(argument)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _write_text(words: str, buffer: Any, length: Any) -> None:
    """Write a text into a buffer.

    Raises:
        RefusedError: The text does not fit.
    """
    data = words.encode("utf-8")
    if len(data) >= _value(length):
        raise RefusedError(INSUFFICIENT_SIZE)
    buffer.value = data


def _address(words: str) -> "tuple[int, ...]":
    """Return domain, bus, device and function of a PCI address. Empty if the text is no PCI address."""
    found = PCI.match(words.strip())
    return tuple(int(part or "0", 16) for part in found.groups()) if found else ()


def _answer(device: Any, name: str) -> Any:
    """Return the answer of a device under a name.

    Raises:
        RefusedError: The reading has an error code for it, or nothing.
    """
    if name in device["values"]:
        return device["values"][name]
    raise RefusedError(device["errors"].get(name, NOT_SUPPORTED))


def _resize(count: Any, entries: Any, wanted: int) -> bool:
    """Write the number of entries. Return whether the caller has an array for them.

    Raises:
        RefusedError: The array is missing or too small. The caller then asks again with a larger one.
    """
    room = _target(count)
    had, room.value = room.value, wanted
    if wanted and (entries is None or had < wanted):
        raise RefusedError(INSUFFICIENT_SIZE)
    return entries is not None


class Functions:
    """NVML's functions, by name without a version, answered from the latest reading.

    Functions with the usual arguments (a handle, numbers, and a pointer to the answer) are all served by ``other``.

    Args:
        folder: The folder of the readings.
    """

    # A handle must be a valid pointer, because programs pass it on as one. So it is the address of a byte that we own. It belongs to the
    # device's anchor and stays valid when the device's index changes.

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "reading.json")
        self._latest: Any = (None, {})
        self._bytes: "dict[str, Any]" = {}
        self._anchors: "dict[int, str]" = {}

    def latest(self) -> Any:
        """Return the latest reading.

        Raises:
            RefusedError: There is none, or it is too old, because its writer has ended or hangs.
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
        """Return the handle of a device."""
        address = ctypes.addressof(self._bytes.setdefault(device["anchor"], ctypes.c_char()))
        self._anchors[address] = device["anchor"]
        return address

    def device(self, handle: Any) -> Any:
        """Return a device of the latest reading by its handle.

        Raises:
            RefusedError: The handle is invalid, or the device is no longer in the reading.
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

    def nvmlInit(self, *_flags: Any) -> None:
        """Initialise the library. Without a device, the driver is not loaded."""
        if not self.latest()["devices"]:
            raise RefusedError(DRIVER_NOT_LOADED)

    nvmlInitWithFlags = nvmlInit

    def nvmlShutdown(self) -> None:
        """Do nothing."""

    def nvmlSystemGetDriverVersion(self, buffer: Any, length: Any) -> None:
        """Write the version of the vendor's driver."""
        words = self.latest()["driver_version"]
        if not words:
            raise RefusedError(NOT_SUPPORTED)
        _write_text(words, buffer, length)

    def nvmlDeviceGetCount(self, count: Any) -> None:
        """Write the number of devices."""
        _target(count).value = len(self.latest()["devices"])

    def nvmlDeviceGetHandleByIndex(self, index: Any, handle: Any) -> None:
        """Write the handle of the device with an index."""
        devices = self.latest()["devices"]
        if not 0 <= _value(index) < len(devices):
            raise RefusedError(INVALID_ARGUMENT)
        self._write_handle(devices[_value(index)], handle)

    def _find(self, handle: Any, wanted: Any, read: Any) -> None:
        """Write the handle of the first device for which ``read`` returns ``wanted``."""
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
        """Write the handle of the device with a UUID in text format. Other formats find no device."""
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
        """Write the current index of a device."""
        _target(index).value = self.latest()["devices"].index(self.device(handle))

    def nvmlDeviceGetPciInfo(self, handle: Any, info: Any) -> None:
        """Write a PCI address. The ids of vendor and model are not known and stay 0."""
        domain, bus, slot, function = _address(_answer(self.device(handle), "nvmlDeviceGetPciInfo"))
        target = _target(info)
        target.domain, target.bus, target.device = domain, bus, slot
        target.busId = ("%08X:%02X:%02X.%X" % (domain, bus, slot, function)).encode()
        if hasattr(target, "busIdLegacy"):
            target.busIdLegacy = ("%04X:%02X:%02X.%X" % (domain, bus, slot, function)).encode()

    def nvmlDeviceGetMemoryInfo(self, handle: Any, info: Any) -> None:
        """Write total, used and free memory."""
        # Version 1 counts the driver's reserve as used. Version 2 has a member for it.
        total, used, free = _answer(self.device(handle), "nvmlDeviceGetMemoryInfo")
        target = _target(info)
        target.total, target.free, target.used = total, free, total - free
        if hasattr(target, "reserved"):
            target.used, target.reserved = used, total - free - used

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> None:
        """Write the utilisation of the device and of its memory controller."""
        # One call returns both. If the memory's share is not known it is 0, because an error would hide the other share too.
        device, target = self.device(handle), _target(rates)
        target.gpu = _answer(device, "nvmlDeviceGetUtilizationRates")
        target.memory = device["values"].get("memory", 0)

    def nvmlDeviceGetTemperatureV(self, handle: Any, temperature: Any) -> None:
        """Write a temperature."""
        target = _target(temperature)
        target.temperature = _answer(self.device(handle), "nvmlDeviceGetTemperature:%d" % target.sensorType)

    def nvmlDeviceGetEncoderUtilization(self, handle: Any, share: Any, _period: Any) -> None:
        """Write the encoder's utilisation. The sampling period is not known and stays 0."""
        _target(share).value = _answer(self.device(handle), "nvmlDeviceGetEncoderUtilization")

    def nvmlDeviceGetDecoderUtilization(self, handle: Any, share: Any, _period: Any) -> None:
        """Write the decoder's utilisation. The sampling period is not known and stays 0."""
        _target(share).value = _answer(self.device(handle), "nvmlDeviceGetDecoderUtilization")

    def nvmlDeviceGetFieldValues(self, handle: Any, count: Any, fields: Any) -> None:
        """Write the values of several fields, each with its return code. Fields with a scope (a link) are not supported."""
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
            # A counter of energy may need 64 bits. Other values fit into the type that NVIDIA's driver uses for them.
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
        """Write the processes that compute on a device."""
        self._processes("compute", handle, count, entries)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: Any, count: Any, entries: Any) -> None:
        """Write the processes that draw on a device."""
        self._processes("graphics", handle, count, entries)

    def nvmlDeviceGetProcessUtilization(self, handle: Any, entries: Any, count: Any, since: Any) -> None:
        """Write the utilisation of each process, if it was read after the time ``since``."""
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
        """Write the answer of a function that takes a handle, numbers, and a pointer to the answer.

        Raises:
            RefusedError: The device has no answer, or the function is not about a device.
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
    """The object that a binding uses as the loaded library.

    Args:
        binding: The binding's module. None if a program calls the library without a binding. Then errors are returned as codes.
        folder: The folder of the readings.
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
                if plain in COUNTING and self._called_by_scheduler():
                    raise RefusedError(DRIVER_NOT_LOADED)
                if own is None:
                    self._functions.other(plain, arguments)
                else:
                    own(*arguments)
            except RefusedError as refused:
                # Bindings expect the code INSUFFICIENT_SIZE and ask again with a larger array.
                if self._error is not None and refused.code != INSUFFICIENT_SIZE:
                    raise self._error(refused.code) from None
                return refused.code
            return 0

        function.__name__ = name
        return function

    def _called_by_scheduler(self) -> bool:
        """Return whether the caller of the binding belongs to a package that places work on devices."""
        # The first frames may be the binding's own.
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_globals is self._names:
            frame = frame.f_back
        return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in SCHEDULERS


def attach(module: Any, folder: str) -> None:
    """Replace the library of a binding's module, and leave a mark in the folder that a binding uses the readings."""
    for name in ("nvmlLib", "nvml_lib"):
        if hasattr(module, name):
            setattr(module, name, NvmlStandIn(module, folder))
    # The cache may have functions of a library that the binding loaded before.
    for cache in ("_nvmlGetFunctionPointer_cache", "_func_pointer_cache"):
        getattr(module, cache, {}).clear()
    try:
        with open(os.path.join(folder, "attached"), "a", encoding="utf-8"):
            pass
    except OSError:  # the program runs as another user, who may not write there
        pass
