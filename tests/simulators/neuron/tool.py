"""The tool on ``PATH``, scripted while it runs."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.simulators.neuron.reports import report

COMMAND = Path(__file__).with_name("command.py")


class NeuronMonitorStandIn:
    """The command in a directory of its own, idle on a machine of one chip with two cores until told otherwise."""

    def __init__(self, parent: Path) -> None:
        self.directory = parent / "neuron-bin"
        self.directory.mkdir()
        self.command = self.directory / "neuron-monitor"
        self.command.write_text(f"#!{sys.executable} -IS\n" + COMMAND.read_text("utf-8"), "utf-8")
        self.command.chmod(0o755)
        self._told: dict[str, Any] = {
            "report": report(), "mode": "", "status": 1, "errors": "", "delay": 0.0, "padding": 0, "children": False, "stubborn": False
        }  # fmt: skip
        self.tell()

    @property
    def path(self) -> str:
        """For ``PATH``."""
        return str(self.directory)

    def tell(self, **what: Any) -> None:
        """Change what it does, from its next line on; in one step, since it may be reading."""
        self._told.update(what)
        fresh = self.directory / "behaviour.new"
        fresh.write_text(json.dumps(self._told), "utf-8")
        fresh.replace(self.directory / "behaviour.json")

    def _log(self) -> list[dict[str, Any]]:
        log = self.directory / "starts.jsonl"
        return [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []

    @property
    def starts(self) -> list[dict[str, Any]]:
        """How it was started, each time."""
        return [entry for entry in self._log() if "flags" in entry]

    @property
    def children(self) -> list[int]:
        """The processes that it left behind."""
        return [entry["child"] for entry in self._log() if "child" in entry]
