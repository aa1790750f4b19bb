"""A program that takes its numbers from this package: what it needs installed, what it sees on its own output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import HANG
from tests.test_packaging import wheel  # noqa: F401 - a fixture

HOSTILE = """
    import threading
    import accelmetrics

    asked = threading.Event()

    class Refusing:
        name = "refusing"
        def open(self): pass
        def export(self, record): asked.set(); raise ValueError("no such sink")
        def flush(self): pass
        def close(self): pass

    with accelmetrics.Monitor(0.01, [Refusing()], backends=["host"]) as monitor:
        monitor.log(1, loss=[1, 2])
        asked.wait()
"""


ALONE = """
    import sys

    class Refusing:
        def find_spec(self, name, path=None, target=None):
            head = name.partition(".")[0]
            # pickle asks for a package of Jython's.
            if head not in sys.stdlib_module_names and head not in ("accelmetrics", "sitecustomize", "usercustomize", "org"):
                refused.add(head)
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    refused = set()
    sys.meta_path.insert(0, Refusing())
    for name in [name for name in sys.modules if name.partition(".")[0] in ("psutil", "pydantic", "pynvml")]:
        del sys.modules[name]
"""
READ = """
    import asyncio
    import json
    import accelmetrics

    snapshot = accelmetrics.sample(processes_of)
    text = snapshot.to_json()
    again = asyncio.run(accelmetrics.asample(processes_of, max_age=60))
    assert again.to_dict() == json.loads(text) == snapshot.to_dict()
    with accelmetrics.Monitor(0.01, backends=processes_of) as monitor, monitor.window("epoch") as window:
        monitor.log(1, loss=0.5)
    print(json.dumps({
        "devices": [device.key for device in accelmetrics.devices(processes_of)],
        "power": [device.values["powerWatts"] for device in snapshot.devices],
        "host": snapshot.metrics["memory_percent"] > 0,
        "status": [status.status for status in snapshot.backends],
        "summary": "gpu.0.powerWatts" in window.summary,
    }))
""".replace("processes_of", '["nvidia", "host"]')


def run(program: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter of its own, which sets up no logging."""
    env = {name: value for name, value in os.environ.items() if name != "ACCELMETRICS_VALIDATE"} | changes
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=HANG, env=env, check=False
    )


def test_a_program_that_set_up_no_logging_sees_nothing() -> None:
    """An exporter that fails and a step that is no number are logged, and their lines end there."""
    done = run(HOSTILE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_program_that_set_up_logging_sees_the_lines() -> None:
    done = run("import logging; logging.basicConfig()\n" + textwrap.dedent(HOSTILE))
    assert "WARNING:accelmetrics:exporter refusing could not deliver" in done.stderr
    assert "loss is a list and not a single number" in done.stderr


def test_a_variable_that_cannot_act_is_warned_of_once_without_logging() -> None:
    """Each Trainer of Lightning's asks; no Lightning is there."""
    done = run(
        """
        import sys
        sys.modules["lightning"] = sys.modules["pytorch_lightning"] = None
        from accelmetrics.integrations import lightning_callbacks
        print(lightning_callbacks(), lightning_callbacks())
        """,
        ACCELMETRICS_LIGHTNING="1",
    )
    assert done.stdout == "[] []\n"
    assert done.stderr.count("RuntimeWarning: accelmetrics: ACCELMETRICS_LIGHTNING adds no callback") == 1


def test_exporters_that_stay_with_the_parent_of_a_fork_are_warned_of() -> None:
    """Where warnings are errors too, the child's monitor reads on."""
    for mode in ("default", "error"):
        done = run(
            """
            import os
            import accelmetrics
            from accelmetrics.exporters.console import ConsoleExporter
            monitor = accelmetrics.Monitor(60, [ConsoleExporter(stderr=True)], backends=["host"])
            with monitor:
                child = os.fork()
                if not child:
                    os.close(2); os.dup(1)
                    with monitor.start():
                        monitor.window("w")
                    print(monitor.running, flush=True)
                    os._exit(0)
                os.waitpid(child, 0)
            """,
            PYTHONWARNINGS=mode,
        )
        assert ("console get no records from the forked process" in done.stdout) == (mode == "default"), done
        assert "False" in done.stdout


def test_readings_need_nothing_but_the_standard_library() -> None:
    """Nor does a monitor: nothing else that is installed here is imported, or missed."""
    with NvmlSimulator(gpus=2) as simulator:
        env = {**simulator.environment(), "ACCELMETRICS_VALIDATE": ""}
        done = run(textwrap.dedent(ALONE) + textwrap.dedent(READ) + "print(sorted(refused))", **env)
    assert done.returncode == 0, done.stderr
    read, refused = done.stdout.splitlines()
    found = json.loads(read)
    assert found["devices"] == ["gpu.0", "gpu.1"]
    assert all(found["power"])
    assert (found["host"], found["status"], found["summary"]) == (True, ["ok", "ok"], True)
    assert refused == "[]"


def test_what_needs_a_package_says_so() -> None:
    """The typed views, and reading documents back."""
    done = run(
        textwrap.dedent(ALONE)
        + textwrap.dedent("""
            import accelmetrics
            snapshot = accelmetrics.sample(["host"])
            for look in (lambda: snapshot.host, lambda: accelmetrics.Snapshot.from_json(snapshot.to_json())):
                try:
                    look()
                except ImportError as error:
                    print(error)
        """)
    )
    assert done.stdout == "No module named 'pydantic'\n" * 2, done.stderr


@pytest.mark.slow
def test_the_wheel_alone_reads(wheel: Path, tmp_path: Path) -> None:  # noqa: F811
    """Installed with ``--no-deps`` into a new environment, as where another program's pins leave no room for ours."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "alone"], check=True, timeout=HANG)
    python = tmp_path / "alone/bin/python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, timeout=2 * HANG)
    with NvmlSimulator(gpus=2) as simulator:
        env = {**os.environ, **simulator.environment(), "ACCELMETRICS_VALIDATE": ""}
        env.pop("PYTHONPATH", None)
        program = "import importlib.util as u; assert not any(map(u.find_spec, ['psutil', 'pydantic', 'pynvml']))\n" + textwrap.dedent(READ)
        done = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=HANG, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["devices"] == ["gpu.0", "gpu.1"]
