"""What each metric of a device is read from, and which numbers can be true."""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple

from accelmetrics.backends.contract import Number
from accelmetrics.schemas.reasons import Reason, Unavailable

Value = Number | Unavailable

MAX_BYTES = 2.0**50
MAX_SECONDS = 1e9
ROUNDING = 0.01
"""By how much a percentage may pass 100 and be meant as that."""
STALE_AFTER = 60.0
"""Seconds after which what the runtime noted about activity no longer says anything."""


class DeviceField(NamedTuple):
    """One metric of a device.

    Attributes:
        name: As the catalogue has it.
        grpc: The runtime's name; empty where only the SDK has it.
        sdk: The SDK's names, those of newer releases first.
        maximum: The largest number that can be true.
        whole: Whether it is a whole number.
        momentary: Whether it says something about just now, and so nothing once it is old.
        duty_cycle: Whether it is told of chips by generations that do so.
    """

    name: str
    grpc: str
    sdk: tuple[str, ...]
    maximum: float
    whole: bool = False
    momentary: bool = False
    duty_cycle: bool = False


TOTAL, USED, SHARE = "hbmCapacityTotal", "hbmCapacityUsage", "hbmMemoryUsage"
USED_ALIAS, SHARE_ALIAS = "memoryUsageBytes", "memoryUsage"
LINK_HEALTH = "iciLinkHealth"

FIELDS = (
    DeviceField("dutyCycle", "tpu.runtime.tensorcore.dutycycle.percent", ("duty_cycle_pct",), 100, momentary=True, duty_cycle=True),
    DeviceField("tensorcoreUtilization", "", ("tensorcore_util", "tensorcore_utilization"), 100),
    DeviceField("tensorcoreIdleDuration", "tpu.runtime.tensorcore.idle_duration.seconds", (), MAX_SECONDS, momentary=True),
    DeviceField(TOTAL, "tpu.runtime.hbm.memory.total.bytes", ("hbm_capacity_total",), MAX_BYTES, whole=True),
    DeviceField(USED, "tpu.runtime.hbm.memory.usage.bytes", ("hbm_capacity_usage",), MAX_BYTES, whole=True, momentary=True),
    DeviceField("runtimeHbmUtilization", "tpu.runtime.hbm.utilization.percent", (), 100, momentary=True),
    DeviceField(LINK_HEALTH, "", ("ici_link_health",), 10),
    DeviceField("throttleScore", "", ("tpu_throttle_score",), 10),
)
NAMES = (*(field.name for field in FIELDS), SHARE, USED_ALIAS, SHARE_ALIAS)
"""Every name that a device has a value or a reason for."""


def checked(field: DeviceField, said: object) -> Value:
    """A number as it was said, if it can be true."""
    if isinstance(said, bool) or not isinstance(said, (int, float)):
        return Unavailable(Reason.PARSE_ERROR, f"no number: {str(said)[:80]!r}")
    if not isfinite(said) or said < 0 or said > field.maximum + (ROUNDING if field.maximum == 100 else 0):
        return Unavailable(Reason.INVALID_VALUE, f"the runtime answered {said}")
    if not field.whole:
        return min(said, field.maximum)
    return int(said) if said == int(said) else Unavailable(Reason.INVALID_VALUE, f"the runtime answered {said}, which is no whole number")


def derived(values: dict[str, Value]) -> dict[str, Value]:
    """What follows from other values: the share of the memory, and the documented spellings."""
    share = _share(values[USED], values[TOTAL])
    return {SHARE: share, SHARE_ALIAS: share, USED_ALIAS: values[USED]}


def _share(used: Value, total: Value) -> Value:
    if isinstance(used, Unavailable):
        return used
    if isinstance(total, Unavailable):
        return total
    if total == 0 or used > total:
        return Unavailable(Reason.INVALID_VALUE, f"{used} of {total} bytes")
    return 100 * used / total
