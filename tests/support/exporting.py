"""Exporters, opened and closed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accelmetrics.exporters.registry import create
from accelmetrics.schemas.record import Exporter, Record


@contextmanager
def exporting(exporter: Exporter | str) -> Iterator[Any]:
    """An exporter, or the one that a string names, open while the block runs."""
    made = create(exporter)
    made.open()
    try:
        yield made
    finally:
        made.close()


def export(exporter: Exporter | str, *records: Record) -> None:
    """Give these records to an exporter, from its opening to its end."""
    with exporting(exporter) as made:
        for record in records:
            made.export(record)
        made.flush()
