"""A collector starts the command once a second: what it does not need is not loaded."""

from __future__ import annotations

import subprocess
import sys

from tests.cli.shell import document, environment
from tests.simulators.nvml import NvmlSimulator

ASKED = ["dump", "--json", "--backends", "nvidia", "--settle", "0"]
PROGRAM = """
import sys
before = set(sys.modules)
from accelmetrics.cli.main import main
status = main()
print(*sorted(set(sys.modules) - before), file=sys.stderr)
sys.exit(status)
"""
HEAVY = {"pydantic", "pydantic_core", "psutil", "rich", "inspect", "dataclasses", "importlib.metadata", "asyncio", "logging", "email", "csv"}
OURS = {"accelmetrics.cli.table", "accelmetrics.cli.doctor", "accelmetrics.cli.list", "accelmetrics.schemas.document", "accelmetrics.backends.amd"}


def loaded(*arguments: str, env: dict[str, str]) -> tuple[str, set[str]]:
    """What a command line prints, and which modules it loads."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], env=env, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout, set(done.stderr.split())


def test_the_short_dump_loads_little(simulator: NvmlSimulator) -> None:
    """No model, no scan of installed packages, no other source and no other command."""
    out, modules = loaded(*ASKED, env=environment(**simulator.environment()))
    assert document(out).devices[1].values["powerWatts"] > 0
    assert modules & (HEAVY | OURS) == set()


def test_refusing_loads_less() -> None:
    """A wrong argument is found before anything is read."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("sys.exit(status)", ""), "dump", "--count", "0"], env=environment(), capture_output=True, text=True
    )
    assert not {name for name in done.stderr.split() if name.startswith(("accelmetrics.sampling.", "accelmetrics.backends."))}
