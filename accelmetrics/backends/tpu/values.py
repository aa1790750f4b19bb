"""What the runtimes' answers say of each device, and of all devices together, as values under the catalogue's names.

Device numbers are the runtime's own ids. On TPU v2 and v3 the duty cycle is told of chips, and both devices of a chip have
it; memory is told of devices everywhere and is never multiplied.

Several programs on one machine each tell of their own transfers and programs: distributions of one label are added up bucket
by bucket, queues of one label by their lengths. What has a label exists only while the runtime tells of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from math import inf, isfinite
from typing import NamedTuple

from accelmetrics.backends.contract import Coverage, Number
from accelmetrics.backends.tpu.messages import Distribution, Entry, Scalar
from accelmetrics.backends.tpu.runtime import Answer, PortAnswers
from accelmetrics.schemas.catalogue.tpu import FAMILIES, QUEUE_GRPC, QUEUE_KEY, QUEUE_SDK, STATISTICS, Family
from accelmetrics.schemas.reasons import Reason, Unavailable

Value = Number | Unavailable

MAX_BYTES = 2.0**50
MAX_SECONDS = 1e9
ROUNDING = 0.01
"""By how much a percentage may pass 100 and be meant as that."""
STALE_AFTER = 60.0
"""Seconds after which what the runtime noted about activity no longer says anything."""

NOT_LISTED = Unavailable(Reason.NOT_SUPPORTED, "the runtime does not have it")
SDK_ONLY = Unavailable(Reason.NOT_SUPPORTED, "the runtime does not serve it, only libtpu's SDK has it")
OTHER_DEVICES = Unavailable(Reason.NOT_SUPPORTED, "the runtime says it of other devices, not of this one")
NOT_TOLD = Unavailable(Reason.NOT_SUPPORTED, "of this distribution it is not told")
NOTHING_YET = Unavailable(Reason.NOT_IN_USE, "the runtime has not measured it yet")


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
GRPC_NAMES = (*(field.grpc for field in FIELDS if field.grpc), *(family.grpc for family in FAMILIES), QUEUE_GRPC)
SDK_NAMES = (*(name for field in FIELDS for name in field.sdk), *(name for family in FAMILIES for name in family.sdk), *QUEUE_SDK)


def _read_from(grpc: str, sdk: Sequence[str]) -> str:
    """Where a metric is read, in words."""
    return "; ".join(([f"gRPC {grpc}"] if grpc else []) + ([f"SDK {', '.join(sdk)}"] if sdk else []))


def _coverage() -> Coverage:
    devices = {field.name: _read_from(field.grpc, field.sdk) for field in FIELDS}
    devices |= {SHARE: f"{USED} / {TOTAL}", SHARE_ALIAS: f"{USED} / {TOTAL}", USED_ALIAS: devices[USED]}
    machine: dict[str, str] = {}
    optional = {f"{QUEUE_KEY}.{{label}}": _read_from(QUEUE_GRPC, QUEUE_SDK)}
    for family in FAMILIES:
        keys = {family.name(statistic): _read_from(family.grpc, family.sdk) for statistic in STATISTICS}
        (optional if family.labelled else machine).update(keys)
    return Coverage(devices, machine=machine, optional=optional)


COVERAGE = _coverage()
"""Which metrics TPUs give, by the tables of fields and of distributions."""


# Devices


def checked(field: DeviceField, said: object) -> Value:
    """A number as it was said, if it can be true."""
    if isinstance(said, bool) or not isinstance(said, (int, float)):
        return Unavailable(Reason.PARSE_ERROR, "no value" if said is None else f"no number: {str(said)[:80]!r}")
    if not isfinite(said) or said < 0 or said > field.maximum + (ROUNDING if field.maximum == 100 else 0):
        return Unavailable(Reason.INVALID_VALUE, f"the runtime answered {said}")
    if not field.whole:
        return min(said, field.maximum)
    return int(said) if said == int(said) else Unavailable(Reason.INVALID_VALUE, f"the runtime answered {said}, which is no whole number")


def with_derived(values: dict[str, Value]) -> dict[str, Value]:
    """Add what follows from other values: the share of the memory, and the documented spellings."""
    used, total = values[USED], values[TOTAL]
    share: Value
    if isinstance(used, Unavailable) or isinstance(total, Unavailable):
        share = used if isinstance(used, Unavailable) else total
    elif total == 0 or used > total:
        share = Unavailable(Reason.INVALID_VALUE, f"{used} of {total} bytes")
    else:
        share = 100 * used / total
    return {**values, SHARE: share, SHARE_ALIAS: share, USED_ALIAS: used}


class PortDevices(NamedTuple):
    """One port's devices and their numbers.

    Attributes:
        port: The port.
        failure: Why nothing came of asking it; None when the runtime answered.
        devices: By device that it names, by metric, its number.
        missing: By metric, why a device has no number.
    """

    port: int
    failure: Unavailable | None
    devices: Mapping[int, Mapping[str, Value]]
    missing: Mapping[str, Unavailable]

    def value(self, name: str, number: int) -> Value:
        """A device's number, or why there is none."""
        return self.devices.get(number, self.missing).get(name, self.missing[name])


def port_devices(answers: PortAnswers, per_chip: int, now: float) -> PortDevices:
    """Sort what one port answered by device.

    Args:
        answers: What it answered.
        per_chip: How many devices share a duty cycle.
        now: Seconds since 1970.
    """
    devices: dict[int, dict[str, Value]] = {}
    missing: dict[str, Unavailable] = {}
    # What is told of chips comes last: which devices there are is known then.
    for field in sorted(FIELDS, key=lambda field: field.duty_cycle):
        answer = answers.metrics.get(field.grpc, NOT_LISTED if field.grpc else SDK_ONLY)
        missing[field.name] = answer if isinstance(answer, Unavailable) else OTHER_DEVICES
        told: dict[int, Value] = {}
        for entry in () if isinstance(answer, Unavailable) else answer:
            number = device_id(entry.about)
            if number is None:
                missing[field.name] = Unavailable(Reason.PARSE_ERROR, f"the runtime does not say of which device its {field.grpc} is")
            else:
                told[number] = _read(field, entry, now)
        if field.duty_cycle and per_chip > 1:
            told = _fanned_out(told, sorted(devices), per_chip)
        for number, value in told.items():
            devices.setdefault(number, {})[field.name] = value
    return PortDevices(answers.port, answers.failure, devices, missing)


def _read(field: DeviceField, entry: Entry, now: float) -> Value:
    age = now - entry.seconds
    if field.momentary and entry.seconds > 0 and age > STALE_AFTER:
        return Unavailable(Reason.STALE, f"the runtime noted it {age:.0f} s ago")
    if isinstance(entry.measure, Distribution):
        return Unavailable(Reason.PARSE_ERROR, "the runtime answered a distribution")
    return checked(field, entry.measure)


def _fanned_out(chips: Mapping[int, Value], devices: Sequence[int], per_chip: int) -> dict[int, Value]:
    """From chips to devices, as Google's own ``tpu-info`` does it: in order where the numbers fit, else by arithmetic."""
    repeated = [chip for chip in sorted(chips) for _ in range(per_chip)]
    if chips.keys() == set(devices):
        repeated = sorted(chips)  # the runtime told it of devices already
    elif len(devices) != len(repeated):
        devices = [chip * per_chip + core % per_chip for core, chip in enumerate(repeated)]
    return {number: chips[chip] for number, chip in zip(devices, repeated, strict=True)}


HIGHEST_DEVICE = 2**31 - 1
ORDINAL, CORE_TYPE, BUFFER_SIZE = "device_ordinal", "core_type", "buffer-size"
_DEVICE_NUMBER = re.compile(r"\d{1,10}", re.ASCII)
_NOT_IN_KEYS = re.compile(r"[^a-z0-9]+")


def device_id(about: Mapping[str, Scalar | None]) -> int | None:
    """The runtime's number of the device that an entry is about; None when it names none.

    Digits in a string are one under the keys that mean a device; newer releases write them so. An integer that stands alone is
    one whatever its key, which differs between releases (``device-id``, ``device_id``).
    """
    candidates = [about.get(key) for key in ("device-id", "device_id", ORDINAL)]
    if len(about) == 1:
        candidates += [value for value in about.values() if not isinstance(value, str)]
    for value in candidates:
        number = int(value) if isinstance(value, str) and _DEVICE_NUMBER.fullmatch(value) else value
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= HIGHEST_DEVICE:
            return number
    return None


def label(about: Mapping[str, Scalar | None], position: int) -> str:
    """Under which label an entry's numbers stand.

    A core is told as the SDK does it, by its type and number; a transfer by the size of its buffers; anything else by the
    first thing that is said of it, and an entry of which nothing is said by its position, as W&B has it.
    """
    said = {key: "" if value is None else str(value) for key, value in about.items()}
    if ORDINAL in said and CORE_TYPE in said:
        return sanitized(f"{said[CORE_TYPE]}-{said[ORDINAL]}")
    words = said.get(BUFFER_SIZE) or next(filter(None, said.values()), "")
    return sanitized(words) if words else f"item_{position}"


def sanitized(words: str) -> str:
    """A label as it stands in keys, spelled as W&B does: ``8MB+`` gives ``8mb_plus``, ``tensor_core-0`` ``tensor_core_0``."""
    text = words.strip().lower().replace("+", "_plus_").replace("%", "pct")
    return _NOT_IN_KEYS.sub("_", text).strip("_") or "unknown"


# All devices together

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
"""What is taken from buckets, and from a summary if it is there."""
CLOSE = 1e-9


def distributions(family: Family, answers: Sequence[Answer]) -> dict[str, dict[str, Number]] | Unavailable:
    """What the ports' answers tell of one family: by label, empty where there is none, the statistics by name."""
    failures = [answer for answer in answers if isinstance(answer, Unavailable)]
    if len(failures) == len(answers):
        return failures[0] if failures else NOT_LISTED
    parts: dict[str, list[Distribution]] = {}
    for position, entry in enumerate(_entries(answers)):
        if isinstance(entry.measure, Distribution):
            parts.setdefault(label(entry.about, position) if family.labelled else "", []).append(entry.measure)
    found = {name: statistics(measures) for name, measures in parts.items()}
    return {name: numbers for name, numbers in found.items() if numbers}


def statistics(parts: Sequence[Distribution]) -> dict[str, Number]:
    """By name (``mean``, ``p50``, …) what is known of these distributions taken together; nothing when they are empty.

    Counts of the same buckets can be added up; percentiles cannot, nor counts of different buckets.
    """
    told = [part for part in parts if part.samples > 0]
    if not told:
        return {}
    found: dict[str, Number] = {"mean": sum(part.mean * part.samples for part in told) / sum(part.samples for part in told)}
    for share, value in told[0].quantiles if len(told) == 1 else ():
        found.update({name: value for name, wanted in PERCENTILES.items() if abs(share - wanted) < CLOSE})
    bounds = told[0].bounds
    if bounds and all(part.bounds == bounds for part in told):
        counts = [sum(column) for column in zip_longest(*(part.counts for part in told), fillvalue=0)]
        maximum = max(part.maximum for part in told) if all(part.maximum for part in told) else None
        percentiles = {name: percentile(counts, bounds, share, maximum) for name, share in PERCENTILES.items()}
        found.update({name: value for name, value in percentiles.items() if value is not None})
    return found


def percentile(counts: Sequence[int], bounds: Sequence[float], share: float, maximum: float | None) -> float | None:
    """Where so large a share of the values lies below; None where that cannot be told.

    The buckets are those of ``google.api.Distribution``: the first holds everything below the first bound, the last everything
    from the last bound on. The value is interpolated within its bucket, as Google's own ``tpu-info`` does it, and never above
    the largest value; where the runtime does not tell that, nothing is known of the last bucket.
    """
    wanted = share * sum(counts)
    below = 0
    for index, count in enumerate(counts):
        if count and below + count >= wanted:
            low = bounds[min(index, len(bounds)) - 1] if index else min(0.0, bounds[0])
            largest = inf if maximum is None else maximum
            high = bounds[index] if index < len(bounds) else largest
            value = min(low + (wanted - below) / count * (high - low), largest)
            return value if isfinite(value) and low <= high else None
        below += count
    return None


def queues(answers: Sequence[Answer]) -> dict[str, Number]:
    """Lengths of the programs' queues, by label."""
    lengths: dict[str, Number] = {}
    for position, entry in enumerate(_entries(answers)):
        if isinstance(entry.measure, (int, float)) and not isinstance(entry.measure, bool):
            name = label(entry.about, position)
            lengths[name] = lengths.get(name, 0) + entry.measure
    return lengths


def _entries(answers: Sequence[Answer]) -> list[Entry]:
    return [entry for answer in answers if not isinstance(answer, Unavailable) for entry in answer]


def machine_keys(family: Family, found: Mapping[str, Mapping[str, Number]] | Unavailable) -> dict[str, Value]:
    """The keys of one family: those without a label always, each with a value or a reason."""
    owed = {} if family.labelled else {family.name(statistic): NOT_TOLD for statistic in STATISTICS}
    if isinstance(found, Unavailable):
        return dict.fromkeys(owed, found)
    keys = {family.name(statistic, name): sound(number) for name, numbers in found.items() for statistic, number in numbers.items()}
    return {**owed, **keys}


def sound(number: Number) -> Value:
    """A number that can be true: finite and not negative."""
    if isfinite(number) and number >= 0:
        return number
    return Unavailable(Reason.INVALID_VALUE, f"the runtime answered {number}")
