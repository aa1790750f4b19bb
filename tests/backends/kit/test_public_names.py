"""The kit's public names load on first use: looking for hardware loads none of what a reading takes."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from accelmetrics.backends import kit
from accelmetrics.backends.kit.polled import NUMBERS
from accelmetrics.schemas.identity import DeviceIdentity


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


def test_all_that_an_import_gives_stands_in_an_example_of_the_documentation() -> None:
    """And nothing else does. The examples themselves are run with those of the other pages."""
    page = Path(__file__).parents[3].joinpath("docs", "backends.md").read_text(encoding="utf-8")
    imported = re.findall(r"^from accelmetrics\.backends\.kit import (.*)$", page, re.MULTILINE)
    given: dict[str, object] = {}
    exec("from accelmetrics.backends.kit import *", given)  # noqa: S102 - what is tested
    assert given.keys() - {"__builtins__"} == set(dir(kit)) == {name for line in imported for name in line.split(", ")}


def test_every_part_of_an_identity_is_named_in_the_documentation() -> None:
    """But for those that a backend does not tell by its table; and each that is a whole number is read as one."""
    page = Path(__file__).parents[3].joinpath("docs", "backends.md").read_text(encoding="utf-8")
    told = {name: kind for name, kind in DeviceIdentity.__annotations__.items() if name not in {"kind", "vendor", "memory_total_bytes"}}
    assert {name for name in told if f"`{name}`" not in page} == set()
    assert set(NUMBERS) == {name for name, kind in told.items() if "int" in kind}


def test_looking_for_hardware_loads_no_more_than_that() -> None:
    program = """
import sys
from accelmetrics.backends.registry import load
load("graphcore").detect()
print(sorted(name.rpartition(".")[2] for name in sys.modules if name.startswith("accelmetrics.backends.")))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "['built_in', 'contract', 'guard', 'kit', 'loading', 'registry', 'system']\n", done.stderr
