"""TensorBoard: event files of scalars."""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
from collections.abc import Iterable, Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any, BinaryIO

from accelmetrics.exporters.fields import measured, seconds_since, step_number, utf8
from accelmetrics.exporters.files import folder_for_files, make_folder, same_file, write_all
from accelmetrics.schemas.errors import require
from accelmetrics.schemas.metric import PARTITION
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.selection import STANDARD, MetricChoice, MetricSelection

LABELS = "accelmetrics/labels"
"""The tag of the text that lists the labels."""
HOST = "host"
"""The group of what belongs to no device."""

_NUMBERS = itertools.count()
_EVENTS = re.compile(r"events\.out\.tfevents\.(\d{10})\.")
_OF_DEVICE = re.compile(rf"(\w+(?:\.process)?\.\d+(?:\.{PARTITION}\.\d+)?)\.(.+)", re.DOTALL)


class TensorboardExporter:
    """Writes event files that TensorBoard reads while they grow.

    Scalars are grouped by device (``gpu.0/powerWatts``), stand at the time of their snapshot and at a step that is whole
    seconds since the directory's first event file, so that a program that is started again goes on to the right. What the
    program logged to the monitor stands under its own names at its own steps. TensorBoard keeps scalars as 32-bit floats.

    Args:
        logdir: TensorBoard's log directory.
        run: The directory in it, which TensorBoard shows as a run. It reads one growing file in each, so that two processes,
            or the program's own writer, must not share it.
        metrics: Which metrics the records that it is given have: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        MissingDependencyError: tensorboard is not installed.
        InvalidOptionError: Something else than a directory has one of the names, or another user has put it there.
    """

    name = "tensorboard"

    def __init__(self, logdir: str, *, run: str = "system", metrics: MetricChoice = STANDARD) -> None:
        require("tensorboard", "tensorboard")
        self._directory = folder_for_files(folder_for_files(logdir) / run)
        self._path = self._directory
        self.metrics = MetricSelection(metrics)
        self._file: BinaryIO | None = None
        self._began_ns = 0
        self._labels: dict[str, str] = {}

    def open(self) -> None:
        """Begin an event file.

        Raises:
            OSError: The directory or the file cannot be made.
        """
        from tensorboard.compat.proto.event_pb2 import Event

        make_folder(self._directory)
        now = int(time.time())
        # As TensorBoard's own writer names them: it reads them in the order of their names.
        name = f"events.out.tfevents.{now:010d}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
        self._path = self._directory / name
        self._file = self._path.open("xb", buffering=0)
        begun = filter(None, (_EVENTS.match(file.name) for file in self._directory.iterdir()))
        self._began_ns = min(int(found[1]) for found in begun) * 1_000_000_000
        self._labels = {}
        try:
            self._write(self._file, [Event(wall_time=now, file_version="brain.Event:2")])
        except OSError:  # the next attempt begins another
            self.close()
            self._path.unlink(missing_ok=True)
            raise

    def export(self, record: Record) -> None:
        """Write one record: all of it, or nothing. A file that was moved or removed is begun anew.

        Raises:
            OSError: The disk is full, or gone.
        """
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.text.summary_v2 import text_pb

        # What is written to a file that was moved or removed, TensorBoard never finds.
        if self._file is not None and not same_file(self._file.fileno(), self._path):
            self.close()
        if self._file is None:
            self.open()
        assert self._file is not None
        labels = dict(record.labels)
        events = []
        for step in record.own_steps:
            values = {utf8(name): value for name, value in step.values.items()}
            events.append(_scalars(step.time_ns, step_number(step, self._began_ns), values))
        time_ns = record.snapshot.time_ns
        if labels != self._labels:
            lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in labels.items()]
            table = text_pb(LABELS, "\n".join(("| label | value |", "|---|---|", *lines)))
            events.append(Event(wall_time=time_ns / 1e9, step=seconds_since(self._began_ns, time_ns), summary=table))
        values = {tag(key): value for key, value in measured(record).items()}
        events.append(_scalars(time_ns, seconds_since(self._began_ns, time_ns), values))
        self._write(self._file, events)
        self._labels = labels

    def _write(self, file: BinaryIO, events: Iterable[Any]) -> None:
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
        size = file.tell()
        try:
            write_all(file.fileno(), content)
        except OSError:
            try:
                os.ftruncate(file.fileno(), size)
                file.seek(size)
            except OSError:  # then the next record begins another file
                self.close()
            raise

    def flush(self) -> None:
        """Return at once: every event is with the operating system when its export ends."""

    def close(self) -> None:
        """Close the file. The next ``open`` begins another, which TensorBoard shows as the same run."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _scalars(time_ns: int, step: int, values: Mapping[str, int | float]) -> Any:
    """Make the event of scalars by their tags."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    found = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
    return Event(wall_time=time_ns / 1e9, step=step, summary=Summary(value=found))


def _cell(text: str) -> str:
    """Write a value as it stands in a Markdown table."""
    return utf8(text).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


@lru_cache(maxsize=16384)
def tag(key: str) -> str:
    """Turn a key into a tag: the device, or what else has a number, before the slash at which TensorBoard groups."""
    key = utf8(key)
    if found := _OF_DEVICE.fullmatch(key):
        return f"{found[1]}/{found[2]}"
    head, _, rest = key.partition(".")
    return f"{head}/{rest}" if head == "monitor" else f"{HOST}/{key}"
