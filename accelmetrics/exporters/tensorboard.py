"""TensorBoard: event files of scalars."""

from __future__ import annotations

import itertools
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any, BinaryIO

from accelmetrics.exporters.fields import measured, seconds_since, step_number, utf8
from accelmetrics.exporters.files import same_file, write_all
from accelmetrics.exporters.paths import folder_for_files, make_folder
from accelmetrics.schemas.errors import require
from accelmetrics.schemas.metric import PARTITION
from accelmetrics.schemas.recent import most_recent
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.selection import STANDARD, MetricChoice, MetricSelection

LABELS = "accelmetrics/labels"
"""The tag of the text that lists the labels."""
HOST = "host"
"""The group of what belongs to no device."""

_FLOAT = 4
"""Bytes of a scalar's value."""
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
        self._scalars = Scalars()

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
            self._write(self._file, [Event(wall_time=now, file_version="brain.Event:2").SerializeToString()])
        except OSError:  # the next attempt begins another
            self.close()
            self._path.unlink(missing_ok=True)
            raise

    def export(self, record: Record) -> None:
        """Write one record: all of it, or nothing. A file that was moved or removed is begun anew.

        Raises:
            OSError: The disk is full, or gone.
        """
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
            events.append(_event(step.time_ns, step_number(step, self._began_ns)) + scalars(values))
        time_ns = record.snapshot.time_ns
        if labels != self._labels:
            events.append(self._text(time_ns, labels))
        events.append(_event(time_ns, seconds_since(self._began_ns, time_ns)) + self._scalars.of(measured(record)))
        self._write(self._file, events)
        self._labels = labels

    def _text(self, time_ns: int, labels: Mapping[str, str]) -> bytes:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.text.summary_v2 import text_pb

        lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in labels.items()]
        table = "\n".join(("| label | value |", "|---|---|", *lines))
        summary: bytes = Event(summary=text_pb(LABELS, table)).SerializeToString()
        return _event(time_ns, seconds_since(self._began_ns, time_ns)) + summary

    def _write(self, file: BinaryIO, events: Iterable[bytes]) -> None:
        """Append whole events. What a full disk cut short is taken back, since nothing behind it could be read."""
        content = framed(events, compiled_crc32c())
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


class Scalars:
    """Serialises the scalars of an event: what protobuf makes of the tags is kept while the keys stay, and values are put into it."""

    def __init__(self) -> None:
        self._tags: _Tags | None = None
        self._kept: list[_Tags] = []

    def of(self, values: Mapping[str, int | float]) -> bytes:
        """Return what :func:`scalars` gives of the values under their tags."""
        keys = list(values)
        tags = self._tags
        if tags is None or keys != tags.keys:
            tags = self._tags = most_recent(self._kept, lambda one: one.keys == keys, lambda: _Tags(keys))
        try:
            return tags.serialised(values)
        except (OverflowError, struct.error):  # beyond what 32 bits hold, which protobuf makes infinite
            return scalars({tag(key): value for key, value in values.items()})


class _Tags:
    """What scalars with the same keys have in common: protobuf writes zeros, and what stands before each is kept.

    Attributes:
        keys: The keys.
    """

    def __init__(self, keys: list[str]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        read = {tag(key): key for key in keys}
        ones = [Summary(value=[Summary.Value(tag=name, simple_value=0.0)]).SerializeToString()[:-_FLOAT] for name in read]
        whole = scalars(dict.fromkeys(read, 0.0))
        self._head = whole[: len(whole) - sum(len(one) + _FLOAT for one in ones)]
        self._layout = struct.Struct("<" + "".join(f"{len(one)}sf" for one in ones))
        self._parts: list[Any] = [part for one in ones for part in (one, 0.0)]
        self.keys, self._read = keys, list(read.values())

    def serialised(self, values: Mapping[str, int | float]) -> bytes:
        """Return the scalars with these values.

        Raises:
            OverflowError, struct.error: One is beyond what 32 bits hold.
        """
        self._parts[1::2] = [values[key] for key in self._read]
        return self._head + self._layout.pack(*self._parts)


def scalars(values: Mapping[str, int | float]) -> bytes:
    """Serialise the scalars of an event by their tags."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    found = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
    return bytes(Event(summary=Summary(value=found)).SerializeToString())


def _event(time_ns: int, step: int) -> bytes:
    """Serialise what comes before the scalars, or the text, of an event: protobuf's messages are their fields one after the other."""
    from tensorboard.compat.proto.event_pb2 import Event

    return bytes(Event(wall_time=time_ns / 1e9, step=step).SerializeToString())


@lru_cache(maxsize=1)
def compiled_crc32c() -> Callable[[bytes], int] | None:
    """Return CRC-32C as google-crc32c compiles it; None where that is not installed, or has no compiled part for this platform."""
    try:
        import google_crc32c
    except ImportError:
        return None
    compiled: Callable[[bytes], int] = google_crc32c.value
    return compiled if google_crc32c.implementation == "c" else None


def framed(events: Iterable[bytes], crc32c: Callable[[bytes], int] | None) -> memoryview:
    """Return events as they stand in a file, each with its length and checksums.

    Args:
        events: The events, serialised.
        crc32c: What makes checksums; None for what tensorboard has in Python, with which 25 KB take two milliseconds.
    """
    room = BytesIO()
    if crc32c is None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        writer = RecordWriter(room)
        for event in events:
            writer.write(event)
        return room.getbuffer()
    for event in events:
        length = struct.pack("<Q", len(event))
        room.writelines((length, _masked(crc32c(length)), event, _masked(crc32c(event))))
    return room.getbuffer()


def _masked(crc: int) -> bytes:
    """Return a checksum as such files have it: turned by 15 bits, plus a constant."""
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


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
