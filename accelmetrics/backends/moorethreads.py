"""Moore Threads GPUs, through ``mthreads-gmi``: the JSON of its query, and the table that it prints without arguments.

The query has power, clocks and the identity of a GPU. Only the table has processes and the width of the link, and it replaces the query on
releases without one. Used memory may exceed the total if the IOMMU is off. Then both are given, without a share. ``Utilization.Memory`` is
not read: no document says whether it is the memory's activity or the share in use, and the vendor's own example suggests the latter. The
vendor's library, MTML, is not used: it has calls and error codes of its own, and no power limit.

Formats are those of published outputs of releases 1.14 to 2.4. Tested with a stand-in, never on a real GPU.
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
    Source,
    blocks,
    figure,
    first_match,
    json_document,
    number,
    quoted,
    table,
)
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceProcess

COMMAND = Command("mthreads-gmi", install="install the Moore Threads driver (MUSA SDK), which has mthreads-gmi")
FIELDS = (
    Field("gpu", "utilization.gpu", "%"),
    Field("memoryAllocatedBytes", "fb memory usage.used", "MiB"),
    Field("memoryTotalBytes", "fb memory usage.total", "MiB"),
    Field("memoryFreeBytes", "fb memory usage.free", "MiB"),
    *MEMORY,
    Field("temp", "temperature.gpu current temp", "C"),
    Field("powerWatts", "power readings.power draw", "W"),
    Field("enforcedPowerLimitWatts", "power readings.current power limit", "W"),
    # A limit of 0 W is no limit.
    Field("defaultPowerLimitWatts", "power readings.default power limit", "W", zero_is_missing=True),
    Field("maxPowerLimitWatts", "power readings.max power limit", "W", zero_is_missing=True),
    POWER_SHARE,
    Field("smClock", "clocks.graphics", "MHz"),
    Field("memoryClock", "clocks.memory", "MHz"),
    Field("performanceState", "performance state", "1", convert=figure),
)
IDENTITY = {
    **{"vendor_index": "index", "name": "product name", "uuid": "gpu uuid", "serial": "serial number"},
    **{"pci_bus_id": "bus id", "driver_version": "driver version"},
}
IN_TABLE = (
    Field("gpu", "%gpu", "%"),
    Field("memoryAllocatedBytes", "mem.0", "MiB"),
    Field("memoryTotalBytes", "mem.1", "MiB"),
    Field("temp", "temp", "C"),
    Field("performanceState", "perf", "1", convert=figure),
    Field("pcieLinkWidth", "pcie lane width.0", "1", convert=figure),
    Field("maxPcieLinkWidth", "pcie lane width.1", "1", convert=figure),
)
IN_TABLE_IDENTITY = {"vendor_index": "id", "name": "name", "pci_bus_id": "pcie", "driver_version": "driver version"}
PROCESSES = r" *ID +PID +Process name +GPU Memory"
PROCESS = re.compile(r" *(?P<id>\d+) +(?P<pid>\d+) +\S.* (?P<used>\S+) *", re.ASCII)


def parse(printed: str) -> Iterator[DeviceSample]:
    """Yield the GPUs of ``mthreads-gmi -q --json``.

    Args:
        printed: The output of the tool.

    Raises:
        SourceError: It has no list of GPUs. After the GPUs, if an entry is no GPU.
    """
    document = json_document(printed)
    listed = document.get("GPU") if isinstance(document, Mapping) else None
    if not isinstance(listed, list):
        raise SourceError(Reason.PARSE_ERROR, f"mthreads-gmi printed no list of GPUs: {quoted(document)}")
    invalid = [each for each in listed if not isinstance(each, Mapping)]
    for gpu in (each for each in listed if isinstance(each, Mapping)):
        pci = gpu.get("PCI")  # the key of the address ends in "Bus Id"; the words before differ
        places = pci.items() if isinstance(pci, Mapping) else ()
        # Keys of the JSON may end in blanks.
        address = next((value for key, value in places if key.strip().lower().endswith("bus id")), None)
        yield DeviceSample({**gpu, "Bus Id": address, "Driver Version": document.get("Driver Version")})
    if invalid:
        raise SourceError(Reason.PARSE_ERROR, f"mthreads-gmi lists an entry that is no GPU: {quoted(invalid[0])}")


def parse_table(printed: str) -> Iterator[DeviceSample]:
    """Yield the GPUs of the table, with their processes.

    Args:
        printed: The output of the tool.

    Raises:
        SourceError: After the complete GPUs, if the table is cut off.
    """
    driver = first_match(printed, r"Driver Version: *(\S+)")
    listed = blocks(printed, PROCESSES)
    rows = [found for _, block in listed[:1] for line in block.splitlines() if (found := PROCESS.fullmatch(line))]
    for gpu in table(printed, r"ID +Name +\|"):
        yield DeviceSample({**gpu, "Driver Version": driver}, _processes(gpu.get("ID"), rows) if listed else None)


def _processes(gpu: str | None, rows: list[re.Match[str]]) -> Processes:
    """Return the processes of a GPU."""
    used = ((int(row["pid"]), number(row["used"], "MiB", "By")) for row in rows if row["id"] == gpu)
    return tuple(DeviceProcess(pid, memory_bytes=round(value) if isinstance(value, (int, float)) else None) for pid, value in used)


backend = PolledBackend(
    "moorethreads",
    kind="gpu",
    source="mthreads-gmi -q",
    connect=COMMAND.poll(parse, "-q", "--json"),
    fields=FIELDS,
    identity=IDENTITY,
    interval=2.0,
    also=(Source("mthreads-gmi", COMMAND.poll(parse_table), IN_TABLE, identity=IN_TABLE_IDENTITY),),
    processes="mthreads-gmi, the processes below its table",
    advice="check whether mthreads-gmi lists any GPU; dmesg may show why not (kernel module mtgpu)",
)
