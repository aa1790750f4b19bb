"""A C library with the functions of Ascend's ``libdcmi``; its values are those that ``tests.simulators.ascend`` prints."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.simulators.nvml._build import compiler

SOURCE = Path(__file__).parent / "dcmi.c"


def build(directory: Path) -> Path:
    """Compile the library."""
    library = directory / "libdcmi.so"
    subprocess.run([compiler(), "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(SOURCE)], check=True)
    return library


class Dcmi:
    """The library and its answers.

    Args:
        directory: Where both are put.
    """

    def __init__(self, directory: Path) -> None:
        self.path = build(directory)
        self.state = directory / "dcmi-state"
        self.answers()

    def answers(self, *lines: str) -> None:
        """Replace its answers: ``power 0 1200``, ``fail.dcmi_get_device_hbm_info 0 -8255``, ``v2 0 1``."""
        draft = self.state.with_suffix(".draft")
        draft.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        draft.replace(self.state)
