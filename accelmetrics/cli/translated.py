"""A snapshot under another monitor's names: the flat dict, in every format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from accelmetrics.cli.layout import GAP, aligned
from accelmetrics.cli.spreadsheet import Csv
from accelmetrics.cli.units import number
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot

if TYPE_CHECKING:
    from accelmetrics.cli.formats import Format
    from accelmetrics.dialects.contract import Dialect


def translated(dialect: Dialect, form: str, repeated: bool, path: str, width: int, indent: int | None) -> Format:
    """The format of this name for what a dialect says.

    Args:
        dialect: Whose names.
        form: ``table``, ``json``, ``jsonl`` or ``csv``.
        repeated: Whether more readings follow.
        path: The file that is added to; empty for none.
        width: Columns of the terminal.
        indent: Of JSON, for people; None puts it on one line.

    Raises:
        WriteError: The file is there, and is something else.
    """
    if form == "csv":
        return DeviceRows(dialect) if dialect.tabular else Columns(dialect, repeated, path)
    return Names(dialect, width) if form == "table" else Flat(dialect, indent)


class Flat:
    """One JSON object: names and numbers."""

    def __init__(self, dialect: Dialect, indent: int | None) -> None:
        self._dialect = dialect
        self._indent = indent

    def render(self, snapshot: Snapshot) -> str:
        """One object and a line feed."""
        return json.dumps(self._dialect.flat(Record(snapshot)), indent=self._indent, allow_nan=False) + "\n"


class Names:
    """For people: a name and its value a line, below whose names they are. Tables after the first stand below an empty line."""

    def __init__(self, dialect: Dialect, width: int) -> None:
        self._dialect = dialect
        self._width = width
        self._gap = ""

    def render(self, snapshot: Snapshot) -> str:
        """One table."""
        found = self._dialect.flat(Record(snapshot))
        rows = [(name, number(value)) for name, value in found.items()]
        lines = aligned(rows, " " * GAP, numeric=True) if rows else [f"{' ' * GAP}Nothing that {self._dialect.name} has a name for."]
        gap, self._gap = self._gap, "\n"
        return gap + "\n".join([f"{snapshot.hostname}  {snapshot.timestamp}", "", self._dialect.summary, *lines]) + "\n"


class Columns:
    """A row a reading and a column a name, as for our own keys."""

    def __init__(self, dialect: Dialect, repeated: bool, path: str) -> None:
        self._dialect = dialect
        self._csv = Csv(repeated, path)

    def render(self, snapshot: Snapshot) -> str:
        """A row, below the header if it is the first."""
        found = self._dialect.flat(Record(snapshot))
        return self._csv.render(Snapshot(snapshot.time_ns, snapshot.hostname, found))


class DeviceRows:
    """A row a device, as the dialect's own tool prints them: values behind a comma and a space."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._headed = False

    def render(self, snapshot: Snapshot) -> str:
        """The devices' rows, below the header if they are the first."""
        rows = self._dialect.rows(Record(snapshot))
        lines = [] if self._headed or not rows else [", ".join(rows[0])]
        self._headed = self._headed or bool(rows)
        return "".join(f"{line}\n" for line in (*lines, *(", ".join(row.values()) for row in rows)))
