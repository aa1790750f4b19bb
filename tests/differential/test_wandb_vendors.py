"""W&B's own collector and accelmetrics on a simulated card of AMD's, two TPUs, and the same reports of ``neuron-monitor``."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from accelmetrics import Sampler
from benchmarks.environments import wandb_python
from tests.differential import differences
from tests.differential.differences import Found, Row
from tests.differential.streams import HERE, Record, read_wandb
from tests.simulators import rocm_smi_library
from tests.simulators.amdgpu import Tree, machines
from tests.simulators.neuron import NeuronMonitorStandIn, report, runtime
from tests.simulators.tpu import DUTY_CYCLE, TOTAL, USAGE, TpuMachine, TpuRuntime
from tests.simulators.tpu.server import HBM_UTILIZATION, IDLE
from tests.support.missing import MissingHere
from tests.support.waiting import HANG, wait_for

pytestmark = [pytest.mark.peers, pytest.mark.slow]

ENERGY = 123456 * 10**6 // 2**16
"""What the kernel makes of the counter that the stand-in of the library has, in microjoules."""
GIB = 2**30
AGREEING_AMD = 6
AGREEING_TPU = 10
AGREEING_NEURON = 18
"""Keys that agree: of the card; the duty cycles, and what the first core says; of two cores a share and five numbers of memory each, and
six of the host."""
RUNTIME_PORT = 8431
"""Where W&B looks for the runtime's service, and no other port."""


@contextmanager
def watched(directory: Path, environment: Mapping[str, str], mounts: Mapping[str, Path] | None = None) -> Iterator[dict[str, str]]:
    """Run a program that W&B watches, with other directories in the place of some; give what it says of itself.

    Raises:
        MissingHere: Directories cannot be put in another's place here.
    """
    command = [str(wandb_python()), str(HERE / "collect_wandb.py"), str(directory), "1.0"]
    if mounts:
        if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
            raise MissingHere("a mount namespace of one's own, which the superuser alone may have")
        told = [f"mount --bind {shlex.quote(str(source))} {shlex.quote(target)}" for target, source in mounts.items()]
        command = ["unshare", "-m", "sh", "-ec", "\n".join([*told, f"exec {shlex.join(command)}"])]
    quiet = {"WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false", "WANDB_CACHE_DIR": "/nonexistent"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, env={**os.environ, **quiet, **environment}, text=True) as program:  # type: ignore[call-overload]
        try:
            facts = json.loads(program.stdout.readline() or "{}")
            assert facts, "the program that W&B watches did not start"
            yield facts
            program.communicate("", timeout=4 * HANG)
        finally:
            program.kill()


def said(file: str, prefix: str) -> dict[str, float]:
    """The last value of each key of W&B's that begins so; nothing before there are any."""
    found: dict[str, float] = {}
    for line in read_wandb(wandb_python(), file).splitlines():
        found.update({key: value for key, value in json.loads(line)["metrics"].items() if key.startswith(prefix)})
    return found


def compare(backend: str, theirs: Mapping[str, float], pid: int, first: str, agreeing: int) -> list[Found]:
    """Give how the values of the two differ; so many keys agree."""
    with Sampler([backend], pid=pid) as sampler:
        wait_for(lambda: first in sampler.sample().metrics)
        taken = sampler.sample()
    ours = Record(0.0, taken.metrics, {key: str(why.reason) for key, why in taken.unavailable.items()})
    found = list(differences.differences(differences.Phase(0, theirs, ours), {}))
    assert len((theirs.keys() & taken.metrics.keys()) - {one.key for one in found}) == agreeing
    return found


def documented(heading: str) -> list[Row]:
    """What the document says below a heading."""
    return differences.documented(differences.section(differences.DOCUMENT.read_text(), heading))


def neuron(directory: Path, monkeypatch: pytest.MonkeyPatch, cores: Mapping[int, float], agreeing: int, **environment: str) -> list[Found]:
    """Let both read what one program uses."""
    stand_in = NeuronMonitorStandIn(directory)
    monkeypatch.setenv("PATH", f"{stand_in.path}:{os.environ['PATH']}")
    with watched(directory, environment) as facts:
        stand_in.tell(report=report([runtime(int(facts["pid"]), cores)]))
        theirs = wait_for(lambda: said(facts["file"], "trn."), 4 * HANG)
        return compare("neuron", theirs, int(facts["pid"]), "trn.0.neuroncore_utilization", agreeing)


def test_trainium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What both give is the same; what only we give is documented, and is all there."""
    found, rows = neuron(tmp_path, monkeypatch, {0: 12.5, 1: 80.25}, AGREEING_NEURON), documented("AWS Trainium and Inferentia")
    assert differences.unlisted(found, rows) == []
    assert differences.unseen(found, rows) == []


def test_trainium_for_a_rank_among_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With LOCAL_RANK W&B tells of the core of that number alone; here of all cores of the program."""
    found = neuron(tmp_path, monkeypatch, {0: 12.5}, 6, LOCAL_RANK="1")
    assert differences.unlisted(found, documented("AWS Trainium and Inferentia")) == []
    assert "trn.0.neuroncore_utilization" in {one.key for one in found if one.kind == differences.ONLY_OURS}


def test_amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library that W&B reads and the kernel's files that we read say the same of one card."""
    root, modules = tmp_path / "root", tmp_path / "modules"
    root.mkdir()
    card = machines.rx_7900(Tree(root))
    card.sensors({"energy1_input": ENERGY})
    (modules / "amdgpu").mkdir(parents=True)
    (modules / "amdgpu/initstate").write_text("live\n")
    library = rocm_smi_library.build(tmp_path / "library")
    with watched(tmp_path, {"LD_LIBRARY_PATH": str(library)}, {"/sys/module": modules}) as facts:
        theirs = wait_for(lambda: said(facts["file"], "gpu."), 4 * HANG)
        monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(root))
        found, rows = compare("amd", theirs, os.getpid(), "gpu.0.gpu", AGREEING_AMD), documented("AMD GPUs")
    assert differences.unlisted(found, rows) == []
    assert differences.unseen(found, rows) == []


@contextmanager
def runtime_of_tpus(chips: int, cores: int) -> Iterator[None]:
    """Serve what a TPU runtime says of chips with several cores each, on the port that W&B asks.

    Raises:
        MissingHere: The port is taken.
    """
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", RUNTIME_PORT)) == 0:
            raise MissingHere(f"port {RUNTIME_PORT}, which another program has")
    service = TpuRuntime()
    service.stop()
    service.port = RUNTIME_PORT
    service.start()
    try:
        service.gauge(DUTY_CYCLE, {chip: 50.0 + chip for chip in range(chips)})
        service.gauge(TOTAL, dict.fromkeys(range(cores), 16 * GIB))
        service.gauge(USAGE, {core: (core + 1) * GIB for core in range(cores)})
        service.gauge(HBM_UTILIZATION, {core: 20.0 + core for core in range(cores)})
        service.gauge(IDLE, {core: 1.5 + core for core in range(cores)})
        yield
    finally:
        service.stop()


def test_tpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chips of two cores each, of which the runtime's service tells."""
    pytest.importorskip("grpc")
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    TpuMachine(root).chips("v3", 2)
    with runtime_of_tpus(2, 4), watched(tmp_path, {}, {"/sys/bus/pci": root / "sys/bus/pci"}) as facts:
        theirs = wait_for(lambda: said(facts["file"], "tpu."), 4 * HANG)
        monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(root))
        found, rows = compare("tpu", theirs, os.getpid(), "tpu.3.hbmCapacityUsage", AGREEING_TPU), documented("Google TPUs")
    assert differences.unlisted(found, rows) == []
    assert differences.unseen(found, rows) == []
