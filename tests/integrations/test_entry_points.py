"""What frameworks find by entry points: each of their programs loads it, whether or not it asks for readings."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import HANG

toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).parents[2]
MOST = 4
"""Modules of this package that a program loads which asks for nothing."""
HEAVY = {"logging", "threading", "pydantic", "importlib.metadata", "subprocess", "json", "socket"}
TRACKING = """
class Tracking:
    supported_backend = ["console"]
    def __init__(self, project_name, experiment_name, default_backend="console", config=None): pass
    def log(self, data, step, backend=None): pass
    def finish(self): pass
"""


def frameworks() -> list[tuple[str, str]]:
    """The groups of other packages, and what stands in them."""
    groups = toml.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    return [(group, value) for group, points in groups.items() if not group.startswith("accelmetrics.") for value in points.values()]


@pytest.mark.parametrize(("group", "target"), frameworks())
def test_an_entry_point_loads_next_to_nothing_where_nothing_is_asked_for(group: str, target: str, tmp_path: Path) -> None:
    """Lightning calls what it finds, verl imports it and makes a Tracking; beside what the framework has loaded itself."""
    (tmp_path / "verl/utils").mkdir(parents=True)
    (tmp_path / "verl/__init__.py").touch()
    (tmp_path / "verl/utils/__init__.py").touch()
    (tmp_path / "verl/utils/tracking.py").write_text(TRACKING)
    module, _, name = target.partition(":")
    program = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import functools, os, typing, weakref, contextlib, importlib
from verl.utils.tracking import Tracking
before = set(sys.modules)
loaded = importlib.import_module({module!r})
if {name!r}:
    assert getattr(loaded, {name!r})() == []
tracking = Tracking("project", "run", ["console"], {{"trainer": {{"logger": ["console"]}}}})
tracking.log({{"loss": 1.0}}, 1)
tracking.finish()
print(*sorted(set(sys.modules) - before))
"""
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, timeout=HANG, env=env, check=False)
    assert done.returncode == 0, done.stderr
    found = set(done.stdout.split())
    assert "accelmetrics.integrations" in found, group
    assert len([name for name in found if name.partition(".")[0] == "accelmetrics"]) <= MOST, found
    assert found.isdisjoint(HEAVY), found & HEAVY
