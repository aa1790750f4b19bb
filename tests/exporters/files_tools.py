"""For tests of exporters to files: records that tell themselves apart, and writers that are killed."""

from __future__ import annotations

import csv
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from accelmetrics.schemas.lines import files_of
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.recording import RecordFile, recordings
from tests.records import record

MARK = "network.sent"
SECOND = 1_000_000_000


@cache
def sample(gpus: int) -> Record:
    """One record, made once."""
    return record(gpus)


def numbered(number: int, gpus: int = 1, interval: float = 1.0) -> Record:
    """The record of one tick, with its number in it."""
    base = sample(gpus)
    snapshot = base.snapshot.with_metrics({MARK: number})
    snapshot.time_ns = 1_790_000_000 * SECOND + int(number * interval * SECOND)
    return base._replace(snapshot=snapshot)


def written(path: Path) -> list[int]:
    """The numbers of the records of a series, as they are read back; nothing in it may be unreadable but a cut end."""
    found = []
    read = recordings(path) if files_of(path) else ()
    for recording in read:
        found += [int(one.snapshot.metrics[MARK]) for one in recording]
        assert recording.skipped <= (recording is read[-1]), recording.complaint
        assert recording.headless == 0
    return found


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a series of CSV files, as Python reads them; no row may have more or fewer fields than its header."""
    found = []
    for part in files_of(path):
        with part.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            for row in reader:
                assert None not in row, row
                assert None not in row.values(), row
                found.append(row)
    return found


def numbers_in(path: Path) -> list[int]:
    """The numbers of the rows of a series of CSV files."""
    return [int(row[MARK]) for row in rows(path)]


def failing(number: int) -> Callable[..., Any]:
    """A call that the system refuses with this error."""

    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return fails


def child_of(work: Callable[[], object]) -> int:
    """Run it in a forked process, beside this one; its id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return child


def end_of(child: int) -> int:
    """Wait for a child; the status of its end, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def die() -> None:
    """As by ``kill -9``."""
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file grow beyond this, as on a full disk: what fits is written, then ``EFBIG``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def skipped(path: Path) -> int:
    """How many lines of a file are unreadable."""
    recording = RecordFile(path)
    assert all(True for _ in recording)
    return recording.skipped
