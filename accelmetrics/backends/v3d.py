"""Broadcom V3D, the GPU of the Raspberry Pi 4 and 5, through the files of its kernel driver, which any user may read.

``gpu_stats`` (Linux 6.8) counts how long each of its queues worked; the GPU is as busy as the busiest of them. The temperature is that of
the chip, which has one sensor. The memory is the host's: root alone is told what programs hold of it. There are no power and no clock: the
firmware knows both, and tells them to its own tool (``vcgencmd``) alone.

The layout is that of the driver's source (Linux 6.8 to 6.12). Never yet read on a real board.
"""

from __future__ import annotations

from accelmetrics.backends.kit import Derived, DrmKeys, Field, PolledBackend, Rate, directories
from accelmetrics.backends.kit.sysfs import OnChip

QUEUES = ("bin", "render", "tfu", "csd", "cache_clean")
"""All that run on the GPU; jobs of the queue ``cpu`` do not."""
KEYS = DrmKeys({"graphics": ("bin", "render", "tfu"), "compute": ("csd",)}, (("memory",),), wakes=False)


class Queues(OnChip):
    """The files of the GPU, and for how many nanoseconds each queue worked."""

    def get(self, place: str) -> object:
        """Return what stands at a place, of a queue its nanoseconds; None where there is nothing."""
        if place not in QUEUES:
            return super().get(place)
        said = super().get("device/gpu_stats")
        if not isinstance(said, str):
            return said
        heading, *rows = (line.split() for line in said.splitlines() if line.strip()) if said else ([],)
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
