"""Metrics of each device, and of all devices together, from the runtimes' answers.

Device numbers are the runtime's ids. On TPU v2 and v3 the duty cycle is reported per chip, and both devices of a chip get it. Memory is
always reported per device.

Several programs on one machine each report their own transfers. Distributions with the same label are added bucket by bucket, queues with
the same label by their lengths. A key with a label exists only while the runtime reports the label.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from math import inf, isfinite
from typing import NamedTuple

from accelmetrics.backends.contract import Coverage, Number, Value
from accelmetrics.backends.tpu.runtime import DistributionMessage, MetricAnswer, MetricMessage, Scalar
from accelmetrics.schemas.catalogue.tpu import FAMILIES, QUEUE_GRPC, QUEUE_KEY, QUEUE_SDK, STATISTICS, Family
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.selection import MetricSelection

MAX_BYTES = 2.0**50
MAX_SECONDS = 1e9
ROUNDING = 0.01
"""Largest amount by which a percentage may exceed 100 through rounding."""
STALE_AFTER = 60.0
"""Age in seconds from which the runtime's numbers about activity are stale."""

NOT_LISTED = Unavailable(Reason.NOT_SUPPORTED, "the runtime does not list it")
SDK_ONLY = Unavailable(Reason.NOT_SUPPORTED, "the runtime does not serve it, only libtpu's SDK has it")
IMPOSSIBLE = Unavailable(Reason.INVALID_VALUE, "the runtime answered an impossible number")
"""Reason for an impossible number. It does not quote the number, since a reason that changes at each reading costs a new header."""
OTHER_DEVICES = Unavailable(Reason.NOT_SUPPORTED, "the runtime reports it for other devices, not for this one")
NOT_REPORTED = Unavailable(Reason.NOT_SUPPORTED, "not reported for this distribution")
NOTHING_YET = Unavailable(Reason.NOT_IN_USE, "the runtime has not measured it yet")


class DeviceField(NamedTuple):
    """A metric of a device.

    Attributes:
        name: Name in the catalogue.
        grpc: The runtime's name; empty if only the SDK has the metric.
        sdk: The SDK's names, newer releases first.
        maximum: Largest possible value.
        whole: Whether it is a whole number.
        momentary: Whether it describes the present, so that an old value is stale.
        per_chip: Whether some generations report it per chip.
    """

    name: str
    grpc: str
    sdk: tuple[str, ...]
    maximum: float
    whole: bool = False
    momentary: bool = False
    per_chip: bool = False


TOTAL, USED, SHARE = "hbmCapacityTotal", "hbmCapacityUsage", "hbmMemoryUsage"
USED_ALIAS, SHARE_ALIAS = "memoryUsageBytes", "memoryUsage"
LINK_HEALTH, THROTTLE, CORES = "iciLinkHealth", "throttleScore", "tensorcoreUtilization"

FIELDS = (
    DeviceField("dutyCycle", "tpu.runtime.tensorcore.dutycycle.percent", ("duty_cycle_pct",), 100, momentary=True, per_chip=True),
    DeviceField(CORES, "", ("tensorcore_util", "tensorcore_utilization"), 100),
    DeviceField("tensorcoreIdleDuration", "tpu.runtime.tensorcore.idle_duration.seconds", ("idle_duration",), MAX_SECONDS, momentary=True),
    DeviceField(TOTAL, "tpu.runtime.hbm.memory.total.bytes", ("hbm_capacity_total",), MAX_BYTES, whole=True),
    DeviceField(USED, "tpu.runtime.hbm.memory.usage.bytes", ("hbm_capacity_usage",), MAX_BYTES, whole=True, momentary=True),
    DeviceField("runtimeHbmUtilization", "tpu.runtime.hbm.utilization.percent", ("runtime_hbm_utilization",), 100, momentary=True),
    DeviceField("dramActive", "", ("hbm_util",), 100),
    DeviceField(LINK_HEALTH, "", ("ici_link_health",), 10),
    DeviceField(THROTTLE, "", ("tpu_throttle_score",), 10),
)
GRPC_NAMES = (*(field.grpc for field in FIELDS if field.grpc), *(family.grpc for family in FAMILIES), QUEUE_GRPC)
SDK_NAMES = (*(name for field in FIELDS for name in field.sdk), *(name for family in FAMILIES for name in family.sdk), *QUEUE_SDK)


def _read_from(grpc: str, sdk: Sequence[str]) -> str:
    """Return in words where a metric is read."""
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
"""Metrics of TPUs, derived from the tables of fields and distributions."""


def needed_names(metrics: MetricSelection) -> frozenset[str]:
    """Return the runtime's names to ask for: all device metrics if one is selected, and each selected distribution."""
    names: set[str] = set()
    if any(metrics.wants_some(f"tpu.{{i}}.{name}") for name in COVERAGE.devices):
        # All of them, since any may be the one that shows which devices a runtime has.
        names.update(field.grpc for field in FIELDS if field.grpc)
    names.update(family.grpc for family in FAMILIES if any(metrics.wants_some(family.name(statistic)) for statistic in STATISTICS))
    if metrics.wants_some(f"{QUEUE_KEY}.{{label}}"):
        names.add(QUEUE_GRPC)
    return frozenset(names)


# Devices


def checked(field: DeviceField, answer: object) -> Value:
    """Return an answered number, or why it is invalid."""
    if isinstance(answer, bool) or not isinstance(answer, (int, float)):
        return Unavailable(Reason.PARSE_ERROR, "no value" if answer is None else f"no number: {str(answer)[:80]!r}")
    if not isfinite(answer) or answer < 0 or answer > field.maximum + (ROUNDING if field.maximum == 100 else 0):
        return IMPOSSIBLE
    if not field.whole:
        return min(answer, field.maximum)
    whole = int(answer) == answer
    return int(answer) if whole else Unavailable(Reason.INVALID_VALUE, "the runtime answered no whole number")


def with_derived(values: dict[str, Value]) -> dict[str, Value]:
    """Add the derived values: the share of memory in use, and the documented aliases."""
    used, total = values[USED], values[TOTAL]
    share: Value
    if isinstance(used, Unavailable) or isinstance(total, Unavailable):
        share = used if isinstance(used, Unavailable) else total
    elif total == 0 or used > total:
        share = Unavailable(Reason.INVALID_VALUE, f"more than the total of {total} bytes is in use" if total else "a total of 0 bytes")
    else:
        share = 100 * used / total
    return {**values, SHARE: share, SHARE_ALIAS: share, USED_ALIAS: used}


PortDevices = tuple[Mapping[int, Mapping[str, Value]], Mapping[str, Unavailable]]
"""Values of the devices of one port, by device number and metric; and for each metric the reason of a device that has no value."""


def port_devices(answers: Mapping[str, MetricAnswer], per_chip: int, now: float) -> PortDevices:
    """Return one port's answers by device.

    Args:
        answers: The answers by the runtime's names.
        per_chip: Number of devices that share a value reported per chip.
        now: Seconds since 1970.
    """
    devices: dict[int, dict[str, Value]] = {}
    missing: dict[str, Unavailable] = {}
    # Values per chip come last, because spreading them needs the list of devices.
    for field in sorted(FIELDS, key=lambda field: field.per_chip):
        answer = answers.get(field.grpc, NOT_LISTED if field.grpc else SDK_ONLY)
        missing[field.name] = answer if isinstance(answer, Unavailable) else OTHER_DEVICES
        found: dict[int, Value] = {}
        for about, seconds, measure in () if isinstance(answer, Unavailable) else answer:
            number = device_id(about)
            if number is None:
                missing[field.name] = Unavailable(Reason.PARSE_ERROR, f"the runtime reports {field.grpc} without a device")
                continue
            value = checked(field, measure)
            if field.momentary and seconds > 0 and now - seconds > STALE_AFTER:
                value = Unavailable(Reason.STALE, f"the runtime took it more than {STALE_AFTER:g} s ago")
            elif isinstance(measure, DistributionMessage):
                value = Unavailable(Reason.PARSE_ERROR, "the runtime answered a distribution")
            if found.setdefault(number, value) != value:
                found[number] = Unavailable(Reason.PARSE_ERROR, f"the runtime reports {field.grpc} twice for this device")
        if field.per_chip and per_chip > 1:
            found = _fanned_out(found, sorted(devices), per_chip)
        for number, value in found.items():
            devices.setdefault(number, {})[field.name] = value
    return devices, missing


def _fanned_out(chips: Mapping[int, Value], devices: Sequence[int], per_chip: int) -> dict[int, Value]:
    """Spread values of chips over their devices, as Google's ``tpu-info`` does: in order if the counts match, else by arithmetic."""
    repeated = [chip for chip in sorted(chips) for _ in range(per_chip)]
    if chips.keys() == set(devices):
        repeated = sorted(chips)  # already reported per device
    elif len(devices) != len(repeated):
        devices = [chip * per_chip + core % per_chip for core, chip in enumerate(repeated)]
    return {number: chips[chip] for number, chip in zip(devices, repeated, strict=True)}


LONGEST_LABEL, MAX_LABELS = 100, 256
"""Most characters of a label (a buffer size, a core) that are read, and most labels of one family."""
HIGHEST_DEVICE = 2**31 - 1
ORDINAL, CORE_TYPE, BUFFER_SIZE = "device_ordinal", "core_type", "buffer-size"
_DEVICE_NUMBER = re.compile(r"\d{1,10}", re.ASCII)
_NOT_IN_KEYS = re.compile(r"[^a-z0-9]+")


def device_id(about: Mapping[str, Scalar | None]) -> int | None:
    """Return the device number in an entry's attributes; None without one."""
    # Newer releases write the number as a string, which counts under these keys only. A lone integer counts under any
    # key, since the key differs between releases (`device-id`, `device_id`).
    candidates = [about.get(key) for key in ("device-id", "device_id", ORDINAL)]
    if len(about) == 1:
        candidates += [value for value in about.values() if not isinstance(value, str)]
    for value in candidates:
        number = int(value) if isinstance(value, str) and _DEVICE_NUMBER.fullmatch(value) else value
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= HIGHEST_DEVICE:
            return number
    return None


def label(about: Mapping[str, Scalar | None], position: int) -> str:
    """Return the label in an entry's attributes.

    The label of a core is its type and number, as in the SDK, the label of a transfer its buffer size. Any other entry has its first
    attribute as its label, and an entry without attributes its position, as in W&B.
    """
    texts = {key: "" if value is None else str(value) for key, value in about.items()}
    if ORDINAL in texts and CORE_TYPE in texts:
        return sanitized(f"{texts[CORE_TYPE]}-{texts[ORDINAL]}")
    words = texts.get(BUFFER_SIZE) or next(filter(None, texts.values()), "")
    return sanitized(words) if words else f"item_{position}"


def sanitized(words: str) -> str:
    """Return a label in the form used in keys, the same as W&B's: ``8MB+`` gives ``8mb_plus``, ``tensor_core-0`` ``tensor_core_0``."""
    text = words[:LONGEST_LABEL].strip().lower().replace("+", "_plus_").replace("%", "pct")
    return _NOT_IN_KEYS.sub("_", text).strip("_") or "unknown"


# All devices together

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
"""Percentiles that are computed from buckets, or copied from a summary."""
CLOSE = 1e-9


def distributions(family: Family, answers: Sequence[MetricAnswer]) -> dict[str, dict[str, Number]] | Unavailable:
    """Return the statistics of one family, by label (empty without labels) and by name."""
    if all(isinstance(answer, Unavailable) for answer in answers):
        return next((answer for answer in answers if isinstance(answer, Unavailable)), NOT_LISTED)
    parts: dict[str, list[DistributionMessage]] = {}
    for position, (about, _, measure) in enumerate(_entries(answers)):
        name = label(about, position) if family.labelled else ""
        if isinstance(measure, DistributionMessage) and (name in parts or len(parts) < MAX_LABELS):
            parts.setdefault(name, []).append(measure)
    found = {name: statistics(measures) for name, measures in parts.items()}
    return {name: numbers for name, numbers in found.items() if numbers}


def statistics(parts: Sequence[DistributionMessage]) -> dict[str, Number]:
    """Return the combined statistics (``mean``, ``p50``, …) of several distributions; empty if they have no values."""
    parts = [part for part in parts if part.samples > 0]
    if not parts:
        return {}
    found: dict[str, Number] = {"mean": sum(part.mean * part.samples for part in parts) / sum(part.samples for part in parts)}
    for share, value in parts[0].quantiles if len(parts) == 1 else ():
        found.update({name: value for name, wanted in PERCENTILES.items() if abs(share - wanted) < CLOSE})
    # Counts of equal buckets can be added. Percentiles, and counts of different buckets, cannot.
    bounds = parts[0].bounds
    if bounds and all(part.bounds == bounds for part in parts):
        counts = [sum(column) for column in zip_longest(*(part.counts for part in parts), fillvalue=0)]
        # A maximum of 0 means "not reported", unless the mean shows that every value is 0.
        known = all(part.maximum or not part.mean for part in parts)
        maximum = max(part.maximum for part in parts) if known else None
        percentiles = {name: percentile(counts, bounds, share, maximum) for name, share in PERCENTILES.items()}
        found.update({name: value for name, value in percentiles.items() if value is not None})
    return found


def percentile(counts: Sequence[int], bounds: Sequence[float], share: float, maximum: float | None) -> float | None:
    """Return the value below which this share of all values lies; None if it is unknown.

    The buckets are those of ``google.api.Distribution``: the first has all values below the first bound, the last all values from the last
    bound on. The value is interpolated within its bucket, as in Google's ``tpu-info``, and never above the largest value. If the largest
    value is not reported, a percentile in the last bucket is unknown.
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


def queues(answers: Sequence[MetricAnswer]) -> dict[str, Number]:
    """Return the lengths of the programs' queues, by label."""
    lengths: dict[str, Number] = {}
    for position, (about, _, measure) in enumerate(_entries(answers)):
        if isinstance(measure, (int, float)) and not isinstance(measure, bool):
            name = label(about, position)
            if name in lengths or len(lengths) < MAX_LABELS:
                lengths[name] = lengths.get(name, 0) + measure
    return lengths


def _entries(answers: Sequence[MetricAnswer]) -> list[MetricMessage]:
    return [entry for answer in answers if not isinstance(answer, Unavailable) for entry in answer]


def machine_keys(family: Family, found: Mapping[str, Mapping[str, Number]] | Unavailable) -> dict[str, Value]:
    """Return the keys of one family. Keys without a label are always present, with a value or a reason."""
    required = {} if family.labelled else {family.name(statistic): NOT_REPORTED for statistic in STATISTICS}
    if isinstance(found, Unavailable):
        return dict.fromkeys(required, found)
    keys = {family.name(statistic, name): sound(number) for name, numbers in found.items() for statistic, number in numbers.items()}
    return {**required, **keys}


def sound(number: Number) -> Value:
    """Return the number if it is finite and not negative, else a reason."""
    return number if isfinite(number) and number >= 0 else IMPOSSIBLE
