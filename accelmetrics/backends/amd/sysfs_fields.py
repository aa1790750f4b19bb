"""What each metric is read from in the kernel driver's files.

Known traps, each with a row below:

- Power is ``power1_average`` on older cards and ``power1_input`` on newer ones; a card has one or both.
- The second die of an MI250 has a power, a cap and an energy counter of 0: those of the package are the first die's.
- An APU's VRAM is a carve-out of the host's memory; what it uses is that and the GTT.
"""

from __future__ import annotations

from accelmetrics.backends.amd.card import Card
from accelmetrics.backends.amd.table import (
    COUNT,
    GENERATION,
    LANES,
    MEGAHERTZ,
    MICROJOULES,
    NO_ENERGY,
    NO_LIMIT,
    NO_POWER,
    PERCENT,
    Field,
    Record,
    Value,
    Values,
    complete,
    pools,
    read_card,
    read_field,
)
from accelmetrics.backends.amd.throttling import Counts, throttling
from accelmetrics.backends.amd.values import Bounds, number, rounded, whole
from accelmetrics.schemas.reasons import Reason, Unavailable

ABSENT = "the kernel driver shows no {} for this card"
NOT_SHOWN = "the kernel driver does not show it"

MILLIDEGREES = Bounds(-50_000, 200_000)
MICROWATTS = Bounds(0, 4e9)
FULL = 255
"""What ``pwm1`` is at full speed."""
megahertz = rounded(1e-6)
SENSORS = ("edge", "junction")
"""Where the core's temperature is taken: the first that the card has."""

FIELDS = (
    Field("gpu", ("gpu_busy_percent", "gpu_metrics:gfx"), PERCENT),
    Field("memory", ("mem_busy_percent", "gpu_metrics:umc"), PERCENT),
    Field("memoryReadWriteActivity", ("mem_busy_percent", "gpu_metrics:umc"), PERCENT),
    Field("memoryOverDrive", ("pp_mclk_od",), PERCENT),
    Field("temp", ("hwmon:edge", "hwmon:junction", "gpu_metrics:hotspot"), MILLIDEGREES, divisor=1000),
    Field("hotspotTemp", ("hwmon:junction", "gpu_metrics:hotspot"), MILLIDEGREES, divisor=1000),
    Field("powerWatts", ("hwmon:power1_average", "hwmon:power1_input", "gpu_metrics:power"), MICROWATTS, number, NO_POWER, 1e6),
    Field("enforcedPowerLimitWatts", ("hwmon:power1_cap",), MICROWATTS, number, NO_LIMIT, 1e6),
    Field("smClock", ("hwmon:sclk", "pp_dpm_sclk:active", "gpu_metrics:gfxclk"), MEGAHERTZ, megahertz),
    Field("memoryClock", ("hwmon:mclk", "pp_dpm_mclk:active", "gpu_metrics:uclk"), MEGAHERTZ, megahertz),
    Field("maxSmClock", ("pp_dpm_sclk:top",), MEGAHERTZ, megahertz),
    Field("maxMemoryClock", ("pp_dpm_mclk:top",), MEGAHERTZ, megahertz),
    Field("energyJoules", ("hwmon:energy1_input", "gpu_metrics:energy"), MICROJOULES, number, NO_ENERGY, 1e6),
    Field("pcieReplays", ("pcie_replay_count", "gpu_metrics:replays"), COUNT, whole),
    Field("pcieLinkGen", ("current_link_speed",), GENERATION, whole),
    Field("pcieLinkWidth", ("current_link_width",), LANES, whole),
    Field("maxPcieLinkGen", ("max_link_speed",), GENERATION, whole),
    Field("maxPcieLinkWidth", ("max_link_width",), LANES, whole),
    Field("xgmiTxBytesTotal", ("gpu_metrics:xgmi_write",), Bounds(0, 2**63), whole),
    Field("xgmiRxBytesTotal", ("gpu_metrics:xgmi_read",), Bounds(0, 2**63), whole),
    Field("correctedMemoryErrors", ("ras:ce",), COUNT, whole),
    Field("uncorrectedMemoryErrors", ("ras:ue",), COUNT, whole),
    Field("unCorrectedMemoryErrors", ("ras:ue",), COUNT, whole),
)
MEMORY_SENSORS = ("hwmon:mem", "gpu_metrics:mem", "gpu_metrics:hbm")
MEMORY_TEMP = Field("memoryTemp", MEMORY_SENSORS, MILLIDEGREES, divisor=1000)
FAN = Field("fanSpeed", ("hwmon:pwm1",), Bounds(0, FULL))
POOLS = pools("mem_info_{}_used", "mem_info_{}_total")


def read_values(card: Card, unified: bool, before: Counts) -> Values:
    """Every metric of one card: its value, or why there is none.

    Args:
        card: Its files, as last read.
        unified: Whether the card shares the host's memory.
        before: The throttling counts of this consumer's last reading.
    """
    record = card.record
    values = read_card(record, FIELDS, POOLS, unified, ABSENT)
    values["memoryTemp"] = _memory_temperature(record)
    values["fanSpeed"] = _fan(record)
    return complete(values | _limits(record) | throttling(card.table, before), NOT_SHOWN)


def _read(record: Record, field: Field) -> Value:
    return read_field(record, field, ABSENT)


def _memory_temperature(record: Record) -> Value:
    """The memory's own sensor; where each stack of HBM has one, the hottest."""
    found = _read(record, MEMORY_TEMP)
    if not isinstance(found, Unavailable):
        return found
    stacks = [_read(record, MEMORY_TEMP._replace(keys=(place,))) for place in sorted(record) if place.startswith("hwmon:hbm")]
    known = [degrees for degrees in stacks if not isinstance(degrees, Unavailable)]
    return max(known) if known else (stacks[0] if stacks else found)


def _fan(record: Record) -> Value:
    speed = _read(record, FAN)
    return speed if isinstance(speed, Unavailable) else 100 * speed / FULL


def _limits(record: Record) -> Values:
    """The temperatures at which the core's sensor has the card slow down, and switch itself off."""
    sensor = next((label for label in SENSORS if f"hwmon:{label}" in record), SENSORS[0])
    names = {"tempLimit.slowdown": "crit", "tempLimit.shutdown": "emergency"}
    limits = {name: Field(name, (f"hwmon:{sensor}_{limit}",), MILLIDEGREES, divisor=1000) for name, limit in names.items()}
    found = {name: _read(record, field) for name, field in limits.items()}
    return {name: Unavailable(Reason.NOT_SUPPORTED, "a limit of 0 °C is none") if value == 0 else value for name, value in found.items()}
