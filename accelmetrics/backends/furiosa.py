"""FuriosaAI RNGD, through the kernel driver's files, which any user may read, and ``furiosa-smi``.

The files have the identity of a device and its allocated cores, ``furiosa-smi info`` its temperature and power, ``furiosa-smi status`` its
memory. Processes are found by the device nodes of cores that they hold open.

Formats are those of published outputs of release 2026.1 on an idle machine and of the vendor's documentation. Tested with a stand-in, never
on a real NPU. Warboy, the older chip, has other files and is not supported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from accelmetrics.backends.contract import Processes
from accelmetrics.backends.kit import (
    MEMORY,
    Command,
    DeviceDirectory,
    DeviceSample,
    Field,
    PolledBackend,
    Row,
    Source,
    directories,
    is_absent,
    json_document,
    quoted,
    text,
)
from accelmetrics.backends.kit.polled import Identity
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable

NAME = re.compile(r"npu(\d{1,4})", re.ASCII)
CORE = r"/dev/rngd/npu(\d{1,4})pe\d{1,3}(?:-\d{1,3})?"
SCALE = Unavailable(Reason.NOT_SUPPORTED, "whether furiosa-smi prints the utilisation of cores in percent or as a ratio is not documented")


def held(printed: Any) -> object:
    """Return the number of allocated cores, from the driver's file (0 or 1 for each core) or the tool's list (an object for each core)."""
    listed = printed if isinstance(printed, list) else []
    cores = printed.split() if isinstance(printed, str) else [each.get("pe_occupancy") for each in listed if isinstance(each, Mapping)]
    known = cores and all(core in ("0", "1", False, True) for core in cores)
    return sum(core in ("1", True) for core in cores) if known else printed if is_absent(printed) else f"cores: {quoted(printed)}"


FIELDS = (Field("coresAllocated", "pe_occupancy", convert=held),)
INFO = (Field("temp", "temperature", "C"), Field("powerWatts", "power", "W"))
STATUS = (
    # No document says whether this is a percentage or a ratio, and programs that read it disagree.
    Field("utilization", "pe_utilizations", convert=lambda _: SCALE, words="not given: its scale is not documented"),
    Field("coresAllocated", "pe_utilizations", convert=held),
    Field("memoryAllocatedBytes", "memory.dram.used_size", "B"),
    Field("memoryTotalBytes", "memory.dram.total_size", "B"),
    *MEMORY,
)
NAMES = {"uuid": "device_uuid", "serial": "device_sn"}
IDENTITY = {"vendor_index": "@number", "pci_bus_id": "busname", "firmware": "fw_version", "driver_version": "version", **NAMES}
INFO_IDENTITY = {"vendor_index": "number", "pci_bus_id": "pci_bdf", "firmware": "firmware", "name": "arch", **NAMES}


def parse(name: str, printed: str) -> Iterator[DeviceSample]:
    """Yield the devices of a document.

    Args:
        name: The key of the device's name.
        printed: The document.

    Raises:
        SourceError: It is no list. After the devices, if an entry has no number or repeats one.
    """
    # `json_document` finds only documents that are not empty.
    listed = [] if printed.strip() == "[]" else json_document(printed)
    if not isinstance(listed, list):
        raise SourceError(Reason.PARSE_ERROR, f"furiosa-smi printed no list of devices: {quoted(listed)}")
    seen, invalid = set(), None
    for record in listed:
        found = NAME.fullmatch(text(record.get(name))) if isinstance(record, Mapping) else None
        if found is None or found[1] in seen:
            invalid = record
            continue
        seen.add(found[1])
        yield DeviceSample({**record, "number": found[1]})
    if invalid is not None:
        raise SourceError(Reason.PARSE_ERROR, f"furiosa-smi lists an entry that is no device: {quoted(invalid)}")


class Card(DeviceDirectory):
    """Files of a device."""

    def processes(self, progress: list[Any]) -> Processes:
        """Return the processes that hold cores of the device."""
        found = super().processes(progress)
        # If no core is allocated, no process is on the device, even if some processes could not be inspected.
        return () if isinstance(found, Unavailable) and held(self.get("pe_occupancy")) == 0 else found


def tool(what: str, name: str, fields: Sequence[Row], identity: Identity) -> Source:
    """Return a source that reads a subcommand of ``furiosa-smi``.

    Args:
        what: The subcommand.
        name: The key of a device's name in its output.
        fields: The fields of each device.
        identity: The places of its identity.
    """
    command = Command("furiosa-smi", (what, "--format", "json"), install="install the package furiosa-smi", timeout=4.0)
    return Source(f"furiosa-smi {what}", command.poll(partial(parse, name)), fields, identity=identity)


backend = PolledBackend(
    "furiosa",
    kind="npu",
    source="sysfs",
    connect=directories("/sys/class/rngd_mgmt/rngd!npu*mgmt", record=Card, nodes=CORE),
    fields=FIELDS,
    identity=IDENTITY,
    interval=2.0,
    # A device gets another number when the driver is loaded again. `status` prints no other identity, so it is joined
    # by the number, within one reading.
    also=(tool("info", "dev_name", INFO, INFO_IDENTITY), tool("status", "device", STATUS, {"vendor_index": "number"})),
    processes="device nodes of cores that a process holds open",
    advice="load the kernel driver: sudo modprobe furiosa_rngd (package furiosa-driver-rngd)",
)
