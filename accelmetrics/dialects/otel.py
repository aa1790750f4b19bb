"""OpenTelemetry's names: semantic conventions where they have one, ``accel.*`` of our own where they have none.

Names, attributes and factors stand in the catalogue's rows. What is added here is what makes a series one of its own (the
attributes of the device) and what the conventions say about instruments and units.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import NamedTuple

from accelmetrics.dialects.contract import NO_LABELS, Number, Point
from accelmetrics.dialects.otel_devices import attributes, states
from accelmetrics.dialects.series import Scale, device_of, filled, scale_of, series
from accelmetrics.schemas.catalogue import CATALOGUE, resolve
from accelmetrics.schemas.metric import Kind, Metric, field_of, split_key, split_series
from accelmetrics.schemas.record import MonitorStatus, Record, Step
from accelmetrics.schemas.snapshot import Snapshot

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
        "system.memory.linux.available",
    }
)
"""What the conventions have as sums that may fall: they add up over devices, unlike a gauge."""

UNITS = {"%": "1", "MiBy": "By", "GiBy": "By", "MHz": "Hz", "us": "s", "Mbit/s": "By/s", "GT/s": "{transfer}/s"}
"""The catalogue's units whose rows have a factor, and the base unit that it leads to."""
UNITS_BY_NAME = {"hw.errors": "{error}", "process.thread.count": "{thread}"}
"""Units that the conventions give to plain numbers."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_./-]")


class Series(NamedTuple):
    """What a key becomes, whatever its value.

    Attributes:
        name: OpenTelemetry's metric name.
        attributes: Those that the catalogue gives.
        device: Key of the device that it belongs to, empty for the host's.
        scale: How the value becomes one of the base unit.
        whole: Whether it is always a whole number after that.
        kind: Gauge or counter.
        unit: UCUM, as the conventions write it.
        meaning: One sentence.
    """

    name: str
    attributes: Mapping[str, str]
    device: str
    scale: Scale = Scale()
    whole: bool = False
    kind: Kind = "gauge"
    unit: str = ""
    meaning: str = ""

    def point(self, value: Number, device: Mapping[str, str]) -> Point:
        """The value under its name; always whole or never, since some receivers hold a series to the type it began with."""
        base = self.scale.of(value)
        labels = {**device, **self.attributes}
        return Point(self.name, round(base) if self.whole else float(base), labels, self.kind, self.unit, self.meaning)


class OtelDialect:
    """OpenTelemetry's semantic conventions."""

    name = "otel"
    summary = f"OpenTelemetry semantic conventions {SEMCONV_VERSION}"

    def flat(self, record: Record) -> dict[str, Number | None]:
        """Series as one word each: ``hw.power{accel.device="gpu.0",hw.type="gpu"}``, of the device's attributes its key alone."""
        return {_spelled(point): point.value for point in self.points(record)}

    def points(self, record: Record) -> Iterable[Point]:
        """The machine, the last number of everything that the program logged, and the monitor's own state."""
        yield from machine_points(record.snapshot)
        yield from {point.name: point for step in record.steps for point in step_points(step)}.values()
        if record.monitor is not None:
            yield from monitor_points(record.monitor)


OTEL = OtelDialect()


def machine_points(snapshot: Snapshot) -> Iterator[Point]:
    """What the snapshot holds, and ``hw.status`` of every device in it."""
    devices = {place.key: attributes(place) for place in snapshot.identities}
    for key, value in snapshot.metrics.items():
        found = series_of(key)
        if found is not None:
            yield found.point(value, devices.get(found.device, NO_LABELS))
    for place in snapshot.identities:
        for state, holds in states(snapshot, place.key):
            labels = {**devices[place.key], "hw.type": place.identity.kind, "hw.state": state}
            yield Point("hw.status", holds, labels, "gauge", "1", "Whether the device is in this state.")


def step_points(step: Step) -> Iterator[Point]:
    """What the program logged at one moment: ``accel.training.loss``."""
    if step.step is not None:
        yield Point("accel.training.step", step.step, {}, "gauge", "{step}", "The program's own step.")
    for name, value in step.values.items():
        yield Point(f"accel.training.{_NOT_IN_NAMES.sub('_', name)}", float(value), {}, "gauge", "", "Logged by the program.")


def monitor_points(status: MonitorStatus) -> Iterator[Point]:
    """How the monitor and its exporters fare: ``accelmetrics.*``."""
    yield Point("accelmetrics.ticks", status.ticks, {}, "counter", "{reading}", "Readings taken.")
    yield Point("accelmetrics.missed_ticks", status.missed_ticks, {}, "counter", "{reading}", "Readings that were due and not taken.")
    yield Point("accelmetrics.timed_out", status.timed_out, {}, "counter", "{reading}", "Readings in which a vendor call was late.")
    for one in status.exporters:
        labels = {"accelmetrics.exporter": one.name}
        yield Point("accelmetrics.exporter.sent", one.sent, labels, "counter", "{record}", "Records delivered.")
        yield Point("accelmetrics.exporter.failed", one.failed, labels, "counter", "{record}", "Records given up.")
        yield Point("accelmetrics.exporter.dropped", one.dropped, labels, "counter", "{record}", "Records that found the queue full.")
        yield Point("accelmetrics.exporter.queued", one.queued, labels, "gauge", "{record}", "Records that wait.")


@lru_cache(maxsize=8192)
def series_of(key: str) -> Series | None:
    """What a key becomes; None for one that is derivable from others (``gpu.0.memoryReadWriteActivity``)."""
    sighting = resolve(key)
    if sighting is None:
        return _unlisted(key)
    row = sighting.row
    if not row.otel or sighting.alias:
        return None
    name, labels = split_series(row.otel)
    found = {label: filled(value, sighting) for label, value in labels.items()}
    device = device_of(sighting)
    if name.startswith("hw.") and not device:
        found["hw.id"] = key.partition(".")[0]  # the conventions require one: cpu, ane, soc
    unit = UNITS_BY_NAME.get(name) or UNITS.get(row.unit, row.unit)
    whole = row.integer and float(row.factor).is_integer()
    return Series(name, found, device, scale_of(row), whole, row.kind, unit, _meanings()[name])


def _unlisted(key: str) -> Series | None:
    """A key of a device that is not in the catalogue, since only a plug-in knows it."""
    device, name = split_key(key)
    return Series(f"accel.{field_of(name)}", {}, device) if device else None


@cache
def _meanings() -> Mapping[str, str]:
    """One sentence for each name, that of its first row: a series' description must not change with what else is there."""
    found: dict[str, str] = {}
    for row in CATALOGUE:
        found.setdefault(_name(row), row.meaning)
    return found


def _name(row: Metric) -> str:
    return row.otel.partition("{")[0]


def _spelled(point: Point) -> str:
    kept = {label: value for label, value in sorted(point.labels.items()) if label not in _OF_DEVICES}
    return series(point.name, kept)


_OF_DEVICES = frozenset({"hw.id", "hw.name", "hw.vendor", "hw.model", "hw.parent", "hw.driver_version"})
