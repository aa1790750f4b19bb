"""How the devices, the sources, the monitor and its exporters fare, and the labels that say which device, job and run is meant.

Health is there at all times. Measurements that grew old must not be served as fresh ones, and then health alone is left: each device
down, no source successful, the counters as they stood.
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
"""Intervals of the monitor that may lie between two readings; what a clock did over a longer gap is not known."""

# Labels

_SCHEDULERS = {"slurm": "slurm", "k8s": "kubernetes", "kubernetes": "kubernetes", "ray": "ray", "pbs": "pbs", "lsf": "lsf", "flux": "flux"}
"""The first words of labels that name a scheduler's job, and what the scheduler is called."""
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
"""What the field calls these labels."""
_NOT_IN_NAMES = re.compile(r"\W", re.ASCII)
_TAKEN = frozenset({"instance", "job", "le", "quantile", "accelerator", "uuid", "scheduler"})


def identity_labels(slot: DeviceSlot) -> dict[str, str]:
    """Give the two labels of each series of a device; neither is ever empty."""
    return {"accelerator": slot.key, "uuid": slot.unique_id}


def label_name(text: str) -> str:
    """Spell a text as the name of a label: letters, digits and underscores, and none of the names that mean something else."""
    name = _clean(text)
    return f"label_{name}" if name in _TAKEN or name[0].isdigit() else name


def jobs(labels: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Give by scheduler what a record's labels say of its job: ``slurm.job.id`` is the label ``job_id`` of ``slurm``."""
    found: dict[str, dict[str, str]] = {}
    for label, value in labels.items():
        scheduler = _scheduler(label)
        if scheduler and value:
            name = _clean(label.partition(".")[2])
            found.setdefault(scheduler, {})[_SHORT.get(name) or label_name(name)] = value
    return found


def run_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Give the labels of a record that no scheduler gave."""
    return {label_name(label): value for label, value in labels.items() if value and not _scheduler(label)}


def _scheduler(label: str) -> str:
    head, dot, rest = label.partition(".")
    return _SCHEDULERS.get(head, "") if dot and rest else ""


def _clean(text: str) -> str:
    return _NOT_IN_NAMES.sub("_", text).lstrip("_") or "label"


# What is counted over records


class HealthHistory(NamedTuple):
    """What the records so far said, in their order.

    Attributes:
        ready: Whether any of them gave something.
        succeeded: By source, when it was last read, in seconds since 1970.
        slots: The devices that were ever listed, by key: one that vanishes is still expected.
        errors: By source and error, readings that the source failed at, wholly or of some devices.
        timeouts: By source, readings in which it gave no answer in time; 0 for one that always did.
        throttled: By device key and reason, for how many seconds the clocks were held down.
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
        """Count one record more; the same record twice in a row counts once.

        Partitions come and go by command, so that those of this record alone are expected.
        """
        taken = record.snapshot
        if taken is self.latest:
            return self
        succeeded, errors, timeouts = dict(self.succeeded), dict(self.errors), dict(self.timeouts)
        before = {} if self.latest is None else {status.name: status for status in self.latest.backends}
        for status in taken.backends:
            if status.status in SUCCESS and status.age_seconds is not None:
                succeeded[status.name] = taken.time_ns / 1e9 - status.age_seconds
            if status.status != "absent":
                timeouts[status.name] = timeouts.get(status.name, 0) + (status.status == "timed_out")
            # A reading that is served again counts once; a call that goes on without an answer is no reading.
            last = before.get(status.name)
            again = last is not None and 0 < status.sequence == last.sequence and status.status == last.status != "timed_out"
            if status.status in FAILING and not again:
                # Of a source that answers, what speaks against its devices; its state where that is nothing, or it was late.
                own = () if status.status == "timed_out" else [slot.key for slot in taken.identities if slot.backend == status.name]
                reasons = {str(why.reason) for key in own for why in taken.reasons_of(key).values() if why.reason not in IN_ORDER}
                for error in reasons or {status.status}:
                    errors[status.name, error] = errors.get((status.name, error), 0) + 1
        whole = {key: slot for key, slot in self.slots.items() if not slot.identity.parent}
        slots = {**whole, **{slot.key: slot for slot in taken.identities}}
        seconds = 0.0  # since the reading before; none counts where they are too many, or a clock was set back
        if self.latest is not None and record.monitor is not None:
            passed = (taken.time_ns - self.latest.time_ns) / 1e9
            seconds = passed if 0 < passed <= LONGEST * record.monitor.interval else 0.0
        throttled = dict(self.throttled)
        for key in taken.metrics:
            # A reason that was never given stands at 0, so that its first second is seen.
            if ".throttle." in key and (mark := _throttle(key)) is not None:
                throttled[mark] = throttled.get(mark, 0.0) + (seconds if taken.metrics[key] else 0.0)
        return HealthHistory(self.ready or gave_something(taken), succeeded, slots, errors, timeouts, throttled, taken)


NO_HISTORY = HealthHistory()


@per_key
def _throttle(key: str) -> tuple[str, str] | None:
    """Return the device and reason of a key that says whether clocks are held down, but not by a state such as being idle."""
    found = resolve(key)
    if found is None or found.alias or key.rpartition(".")[2] in NOT_THROTTLING:
        return None
    name, labels = split_series(found.row.prometheus)
    return (found.device, labels["reason"]) if name == "accel_throttle_active" else None


# Health

_UP = "1 if the device answered at the last reading, 0 if it is listed and fails."
_ERRORS = "Readings that the source failed at, wholly or of some devices."
_TIMEOUTS = "Readings in which the source gave no answer in time."
_ASKED = "1 if the source that tells who holds the devices answered, else 0."
_THROTTLED = "For how long the clocks were held down for this reason, as far as readings say: each stands for the time before it."


def health(record: Record | None, history: HealthHistory | None = None, fresh: bool = True) -> Iterator[Point]:
    """Give the metrics about the tool itself, and ``accel_up`` of every device.

    Args:
        record: The latest record, None before the first one.
        history: What the records up to it said; from it vanished devices and silent sources are known, and what is counted over
            records. None where no history is kept: then there are no such counters, for one record counts nothing.
        fresh: Whether the record is recent. If not, nothing counts as being up.
    """
    build = {"version": __version__, "python": platform.python_version(), "platform": f"{sys.platform}-{platform.machine()}"}
    yield _gauge("accelmetrics_build_info", 1, build, "1", "Which release of accelmetrics this is.")
    up = record is not None and fresh and gave_something(record.snapshot)
    yield _gauge("accelmetrics_up", up, {}, "1", "1 if the latest reading is recent and gave something, else 0.")
    if record is None:
        return
    known = (history or NO_HISTORY).after(record)
    for key, slot in known.slots.items():
        yield _gauge("accel_up", fresh and is_up(record.snapshot, key), identity_labels(slot), "1", _UP)
    listed = {slot.backend for slot in known.slots.values()}
    expected = sum(not slot.identity.parent for slot in known.slots.values())
    expected += sum(status.devices for status in record.snapshot.backends if status.name not in listed)
    yield _gauge("accelmetrics_devices_expected", expected, {}, "1", "Devices that should be there; partitions are not counted.")
    for status in record.snapshot.backends:
        yield from _source(status, fresh)
    for source, moment in known.succeeded.items():
        labels = {"source": source}
        yield _gauge("accelmetrics_collect_last_success_timestamp_seconds", moment, labels, "s", "When the source was last read.")
    if history is not None:
        yield from _counted(known)
    if about := run_labels(record.labels):
        yield _gauge("accelmetrics_run_info", 1, about, "1", "The labels of the run that is watched.")
    for source, failure in record.holders.sources.items():
        yield _gauge("accelmetrics_attribution_success", fresh and not failure, {"source": source}, "1", _ASKED)
    if record.monitor is not None:
        yield from monitor_points(record.monitor)


def gave_something(snapshot: Snapshot) -> bool:
    """Tell whether a reading gave a value, or would have: none of those that were selected may exist on this machine."""
    return bool(snapshot.metrics) or any(status.status in SUCCESS for status in snapshot.backends)


def is_up(snapshot: Snapshot, key: str) -> bool:
    """Tell whether a device answered: it gave a value, or is silent for a reason that is in order (powered down, not in use).

    One of which no metric was selected has neither values nor reasons, and is up as long as it is listed.
    """
    if has_values(snapshot, key):
        return True
    reasons = snapshot.reasons_of(key).values()
    return all(why.reason in IN_ORDER for why in reasons) if reasons else any(slot.key == key for slot in snapshot.identities)


def _source(status: BackendStatus, fresh: bool) -> Iterator[Point]:
    source = {"source": status.name}
    if status.status != "absent":
        success = fresh and status.status in SUCCESS
        yield _gauge("accelmetrics_collect_success", success, source, "1", "1 if the last reading of the source succeeded, else 0.")
    if not fresh:
        return
    if status.duration_seconds is not None:
        yield _gauge("accelmetrics_collect_duration_seconds", status.duration_seconds, source, "s", "How long the last reading took.")
    for state in get_args(Status):
        labels = {**source, "state": state}
        yield _gauge("accelmetrics_source_state", state == status.status, labels, "1", "1 for the state that the source is in, else 0.")


def _counted(history: HealthHistory) -> Iterator[Point]:
    for (source, error), number in history.errors.items():
        yield Point("accelmetrics_collect_errors_total", number, {"source": source, "error": error}, "counter", "1", _ERRORS)
    for source, number in history.timeouts.items():
        yield Point("accelmetrics_collect_timeouts_total", number, {"source": source}, "counter", "1", _TIMEOUTS)
    for (key, reason), seconds in history.throttled.items():
        if key in history.slots:
            labels = {**identity_labels(history.slots[key]), "reason": reason}
            yield Point("accel_throttle_seconds_total", seconds, labels, "counter", "s", _THROTTLED)


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
    """Give how the monitor and its exporters fare, under Prometheus' names or OpenTelemetry's."""
    exporters = [({"accelmetrics.exporter" if otel else "exporter": one.name}, one) for one in status.exporters]
    for rows, labels, source in ((_MONITOR, NO_LABELS, status), *((_EXPORTER, labels, one) for labels, one in exporters)):
        for field, name, otel_name, unit, meaning in rows:
            kind: Kind = "gauge" if field == "queued" else "counter"
            yield Point(otel_name if otel else name, getattr(source, field), labels, kind, unit, meaning)
