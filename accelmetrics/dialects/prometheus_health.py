"""How the devices, the sources, the monitor and its exporters fare, as Prometheus metrics that are there at all times.

Measurements that grew old must not be served as fresh ones, and then these alone are left: each device down, no source
successful, the counters as they stood.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, get_args

from accelmetrics._version import __version__
from accelmetrics.dialects.contract import Number, Point
from accelmetrics.dialects.prometheus_counts import Counts
from accelmetrics.dialects.prometheus_labels import identity_labels, run_labels
from accelmetrics.schemas.identity import BackendStatus, Status
from accelmetrics.schemas.metric import Kind
from accelmetrics.schemas.reasons import IN_ORDER
from accelmetrics.schemas.record import ExporterStatus, MonitorStatus, Record
from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot

_SUCCESS: tuple[Status, ...] = ("ok", "degraded")


class Past(NamedTuple):
    """What the records before this one said, kept by whoever hands out one record after the other.

    Attributes:
        ready: Whether any of them held a value.
        succeeded: By source, when it was last read, in seconds since 1970.
        places: The devices that were ever listed, by key: one that vanishes is still expected.
        counts: What was counted over them.
    """

    ready: bool = False
    succeeded: Mapping[str, float] = {}
    places: Mapping[str, DeviceSlot] = {}
    counts: Counts = Counts()

    def after(self, record: Record) -> Past:
        """The same with one record more, which changes nothing where it was the last already.

        Partitions come and go by command, so that those of this record alone are expected.
        """
        taken = record.snapshot
        succeeded = {status.name: taken.time_ns / 1e9 - (status.age_seconds or 0.0) for status in taken.backends if _was_read(status)}
        whole = {key: place for key, place in self.places.items() if not place.identity.parent}
        places = {**whole, **{place.key: place for place in taken.identities}}
        return Past(self.ready or bool(taken.metrics), {**self.succeeded, **succeeded}, places, self.counts.after(record))


NO_PAST = Past()


def health(record: Record | None, past: Past | None = None, fresh: bool = True) -> Iterator[Point]:
    """The metrics about the tool itself, and ``accel_up`` of every device.

    Args:
        record: The latest record, None before the first one.
        past: What the records up to it said; from it vanished devices and silent sources are known, and what is counted over
            records. None where nobody keeps it: then there are no such counters, for one record counts nothing.
        fresh: Whether the record is recent. If not, nothing counts as being up.
    """
    yield from _about_this(record is not None and fresh and bool(record.snapshot.metrics))
    if record is None:
        return
    counted = past is not None
    past = (past or NO_PAST).after(record)
    yield from _devices(record.snapshot, past, fresh)
    for status in record.snapshot.backends:
        yield from _source(status, fresh)
    for source, moment in past.succeeded.items():
        yield _gauge(
            "accelmetrics_collect_last_success_timestamp_seconds", moment, {"source": source}, "s", "When the source was last read."
        )
    if counted:
        yield from _counts(past)
    yield from _run_info(record.labels)
    if record.monitor is not None:
        yield from _monitor(record.monitor)


def is_up(snapshot: Snapshot, key: str) -> bool:
    """Whether a device answered: it gave a value, or is silent for a reason that is in order (powered down, held by nobody).

    One that is not listed any more has neither values nor reasons.
    """
    if snapshot.values_of(key):
        return True
    reasons = snapshot.reasons_of(key).values()
    return bool(reasons) and all(why.reason in IN_ORDER for why in reasons)


def _was_read(status: BackendStatus) -> bool:
    return status.status in _SUCCESS and status.age_seconds is not None


def _devices(snapshot: Snapshot, past: Past, fresh: bool) -> Iterator[Point]:
    for key, place in past.places.items():
        up = fresh and is_up(snapshot, key)
        yield _gauge(
            "accel_up", up, identity_labels(place), "1", "1 if the device answered at the last reading, 0 if it is listed and fails."
        )
    yield _gauge("accelmetrics_devices_expected", len(past.places), {}, "1", "Devices and partitions that should be there.")


def _source(status: BackendStatus, fresh: bool) -> Iterator[Point]:
    source = {"source": status.name}
    if status.status != "absent":
        success = fresh and status.status in _SUCCESS
        yield _gauge("accelmetrics_collect_success", success, source, "1", "1 if the last reading of the source succeeded, else 0.")
    if not fresh:
        return
    if status.duration_seconds is not None:
        yield _gauge("accelmetrics_collect_duration_seconds", status.duration_seconds, source, "s", "How long the last reading took.")
    for state in get_args(Status):
        labels = {**source, "state": state}
        yield _gauge("accelmetrics_source_state", state == status.status, labels, "1", "1 for the state that the source is in, else 0.")


def _counts(past: Past) -> Iterator[Point]:
    counts = past.counts
    for (source, error), number in counts.errors.items():
        labels = {"source": source, "error": error}
        yield _counter(
            "accelmetrics_collect_errors_total", number, labels, "Readings that the source failed at, wholly or of some devices."
        )
    for source, number in counts.timeouts.items():
        yield _counter(
            "accelmetrics_collect_timeouts_total", number, {"source": source}, "Readings in which the source gave no answer in time."
        )
    for (device, reason), seconds in counts.throttled.items():
        if device in past.places:
            labels = {**identity_labels(past.places[device]), "reason": reason}
            yield _point("accel_throttle_seconds_total", seconds, labels, "counter", "s", _THROTTLED)


_THROTTLED = "For how long the clocks were held down for this reason, as far as readings say: each stands for the time before it."


@lru_cache(maxsize=1)
def _build() -> Mapping[str, str]:
    return {"version": __version__, "python": platform.python_version(), "platform": f"{sys.platform}-{platform.machine()}"}


def _about_this(up: bool) -> Iterator[Point]:
    yield _gauge("accelmetrics_build_info", 1, _build(), "1", "Which release of accelmetrics this is.")
    yield _gauge("accelmetrics_up", up, {}, "1", "1 if the latest reading is recent and gave something, else 0.")


def _run_info(labels: Mapping[str, str]) -> Iterator[Point]:
    about = run_labels(labels)
    if about:
        yield _gauge("accelmetrics_run_info", 1, about, "1", "The labels of the run that is watched.")


def _monitor(status: MonitorStatus) -> Iterator[Point]:
    yield _counter("accelmetrics_ticks_total", status.ticks, {}, "Readings taken.")
    yield _counter("accelmetrics_missed_ticks_total", status.missed_ticks, {}, "Times at which a reading was due and could not be taken.")
    yield _counter("accelmetrics_timed_out_ticks_total", status.timed_out, {}, "Readings in which some vendor call gave no answer.")
    for exporter in status.exporters:
        yield from _exporter(exporter)


def _exporter(status: ExporterStatus) -> Iterator[Point]:
    of = {"exporter": status.name}
    yield _counter("accelmetrics_export_sent_total", status.sent, of, "Records delivered.")
    yield _counter("accelmetrics_export_failed_total", status.failed, of, "Records that could not be delivered and were given up.")
    yield _counter("accelmetrics_export_dropped_total", status.dropped, of, "Records that found the queue full.")
    yield _gauge("accelmetrics_export_queue_length", status.queued, of, "1", "Records that wait.")


def _gauge(name: str, value: Number, labels: Mapping[str, str], unit: str, meaning: str) -> Point:
    return _point(name, value, labels, "gauge", unit, meaning)


def _counter(name: str, value: Number, labels: Mapping[str, str], meaning: str) -> Point:
    return _point(name, value, labels, "counter", "1", meaning)


def _point(name: str, value: Number, labels: Mapping[str, str], kind: Kind, unit: str, meaning: str) -> Point:
    return Point(name, int(value) if isinstance(value, bool) else value, labels, kind, unit, meaning)
