"""What is expensive to make and is made once per test run, though several processes (pytest-xdist's workers) run the tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.locking import locked

_FINISHED = ".finished"


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder of this name, the same one in every worker of this test run.

    The first caller makes it and has it filled; the others wait until it is full. A `make` that raises (a skip, for one) leaves
    nothing: the next caller tries again.
    """
    base = factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    folder = shared / f"once-{name}"
    with locked(shared / f"once-{name}.lock"):
        if not (folder / _FINISHED).exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / _FINISHED).touch()
    return folder
