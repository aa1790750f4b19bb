"""OpenTelemetry's names: the semantic conventions where they define a name, otherwise ``accel.*``.

Attributes that the conventions do not define are ``accelmetrics.*``. Names, attributes and factors are in the catalogue's rows. This
module adds the attributes of the device, which make a series unique, and the conventions' instruments and units.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache

from accelmetrics.dialects.contract import NO_LABELS, Number, Point, series
from accelmetrics.dialects.health import monitor_points
from accelmetrics.dialects.prometheus import SHARED, SeriesTemplate, metric_points, series_of
from accelmetrics.dialects.tables import FunctionDialect
from accelmetrics.schemas.catalogue import per_key, rows
from accelmetrics.schemas.errors import IN_ORDER, Reason
from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.metric import ANY_KIND, split_series
from accelmetrics.schemas.reading import Header
from accelmetrics.schemas.record import Record, Step
from accelmetrics.schemas.snapshot import Snapshot, has_values

SEMCONV_VERSION = "1.44.0"
"""Version of the semantic conventions. It is pinned because ``hw.*`` is still in development there."""
SCHEMA_URL = f"https://opentelemetry.io/schemas/{SEMCONV_VERSION}"

UPDOWNCOUNTERS = frozenset(
    {
        "hw.gpu.memory.limit",
        "hw.gpu.memory.usage",
        "hw.status",
        "process.memory.usage",
        "process.thread.count",
        "system.filesystem.usage",
        "system.memory.limit",
        "system.memory.linux.available",
        "system.memory.usage",
    }
)
"""Names that the conventions define as sums that may fall. Unlike gauges, they can be added up over devices."""

PER_LINK = "accel.link.port."
"""Prefix of the names of single links' series."""

UNITS_BY_NAME = {"hw.errors": "{error}", "process.thread.count": "{thread}"}
"""Units that the conventions define for plain numbers."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_./-]")


def flat(record: Record) -> dict[str, Number]:
    """Return values by series: ``hw.power{accelmetrics.device="gpu.0",hw.type="gpu"}``. Of the device's attributes only its key is kept."""
    found = {}
    for point in points(record):
        labels = {name: text for name, text in sorted(point.labels.items()) if name not in _OF_DEVICES}
        found[series(point.name, labels)] = point.value
    return found


def points(record: Record) -> Iterable[Point]:
    """Yield the points of the machine, the findings, the last value of each logged number, and the monitor's state."""
    yield from machine_points(record.snapshot)
    yield from finding_points(record)
    logged = (point for step in record.steps for point in step_points(step))
    yield from {(point.name, *point.labels.values()): point for point in logged}.values()
    if record.monitor is not None:
        yield from monitor_points(record.monitor, otel=True)


OTEL = FunctionDialect("otel", f"OpenTelemetry semantic conventions {SEMCONV_VERSION}", points, flat)


def machine_points(snapshot: Snapshot) -> Iterator[Point]:
    """Yield the metrics of a snapshot, and ``hw.status`` of every device."""
    # Some receivers reject a series that changes between integers and floats.
    yield from metric_points(snapshot, described, of_one_type=True)
    yield from status_points(snapshot)


def described(header: Header) -> Iterator[tuple[str, SeriesTemplate, Mapping[str, str]]]:
    """Yield each key of a header that has a series, with the series and the attributes of its device."""
    devices = {slot.key: attributes(slot) for slot in header.identities}
    for key in header.keys:
        found = _series(key)
        if found is not None and (found.point.meaning or found.device in devices):
            yield key, found, devices.get(found.device, NO_LABELS)


def status_points(snapshot: Snapshot) -> Iterator[Point]:
    """Yield ``hw.status`` of every device.

    A device is ``failed`` if it has no values and a reason that is not normal, and ``degraded`` if it has values and a fault.
    """
    for slot in snapshot.identities:
        reasons = {why.reason for why in snapshot.reasons_of(slot.key).values()}
        has_value = has_values(snapshot, slot.key)
        current = "degraded" if has_value and reasons & FAULTS else "failed" if not has_value and reasons - IN_ORDER else "ok"
        for state in STATES:
            labels = {**attributes(slot), "hw.type": slot.identity.kind, "hw.state": state}
            yield Point("hw.status", int(state == current), labels, "gauge", "1", "Whether the device is in this state.")


def finding_points(record: Record) -> Iterator[Point]:
    """Yield ``accel.finding`` for each finding of the record."""
    devices = {slot.key: attributes(slot) for slot in record.snapshot.identities} if record.findings else {}
    for finding in record.findings:
        about = devices.get(finding.key) or ({"accelmetrics.key": finding.key} if finding.key else {})
        labels = {**about, "accelmetrics.rule": finding.rule, "accelmetrics.severity": finding.severity}
        yield Point("accel.finding", 1, labels, "gauge", "1", "1 while a rule finds something.")


def step_points(step: Step) -> Iterator[Point]:
    """Yield the numbers of a logged step: ``accel.training.loss``."""
    labels = {} if step.rank is None else {"accelmetrics.rank": str(step.rank), **({"host.name": step.node} if step.node else {})}
    if step.step is not None:
        yield Point("accel.training.step", step.step, labels, "gauge", "{step}", "The program's own step.")
    for name, value in step.values.items():
        yield Point(f"accel.training.{_NOT_IN_NAMES.sub('_', name)}", float(value), labels, "gauge", "", "Logged by the program.")


@per_key
def _series(key: str) -> SeriesTemplate | None:
    """Return the series of a key; None for a key that is derivable from others (``gpu.0.memoryReadWriteActivity``)."""
    found = series_of(key, lambda row, kind: _of_kind(row.otel, kind))
    if found is None:
        return None
    point = found.point
    if point.name.startswith("hw.") and not found.device:  # the conventions require an id: cpu, ane, soc
        point = point._replace(labels={**point.labels, "hw.id": key.partition(".")[0]})
    unit, meaning = UNITS_BY_NAME.get(point.name, point.unit), _meanings().get(point.name, point.meaning)
    return found._replace(point=point._replace(unit=unit, meaning=meaning))


def _of_kind(series: str, kind: str) -> str:
    """Return a row's series for a kind of device. The conventions define device metrics only for GPUs; others become ``accel.*``."""
    return series.replace(ANY_KIND, kind) if kind in ("", "gpu") else series.replace(ANY_KIND, kind).replace("hw.gpu.", "accel.")


@cache
def _meanings() -> Mapping[str, str]:
    """Return the help text of each name: the text that its rows share, else the text of its first row."""
    # A name has one text for all of its series, so it cannot depend on which of them are present.
    return {
        _of_kind(row.otel, kind).partition("{")[0]: SHARED.get(split_series(row.prometheus)[0], row.meaning)
        for row in reversed(list(rows()))  # the first row of a name comes last and replaces the others
        for kind in ("npu", "gpu")
    }


_OF_DEVICES = frozenset(
    f"hw.{name}" for name in ("id", "name", "vendor", "model", "parent", "serial_number", "firmware_version", "driver_version")
)

STATES = ("ok", "degraded", "failed")
"""Values of ``hw.state`` that a reading can determine. ``predicted_failure`` is not among them."""

FAULTS = frozenset({Reason.DEVICE_LOST, Reason.RESET_REQUIRED, Reason.DRIVER_ERROR, Reason.TIMED_OUT})
"""Reasons that are a fault of the device even while it has other values."""


@lru_cache(maxsize=1024)
def attributes(slot: DeviceSlot) -> dict[str, str]:
    """Return the attributes of a device's series. The dict is shared: do not modify it."""
    # hw.id and accelmetrics.device are never empty, so that every series identifies its device.
    identity = slot.identity
    found = {
        "hw.id": slot.unique_id,
        "hw.name": slot.key,
        "hw.vendor": identity.vendor,
        "hw.model": identity.name,
        "hw.parent": identity.parent,
        "hw.serial_number": identity.serial,
        "hw.firmware_version": identity.firmware,
        "hw.driver_version": identity.driver_version,
        "accelmetrics.device": slot.key,
    }
    return {name: value for name, value in found.items() if value}
