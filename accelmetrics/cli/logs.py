"""The messages of commands that run for long: lines for people, or JSON with the labels of every record for machines."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from accelmetrics.cli.output import say
from accelmetrics.cli.parsing import PROGRAM
from accelmetrics.schemas.snapshot import rfc3339

log = logging.getLogger("accelmetrics")
DATA = "accelmetrics_data"


class _Said(logging.Handler):
    """Writes messages to standard error; one that cannot be written is nobody's loss."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one."""
        say(self.format(record))


class JsonFormatter(logging.Formatter):
    """An object a line: ``timestamp``, ``level``, ``message``, ``logger``, and the labels.

    ``exception`` and ``data`` are there where a message has them.

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
        if hasattr(record, DATA):
            said["data"] = getattr(record, DATA)
        return json.dumps(said)


def set_up(form: str, labels: Mapping[str, str], handler: logging.Handler | None = None) -> None:
    """Have messages of this package written, from warnings up; JSON has those that tell how it goes too.

    Args:
        form: ``text`` or ``json``.
        labels: Of the monitor.
        handler: Where they go instead of to standard error.
    """
    handler = handler or _Said()
    handler.setFormatter(JsonFormatter(labels) if form == "json" else logging.Formatter(f"{PROGRAM}: %(message)s"))
    log.handlers[:] = [handler]
    log.setLevel(logging.INFO if form == "json" else logging.WARNING)
    log.propagate = False


def warn(text: str) -> None:
    """Tell the user what they should know while the command goes on, in the form that they asked for."""
    log.warning("%s", text)


def tell(text: str, data: Mapping[str, Any]) -> None:
    """Tell programs that read JSON messages something; people are told it otherwise."""
    log.info("%s", text, extra={DATA: data})
