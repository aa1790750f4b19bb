"""Our own Prometheus names: base units, two identity labels on every device's series, everything else on info metrics.

The names are the catalogue's (``Metric.prometheus``). A device's series carry ``accelerator`` (its key, unique on a mixed
host) and ``uuid`` (its UUID, else its PCI address, else its key; never empty), and nothing that could change while the device
stays the same: what it is called, which driver it has and whose job runs on it are joined from ``accel_info`` and
``accel_job_info``. What the host says carries neither. What is missing has no series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from accelmetrics.dialects.contract import Number, Point
from accelmetrics.dialects.prometheus_health import health
from accelmetrics.dialects.prometheus_help import SHARED
from accelmetrics.dialects.prometheus_labels import identity_labels, jobs, label_name
from accelmetrics.dialects.series import series
from accelmetrics.schemas.catalogue import per_key, recognise
from accelmetrics.schemas.metric import PARTITION, Kind, in_base_unit, split_series
from accelmetrics.schemas.record import Record, Step
from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot

_IDENTITY = ("kind", "vendor", "architecture", "pci_bus_id", "serial", "driver_version", "runtime_version", "firmware")


class _Series(NamedTuple):
    """What a key becomes, but for its value.

    Attributes:
        device: The device whose identity the series carries, empty for the host's.
        unit: The unit that the value has under its key.
    """

    name: str
    device: str
    labels: Mapping[str, str]
    kind: Kind
    unit: str
    meaning: str

    def point(self, value: Number, identity: Mapping[str, str]) -> Point:
        """The value under its name; ``identity`` is the device's."""
        return Point(self.name, in_base_unit(value, self.unit), {**identity, **self.labels}, self.kind, self.unit, self.meaning)


class PrometheusDialect:
    """The names of our own exposition."""

    name = "prometheus"
    summary = "Prometheus names in base units, as our own endpoint serves them"

    def flat(self, record: Record) -> dict[str, Number | None]:
        """Every series as Prometheus writes it: ``accel_power_watts{accelerator="gpu.0",uuid="GPU-…"}``."""
        return {series(point.name, point.labels): point.value for point in self.points(record)}

    def points(self, record: Record) -> Iterator[Point]:
        """How the monitor, the sources and the devices fare, then what was measured and logged."""
        yield from health(record)
        yield from measurements(record)


PROMETHEUS = PrometheusDialect()


def measurements(record: Record) -> Iterator[Point]:
    """What devices are, what runs on them and what they and the host measure, and what the program logged."""
    identities = {place.key: identity_labels(place) for place in record.snapshot.identities}
    yield from (_info(place, identities[place.key]) for place in record.snapshot.identities)
    yield from _job_info(record.labels, identities)
    yield from _processes(record.snapshot, identities)
    yield from _measured(record.snapshot.metrics, identities)
    yield from _logged(record.steps)


_PROCESSES = "Number of processes that use the device."


def _processes(snapshot: Snapshot, identities: Mapping[str, Mapping[str, str]]) -> Iterator[Point]:
    for key, found in snapshot.processes.items():
        if key in identities:
            yield Point("accel_processes", len(found), identities[key], "gauge", "1", _PROCESSES)


def _measured(metrics: Mapping[str, Number], identities: Mapping[str, Mapping[str, str]]) -> Iterator[Point]:
    for key, value in metrics.items():
        found = _series(key)
        device = found.device if found else ""
        if found is None or not (found.meaning or device in identities):
            continue
        identity = identities.get(device) or ({"accelerator": device, "uuid": device} if device else {})
        yield found.point(value, identity)


@per_key
def _series(key: str) -> _Series | None:
    found = recognise(key)
    if found is None or found.alias or not found.row.prometheus:
        return None
    row = found.row
    name, labels = split_series(row.prometheus)
    filled = {label: found.instance if value.startswith("{") else value for label, value in labels.items()}
    return _Series(name, found.device, filled, row.kind, row.unit, SHARED.get(name, row.meaning))


def _info(place: DeviceSlot, identity: Mapping[str, str]) -> Point:
    about = place.identity
    labels = {field: getattr(about, field) for field in _IDENTITY}
    labels |= {"index": str(place.index), "model": about.name, "parent_uuid": about.parent, "partition": _partition(place.key)}
    labels |= {"numa_node": _number(about.numa_node), "visible_index": _number(place.visible_index), "cores": _number(about.cores)}
    found = {name: value for name, value in labels.items() if value}
    return Point("accel_info", 1, {**identity, **found}, "gauge", "1", "What the device is; joined on accelerator and uuid.")


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _partition(key: str) -> str:
    return key.partition(f".{PARTITION}.")[2]


_JOINED = "What the scheduler calls the job that uses the device; joined on accelerator and uuid."


def _job_info(labels: Mapping[str, str], identities: Mapping[str, Mapping[str, str]]) -> Iterator[Point]:
    for scheduler, job in jobs(labels).items():
        about = {"scheduler": scheduler, **job}
        for identity in identities.values():
            yield Point("accel_job_info", 1, {**identity, **about}, "gauge", "1", _JOINED)


_LOGGED = "The number that the program logged last under this name."


def _logged(steps: tuple[Step, ...]) -> Iterator[Point]:
    latest: dict[str, Number] = {}
    for step in steps:
        latest.update(step.values)
        if step.step is not None:
            latest["step"] = step.step
    for name, value in latest.items():
        yield Point(f"training_{label_name(name)}", value, {}, "gauge", "", _LOGGED)
