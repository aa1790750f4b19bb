"""A tracker for the tests, as a child runs it: what it is told to do, it does."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any


class Session:
    """See :class:`accelmetrics.exporters.tracker_child.Session`."""

    failures: tuple[type[Exception], ...] = (ValueError,)
    ending: tuple[type[Exception], ...] = (ConnectionError,)

    def __init__(self) -> None:
        self.mark = ""

    def passing(self, error: Exception) -> bool:
        return "later" in str(error)

    def open(self, mark: str) -> dict[str, Any]:
        """Names a file that is made at the end, and tells what the process is like."""
        if mark == "away":
            raise ValueError("away until later")
        self.mark = mark
        return {"pid": os.getpid(), "home": os.environ.get("HOME"), "extra": os.environ.get("EXTRA"), "terminal": sys.stdin.isatty()}

    def log(self, what: str) -> dict[str, Any]:
        """Fails, hangs, or answers at length."""
        print("noise", what, flush=True)
        if what == "hang":
            time.sleep(60)
        if what == "bug":
            raise KeyError("nobody foresaw this")
        if what == "disk":
            raise OSError(28, "No space left on device")
        if what == "lost":
            raise ConnectionResetError("Connection lost")
        if what.startswith("refuse"):
            raise ValueError(what)
        return {"said": what * 200_000}

    def close(self) -> dict[str, Any]:
        Path(self.mark).touch()
        return {}
