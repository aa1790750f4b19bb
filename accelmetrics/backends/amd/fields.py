"""What each metric is read from: the keys of every release of ``rocm-smi``, in one table.

The keys are spelled as the newest release does; case makes no difference. Known traps, each with a row or a line below:

- "GPU memory use (%)" (up to 6.1.1) is how busy the memory controller is, like "GPU Memory Read/Write Activity (%)"
  after it. It is never how much memory is allocated.
- "GFX Activity" and "Memory Activity" are raw accumulators and no percentages.
- The second die of an MI250 has no power of its own, an energy counter that stays at 0 and, in some releases, a cap of 0 W.
- An APU's VRAM is a carve-out of the host's memory; what it uses is that and the GTT.
- Up to 4.x a card without a fan has a fan speed of 0 % but no "Fan RPM"; later a fan that stands still is not printed.
- RAS error counts are printed as tables only, which the tool leaves out of its JSON.
"""

from __future__ import annotations

from accelmetrics.backends.amd import table
from accelmetrics.backends.amd.rocm_smi_json import Card
from accelmetrics.backends.amd.table import (
    CELSIUS,
    COUNT,
    MEGAHERTZ,
    MICROJOULES,
    NO_ENERGY,
    NO_LIMIT,
    NO_POWER,
    PERCENT,
    WATTS,
    Field,
    Memory,
    Value,
    complete,
    pools,
    read_field,
    share,
)
from accelmetrics.backends.amd.values import Bounds, megahertz, whole
from accelmetrics.schemas.reasons import Reason, Unavailable

NOT_PRINTED = "rocm-smi does not print it"
ABSENT = 'rocm-smi does not print "{}" for this card'
NO_RAS = Unavailable(Reason.NOT_SUPPORTED, "rocm-smi prints RAS error counts as tables only, not in its JSON")

EDGE = ("Temperature (Sensor edge) (C)", "Temperature (Sensor #1) (C)")
JUNCTION = ("Temperature (Sensor junction) (C)", "Temperature (Sensor #2) (C)")
MEMORY = ("Temperature (Sensor memory) (C)", "Temperature (Sensor mem) (C)", "Temperature (Sensor #3) (C)")
ACTIVITY = ("GPU Memory Read/Write Activity (%)", "GPU memory use (%)")
POWER = ("Average Graphics Package Power (W)", "Current Socket Graphics Package Power (W)")

FIELDS = (
    Field("gpu", ("GPU use (%)",), PERCENT),
    Field("memory", ACTIVITY, PERCENT),
    Field("memoryReadWriteActivity", ACTIVITY, PERCENT),
    Field("memoryOverDrive", ("GPU Memory OverDrive value (%)",), PERCENT),
    Field("temp", (*EDGE, *JUNCTION), CELSIUS),
    Field("memoryTemp", MEMORY, CELSIUS),
    Field("hotspotTemp", JUNCTION, CELSIUS),
    Field("powerWatts", POWER, WATTS, zero=NO_POWER),
    Field("enforcedPowerLimitWatts", ("Max Graphics Package Power (W)",), WATTS, zero=NO_LIMIT),
    Field("smClock", ("sclk clock speed:", "sclk clock speed", "sclk clock level"), MEGAHERTZ, megahertz),
    Field("memoryClock", ("mclk clock speed:", "mclk clock speed", "mclk clock level"), MEGAHERTZ, megahertz),
    Field("energyJoules", ("Accumulated Energy (uJ)",), MICROJOULES, zero=NO_ENERGY, divisor=1e6),
    Field("pcieReplays", ("PCIe Replay Count",), COUNT, whole),
)
FAN = Field("fanSpeed", ("Fan speed (%)",), Bounds(0, 200))
FAN_RPM = "Fan RPM"
ALLOCATED_PERCENT = Field("memoryAllocated", ("GPU Memory Allocated (VRAM%)",), PERCENT)
POOLS = pools("{} Total Used Memory (B)", "{} Total Memory (B)", ("VRAM", "GTT"))
RAS_NAMES = ("correctedMemoryErrors", "uncorrectedMemoryErrors", "unCorrectedMemoryErrors")


def read_card(card: Card, unified: bool) -> dict[str, Value]:
    """Every metric of one card: its value, or why there is none.

    Args:
        card: What the tool printed.
        unified: Whether the card shares the host's memory.
    """
    values = table.read_card(card, FIELDS, POOLS, unified, ABSENT)
    values["fanSpeed"] = _fan(card)
    values["memoryAllocated"] = _allocated(card, card_memory(card, unified), unified)
    return complete(values | dict.fromkeys(RAS_NAMES, NO_RAS), NOT_PRINTED)


def card_memory(card: Card, unified: bool) -> Memory:
    """The memory that the card uses."""
    return table.card_memory(card, POOLS, unified, ABSENT)


def _allocated(card: Card, memory: Memory, unified: bool) -> Value:
    missing = [value for value in memory if isinstance(value, Unavailable)]
    # The printed percentage is of the VRAM: of an APU's carve-out it says nothing; and it does not outvote impossible bytes.
    if not missing or unified or any(value.reason != Reason.NOT_SUPPORTED for value in missing):
        return share(*memory)
    return read_field(card, ALLOCATED_PERCENT, ABSENT)


def _fan(card: Card) -> Value:
    value = read_field(card, FAN, ABSENT)
    if value == 0 and FAN_RPM.lower() not in card:
        return Unavailable(Reason.NOT_SUPPORTED, "0 % without a number of revolutions: this release prints that for a card without a fan")
    if isinstance(value, Unavailable) and FAN.keys[0].lower() not in card:
        return Unavailable(Reason.NOT_SUPPORTED, "rocm-smi prints no fan speed: the card has no fan, or its fan stands still")
    return value
