"""Intel NPUs in processors since Meteor Lake, through the files of the kernel driver ``intel_vpu``, which any user may read.

The files were added one by one (busy time in Linux 6.11, memory in 6.15, clocks under two names), so each may be missing. Power and
temperature are not measured.

The layout is that of the driver's documentation, and of a published tree of a Lunar Lake.
"""

from __future__ import annotations

from accelmetrics.backends.kit import Field, OnChip, PolledBackend, Rate, directories, text

MODELS = {"7d1d": "Meteor Lake", "ad1d": "Arrow Lake", "643e": "Lunar Lake", "b03e": "Panther Lake"}
"""Processor that contains the NPU, by PCI device id."""


class Npu(OnChip):
    """Files of an NPU, extended by its name."""

    def get(self, place: str) -> object:
        """Return the value at a place. ``model`` is the NPU's name."""
        number = text(super().get("device/device"))
        return f"Intel NPU ({MODELS.get(number.removeprefix('0x'), number)})" if place == "model" else super().get(place)


backend = PolledBackend(
    "intel_npu",
    kind="npu",
    source="sysfs",
    connect=directories("/sys/class/accel/accel*", drivers=("intel_vpu",), record=Npu),
    # Reading the busy time delays the submission of jobs, and the kernel's documentation asks for at most one reading a
    # second.
    interval=1.0,
    fields=(
        Rate("utilization", "device/npu_busy_time_us", "us", words="sysfs npu_busy_time_us, rise per second"),
        Field("memoryAllocatedBytes", "device/npu_memory_utilization", "B", words="sysfs npu_memory_utilization"),
        # An idle NPU sleeps, and its files answer without waking it. Then the busy time stands still and the clock is
        # 0, which means that it has none.
        Field("smClock", ("device/freq/current_freq", "device/npu_current_frequency_mhz"), "MHz", zero_is_missing=True),
        Field("maxSmClock", ("device/freq/hw_max_freq", "device/npu_max_frequency_mhz"), "MHz"),
    ),
    identity={"vendor_index": "@number", "pci_bus_id": "@pci", "name": "model", "unified": "@unified"},
    vendor="intel",
    advice="load the kernel driver: sudo modprobe intel_vpu",
)
