"""The kit's public names load on first use: looking for hardware loads none of what a reading takes."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from accelmetrics.backends import kit


def declared() -> set[str]:
    """The names that type checkers see."""
    tree = ast.parse(Path(kit.__file__ or "").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(kit.__name__)]
    return {alias.name for node in imports for alias in node.names}


def test_every_public_name_is_there_for_programs_and_for_type_checkers() -> None:
    assert set(dir(kit)) == declared()
    for name in dir(kit):
        assert getattr(kit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'wafers'"):
        kit.wafers  # noqa: B018


def test_every_public_name_stands_in_an_example_of_the_documentation() -> None:
    """The examples themselves are run with those of the other pages."""
    page = Path(__file__).parents[3].joinpath("docs", "backends.md").read_text(encoding="utf-8")
    imported = re.findall(r"^from accelmetrics\.backends\.kit import (.*)$", page, re.MULTILINE)
    assert set(dir(kit)) <= {name for line in imported for name in line.split(", ")}


def test_looking_for_hardware_loads_no_more_than_that() -> None:
    program = """
import sys
from accelmetrics.backends.registry import load
load("graphcore").detect()
print(sorted(name.rpartition(".")[2] for name in sys.modules if name.startswith("accelmetrics.backends.")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "['built_in', 'contract', 'guard', 'kit', 'loading', 'registry', 'system']\n", done.stderr
