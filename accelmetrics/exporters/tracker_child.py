"""The child's side of :mod:`accelmetrics.exporters.tracker`: reads requests from a socket and answers each with one line."""

from __future__ import annotations

import importlib
import json
import socket
import sys
from types import TracebackType
from typing import Any, Protocol, cast


class Session(Protocol):
    """What a tracker's module implements: what may be asked of it, by name. Answers are plain dicts."""

    failures: tuple[type[Exception], ...]
    """What the tracker's library raises on purpose."""
    ending: tuple[type[Exception], ...]
    """What may pass by itself, but not in this process: it is killed, and another one begun."""

    def passing(self, error: Exception) -> bool:
        """Whether such a failure may pass by itself."""
        ...

    def open(self, **options: Any) -> dict[str, Any]:
        """Join or start a run."""
        ...

    def log(self, **record: Any) -> dict[str, Any]:
        """Log one record."""
        ...

    def close(self) -> dict[str, Any]:
        """End the run if this session began it. Called when nobody is left to ask for it, too."""
        ...


def main(descriptor: int, module: str) -> None:
    """Answer until the other end closes."""
    line = socket.socket(fileno=descriptor)  # not closed on the way out: the last words go through it
    line.setblocking(True)
    _report_failures(line)
    session = cast(Session, importlib.import_module(module).Session())
    with line.makefile("rb") as requests:
        for request in requests:
            action, arguments = json.loads(request)
            _send(line, _answer(session, action, arguments))
    session.close()


def _answer(session: Session, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return cast("dict[str, Any]", getattr(session, action)(**arguments))
    except session.ending as error:
        return {"error": _told(error), "passing": True, "ended": True}
    except session.failures as error:
        return {"error": _told(error), "passing": session.passing(error)}
    except OSError as error:
        return {"error": _told(error), "passing": True}


def _told(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _send(line: socket.socket, answer: dict[str, Any]) -> None:
    line.sendall(json.dumps(answer).encode() + b"\n")


def _report_failures(line: socket.socket) -> None:
    """What nobody foresaw is the last answer, instead of a traceback that nobody reads."""

    def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _send(line, {"error": f"{kind.__name__}: {error}", "passing": False, "ended": True})

    sys.excepthook = report
