"""Stand-ins for vendors' libraries whose answers stand in a file (``state.h``), which they read at every call."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.simulators.nvml._build import compiler


def compiled(source: Path, library: Path) -> Path:
    """Compile a library. Returns its path."""
    subprocess.run([compiler(), "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(source)], check=True)
    return library


class Answers:
    """What a library answers.

    Args:
        state: The file, which the library's variable names.
    """

    def __init__(self, state: Path) -> None:
        self.state = state
        self.answers()

    def answers(self, *lines: str) -> None:
        """Replace what it answers: ``power 0 120``, ``fail.<function> 0 <code>``; without lines it is as it was at first."""
        draft = self.state.with_suffix(".draft")
        draft.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        draft.replace(self.state)
