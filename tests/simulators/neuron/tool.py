"""The tool on ``PATH``, scripted while it runs."""

from pathlib import Path
from typing import Any

from tests.simulators.commands import ScriptedCommand
from tests.simulators.neuron.reports import report

COMMAND = Path(__file__).with_name("command.py")


class NeuronMonitorStandIn(ScriptedCommand):
    """The command in a directory of its own, idle on a machine of one chip with two cores until told otherwise."""

    def __init__(self, parent: Path) -> None:
        super().__init__(parent, COMMAND.read_text("utf-8"), "neuron-monitor")
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
        self.scripted(self._told)

    @property
    def starts(self) -> list[dict[str, Any]]:
        """How it was started, each time."""
        return [entry for entry in self.noted() if "flags" in entry]

    @property
    def children(self) -> list[int]:
        """The processes that it left behind."""
        return [entry["child"] for entry in self.noted() if "child" in entry]
