"""Health metrics of devices, sources, the monitor and its exporters, and the labels that identify a device, a job and a run.

Health metrics are always present. When the latest record is too old to be served as fresh, only they remain: every device is down, no
source is successful, and counters keep their last values.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple, get_args

from accelmetrics._version import __version__
from accelmetrics.dialects.contract import NO_LABELS, Number, Point
from accelmetrics.schemas.catalogue import per_key, resolve
from accelmetrics.schemas.catalogue.devices import NOT_THROTTLING
from accelmetrics.schemas.errors import IN_ORDER
from accelmetrics.schemas.identity import BackendStatus, DeviceSlot, Status
from accelmetrics.schemas.metric import Kind, split_series
from accelmetrics.schemas.record import MonitorStatus, Record
from accelmetrics.schemas.snapshot import Snapshot, has_values

SUCCESS: tuple[Status, ...] = ("ok", "degraded")
FAILING: tuple[Status, ...] = ("degraded", "failed", "timed_out")
LONGEST = 3.0
"""Longest gap between two readings, in intervals of the monitor, over which throttling is counted. Over a longer gap it is unknown."""

# Labels

# Scheduler by the first word of a label, as in slurm.job.id.
_SCHEDULERS = {"slurm": "slurm", "k8s": "kubernetes", "kubernetes": "kubernetes", "ray": "ray", "pbs": "pbs", "lsf": "lsf", "flux": "flux"}
# Label names that are usual in dashboards, by the name that the scheduler's label has.
_SHORT = {
    "id": "job_id",
    "job": "job_id",
    "job_user": "user",
    "job_partition": "partition",
    "job_account": "account",
    "pod_name": "pod",
    "namespace_name": "namespace",
    "container_name": "container",
}
_NOT_IN_NAMES = re.compile(r"\W", re.ASCII)
# Names that Prometheus or this exporter already uses.
_TAKEN = frozenset({"instance", "job", "le", "quantile", "accelerator", "uuid", "scheduler"})


def identity_labels(slot: DeviceSlot) -> dict[str, str]:
    """Return the two labels that every series of a device has. Neither is ever empty."""
    return {"accelerator": slot.key, "uuid": slot.unique_id}


def label_name(text: str) -> str:
    """Convert a text to a valid label name: letters, digits and underscores, and no reserved name."""
    name = _clean(text)
    return f"label_{name}" if name in _TAKEN or name[0].isdigit() else name


def jobs(labels: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return the labels of a record's job by scheduler: ``slurm.job.id`` becomes the label ``job_id`` of ``slurm``."""
    found: dict[str, dict[str, str]] = {}
    for label, value in labels.items():
        scheduler = _scheduler(label)
        if scheduler and value:
            name = _clean(label.partition(".")[2])
            found.setdefault(scheduler, {})[_SHORT.get(name) or label_name(name)] = value
    return found


def _scheduler(label: str) -> str:
    head, dot, rest = label.partition(".")
    return _SCHEDULERS.get(head, "") if dot and rest else ""


def _clean(text: str) -> str:
    return _NOT_IN_NAMES.sub("_", text).lstrip("_") or "label"


# What is counted over records


class HealthHistory(NamedTuple):
    """Health counters accumulated over the records so far. Immutable: :meth:`after` returns the next state.

    Attributes:
        ready: Whether any record had values or a source that answered.
        succeeded: Time of the last successful reading by source, in seconds since 1970.
        slots: All devices seen so far by key. A device that vanishes is still expected.
        errors: Failed readings by source and error, of all or some of its devices.
        timeouts: Readings without an answer in time by source; 0 for a source that always answered.
        throttled: Seconds of throttling by device key and reason.
        latest: The snapshot that was counted last.
    """

    ready: bool = False
    succeeded: Mapping[str, float] = {}
    slots: Mapping[str, DeviceSlot] = {}
    errors: Mapping[tuple[str, str], int] = {}
    timeouts: Mapping[str, int] = {}
    throttled: Mapping[tuple[str, str], float] = {}
    latest: Snapshot | None = None

    def after(self, record: Record) -> HealthHistory:
        """Return the history including this record. The same record twice in a row counts once."""
        snapshot = record.snapshot
        if snapshot is self.latest:
            return self
        succeeded, errors, timeouts = dict(self.succeeded), dict(self.errors), dict(self.timeouts)
        before = {} if self.latest is None else {status.name: status for status in self.latest.backends}
        for status in snapshot.backends:
            if status.status in SUCCESS and status.age_seconds is not None:
                succeeded[status.name] = snapshot.time_ns / 1e9 - status.age_seconds
            if status.status != "absent":
                timeouts[status.name] = timeouts.get(status.name, 0) + (status.status == "timed_out")
            # A reading that is served again counts once. A timeout counts each time, because it has no reading.
            last = before.get(status.name)
            repeated = last is not None and 0 < status.sequence == last.sequence and status.status == last.status != "timed_out"
            if status.status in FAILING and not repeated:
                # The errors of its devices; the source's status if no device has an error or the source timed out.
                own = () if status.status == "timed_out" else [slot.key for slot in snapshot.identities if slot.backend == status.name]
                reasons = {str(why.reason) for key in own for why in snapshot.reasons_of(key).values() if why.reason not in IN_ORDER}
                for error in reasons or {status.status}:
                    errors[status.name, error] = errors.get((status.name, error), 0) + 1
        # Administrators create and remove partitions, so only the partitions of this record are expected.
        # A device keeps its identity when it dies, so that its series continue.
        whole = {key: slot for key, slot in self.slots.items() if not slot.identity.parent}
        slots = {**whole, **{slot.key: slot for slot in snapshot.identities}}
        seconds = 0.0  # since the previous reading; 0 after a gap that is too long or if the clock was set back
        if self.latest is not None and record.monitor is not None:
            elapsed = (snapshot.time_ns - self.latest.time_ns) / 1e9
            seconds = elapsed if 0 < elapsed <= LONGEST * record.monitor.interval else 0.0
        throttled = dict(self.throttled)
        for key in snapshot.metrics:
            # A reason that was never active has the value 0, so that Prometheus sees the rise of its first second.
            if ".throttle." in key and (mark := _throttle(key)) is not None:
                throttled[mark] = throttled.get(mark, 0.0) + (seconds if snapshot.metrics[key] else 0.0)
        return HealthHistory(self.ready or has_answers(snapshot), succeeded, slots, errors, timeouts, throttled, snapshot)


NO_HISTORY = HealthHistory()


@per_key
def _throttle(key: str) -> tuple[str, str] | None:
    """Return the device and reason of a throttling key; None for other keys and for states that are no throttling, like idle."""
    found = resolve(key)
    if found is None or found.alias or key.rpartition(".")[2] in NOT_THROTTLING:
        return None
    name, labels = split_series(found.row.prometheus)
    return (found.device, labels["reason"]) if name == "accel_throttle_active" else None


# Health


def health(record: Record | None, history: HealthHistory | None = None, fresh: bool = True) -> Iterator[Point]:
    """Yield the metrics about accelmetrics itself, and ``accel_up`` of every device.

    Args:
        record: The latest record, None before the first one.
        history: Counters over earlier records, and the devices and sources seen in them. None if no history is kept: then these
            counters are left out, because a single record counts nothing.
        fresh: Whether the record is recent. If not, everything is reported as down.
    """
    build = {"version": __version__, "python": platform.python_version(), "platform": f"{sys.platform}-{platform.machine()}"}
    yield _gauge("accelmetrics_build_info", 1, build, "1", "Which release of accelmetrics this is.")
    up = record is not None and fresh and has_answers(record.snapshot)
    yield _gauge("accelmetrics_up", up, {}, "1", "1 if the latest reading is recent and gave something, else 0.")
    if record is None:
        return
    known = (history or NO_HISTORY).after(record)
    for key, slot in known.slots.items():
        yield _gauge(
            "accel_up",
            fresh and is_up(record.snapshot, key),
            identity_labels(slot),
            "1",
            "1 if the device answered at the last reading, 0 if it is listed and fails.",
        )
    listed = {slot.backend for slot in known.slots.values()}
    expected = sum(not slot.identity.parent for slot in known.slots.values())
    expected += sum(status.devices for status in record.snapshot.backends if status.name not in listed)
    yield _gauge("accelmetrics_devices_expected", expected, {}, "1", "Devices that should be there; partitions are not counted.")
    for status in record.snapshot.backends:
        yield from _source(status, fresh)
    for source, moment in known.succeeded.items():
        yield _gauge(
            "accelmetrics_collect_last_success_timestamp_seconds", moment, {"source": source}, "s", "When the source was last read."
        )
    if history is not None:
        yield from _counted(known)
    # Labels that are not from a scheduler.
    if about := {label_name(label): value for label, value in record.labels.items() if value and not _scheduler(label)}:
        yield _gauge("accelmetrics_run_info", 1, about, "1", "The labels of the run that is watched.")
    for source, failure in record.holders.sources.items():
        yield _gauge(
            "accelmetrics_attribution_success",
            fresh and not failure,
            {"source": source},
            "1",
            "1 if the source that tells who holds the devices answered, else 0.",
        )
    if record.monitor is not None:
        yield from monitor_points(record.monitor)


def has_answers(snapshot: Snapshot) -> bool:
    """Return whether a reading has a value or a source that answered."""
    # A source may answer without a value: the selected metrics may not exist on this machine.
    return bool(snapshot.metrics) or any(status.status in SUCCESS for status in snapshot.backends)


def is_up(snapshot: Snapshot, key: str) -> bool:
    """Return whether a device is up: it has a value, or has none for a normal reason (powered down, not in use)."""
    if has_values(snapshot, key):
        return True
    reasons = snapshot.reasons_of(key).values()
    # A device without selected metrics has neither values nor reasons. It is up as long as it is listed.
    return all(why.reason in IN_ORDER for why in reasons) if reasons else any(slot.key == key for slot in snapshot.identities)


def _source(status: BackendStatus, fresh: bool) -> Iterator[Point]:
    source = {"source": status.name}
    if status.status != "absent":
        yield _gauge(
            "accelmetrics_collect_success",
            fresh and status.status in SUCCESS,
            source,
            "1",
            "1 if the last reading of the source succeeded, else 0.",
        )
    if not fresh:
        return
    if status.duration_seconds is not None:
        yield _gauge("accelmetrics_collect_duration_seconds", status.duration_seconds, source, "s", "How long the last reading took.")
    for state in get_args(Status):
        labels = {**source, "state": state}
        yield _gauge("accelmetrics_source_state", state == status.status, labels, "1", "1 for the state that the source is in, else 0.")


def _counted(history: HealthHistory) -> Iterator[Point]:
    for (source, error), number in history.errors.items():
        yield Point(
            "accelmetrics_collect_errors_total",
            number,
            {"source": source, "error": error},
            "counter",
            "1",
            "Readings that the source failed at, wholly or of some devices.",
        )
    for source, number in history.timeouts.items():
        yield Point(
            "accelmetrics_collect_timeouts_total",
            number,
            {"source": source},
            "counter",
            "1",
            "Readings in which the source gave no answer in time.",
        )
    for (key, reason), seconds in history.throttled.items():
        if key in history.slots:
            labels = {**identity_labels(history.slots[key]), "reason": reason}
            yield Point(
                "accel_throttle_seconds_total",
                seconds,
                labels,
                "counter",
                "s",
                "Seconds for which the clocks were held down for this reason. Each reading counts for the time since the previous one.",
            )


def _gauge(name: str, value: Number, labels: Mapping[str, str], unit: str, meaning: str) -> Point:
    return Point(name, int(value) if isinstance(value, bool) else value, labels, "gauge", unit, meaning)


# The monitor

# Field of the status, name in Prometheus and in OpenTelemetry, unit, meaning.
_MONITOR = (
    ("ticks", "accelmetrics_ticks_total", "accelmetrics.ticks", "{reading}", "Readings taken."),
    ("missed_ticks", "accelmetrics_missed_ticks_total", "accelmetrics.missed_ticks", "{reading}", "Readings that were due and not taken."),
    (
        "timed_out",
        "accelmetrics_timed_out_ticks_total",
        "accelmetrics.timed_out",
        "{reading}",
        "Readings in which some vendor call gave no answer.",
    ),
)
_EXPORTER = (
    ("sent", "accelmetrics_export_sent_total", "accelmetrics.exporter.sent", "{record}", "Records delivered."),
    (
        "failed",
        "accelmetrics_export_failed_total",
        "accelmetrics.exporter.failed",
        "{record}",
        "Records that could not be delivered and were given up.",
    ),
    ("dropped", "accelmetrics_export_dropped_total", "accelmetrics.exporter.dropped", "{record}", "Records that found the queue full."),
    ("queued", "accelmetrics_export_queue_length", "accelmetrics.exporter.queued", "{record}", "Records that wait."),
)


def monitor_points(status: MonitorStatus, otel: bool = False) -> Iterator[Point]:
    """Yield the counters of the monitor and its exporters, with Prometheus' or OpenTelemetry's names."""
    label = "accelmetrics.exporter" if otel else "exporter"
    for rows, labels, source in ((_MONITOR, NO_LABELS, status), *((_EXPORTER, {label: one.name}, one) for one in status.exporters)):
        for field, name, otel_name, unit, meaning in rows:
            kind: Kind = "gauge" if field == "queued" else "counter"
            yield Point(otel_name if otel else name, getattr(source, field), labels, kind, unit, meaning)
