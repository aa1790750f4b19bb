"""A CSV file with a row per record, for spreadsheets and data frames. ``dump --format csv`` uses the same layout.

The columns are ``timestamp``, the metrics by key, logged numbers (``step``, ``loss``) and ``label.<name>``. A missing value is an empty
field. The first record fixes the columns: its own values, and values that are only temporarily missing. If a later record has a value
without a column, the file is closed and a new one with that column begins.
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


class CsvExporter(FileExporter):
    """Writes each record as a row of a CSV file."""

    name = "csv"
    beginning: ClassVar[bytes] = TIME.encode()
    json_lines = False
    _head = b""
    _in_file: tuple[str, ...] = ()
    _columns: tuple[str, ...] = ()

    def lines(self, record: Record, head: bytes, fresh: bool) -> bytes | None:
        del fresh  # the file's first line already says which columns it has
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
        # The template is kept with the header: while only numbers change, a row costs one substitution.
        name = "csv", begin or head, *logged, *labels.items()
        template = snapshot.header.kept(name, lambda: (_template([TIME, *map(_plain, keys), *logged], labels, columns),))[0]
        if template is None:
            return None
        return begin + template.fill([*map(str, (snapshot.timestamp, *snapshot.numbers, *logged.values()))]).encode()


def _template(numbered: Sequence[str], labels: Mapping[str, str], columns: Sequence[str]) -> NumberTemplate | None:
    """Return the text of a row without its numbers; None if a value has no column in the file.

    Args:
        numbered: Columns of the time and the numbers. The last of several with the same name is used.
        labels: Label texts by column. A label takes precedence over a number with the same column.
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
    """Return the numbers logged since the last record by column. Of several values of a name, the latest is used."""
    cells: dict[str, int | float] = {}
    metrics = record.snapshot.metrics
    for step in record.own_steps:
        if step.step is not None:
            cells["step"] = step.step
        for name, value in step.values.items():
            # A prefix keeps a logged name from sharing a column with a metric, a label or the time.
            is_used = name in (TIME, "step") or name.startswith((LABEL, LOGGED)) or name in metrics or resolve(name) is not None
            cells[_plain(LOGGED + name if is_used else name)] = value
    return cells


def columns_of(snapshot: Snapshot) -> list[str]:
    """Return a column for each key that has a value or may get one later."""
    # A metric that the device does not support never gets a value, so it needs no column.
    keys = *snapshot.metrics, *(key for key, why in snapshot.unavailable.items() if why.reason != Reason.NOT_SUPPORTED)
    return [_plain(key) for key in dict.fromkeys(keys)]


def columns_in(head: bytes) -> tuple[str, ...]:
    """Return the columns in a file's first line."""
    return tuple(next(csv.reader([head.decode("utf-8", "replace")])))


def csv_text(rows: Iterable[Iterable[object]]) -> bytes:
    """Format rows as lines of CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _plain(text: str) -> str:
    """Return the text with line breaks escaped and characters that UTF-8 cannot encode replaced."""
    return text if text.isprintable() else utf8(text.replace("\n", "\\n").replace("\r", "\\r").replace("\0", "\\0"))
