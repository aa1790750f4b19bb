"""Biren GPUs, through ``brsmi gpu --query-gpu``. Experimental.

Scripts of the vendor confirm the query and the fields index, name, serial, memory.used, memory.free and temperature.gpu. The other fields
are assumed from tools of the same form. A field that a release refuses is missing with the tool's message, and a number without a unit is
not believed.
"""

from __future__ import annotations

from accelmetrics.backends.kit import POWER_SHARE, PRINTED, Command, Field, PolledBackend, Query, share

FIELDS = (
    Field("gpu", "utilization.gpu", PRINTED),
    Field("memoryTotalBytes", "memory.total", PRINTED),
    Field("memoryAllocatedBytes", "memory.used", PRINTED),
    Field("memoryFreeBytes", "memory.free", PRINTED),
    share("memoryAllocated", "memoryAllocatedBytes", "memoryTotalBytes"),
    Field("temp", "temperature.gpu", "C"),
    Field("powerWatts", "power.draw", PRINTED),
    Field("enforcedPowerLimitWatts", "power.limit", PRINTED),
    POWER_SHARE,
)
IDENTITY = {"vendor_index": "index", "name": "name", "serial": "serial", "uuid": "uuid", "pci_bus_id": "pci.bus_id"}
ASKED = (
    *("index", "name", "serial", "uuid", "pci.bus_id"),
    *("memory.used", "memory.free", "memory.total", "temperature.gpu", "utilization.gpu", "power.draw", "power.limit"),
)
backend = PolledBackend(
    "biren",
    kind="gpu",
    source="brsmi",
    connect=Query(
        Command("brsmi", install="install Biren's driver, which has brsmi"), ASKED, "gpu", "--query-gpu={fields}", "--format=csv,noheader"
    ),
    fields=FIELDS,
    identity=IDENTITY,
    interval=2.0,
    advice="check whether brsmi gpu list has any GPU; dmesg may show why not",
    remark="experimental: half of its fields are named by analogy, and it was never tested on a GPU",
)
