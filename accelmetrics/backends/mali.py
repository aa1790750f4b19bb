"""Arm Mali GPUs with the drivers of Linux, panfrost and panthor, through the files of the kernel.

What programs use is counted by program: root alone sees all of them, and so the use of the GPU and its memory; others see their own
processes. Time is counted only after root has written a number to the device's file ``profiling`` (1 for panfrost, 3 for panthor), since
that costs power. Clock and temperature any user may read. Arm's own driver (``mali_kbase``) is not read: boards' vendors each lay its files
out in another way.

Names are those of the drivers' documentation (Linux 6.14). Never yet read on a real board.
"""

from __future__ import annotations

from accelmetrics.backends.kit import DrmKeys, Field, PolledBackend, directories
from accelmetrics.backends.kit.sysfs import OnChip, clocks

ENGINES = ("fragment", "vertex-tiler", "panthor")
KEYS = DrmKeys({"graphics": ENGINES[:1], "either": ENGINES[1:], "busy": ENGINES}, (("memory",),), wakes=False)
"""The vertex engine of panfrost computes too, and panthor counts all work together."""

backend = PolledBackend(
    "mali",
    kind="gpu",
    source="sysfs",
    connect=directories("/sys/class/drm/card*", drivers=("panfrost", "panthor"), clients=KEYS, record=OnChip),
    fields=(
        Field("gpu", "@clients.busy", "%"),
        *clocks(),
        Field("temp", "max:/sys/class/thermal/thermal_zone[type=gpu*]/temp", "mC"),
        Field("memoryAllocatedBytes", "@clients.memory", "B"),
    ),
    identity={"vendor_index": "@number", "name": "@compatible", "unified": "@unified"},
    processes={"gpu": "fdinfo drm-engine-*", "memoryAllocatedBytes": "fdinfo drm-resident-memory or drm-total-memory"},
    advice="load the kernel driver: sudo modprobe panfrost, or panthor for Mali-G310, G610 and later",
)
