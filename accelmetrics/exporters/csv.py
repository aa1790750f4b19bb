"""A file with a record a row, for spreadsheets and data frames; and the layout of rows, which ``dump --format csv`` has too.

A row has ``timestamp``, the metrics under their keys, what the program logged (``step``, ``loss``) and ``label.<name>``. A
value that is missing leaves its field empty. The first record fixes the columns: its own, and those of values that are
missing only for now. When a value comes that has none, the file is closed and another one begun that has its column too.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import ClassVar

from accelmetrics.exporters.fields import utf8
from accelmetrics.exporters.files import FileExporter
from accelmetrics.schemas.catalogue import resolve
from accelmetrics.schemas.errors import DocumentError, Reason
from accelmetrics.schemas.reading import NumberTemplate
from accelmetrics.schemas.record import LOGGED, Record
from accelmetrics.schemas.snapshot import Snapshot

TIME = "timestamp"
LABEL = "label."

_ONE_LINE = str.maketrans({"\n": "\\n", "\r": "\\r", "\0": "\\0"})


class CsvExporter(FileExporter):
    """Writes each record as a row."""

    name = "csv"
    beginning: ClassVar[bytes] = TIME.encode()
    json_lines = False
    _head = b""
    _in_file: tuple[str, ...] = ()
    _columns: tuple[str, ...] = ()

    def lines(self, record: Record, head: bytes, fresh: bool) -> bytes | None:
        del fresh  # what is in the file is known from its head
        snapshot, logged = record.snapshot, _logged(record)
        keys = snapshot.header.keys
        for key, number in zip(keys, snapshot.numbers, strict=True):
            if isinstance(number, float) and not isfinite(number):
                raise DocumentError(f"the record cannot be written as a row: {key} = {number} is not finite")
        labels = {_plain(LABEL + name): _plain(value) for name, value in record.labels.items()}
        if head and head != self._head:
            self._head, self._in_file = head, columns_in(head)
            self._columns = tuple(dict.fromkeys((*self._in_file, *self._columns)))
        columns, begin = self._in_file, b""
        if not head:
            columns = tuple(dict.fromkeys((*self._columns, TIME, *columns_of(snapshot), *logged, *labels)))
            begin = csv_text([columns])
        name = "csv", begin or head, *logged, *labels.items()
        template = snapshot.header.kept(name, lambda: (_template([TIME, *map(_plain, keys), *logged], labels, columns),))[0]
        if template is None:
            return None
        return begin + template.fill([*map(str, (snapshot.timestamp, *snapshot.numbers, *logged.values()))]).encode()


def _template(numbered: Sequence[str], labels: Mapping[str, str], columns: Sequence[str]) -> NumberTemplate | None:
    """Make the text of a row but for its numbers; None where something has no column.

    Args:
        numbered: The columns of the time and the numbers; of two with one name the last counts.
        labels: The labels by their columns, which go before numbers.
        columns: The file's columns.
    """
    places = {column: place for place, column in enumerate(numbered)}
    texts = {column: csv_text([["", text]]).decode()[1:-1] for column, text in labels.items()}
    cells: dict[str, str | int] = {**places, **texts}
    if not cells.keys() <= set(columns):
        return None
    parts = [part for column in columns for part in (",", cells.get(column, ""))]
    return NumberTemplate([*parts[1:], "\n"])


def _logged(record: Record) -> dict[str, int | float]:
    """Return what the program logged by its columns: of numbers that were logged several times since the last record the latest."""
    cells: dict[str, int | float] = {}
    metrics = record.snapshot.metrics
    for step in record.own_steps:
        if step.step is not None:
            cells["step"] = step.step
        for name, value in step.values.items():
            taken = name in (TIME, "step") or name.startswith((LABEL, LOGGED)) or name in metrics or resolve(name) is not None
            cells[_plain(LOGGED + name if taken else name)] = value
    return cells


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
