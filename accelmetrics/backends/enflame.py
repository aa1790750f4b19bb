"""Enflame GCUs, through ``libefml.so``, or ``efsmi`` if the library is missing.

The library's second set of functions, which takes numbers instead of handles (``EfmlGetDevUuid`` and others), is not used: its
documentation does not say whether it numbers devices in the same way. So devices have no UUID and are identified by their PCI address.

The calls are those of the vendor's header 1.2.3, the text is that of ``efsmi -q`` of drivers 1.2 and 1.4, the table that of 1.7. Never
tested on a real device.
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
    # Driver 1.4 prints Used Size. Driver 1.2 prints Mem Usage, which on an idle device is its reserve.
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
    Field("memoryTotalBytes", "Mem", "MiB"),  # the total; the table does not print the memory in use
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
    """Parse the output of ``efsmi -q``."""
    devices = sections(text, r"\s*DEV ID\s+(?P<number>\d+)")
    if not devices:
        raise SourceError(Reason.PARSE_ERROR, f"efsmi lists no device: {quoted(text)}")
    for device in devices:
        # The heading of a key differs between releases, but no key occurs under two headings.
        record = {path.rpartition(".")[2]: value for path, value in device.items()}
        yield DeviceSample({**record, "address": _address(record)})


def _address(record: Mapping[str, str]) -> str:
    """Return the PCI address, which is printed as four separate values."""
    parts = [record.get(part, "") for part in ("Domain", "Bus", "Dev", "Func")]
    return "{}:{:0>2}:{:0>2}.{}".format(*(part.removeprefix("0x") for part in parts)) if all(parts) else ""


def parse_table(text: str) -> Iterator[DeviceSample]:
    """Parse the table that ``efsmi`` prints without arguments."""
    driver = first_match(text, r"Driver Ver\w*: *(\S+)")
    for device in table(text, r"DEV +NAME"):
        yield DeviceSample({**device, "driver": driver})


def _named(metric: str) -> NvmlMetric:
    return next(row for row in METRICS if row.name == metric)


# Memory is read with NVML's first struct. Of the second one, the vendor's header and a published program disagree about
# the order of its numbers.
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
    advice="check whether efsmi lists any GCU; dmesg may show why not",
)
backend = clone(
    "enflame",
    chip="GCU",
    source="efml",
    library=("libefml.so", "libefml.so.1", "libefml.so.2", "/usr/lib/libefml.so*", "/usr/local/efsmi/libefml.so*"),
    spelling=(("nvml", "efml"), ("NVML", "EFML"), ("NVIDIA", "Enflame"), ("CLOCK_SM", "CLOCK_SIP"), ("GPU", "GCU")),
    # Metrics whose call differs from NVIDIA's.
    rows={
        "gpu": _named("gpu")._replace(name="utilization"),
        **dict(map(_first_form, ("memoryTotalBytes", "memoryFreeBytes", "memoryAllocatedBytes"))),
    },
    metrics=(
        *("utilization", "memory", "memoryTotalBytes", "memoryFreeBytes", "memoryAllocated*", "temp", "tempLimit.*", "*axOpTemp"),
        *("power[WP]*", "enforcedPowerLimitWatts", "*Clock", "encoderUtilization", "decoderUtilization", "fanSpeed"),
        *("pcieLink*", "maxPcieLink*", "pcie[TR]xBytes", "process.*"),
    ),
    pci="=3I4xI4x32s",
    architectures={30: "Scorpio", 40: "Libra"},
    tool=TOOL,
)
