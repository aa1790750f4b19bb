"""Rockchip's NPU with the driver of its vendor (rknpu), through the files of the kernel.

Use is in the kernel's debug file system, which is root's: the mean of its cores. The ``load`` of its clocks is not read, since the driver
never sets it. Clock and temperature any user may read. The driver of Linux itself (rocket) tells neither use nor memory, and is not read.

The format is that of the driver's source and of published outputs of an RK3588. Never yet read on a real board.
"""

from __future__ import annotations

import re
from typing import Any

from accelmetrics.backends.kit import Field, PolledBackend, directories, quoted
from accelmetrics.backends.kit.sysfs import OnChip, clocks

LOAD = re.compile(r"(?:Core\d+: *|NPU load: *)(\d{1,3})%", re.ASCII)


def mean_of_cores(said: Any) -> object:
    """Return the mean in percent of what is printed of cores, or of the NPU as a whole; what has none stays what it is."""
    percents = [int(percent) for percent in LOAD.findall(quoted(said))]
    return sum(percents) / len(percents) if percents and max(percents) <= 100 else said


backend = PolledBackend(
    "rockchip",
    kind="npu",
    source="sysfs",
    connect=directories("/sys/class/devfreq/*.npu", drivers=("RKNPU",), record=OnChip),
    fields=(
        Field("utilization", "/sys/kernel/debug/rknpu/load", "%", convert=mean_of_cores),
        *clocks(""),
        Field("temp", "/sys/class/thermal/thermal_zone[type=npu*]/temp", "mC"),
    ),
    identity={"name": "@compatible", "unified": "@unified"},
    advice="use a kernel with the vendor's driver rknpu",
)
