"""What ``macmon pipe`` prints: one JSON object a line.

Formats: up to 0.7, ``gpu_usage`` is a clock in MHz and the *scaled* ratio (time active, weighted by the clock), and that is
all there is. 0.8.0 has named fields instead, among them the *active* ratio; 0.8.1 prints both. Ratios go from 0 to 1.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from accelmetrics.backends.apple.values import (
    Convert,
    Path,
    Value,
    Values,
    celsius,
    look_up,
    number,
    percent_of_ratio,
    share,
    watts,
    whole,
    within,
)
from accelmetrics.schemas.reasons import Reason, Unavailable

NO_TABLE = "macmon prints a clock of 0 for cores whose table of clocks it does not know"
OFF = "the GPU was off all through the interval"


class Field(NamedTuple):
    """One metric that is printed as such.

    Attributes:
        name: The metric.
        paths: Where it stands, the newest format first.
        convert: From the printed unit to the metric's.
    """

    name: str
    paths: tuple[Path, ...]
    convert: Convert


_some_watts = within(0, 1000, zero="0 W is printed where the counter was not read")

FIELDS = (
    Field("gpu", (("gpu_active_ratio",),), percent_of_ratio),
    Field("scaledUtilization", (("gpu_scaled_ratio",), ("gpu_usage", 1)), percent_of_ratio),
    Field("freq", (("gpu_freq_mhz",), ("gpu_usage", 0)), within(0, 10_000, zero=OFF, reason=Reason.NOT_IN_USE)),
    Field("temp", (("temp", "gpu_temp_avg"),), celsius),
    Field("powerWatts", (("gpu_power",),), watts),
    Field("cpu.ecpu_freq", (("ecpu_freq_mhz",), ("ecpu_usage", 0)), within(0, 10_000, zero=NO_TABLE)),
    Field("cpu.pcpu_freq", (("pcpu_freq_mhz",), ("pcpu_usage", 0)), within(0, 10_000, zero=NO_TABLE)),
    Field("cpu.ecpu_percent", (("ecpu_scaled_ratio",), ("ecpu_usage", 1)), percent_of_ratio),
    Field("cpu.pcpu_percent", (("pcpu_scaled_ratio",), ("pcpu_usage", 1)), percent_of_ratio),
    # The Neural Engine is switched off while it is not used: 0 W is what it draws.
    Field("ane.power", (("ane_power",),), watts),
    Field("system.powerWatts", (("sys_power",),), _some_watts),
    Field("soc.powerWatts", (("all_power",),), _some_watts),
    Field("cpu.powerWatts", (("cpu_power",),), _some_watts),
    Field("cpu.avg_temp", (("temp", "cpu_temp_avg"),), celsius),
    Field("memory.used", (("memory", "ram_usage"),), whole),
)
_RAM: tuple[Path, ...] = (("memory", "ram_total"),)
_SWAP: tuple[Path, ...] = (("memory", "swap_usage"),)
_SWAP_TOTAL: tuple[Path, ...] = (("memory", "swap_total"),)
NAMES = frozenset({*(field.name for field in FIELDS), "memory.used_percent", "swap.used", "memoryTotalBytes"})


def parse(line: bytes) -> Values | None:
    """Every metric of one line; None when it is no line of macmon's."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or "gpu_power" not in document or not {"gpu_usage", "gpu_freq_mhz"} & document.keys():
        return None
    return read(document)


def read(document: dict[str, object]) -> Values:
    """Every metric of one object."""
    values: Values = {field.name: _read(document, field) for field in FIELDS}
    for cluster in ("cpu.ecpu", "cpu.pcpu"):
        clock = values[f"{cluster}_freq"]
        if isinstance(clock, Unavailable):  # without the table their ratio is 0 too
            values[f"{cluster}_percent"] = clock
    total = number(look_up(document, _RAM), "ram_total", whole)
    values["memoryTotalBytes"] = total
    values["memory.used_percent"] = share(values["memory.used"], total)
    values["swap.used"] = _swap(document)
    return values


def _read(document: dict[str, object], field: Field) -> Value:
    found = look_up(document, field.paths)
    what = ".".join(map(str, field.paths[0]))
    if found is None and field.name == "gpu":
        return Unavailable(Reason.NOT_SUPPORTED, "macmon gives the active ratio from 0.8 on")
    return number(found, f"macmon's {what}", field.convert)


def _swap(document: dict[str, object]) -> Value:
    if look_up(document, _SWAP_TOTAL) == 0:
        return Unavailable(Reason.NOT_SUPPORTED, "there is no swap space")
    return number(look_up(document, _SWAP), "macmon's swap_usage", whole)
