"""Rebellions NPUs, through ``rbln-smi --json`` (``rbln-stat`` before driver 2), which is part of the driver and needs no rights.

All values are text: power with its unit, temperatures with ``C``, memory in bytes unless a unit is printed. ``card_power`` is the power of
the card, and each NPU of the card prints it. ``npu`` is the number within a group of NPUs. With several groups (driver 3) it repeats.
Contexts of processes have only this number. Then a context is assigned by the device nodes that its process holds open, if they identify
one NPU.

Tested with a stand-in and a published output of driver 3, never on a real NPU.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from accelmetrics.backends.contract import Processes
from accelmetrics.backends.kit import (
    MEMORY,
    Command,
    DeviceSample,
    Field,
    NodeHolders,
    PolledBackend,
    PollOnce,
    json_document,
    number,
    pcie_generation,
    quoted,
    text,
    whole,
)
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceProcess

COMMAND = Command(("rbln-smi", "rbln-stat"), ("--json",), install="install the RBLN driver package, which has rbln-smi", timeout=5.0)
FIELDS = (
    Field("utilization", "util", "%"),
    Field("temp", "temperature", "C"),
    Field("powerWatts", "card_power", "W", of_whole=True),
    Field("performanceState", "pstate", "1", convert=lambda printed: text(printed).removeprefix("P")),
    Field("memoryAllocatedBytes", "memory.used", "B"),
    Field("memoryTotalBytes", "memory.total", "B"),
    *MEMORY,
    Field("pcieLinkGen", "pci.link_speed", convert=pcie_generation),
    Field("pcieLinkWidth", "pci.link_width"),
)
IDENTITY = {
    "vendor_index": "number",
    "name": "name",
    "uuid": "uuid",
    "serial": "sid",
    "pci_bus_id": "pci.bus_id",
    "numa_node": "pci.numa_node",
    "firmware": "fw_ver",
    "driver_version": "kmd_version",
}
NODE = re.compile(r"/dev/(rbln\d{1,4})", re.ASCII)
AMBIGUOUS = Unavailable(
    Reason.NOT_SUPPORTED, 'several NPUs have this "npu" number, and the holders of /dev/rbln* do not show which one a context uses'
)


def connect() -> PollOnce:
    """Return the poll of the command."""
    holders = NodeHolders(lambda path: NODE.fullmatch(path) is not None)
    return COMMAND.poll(lambda printed: parse(printed, holders))()


def parse(printed: str, holders: NodeHolders | None = None) -> Iterator[DeviceSample]:
    """Yield the NPUs of a document, with the processes that have a context on each.

    Args:
        printed: The document.
        holders: Searches for processes that hold device nodes, if a number repeats; None to skip the search.

    Raises:
        SourceError: It has no list of devices. After the devices, if an entry is no device.
    """
    document = json_document(printed)
    listed = document.get("devices") if isinstance(document, Mapping) else None
    if not isinstance(listed, list):
        raise SourceError(Reason.PARSE_ERROR, f"rbln-smi printed no list of devices: {quoted(document)}")
    devices = [device for device in listed if isinstance(device, Mapping)]
    repeats = max(Counter(_npu(device) for device in devices).values(), default=0) > 1
    if repeats and holders is not None:
        # A search through /proc, so only if it is needed.
        holders.look([])
    on_each = _contexts(document.get("contexts"), devices, holders)
    for device, processes in zip(devices, on_each, strict=True):
        # If `npu` repeats, the number of the node /dev/rblnN identifies the device.
        node = text(device.get("device")).removeprefix("rbln")
        record = {**device, "number": node if repeats else device.get("npu"), "kmd_version": document.get("KMD_version")}
        yield DeviceSample(record, processes, whole=text(device.get("sid")))
    if len(devices) < len(listed):
        invalid = next(each for each in listed if not isinstance(each, Mapping))
        raise SourceError(Reason.PARSE_ERROR, f"rbln-smi lists an entry that is no device: {quoted(invalid)}")


def _npu(record: Mapping[str, Any]) -> str:
    """Return the NPU's number as text."""
    # SDK 1 prints text, SDK 2 a number.
    return text(record.get("npu"))


def _contexts(listed: object, devices: Sequence[Mapping[str, Any]], holders: NodeHolders | None) -> Iterator[Processes]:
    """Yield the processes of each device."""
    contexts = [each for each in listed if isinstance(each, Mapping) and whole(each.get("pid"))] if isinstance(listed, list) else []
    on_each: list[list[Mapping[str, Any]]] = [[] for _ in devices]
    unknown: set[str] = set()
    for context in contexts:
        pid, npu = whole(context.get("pid")), _npu(context)
        found = [place for place, device in enumerate(devices) if _npu(device) == npu]
        # Several devices have the number: only the holders of their nodes show which of them the context is on.
        if len(found) > 1:
            found = [place for place in found if holders and pid in holders.of(f"/dev/{text(devices[place].get('device'))}")]
        if len(found) == 1:
            on_each[found[0]].append(context)
        else:
            unknown.add(npu)
    for device, entries in zip(devices, on_each, strict=True):
        yield AMBIGUOUS if _npu(device) in unknown else tuple(_processes(entries))


def _processes(contexts: Iterable[Mapping[str, Any]]) -> Iterator[DeviceProcess]:
    """Yield each process once, with the memory of all its contexts; without memory if a context does not report it."""
    memory: dict[int, list[object]] = {}
    for context in contexts:
        # Driver 3 prints `memalloc`; older releases print `memory`.
        memory.setdefault(whole(context.get("pid")) or 0, []).append(number(context.get("memalloc", context.get("memory")), "B", "By"))
    for pid, parts in memory.items():
        known = [part for part in parts if isinstance(part, (int, float))]
        yield DeviceProcess(pid, "compute", round(sum(known)) if len(known) == len(parts) else None)


backend = PolledBackend(
    "rebellions",
    kind="npu",
    source="rbln-smi",
    connect=connect,
    fields=FIELDS,
    identity=IDENTITY,
    interval=2.0,
    processes='rbln-smi "contexts"',
    advice="check whether rbln-smi lists any NPU; dmesg may show why not",
)
