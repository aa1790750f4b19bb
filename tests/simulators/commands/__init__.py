"""Stand-ins for vendors' commands, as real ones on ``PATH``.

stand_in = CommandStandIn(tmp_path, "rbln-smi")         # prints what a test says
monkeypatch.setenv("PATH", stand_in.path)
stand_in.behave('{"devices": []}', status=1)            # switchable while the program runs
stand_in.calls                                          # how it was called
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class ScriptedCommand:
    """A Python program as a command in a directory of its own, which looks at each run into a file for what to do.

    Args:
        directory: Where to put that directory.
        script: The program, which uses nothing but the standard library.
        names: What the command is called; a script with several names looks which of them it has.
    """

    def __init__(self, directory: Path, script: str, *names: str) -> None:
        self.directory = directory / f"{names[0]}-bin"
        self.directory.mkdir()
        self.command = self.directory / names[0]
        for name in names:
            (self.directory / name).write_text(f"#!{sys.executable} -IS\n{script}", encoding="utf-8")
            (self.directory / name).chmod(0o755)

    @property
    def path(self) -> str:
        """A ``PATH`` that has it first."""
        return f"{self.directory}:{os.environ.get('PATH', '')}"

    def scripted(self, said: object, file: str = "behaviour.json") -> None:
        """Replace what the file says, in one step: whoever reads it sees the old or the new."""
        draft = self.directory / "behaviour.draft"
        draft.write_text(json.dumps(said), encoding="utf-8")
        draft.replace(self.directory / file)

    def noted(self, file: str = "calls.jsonl") -> list[Any]:
        """What the command has noted, a line a time."""
        log = self.directory / file
        return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []


class CommandStandIn(ScriptedCommand):
    """The command in a directory of its own.

    Args:
        directory: Where to put it.
        name: What it is called.
    """

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(directory, (HERE / "command.py").read_text(encoding="utf-8"), name)
        self._behaviours: dict[str, dict[str, object]] = {}
        self.behave("")

    def behave(self, stdout: str, *, stderr: str = "", status: int = 0, hang: bool = False, asked: str = "") -> None:
        """Change what it does from its next run on: where its first argument, or all of them, are ``asked``, or with
        arguments that have no behaviour."""
        self._behaviours[asked] = {"stdout": stdout, "stderr": stderr, "status": status, "hang": hang}
        self.scripted(self._behaviours)

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of every run so far."""
        return self.noted()
