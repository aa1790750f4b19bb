"""The pair of JSON-lines files that home-grown training dashboards read: one about the devices, one about the training.

``gpu_metrics_YYYYMMDD_HHMMSS.jsonl`` has a line per device and reading, ``training_metrics_YYYYMMDD_HHMMSS.jsonl`` one per step
that the program logged. The time in the names is when the exporter was opened (UTC): a restart begins a new pair, and so does every
process, with ``-1``, ``-2`` behind the time where that name is taken.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from datetime import datetime, timezone
from pathlib import Path

from accelmetrics.dialects.training import Line, gpu_lines, training_lines
from accelmetrics.exporters.files import absolute
from accelmetrics.exporters.whole_lines import WholeLines
from accelmetrics.schemas.errors import DocumentError, InvalidOptionError
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot

_BEGINNING = b'{"timestamp"'


class TrainingFilesExporter:
    """Writes a pair of files into a directory, which is made where it is missing.

    Args:
        directory: Where.
        fsync_every: After how many writes to a file it is made to reach the disk. 0 leaves it to the system. Flushing and
            closing do it too.

    Raises:
        InvalidOptionError: An option makes no sense, or something else than a directory has that name.
    """

    name = "training-files"

    def __init__(self, directory: str | Path, *, fsync_every: int = 60) -> None:
        if fsync_every < 0:
            raise InvalidOptionError(f"fsync_every is {fsync_every!r}: it must be at least 0")
        self.directory = absolute(directory)
        if self.directory.exists() and not self.directory.is_dir():
            raise InvalidOptionError(f"{directory} is no directory: the files are made in one")
        self._every = fsync_every
        self._gpus: _Lines | None = None
        self._steps: _Lines | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that are open: of the devices, of the training."""
        return tuple(lines.path for lines in (self._gpus, self._steps) if lines is not None)

    def open(self) -> None:
        """Make both files.

        Raises:
            OSError: The directory or a file cannot be made.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        moment = f"{datetime.now(timezone.utc):%Y%m%d_%H%M%S}"
        with ExitStack() as made:
            gpus, steps = next(filter(None, (self._pair(f"{moment}-{number}" if number else moment) for number in itertools.count())))
            made.callback(gpus.abandon)
            made.callback(steps.abandon)
            gpus.begin()
            steps.begin()
            made.pop_all()
        self._gpus, self._steps = gpus, steps

    def _pair(self, moment: str) -> tuple[_Lines, _Lines] | None:
        """Both files, made; None where one of them is there already."""
        first, second = (self.directory / f"{what}_metrics_{moment}.jsonl" for what in ("gpu", "training"))
        with ExitStack() as made, suppress(FileExistsError):
            first.touch(exist_ok=False)
            made.callback(first.unlink, missing_ok=True)
            second.touch(exist_ok=False)
            made.pop_all()
            return _Lines(first, self._every), _Lines(second, self._every)
        return None

    def export(self, record: Record) -> None:
        """Add the record's lines to both files; to a file that has them already, when it is offered again, none.

        Raises:
            OSError: A file cannot be written; it is as it was.
            DocumentError: A value is not finite, which JSON cannot hold.
        """
        if self._gpus is not None and self._steps is not None:
            self._gpus.add(record.snapshot, gpu_lines(record))
            self._steps.add(record.snapshot, training_lines(record))

    def flush(self) -> None:
        """Have everything reach the disk.

        Raises:
            OSError: The disk has a fault, or is full after all.
        """
        for lines in filter(None, (self._gpus, self._steps)):
            lines.file.sync()

    def close(self) -> None:
        """Have everything reach the disk, and close both files.

        Raises:
            OSError: As for :meth:`flush`; the files are closed.
        """
        try:
            self.flush()
        finally:
            for lines in filter(None, (self._gpus, self._steps)):
                lines.file.drop()
            self._gpus = self._steps = None


class _Lines:
    """One of the files, and which reading is in it."""

    def __init__(self, path: Path, fsync_every: int) -> None:
        self.path = path
        self.file = WholeLines(path, _BEGINNING, _complete)
        self._every = fsync_every
        self._written: Snapshot | None = None

    def begin(self) -> None:
        try:
            self.file.acquire()
        finally:
            self.file.release()

    def abandon(self) -> None:
        self.file.drop()
        self.path.unlink(missing_ok=True)

    def add(self, snapshot: Snapshot, lines: Iterable[Line]) -> None:
        if snapshot is self._written:
            return
        text = b"".join(map(_encoded, lines))
        if text:
            self._append(text, snapshot.time_ns)
        self._written = snapshot

    def _append(self, text: bytes, time_ns: int) -> None:
        try:
            self.file.acquire()
            if self._every:
                self.file.sync(self._every)  # what failed last time is told before anything else is taken
            self.file.append(text, time_ns)
        finally:
            self.file.release()
        if self._every:
            # The lines are written: an error now would have them written again.
            with suppress(OSError):
                self.file.sync(self._every)


def _encoded(line: Line) -> bytes:
    try:
        return json.dumps(line, allow_nan=False).encode("ascii") + b"\n"
    except ValueError as error:
        raise DocumentError(f"the record cannot be written as JSON: {error}") from error


def _complete(tail: bytes) -> bool:
    """Whether a last line that no line feed ends is whole all the same."""
    try:
        json.loads(tail)
    except ValueError:
        return False
    return True
