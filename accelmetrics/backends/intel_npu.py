"""Intel's NPUs in processors since Meteor Lake, through the files of the kernel driver ``intel_vpu``, which any user may read.

The files came one by one (busy time with Linux 6.11, memory with 6.15, clocks under two names), so that each may be missing. Reading the
busy time holds up the submission of jobs: the kernel asks for one reading a second at most. An NPU sleeps when it has nothing to do; the
files answer without waking it: it was busy for no longer, and its clock is 0, which is none. It measures neither power nor temperature.

The layout is that of the driver's documentation, and of a published tree of a Lunar Lake.
"""

from __future__ import annotations

from accelmetrics.backends.kit import Field, PolledBackend, Rate, directories, text
from accelmetrics.backends.kit.sysfs import OnChip

MODELS = {"7d1d": "Meteor Lake", "ad1d": "Arrow Lake", "643e": "Lunar Lake", "b03e": "Panther Lake"}
"""By PCI device id, the processor that it is part of."""


class Npu(OnChip):
    """An NPU's files, with its name."""

    def get(self, place: str) -> object:
        """Return what stands at a place, as every device's files do; ``model`` is its name."""
        number = text(super().get("device/device"))
        return f"Intel NPU ({MODELS.get(number.removeprefix('0x'), number)})" if place == "model" else super().get(place)


backend = PolledBackend(
    "intel_npu",
    kind="npu",
    source="sysfs",
    connect=directories("/sys/class/accel/accel*", drivers=("intel_vpu",), record=Npu),
    interval=1.0,
    fields=(
        Rate("utilization", "device/npu_busy_time_us", "us", words="sysfs npu_busy_time_us, rise per second"),
        Field("memoryAllocatedBytes", "device/npu_memory_utilization", "B", words="sysfs npu_memory_utilization"),
        Field("smClock", ("device/freq/current_freq", "device/npu_current_frequency_mhz"), "MHz", zero_is_missing=True),
        Field("maxSmClock", ("device/freq/hw_max_freq", "device/npu_max_frequency_mhz"), "MHz"),
    ),
    identity={"vendor_index": "@number", "pci_bus_id": "@pci", "name": "model", "unified": "@unified"},
    vendor="intel",
    advice="load the kernel driver: sudo modprobe intel_vpu",
)
