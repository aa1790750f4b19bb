"""Rebellions NPUs, through ``rbln-smi --json`` (``rbln-stat`` before driver 2), which comes with the driver and needs no rights.

All values are text: power with its unit, temperatures with ``C``, memory in bytes unless a unit is printed. ``card_power`` is the
card's: of several NPUs on one card the first has it, so that sums are right. Read on a stand-in only, never yet on a real NPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from accelmetrics.backends.kit import MEMORY, Command, DeviceSample, Field, PolledBackend, grouped, json_document, number, whole
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import DeviceProcess

COMMAND = Command(("rbln-smi", "rbln-stat"), ("--json",), install="install the RBLN driver package, which has rbln-smi", timeout=5.0)
FIELDS = (
    Field("utilization", "util", "%"),
    Field("temp", "temperature", "C"),
    Field("powerWatts", "card_power", "W"),
    Field("memoryAllocatedBytes", "memory.used", "B"),
    Field("memoryTotalBytes", "memory.total", "B"),
    *MEMORY,
)
IDENTITY = {
    "vendor_index": "npu",
    "name": "name",
    "uuid": "uuid",
    "serial": "sid",
    "pci_bus_id": "pci.bus_id",
    "numa_node": "pci.numa_node",
    "firmware": "fw_ver",
    "driver_version": "kmd_version",
}
OF_CARD = Unavailable(Reason.NOT_SUPPORTED, "the card's power is given with the first NPU of the card")


def parse(text: str) -> Iterator[DeviceSample]:
    """Yield the NPUs of one document, with the processes that have a context on each."""
    document = json_document(text)
    contexts = grouped(document.get("contexts") or (), "npu")
    cards: set[object] = set()
    for device in document["devices"]:
        shared = {"card_power": OF_CARD} if device.get("sid") in cards else {}
        cards.add(device.get("sid") or object())
        record = {**device, **shared, "kmd_version": document.get("KMD_version")}
        yield DeviceSample(record, tuple(_processes(contexts.get(str(device.get("npu")).strip(), ()))))


def _processes(contexts: Iterable[dict[str, Any]]) -> Iterator[DeviceProcess]:
    for context in contexts:
        memory = number(context.get("memory"), "B", "By")
        if pid := whole(context.get("pid")):
            yield DeviceProcess(pid, "compute", memory if isinstance(memory, int) else None)


backend = PolledBackend(
    "rebellions",
    kind="npu",
    source="rbln-smi",
    connect=COMMAND.poll(parse),
    fields=FIELDS,
    identity=IDENTITY,
    interval=2.0,
    processes='rbln-smi "contexts"',
    advice="see whether rbln-smi lists any NPU, and dmesg why not",
)
