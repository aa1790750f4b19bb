"""The house rules find what they are for, and leave everything else alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_house import check

GOOD = """
import contextlib
from typing import TYPE_CHECKING
from accelmetrics import models
def late():
    from accelmetrics import uses_good
    with contextlib.suppress(OSError):
        uses_good.f()
"""
BROKEN = {
    "a global": ("accelmetrics/a.py", "def f():\n    global x\n    x = 1\n", "global x"),
    "two broad excepts": ("accelmetrics/a.py", "try: f()\nexcept: pass\ntry: f()\nexcept (OSError, Exception): pass\n", "broad except"),
    "a shell": ("tests/a.py", "import subprocess\nsubprocess.run('ls', shell=True)\n", "shell="),
    "a shell by another name": ("scripts/a.py", "import os\nos.system('ls')\n", "os.system"),
    "unfinished work": ("tests/a.py", "x = 1  # TODO: more\n", "finish it"),
    "a bound on a span of time": (
        "tests/a.py",
        "def test():\n    start = time.monotonic()\n    f()\n    took = time.monotonic() - start\n    assert took < 1\n",
        "wall-clock",
    ),
    "a bound on the time until now": (
        "tests/a.py",
        "def test():\n    start = monotonic()\n    assert 5 > monotonic() - start\n",
        "wall-clock",
    ),
    "a deadline": ("tests/a.py", "def test():\n    end = time.time() + 5\n    assert time.time() < end\n", "wall-clock"),
    "a sleep": ("tests/cli/a.py", "import time\ntime.sleep(1)\n", "time.sleep"),
    "a sleep by its own name": ("tests/cli/a.py", "from time import sleep\n", "time.sleep"),
}


TIMED = """
def test():
    before = time.time()
    f()
    assert before <= stamp <= time.time()
    start = time.monotonic()
    g()
    ours = time.monotonic() - start
    start = time.monotonic()
    h()
    theirs = time.monotonic() - start
    assert ours < 3 * theirs
    assert ours >= 0.1
    end = time.monotonic() + 0.1
    wait()
    assert time.monotonic() >= end
"""
"""Orders, a comparison with a control, and a least time."""


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize("name", BROKEN)
def test_a_rule_that_is_broken_is_told(name: str, tmp_path: Path) -> None:
    """With the file and what is wrong."""
    path, text, said = BROKEN[name]
    put(tmp_path, path, text)
    found = check(tmp_path)
    assert any(said in one.message and str(one.path) == path for one in found), found


@pytest.mark.parametrize(
    "files",
    [
        {"a": "from accelmetrics.b import B\n", "b": "if TYPE_CHECKING:\n    from accelmetrics import a\n"},
        {"a": "import accelmetrics.b\n", "b": "from .c import C\n", "c": "class C:\n    from . import a\n"},
        {"kit/__init__": "from accelmetrics.kit.a import A\n", "kit/a": "from accelmetrics import kit\n"},
    ],
    ids=["for typing", "of three", "with a package"],
)
def test_a_circle_of_imports_is_found(files: dict[str, str], tmp_path: Path) -> None:
    """Each import that is part of it."""
    for name, text in files.items():
        put(tmp_path, f"accelmetrics/{name}.py", text)
    found = check(tmp_path)
    assert sorted(str(one.path) for one in found) == sorted(f"accelmetrics/{name}.py" for name in files)
    assert all("circle" in one.message for one in found)


def test_a_symbolic_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "link").symlink_to("../elsewhere")
    assert [(str(finding.path), finding.message) for finding in check(tmp_path)] == [("deploy/link", "a symbolic link: keep a copy")]


def test_good_code_is_left_alone(tmp_path: Path) -> None:
    """Narrow suppression, one broad except, an import back inside a function, sleeping helpers, comparisons of times."""
    put(tmp_path, "accelmetrics/good.py", GOOD)
    put(tmp_path, "accelmetrics/guard.py", "try: f()\nexcept Exception: pass\n")
    put(tmp_path, "accelmetrics/models.py", "x = 1\n")
    put(tmp_path, "accelmetrics/uses_good.py", "from accelmetrics import good\n")
    put(tmp_path, "tests/support/waiting.py", "import time\ntime.sleep(1)\n")
    put(tmp_path, "tests/test_timed.py", TIMED)
    put(tmp_path, "build/a.py", "import os\nos.system('ls')\n")
    assert check(tmp_path) == []
