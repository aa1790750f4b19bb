"""What a scrape is answered with: the latest record as Prometheus metrics, written once and served as often as it is asked for.

Taking a record costs next to nothing; the text is written at the first scrape that sees the record. A record that has grown
old is never served as if it were fresh: then only how things fare is left, with every device down.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from accelmetrics.dialects.contract import Counting, Point
from accelmetrics.dialects.prometheus_health import NO_PAST, Past, health
from accelmetrics.dialects.registry import dialect as dialect_of
from accelmetrics.exporters.exposition import MAX_SERIES, Exposition
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.record import Record, Step

_LEAST_AGE = 5.0
_PER_LINK = "accel_link_port_"
"""More than half of what a GPU with 18 links has to say."""
_PATIENCE = 1.0
"""The sampler's default timeout, which a record does not tell."""


class _Latest(NamedTuple):
    """A record, what came before it, when it came by the monotonic clock, and what was written of it already.

    Attributes:
        points: Its points in a dialect that counts over all records, which it does when the record comes; None in another one.
    """

    record: Record | None
    past: Past
    taken: float
    written: dict[tuple[str, ...], bytes]
    points: tuple[Point, ...] | None = None


class Page:
    """The latest record. It is taken on one thread and written on another one.

    Args:
        dialect: Whose names the metrics have.
        max_series: At most so many series are written.
        max_age: A record older than this, in seconds, is not served; None allows two intervals of the monitor and its
            timeout, and never less than 5 s.
        per_link: Whether each link between devices has its series beside the sum over all of them.

    Raises:
        UnknownNameError: There is no such dialect.
        InvalidOptionError: A number is not positive.
    """

    def __init__(self, dialect: str, max_series: int = MAX_SERIES, max_age: float | None = None, per_link: bool = False) -> None:
        if max_series < 1:
            raise InvalidOptionError(f"max_series is {max_series}: it must be at least 1")
        if max_age is not None and not max_age > 0:
            raise InvalidOptionError(f"max_age is {max_age}: it must be above 0 seconds")
        self._dialect = dialect_of(dialect)
        self._max_series = max_series
        self._max_age = max_age
        self._left_out = () if per_link else (_PER_LINK,)
        self._dropped = 0
        self._counted: _Latest | None = None
        self._steps: tuple[Step, ...] = ()
        self._latest = _Latest(None, NO_PAST, 0.0, {})

    @property
    def ready(self) -> bool:
        """Whether any record held a value."""
        return self._latest.past.ready

    def take(self, record: Record) -> None:
        """Serve this record from now on. What the program logged last is kept until it logs anew."""
        # Each record is counted once and in order, whether a scrape sees it or not: here, never on the thread of a scrape.
        counted = tuple(self._dialect.points(record)) if isinstance(self._dialect, Counting) else None
        self._steps = _merged(self._steps, record.steps)
        record = record._replace(steps=self._steps)
        self._latest = _Latest(record, self._latest.past.after(record), time.monotonic(), {}, counted)

    def forget(self) -> None:
        """As before the first record."""
        self._steps = ()
        self._latest = _Latest(None, NO_PAST, 0.0, {})

    def metrics(self, openmetrics: bool = False, packed: bool = False) -> bytes:
        """The metrics as text, or OpenMetrics; ``packed`` by gzip."""
        latest = self._latest
        fresh = self._is_fresh(latest)
        form = ("openmetrics" if openmetrics else "text", "fresh" if fresh else "stale")
        return _once(latest, form, packed, lambda: self._write(latest, fresh, openmetrics))

    def snapshot(self, packed: bool = False) -> bytes | None:
        """The snapshot's document, None while there is none that is recent."""
        latest = self._latest
        if latest.record is None or not self._is_fresh(latest):
            return None
        return _once(latest, ("snapshot",), packed, latest.record.snapshot.to_json().encode)

    def _write(self, latest: _Latest, fresh: bool, openmetrics: bool) -> bytes:
        exposition = Exposition(self._points(latest, fresh), self._max_series)
        if latest is not self._counted:
            self._dropped += exposition.dropped
            self._counted = latest
        exposition.count_dropped(self._dropped)
        return exposition.text(openmetrics)

    def _points(self, latest: _Latest, fresh: bool) -> Iterator[Point]:
        """How things fare comes first, so that no limit cuts it off; the dialect's own copy of it is passed over."""
        known = set()
        for point in health(latest.record, latest.past, fresh):
            known.add(point.name)
            yield point
        if latest.record is not None and fresh:
            found = self._dialect.points(latest.record) if latest.points is None else latest.points
            yield from (point for point in found if point.name not in known and not point.name.startswith(self._left_out))

    def _is_fresh(self, latest: _Latest) -> bool:
        record = latest.record
        if record is None:
            return False
        # By both clocks: the wall clock counts the time that a suspended machine slept through.
        age = max(time.monotonic() - latest.taken, time.time() - record.snapshot.time_ns / 1e9)
        return age <= (self._max_age or _allowed_age(record))


def _allowed_age(record: Record) -> float:
    interval = 0.0 if record.monitor is None else record.monitor.interval
    return max(_LEAST_AGE, 2 * interval + _PATIENCE)


def _merged(old: tuple[Step, ...], new: tuple[Step, ...]) -> tuple[Step, ...]:
    """One step that holds the last value of each name."""
    if not new:
        return old
    latest = new[-1]
    number = next((step.step for step in reversed((*old, *new)) if step.step is not None), None)
    values = {name: value for step in (*old, *new) for name, value in step.values.items()}
    return (Step(latest.time_ns, number, values),)


def _once(latest: _Latest, form: tuple[str, ...], packed: bool, write: Callable[[], bytes]) -> bytes:
    """What ``write`` gives, kept with the record, packed or not."""
    body = latest.written.get(form)
    if body is None:
        body = latest.written[form] = write()
    if not packed:
        return body
    small = (*form, "gzip")
    if small not in latest.written:
        latest.written[small] = gzip.compress(body, compresslevel=5)
    return latest.written[small]
