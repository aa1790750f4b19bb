"""The examples of the pages run as they stand: each Python block by itself, in a directory of its own, beside two simulated GPUs.

What the prose makes the reader's own (a training loop, a batch) is given to them, and so is a peer where one is spoken to, at an
address of its own: an example must neither be kept from a port nor reach another program.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.exporters.receivers import grpc_collector, http_server
from tests.simulators.nvml import NvmlSimulator
from tests.support.network import free_port
from tests.support.waiting import HANG

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/backends.md",
    "docs/dialects.md",
    "docs/embedding.md",
    "docs/exporters.md",
    "docs/findings.md",
    "docs/monitor.md",
    "docs/quickstart.md",
    "docs/training.md",
)
READERS_OWN = """\
import time
from types import SimpleNamespace
def train(batch=None):
    time.sleep(0.05)
    return 0.5
batches = [SimpleNamespace(tokens=512)] * 2
"""
GOES_ON = {
    "README.md": "import accelmetrics\n",
    "docs/training.md": """\
import accelmetrics, inspect
from accelmetrics.integrations.training import TrainingRun
rate, tracker, model = 0.001, SimpleNamespace(log=lambda row, step: None), object()
run = SimpleNamespace(watch=lambda *given, **named: inspect.signature(TrainingRun.watch).bind(None, *given, **named))  # PyTorch is not here
""",
    "docs/findings.md": "from accelmetrics import Monitor\n",
    "docs/monitor.md": """\
import accelmetrics
from accelmetrics import Monitor
pandas = SimpleNamespace(DataFrame=dict)
epoch, rate = 1, 0.001
def train_epoch():
    time.sleep(0.3)
monitor = Monitor(interval=0.1)
monitor.start()
while len(monitor.history) < 2:
    train()
""",
}
"""What a page's blocks have from those above them."""

APART = ("trackio", "swanlab", "aim", "clearml")
"""Exporters whose client is in an environment of its own: `tests/frameworks/trackers` runs their commands."""


class Example(NamedTuple):
    """One block of a page."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, language: str) -> Iterator[Example]:
    """Those of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for found in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL):
        if found[2] == language:
            yield Example(page, text.count("\n", 0, found.start()) + 2, textwrap.dedent(found[3]))


EXAMPLES = [example for page in PAGES for example in blocks(page, "python")]
COMMANDS = [
    Example(example.page, example.line, line.removesuffix(" &"))
    for example in blocks("docs/exporters.md", "")
    for line in example.text.splitlines()
    if line.startswith("accelmetrics record ") and not re.search(rf"http://(?!127\.)|--exporter \"({'|'.join(APART)}):", line)
]


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, str]]:
    """What examples name, and what stands for it here."""
    with (
        grpc_collector() as collector,
        http_server(lambda *_: (204, "text/plain", b"")) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd,
    ):
        statsd.bind(("127.0.0.1", 0))
        yield {
            "http://127.0.0.1:4317": collector.endpoint,
            "http://127.0.0.1:8086": server.rstrip("/"),
            "127.0.0.1:8125": f"127.0.0.1:{statsd.getsockname()[1]}",
            "127.0.0.1:22235": f"127.0.0.1:{free_port()}",
            '"prometheus"': '"prometheus:127.0.0.1:0"',
            "/var/lib/prometheus/node-exporter/": "",
            "/etc/influx.token": "influx.token",
        }


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """That of a machine with two GPUs, on which the trackers keep to themselves."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "MLFLOW_", "ACCELMETRICS_"))}
    quiet = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
    with NvmlSimulator(gpus=2) as simulator:
        yield {**kept, **quiet, **simulator.environment(), "PYTHONPATH": str(ROOT)}


def ran(command: list[str], directory: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=directory,
        env={**environment, "MLFLOW_TRACKING_URI": (directory / "mlruns").as_uri()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=4 * HANG,
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_a_python_example_runs(example: Example, places: dict[str, str], environment: dict[str, str], tmp_path: Path) -> None:
    """To its end, without an exception and without a complaint: nothing it hands on is lost."""
    text = example.text
    for named, here in places.items():
        text = text.replace(named, here)
    (tmp_path / "influx.token").write_text("secret")
    (tmp_path / "example.py").write_text(READERS_OWN + GOES_ON.get(example.page, "") + text, encoding="utf-8")
    if "recordings(" in text:
        ran([sys.executable, "-m", "accelmetrics", "record", "--exporter", "jsonl:run.jsonl", "--duration", "0.2"], tmp_path, environment)
    done = ran([sys.executable, "example.py"], tmp_path, environment)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stderr or "mlflow" in text, done.stderr  # which has much to say there


@pytest.mark.parametrize("example", COMMANDS, ids=str)
def test_a_command_example_runs(example: Example, environment: dict[str, str], tmp_path: Path) -> None:
    """With what it names as its target, which it makes."""
    words = shlex.split(example.text)[1:]
    done = ran([sys.executable, "-m", "accelmetrics", *words, "--no-console", "--duration", "0.5"], tmp_path, environment)
    assert done.returncode == 0, done.stderr
    assert any(tmp_path.iterdir())


def test_there_are_examples() -> None:
    """What is looked for is found: a page of another form would be a test of nothing."""
    assert {example.page for example in EXAMPLES} == set(PAGES)
    assert any("tensorboard" in example.text for example in COMMANDS)


def test_the_adapter_of_trackio_shows_the_mig_instance_that_a_program_has(tmp_path: Path) -> None:
    """Beside it there is no GPU for the program; of all GPUs the whole ones are shown."""
    (tmp_path / "trackio").mkdir()
    (tmp_path / "trackio/__init__.py").touch()
    (tmp_path / "trackio/gpu.py").touch()
    program = """
import accelmetrics, json, os
instances = [device.uuid for device in accelmetrics.devices("accelerators") if device.parent]
os.environ["CUDA_VISIBLE_DEVICES"] = instances[1]
import for_trackio
print(json.dumps([for_trackio.read(), sorted({key.split("/")[1] for key in for_trackio.read(all_gpus=True)})]))
"""
    with NvmlSimulator(gpus=2, profile="h100") as nvidia:
        nvidia.partition(0, ["1g.10gb", "2g.20gb"])
        path = os.pathsep.join(map(str, (tmp_path, ROOT / "examples/adapters", ROOT)))
        env = {**os.environ, **nvidia.environment(), "PYTHONPATH": path}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=HANG, check=True)
    seen, every = json.loads(done.stdout)
    assert (seen["gpu/0/total_memory"], {key.split("/")[1] for key in seen}) == (20.0, {"0"})
    assert every == ["0", "1"]
