"""A collector starts the command once a second: what it does not need is not loaded."""

from __future__ import annotations

import subprocess
import sys

from tests.cli.shell import document, environment
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import HANG

ASKED = ["dump", "--json", "--backends", "nvidia", "--settle", "0"]
PROGRAM = """
import sys
before = set(sys.modules)
from accelmetrics.cli.main import main
status = main()
print(*sorted(set(sys.modules) - before), file=sys.stderr)
sys.exit(status)
"""
HEAVY = {"pydantic", "psutil", "rich", "inspect", "dataclasses", "importlib.metadata", "asyncio", "logging", "email", "csv"}
UNUSED = {
    "pynvml",
    "pathlib",
    "tempfile",
    "random",
    "statistics",
    "subprocess",
    "ctypes.util",
    "traceback",
    "urllib.parse",
    "selectors",
    "shutil",
}
"""What some of this package uses, and a reading of GPUs does not."""
OTHERS = {
    f"accelmetrics.{name}"
    for name in ("schemas.catalogue", "cli.formats", "cli.doctor", "cli.list", "schemas.document", "backends.amd", "backends.host")
}


def loaded(*arguments: str, env: dict[str, str], status: int = 0) -> tuple[str, set[str]]:
    """What a command line prints, and which modules it loads."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], env=env, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == status
    return done.stdout, set(done.stderr.split())


def test_the_short_dump_loads_little(simulator: NvmlSimulator) -> None:
    """No model, no scan of installed packages, no other source and no other command."""
    out, modules = loaded(*ASKED, env=environment(**simulator.environment()))
    assert document(out).devices[1].values["powerWatts"] > 0
    assert modules & (HEAVY | UNUSED | OTHERS) == set()


def test_refusing_loads_less() -> None:
    """A wrong argument is found before anything is read."""
    _, modules = loaded("dump", "--count", "0", env=environment(), status=2)
    assert not {name for name in modules if name.startswith(("accelmetrics.sampling.", "accelmetrics.backends."))}
