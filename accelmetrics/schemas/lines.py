"""Records as lines of JSON, version 2.0: a header says what seldom changes, and a line a reading says the rest.

A header has the machine's name, the labels, the devices, why values are missing, and how the sources stand. Each writer puts one
first in every file, and another when any of that has changed. A reading goes with the last header of its ``stream``, a name that
every writer gives itself: several may write to one file. Values are read without the header.

>>> from accelmetrics.schemas.record import Record
>>> from accelmetrics.schemas.snapshot import Snapshot
>>> writer = LineWriter("1f2e3d4c")
>>> text = writer.lines(Record(Snapshot(0, "node", {"gpu.0.powerWatts": 300.0})), fresh=True)
>>> print(text.splitlines()[1])
{"timestamp":"1970-01-01T00:00:00.000000Z","stream":"1f2e3d4c","metrics":{"gpu.0.powerWatts":300.0}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from typing import Any

from accelmetrics.schemas.errors import Unavailable
from accelmetrics.schemas.finding import NO_FINDINGS, Findings
from accelmetrics.schemas.identity import BackendStatus
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.recent import most_recent
from accelmetrics.schemas.record import MonitorStatus, Record
from accelmetrics.schemas.snapshot import DeviceSlot, device_entry, reason_entry, surrogates_escaped, to_text

LINES_VERSION = "2.0"
"""Of the lines. The number before the dot rises when a reader of the old form would misread the new one."""

_COMPACT = (",", ":")


_STANDING = ("name", "status", "detail", "source", "devices", "reason")
"""What a header says of a source; its reason only where it has one."""


class Header(NamedTuple):
    """What seldom changes from one record to the next.

    Attributes:
        hostname: The machine's name.
        labels: What tells this stream from others.
        identities: The devices.
        unavailable: By key, why a value is missing.
        backends: How the sources stand, without the numbers of a reading.
        unlisted: By device key, why its processes are not known.
    """

    hostname: str
    labels: Mapping[str, str]
    identities: Sequence[DeviceSlot]
    unavailable: Mapping[str, Unavailable]
    backends: tuple[BackendStatus, ...]
    unlisted: Mapping[str, Unavailable] = {}

    @classmethod
    def of(cls, record: Record) -> Header:
        """Take it from a record."""
        snapshot = record.snapshot
        backends = tuple(BackendStatus(**{name: getattr(one, name) for name in _STANDING}) for one in snapshot.backends)
        return cls(snapshot.hostname, record.labels, snapshot.identities, snapshot.unavailable, backends, snapshot.unlisted)

    def to_dict(self, stream: str) -> dict[str, Any]:
        """Return the header line of a stream as plain containers."""
        return {
            "schema_version": LINES_VERSION,
            "stream": stream,
            "hostname": self.hostname,
            "labels": dict(self.labels),
            "devices": [device_entry(slot) for slot in self.identities],
            "unavailable": {key: reason_entry(why) for key, why in self.unavailable.items()},
            "backends": [{name: getattr(one, name) for name in _STANDING if one.reason or name != "reason"} for one in self.backends],
            "unlisted": {key: reason_entry(why) for key, why in self.unlisted.items()},
        }


def reading(record: Record, stream: str, monitor: bool, before: Findings = NO_FINDINGS) -> dict[str, Any]:
    """Return the line of a reading as plain containers; parts with nothing to say are left out.

    Args:
        record: The record.
        stream: The writer's name.
        monitor: Whether to say how the monitor fares.
        before: The findings that were written last; only when they have changed they are part of the line.
    """
    snapshot = record.snapshot
    line: dict[str, Any] = {"timestamp": snapshot.timestamp, "stream": stream}
    numbered = [step.step for step in record.own_steps if step.step is not None]
    if numbered:
        line["step"] = numbered[-1]
    line["metrics"] = snapshot.metrics
    if record.steps:
        line["training"] = record.training()
    if record.windows:
        line["windows"] = [window.to_dict() for window in record.windows]
    sources = {status.name: _numbers(status) for status in snapshot.backends if status.sequence or status.duration_seconds is not None}
    if sources:
        line["sources"] = sources
    if snapshot.processes:
        line["processes"] = {
            device: [{name: value for name, value in process._asdict().items() if value not in (None, "")} for process in found]
            for device, found in snapshot.processes.items()
        }
    if monitor and record.monitor is not None:
        line["monitor"] = record.monitor.flat()
    if record.findings != before:
        ended = tuple(one for one in record.findings.ended if one not in before.ended)
        line["findings"] = Findings(record.findings.current, ended, record.findings.cannot_tell).to_dict()
    return line


def _numbers(status: BackendStatus) -> dict[str, int | float]:
    """Return what is of this reading alone about a source; seconds to the microsecond."""
    numbers: dict[str, int | float] = {"sequence": status.sequence}
    for name, seconds in (("age_seconds", status.age_seconds), ("duration_seconds", status.duration_seconds)):
        if seconds is not None:
            numbers[name] = round(seconds, 6)
    return numbers


def _told(monitor: MonitorStatus | None) -> object:
    """Return what a reading says how the monitor fares for: every number but those that count readings."""
    if monitor is None:
        return None
    return (monitor.interval, monitor.missed_ticks, monitor.timed_out, [(one.name, one.failed, one.dropped) for one in monitor.exporters])


def are_finite(values: Collection[object]) -> bool:
    """Return whether all are finite ints and floats, and of no subclass.

    Raises:
        OverflowError: A whole number is beyond what a float holds.
    """
    # The sum is finite where all are, but for the rare one that is too large, and costs a third.
    return set(map(type, values)) <= {int, float} and (isfinite(sum(values)) or all(map(isfinite, values)))  # type: ignore[arg-type]


class _MetricsText:
    """Writes metrics as ``json`` does: the text of the keys is kept for as long as they stay, and the numbers are put into it."""

    def __init__(self) -> None:
        self._kept: list[tuple[list[str], str]] = []
        self._keys: list[str] = []
        self._template = "{}"

    def text(self, metrics: Mapping[str, int | float]) -> str | None:
        """Return the text; None where a value is none that every reading has: not finite, huge, or of a type of its own."""
        values = metrics.values()
        try:
            if not are_finite(values):
                return None
        except OverflowError:
            return None
        keys = list(metrics)
        if keys != self._keys:
            self._keys, self._template = most_recent(self._kept, lambda one: one[0] == keys, lambda: (keys, _template(keys)))
        return self._template % tuple(values)  # repr() of an int and of a float is what JSON has


def _template(keys: Collection[str]) -> str:
    members = (f"{json.dumps(key)}:".replace("%", "%%") + "%r" for key in keys)
    return surrogates_escaped(f"{{{','.join(members)}}}")


def _plain_text(line: Mapping[str, Any]) -> str:
    return to_text(line, None, "record", _COMPACT)


class _Written(NamedTuple):
    """What lines said last that is said again only when it has changed."""

    header: Header
    monitor: object
    findings: Findings


class LineWriter:
    """Makes the lines of one stream, and knows the header that is written.

    Args:
        stream: The stream's name; eight random digits unless one is given.
    """

    def __init__(self, stream: str = "") -> None:
        self.stream = stream or os.urandom(4).hex()
        self._metrics = _MetricsText()
        self._made: _Written | None = None
        self._written: _Written | None = None

    def lines(self, record: Record, fresh: bool) -> str:
        """Make a record's line, below a header where it needs one.

        Args:
            record: The record.
            fresh: Whether the file has no line of this stream yet.

        Raises:
            DocumentError: A value is not finite, which JSON cannot hold.
        """
        before = None if fresh else self._written
        made = self._made = _Written(Header.of(record), _told(record.monitor), record.findings)
        begins = before is None or before.header != made.header
        header = _plain_text(made.header.to_dict(self.stream)) + "\n" if begins else ""
        monitor = begins or before is None or before.monitor != made.monitor
        line = reading(record, self.stream, monitor, NO_FINDINGS if before is None else before.findings)
        return f"{header}{self._text(line)}\n"

    def _text(self, line: dict[str, Any]) -> str:
        """Write the line of a reading: what :func:`_plain_text` gives, whose time is mostly spent on keys that stay."""
        metrics = self._metrics.text(line["metrics"])
        if metrics is None:
            return _plain_text(line)
        # No text has this mark in it: there the quotes would be escaped.
        before, mark, behind = _plain_text({**line, "metrics": {}}).partition('"metrics":{}')
        return f"{before}{mark[:-2]}{metrics}{behind}"

    def wrote(self) -> None:
        """Note that what was made last is written."""
        self._written = self._made
