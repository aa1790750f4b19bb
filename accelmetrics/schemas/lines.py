"""Records as lines of JSON, version 2.0: a header line with rarely changing data, and a line per reading.

A header has the machine's name, the labels, the devices, the reasons for missing values, and the status of the sources. Each writer
puts one first in every file, and another one whenever any of that changes. A reading belongs to the last header of its ``stream``, a
name that every writer chooses, so that several can write to one file. Values can be read without the header.

A file of lines in any format is closed when it is full or old. ``run.jsonl`` becomes ``run.20260101T120000.000000Z.jsonl``, after the
time of its first record (UTC), with ``-1``, ``-2`` after the time if that name is taken, and with ``.gz`` at the end once it is
compressed.

>>> from accelmetrics.schemas.record import Record
>>> from accelmetrics.schemas.snapshot import Snapshot
>>> writer = LineWriter("1f2e3d4c")
>>> text = writer.lines(Record(Snapshot(0, "node", {"gpu.0.powerWatts": 300.0})), fresh=True)
>>> print(text.splitlines()[1])
{"timestamp":"1970-01-01T00:00:00.000000Z","stream":"1f2e3d4c","metrics":{"gpu.0.powerWatts":300.0}}
"""

from __future__ import annotations

import calendar
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from typing import Any

from accelmetrics.schemas.reading import Header, NumberTemplate, header
from accelmetrics.schemas.record import NO_FINDINGS, Findings, Record
from accelmetrics.schemas.snapshot import device_entry, reason_entry, rfc3339, surrogates_escaped, to_text

LINES_VERSION = "2.0"
"""Version of the lines. The number before the dot rises when a reader of the old format would misread the new one."""

PACKED = ".gz"
_TIME = r"\d{8}T\d{6}\.\d{6}Z"
_WRITTEN = re.compile(rb"(?:^|\"timestamp\": ?\")(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)\.(\d{6})Z", re.MULTILINE)


def header_line(head: Header, stream: str) -> dict[str, Any]:
    """Return the header line of a stream as plain containers."""
    fields = ("name", "status", "detail", "source", "devices", "reason")
    return {
        "schema_version": LINES_VERSION,
        "stream": stream,
        "hostname": head.hostname,
        "labels": dict(head.labels),
        "devices": [device_entry(slot) for slot in head.identities],
        "unavailable": {key: reason_entry(why) for key, why in head.unavailable.items()},
        "backends": [{name: getattr(one, name) for name in fields if one.reason or name != "reason"} for one in head.backends],
        "unlisted": {key: reason_entry(why) for key, why in head.unlisted.items()},
    }


def reading(record: Record, stream: str, monitor: bool, before: Findings = NO_FINDINGS) -> dict[str, Any]:
    """Return the line of a reading as plain containers, with empty metrics. Parts without content are left out.

    Args:
        record: The record.
        stream: The writer's name.
        monitor: Whether to include the monitor's status.
        before: The findings written last. The line contains findings only if they have changed.
    """
    snapshot = record.snapshot
    line: dict[str, Any] = {"timestamp": snapshot.timestamp, "stream": stream}
    numbered = [step.step for step in record.own_steps if step.step is not None]
    if numbered:
        line["step"] = numbered[-1]
    line["metrics"] = {}
    sources: dict[str, dict[str, int | float]] = {}
    for status in snapshot.backends:
        if status.sequence or status.duration_seconds is not None:
            seconds = {"age_seconds": status.age_seconds, "duration_seconds": status.duration_seconds}
            microseconds = {name: round(value, 6) for name, value in seconds.items() if value is not None}
            sources[status.name] = {"sequence": status.sequence, **microseconds}
    beside = {
        "training": record.training(),
        "windows": [window.to_dict() for window in record.windows],
        "sources": sources,
        "processes": {
            device: [{name: value for name, value in process._asdict().items() if value not in (None, "")} for process in found]
            for device, found in snapshot.processes.items()
        },
        "monitor": record.monitor.flat() if monitor and record.monitor is not None else None,
    }
    line.update((name, part) for name, part in beside.items() if part)
    if record.findings != before:
        ended = tuple(one for one in record.findings.ended if one not in before.ended)
        line["findings"] = Findings(record.findings.current, ended, record.findings.cannot_tell).to_dict()
    return line


def are_finite(values: Collection[object]) -> bool:
    """Return whether all values are finite and exactly of type int or float.

    Raises:
        OverflowError: An integer is too large for a float.
    """
    # The sum is finite if all values are, except for rare sums that overflow. Checking it takes a third of the time.
    return set(map(type, values)) <= {int, float} and (isfinite(sum(values)) or all(map(isfinite, values)))  # type: ignore[arg-type]


def _template(keys: Sequence[str]) -> NumberTemplate:
    """Return the JSON of metrics as a template, with places for the numbers."""
    parts: list[str | int] = []
    for place, key in enumerate(keys):
        parts += [f"{',' if place else ''}{surrogates_escaped(json.dumps(key))}:", place]
    return NumberTemplate(["{", *parts, "}"])


def _plain_text(line: Mapping[str, Any]) -> str:
    return to_text(line, None, "record", (",", ":"))


class LineWriter:
    """Makes the lines of one stream, and remembers the header last written.

    Args:
        stream: The stream's name. Default: eight random hexadecimal digits.
    """

    def __init__(self, stream: str = "") -> None:
        self.stream = stream or os.urandom(4).hex()
        # What lines repeat only after a change: the header, the monitor's status and the findings, as last made and last written.
        self._made: tuple[Header | None, object, Findings] = (None, None, NO_FINDINGS)
        self._written: tuple[Header | None, object, Findings] = self._made

    def lines(self, record: Record, fresh: bool) -> str:
        """Return a record's line, after a header line if one is needed.

        Args:
            record: The record.
            fresh: Whether the file has no line of this stream yet.

        Raises:
            DocumentError: A value is not finite, which JSON cannot represent.
        """
        whole, monitor = record.snapshot.header, record.monitor
        # The header of a stream is the record's header with labels and without keys, since each line has its keys.
        parts = whole.hostname, (), whole.identities, whole.unavailable, whole.backends, whole.unlisted, record.labels
        current = whole.kept(("stream", *record.labels.items()), lambda: header(*parts))
        state: object = None
        if monitor is not None:  # all numbers except counts of readings, which change with every line
            exporters = [(one.name, one.failed, one.dropped) for one in monitor.exporters]
            state = (monitor.interval, monitor.missed_ticks, monitor.timed_out, exporters)
        last_header, last_state, last_findings = (None, None, NO_FINDINGS) if fresh else self._written
        self._made = current, state, record.findings
        begins = last_header is not current
        head = _plain_text(header_line(current, self.stream)) + "\n" if begins else ""
        line = reading(record, self.stream, begins or last_state != state, last_findings)
        snapshot = record.snapshot
        try:
            usual = are_finite(snapshot.numbers)
        except OverflowError:
            usual = False
        if not usual:  # a value is not finite, is huge, or has another type
            return f"{head}{_plain_text({**line, 'metrics': snapshot.metrics})}\n"
        # Most of the time of writing JSON is spent on keys, so these come from the header's template. No text inside the line can
        # contain this mark, because its quotes would be escaped.
        ahead, mark, behind = _plain_text(line).partition('"metrics":{}')
        keys = snapshot.header.keys
        # repr() writes finite numbers as JSON does.
        metrics = snapshot.header.kept("json", lambda: _template(keys)).fill([*map(repr, snapshot.numbers)])
        return f"{head}{ahead}{mark[:-2]}{metrics}{behind}\n"

    def wrote(self) -> None:
        """Record that the latest lines were written. Until this call, the same lines can be made again."""
        self._written = self._made


# A growing file and the closed ones before it


def next_closed(path: Path, time_ns: int) -> Path:
    """Return the name that a growing file gets when it is closed, sorted after the names of all closed files.

    Args:
        path: The growing file.
        time_ns: The time of its first record.
    """
    time, number = rfc3339(time_ns).replace("-", "").replace(":", ""), 0
    for last, last_number, _ in _closed(path)[-1:]:
        if last >= time:
            time, number = last, last_number + 1
    behind = f"-{number}" if number else ""
    return path.with_name(f"{path.stem}.{time}{behind}{path.suffix}")


def packed(closed: Path) -> Path:
    """Return the name of the same file after compression."""
    return closed.with_name(closed.name + PACKED)


def closed_files(path: Path) -> list[Path]:
    """Return the closed files of a growing one, oldest first, by their uncompressed names, compressed or not.

    Files with another stem do not belong to it, even if their names are similar.
    """
    return [closed for _, _, closed in _closed(path)]


def _closed(path: Path) -> list[tuple[str, int, Path]]:
    """Return the closed files with the time and the number in their names, sorted by these.

    The time is the time of the first record. If the clock was set back, it is the time of the file before it.
    """
    pattern = re.compile(rf"({re.escape(path.stem)}\.({_TIME})(?:-(\d{{1,9}}))?{re.escape(path.suffix)})(?:{re.escape(PACKED)})?", re.ASCII)
    matches = filter(None, (pattern.fullmatch(entry.name) for entry in path.parent.iterdir()))
    return sorted({(found[2], int(found[3] or 0), path.with_name(found[1])) for found in matches})


def files_of(path: Path) -> list[Path]:
    """Return the files to read, oldest first: each closed file once, and the growing file if it exists.

    A closed file may exist in both forms for a moment, or after a kill. A compressed file appears only when it is complete.
    """
    names = [packed(closed) if packed(closed).exists() else closed for closed in closed_files(path)]
    return [*names, path] if path.exists() else names


def first_time(beginning: bytes) -> int | None:
    """Return the first timestamp of a record in the beginning of a file, in nanoseconds since 1970; None if there is none."""
    if found := _WRITTEN.search(beginning):
        *moment, microseconds = map(int, found.groups())
        with suppress(ValueError):  # not a date, for example a thirteenth month
            return (calendar.timegm(tuple(moment)) * 1_000_000 + microseconds) * 1000
    return None
