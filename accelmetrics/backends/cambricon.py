"""Cambricon MLUs, through ``libcndev.so``, or ``cnmon`` if the library is missing, refuses, or is older than release 6.

Layouts and units are those of the vendor's header (6.5). Its exporter takes one MB as 1,048,576 bytes. ``cnmon`` prints a table, ``cnmon
info`` a list that also has the temperatures of chip and memory. The table has a temperature too, but no document names its sensor, so it is
not read.

The table is that of a published output of release 5.10; the list is known from programs that parse it. Never tested on a real MLU.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from accelmetrics.backends.contract import Processes
from accelmetrics.backends.kit import (
    MEMORY,
    POWER_SHARE,
    Command,
    Derived,
    DeviceSample,
    Field,
    PolledBackend,
    PollOnce,
    Source,
    figure,
    first_match,
    load_first,
    pcie_generation,
    sections,
    table,
)
from accelmetrics.backends.kit.system import PCI_ADDRESS
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceProcess

LIBRARIES = ("libcndev.so", "/usr/local/neuware/lib64/libcndev.so", "/usr/lib64/libcndev.so")
INSTALL = "install Cambricon's driver, which has libcndev.so and cnmon"
PLAIN = {
    "cndevGetPCIeInfoV2": "@2I2H4I2H8I",
    "cndevGetMemoryUsageV2": "@5qQ16Q",
    "cndevGetDevicePowerInfo": "@21i",
}
"""Layout of each function's struct, in the notation of :mod:`struct`."""
# These structs begin with the number of their layout. The library refuses a number that it does not know.
NUMBERED = {
    "cndevGetUUID": "@i37sQ",
    "cndevGetVersionInfo": "@i6I",
    "cndevGetDeviceUtilizationInfo": "@82i",
    "cndevGetTemperatureInfo": "@37i",
    "cndevGetFrequencyInfo": "@3i2BH20H3i",
    "cndevGetCurrentPCIInfo": "@3i",
    "cndevGetMaxPCIInfo": "@3i",
    "cndevGetPcieReplayCounter": "@iI",
    "cndevGetPerformanceThrottleReason": "@7i",
    "cndevGetMemEccCounter": "@i5I5Q?11Q",
}
VERSION = struct.Struct("@i3I")
NUMBER = struct.Struct("@iI")
"""The number of a layout, and one value."""
PROCESS = struct.Struct("@iIQQ")
API = 6
ROOM = 4096
"""Size of a buffer in bytes: ten times the largest struct."""
ERRORS = {
    1: (Reason.DRIVER_UNAVAILABLE, "the driver is not loaded"),
    2: (Reason.DRIVER_UNAVAILABLE, "the driver is older than the library"),
    3: (Reason.NOT_SUPPORTED, "the library has another layout"),
    6: (Reason.DEVICE_LOST, "there is no such device"),
    10: (Reason.NOT_SUPPORTED, "not supported"),
    12: (Reason.DRIVER_UNAVAILABLE, "there is no device"),
    13: (Reason.NO_PERMISSION, "this user may not"),
    17: (Reason.TIMED_OUT, "the device did not answer"),
}
ECC_OFF = Unavailable(Reason.NOT_SUPPORTED, "ECC is switched off")
POWER, ECC, PCI = "cndevGetDevicePowerInfo", "cndevGetMemEccCounter", "cndevGetPCIeInfoV2"
THROTTLE = "cndevGetPerformanceThrottleReason"
FREE = Derived(
    "memoryFreeBytes",
    ("memoryTotalBytes", "memoryAllocatedBytes", "_reserve"),
    lambda all_, used, reserve: all_ - used - reserve,
    "memoryTotalBytes - memoryAllocatedBytes - the driver's reserve",
)
# A place is a function and the position of the number in the function's struct.
CNDEV = (
    Field("utilization", "cndevGetDeviceUtilizationInfo.1", "%"),
    Field("memoryTotalBytes", "cndevGetMemoryUsageV2.0", "MiB"),
    Field("memoryAllocatedBytes", "cndevGetMemoryUsageV2.1", "MiB"),
    Field("_reserve", "cndevGetMemoryUsageV2.2", "MiB"),
    MEMORY[0],
    FREE,
    Field("temp", "cndevGetTemperatureInfo.30", "C"),
    Field("memoryTemp", "cndevGetTemperatureInfo.33", "C", zero_is_missing=True),
    Field("powerWatts", f"{POWER}.0", "W"),
    Field("enforcedPowerLimitWatts", f"{POWER}.1", "W"),
    POWER_SHARE,
    Field("smClock", "cndevGetFrequencyInfo.1", "MHz"),
    Field("maxSmClock", "cndevGetFrequencyInfo.28", "MHz"),
    Field("pcieLinkGen", "cndevGetCurrentPCIInfo.1"),
    Field("pcieLinkWidth", "cndevGetCurrentPCIInfo.2"),
    Field("maxPcieLinkGen", "cndevGetMaxPCIInfo.1"),
    Field("maxPcieLinkWidth", "cndevGetMaxPCIInfo.2"),
    Field("pcieReplays", "cndevGetPcieReplayCounter.1"),
    Field("throttle.applicationsClocksSetting", f"{THROTTLE}.3"),
    Field("throttle.hwPowerBrakeSlowdown", f"{THROTTLE}.5"),
    Field("_tdp", f"{THROTTLE}.1", "1"),
    Field("_cap", f"{THROTTLE}.2", "1"),
    Derived("throttle.swPowerCap", ("_tdp", "_cap"), max, f"{THROTTLE}: TDP or the limit that is set"),
    Field("_heat", f"{THROTTLE}.6", "1"),
    Derived("throttled", ("throttle.swPowerCap", "throttle.hwPowerBrakeSlowdown", "_heat"), max, f"{THROTTLE}: power, brake or heat"),
    Field("correctedMemoryErrors", f"{ECC}.4"),
    Field("uncorrectedMemoryErrors", f"{ECC}.5"),
    Field("correctedMemoryErrorsAggregate", f"{ECC}.6"),
    Field("uncorrectedMemoryErrorsAggregate", f"{ECC}.7"),
    Field("correctedSramErrors", f"{ECC}.1"),
    Field("uncorrectedSramSecDedErrors", f"{ECC}.2"),
    Field("uncorrectedSramParityErrors", f"{ECC}.3"),
    Field("correctedSramErrorsAggregate", f"{ECC}.8"),
    Field("uncorrectedSramSecDedErrorsAggregate", f"{ECC}.9"),
    Field("uncorrectedSramParityErrorsAggregate", f"{ECC}.10"),
)
TABLE = (
    Field("utilization", "Util", "%"),
    Field("memoryAllocatedBytes", "Memory-Usage.0", "MiB"),
    Field("memoryTotalBytes", "Memory-Usage.1", "MiB"),
    *MEMORY,
    Field("powerWatts", "Pwr:Usage/Cap.0", "W"),
    Field("enforcedPowerLimitWatts", "Pwr:Usage/Cap.1", "W"),
    POWER_SHARE,
    Field("fanSpeed", "Fan", "%", zero_is_missing=True),  # cards without a fan print 0%
)
LIST = (
    Field("utilization", "Utilization.MLU Average", "%"),
    Field("memoryTotalBytes", "Physical Memory Usage.Total", "MiB"),
    Field("memoryAllocatedBytes", "Physical Memory Usage.Used", "MiB"),
    *MEMORY,
    Field("temp", "Temperature.Chip", "C"),
    Field("memoryTemp", "Temperature.Memory", "C"),
    Field("powerWatts", "Power.Usage", "W"),
    Field("enforcedPowerLimitWatts", "Power.Cap", "W"),
    POWER_SHARE,
    Field("pcieLinkGen", "PCI.Current Speed", convert=pcie_generation),
    Field("pcieLinkWidth", "PCI.Current Width", convert=figure),
    Field("maxPcieLinkGen", "PCI.Max Speed", convert=pcie_generation),
    Field("maxPcieLinkWidth", "PCI.Max Width", convert=figure),
)
MIB, MOST_PROCESSES = 2**20, 4096
NO_DRIVER, TOO_SHORT, MISSING = 1, 9, 10
PROCESS_ROW = re.compile(r"\|\s+(\d{1,4})\s+\S+\s+(\d{1,10})\s[^|]*?(\d{1,9})\s*MiB\s*\|", re.ASCII)
"""Card, VF, process, optional command, memory."""


def connect() -> PollOnce:
    """Load and initialise the library, and return a poll of its devices.

    Raises:
        SourceError: The library is missing, too old, or cannot be initialised.
    """
    library: Any = load_first("libcndev.so", LIBRARIES, INSTALL, broken=INSTALL)
    version = ctypes.create_string_buffer(VERSION.pack(API, 0, 0, 0))
    # The layouts below are those of release 6. An older library would have others.
    if library.cndevGetLibVersion(version) or VERSION.unpack_from(version)[1] < API:
        raise SourceError(Reason.DRIVER_UNAVAILABLE, f"libcndev.so is older than release {API}, which is not supported")
    if code := library.cndevInit(0):
        raise SourceError(*_why("cndevInit", code), advice="load the kernel driver, cambricon-drv" if code == NO_DRIVER else "")
    return partial(poll, library)


def poll(library: Any) -> Iterator[DeviceSample]:
    """Yield a sample for each device. A device that the library refuses does not affect the others.

    Raises:
        SourceError: After the devices, why one was refused, unless it is lost.
    """
    count = ctypes.create_string_buffer(NUMBER.pack(API, 0))
    if code := library.cndevGetDeviceCount(count):
        raise SourceError(*_why("cndevGetDeviceCount", code))
    failure: Unavailable | None = None
    for index in range(NUMBER.unpack_from(count)[1]):
        handle = ctypes.c_int(index)
        if code := library.cndevGetDeviceHandleByIndex(index, ctypes.byref(handle)):
            failure = _why("cndevGetDeviceHandleByIndex", code)
            continue
        record: dict[str, Any] = {name: _ask(library, name, layout, handle) for name, layout in (PLAIN | NUMBERED).items()}
        if _ecc_is_off(library, handle):
            record[ECC] = [ECC_OFF] * len(record[ECC])
        yield DeviceSample({**record, "index": index, **_identity(library, handle, record)}, _processes(library, handle))
    if failure is not None and failure.reason != Reason.DEVICE_LOST:
        raise SourceError(*failure)


def _ask(library: Any, name: str, layout: str, handle: ctypes.c_int) -> list[Any]:
    """Return the numbers of a function's struct, or the reason in place of each number."""
    buffer = ctypes.create_string_buffer(ROOM)
    if name in NUMBERED:
        struct.pack_into("@i", buffer, 0, API)
    function = getattr(library, name, None)
    code = MISSING if function is None else function(buffer, handle)
    values = list(struct.unpack_from(layout, buffer))
    return [_why(name, code)] * len(values) if code else values


def _why(name: str, code: int) -> Unavailable:
    reason, words = ERRORS.get(code, (Reason.DRIVER_ERROR, f"error {code}"))
    return Unavailable(reason, f"{name}: {words}")


def _ecc_is_off(library: Any, handle: ctypes.c_int) -> bool:
    """Return whether ECC is switched off; False if the device does not report it."""
    # Without ECC the error counters are zeros that nothing counts. The second mode is the one after the next start.
    modes = [ctypes.create_string_buffer(NUMBER.pack(API, 1)) for _ in ("now", "after the next start")]
    ask = getattr(library, "cndevGetEccMode", None)
    return ask is not None and ask(*modes, handle) == 0 and NUMBER.unpack_from(modes[0])[1] == 0


def _identity(library: Any, handle: ctypes.c_int, record: Mapping[str, Any]) -> dict[str, str]:
    """Return the known parts of a device's identity, as texts."""
    found = {}
    if (name := getattr(library, "cndevGetCardNameStringByDevId", None)) is not None:
        name.restype = ctypes.c_char_p
        found["name"] = (name(handle) or b"").decode("utf-8", "replace")
    _, uuid, _ = record["cndevGetUUID"]
    if isinstance(uuid, bytes):
        found["uuid"] = uuid.partition(b"\0")[0].decode("ascii", "replace")
    place, version = record[PCI][4:8], record["cndevGetVersionInfo"][4:7]
    if not isinstance(place[0], Unavailable):
        found["address"] = "{:04x}:{:02x}:{:02x}.{:x}".format(*place)
    if not isinstance(version[0], Unavailable):
        found["driver"] = ".".join(map(str, version))
    return found


def _processes(library: Any, handle: ctypes.c_int) -> Processes:
    """Return the processes of a device with their memory on it."""
    if not hasattr(library, "cndevGetProcessInfo"):
        return _why("cndevGetProcessInfo", MISSING)
    code, room = TOO_SHORT, 64
    for _ in range(3):  # more processes may start between two calls
        count, buffer = ctypes.c_uint(room), ctypes.create_string_buffer(PROCESS.pack(API, 0, 0, 0) * room)
        code = library.cndevGetProcessInfo(ctypes.byref(count), buffer, handle)
        if code != TOO_SHORT:
            break
        room = min(2 * count.value, MOST_PROCESSES)
    if code:
        return _why("cndevGetProcessInfo", code)
    rows = PROCESS.iter_unpack(buffer.raw[: PROCESS.size * min(count.value, room)])
    # The library reports KiB.
    return tuple(DeviceProcess(pid, "compute", physical * 1024) for _, pid, physical, _ in rows if pid)


def parse(text: str) -> Iterator[DeviceSample]:
    """Parse the table of ``cnmon``, and the table of processes below it."""
    driver = first_match(text, r"Driver +v?(\S+)")
    on_each: dict[str, dict[int, int]] = {}
    for card, pid, memory in PROCESS_ROW.findall(text):
        held = on_each.setdefault(card, {})
        held[int(pid)] = held.get(int(pid), 0) + int(memory) * MIB
    is_listed = re.search(r"process", text, re.IGNORECASE) is not None
    for device in table(text, r"Card +(VF +)?Name"):
        held = on_each.get(device.get("Card", ""), {})
        processes = tuple(DeviceProcess(pid, "compute", memory) for pid, memory in held.items())
        yield DeviceSample({**device, "driver": driver}, processes if is_listed else None)


def parse_list(text: str) -> Iterator[DeviceSample]:
    """Parse the output of ``cnmon info``."""
    for card in sections(text, r"\s*Card\s+(?P<card>\d+)\s*$"):
        record = {key.lower(): value for key, value in card.items()}
        place = [record.get(f"pci.{part}", "") for part in ("domain id", "bus num", "device", "function")]
        address = "{}:{:0>2}:{:0>2}.{}".format(*place) if all(place) else ""
        yield DeviceSample({**record, "address": address if PCI_ADDRESS.fullmatch(address.lower()) else ""})


CNMON = Command("cnmon", directories=("/usr/local/neuware/bin",), install=INSTALL, timeout=4.0)
CNMON_INFO = Command("cnmon", ("info",), directories=("/usr/local/neuware/bin",), install=INSTALL, timeout=4.0)
backend = PolledBackend(
    "cambricon",
    kind="npu",
    source="cndev",
    connect=connect,
    fields=CNDEV,
    identity={"vendor_index": "index", "name": "name", "uuid": "uuid", "pci_bus_id": "address", "driver_version": "driver"},
    interval=2.0,
    also=(
        Source(
            "cnmon",
            CNMON.poll(parse),
            TABLE,
            identity={"vendor_index": "Card", "name": "Name", "pci_bus_id": "Bus-Id", "driver_version": "driver", "firmware": "Firmware"},
            instead_of="cndev",
        ),
        Source(
            "cnmon info",
            CNMON_INFO.poll(parse_list),
            LIST,
            identity={"vendor_index": "card", "name": "product name", "uuid": "uuid", "pci_bus_id": "address", "driver_version": "driver"},
            instead_of="cndev",
        ),
    ),
    processes="cndevGetProcessInfo(); else the table of cnmon",
    advice="check whether cnmon lists any card; dmesg may show why not",
)
