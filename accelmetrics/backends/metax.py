"""MetaX GPUs, through ``mx-smi``: its summary, and the table that it prints without arguments.

The summary has more digits, clocks and serial numbers; the table alone has the processes and P states, and stands in on releases that have
no summary. Errors, the PCIe link and why clocks are low are asked for every ten seconds, UUIDs every ten minutes. The board's power is
printed for each of its GPUs. ``temp`` is what the tool prints as ``Temp``: the hotspot, its only temperature of the chip.

A sliced GPU (sGPU) is one device; what its slices use is not told by their numbers. Moffett's tool has the name ``mx-smi`` too.

Formats are those of published outputs of releases 2.1.6 to 2.3.1. Read on a stand-in, never yet on a real GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from accelmetrics.backends.kit import (
    MEMORY,
    POWER_SHARE,
    Command,
    DeviceSample,
    Field,
    PolledBackend,
    Says,
    Source,
    blocks,
    coded,
    figure,
    first_match,
    grouped,
    number,
    quoted,
    sections,
    switched,
    table,
    text,
    whole,
)
from accelmetrics.backends.kit.fields import pcie_generation
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceProcess

PASS = "start it with --device=/dev/mxcd --device=/dev/dri"
COMMAND = Command(
    "mx-smi",
    directories=("/opt/mxdriver/bin", "/opt/maca/bin", "/opt/mxn100/bin"),
    proof=("-h", r"\bmaca\b|metax"),
    install="install the MetaX driver (MXMACA), which has mx-smi",
    says=(
        Says("no available device", Reason.DRIVER_UNAVAILABLE, "mx-smi has no GPU that it may read", f"in a container, {PASS}"),
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
    Field("pcieTxBytes", "pcie bandwidth.tx", "MB/s", convert=lambda said: said.replace("MBytes", "MB")),
    Field("pcieRxBytes", "pcie bandwidth.rx", "MB/s", convert=lambda said: said.replace("MBytes", "MB")),
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
    """Yield the GPUs of any output that has a block for each: one sample for all blocks of a GPU.

    Args:
        printed: What the tool printed. A last line that has no end is cut, and passed over.

    Raises:
        SourceError: After the GPUs, that there are fewer than the tool says.
    """
    found: dict[str, dict[str, object]] = {}
    for block in sections(printed[: printed.rfind("\n") + 1], BEGINS):
        found.setdefault(block["bus_id"], {}).update(block)
    for gpu in found.values():
        # The number of the hotspot's sensor is part of its name, and another one at times.
        hotspot = next((said for place, said in gpu.items() if place.startswith("Chip Temperature.hotspot")), None)
        held = {said for place, said in gpu.items() if place.startswith(REASON) and place not in AT_REST}
        down = int("Active" in held) if held and held <= {"Active", "Not Active"} else None
        yield DeviceSample({**gpu, "hotspot": hotspot, "held down": down}, whole=text(gpu.get("Serial Number.board serial")))
    if len(found) < (whole(first_match(printed, r"Attached GPUs *: *(\d+)")) or (not found)):
        raise SourceError(Reason.PARSE_ERROR, f"mx-smi printed fewer GPUs than are attached: {quoted(printed)}")


def parse_table(printed: str) -> Iterator[DeviceSample]:
    """Yield the GPUs of the table, with their processes. Raises ``SourceError`` where it is cut, after the GPUs that are whole."""
    versions = {name: first_match(printed, rf"{name} Version: *(\S+)") for name in ("Driver", "BIOS")}
    listed = blocks(printed, r"\| *GPU +PID +Process Name +GPU Memory")
    rows = [found.groupdict() for _, block in listed[:1] for line in block.splitlines() if (found := PROCESS.fullmatch(line.strip()))]
    using = grouped(rows, "gpu")
    for row in table(printed, r"GPU .*\| *Bus-id"):
        # A name may begin left of its heading, in the column of the board's number.
        board, _, name = f"{row.get('Board', '')} {row.get('Name') or row.get('NAME', '')}".partition(" ")
        on_it = ((int(each["pid"]), number(each["used"], "MiB", "By")) for each in using.get(row.get("GPU", ""), ()))
        processes = tuple(DeviceProcess(pid, memory_bytes=round(used) if isinstance(used, (int, float)) else None) for pid, used in on_it)
        yield DeviceSample({**row, **versions, "index": row.get("GPU"), "name": name}, processes if listed else None, whole=board)


def parse_list(printed: str) -> Iterator[DeviceSample]:
    """Yield the GPUs of ``mx-smi -L`` that have a UUID: those that may be read."""
    for line in printed.splitlines():
        if found := LISTED.match(line):
            yield DeviceSample(found.groupdict())


RARE = ("--count-ecc", "--show-ecc-state", "--show-pcie", "--show-pcie-bandwidth", "--show-clk-tr")
backend = PolledBackend(
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
    advice=f"see whether mx-smi lists any GPU; in a container, {PASS}",
)
