"""What can only be counted over one record after the other: readings that failed, and the time for which clocks were held down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from accelmetrics.schemas.catalogue import per_key, resolve
from accelmetrics.schemas.identity import BackendStatus, Status
from accelmetrics.schemas.metric import split_series
from accelmetrics.schemas.reasons import IN_ORDER, Reason
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot

FAILING: tuple[Status, ...] = ("degraded", "failed", "timed_out")
LONGEST = 3.0
"""Intervals of the monitor that may lie between two readings; what a clock did over a longer silence is not known."""
_ACTIVE = "accel_throttle_active"


class Counts(NamedTuple):
    """What was counted so far.

    Attributes:
        errors: By source and error, readings that the source failed at, wholly or of some devices.
        timeouts: By source, readings in which it gave no answer in time; 0 for one that always did.
        throttled: By device key and reason, for how many seconds the clocks were held down.
        latest: The snapshot that was counted last.
    """

    errors: Mapping[tuple[str, str], int] = {}
    timeouts: Mapping[str, int] = {}
    throttled: Mapping[tuple[str, str], float] = {}
    latest: Snapshot | None = None

    def after(self, record: Record) -> Counts:
        """The same with one record more; the same record twice in a row counts once."""
        taken = record.snapshot
        if taken is self.latest:
            return self
        errors, timeouts = dict(self.errors), dict(self.timeouts)
        before = {} if self.latest is None else {status.name: status for status in self.latest.backends}
        for status in taken.backends:
            if status.status != "absent":
                timeouts[status.name] = timeouts.get(status.name, 0) + (status.status == "timed_out")
            if status.status in FAILING and not _is_repeated(status, before.get(status.name)):
                for error in _errors(status, taken):
                    errors[status.name, error] = errors.get((status.name, error), 0) + 1
        return Counts(errors, timeouts, _with_throttling(self.throttled, taken, _elapsed(record, self.latest)), taken)


def _is_repeated(status: BackendStatus, before: BackendStatus | None) -> bool:
    """Whether a reading of a source with a pace of its own is served again. A call that goes on without an answer is no reading."""
    return before is not None and 0 < status.sequence == before.sequence and status.status == before.status != "timed_out"


def _errors(status: BackendStatus, taken: Snapshot) -> set[str]:
    """The reasons of its devices that speak against one; where there are none, how the source fared."""
    if status.status == "timed_out":
        return {Reason.TIMED_OUT.value}
    places = (place for place in taken.identities if status.name == place.backend)
    reasons = {str(why.reason) for place in places for why in taken.reasons_of(place.key).values() if why.reason not in IN_ORDER}
    return reasons or {status.status}


def _elapsed(record: Record, latest: Snapshot | None) -> float:
    """Seconds since the reading before; 0 where they are too many, or a clock was set back."""
    if latest is None or record.monitor is None:
        return 0.0
    seconds = (record.snapshot.time_ns - latest.time_ns) / 1e9
    return seconds if 0 < seconds <= LONGEST * record.monitor.interval else 0.0


def _with_throttling(before: Mapping[tuple[str, str], float], taken: Snapshot, seconds: float) -> Mapping[tuple[str, str], float]:
    """Time is that of the reading at its end. A reason that was never given stands at 0, so that its first second is seen."""
    found = dict(before)
    for key, value in taken.metrics.items():
        if ".throttle." in key and (mark := _throttle(key)) is not None:
            found[mark] = found.get(mark, 0.0) + (seconds if value else 0.0)
    return found


@per_key
def _throttle(key: str) -> tuple[str, str] | None:
    """Device and reason of a key that says whether clocks are held down."""
    found = resolve(key)
    if found is None or found.alias:
        return None
    name, labels = split_series(found.row.prometheus)
    return (found.device, labels["reason"]) if name == _ACTIVE else None
