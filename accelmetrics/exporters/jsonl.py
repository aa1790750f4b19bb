"""A file with a record a line, as JSON: everything that a record holds, read back by ``schemas/recording.py``."""

from __future__ import annotations

import json
from typing import ClassVar

from accelmetrics.exporters.files import FileExporter
from accelmetrics.schemas.record import Record


class JsonlExporter(FileExporter):
    """Writes each record as a line: the document of ``dump --json``, with ``labels``, ``training`` and ``monitor`` beside it."""

    name = "jsonl"
    beginning: ClassVar[bytes] = b'{"schema_version"'

    def lines(self, record: Record, head: bytes) -> bytes:
        del head  # a line says by itself what is in it
        return record.to_json().encode("ascii") + b"\n"

    def complete(self, tail: bytes) -> bool:
        try:
            json.loads(tail)
        except (ValueError, RecursionError):
            return False
        return True
