"""A stand-in for any vendor's command, as a real one on ``PATH``: prints what a test says.

stand_in = CommandStandIn(tmp_path, "rbln-smi")
monkeypatch.setenv("PATH", stand_in.path)
stand_in.behave('{"devices": []}', status=1)            # switchable while the program runs
stand_in.calls                                          # how it was called
"""

import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent


class CommandStandIn:
    """The command in a directory of its own.

    Args:
        directory: Where to put it.
        name: What it is called.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory / f"{name}-bin"
        self.directory.mkdir()
        command = self.directory / name
        command.write_text(f"#!{sys.executable} -IS\n{(HERE / 'command.py').read_text(encoding='utf-8')}", encoding="utf-8")
        command.chmod(0o755)
        self._behaviours: dict[str, dict[str, object]] = {}
        self.behave("")

    @property
    def path(self) -> str:
        """A ``PATH`` that has it first."""
        return f"{self.directory}:{os.environ.get('PATH', '')}"

    def behave(self, stdout: str, *, stderr: str = "", status: int = 0, hang: bool = False, asked: str = "") -> None:
        """Change what it does from its next run on: where its first argument, or all of them, are ``asked``, or with
        arguments that have no behaviour."""
        self._behaviours[asked] = {"stdout": stdout, "stderr": stderr, "status": status, "hang": hang}
        draft = self.directory / "behaviour.draft"
        draft.write_text(json.dumps(self._behaviours), encoding="utf-8")
        os.replace(draft, self.directory / "behaviour.json")  # noqa: PTH105  one call: a reader sees the old or the new

    @property
    def calls(self) -> list[list[str]]:
        """The arguments of every run so far."""
        log = self.directory / "calls.jsonl"
        return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
