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

from collections.abc import Callable
from typing import NamedTuple

from accelmetrics.backends.amd.rocm_smi_json import Card
from accelmetrics.backends.amd.values import Bounds, bounded, first_present, megahertz, number, whole
from accelmetrics.backends.contract import Number
from accelmetrics.schemas.reasons import Reason, Unavailable

Value = Number | Unavailable

PERCENT = Bounds(0, 100)
CELSIUS = Bounds(-50, 200)
"""Sensors answer 65535 or -273 when they are not there."""
WATTS = Bounds(0, 4000)
"""An all-ones register of microwatts is 4294.97 W."""
MEGAHERTZ = Bounds(0, 20_000)
BYTES = Bounds(0, 2**50)
MICROJOULES = Bounds(0, 1e19)
"""Three centuries at 1 kW; an all-ones counter times its resolution is 2.8e20."""
COUNT = Bounds(0, 2**32 - 2)

NO_RAS = Unavailable(Reason.NOT_SUPPORTED, "rocm-smi prints RAS error counts as tables only, not in its JSON")


class Field(NamedTuple):
    """One metric that is printed as such.

    Attributes:
        name: The metric.
        keys: Where it is printed, the preferred key first.
        bounds: What is possible, in the printed unit.
        convert: From what is printed to a number.
        zero: Why a 0 is no measurement; empty where it may be one.
        divisor: What the printed number is divided by.
    """

    name: str
    keys: tuple[str, ...]
    bounds: Bounds
    convert: Callable[[object], Value] = number
    zero: str = ""
    divisor: float = 1


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
    Field("powerWatts", POWER, WATTS, zero="no card draws 0 W: it is what rocm-smi prints for a die without a sensor"),
    Field("enforcedPowerLimitWatts", ("Max Graphics Package Power (W)",), WATTS, zero="a cap of 0 W is printed for a die without one"),
    Field("smClock", ("sclk clock speed:", "sclk clock speed", "sclk clock level"), MEGAHERTZ, megahertz),
    Field("memoryClock", ("mclk clock speed:", "mclk clock speed", "mclk clock level"), MEGAHERTZ, megahertz),
    Field("energyJoules", ("Accumulated Energy (uJ)",), MICROJOULES, zero="the energy counter stays at 0", divisor=1e6),
    Field("pcieReplays", ("PCIe Replay Count",), COUNT, whole),
)
FAN = Field("fanSpeed", ("Fan speed (%)",), Bounds(0, 200))
FAN_RPM = "Fan RPM"
ALLOCATED_PERCENT = Field("memoryAllocated", ("GPU Memory Allocated (VRAM%)",), PERCENT)
NO_TOTAL = "a total of 0 bytes is printed for memory that is unknown"
VRAM_TOTAL = Field("memoryTotalBytes", ("VRAM Total Memory (B)",), BYTES, whole, NO_TOTAL)
VRAM_USED = Field("memoryAllocatedBytes", ("VRAM Total Used Memory (B)",), BYTES, whole)
GTT_TOTAL = Field("memoryTotalBytes", ("GTT Total Memory (B)",), BYTES, whole, NO_TOTAL)
GTT_USED = Field("memoryAllocatedBytes", ("GTT Total Used Memory (B)",), BYTES, whole)
RAS_NAMES = ("correctedMemoryErrors", "uncorrectedMemoryErrors", "unCorrectedMemoryErrors")


class Memory(NamedTuple):
    """A pool of memory, in bytes."""

    used: Value
    total: Value


def read_card(card: Card, unified: bool) -> dict[str, Value]:
    """Every metric of one card: its value, or why there is none.

    Args:
        card: What the tool printed.
        unified: Whether the card shares the host's memory.
    """
    values = {field.name: read_field(card, field) for field in FIELDS}
    values["fanSpeed"] = _fan(card)
    values["powerPercent"] = _share(values["powerWatts"], values["enforcedPowerLimitWatts"])
    memory = card_memory(card, unified)
    values["memoryAllocatedBytes"], values["memoryTotalBytes"] = memory
    values["memoryAllocated"] = _allocated(card, memory, unified)
    return values | dict.fromkeys(RAS_NAMES, NO_RAS)


def read_field(card: Card, field: Field) -> Value:
    """One metric that is printed as such."""
    found = first_present(card, field.keys, field.convert)
    if found is None:
        return Unavailable(Reason.NOT_SUPPORTED, f'rocm-smi does not print "{field.keys[0]}" for this card')
    value = bounded(found, field.bounds)
    if value == 0 and field.zero:
        return Unavailable(Reason.NOT_SUPPORTED, field.zero)
    return value if isinstance(value, Unavailable) or field.divisor == 1 else value / field.divisor


def card_memory(card: Card, unified: bool) -> Memory:
    """The memory that the card uses: its VRAM; with shared memory, its carve-out and the GTT together."""
    video = _pool(card, VRAM_USED, VRAM_TOTAL)
    if not unified:
        return video
    shared = _pool(card, GTT_USED, GTT_TOTAL)
    return Memory(_sum(video.used, shared.used), _sum(video.total, shared.total))


def _pool(card: Card, used_field: Field, total_field: Field) -> Memory:
    total = read_field(card, total_field)
    used = read_field(card, used_field)
    if isinstance(used, (int, float)) and isinstance(total, (int, float)) and used > total:
        used = Unavailable(Reason.INVALID_VALUE, f"{used} of {total} bytes")
    return Memory(used, total)


def _sum(carved: Value, shared: Value) -> Value:
    if isinstance(carved, Unavailable):
        return carved
    if isinstance(shared, Unavailable):
        return shared._replace(detail=f"an APU's carve-out alone is not the memory it uses, and of the GTT: {shared.detail}")
    return carved + shared


def _allocated(card: Card, memory: Memory, unified: bool) -> Value:
    used, total = memory
    share = _share(used, total)
    missing = [value for value in memory if isinstance(value, Unavailable)]
    # The printed percentage is of the VRAM: of an APU's carve-out it says nothing; and it does not outvote impossible bytes.
    if not missing or unified or any(value.reason != Reason.NOT_SUPPORTED for value in missing):
        return share
    return read_field(card, ALLOCATED_PERCENT)


def _share(part: Value, of: Value) -> Value:
    if isinstance(part, Unavailable):
        return part
    if isinstance(of, Unavailable):
        return of
    return 100 * part / of


def _fan(card: Card) -> Value:
    value = read_field(card, FAN)
    if value == 0 and FAN_RPM.lower() not in card:
        return Unavailable(Reason.NOT_SUPPORTED, "0 % without a number of revolutions: this release prints that for a card without a fan")
    if isinstance(value, Unavailable) and FAN.keys[0].lower() not in card:
        return Unavailable(Reason.NOT_SUPPORTED, "rocm-smi prints no fan speed: the card has no fan, or its fan stands still")
    return value
