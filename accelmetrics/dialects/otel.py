"""OpenTelemetry's names: semantic conventions where they have one, ``accel.*`` of our own where they have none.

Names, attributes and factors stand in the catalogue's rows. What is added here is what makes a series one of its own (the
attributes of the device) and what the conventions say about instruments and units.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

from accelmetrics.dialects.contract import NO_LABELS, Number, Point
from accelmetrics.dialects.otel_devices import attributes, states
from accelmetrics.dialects.prometheus_help import SHARED
from accelmetrics.dialects.series import series
from accelmetrics.schemas.catalogue import per_key, recognise, rows
from accelmetrics.schemas.metric import ANY_KIND, BASE_UNITS, Kind, in_base_unit, split_series
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

UNITS_BY_NAME = {"hw.errors": "{error}", "process.thread.count": "{thread}"}
"""Units that the conventions give to plain numbers."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_./-]")


class Series(NamedTuple):
    """What a key becomes, whatever its value.

    Attributes:
        name: OpenTelemetry's metric name.
        attributes: Those that the catalogue gives.
        device: Key of the device that it belongs to, empty for the host's.
        given: The unit that the value has.
        whole: Whether it is always a whole number in the base unit.
        kind: Gauge or counter.
        unit: The base unit: UCUM, as the conventions write it.
        meaning: One sentence.
    """

    name: str
    attributes: Mapping[str, str]
    device: str
    given: str = "1"
    whole: bool = False
    kind: Kind = "gauge"
    unit: str = ""
    meaning: str = ""

    def point(self, value: Number, device: Mapping[str, str]) -> Point:
        """The value under its name; always whole or never, since some receivers hold a series to the type it began with."""
        base = in_base_unit(value, self.given)
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
        if found is not None and (found.meaning or found.device in devices):
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


@per_key
def series_of(key: str) -> Series | None:
    """What a key becomes; None for one that is derivable from others (``gpu.0.memoryReadWriteActivity``)."""
    found = recognise(key)
    if found is None or not found.row.otel or found.alias:
        return None
    row = found.row
    name, labels = split_series(_of_kind(row.otel, found.device.partition(".")[0]))
    attributes = {label: found.instance if value.startswith("{") else value for label, value in labels.items()}
    if name.startswith("hw.") and not found.device:
        attributes["hw.id"] = key.partition(".")[0]  # the conventions require one: cpu, ane, soc
    base = BASE_UNITS.get(row.unit, BASE_UNITS["1"])
    unit = UNITS_BY_NAME.get(name, base.unit)
    meaning = _meanings().get(name, row.meaning)
    return Series(name, attributes, found.device, row.unit, row.integer and base.over == 1, row.kind, unit, meaning)


def _of_kind(series: str, kind: str) -> str:
    """A row's series for one kind of device. The conventions have names of their own for GPUs alone."""
    return series.replace(ANY_KIND, kind) if kind in ("", "gpu") else series.replace(ANY_KIND, kind).replace("hw.gpu.", "accel.")


@cache
def _meanings() -> Mapping[str, str]:
    """One sentence for each name, whichever of its series are there: what its rows share, else that of its first row."""
    found: dict[str, str] = {}
    for row in rows():
        for kind in ("gpu", "npu"):
            meaning = SHARED.get(split_series(row.prometheus)[0], row.meaning)
            found.setdefault(_of_kind(row.otel, kind).partition("{")[0], meaning)
    return found


def _spelled(point: Point) -> str:
    kept = {label: value for label, value in sorted(point.labels.items()) if label not in _OF_DEVICES}
    return series(point.name, kept)


_OF_DEVICES = frozenset({"hw.id", "hw.name", "hw.vendor", "hw.model", "hw.parent", "hw.driver_version"})
