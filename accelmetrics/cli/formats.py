"""A snapshot as text: JSON here, a table and CSV in files of their own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from accelmetrics.schemas.snapshot import Snapshot


class Format(Protocol):
    """Turns snapshots into text."""

    def render(self, snapshot: Snapshot) -> str:
        """One snapshot as whole lines."""
        ...


class Json:
    """A document, or the flat dict alone.

    Args:
        flat: The flat dict alone.
        indent: For people; None puts it on one line.
    """

    def __init__(self, flat: bool, indent: int | None) -> None:
        self._flat = flat
        self._indent = indent

    def render(self, snapshot: Snapshot) -> str:
        """One document and a line feed."""
        if self._flat:
            return json.dumps(snapshot.metrics, indent=self._indent, allow_nan=False) + "\n"
        return snapshot.to_json(self._indent) + "\n"


class Table:
    """For people; tables after the first stand below an empty line.

    Args:
        width: Columns of the terminal.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._gap = ""

    def render(self, snapshot: Snapshot) -> str:
        """One table."""
        from accelmetrics.cli.table import render

        gap, self._gap = self._gap, "\n"
        return gap + render(snapshot, self._width)
