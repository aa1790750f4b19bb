"""TensorBoard: event files of scalars."""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
from collections.abc import Iterable, Mapping
from io import BytesIO
from typing import Any

from accelmetrics.dialects.contract import Dialect
from accelmetrics.exporters.fields import utf8
from accelmetrics.exporters.files import folder_for_files, is_still, make_folder, same_file, write_all
from accelmetrics.exporters.tracker import Tracker, tag
from accelmetrics.schemas.errors import require
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.selection import STANDARD, MetricChoice

LABELS = "accelmetrics/labels"
"""The tag of the text that lists the labels."""

_NUMBERS = itertools.count()
_EVENTS = re.compile(r"events\.out\.tfevents\.(\d{10})\.")


class TensorboardExporter(Tracker):
    """Writes event files that TensorBoard reads while they grow.

    Scalars are grouped by device (``gpu.0/powerWatts``), stand at the time of their snapshot and at a step that is whole
    seconds since the directory's first event file, so that a program that is started again goes on to the right. What the
    program logged to the monitor stands under its own names at its own steps. TensorBoard keeps scalars as 32-bit floats.

    Args:
        logdir: TensorBoard's log directory.
        run: The directory in it, which TensorBoard shows as a run. It reads one growing file in each, so that two processes,
            or the program's own writer, must not share it.
        dialect: Metric names: a dialect's name, ``module:attribute``, or a :class:`~accelmetrics.dialects.contract.Dialect`.
            Names in which no device stands are grouped by the dialect.
        metrics: Metrics to export: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        MissingDependencyError: tensorboard is not installed.
        UnknownNameError: There is no dialect with this name.
        InvalidOptionError: Something else than a directory has one of the names, or another user has put it there.
    """

    name = "tensorboard"

    def __init__(self, logdir: str, *, run: str = "system", dialect: str | Dialect = "wandb", metrics: MetricChoice = STANDARD) -> None:
        super().__init__("", dialect, metrics)
        require("tensorboard", "tensorboard")
        self._directory = folder_for_files(folder_for_files(logdir) / run)
        self._path = self._directory
        self._descriptor: int | None = None
        self._status = os.stat_result([0] * 10)  # of the file that was opened

    def open(self) -> None:
        """Begin an event file.

        Raises:
            OSError: The directory or the file cannot be made.
        """
        from tensorboard.compat.proto.event_pb2 import Event

        make_folder(self._directory)
        now = int(time.time())
        # As TensorBoard's own writer names them: it reads them in the order of their names.
        name = f"events.out.tfevents.{now:010d}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS):04d}"
        self._path = self._directory / name
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        self._status = os.fstat(self._descriptor)
        begun = filter(None, (_EVENTS.match(file.name) for file in self._directory.iterdir()))
        self._began_ns = min(int(found[1]) for found in begun) * 1_000_000_000
        self._labels = {}
        try:
            self._write(self._descriptor, [Event(wall_time=now, file_version="brain.Event:2")])
        except OSError:  # the next attempt begins another
            self.close()
            self._path.unlink(missing_ok=True)
            raise

    def export(self, record: Record) -> None:
        """Write one record: all of it, or nothing. A file that was moved, removed or closed by somebody else is begun anew.

        Raises:
            OSError: The disk is full, or gone.
        """
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.text.summary_v2 import text_pb

        # What is written to a file that was moved or removed, TensorBoard never finds.
        if self._descriptor is not None and not (is_still(self._descriptor, self._status) and same_file(self._descriptor, self._path)):
            self.close()
        if self._descriptor is None:
            self.open()
        assert self._descriptor is not None
        events = [_scalars(*row) for row in self._rows(record)]
        if record.labels != self._labels:
            lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in record.labels.items()]
            table = text_pb(LABELS, "\n".join(("| label | value |", "|---|---|", *lines)))
            events.append(Event(wall_time=events[-1].wall_time, step=events[-1].step, summary=table))
        self._write(self._descriptor, events)
        self._labels = record.labels

    def _name(self, name: str) -> str:
        return tag(name, self._group)

    def _write(self, descriptor: int, events: Iterable[Any]) -> None:
        """Append whole events. What a full disk cut short is taken back, since nothing behind it could be read.

        TensorBoard's own ``RecordWriter`` frames them. Its ``EventFileWriter`` was tried: it writes from a thread of its own, which ends
        with a traceback when the disk is full and leaves a cut event in the file.
        """
        from tensorboard.summary.writer.record_writer import RecordWriter

        room = BytesIO()
        writer = RecordWriter(room)
        for event in events:
            writer.write(event.SerializeToString())
        content = room.getbuffer()
        size = os.fstat(descriptor).st_size
        try:
            write_all(descriptor, content)
        except OSError:
            try:
                os.ftruncate(descriptor, size)
            except OSError:  # then the next record begins another file
                self.close()
            raise

    def close(self) -> None:
        """Close the file. The next ``open`` begins another, which TensorBoard shows as the same run."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and is_still(descriptor, self._status):
            os.close(descriptor)


def _scalars(time_ns: int, step: int, values: Mapping[str, int | float]) -> Any:
    """Make the event of scalars by their tags."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    found = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
    return Event(wall_time=time_ns / 1e9, step=step, summary=Summary(value=found))


def _cell(text: str) -> str:
    """Write a value as it stands in a Markdown table."""
    return utf8(text).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
