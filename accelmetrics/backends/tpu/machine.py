"""What belongs to all devices together: transfers, the network, programs. Names are whole keys.

Several programs on one machine each tell of their own: distributions of one label are added up bucket by bucket, queues of
one label by their lengths. What has a label exists only while the runtime tells of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

from accelmetrics.backends.contract import Number
from accelmetrics.backends.tpu import sdk_values
from accelmetrics.backends.tpu.distributions import statistics
from accelmetrics.backends.tpu.fields import Value
from accelmetrics.backends.tpu.gauges import NOT_LISTED
from accelmetrics.backends.tpu.labels import label
from accelmetrics.backends.tpu.messages import Distribution, Entry, Summary
from accelmetrics.backends.tpu.runtime import Answer, PortAnswers
from accelmetrics.backends.tpu.sdk import SdkReading, Series
from accelmetrics.schemas.catalogue.tpu import FAMILIES, QUEUE_GRPC, QUEUE_KEY, QUEUE_SDK, STATISTICS, Family
from accelmetrics.schemas.reasons import Reason, Unavailable

GRPC_NAMES = (*(family.grpc for family in FAMILIES), QUEUE_GRPC)
SDK_NAMES = (*(name for family in FAMILIES for name in family.sdk), *QUEUE_SDK)
OWED = tuple(family.name(statistic) for family in FAMILIES if not family.labelled for statistic in STATISTICS)
"""The keys that have a value or a reason at every reading."""

NOTHING_YET = Unavailable(Reason.NOT_IN_USE, "the runtime has not measured it yet")
NOT_TOLD = Unavailable(Reason.NOT_SUPPORTED, "of this distribution it is not told")

Found = dict[str, dict[str, Number]] | Unavailable
"""By label, the statistics by name; the label is empty where there is none."""


def machine_values(ports: Sequence[PortAnswers], sdk: SdkReading) -> dict[str, Value]:
    """Every key that there is a number or a reason for."""
    values: dict[str, Value] = {}
    answering = [port for port in ports if port.failure is None]
    for family in FAMILIES:
        values.update(_keys(family, _family(family, _answers(answering, family.grpc), sdk)))
    values.update(_queues(_answers(answering, QUEUE_GRPC), sdk))
    return values


def _answers(ports: Iterable[PortAnswers], name: str) -> list[Answer]:
    return [port.metrics.get(name, NOT_LISTED) for port in ports]


def _family(family: Family, answers: Sequence[Answer], sdk: SdkReading) -> Found:
    """What the runtimes tell; where they tell nothing, what the SDK does; the runtimes' reason where that has nothing either."""
    told = _from_runtimes(family, answers)
    if told and not isinstance(told, Unavailable):
        return told
    series = sdk.first(family.sdk)
    read = _from_sdk(family, series) if isinstance(series, Series) else {}
    why = told if isinstance(told, Unavailable) else NOTHING_YET
    return read or (series if why == NOT_LISTED and isinstance(series, Unavailable) else why)


def _from_runtimes(family: Family, answers: Sequence[Answer]) -> Found:
    parts: dict[str, list[Distribution | Summary]] = {}
    lists = [answer for answer in answers if not isinstance(answer, Unavailable)]
    for position, entry in enumerate(entry for answer in lists for entry in answer):
        if isinstance(entry.measure, (Distribution, Summary)):
            parts.setdefault(label(entry.attribute, position) if family.labelled else "", []).append(entry.measure)
    if not lists:
        return next((answer for answer in answers if isinstance(answer, Unavailable)), NOT_LISTED)
    found = {name: statistics(measures) for name, measures in parts.items()}
    return {name: dict(numbers) for name, numbers in found.items() if numbers}


def _from_sdk(family: Family, series: Series) -> dict[str, dict[str, Number]]:
    if family.labelled:
        return sdk_values.labelled(series.description, series.data)
    numbers = sdk_values.flat(series.description, series.data)
    return {"": numbers} if numbers else {}


def _keys(family: Family, found: Found) -> dict[str, Value]:
    keys: dict[str, Value] = {}
    if isinstance(found, Unavailable):
        return {} if family.labelled else {family.name(statistic): found for statistic in STATISTICS}
    if not family.labelled:
        keys = {family.name(statistic): NOT_TOLD for statistic in STATISTICS}
    for name, numbers in found.items():
        keys.update({family.name(statistic, name): _sound(number) for statistic, number in numbers.items()})
    return keys


def _queues(answers: Sequence[Answer], sdk: SdkReading) -> dict[str, Value]:
    entries = [entry for answer in answers if not isinstance(answer, Unavailable) for entry in answer]
    lengths = _added_up(entries)
    series = sdk.first(QUEUE_SDK)
    if not lengths and isinstance(series, Series):
        lengths = sdk_values.counts(series.data)
    return {f"{QUEUE_KEY}.{name}": _sound(length) for name, length in lengths.items()}


def _added_up(entries: Iterable[Entry]) -> Mapping[str, Number]:
    lengths: dict[str, Number] = {}
    for position, entry in enumerate(entries):
        if isinstance(entry.measure, (int, float)) and not isinstance(entry.measure, bool):
            name = label(entry.attribute, position)
            lengths[name] = lengths.get(name, 0) + entry.measure
    return lengths


def _sound(number: Number) -> Value:
    if isfinite(number) and number >= 0:
        return number
    return Unavailable(Reason.INVALID_VALUE, f"the runtime answered {number}")
