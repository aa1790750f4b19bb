"""The package on Windows, as far as that can be seen here: nothing of POSIX alone is there, and NVML is a DLL at a path."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from accelmetrics.schemas.recording import read_records
from tests.simulators.nvml import NvmlSimulator

ROOT = Path(__file__).parents[1]
BEGIN = "from tests.support.windows import become_windows\nbecome_windows()\n"


def ran(text: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program whose interpreter looks like one on Windows."""
    command = [sys.executable, "-c", BEGIN + textwrap.dedent(text), *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=False)


def command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return ran("import sys\nfrom accelmetrics.cli.main import main\nsys.exit(main(sys.argv[1:]))", *arguments, **variables)


def test_a_sample_is_the_host_s() -> None:
    """psutil gives it; what only Linux counts has its reason, and no backend fails."""
    done = ran("""
        import json, accelmetrics
        snapshot = accelmetrics.sample()
        statuses = {one.name: one.status for one in snapshot.backends}
        print(json.dumps([statuses, dict(snapshot.metrics), str(snapshot.unavailable["load.1m"].reason)]))
    """)
    assert (done.returncode, done.stderr) == (0, "")
    statuses, metrics, load = json.loads(done.stdout)
    assert statuses.pop("host") == "ok"
    assert set(statuses.values()) == {"absent"}
    assert metrics["memory.totalBytes"] > 0
    assert "proc.memory.rssMB" in metrics
    assert load == "not_supported"


def test_nvidia_is_read_by_its_dll(tmp_path: Path) -> None:
    """It is found in the system's folder, as drivers put it there; nothing is on the library path."""
    folder = tmp_path / "Windows" / "System32"
    folder.mkdir(parents=True)
    with NvmlSimulator(gpus=2) as simulator:
        (folder / "nvml.dll").symlink_to(simulator.library)
        variables = {**simulator.environment(), "LD_LIBRARY_PATH": "", "WINDIR": str(tmp_path / "Windows")}
        done = command("dump", "--json", "--backends", "nvidia", **variables)
        power = simulator.gpu[1].get("power_mw")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert [one["key"] for one in document["devices"]] == ["gpu.0", "gpu.1"]
    assert document["metrics"]["gpu.1.powerWatts"] == power / 1000


def test_records_are_written(tmp_path: Path) -> None:
    """The growing files of a monitor, also those that are closed when they are full."""
    recorded, table = tmp_path / "run.jsonl", tmp_path / "run.csv"
    exporters = f"jsonl:{recorded}?max_bytes=30000", f"csv:{table}"
    text = """
        import sys
        from accelmetrics import Monitor
        with Monitor(0.02, sys.argv[1:]) as monitor:
            while any(one.sent < 12 for one in monitor.status.exporters):
                assert not monitor.error
    """
    done = ran(text, *exporters)
    assert (done.returncode, done.stderr) == (0, "")
    closed = sorted(tmp_path.glob("run.*.jsonl"))
    assert closed
    records = [record for path in (*closed, recorded) for record in read_records(path)]
    assert len(records) >= 12
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 12
    assert float(rows[-1]["memory_percent"]) > 0
    assert b"\r\r" not in table.read_bytes()


def test_a_shared_reading_is_read_alone() -> None:
    """A script that shares elsewhere runs, and is warned once, though it set up no logging."""
    done = ran("""
        from accelmetrics import Monitor
        for _ in range(2):
            with Monitor(0.1, share="node") as monitor:
                while monitor.latest is None:
                    pass
        print(monitor.status.ticks > 0)
    """)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert done.stderr.count("RuntimeWarning: accelmetrics: readings are not shared: Windows has no suitable file locks") == 1


def test_a_training_that_nobody_asked_to_share_warns_of_nothing() -> None:
    """Sharing is its default."""
    done = ran("""
        import accelmetrics
        with accelmetrics.training(0.1) as run:
            while run.monitor.latest is None:
                pass
    """)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", ["doctor", "list --json", "metrics", "verify --span 0.2", "config", "completion bash"])
def test_commands_work(words: str) -> None:
    done = command(*words.split())
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize("name", ["watch", "run"])
def test_commands_that_need_posix_say_so(name: str) -> None:
    done = command(name)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"accelmetrics {name}: this command needs a POSIX system: there is no fcntl here\n"


def test_a_daemon_has_no_kernel_log_and_keeps_no_state(tmp_path: Path) -> None:
    """The first is not there, which is no error; whose a file is cannot be told, which is refused."""
    done = ran("""
        from accelmetrics.monitor.node_state import NodeState
        print(NodeState(None).follow_kernel_log())
    """, ACCELMETRICS_SYSROOT=str(tmp_path))  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")
    done = command("serve", "--listen", "127.0.0.1:0", "--state", str(tmp_path / "state.json"))
    assert (done.returncode, done.stderr) == (2, "accelmetrics serve: --state needs a POSIX system, where files have owners\n")
