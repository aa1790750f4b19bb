"""A stand-in for libtpu's SDK: a package named ``libtpu`` that only one Python of a test can import.

That Python is a script which runs the real one with the package on its path; ``sys.executable`` is set to it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

MODULE = """
import json, os, signal, sys, time
from pathlib import Path

STATE = json.loads(Path(__file__).with_name("state.json").read_text())
with open(Path(__file__).with_name("calls"), "a") as log:
    log.write(f"{os.getpid()}\\n")
print("libtpu says hello on standard output")
if STATE["mode"] == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
if STATE["mode"] == "hang":
    time.sleep(60)
if STATE["mode"] == "exit":
    os._exit(3)

class Metric:
    def __init__(self, description, data):
        self._description, self._data = description, data
    def description(self):
        return self._description
    def data(self):
        if self._data == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        return self._data

class tpumonitoring:
    @staticmethod
    def get_metric(name):
        if name not in STATE["metrics"]:
            raise RuntimeError(f"unknown metric {name}")
        return Metric(*STATE["metrics"][name])
"""


class LibtpuStandIn:
    """The package, and the Python that can import it.

    Args:
        directory: Where to put them.
    """

    def __init__(self, directory: Path) -> None:
        self.package = directory / "site" / "libtpu"
        (self.package / "sdk").mkdir(parents=True)
        (self.package / "__init__.py").write_text("", encoding="utf-8")
        (self.package / "sdk" / "__init__.py").write_text(MODULE, encoding="utf-8")
        self.python = directory / "python-with-libtpu"
        self.python.write_text(f'#!/bin/sh\nPYTHONPATH={directory / "site"} exec {sys.executable} "$@"\n', encoding="utf-8")
        self.python.chmod(0o755)
        self._metrics: dict[str, tuple[str, Sequence[str] | str]] = {}
        self.behave()

    def metric(self, name: str, data: Sequence[str], description: str = "") -> None:
        """Set a metric's strings."""
        self._metrics[name] = (description, data)
        self.behave()

    def crash_at(self, name: str) -> None:
        """End the process by a signal when this metric is asked for."""
        self._metrics[name] = ("", "crash")
        self.behave()

    def behave(self, mode: str = "normal") -> None:
        """``normal``; or ``crash``, ``hang`` or ``exit`` while the SDK is being loaded."""
        state: Mapping[str, object] = {"mode": mode, "metrics": self._metrics}
        draft = self.package / "draft"
        draft.write_text(json.dumps(state), encoding="utf-8")
        os.replace(draft, self.package / "sdk" / "state.json")  # noqa: PTH105  one call: a reader sees the old or the new

    @property
    def calls(self) -> list[int]:
        """Process ids in which it was loaded."""
        log = self.package / "sdk" / "calls"
        return [int(line) for line in log.read_text(encoding="utf-8").split()] if log.exists() else []
