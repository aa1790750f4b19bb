"""Broadcom V3D, the GPU of the Raspberry Pi 4 and 5, through the files of its kernel driver, which any user may read.

``gpu_stats`` (Linux 6.8) counts the working time of each queue; the utilisation of the GPU is that of its busiest queue. The temperature is
that of the chip, which has one sensor. The memory is the host's, and only root can read how much of it processes hold. Power and clock are
missing: the firmware knows them, but reports them only to its own tool (``vcgencmd``).

The layout is that of the driver's source (Linux 6.8 to 6.12). Never tested on a real board.
"""

from __future__ import annotations

from accelmetrics.backends.kit import Derived, DrmKeys, Field, OnChip, PolledBackend, Rate, directories

QUEUES = ("bin", "render", "tfu", "csd", "cache_clean")
"""Queues that run on the GPU. Jobs of the queue ``cpu`` do not."""
KEYS = DrmKeys({"graphics": ("bin", "render", "tfu"), "compute": ("csd",)}, (("memory",),), wakes=False)


class Queues(OnChip):
    """Files of the GPU, extended by the working time of each queue in nanoseconds."""

    def get(self, place: str) -> object:
        """Return the value at a place, the nanoseconds for a queue; None if there is nothing."""
        if place not in QUEUES:
            return super().get(place)
        stats = super().get("device/gpu_stats")
        if not isinstance(stats, str):
            return stats
        heading, *rows = (line.split() for line in stats.splitlines() if line.strip()) if stats else ([],)
        at = heading.index("runtime") if "runtime" in heading else len(heading)
        return next((row[at] for row in rows if len(row) > at and row[0].removeprefix("v3d_") == place), None)


backend = PolledBackend(
    "v3d",
    kind="gpu",
    source="sysfs",
    connect=directories("/sys/class/drm/card*", drivers=("v3d",), clients=KEYS, record=Queues),
    fields=(
        *(Rate(f"_{queue}", queue, "ns") for queue in QUEUES),
        Derived(
            "gpu",
            tuple(f"_{queue}" for queue in QUEUES),
            lambda *busy: min(100.0, 100 * max(busy)),
            "sysfs gpu_stats, rise of runtime per second, of the busiest queue",
        ),
        Field("temp", "/sys/class/thermal/thermal_zone[type=cpu-thermal]/temp", "mC"),
        Field("memoryAllocatedBytes", "@clients.memory", "B"),
    ),
    identity={"vendor_index": "@number", "name": "@compatible", "unified": "@unified"},
    processes={"gpu": "fdinfo drm-engine-*", "memoryAllocatedBytes": "fdinfo drm-resident-memory or drm-total-memory"},
    advice="load the kernel driver: sudo modprobe v3d (dtoverlay=vc4-kms-v3d in config.txt)",
)
