"""Writes the pair of JSON-lines files that home-grown training dashboards read: one about devices, one about the training.

``gpu_metrics_YYYYMMDD_HHMMSS.jsonl`` has a line per device and reading. ``training_metrics_YYYYMMDD_HHMMSS.jsonl`` has a line per logged
step, written when the next step begins or at a flush. The time in the names is the time at which the exporter was opened (UTC). Each
restart and each process begins a new pair; if a name exists, ``-1``, ``-2`` and so on are appended to the time.
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
    """Writes a pair of files to a directory, which is created if it does not exist.

    Args:
        directory: The directory.
        fsync_every: Number of writes to a file between two syncs to the disk. 0 leaves syncing to the system. Flushing and closing also
            sync.
        metrics: Metrics to export: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        InvalidOptionError: An option has an invalid value, or the path is no directory.
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
        self._begun: JsonLine | None = None  # line of the last step, which later calls may complete
        self._time_ns = 0

    @property
    def paths(self) -> tuple[Path, ...]:
        """The open files: devices, training."""
        return tuple(file.path for file in self._files)

    def open(self) -> None:
        """Create both files.

        Raises:
            OSError: The directory or a file cannot be created; then neither file exists.
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
        """Append the record's lines to both files. On a retry, a file that already has them is left unchanged.

        Raises:
            OSError: A file cannot be written; it is unchanged.
            DocumentError: A value is not finite, which JSON cannot represent.
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
        """Write the line of the last step, and sync both files to the disk.

        Raises:
            OSError: The disk has a fault or is full.
        """
        if self._files and self._begun is not None:
            if has_numbers(self._begun):
                self._write(self._files[1], [self._begun], self._time_ns)
            self._begun = None
        for file in self._files:
            file.sync()

    def close(self) -> None:
        """Sync both files to the disk and close them.

        Raises:
            OSError: As for :meth:`flush`; the files are closed nevertheless.
        """
        files = self._files
        with ExitStack() as closing:
            closing.callback(setattr, self, "_files", ())
            for file in files:
                closing.callback(file.close)
            self.flush()
