"""A file with a record a row, for spreadsheets and data frames; and the layout of rows, which ``dump --format csv`` has too.

A row has ``timestamp``, the metrics under their keys, what the program logged (``step``, ``loss``) and ``label.<name>``. A
value that is missing leaves its field empty. The first record fixes the columns: its own, and those of values that are
missing only for now. When a value comes that has none, the file is closed and another one begun that has its column too.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from functools import cached_property
from math import isfinite
from typing import ClassVar

from accelmetrics.exporters.fields import utf8
from accelmetrics.exporters.files import FileExporter
from accelmetrics.schemas.catalogue import resolve
from accelmetrics.schemas.errors import DocumentError, Reason
from accelmetrics.schemas.lines import are_finite
from accelmetrics.schemas.recent import most_recent
from accelmetrics.schemas.record import LOGGED, Record
from accelmetrics.schemas.snapshot import Snapshot

TIME = "timestamp"
LABEL = "label."

_ONE_LINE = str.maketrans({"\n": "\\n", "\r": "\\r", "\0": "\\0"})

Cells = dict[str, int | float | str]


class CsvExporter(FileExporter):
    """Writes each record as a row."""

    name = "csv"
    beginning: ClassVar[bytes] = TIME.encode()
    _head = b""
    _in_file: tuple[str, ...] = ()
    _columns: tuple[str, ...] = ()
    _row: _RowText | None = None

    @cached_property
    def _kept(self) -> list[_RowText]:
        return []

    def lines(self, record: Record, head: bytes, fresh: bool) -> bytes | None:
        del fresh  # what is in the file is known from its head
        if head and head == self._head:
            logged, metrics = _logged(record), record.snapshot.metrics
            made_for = head, list(metrics), list(logged), dict(record.labels)
            if self._row is None or self._row.made_for != made_for:
                self._row = most_recent(self._kept, lambda one: one.made_for == made_for, lambda: _RowText(made_for, self._in_file))
            if (text := self._row.text([record.snapshot.timestamp, *metrics.values(), *logged.values()])) is not None:
                return text
        cells = row(record)
        if not head:
            columns = tuple(dict.fromkeys((*self._columns, TIME, *columns_of(record.snapshot), *cells)))
            return csv_text([columns, [cells.get(column, "") for column in columns]])
        if head != self._head:
            self._head, self._in_file = head, columns_in(head)
            self._columns = tuple(dict.fromkeys((*self._in_file, *self._columns)))
        if not cells.keys() <= set(self._in_file):
            return None
        return csv_text([[cells.get(column, "") for column in self._in_file]])

    def complete(self, tail: bytes) -> bool:
        del tail  # what is left of 12.5 may be 12
        return False


class _RowText:
    """The text of a row but for its numbers, kept while the file and the names of what is in a record stay.

    Args:
        made_for: The file's first line, the metrics' keys, the columns of what the program logged, the labels.
        columns: Of the file.
    """

    def __init__(self, made_for: tuple[bytes, list[str], list[str], dict[str, str]], columns: tuple[str, ...]) -> None:
        self.made_for = made_for
        _, keys, logged, labels = made_for
        places = {column: place for place, column in enumerate((TIME, *map(_plain, keys), *logged))}
        texts = {column: csv_text([["", text]]).decode()[1:-1] for column, text in _labels(labels).items()}
        fields = (texts[column].replace("%", "%%") if column in texts else "%s" if column in places else "" for column in columns)
        self._template = ",".join(fields) + "\n"
        self._read = [places[column] for column in columns if column in places and column not in texts]
        self._whole = {*places, *texts} <= set(columns)

    def text(self, values: list[int | float | str]) -> bytes | None:
        """Return the row; None where it is to be made field by field: a number is none that every record has, or there is no column."""
        metrics = values[1 : 1 + len(self.made_for[1])]
        try:
            if not (self._whole and are_finite(metrics)):
                return None
        except OverflowError:
            return None
        return (self._template % tuple(map(values.__getitem__, self._read))).encode()


def row(record: Record) -> Cells:
    """Return the fields of a record that have something in them, by column.

    Of numbers that were logged several times since the last record these are the latest.

    Raises:
        DocumentError: A metric is not finite.
    """
    metrics = record.snapshot.metrics
    cells: Cells = {TIME: record.snapshot.timestamp}
    cells.update((_plain(key), value) for key, value in metrics.items())
    wrong = [name for name, value in metrics.items() if isinstance(value, float) and not isfinite(value)]
    if wrong:
        raise DocumentError(f"the record cannot be written as a row: {wrong[0]} = {metrics[wrong[0]]} is not finite")
    return {**cells, **_logged(record), **_labels(record.labels)}


def _logged(record: Record) -> Cells:
    cells: Cells = {}
    metrics = record.snapshot.metrics
    for step in record.own_steps:
        if step.step is not None:
            cells["step"] = step.step
        for name, value in step.values.items():
            taken = name in (TIME, "step") or name.startswith((LABEL, LOGGED)) or name in metrics or resolve(name) is not None
            cells[_plain(LOGGED + name if taken else name)] = value
    return cells


def _labels(labels: Mapping[str, str]) -> dict[str, str]:
    return {_plain(LABEL + name): _plain(value) for name, value in labels.items()}


def columns_of(snapshot: Snapshot) -> list[str]:
    """Return a column for each key that has a value, or may get one without anything being plugged in."""
    late = (key for key, why in snapshot.unavailable.items() if why.reason != Reason.NOT_SUPPORTED)
    return [_plain(key) for key in dict.fromkeys((*snapshot.metrics, *late))]


def columns_in(head: bytes) -> tuple[str, ...]:
    """Return the columns that a file's first line names."""
    return tuple(next(csv.reader([head.decode("utf-8", "replace")])))


def csv_text(rows: Iterable[Iterable[object]]) -> bytes:
    """Write rows as lines."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _plain(text: str) -> str:
    """Return text that stays on its line and can be written."""
    return text if text.isprintable() else utf8(text.translate(_ONE_LINE))
