"""Rockchip's NPU with the vendor's driver (rknpu), through the files of the kernel.

Utilisation is the mean over the cores. It is in the kernel's debug file system, which only root can read. Any user may read clock and
temperature. Linux's own driver (rocket) reports neither utilisation nor memory and is not supported.

The format is that of the driver's source and of published outputs of an RK3588. Never tested on a real board.
"""

from __future__ import annotations

import re
from typing import Any

from accelmetrics.backends.kit import Field, OnChip, PolledBackend, clocks, directories, quoted

LOAD = re.compile(r"(?:Core\d+: *|NPU load: *)(\d{1,3})%", re.ASCII)


def mean_of_cores(printed: Any) -> object:
    """Return the mean utilisation of the printed cores, or of the whole NPU, in percent. Other text is returned unchanged."""
    percents = [int(percent) for percent in LOAD.findall(quoted(printed))]
    return sum(percents) / len(percents) if percents and max(percents) <= 100 else printed


backend = PolledBackend(
    "rockchip",
    kind="npu",
    source="sysfs",
    connect=directories("/sys/class/devfreq/*.npu", drivers=("RKNPU",), record=OnChip),
    fields=(
        # Not the `load` of devfreq, which this driver never sets.
        Field("utilization", "/sys/kernel/debug/rknpu/load", "%", convert=mean_of_cores),
        *clocks(""),
        Field("temp", "/sys/class/thermal/thermal_zone[type=npu*]/temp", "mC"),
    ),
    identity={"name": "@compatible", "unified": "@unified"},
    advice="use a kernel with the vendor's driver rknpu",
)
