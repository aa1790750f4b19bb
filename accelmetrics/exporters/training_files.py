"""The pair of JSON-lines files that home-grown training dashboards read: one about the devices, one about the training.

``gpu_metrics_YYYYMMDD_HHMMSS.jsonl`` has a line per device and reading, ``training_metrics_YYYYMMDD_HHMMSS.jsonl`` one per step
that the program logged, written when the next step begins or at a flush. The time in the names is when the exporter was opened
(UTC): a restart begins a new pair, and so does every process, with ``-1``, ``-2`` behind the time where that name is taken.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from datetime import datetime, timezone
from pathlib import Path

from accelmetrics.dialects.training import JsonLine, gpu_lines, has_numbers, training_lines
from accelmetrics.exporters.files import LineFile, folder_for_files, is_json, make_folder
from accelmetrics.schemas.errors import DocumentError, InvalidOptionError
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.selection import STANDARD, MetricChoice, MetricSelection


class TrainingFilesExporter:
    """Writes a pair of files into a directory, which is made where it is missing.

    Args:
        directory: Where.
        fsync_every: After how many writes to a file it is made to reach the disk. 0 leaves it to the system. Flushing and
            closing do it too.
        metrics: Which metrics the records that it is given have: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        InvalidOptionError: An option makes no sense, or something else than a directory has that name.
    """

    name = "training-files"

    def __init__(self, directory: str | Path, *, fsync_every: int = 60, metrics: MetricChoice = STANDARD) -> None:
        if fsync_every < 0:
            raise InvalidOptionError(f"fsync_every is {fsync_every!r}: it must be at least 0")
        self.directory = folder_for_files(directory)
        self.metrics = MetricSelection(metrics)
        self._every = fsync_every
        self._files: tuple[LineFile, ...] = ()
        self._written: dict[LineFile, object] = {}
        self._begun: JsonLine | None = None  # of the last step, which may be logged again
        self._time_ns = 0

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that are open: of the devices, of the training."""
        return tuple(file.path for file in self._files)

    def open(self) -> None:
        """Make both files.

        Raises:
            OSError: The directory or a file cannot be made; neither is there.
        """
        make_folder(self.directory)
        moment = f"{datetime.now(timezone.utc):%Y%m%d_%H%M%S}"
        for number in itertools.count():
            ending = f"metrics_{moment}{f'-{number}' if number else ''}.jsonl"
            with ExitStack() as made, suppress(FileExistsError):
                files = []
                for what in ("gpu", "training"):
                    path = self.directory / f"{what}_{ending}"
                    path.touch(exist_ok=False)
                    made.callback(path.unlink, missing_ok=True)
                    files.append(LineFile(path, b'{"timestamp"', is_json, self._every))
                    made.callback(files[-1].close)
                    files[-1].open()
                made.pop_all()
                self._files, self._written, self._begun = tuple(files), {}, None
                return

    def export(self, record: Record) -> None:
        """Add the record's lines to both files; to a file that has them already, when it is offered again, none.

        Raises:
            OSError: A file cannot be written; it is as it was.
            DocumentError: A value is not finite, which JSON cannot hold.
        """
        steps = training_lines(record, self._begun)
        parts = (record.snapshot, list(gpu_lines(record))), (record.steps, [line for line in steps[:-1] if has_numbers(line)])
        for file, (part, lines) in zip(self._files, parts, strict=False):
            if self._written.get(file) is not part:
                self._write(file, lines, record.snapshot.time_ns)
                self._written[file] = part
                if part is record.steps and steps:
                    self._begun, self._time_ns = steps[-1], record.snapshot.time_ns

    @staticmethod
    def _write(file: LineFile, lines: Iterable[JsonLine], time_ns: int) -> None:
        try:
            text = b"".join(json.dumps(line, allow_nan=False).encode("ascii") + b"\n" for line in lines)
        except ValueError as error:
            raise DocumentError(f"the record cannot be written as JSON: {error}") from error
        if text:
            file.write(lambda _: text, time_ns)

    def flush(self) -> None:
        """Have everything reach the disk, also the last step, which then has its line.

        Raises:
            OSError: The disk has a fault, or is full after all.
        """
        if self._files and self._begun is not None:
            if has_numbers(self._begun):
                self._write(self._files[1], [self._begun], self._time_ns)
            self._begun = None
        for file in self._files:
            file.sync()

    def close(self) -> None:
        """Have everything reach the disk, and close both files.

        Raises:
            OSError: As for :meth:`flush`; the files are closed.
        """
        files = self._files
        with ExitStack() as closing:
            closing.callback(setattr, self, "_files", ())
            for file in files:
                closing.callback(file.close)
            self.flush()
