"""The messages of commands that run for long: lines for people, or JSON with the labels of every record for machines."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from accelmetrics.cli.options import PROGRAM
from accelmetrics.cli.output import say
from accelmetrics.schemas.snapshot import rfc3339

if TYPE_CHECKING:
    from argparse import Namespace

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


def begin(options: Namespace) -> None:
    """Have messages written as the options ask for, before anything else of the command runs.

    The run's id is made here and put among the options' labels, so that what is said before there is a monitor, or because there is
    none, has the same one.

    Args:
        options: Of the command.
    """
    from accelmetrics.monitor.job import job_labels
    from accelmetrics.sampling.engine import hostname

    options.label = [("run_id", uuid.uuid4().hex[:12]), *(options.label or ())]
    set_up(options.log_format, {"hostname": hostname(), **job_labels(), **dict(options.label)})


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


def fail(program: str, text: str) -> None:
    """Tell why the command ends: people behind its name, programs as an error."""
    if _json():
        log.error("%s", text)
    else:
        say(f"{program}: {text}")


def announce(program: str, text: str, meaning: str, data: Mapping[str, Any]) -> None:
    """Tell something that everybody wants to know.

    Args:
        program: The command.
        text: What people are told, behind its name.
        meaning: What programs are told.
        data: What they find beside that.
    """
    if _json():
        tell(meaning, data)
    else:
        say(f"{program}: {text}")


def _json() -> bool:
    return any(isinstance(handler.formatter, JsonFormatter) for handler in log.handlers)


def tell(text: str, data: Mapping[str, Any]) -> None:
    """Tell programs that read JSON messages something; people are told it otherwise."""
    log.info("%s", text, extra={DATA: data})
