"""AMD's XDNA NPU (Ryzen AI), through the files of its kernel driver.

What programs use is counted by program: root alone sees all of them, and so the NPU's use and memory; others see their own processes. The
driver of Linux up to 7.2 counts no time, that of AMD's own package does, under another name than AMD's development tree. Power,
temperature and clock are told to programs that open the device, not in files.

Names are those of the three drivers' sources. Never yet read on a real NPU, and users report wrong times (amd/xdna-driver#324).
"""

from __future__ import annotations

from accelmetrics.backends.kit import DrmKeys, Field, PolledBackend, directories
from accelmetrics.backends.kit.sysfs import OnChip

ENGINES = ("npu-amdxdna", "amdxdna_accel_driver")
KEYS = DrmKeys({"compute": ENGINES, "busy": ENGINES}, (("memory",),), wakes=False)

backend = PolledBackend(
    "xdna",
    kind="npu",
    source="sysfs",
    connect=directories("/sys/class/accel/accel*", drivers=("amdxdna",), clients=KEYS, record=OnChip),
    fields=(
        Field("utilization", "@clients.busy", "%"),
        Field("memoryAllocatedBytes", "@clients.memory", "B"),
    ),
    identity={
        **{"vendor_index": "@number", "name": "device/vbnv", "pci_bus_id": "@pci"},
        **{"firmware": "device/fw_version", "unified": "@unified"},
    },
    processes={"utilization": "fdinfo drm-engine-*", "memoryAllocatedBytes": "fdinfo drm-resident-memory or drm-total-memory"},
    advice="load the kernel driver: sudo modprobe amdxdna (Linux 6.14, or AMD's package xrt)",
    remark="experimental: users report that the driver counts time wrongly",
)
