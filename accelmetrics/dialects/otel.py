"""OpenTelemetry's names: semantic conventions where they have one, ``accel.*`` of our own where they have none.

Attributes of our own are ``accelmetrics.*``. Names, attributes and factors stand in the catalogue's rows. What is added here is what
makes a series one of its own (the attributes of the device) and what the conventions say about instruments and units.
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
"""The semantic conventions that the names are taken from. Everything ``hw.*`` is still in development there: hence the pin."""
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
"""What the conventions have as sums that may fall: they add up over devices, unlike a gauge."""

PER_LINK = "accel.link.port."
"""What the names of single links' series begin with."""

UNITS_BY_NAME = {"hw.errors": "{error}", "process.thread.count": "{thread}"}
"""Units that the conventions give to plain numbers."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_./-]")


def flat(record: Record) -> dict[str, Number]:
    """Give series as a word each: ``hw.power{accelmetrics.device="gpu.0",hw.type="gpu"}``, of its device the key alone."""
    found = {}
    for point in points(record):
        labels = {name: text for name, text in sorted(point.labels.items()) if name not in _OF_DEVICES}
        found[series(point.name, labels)] = point.value
    return found


def points(record: Record) -> Iterable[Point]:
    """Give the machine, the last number of everything that the program logged, and the monitor's own state."""
    yield from machine_points(record.snapshot)
    yield from finding_points(record)
    logged = (point for step in record.steps for point in step_points(step))
    yield from {(point.name, *point.labels.values()): point for point in logged}.values()
    if record.monitor is not None:
        yield from monitor_points(record.monitor, otel=True)


OTEL = FunctionDialect("otel", f"OpenTelemetry semantic conventions {SEMCONV_VERSION}", points, flat)


def machine_points(snapshot: Snapshot) -> Iterator[Point]:
    """Give what the snapshot holds, and ``hw.status`` of every device in it."""
    yield from metric_points(snapshot, described, of_one_type=True)  # some receivers hold a series to the type that it began with
    yield from status_points(snapshot)


def described(header: Header) -> Iterator[tuple[str, SeriesTemplate, Mapping[str, str]]]:
    """Give each key of a header that becomes a series, what it becomes, and the attributes of its device."""
    devices = {slot.key: attributes(slot) for slot in header.identities}
    for key in header.keys:
        found = _series(key)
        if found is not None and (found.point.meaning or found.device in devices):
            yield key, found, devices.get(found.device, NO_LABELS)


def status_points(snapshot: Snapshot) -> Iterator[Point]:
    """Give ``hw.status`` of every device.

    A device is ``failed`` where it gives nothing, for a reason that is one, and ``degraded`` where it gives something, and a fault for
    the rest.
    """
    for slot in snapshot.identities:
        reasons = {why.reason for why in snapshot.reasons_of(slot.key).values()}
        gives = has_values(snapshot, slot.key)
        stands = "degraded" if gives and reasons & FAULTS else "failed" if not gives and reasons - IN_ORDER else "ok"
        for state in STATES:
            labels = {**attributes(slot), "hw.type": slot.identity.kind, "hw.state": state}
            yield Point("hw.status", int(state == stands), labels, "gauge", "1", "Whether the device is in this state.")


def finding_points(record: Record) -> Iterator[Point]:
    """Give what rules find: ``accel.finding``."""
    devices = {slot.key: attributes(slot) for slot in record.snapshot.identities} if record.findings else {}
    for finding in record.findings:
        about = devices.get(finding.key) or ({"accelmetrics.key": finding.key} if finding.key else {})
        labels = {**about, "accelmetrics.rule": finding.rule, "accelmetrics.severity": finding.severity}
        yield Point("accel.finding", 1, labels, "gauge", "1", "1 while a rule finds something.")


def step_points(step: Step) -> Iterator[Point]:
    """Give what the program logged at one moment: ``accel.training.loss``."""
    labels = {} if step.rank is None else {"accelmetrics.rank": str(step.rank), **({"host.name": step.node} if step.node else {})}
    if step.step is not None:
        yield Point("accel.training.step", step.step, labels, "gauge", "{step}", "The program's own step.")
    for name, value in step.values.items():
        yield Point(f"accel.training.{_NOT_IN_NAMES.sub('_', name)}", float(value), labels, "gauge", "", "Logged by the program.")


@per_key
def _series(key: str) -> SeriesTemplate | None:
    """Return what a key becomes; None for one that is derivable from others (``gpu.0.memoryReadWriteActivity``)."""
    found = series_of(key, lambda row, kind: _of_kind(row.otel, kind))
    if found is None:
        return None
    point = found.point
    if point.name.startswith("hw.") and not found.device:  # the conventions require an id: cpu, ane, soc
        point = point._replace(labels={**point.labels, "hw.id": key.partition(".")[0]})
    unit, meaning = UNITS_BY_NAME.get(point.name, point.unit), _meanings().get(point.name, point.meaning)
    return found._replace(point=point._replace(unit=unit, meaning=meaning))


def _of_kind(series: str, kind: str) -> str:
    """Make a row's series for one kind of device. The conventions have names of their own for GPUs alone."""
    return series.replace(ANY_KIND, kind) if kind in ("", "gpu") else series.replace(ANY_KIND, kind).replace("hw.gpu.", "accel.")


@cache
def _meanings() -> Mapping[str, str]:
    """Choose one sentence for each name, whichever of its series are there: what its rows share, else that of its first row."""
    return {
        _of_kind(row.otel, kind).partition("{")[0]: SHARED.get(split_series(row.prometheus)[0], row.meaning)
        for row in reversed(list(rows()))  # the first row of a name comes last, and stays
        for kind in ("npu", "gpu")
    }


_OF_DEVICES = frozenset(
    f"hw.{name}" for name in ("id", "name", "vendor", "model", "parent", "serial_number", "firmware_version", "driver_version")
)

STATES = ("ok", "degraded", "failed")
"""Those that follow from a reading; ``predicted_failure`` does not."""

FAULTS = frozenset({Reason.DEVICE_LOST, Reason.RESET_REQUIRED, Reason.DRIVER_ERROR, Reason.TIMED_OUT})
"""Reasons that say something against it even while it gives other values."""


@lru_cache(maxsize=1024)
def attributes(slot: DeviceSlot) -> dict[str, str]:
    """Give the attributes that every series of a device carries. ``hw.id`` and ``accelmetrics.device`` are never empty. Do not change."""
    who = slot.identity
    found = {
        "hw.id": slot.unique_id,
        "hw.name": slot.key,
        "hw.vendor": who.vendor,
        "hw.model": who.name,
        "hw.parent": who.parent,
        "hw.serial_number": who.serial,
        "hw.firmware_version": who.firmware,
        "hw.driver_version": who.driver_version,
        "accelmetrics.device": slot.key,
    }
    return {name: value for name, value in found.items() if value}
