"""A growing file and the closed files before it: how those are named, and in which order all are read.

``run.jsonl`` is closed as ``run.20260101T120000.000000Z.jsonl``, after the time of its first record (UTC), with ``-1``, ``-2``
behind the time where that name is taken, and with ``.gz`` at the end once it is compressed.
"""

from __future__ import annotations

import calendar
import re
from contextlib import suppress
from pathlib import Path

from accelmetrics.schemas.snapshot import rfc3339

PACKED = ".gz"
_TIME = r"\d{8}T\d{6}\.\d{6}Z"
_WRITTEN = re.compile(rb"(?:^|\"timestamp\": ?\")(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)\.(\d{6})Z", re.MULTILINE)
_NO_PUNCTUATION = str.maketrans("", "", "-:")


def next_closed(path: Path, time_ns: int) -> Path:
    """Name a growing file, whose first record is of this time, as if it were closed now: its name comes after those of all others."""
    time, number = rfc3339(time_ns).translate(_NO_PUNCTUATION), 0
    for last, last_number, _ in _closed(path)[-1:]:
        if last >= time:
            time, number = last, last_number + 1
    behind = f"-{number}" if number else ""
    return path.with_name(f"{path.stem}.{time}{behind}{path.suffix}")


def packed(closed: Path) -> Path:
    """Return the name of the same file once it is compressed."""
    return closed.with_name(closed.name + PACKED)


def closed_files(path: Path) -> list[Path]:
    """List the closed files of a growing one, oldest first, by their uncompressed names, whatever is there under those.

    Files of another stem are none of its own, however alike their names are.
    """
    return [closed for _, _, closed in _closed(path)]


def _closed(path: Path) -> list[tuple[str, int, Path]]:
    """Sort the closed files by the time in their names and the number behind it.

    The time is that of the first record; where a clock was set back, that of the file before it.
    """
    form = rf"({re.escape(path.stem)}\.({_TIME})(?:-(\d{{1,9}}))?{re.escape(path.suffix)})(?:{re.escape(PACKED)})?"
    pattern = re.compile(form, re.ASCII)
    matches = filter(None, (pattern.fullmatch(entry.name) for entry in path.parent.iterdir()))
    return sorted({(found[2], int(found[3] or 0), path.with_name(found[1])) for found in matches})


def files_of(path: Path) -> list[Path]:
    """List the files to read, oldest first: the closed ones, each once, and the growing one where it is there.

    A closed file may be there twice for a moment, or after a kill: the compressed one appears only when it is whole.
    """
    names = [packed(closed) if packed(closed).exists() else closed for closed in closed_files(path)]
    return [*names, path] if path.exists() else names


def first_time(beginning: bytes) -> int | None:
    """Find the first of our timestamps in a file's beginning, in nanoseconds since 1970; None where there is none."""
    if found := _WRITTEN.search(beginning):
        *moment, microseconds = map(int, found.groups())
        with suppress(ValueError):  # a thirteenth month
            return (calendar.timegm(tuple(moment)) * 1_000_000 + microseconds) * 1000
    return None
