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
_WRITTEN = re.compile(rb"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)\.(\d{6})Z")
_NO_PUNCTUATION = str.maketrans("", "", "-:")


def closed_name(path: Path, time_ns: int, number: int = 0) -> Path:
    """What a file is called once it is closed, uncompressed.

    Args:
        path: The file while it grows.
        time_ns: Time of its first record, in nanoseconds since 1970.
        number: 0, or a higher one where that name is taken.
    """
    time = rfc3339(time_ns).translate(_WRITTEN = re.compile(rb"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)\.(\d{6})Z")
_NO_PUNCTUATION)
    behind = f"-{number}" if number else ""
    return path.with_name(f"{path.stem}.{time}{behind}{path.suffix}")


def packed(closed: Path) -> Path:
    """The name of the same file once it is compressed."""
    return closed.with_name(closed.name + PACKED)


def closed_names(path: Path) -> list[Path]:
    """The closed files of a growing one, oldest first, by their uncompressed names, whatever is there of each.

    Files of another stem are none of its own, however alike their names are.
    """
    form = rf"({re.escape(path.stem)}\.({_TIME})(?:-(\d{{1,9}}))?{re.escape(path.suffix)})(?:{re.escape(PACKED)})?"
    pattern = re.compile(form, re.ASCII)
    found = {}
    for entry in path.parent.iterdir():
        if match := pattern.fullmatch(entry.name):
            found[match[2], int(match[3] or 0)] = path.with_name(match[1])
    return [found[order] for order in sorted(found)]


def series(path: Path) -> list[Path]:
    """The files to read, oldest first: the closed ones, each once, and the growing one where it is there.

    A closed file may be there twice for a moment, or after a kill: the compressed one appears only when it is whole.
    """
    names = [packed(name) if packed(name).exists() else name for name in closed_names(path)]
    return [*names, path] if path.exists() else names


def first_time(beginning: bytes) -> int | None:
    """The first of our timestamps in a file's beginning, in nanoseconds since 1970; None where there is none."""
    if found := _WRITTEN.search(beginning):
        *moment, microseconds = map(int, found.groups())
        with suppress(ValueError):  # a thirteenth month
            return (calendar.timegm(tuple(moment)) * 1_000_000 + microseconds) * 1000
    return None
