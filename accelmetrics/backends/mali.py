"""Arm Mali GPUs with Linux's drivers panfrost and panthor, through the files of the kernel.

The drivers count per process. Only root can read the counters of all processes, and so the GPU's utilisation and memory; other users see
their own processes. Time is counted only after root has written a number to the device's file ``profiling`` (1 for panfrost, 3 for
panthor), since counting costs power. Any user may read clock and temperature. Arm's own driver (``mali_kbase``) is not supported, because
every board vendor arranges its files differently.

Names are those of the drivers' documentation (Linux 6.14). Never tested on a real board.
"""

from __future__ import annotations

from accelmetrics.backends.kit import DrmKeys, Field, OnChip, PolledBackend, clocks, directories

ENGINES = ("fragment", "vertex-tiler", "panthor")
KEYS = DrmKeys({"graphics": ENGINES[:1], "either": ENGINES[1:], "busy": ENGINES}, (("memory",),), wakes=False)
"""The vertex engine of panfrost also computes, and panthor counts all work together, so both are "either"."""

backend = PolledBackend(
    "mali",
    kind="gpu",
    source="sysfs",
    connect=directories("/sys/class/drm/card*", drivers=("panfrost", "panthor"), clients=KEYS, record=OnChip),
    fields=(
        # Missing until root has enabled the device's `profiling`.
        Field("gpu", "@clients.busy", "%"),
        *clocks(),
        Field("temp", "max:/sys/class/thermal/thermal_zone[type=gpu*]/temp", "mC"),
        Field("memoryAllocatedBytes", "@clients.memory", "B"),
    ),
    identity={"vendor_index": "@number", "name": "@compatible", "unified": "@unified"},
    processes={"gpu": "fdinfo drm-engine-*", "memoryAllocatedBytes": "fdinfo drm-resident-memory or drm-total-memory"},
    advice="load the kernel driver: sudo modprobe panfrost, or panthor for Mali-G310, G610 and later",
)
