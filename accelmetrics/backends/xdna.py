"""AMD's XDNA NPU (Ryzen AI), through the files of its kernel driver.

The driver counts per process. Only root can read the counters of all processes, and so the NPU's utilisation and memory; other users see
their own processes. Power, temperature and clock are available only to programs that open the device, not in files.

Names are those of the sources of three drivers: Linux's, AMD's package's and AMD's development tree's. Never tested on a real NPU, and
users report wrong times (amd/xdna-driver#324).
"""

from __future__ import annotations

from accelmetrics.backends.kit import DrmKeys, Field, OnChip, PolledBackend, directories

# AMD's package and AMD's development tree use different names. Linux's driver (up to 7.2) counts no time.
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
