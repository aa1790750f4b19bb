"""The messages of commands that run for long: lines for people, or JSON with the labels of every record for machines."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from accelmetrics.cli.output import say
from accelmetrics.cli.parsing import PROGRAM
from accelmetrics.schemas.snapshot import rfc3339


class _Said(logging.Handler):
    """Writes messages to standard error; one that cannot be written is nobody's loss."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one."""
        say(self.format(record))


class JsonFormatter(logging.Formatter):
    """An object a line: ``timestamp``, ``level``, ``message``, ``logger``, and the labels.

    Args:
        labels: What every record of the monitor carries too.
    """

    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__()
        self._labels = dict(labels)

    def format(self, record: logging.LogRecord) -> str:
        """One message."""
        said = {
            "timestamp": rfc3339(int(record.created * 1e9)),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            "logger": record.name,
            "labels": self._labels,
        }
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        return json.dumps(said)


def set_up(form: str, labels: Mapping[str, str]) -> None:
    """Have messages of this package written, from warnings up; JSON has those that tell how it goes too.

    Args:
        form: ``text`` or ``json``.
        labels: Of the monitor.
    """
    handler = _Said()
    handler.setFormatter(JsonFormatter(labels) if form == "json" else logging.Formatter(f"{PROGRAM}: %(message)s"))
    log = logging.getLogger("accelmetrics")
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO if form == "json" else logging.WARNING)
    log.propagate = False
