"""Plausible values of a device: by unit, by metric, and in relation to one another. Any other value is ``invalid_value``.

- Absent sensors answer with numbers: 65535 or -273 °C, or an all-ones register of microwatts that reads as 4294.97 W.
- No device has a limit, a size, a link, a threshold or a highest clock of 0.
- A device may draw up to ten times its power limit for a moment. A limit of less than half a watt means that there is no limit.
- A chip is below 0 °C only if it is idle in a cold place. A negative temperature is rejected if the chip computes, draws more than
  a quarter of its limit, or has another sensor at ``WARM`` or more. Temperatures below -40 °C are always rejected, since no chip is
  made for them.
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
"""Smallest and largest value by the catalogue's unit."""
# A smaller limit or threshold means that there is none.
AT_LEAST = {"enforcedPowerLimitWatts": 0.5, "tempLimit.slowdown": 20, "tempLimit.shutdown": 20}
"""Smallest value by metric, where it is above the unit's smallest value."""
# Registers of absent sensors read as all ones.
ALL_ONES = (2**32 - 1, 2**64 - 1)
STEADY = frozenset(
    {
        *("enforcedPowerLimitWatts", "memoryTotalBytes", "maxSmClock", "maxMemoryClock", "tempLimit.slowdown", "tempLimit.shutdown"),
        *("pcieLinkGen", "pcieLinkWidth", "maxPcieLinkGen", "maxPcieLinkWidth"),
    }
)
"""Metrics that seldom change: limits, sizes, links, highest clocks."""
NEVER_ZERO = STEADY | {"energyJoules"}
"""Metrics for which 0 means that there is no value."""
TIMES_LIMIT = 10
"""Highest plausible power draw, as a multiple of the power limit. Short peaks above the limit are real."""
AT_WORK = 0.25
"""Share of the power limit above which a device is taken to be working."""
WARM = 20
"""Degrees Celsius that no sensor of an idle chip reaches in a cold place."""
POWER, LIMIT = "powerWatts", "enforcedPowerLimitWatts"
ACTIVITY = ("gpu", "utilization", "ipu utilisation (%)", "neuroncore_utilization", "dutyCycle")


@lru_cache(maxsize=1024)
def possible(metric: Metric, high: float | None = None) -> tuple[float, float]:
    """Return the smallest and the largest plausible value of a metric.

    Args:
        metric: Its row of the catalogue.
        high: The largest value, if it differs from the unit's.
    """
    low, most = BY_UNIT.get(metric.unit, (-math.inf, math.inf))
    low, most = AT_LEAST.get(metric.name, low), most if high is None else high
    return (
        low if metric.minimum is None else max(low, metric.minimum),
        most if metric.maximum is None else min(most, metric.maximum),
    )


def hold_together(found: dict[str, Value], temperatures: Iterable[str]) -> None:
    """Replace implausible values of one device by a reason, judged by its other values.

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
    # Without a known limit no draw counts as work.
    is_drawing = (power or 0) > AT_WORK * (math.inf if limit is None else limit)
    if cold and (is_drawing or any(known.get(name, 0) > 0 for name in ACTIVITY) or max(degrees.values()) >= WARM):
        found.update(dict.fromkeys(cold, Unavailable(Reason.INVALID_VALUE, "below 0 °C, of a chip that works")))
