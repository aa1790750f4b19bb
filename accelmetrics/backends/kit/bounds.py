"""What can be true of a device: by unit, by metric, and of values that stand together. What cannot is ``invalid_value``.

- Sensors that are not there answer numbers: 65535 or -273 °C, an all-ones register of microwatts 4294.97 W.
- No device has a limit, a size, a link, a threshold or a highest clock of 0.
- A device draws up to ten times its power limit, for a moment. A limit of less than half a watt is none.
- A chip is colder than 0 °C only at rest in a cold place. The temperature is not believed while the chip computes, draws more than a
  quarter of its limit, or has another sensor at ``WARM`` or more; nor below -40 °C, for which no chip is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from accelmetrics.backends.contract import Value
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.metric import Metric

BY_UNIT: dict[str, tuple[float, float]] = {
    "%": (0, 1000),
    "W": (0, 4000),
    "Cel": (-40, 150),
    "MHz": (0, 20_000),
    "By": (0, 2**50),
    "By/s": (0, 2**50),
    "J": (0, 1e13),
    "GT/s": (0, 1000),
    "rpm": (0, 100_000),
    "s": (0, 1e9),
    "us": (0, 1e15),
    "1": (0, 2**53),
}
"""By unit of the catalogue, the smallest and the largest value."""
AT_LEAST = {"enforcedPowerLimitWatts": 0.5, "tempLimit.slowdown": 20, "tempLimit.shutdown": 20}
"""By metric, the smallest value where that is more."""
ALL_ONES = (2**32 - 1, 2**64 - 1)
STEADY = frozenset(
    {
        *("enforcedPowerLimitWatts", "memoryTotalBytes", "maxSmClock", "maxMemoryClock", "tempLimit.slowdown", "tempLimit.shutdown"),
        *("pcieLinkGen", "pcieLinkWidth", "maxPcieLinkGen", "maxPcieLinkWidth"),
    }
)
"""Metrics that seldom change: limits, sizes, links, highest clocks."""
NEVER_ZERO = STEADY | {"energyJoules"}
"""Metrics of which a 0 says that there is no value."""
TIMES_LIMIT = 10
"""How often its power limit a device may draw."""
AT_WORK = 0.25
"""The share of its limit above which a device works."""
WARM = 20
"""Degrees Celsius that no chip at rest in a cold place has anywhere."""
POWER, LIMIT = "powerWatts", "enforcedPowerLimitWatts"
ACTIVITY = ("gpu", "utilization", "ipu utilisation (%)", "neuroncore_utilization", "dutyCycle")


@lru_cache(maxsize=1024)
def possible(metric: Metric, high: float | None = None) -> tuple[float, float]:
    """Return the smallest and the largest value that a metric may have.

    Args:
        metric: Its row of the catalogue.
        high: The largest one, where that is not what the unit allows.
    """
    low, most = BY_UNIT.get(metric.unit, (-math.inf, math.inf))
    low, most = AT_LEAST.get(metric.name, low), most if high is None else high
    return (
        low if metric.minimum is None else max(low, metric.minimum),
        most if metric.maximum is None else min(most, metric.maximum),
    )


def hold_together(found: dict[str, Value], temperatures: Iterable[str]) -> None:
    """Replace the values of one device that others speak against.

    Args:
        found: Its values and reasons, by metric.
        temperatures: The metrics that are temperatures of the chip.
    """
    names = (POWER, LIMIT, *ACTIVITY, *temperatures)
    known = {name: value for name in names if name in found and not isinstance(value := found[name], Unavailable)}
    power, limit = known.get(POWER), known.get(LIMIT)
    if power is not None and limit is not None and power > TIMES_LIMIT * limit:
        found[POWER] = Unavailable(Reason.INVALID_VALUE, f"above {TIMES_LIMIT} times the limit of {limit:g} W")
    degrees = {name: known[name] for name in temperatures if name in known}
    cold = [name for name, value in degrees.items() if value < 0]
    is_drawing = (power or 0) > AT_WORK * (math.inf if limit is None else limit)
    if cold and (is_drawing or any(known.get(name, 0) > 0 for name in ACTIVITY) or max(degrees.values()) >= WARM):
        found.update(dict.fromkeys(cold, Unavailable(Reason.INVALID_VALUE, "below 0 °C, of a chip that works")))
