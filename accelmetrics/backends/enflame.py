"""Enflame GCUs, through ``libefml.so``, or ``efsmi`` where that is missing.

The library has a second set of functions, by number instead of handle (``EfmlGetDevUuid`` and others), which is not read: whether it
numbers devices alike is not documented. So devices have no UUID and are known by their PCI address. Memory is asked for in NVML's first
form: of the second one the vendor's header and a program that reads it disagree.

The calls are those of the vendor's header 1.2.3, the text is that of ``efsmi -q`` of drivers 1.2 and 1.4, the table that of 1.7. Never
yet read on a real device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from accelmetrics.backends.kit import (
    MEMORY,
    POWER_SHARE,
    Command,
    DeviceSample,
    Field,
    PolledBackend,
    Source,
    figure,
    first_match,
    quoted,
    sections,
    switched,
    table,
)
from accelmetrics.backends.nvidia.clones import clone
from accelmetrics.backends.nvidia.metrics import METRICS, Call, NvmlMetric
from accelmetrics.schemas.errors import Reason, SourceError

INSTALL = "install Enflame's driver, which has efsmi"
DETAILS = Command("efsmi", ("-q",), install=INSTALL, timeout=4.0)
SUMMARY = Command("efsmi", install=INSTALL, timeout=4.0)
FIELDS = (
    Field("utilization", "GCU Usage", "%"),
    # Used Size is of driver 1.4; 1.2 has Mem Usage, which is its reserve while nothing runs.
    Field("memoryTotalBytes", ("Total Size", "Mem Size"), "MiB"),
    Field("memoryAllocatedBytes", ("Used Size", "Mem Usage"), "MiB"),
    *MEMORY,
    Field("temp", "GCU Temp", "C"),
    Field("powerWatts", "Cur Power", "W"),
    Field("enforcedPowerLimitWatts", "Power Capa", "W"),
    POWER_SHARE,
    Field("memoryClock", "Mem CLK", "MHz"),
    Field("pcieLinkGen", "Cur Link Speed", "1", convert=figure),
    Field("pcieLinkWidth", "Cur Link Width", "1", convert=figure),
)
IDENTITY = {"vendor_index": "number", "uuid": "Dev UUID", "name": "Dev Name", "serial": "Dev SN", "pci_bus_id": "address"}
IN_TABLE = (
    Field("utilization", "DUsed", "%"),
    Field("memoryTotalBytes", "Mem", "MiB"),  # all that it has: what is in use stands nowhere
    Field("temp", "TEMP", "C"),
    Field("powerWatts", "Pwr(Usage/Cap).0", "W"),
    Field("enforcedPowerLimitWatts", "Pwr(Usage/Cap).1", "W"),
    POWER_SHARE,
    Field("eccMode", "ECC", "1", convert=switched),
)


IDENTITY_IN_TABLE = {
    **{"vendor_index": "DEV", "name": "NAME", "pci_bus_id": "BUS-ID", "serial": "SN", "driver_version": "driver"},
    "firmware": ("Boot FW VER", "FW VER"),
}


def parse(text: str) -> Iterator[DeviceSample]:
    """Parse what ``efsmi -q`` prints."""
    devices = sections(text, r"\s*DEV ID\s+(?P<number>\d+)")
    if not devices:
        raise SourceError(Reason.PARSE_ERROR, f"efsmi lists no device: {quoted(text)}")
    for device in devices:
        # Releases put a key below different headings; none stands below two.
        record = {path.rpartition(".")[2]: value for path, value in device.items()}
        yield DeviceSample({**record, "address": _address(record)})


def _address(record: Mapping[str, str]) -> str:
    """Return the PCI address, which is printed in four parts."""
    parts = [record.get(part, "") for part in ("Domain", "Bus", "Dev", "Func")]
    return "{}:{:0>2}:{:0>2}.{}".format(*(part.removeprefix("0x") for part in parts)) if all(parts) else ""


def parse_table(text: str) -> Iterator[DeviceSample]:
    """Parse what ``efsmi`` prints by itself."""
    driver = first_match(text, r"Driver Ver\w*: *(\S+)")
    for device in table(text, r"DEV +NAME"):
        yield DeviceSample({**device, "driver": driver})


def _named(metric: str) -> NvmlMetric:
    return next(row for row in METRICS if row.name == metric)


def _first_form(metric: str) -> tuple[str, NvmlMetric]:
    row = _named(metric)
    return metric, row._replace(source=row.source.fallback, note="") if isinstance(row.source, Call) and row.source.fallback else row


TOOL = PolledBackend(
    "enflame",
    kind="npu",
    source="efsmi",
    connect=DETAILS.poll(parse),
    fields=FIELDS,
    identity=IDENTITY,
    interval=2.0,
    also=(
        Source(
            "efsmi-table",
            SUMMARY.poll(parse_table),
            IN_TABLE,
            identity=IDENTITY_IN_TABLE,
            instead_of="efsmi",
        ),
    ),
    advice="see whether efsmi lists any GCU, and dmesg why not",
)
backend = clone(
    "enflame",
    chip="GCU",
    source="efml",
    library=("libefml.so", "libefml.so.1", "libefml.so.2", "/usr/lib/libefml.so*", "/usr/local/efsmi/libefml.so*"),
    spelling=(("nvml", "efml"), ("NVML", "EFML"), ("NVIDIA", "Enflame"), ("CLOCK_SM", "CLOCK_SIP"), ("GPU", "GCU")),
    rows={
        "gpu": _named("gpu")._replace(name="utilization"),
        **dict(map(_first_form, ("memoryTotalBytes", "memoryFreeBytes", "memoryAllocatedBytes"))),
    },
    gives=(
        *("utilization", "memory", "memoryTotalBytes", "memoryFreeBytes", "memoryAllocated*", "temp", "tempLimit.*", "*axOpTemp"),
        *("power[WP]*", "enforcedPowerLimitWatts", "*Clock", "encoderUtilization", "decoderUtilization", "fanSpeed"),
        *("pcieLink*", "maxPcieLink*", "pcie[TR]xBytes", "process.*"),
    ),
    pci="=3I4xI4x32s",
    architectures={30: "Scorpio", 40: "Libra"},
    tool=TOOL,
)
