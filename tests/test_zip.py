"""The package from a zip file, as zipapp, pex and Spark's ``--py-files`` import it: what runs files of its own runs there too."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import accelmetrics
from tests.simulators.commands import CommandStandIn
from tests.simulators.rebellions import listing, npu

PACKAGE = Path(accelmetrics.__file__).parent


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zip with this package and what makes a program of it."""
    path = tmp_path_factory.mktemp("zip") / "accelmetrics.zip"
    with zipfile.ZipFile(path, "w") as written:
        for file in sorted(PACKAGE.rglob("*")):
            if file.is_file() and file.suffix != ".pyc":
                written.write(file, Path("accelmetrics", file.relative_to(PACKAGE)))
        written.writestr("__main__.py", "from accelmetrics.cli import program\nprogram()\n")
    return path


@pytest.fixture
def environment(archive: Path, tmp_path: Path) -> dict[str, str]:
    """Of a program that has the zip, and a machine with one NPU whose values a command prints."""
    tool = CommandStandIn(tmp_path, "rbln-smi")
    tool.behave(listing(npu(0)))
    return {**os.environ, "PYTHONPATH": str(archive), "PATH": tool.path, "ACCELMETRICS_SYSROOT": str(tmp_path)}


def run(environment: dict[str, str], *arguments: str, folder: Path = Path("/")) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("as_program", [False, True], ids=["on the path", "as the program"])
def test_dump_reads_a_vendor_s_tool(environment: dict[str, str], archive: Path, as_program: bool) -> None:
    environment |= {"PYTHONPATH": ""} if as_program else {}
    start = [archive.name] if as_program else ["-m", "accelmetrics"]
    printed = run(environment, *start, "dump", "--json", "--backends", "rebellions", "--timeout", "30", folder=archive.parent)
    assert json.loads(printed)["metrics"]["npu.0.temp"] == 41


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_sample_reads_it(environment: dict[str, str], archive: Path, isolation: str) -> None:
    program = f"""
import accelmetrics
assert accelmetrics.__file__.startswith({str(archive)!r}), accelmetrics.__file__
print(accelmetrics.sample(backends=["rebellions"], isolation={isolation!r}, timeout=30, open_timeout=60).metrics["npu.0.temp"])
"""
    assert run(environment, "-c", program) == "41\n"


def test_files_that_are_run_or_read_are_found(environment: dict[str, str]) -> None:
    """Of the TPU's SDK, the terminal's guard, the page, the report, and what a program below ``run --as-nvml`` starts with."""
    program = """
from pathlib import Path
from accelmetrics import sample
from accelmetrics.backends.kit import commands
from accelmetrics.backends.kit.watchdog import script
from accelmetrics.integrations.compat.feed import NvmlFeed
from accelmetrics.views.page.documents import page_files

import accelmetrics.backends.tpu, accelmetrics.cli
import sys

asked = commands.run((sys.executable, *script("accelmetrics.backends.tpu", "sdk_script.py"), "duty_cycle_pct"), timeout=60)
assert '"missing"' in asked.stdout or '"done"' in asked.stdout, asked
assert "__main__" in script("accelmetrics.cli", "terminal_guard.py")[1]
assert page_files()
feed = NvmlFeed(sample(backends=["host"], timeout=30), 1.0)
startup = Path(feed.environment["PYTHONPATH"].partition(":")[0])
assert (startup / "sitecustomize.py").is_file() and (startup / "_accelmetrics_nvml.py").is_file()
feed.remove()
assert not startup.exists()
print("found")
"""
    assert run(environment, "-c", program) == "found\n"
