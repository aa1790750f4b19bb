"""Exporter to TensorBoard: event files with scalars."""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
from collections.abc import Iterable
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
"""Tag of the text that lists the labels."""

_NUMBERS = itertools.count()
_EVENTS = re.compile(r"events\.out\.tfevents\.(\d{10})\.")


class TensorboardExporter(Tracker):
    """Writes event files that TensorBoard reads while they grow.

    Scalars are grouped by device (``gpu.0/powerWatts``). Their time is the snapshot's; their step is the number of whole seconds since the
    directory's first event file, so that a restarted program continues to the right. Numbers that the program logged to the monitor keep
    their names and steps. TensorBoard stores scalars as 32-bit floats.

    Args:
        logdir: TensorBoard's log directory.
        run: Subdirectory that TensorBoard shows as a run. TensorBoard reads only one growing file in a directory, so another process or the
            program's own writer must not share it.
        dialect: Metric names: a dialect's name, ``module:attribute``, or a :class:`~accelmetrics.dialects.contract.Dialect`.
            Names without a device are grouped by the dialect.
        metrics: Metrics to export: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        MissingDependencyError: tensorboard is not installed.
        UnknownNameError: There is no dialect with this name.
        InvalidOptionError: One of the paths is no directory, or belongs to another user in a shared directory.
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
        """Begin a new event file.

        Raises:
            OSError: The directory or the file cannot be created.
        """
        from tensorboard.compat.proto.event_pb2 import Event

        make_folder(self._directory)
        now = int(time.time())
        # TensorBoard's own writer uses the same form of name. TensorBoard reads files in the order of their names.
        self._path = self._directory / f"events.out.tfevents.{now:010d}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS):04d}"
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        self._status = os.fstat(self._descriptor)
        begun = filter(None, (_EVENTS.match(file.name) for file in self._directory.iterdir()))
        self._began_ns = min(int(found[1]) for found in begun) * 1_000_000_000
        self._labels = {}
        try:
            self._write(self._descriptor, [Event(wall_time=now, file_version="brain.Event:2")])
        except OSError:  # the next attempt begins another file
            self.close()
            self._path.unlink(missing_ok=True)
            raise

    def export(self, record: Record) -> None:
        """Write one record: all of it, or nothing. If the file was moved, removed or closed by other code, a new one begins.

        Raises:
            OSError: The disk is full or has a fault.
        """
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary_v2 import text_pb

        # TensorBoard would never see events in a file that was moved or removed.
        if self._descriptor is not None and not (is_still(self._descriptor, self._status) and same_file(self._descriptor, self._path)):
            self.close()
        if self._descriptor is None:
            self.open()
        assert self._descriptor is not None
        events = []
        for time_ns, step, values in self._rows(record):
            scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            events.append(Event(wall_time=time_ns / 1e9, step=step, summary=Summary(value=scalars)))
        if record.labels != self._labels:
            lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in record.labels.items()]
            table = text_pb(LABELS, "\n".join(("| label | value |", "|---|---|", *lines)))
            events.append(Event(wall_time=events[-1].wall_time, step=events[-1].step, summary=table))
        self._write(self._descriptor, events)
        self._labels = record.labels

    def _name(self, name: str) -> str:
        return tag(name, self._group)

    def _write(self, descriptor: int, events: Iterable[Any]) -> None:
        """Append events, all or none.

        Raises:
            OSError: The events cannot be written; the file is unchanged.
        """
        # RecordWriter frames the events. TensorBoard's EventFileWriter was tried as well: it writes on a separate thread, which ends with a
        # traceback when the disk is full and leaves an incomplete event in the file.
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
                os.ftruncate(descriptor, size)  # TensorBoard could read nothing after an incomplete event
            except OSError:  # the next record begins another file
                self.close()
            raise

    def close(self) -> None:
        """Close the file. The next ``open`` begins a new file in the same run."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None and is_still(descriptor, self._status):
            os.close(descriptor)


def _cell(text: str) -> str:
    """Escape a text for a cell of a Markdown table."""
    return utf8(text).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
