"""MetaX GPUs, through ``libmxsml.so``, or ``mx-smi`` if the library is missing or does not support the devices.

Structs, units and error codes of the library are those of the vendor's header (2.3.1). It is used only for C-class GPUs with one die, since
the documentation does not say which die its functions for a whole device report.

The tool's summary has more digits, clocks and serial numbers. Only its table has processes and P states, and on releases without a summary
the table is used alone. Errors, the PCIe link and throttle reasons are read every ten seconds, UUIDs every ten minutes.

Each GPU of a board reports the power of the whole board. ``temp`` is the temperature that library and tool call hotspot, the only one of
the chip.

A sliced GPU (sGPU) is one device, and its slices are not reported. Moffett's tool is named ``mx-smi`` too.

Formats of the tool are those of published outputs of releases 2.1.6 to 2.3.1. Tested with a stand-in, never on a real GPU.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Iterator
from functools import partial
from typing import Any

from accelmetrics.backends.contract import Processes
from accelmetrics.backends.kit import (
    MEMORY,
    POWER_SHARE,
    Command,
    DeviceSample,
    Field,
    PolledBackend,
    PollOnce,
    Row,
    Says,
    Source,
    SourcesBackend,
    blocks,
    coded,
    figure,
    first_match,
    grouped,
    load_first,
    number,
    pcie_generation,
    quoted,
    sections,
    switched,
    table,
    text,
    whole,
)
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceProcess

PASS = "start it with --device=/dev/mxcd --device=/dev/dri"
INSTALL = "install the MetaX driver (MXMACA), which has mx-smi and libmxsml.so"
COMMAND = Command(
    "mx-smi",
    directories=("/opt/mxdriver/bin", "/opt/maca/bin", "/opt/mxn100/bin"),
    proof=("-h", r"\bmaca\b|metax"),  # Moffett's tool has the same name
    install=INSTALL,
    says=(
        Says("no available device", Reason.DRIVER_UNAVAILABLE, "mx-smi has no access to any GPU", f"in a container, {PASS}"),
        Says("PARSE ERROR: Argument", Reason.NOT_SUPPORTED, "this release of mx-smi has no such option"),
    ),
)
ACTIVE = coded(active=1, not_active=0)
SUMMARY = (
    Field("gpu", "utilization.gpu", "%"),
    Field("encoderUtilization", "utilization.vpue", "%"),
    Field("decoderUtilization", "utilization.vpud", "%"),
    Field("memoryAllocatedBytes", ("memory.vram used", "memory.vis_vram used"), "KB"),
    Field("memoryTotalBytes", ("memory.vram total", "memory.vis_vram total"), "KB"),
    *MEMORY,
    Field("temp", "hotspot", "C"),
    Field("hotspotTemp", "hotspot", "C"),
    Field("powerWatts", "board power.total", "W", of_whole=True),
    Field("enforcedPowerLimitWatts", "board power.limit", "W", of_whole=True),
    POWER_SHARE,
    Field("smClock", "clocks.xcore.xcore_clk", "MHz"),
    Field("memoryClock", "clocks.mc0.mc0_dficlk", "MHz"),
)
TABLE = (
    Field("gpu", "gpu-util", "%"),
    Field("memoryAllocatedBytes", "memory-usage.0", "MiB"),
    Field("memoryTotalBytes", "memory-usage.1", "MiB"),
    Field("temp", "temp", "C"),
    Field("hotspotTemp", "temp", "C"),
    Field("powerWatts", ("pwr:usage/cap.0", "power"), "W", of_whole=True),
    Field("enforcedPowerLimitWatts", "pwr:usage/cap.1", "W", of_whole=True),
    Field("performanceState", "perf", "1", convert=figure),
)
SLOW = (
    Field("correctedMemoryErrors", "ecc errors.dram correctable", "1"),
    Field("uncorrectedMemoryErrors", "ecc errors.dram uncorrectable", "1"),
    Field("correctedSramErrors", "ecc errors.sram correctable", "1"),
    Field("retiredPagesDoubleBit", "retired pages.double bit ecc", "1"),
    Field("eccMode", "ecc state.state", "1", convert=switched),
    Field("pcieLinkGen", "pcie info.current speed", "1", convert=pcie_generation),
    Field("pcieLinkWidth", "pcie info.current width", "1", convert=figure),
    Field("maxPcieLinkGen", "pcie info.max speed", "1", convert=pcie_generation),
    Field("maxPcieLinkWidth", "pcie info.max width", "1", convert=figure),
    Field("pcieTxBytes", "pcie bandwidth.tx", "MB/s", convert=lambda value: value.replace("MBytes", "MB")),
    Field("pcieRxBytes", "pcie bandwidth.rx", "MB/s", convert=lambda value: value.replace("MBytes", "MB")),
    Field("throttled", "held down", "1", words="mx-smi --show-clk-tr, any reason but idle, low usage and limits of applications"),
    Field("throttle.gpuIdle", "xcore clocks throttle reason.idle", "1", convert=ACTIVE),
    Field("throttle.applicationsClocksSetting", "xcore clocks throttle reason.applications limit", "1", convert=ACTIVE),
    Field("throttle.swPowerCap", "xcore clocks throttle reason.over power", "1", convert=ACTIVE),
    Field("throttle.hwPowerBrakeSlowdown", "xcore clocks throttle reason.power brake", "1", convert=ACTIVE),
)
BOTH = {"vendor_index": "index", "name": "name", "pci_bus_id": ("bus_id", "bus-id")}
IDENTITY = {**BOTH, "serial": "serial number.chip serial", "firmware": "version.bios", "driver_version": "version.kmd"}
BEGINS = r" *GPU#(?P<index>\d+) +(?P<name>\S.*?) +(?P<bus_id>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.\d)"
REASON = "Xcore Clocks Throttle Reason."
AT_REST = {f"{REASON}{name}" for name in ("Idle", "Low Usage", "Applications Limit")}
PROCESS = re.compile(r"\| *(?P<gpu>\d+) +(?P<pid>\d+) +\S.* (?P<used>\S+) *\|", re.ASCII)
LISTED = re.compile(r" *GPU#\d+ .*?(?P<bus>\S+:\S+\.\d) .*\(UUID: *(?P<uuid>[\w-]+)\)", re.ASCII)


def parse(printed: str) -> Iterator[DeviceSample]:
    """Yield the GPUs of any output with a block per GPU. Several blocks of one GPU become one sample.

    Args:
        printed: The output of the tool.

    Raises:
        SourceError: After the GPUs, if there are fewer than the tool announces.
    """
    found: dict[str, dict[str, object]] = {}
    # A last line without its end was cut off and is ignored.
    for block in sections(printed[: printed.rfind("\n") + 1], BEGINS):
        found.setdefault(block["bus_id"], {}).update(block)
    for gpu in found.values():
        # The name of the hotspot contains the number of its sensor, which differs between cards.
        hotspot = next((value for place, value in gpu.items() if place.startswith("Chip Temperature.hotspot")), None)
        reasons = {value for place, value in gpu.items() if place.startswith(REASON) and place not in AT_REST}
        down = int("Active" in reasons) if reasons and reasons <= {"Active", "Not Active"} else None
        yield DeviceSample({**gpu, "hotspot": hotspot, "held down": down}, whole=text(gpu.get("Serial Number.board serial")))
    if len(found) < (whole(first_match(printed, r"Attached GPUs *: *(\d+)")) or (not found)):
        raise SourceError(Reason.PARSE_ERROR, f"mx-smi printed fewer GPUs than are attached: {quoted(printed)}")


def parse_table(printed: str) -> Iterator[DeviceSample]:
    """Yield the GPUs of the table, with their processes.

    Raises:
        SourceError: After the complete GPUs, if the table is cut off.
    """
    versions = {name: first_match(printed, rf"{name} Version: *(\S+)") for name in ("Driver", "BIOS")}
    listed = blocks(printed, r"\| *GPU +PID +Process Name +GPU Memory")
    rows = [found.groupdict() for _, block in listed[:1] for line in block.splitlines() if (found := PROCESS.fullmatch(line.strip()))]
    using = grouped(rows, "gpu")
    for row in table(printed, r"GPU .*\| *Bus-id"):
        # A long name begins left of its heading, in the column of the board's number.
        board, _, name = f"{row.get('Board', '')} {row.get('Name') or row.get('NAME', '')}".partition(" ")
        held = ((int(each["pid"]), number(each["used"], "MiB", "By")) for each in using.get(row.get("GPU", ""), ()))
        processes = tuple(DeviceProcess(pid, memory_bytes=round(used) if isinstance(used, (int, float)) else None) for pid, used in held)
        yield DeviceSample({**row, **versions, "index": row.get("GPU"), "name": name}, processes if listed else None, whole=board)


def parse_list(printed: str) -> Iterator[DeviceSample]:
    """Yield the GPUs of ``mx-smi -L`` with a UUID. Only GPUs that this user may read have one."""
    for line in printed.splitlines():
        if found := LISTED.match(line):
            yield DeviceSample(found.groupdict())


RARE = ("--count-ecc", "--show-ecc-state", "--show-pcie", "--show-pcie-bandwidth", "--show-clk-tr")
TOOL = PolledBackend(
    "metax",
    kind="gpu",
    source="mx-smi --summary",
    connect=COMMAND.poll(parse, "--summary"),
    fields=SUMMARY,
    identity=IDENTITY,
    interval=2.0,
    also=(
        Source("mx-smi", COMMAND.poll(parse_table), TABLE, identity={**BOTH, "firmware": "bios", "driver_version": "driver"}),
        Source("mx-smi --show", COMMAND.poll(parse, *RARE), SLOW, 10.0, identity={"pci_bus_id": "bus_id"}),
        Source("mx-smi -L", COMMAND.poll(parse_list, "-L"), (), 600.0, identity={"uuid": "uuid", "pci_bus_id": "bus"}),
    ),
    processes="mx-smi, the processes below its table",
    advice=f"check whether mx-smi lists any GPU; in a container, {PASS}",
)

# The library

LIBRARIES = ("libmxsml.so", *(f"/opt/{place}/lib/libmxsml.so" for place in ("mxdriver", "maca", "mxn100")))
REINITIALISE, C_CLASS, NO_DEVICE, MISSING = 1, 2, 2, 3
ERRORS = {
    NO_DEVICE: (Reason.DRIVER_UNAVAILABLE, "there is no device"),
    MISSING: (Reason.NOT_SUPPORTED, "not supported"),
    4: (Reason.DRIVER_ERROR, "a file of the driver cannot be read"),
    6: (Reason.DEVICE_LOST, "there is no such device"),
    8: (Reason.NO_PERMISSION, "this user may not"),
    9: (Reason.NOT_SUPPORTED, "this release of the library does not know the call"),
}
INFO = struct.Struct("@2I32s2I96s2I32s")
USAGE, TEMPERATURE, CLOCKS, POWER = "mxSmlGetDeviceIpUsage", "mxSmlGetTemperatureInfo", "mxSmlGetClocks", "mxSmlGetBoardPowerInfo"
CALLS: dict[str, tuple[str, tuple[int, ...], str]] = {
    "memory": ("mxSmlGetMemoryInfo", (), "@6l"),
    **{name: (USAGE, (number,), "@i") for name, number in (("xcore", 4), ("vpue", 1), ("vpud", 2))},
    **{name: (TEMPERATURE, (number,), "@i") for name, number in (("hotspot", 0), ("hbm", 15))},
    "limit": ("mxSmlGetBoardPowerLimit", (), "@I"),
    "errors": ("mxSmlGetTotalEccErrors", (), "@5I"),
    "ecc": ("mxSmlGetEccState", (), "@I"),
    "link": ("mxSmlGetPcieInfo", (), "@fI"),
    "max link": ("mxSmlGetPcieMaxLinkInfo", (), "@fI"),
    "traffic": ("mxSmlGetPcieThroughput", (), "@2i"),
    "held down": ("mxSmlGetCurrentClocksThrottleReason", (), "@Q"),
}
"""For each place in the record a function, its arguments after the device, and the layout of its struct."""
ROOM, MOST_PROCESSES = 4096, 1024
HOLDER, ENTRY, GPUS_OF_HOLDER = struct.Struct("@I64sI"), struct.Struct("@32sI4xQ"), 64
"""Layout of a process, layout of its use of one GPU, and the number of GPUs in the struct."""
AT_REST_BITS = 0x1 | 0x2 | 0x400
"""Reasons that do not count as throttling: idle, limits that applications have set, low usage."""


def _link(speed: float) -> object:
    """Return the PCIe generation of a link. A virtual machine reads a speed of 0, which is missing."""
    return pcie_generation(speed) if speed else None


def _bit(mask: int) -> Any:
    return lambda held: int(bool(held & mask)) if isinstance(held, int) else held


LIBRARY_ROWS: tuple[Row, ...] = (
    Field("gpu", "xcore.0", "%", words=f"{USAGE}(XCORE)"),
    Field("encoderUtilization", "vpue.0", "%", words=f"{USAGE}(VPUE)"),
    Field("decoderUtilization", "vpud.0", "%", words=f"{USAGE}(VPUD)"),
    Field("memoryTotalBytes", "memory.2", "KB", words="mxSmlGetMemoryInfo"),
    Field("memoryAllocatedBytes", "memory.3", "KB", words="mxSmlGetMemoryInfo"),
    *MEMORY,
    Field("temp", "hotspot.0", "0.01 C", words=f"{TEMPERATURE}(HOTSPOT)"),
    Field("hotspotTemp", "hotspot.0", "0.01 C", words=f"{TEMPERATURE}(HOTSPOT)"),
    Field("memoryTemp", "hbm.0", "0.01 C", zero_is_missing=True, words=f"{TEMPERATURE}(HBM)"),
    Field("powerWatts", "power", "mW", of_whole=True, words=f"{POWER}, the sum of its ways"),
    Field("enforcedPowerLimitWatts", "limit.0", "mW", of_whole=True, words="mxSmlGetBoardPowerLimit"),
    POWER_SHARE,
    Field("smClock", "xcore clock", "MHz", words=f"{CLOCKS}(XCORE)"),
    Field("memoryClock", "memory clock", "MHz", words=f"{CLOCKS}(MC0)"),
    Field("correctedSramErrors", "errors.0", words="mxSmlGetTotalEccErrors"),
    Field("correctedMemoryErrors", "errors.2", words="mxSmlGetTotalEccErrors"),
    Field("uncorrectedMemoryErrors", "errors.3", words="mxSmlGetTotalEccErrors"),
    Field("eccMode", "ecc.0", words="mxSmlGetEccState"),
    Field("pcieLinkGen", "link.0", convert=_link, words="mxSmlGetPcieInfo"),
    Field("pcieLinkWidth", "link.1", words="mxSmlGetPcieInfo"),
    Field("maxPcieLinkGen", "max link.0", convert=_link, words="mxSmlGetPcieMaxLinkInfo"),
    Field("maxPcieLinkWidth", "max link.1", words="mxSmlGetPcieMaxLinkInfo"),
    Field("pcieRxBytes", "traffic.0", "MB/s", words="mxSmlGetPcieThroughput"),
    Field("pcieTxBytes", "traffic.1", "MB/s", words="mxSmlGetPcieThroughput"),
    *(
        Field(metric, "held down.0", "1", convert=_bit(mask), words="mxSmlGetCurrentClocksThrottleReason")
        for metric, mask in (
            ("throttled", ~AT_REST_BITS),
            ("throttle.gpuIdle", 0x1),
            ("throttle.applicationsClocksSetting", 0x2),
            ("throttle.swPowerCap", 0x4),
            ("throttle.hwPowerBrakeSlowdown", 0x100),
        )
    ),
)


def connect() -> PollOnce:
    """Load and initialise the library, and return a poll of its GPUs.

    Raises:
        SourceError: The library is missing, has no device, or has a device that is not supported.
    """
    library: Any = load_first("libmxsml.so", LIBRARIES, INSTALL, broken=INSTALL)
    code = library.mxSmlInit()
    if code == NO_DEVICE:  # no other part of the program uses a device, so it is safe to search for devices again
        code = getattr(library, "mxSmlInitWithFlags", lambda _: NO_DEVICE)(REINITIALISE)
    if code:
        raise SourceError(*_why("mxSmlInit", code), advice=f"in a container, {PASS}" if code == NO_DEVICE else "")
    for index in range(library.mxSmlGetDeviceCount()):
        info, dies = _info(library, index), ctypes.c_uint(1)
        getattr(library, "mxSmlGetDeviceDieCount", lambda *_: 0)(index, ctypes.byref(dies))
        if not isinstance(info, Unavailable) and (info[6] != C_CLASS or dies.value != 1):
            raise SourceError(Reason.NOT_SUPPORTED, "libmxsml.so is supported only for C-class GPUs with one die")
    return partial(poll, library)


def poll(library: Any) -> Iterator[DeviceSample]:
    """Yield a sample for each GPU. A GPU that the library refuses does not affect the others.

    Raises:
        SourceError: After the GPUs, why one was refused, unless it is lost.
    """
    failure: Unavailable | None = None
    for index in range(library.mxSmlGetDeviceCount()):
        info = _info(library, index)
        if isinstance(info, Unavailable):
            failure = info
            continue
        address, uuid, name = (info[place].partition(b"\0")[0].decode("utf-8", "replace") for place in (2, 5, 8))
        record: dict[str, Any] = {place: _ask(library, index, *call) for place, call in CALLS.items()}
        # Clock domains of the vendor's header: 11 is XCORE, 3 is MC0.
        for place, domain in (("xcore clock", 11), ("memory clock", 3)):
            clocks = _counted(library, CLOCKS, (index, domain), 16, 1)
            record[place] = clocks[0] if clocks and not isinstance(clocks, Unavailable) else clocks or None
        # A board has up to three supplies, each with its voltage, current and power. The board's power is their sum.
        supplies = _counted(library, POWER, (index,), 3, 3)
        record["power"] = supplies if isinstance(supplies, Unavailable) else sum(supplies[2::3]) if supplies else None
        record |= {"index": index, "address": address, "uuid": uuid, "name": name, "serial": _text(library, "mxSmlGetChipSerial", index)}
        record |= {
            "driver": _text(library, "mxSmlGetDeviceVersion", index, 1),
            "firmware": _text(library, "mxSmlGetDeviceVersion", index, 0),
        }
        yield DeviceSample(record, _processes(library, index, info[2]), whole=_text(library, "mxSmlGetBoardSerial", index))
    if failure is not None and failure.reason != Reason.DEVICE_LOST:
        raise SourceError(*failure)


def _why(function: str, code: int) -> Unavailable:
    reason, words = ERRORS.get(code, (Reason.DRIVER_ERROR, f"error {code}"))
    return Unavailable(reason, f"{function}: {words}")


def _info(library: Any, index: int) -> tuple[Any, ...] | Unavailable:
    """Return the identity of a GPU, or why it is unknown."""
    buffer = ctypes.create_string_buffer(ROOM)
    code = library.mxSmlGetDeviceInfo(index, buffer)
    return _why("mxSmlGetDeviceInfo", code) if code else INFO.unpack_from(buffer)


def _ask(library: Any, index: int, name: str, arguments: tuple[int, ...], layout: str) -> list[Any]:
    """Return the numbers of a function's struct, or the reason in place of each number."""
    buffer, function = ctypes.create_string_buffer(ROOM), getattr(library, name, None)
    code = MISSING if function is None else function(index, *arguments, buffer)
    values = list(struct.unpack_from(layout, buffer))
    return [_why(name, code)] * len(values) if code else values


def _counted(library: Any, name: str, arguments: tuple[int, ...], most: int, each: int) -> list[int] | Unavailable:
    """Return the numbers of a list with a length that the function reports. Each entry has ``each`` numbers."""
    count, numbers = ctypes.c_uint(most), (ctypes.c_uint * (most * each))()
    code = getattr(library, name)(*arguments, ctypes.byref(count), numbers)
    return _why(name, code) if code else list(numbers)[: min(count.value, most) * each]


def _text(library: Any, name: str, *arguments: int) -> str:
    size, buffer = ctypes.c_uint(64), ctypes.create_string_buffer(64)
    function = getattr(library, name, lambda *_: MISSING)
    return "" if function(*arguments, buffer, ctypes.byref(size)) else buffer.value.decode("utf-8", "replace")


def _processes(library: Any, index: int, address: bytes) -> Processes:
    """Return the processes of a GPU with their memory on it."""
    name, room, stride = "mxSmlGetSingleGpuProcess", 32, HOLDER.size + GPUS_OF_HOLDER * ENTRY.size
    # A full buffer may be incomplete, so it is enlarged and the call repeated.
    while True:
        count, buffer = ctypes.c_uint(room), ctypes.create_string_buffer(stride * room)
        if code := library.mxSmlGetSingleGpuProcess(index, ctypes.byref(count), buffer):
            return _why(name, code)
        if count.value < room or room >= MOST_PROCESSES:
            break
        room *= 4
    found = []
    for place in range(min(count.value, room)):
        pid, _, gpus = HOLDER.unpack_from(buffer, place * stride)
        entries = (ENTRY.unpack_from(buffer, place * stride + HOLDER.size + each * ENTRY.size) for each in range(min(gpus, GPUS_OF_HOLDER)))
        # A process may hold memory on several GPUs. Only the memory on this GPU counts.
        found.append(DeviceProcess(pid, "compute", sum(held for at, _, held in entries if at == address)))
    return tuple(found)


LIBRARY = PolledBackend(
    "metax",
    kind="gpu",
    source="mxsml",
    connect=connect,
    fields=LIBRARY_ROWS,
    identity={
        **{"vendor_index": "index", "name": "name", "uuid": "uuid", "pci_bus_id": "address", "serial": "serial"},
        **{"driver_version": "driver", "firmware": "firmware"},
    },
    interval=2.0,
    processes="mxSmlGetSingleGpuProcess()",
    advice=f"check whether mx-smi lists any GPU; in a container, {PASS}",
)
backend = SourcesBackend("metax", "gpu", {"mxsml": LIBRARY, "mx-smi": TOOL})
