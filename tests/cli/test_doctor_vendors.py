"""``doctor`` on machines of TPUs, Neuron devices, IPUs and Macs: each finding by its real condition, in words and exit status."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from accelmetrics.cli.main import main
from tests.cli.examination import examine
from tests.cli.shell import REPOSITORY, Tree, call, document, run
from tests.simulators import amdgpu, libamd_smi
from tests.simulators.amdgpu import machines
from tests.simulators.apple import MacStandIn, kernel
from tests.simulators.graphcore import GcipuinfoStandIn, c600
from tests.simulators.libamd_smi import Rocm
from tests.simulators.neuron import NeuronMonitorStandIn, SysfsTree, hardware, report, runtime
from tests.simulators.tpu import TpuMachine

CHIP = "0000:00:1e.0"
TRAINIUM = "0x7164"
PASS_NEURON = "what to do: in a container, start it with --device=/dev/neuron0"
MACMON = "for power, temperature and clocks without root: brew install macmon"
POPLAR = "gcipuinfo comes with Graphcore's Poplar SDK"
GC_DOCKER = "in a container, start it with gc-docker, which passes the IPUs in"
HIDE_GRPC = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name == "grpc" else find(name, *rest)
"""


# AWS Trainium and Inferentia


@pytest.fixture
def neuron(tree: Tree) -> SysfsTree:
    """Neither the tool nor the driver's counters, until a test puts them there."""
    return SysfsTree(tree.root)


def test_a_neuron_chip_whose_driver_is_not_loaded(tree: Tree, neuron: SysfsTree) -> None:
    """The chip is there and cannot be read."""
    neuron.add_pci(CHIP, TRAINIUM)
    found = examine("neuron", tree.environment(), strict=1)
    assert f"neuron: does not work evidence: 1 Neuron device on the PCI bus ({CHIP}), but the driver is not loaded" in found.words
    load = "what to do: load the kernel driver: sudo modprobe neuron (package aws-neuronx-dkms); install neuron-monitor"
    assert load in found.words
    assert found.words.count("modprobe") == 1


@pytest.mark.parametrize("on_the_bus", [True, False])
def test_a_neuron_node_without_the_tool(tree: Tree, neuron: SysfsTree, on_the_bus: bool) -> None:
    """The node shows that the driver is loaded: it is the tool that is missing."""
    neuron.add_node()
    if on_the_bus:
        neuron.add_pci(CHIP, TRAINIUM)
    found = examine("neuron", tree.environment(), strict=1)
    assert "evidence: /dev/neuron0 is there; the driver shows no counters" in found.words
    assert "neuron-monitor is neither on PATH nor in /opt/aws/neuron/bin" in found.words
    assert "what to do: install neuron-monitor: package aws-neuronx-tools" in found.words
    assert "modprobe" not in found.words
    assert call("doctor", env=tree.environment()).stdout.endswith("\n0 devices can be read, 1 cannot.\n")


def test_a_container_without_its_neuron_devices_whose_counters_are_read(tree: Tree, neuron: SysfsTree) -> None:
    """What is read is the host's; the flag is said all the same."""
    neuron.add_chip(0)
    found = examine("neuron", tree.environment(), strict=0)
    assert "neuron: works, read from sysfs evidence: 1 Neuron device with 2 cores" in found.words
    assert f"no /dev/neuron0 {PASS_NEURON} time:" in found.words
    neuron.add_node()
    assert "what to do" not in examine("neuron", tree.environment()).words.partition(" time:")[0]


def test_a_container_without_its_neuron_devices_whose_tool_fails(tree: Tree, neuron: SysfsTree, tmp_path: Path) -> None:
    """The flag first, then what else may be tried."""
    neuron.add_chip(0)
    tool = NeuronMonitorStandIn(tmp_path)
    tool.tell(mode="die", errors="no neuron devices found: /dev/neuron0: No such file\n")
    found = examine("neuron", tree.environment(PATH=tool.path), strict=1)
    assert "neuron: does not work" in found.words
    assert "no neuron devices found: /dev/neuron0: No such file" in found.words
    assert f"{PASS_NEURON}; run neuron-monitor and neuron-ls by hand" in found.words


def test_a_neuron_tool_that_works(tree: Tree, neuron: SysfsTree, tmp_path: Path) -> None:
    neuron.add_node()
    tool = NeuronMonitorStandIn(tmp_path)
    tool.tell(report=report([runtime(12)], machine=hardware(1, 2)))
    found = examine("neuron", tree.environment(PATH=tool.path))
    tool.tell(mode="die", status=0)
    assert (found.status, found.strict) == (0, 0)
    assert found.words.startswith("neuron: works, read from neuron-monitor")
    assert found.facts["advice"] == ""


def test_counters_that_need_an_interval_are_no_failure(tree: Tree, neuron: SysfsTree) -> None:
    """On a tree whose only known counters are rates: the second reading has them."""
    neuron.add_chip(0, cores=1)
    neuron.count(0, 0, microseconds=1_000_000, flops=7)
    neuron.add_node()
    shutil.rmtree(neuron.neuron / "neuron0/neuron_core0/stats/memory_usage")
    found = examine("neuron", tree.environment(), strict=0)
    assert "needs_interval" not in found.words
    assert "trn.0: Trainium1: 2 metrics given" in found.words


def test_a_single_dump_has_the_rates_of_neuron_counters(tree: Tree, neuron: SysfsTree) -> None:
    """With what ``--settle`` is when it is left out."""
    neuron.add_chip(0)
    neuron.count(0, 1, microseconds=1_000_000, flops=7)
    snapshot = document(call("dump", "--json", "--backends", "neuron", env=tree.environment()).stdout)
    assert snapshot.metrics["trn.1.neuroncore_utilization"] == 0.0
    assert snapshot.metrics["trn.1.flops"] == 0.0
    assert "needs_interval" not in {str(why.reason) for why in snapshot.unavailable.values()}


# Graphcore


@pytest.fixture
def gcipuinfo(tmp_path: Path) -> GcipuinfoStandIn:
    """The module, which lists nothing."""
    return GcipuinfoStandIn(tmp_path)


def ipu_card(tree: Tree, *nodes: str) -> Tree:
    """An IPU on the PCI bus, and these nodes below ``/dev``."""
    base = "/sys/bus/pci/devices/0000:1a:00.0"
    tree.write(f"{base}/vendor", "0x1d95\n").write(f"{base}/device", "0x0003\n").write(f"{base}/class", "0x120000\n")
    for node in nodes:
        tree.write(f"/dev/{node}")
    return tree


def with_module(tree: Tree, stand_in: GcipuinfoStandIn) -> dict[str, str]:
    return tree.environment(PYTHONPATH=f"{stand_in.directory}:{REPOSITORY}")


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        (
            ["ipu0"],
            ["1 IPU on the PCI bus (0000:1a:00.0), /dev/ipu0, no Python module gcipuinfo", f"what to do: {POPLAR} and not from PyPI"],
        ),
        ([], [f"what to do: {GC_DOCKER}; {POPLAR}"]),
    ],
    ids=["machine", "container without its IPUs"],
)
def test_ipus_without_the_vendors_module(tree: Tree, nodes: list[str], words: list[str]) -> None:
    """Where it comes from; in a container both are missing, and both are said."""
    found = examine("graphcore", ipu_card(tree, *nodes).environment(), strict=1)
    assert [word for word in words if word not in found.words] == []
    assert ("gc-docker" in found.words) == (not nodes)


def test_ipus_that_the_module_does_not_list(tree: Tree, gcipuinfo: GcipuinfoStandIn) -> None:
    """On an IPU-Machine nothing shows, so nothing is there that could not be read; of a container it comes first how to start it."""
    found = examine("graphcore", with_module(tree, gcipuinfo), strict=0)
    assert "what to do: check whether gc-info --list-devices lists any: on an IPU-Machine a partition must exist" in found.words
    found = examine("graphcore", with_module(ipu_card(tree), gcipuinfo), strict=1)
    assert "graphcore: does not work" in found.words
    assert "driver_unavailable: gcipuinfo lists no IPU" in found.words
    assert f"what to do: {GC_DOCKER}; check whether gc-info" in found.words


def test_an_ipu_that_works(tree: Tree, gcipuinfo: GcipuinfoStandIn) -> None:
    gcipuinfo.behave([c600(0)])
    found = examine("graphcore", with_module(ipu_card(tree, "ipu0"), gcipuinfo), strict=0)
    assert found.words.startswith("graphcore: works, read from gcipuinfo")
    assert found.facts["advice"] == ""


# Google TPU


def silent_port() -> str:
    """A port on which no server listens."""
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return str(taken.getsockname()[1])


@pytest.fixture
def tpus(tree: Tree) -> TpuMachine:
    """A machine of which every process can be looked into."""
    pytest.importorskip("grpc")
    (tree.root / "proc").mkdir()
    return TpuMachine(tree.root)


def tpu_environment(tree: Tree, **changes: str) -> dict[str, str]:
    return tree.environment(TPU_RUNTIME_METRICS_PORTS=silent_port(), **changes)


def test_tpus_without_grpcio(tree: Tree, tpus: TpuMachine, tmp_path: Path) -> None:
    """The line that installs it."""
    tpus.chips("v5e", 1)
    (tmp_path / "sitecustomize.py").write_text(HIDE_GRPC)
    found = examine("tpu", tpu_environment(tree, PYTHONPATH=f"{tmp_path}:{REPOSITORY}"), by=run, strict=1)
    assert "evidence: 1 TPU v5e chip on the PCI bus (0000:00:04.0); grpcio, which reads their runtime, is not installed" in found.words
    assert "what to do: pip install 'accelmetrics[tpu]'" in found.words
    assert found.words.count("what to do") == 1
    assert found.facts["advice"] == "pip install 'accelmetrics[tpu]'"


def test_a_tpu_whose_holder_serves_no_metrics(tree: Tree, tpus: TpuMachine) -> None:
    """Which chip it is, and how to start its runtime; one that is not in use is well."""
    held, _ = tpus.chips("v4", 2)
    tpus.process(4711, held)
    found = examine("tpu", tpu_environment(tree), strict=1)
    first, second = found.facts["devices"]
    assert (first["readable"], second["readable"]) == (False, True)
    assert "process 4711 holds it and serves no metrics on localhost:8431" in found.words
    assert "set TPU_RUNTIME_METRICS_PORTS for it and for this program" in found.words
    assert "no program holds it: no runtime on localhost:8431" in found.words


@pytest.mark.parametrize(("generation", "flags"), [("v4", "--device=/dev/accel0 --device=/dev/accel1"), ("v5e", "--device=/dev/vfio")])
def test_a_container_without_its_tpus(tree: Tree, tpus: TpuMachine, generation: str, flags: str) -> None:
    """The flag, and nothing is claimed of their holders; they may be idle, which is no failure."""
    tpus.contain()
    tpus.chips(generation, 2)
    found = examine("tpu", tpu_environment(tree), strict=0)
    assert f"what to do: in a container, start it with {flags} (google.com/tpu in Kubernetes)" in found.words
    assert "the processes that hold it cannot be seen" in found.words
    assert "no program holds it" not in found.words


# Apple silicon


@pytest.fixture
def mac(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MacStandIn:
    """A Mac by what its kernel says and by its commands, read by an ordinary user."""
    made = MacStandIn(tmp_path)
    monkeypatch.setenv("PATH", made.path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "uname", kernel)
    monkeypatch.setattr(os, "geteuid", lambda: 501)
    return made


@pytest.mark.parametrize(
    ("away", "failed", "words"),
    [
        ((), 0, ["apple: works, read from macmon", "macOS on Apple silicon"]),
        (("macmon",), 0, ["apple: works, read from ioreg evidence: macOS on Apple silicon, no macmon: no power without root", MACMON]),
        (
            ("macmon", "ioreg"),
            1,
            [
                *("apple: does not work", "macmon is not installed (brew install macmon); ", "ioreg was not found in PATH"),
                *("; powermetrics needs root", MACMON),
            ],
        ),
    ],
    ids=["all of it", "no macmon", "nothing to read it with"],
)
def test_a_mac(mac: MacStandIn, capsys: pytest.CaptureFixture[str], away: tuple[str, ...], failed: int, words: list[str]) -> None:
    """It is read without macmon too, and what would give more is said; its GPU is there where nothing reads it."""
    mac.remove(*away)
    assert main(["doctor", "--backends", "apple"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert [word for word in words if word not in said] == []
    assert (MACMON in said) == bool(away)
    assert main(["doctor", "--backends", "apple", "--strict"]) == failed


# AMD's module


@pytest.fixture
def rocm(tree: Tree, tmp_path: Path) -> Mapping[str, str]:
    """An MI300X under ROCm 6.4.3, and the module amdsmi of another release from PyPI."""
    made = Rocm(tmp_path / "rocm", "6.4.3-128")
    module = libamd_smi.module()
    machines.mi300x(amdgpu.Tree(tree.root))
    return tree.environment(ROCM_PATH=str(made.root), PYTHONPATH=f"{module}:{REPOSITORY}")


def test_an_amdsmi_of_another_release_is_not_used(rocm: Mapping[str, str]) -> None:
    """Another source reads the card; why this one does not is said."""
    found = examine("amd", rocm, strict=0)
    assert found.words.startswith("amd: works, read from sysfs")
    assert "amdsmi is of version 7.0.2, which does not match" in found.words


def test_an_amdsmi_of_another_release_is_refused_where_it_is_pinned(rocm: Mapping[str, str]) -> None:
    """The card is there, and the one source that was asked for cannot read it."""
    found = examine("amd", rocm, "--amd-source", "amdsmi", strict=1)
    assert "amd: does not work" in found.words
    assert "amdsmi is of version 7.0.2, which does not match" in found.words
    assert "share/amd_smi" in json.dumps(found.facts["advice"])
