"""Kunlunxin XPUs, through ``xpu-smi`` (``xpu_smi`` for older cards): XML, or the text of ``-q`` on releases without XML.

Intel's tool for GPUs is named ``xpu-smi`` too. Its help names Intel, so it is recognised and skipped. ``smClock`` is the clock of the
clusters, not of the CDNN units. L3 cache that processes hold is not counted as memory. The vendor's library (``libxpuml``) is not loaded:
its published header is of 2022, for cards before the P800.

Both forms are those of published outputs of an idle P800 (drivers 5.0 and 5.19). The form of a process in XML is not published. Never
tested on a real device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from accelmetrics.backends.contract import Processes
from accelmetrics.backends.kit import (
    MEMORY,
    POWER_SHARE,
    Command,
    DeviceSample,
    Field,
    PolledBackend,
    Says,
    Source,
    figure,
    first_match,
    number,
    quoted,
    sections,
    switched,
    whole,
    xml_records,
)
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceProcess

COMMAND = Command(
    ("xpu-smi", "xpu_smi"),
    ("-q",),
    directories=("/usr/local/xpu/bin", "/usr/local/xpu/tools"),
    # Intel's tool of the same name is recognised by its help.
    proof=("-h", r"(?s)\A(?!.*\bintel\b)"),
    install="install Kunlunxin's XPU driver (XRE), which has xpu-smi",
    says=(Says(r"(unknown|invalid|unrecogni[sz]ed) option|^usage:", Reason.NOT_SUPPORTED, "this release of xpu-smi prints no XML"),),
)
LINK, LINK_IN_TEXT = "pci.pci_xpu_link_info", "PCI.XPU Link Info"
# For each metric the place in XML and the place in text.
FIELDS = (
    Field("utilization", ("utilization.xpu_util", "Utilization.Xpu"), "%"),
    Field("memoryTotalBytes", ("fb_memory_usage.total", "Memory Usage.Total"), "MiB"),
    Field("memoryAllocatedBytes", ("fb_memory_usage.used", "Memory Usage.Used"), "MiB"),
    Field("memoryFreeBytes", ("fb_memory_usage.free", "Memory Usage.Free"), "MiB"),
    *MEMORY,
    Field("temp", ("temperature.xpu_temp", "Temperature.XPU Current Temp"), "C"),
    Field("powerWatts", ("power_readings.power_draw", "Power Readings.Power Draw"), "W"),
    Field("enforcedPowerLimitWatts", ("power_readings.enforced_power_limit", "Power Readings.Enforced Power Limit"), "W"),
    POWER_SHARE,
    Field("smClock", ("clocks.cluster_clock", "Clocks.Cluster"), "MHz"),
    Field("eccMode", ("ecc_mode.current_ecc", "Ecc Mode.Current"), "1", convert=switched),
    Field("eccModePending", ("ecc_mode.pending_ecc", "Ecc Mode.Pending"), "1", convert=switched),
    Field("correctedMemoryErrors", ("ecc_errors.volatile.dram_correctable", "ECC Errors.Volatile.DRAM Correctable"), "1"),
    Field("uncorrectedMemoryErrors", ("ecc_errors.volatile.dram_uncorrectable", "ECC Errors.Volatile.DRAM Uncorrectable"), "1"),
    Field("correctedMemoryErrorsAggregate", ("ecc_errors.aggregate.dram_correctable", "ECC Errors.Aggregate.DRAM Correctable"), "1"),
    Field("uncorrectedMemoryErrorsAggregate", ("ecc_errors.aggregate.dram_uncorrectable", "ECC Errors.Aggregate.DRAM Uncorrectable"), "1"),
    Field("pcieLinkGen", (f"{LINK}.pcie_gen.current_link_gen", f"{LINK_IN_TEXT}.PCIe Generation.Current"), "1", convert=figure),
    Field("maxPcieLinkGen", (f"{LINK}.pcie_gen.max_link_gen", f"{LINK_IN_TEXT}.PCIe Generation.Max"), "1", convert=figure),
    Field("pcieLinkWidth", (f"{LINK}.link_widths.current_link_width", f"{LINK_IN_TEXT}.Link Width.Current"), "1", convert=figure),
    Field("maxPcieLinkWidth", (f"{LINK}.link_widths.max_link_width", f"{LINK_IN_TEXT}.Link Width.Max"), "1", convert=figure),
)
IDENTITY = {
    "vendor_index": ("minor_number", "Minor Number"),
    "minor_number": ("minor_number", "Minor Number"),
    "name": ("product_name", "Product Name"),
    "architecture": ("product_architecture", "Product Architecture"),
    "uuid": ("uuid", "XPU UUID"),
    "serial": ("serial", "Serial Number"),
    "part_number": ("xpu_part_number", "XPU Part Number"),
    "pci_bus_id": ("@id", "address"),
    "firmware": ("firmware_version.all_version", "Firmware Version.ALL Version"),
    "driver_version": "driver_version",
}


def parse(printed: str) -> Iterator[DeviceSample]:
    """Parse the output of ``xpu-smi -q -x``."""
    for device in xml_records(printed, "xpu"):
        listed = device.get("processes")
        yield DeviceSample(device, None if listed is None else _processes(listed))


def _processes(listed: object) -> Processes:
    """Return the processes in an XML element, which is empty if there are none."""
    if listed == "":
        return ()
    inside = listed.get("process_info") if isinstance(listed, Mapping) else None
    entries = [entry for entry in (inside if isinstance(inside, list) else [inside]) if isinstance(entry, Mapping)]
    # No published output has a process, so any form other than NVIDIA's is reported as unknown.
    pids = [whole(entry.get("pid")) for entry in entries]
    if not pids or not all(pids):
        return Unavailable(Reason.PARSE_ERROR, f"xpu-smi lists processes in an unknown form: {quoted(listed)}")
    used = [number(entry.get("used_memory"), "MiB", "By") for entry in entries]
    return tuple(
        DeviceProcess(pid or 0, "compute", None if isinstance(memory, Unavailable) else round(memory))
        for pid, memory in zip(pids, used, strict=True)
    )


def parse_text(printed: str) -> Iterator[DeviceSample]:
    """Parse the output of ``xpu-smi -q``.

    Raises:
        SourceError: It lists no device (``parse_error``).
    """
    driver = first_match(printed, r"Driver Version *: *(\S+)")
    devices = sections(printed, r"XPU (?P<address>[0-9A-Fa-f]+:[0-9A-Fa-f:.]+)\s*$")
    if not devices:
        raise SourceError(Reason.PARSE_ERROR, f"xpu-smi lists no XPU: {quoted(printed)}")
    for device in devices:
        pids = [whole(value) for path, value in device.items() if re.fullmatch(r"Processes\..*\bProcess ID(\.\d+)?", path)]
        known = tuple(DeviceProcess(pid, "compute") for pid in pids if pid)
        listed = known or device.get("Processes") == "None"
        yield DeviceSample({**device, "driver_version": driver}, known if listed else None)


backend = PolledBackend(
    "kunlunxin",
    kind="npu",
    source="xpu-smi",
    connect=COMMAND.poll(parse, "-x"),
    fields=FIELDS,
    identity=IDENTITY,
    interval=2.0,
    also=(Source("xpu-smi-text", COMMAND.poll(parse_text), FIELDS, identity=IDENTITY, instead_of="xpu-smi"),),
    processes="xpu-smi <processes>",
    advice="check whether xpu-smi lists any XPU; dmesg may show why not",
)
