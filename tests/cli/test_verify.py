"""``verify``: what agrees, what differs and what has no reference, for people, programs and the shell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.machines import Rig
from tests.cli.shell import Tree, call, environment, one_line, rest_of, run, start
from tests.simulators import libamd_smi
from tests.simulators.amd_smi import AmdSmiStandIn, document, metric, static
from tests.simulators.amdgpu import Tree as Cards, machines
from tests.simulators.libamd_smi import Rocm
from tests.simulators.libamd_smi.machines import mi300x
from tests.simulators.neuron import NeuronMonitorStandIn, SysfsTree
from tests.simulators.nvidia_smi import NvidiaSmiStandIn
from tests.simulators.nvml import NvmlSimulator, Process, Ramp, Ret

SHORT = ("--span", "0.1")
"""Three rounds."""


@pytest.fixture
def smi(tmp_path: Path, simulator: NvmlSimulator) -> NvidiaSmiStandIn:
    """A command that says what the simulated driver says."""
    return NvidiaSmiStandIn(tmp_path, simulator)


@pytest.fixture
def card(tree: Tree, simulator: NvmlSimulator, smi: NvidiaSmiStandIn) -> dict[str, str]:
    """A machine with two simulated H100s, and the command."""
    tree.gpu("0000:01:00.0", "0x10de", "nvidia").write("/dev/nvidiactl")
    return tree.environment(**simulator.environment(), PATH=smi.path)


def verified(status: int, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """What ``--json`` prints."""
    done = call("verify", "--json", *SHORT, *arguments, env=env)
    assert (done.returncode, done.stderr) == (status, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def results(found: dict[str, Any], key: str) -> dict[str, str]:
    """By reference, what came of one value."""
    return {one["reference"]: one["result"] for one in found["comparisons"] if one["key"] == key}


def problems(found: dict[str, Any]) -> dict[str, str]:
    """By reference, why it did not answer."""
    return {one["name"]: one["problem"] for one in found["references"]}


def test_both_of_nvidias_own_agree(card: dict[str, str]) -> None:
    """Every value that they have, each GPU's, and the number of GPUs."""
    found = verified(0, "--backends", "nvidia", env=card)
    both = {"nvidia-ml-py": "agrees", "nvidia-smi": "agrees"}
    for key in ("gpu.0.powerWatts", "gpu.1.memoryAllocatedBytes", "gpu.1.temp", "gpu.0.performanceState", "nvidia.devices"):
        assert results(found, key) == both, key
    assert results(found, "gpu.0.smActive") == {"nvidia-ml-py": "agrees"}
    assert results(found, "gpu.0.energyJoules") == {"nvidia-ml-py": "agrees"}
    assert results(found, "gpu.0.correctedSramErrors") == {"nvidia-ml-py": "agrees"}
    assert results(found, "gpu.0.fabricState") == {"nvidia-ml-py": "agrees"}
    assert results(found, "gpu.0.xidErrors") == {"": "no_reference"}
    assert found["counts"] == {"agrees": found["counts"]["agrees"], "differs": 0, "no_reference": 2}
    assert found["counts"]["agrees"] > 300
    assert problems(found) == {"nvidia-ml-py": "", "nvidia-smi": ""}


@pytest.mark.parametrize("profile", ["b200", "a100", "t4", "rtx4090", "gb10"])
def test_every_generation_agrees(tree: Tree, profile: str) -> None:
    """Those with fields and without, with links of NVLink 5, without a memory of their own."""
    tree.gpu("0000:01:00.0", "0x10de", "nvidia").write("/dev/nvidiactl")
    with NvmlSimulator(gpus=1, profile=profile) as simulator:
        found = verified(0, "--backends", "nvidia", env=tree.environment(**simulator.environment(), PATH="/nowhere"))
    assert found["counts"]["agrees"] > 50
    assert found["counts"]["no_reference"] < 5


def test_a_driver_that_is_older_than_the_binding(tree: Tree) -> None:
    """The binding refuses functions that the driver has in an older form alone."""
    older = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlGpmQueryDeviceSupport")
    with NvmlSimulator(gpus=1, profile="a100", hide=older) as simulator:
        env = tree.environment(**simulator.environment(), PATH="/nowhere")
        done = run("verify", "--json", *SHORT, "--backends", "nvidia", env=env)  # a process of its own: another library
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert problems(found)["nvidia-ml-py"] == ""
    assert results(found, "gpu.0.memoryAllocatedBytes") == {"nvidia-ml-py": "agrees"}


def test_what_moves_agrees(card: dict[str, str], simulator: NvmlSimulator) -> None:
    """Energy by its gain, traffic by what was said around it; what is read every ten seconds, by what was said since it was read."""
    simulator.gpu[0].set(energy_mj=Ramp(10**9, rate=300_000), pcie_tx_bytes=Ramp(0, rate=10**9), violation_ns={0: Ramp(0, rate=5 * 10**9)})
    found = verified(0, "--backends", "nvidia", "--gpus", "0", env={**card, "PATH": "/nowhere"})
    (energy,) = (one for one in found["comparisons"] if one["key"] == "gpu.0.energyJoules")
    assert (energy["result"], energy["detail"]) == ("agrees", "gain over the span")
    assert 0 < energy["ours"] < 10**6
    assert results(found, "gpu.0.pcieTxBytesTotal") == {"nvidia-ml-py": "agrees"}
    assert results(found, "gpu.0.violationSeconds.power") == {"nvidia-ml-py": "agrees"}


def test_two_answers_of_one_driver_that_contradict_each_other(card: dict[str, str], simulator: NvmlSimulator) -> None:
    """We read power by a field, the binding by its function."""
    simulator.gpu[1].set_field("POWER_AVERAGE", 150_000)
    found = verified(1, "--backends", "nvidia", env={**card, "PATH": "/nowhere"})
    assert {one["key"] for one in found["comparisons"] if one["result"] == "differs"} == {"gpu.1.powerWatts", "gpu.1.powerPercent"}


def test_memory_of_the_watched_process(card: dict[str, str], simulator: NvmlSimulator) -> None:
    simulator.processes(0, [Process(os.getpid(), used=3 << 30), Process(1, used=5 << 30)])
    found = verified(0, "--backends", "nvidia", env={**card, "PATH": "/nowhere"})
    (held,) = (one for one in found["comparisons"] if one["key"] == "gpu.process.0.memoryAllocatedBytes")
    assert (held["result"], held["ours"], held["reference"]) == ("agrees", 3 << 30, "nvidia-ml-py")


def test_instances_are_compared_too(card: dict[str, str], simulator: NvmlSimulator, smi: NvidiaSmiStandIn) -> None:
    simulator.partition(1, ["3g.40gb", "1g.10gb"])
    smi.behave()
    found = verified(0, "--backends", "nvidia", env=card)
    for key in ("gpu.1.mig.0.memoryAllocatedBytes", "gpu.1.mig.1.smActive"):
        assert results(found, key) == {"nvidia-ml-py": "agrees"}


def test_a_reference_that_lies(card: dict[str, str], smi: NvidiaSmiStandIn) -> None:
    """Both numbers, the status, and the other reference that agrees."""
    smi.behave({"power.draw": "999.00"})
    found = verified(1, "--backends", "nvidia", env=card)
    assert results(found, "gpu.0.powerWatts") == {"nvidia-ml-py": "agrees", "nvidia-smi": "differs"}
    assert found["counts"]["differs"] == 2
    lie = next(one for one in found["comparisons"] if one["result"] == "differs")
    assert (lie["ours"], lie["low"], lie["high"]) == (pytest.approx(294), 999, 999)
    assert lie["compared"] >= 3
    assert lie["agreed"] == 0
    shown = call("verify", *SHORT, "--backends", "nvidia", "--metrics", "powerWatts,temp", env=card)
    assert shown.returncode == 1
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert ["gpu.0", "powerWatts", "294", "W", "999", "W", "nvidia-smi", "differs"] in lines
    assert ["gpu.0", "temp", "41", "°C", "41", "°C", "nvidia-ml-py,", "nvidia-smi", "agrees"] in lines
    assert "5 agree" not in shown.stdout.splitlines()[-1]
    assert shown.stdout.splitlines()[-1].startswith("3 agree, 2 differ, 0 have no reference; compared for ")


def test_a_gpu_that_one_side_does_not_list(card: dict[str, str], simulator: NvmlSimulator, smi: NvidiaSmiStandIn) -> None:
    """The command still prints a GPU that our list has lost."""
    simulator.set(gpu_count=1)
    found = verified(1, "--backends", "nvidia", env=card)
    assert results(found, "nvidia.devices") == {"nvidia-ml-py": "agrees", "nvidia-smi": "differs"}
    assert results(verified(0, "--gpus", "0", "--backends", "nvidia", env=card), "nvidia.devices") == {}


def test_a_value_that_is_missing_here_and_not_there(card: dict[str, str], simulator: NvmlSimulator, smi: NvidiaSmiStandIn) -> None:
    simulator.gpu[0].set(fan_speed=None)
    smi.behave({"fan.speed": "30"})
    found = verified(1, "--backends", "nvidia", "--gpus", "0", env=card)
    (one,) = (one for one in found["comparisons"] if one["result"] == "differs")
    assert (one["key"], one["reference"], one["ours"], one["low"]) == ("gpu.0.fanSpeed", "nvidia-smi", None, 30)
    assert one["detail"].startswith("not_supported")


def test_what_the_command_does_not_say_has_no_reference_of_it(card: dict[str, str], smi: NvidiaSmiStandIn) -> None:
    smi.behave({"temperature.gpu": "[N/A]", "power.draw": "[Unknown Error]"})
    found = verified(0, "--backends", "nvidia", env=card)
    assert results(found, "gpu.0.temp") == results(found, "gpu.0.powerWatts") == {"nvidia-ml-py": "agrees"}


def test_a_release_of_the_command_that_knows_fewer_fields(card: dict[str, str], smi: NvidiaSmiStandIn) -> None:
    """It refuses the whole query, and is asked again without them."""
    smi.behave(unknown=("pstate", "clocks_event_reasons.gpu_idle"))
    found = verified(0, "--backends", "nvidia", env=card)
    assert results(found, "gpu.0.performanceState") == {"nvidia-ml-py": "agrees"}
    assert results(found, "gpu.0.temp") == {"nvidia-ml-py": "agrees", "nvidia-smi": "agrees"}


def test_references_that_are_not_there(card: dict[str, str], tmp_path: Path) -> None:
    """Each says so, and nothing differs."""
    (tmp_path / "pynvml.py").write_text("raise ImportError('it is broken')\n")
    env = {**card, "PATH": "/nowhere", "PYTHONPATH": f"{tmp_path}:{card['PYTHONPATH']}"}
    done = run("verify", *SHORT, "--backends", "nvidia", env=env)
    assert (done.returncode, done.stderr) == (0, "")
    words = " ".join(done.stdout.split())
    assert "nvidia-ml-py was asked about nvidia: driver_unavailable: nvidia-ml-py is not installed: it is broken" in words
    assert "nvidia-smi was asked about nvidia: driver_unavailable: nvidia-smi was not found" in words
    assert done.stdout.splitlines()[-1].startswith("0 agree, 0 differ, ")


def test_references_that_hang(card: dict[str, str], simulator: NvmlSimulator, smi: NvidiaSmiStandIn) -> None:
    """Each is left alone, once: what the other one said counts, and the command ends."""
    smi.behave(hang=True)
    arguments = ("verify", *SHORT, "--json", "--backends", "nvidia", "--open-timeout", "0.5")
    done = run(*arguments, env=card)
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert problems(found) == {"nvidia-ml-py": "", "nvidia-smi": "no answer in 2.5 s: it is not asked again"}
    assert results(found, "gpu.0.temp") == {"nvidia-ml-py": "agrees"}
    assert smi.calls == 1
    smi.behave()
    simulator.rule("nvmlDeviceGetRemappedRows", hang=True)  # we read these by their fields
    done = run(*arguments, env=card)
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert problems(found)["nvidia-ml-py"] == "no answer in 2.5 s: it is not asked again"
    assert results(found, "gpu.0.temp") == {"nvidia-smi": "agrees"}


def test_a_gpu_that_sleeps_is_not_woken(tree: Tree, simulator: NvmlSimulator, smi: NvidiaSmiStandIn) -> None:
    tree.gpu("0000:01:00.0", "0x10de", "nvidia").write("/dev/nvidiactl")
    tree.write("/sys/bus/pci/devices/0000:01:00.0/power/runtime_status", "suspended\n")
    found = verified(0, "--backends", "nvidia", env=tree.environment(**simulator.environment(), PATH=smi.path))
    assert smi.calls == 0
    assert set(problems(found).values()) <= {"a device is powered down, and asking would wake it"}


def test_a_lost_gpu_has_neither(card: dict[str, str], simulator: NvmlSimulator) -> None:
    """What neither can read is no difference; its neighbour is compared."""
    simulator.gpu[0].set(temperature=Ret.UNKNOWN)
    simulator.lose(1)
    found = verified(0, "--backends", "nvidia", "--metrics", "temp,powerWatts", "--gpus", "0,1", env={**card, "PATH": "/nowhere"})
    assert {one["key"] for one in found["comparisons"] if one["reference"] == "nvidia-ml-py"} == {"gpu.0.powerWatts"}


def test_sources_of_amd_agree_and_one_lies(tmp_path: Path) -> None:
    """The kernel's files are read, and the vendor's command is asked by a process of its own."""
    root, stand_in = tmp_path / "root", AmdSmiStandIn(tmp_path)
    root.mkdir()
    machines.mi210_pair(Cards(root))
    usage = {"gfx_activity": {"value": 83, "unit": "%"}, "umc_activity": {"value": 41, "unit": "%"}}
    statics = document([static(0, machines.PAIR[0], "0x8e5520cb71d2aa00")], "list")
    stand_in.behave(document([metric(0, usage=usage, power={"socket_power": {"value": 212, "unit": "W"}})], "list"), statics)
    env = environment(ACCELMETRICS_SYSROOT=str(root), PATH=stand_in.path)
    chosen = ("--backends", "amd", "--gpus", "0", "--metrics", "gpu,temp,powerWatts,throttled")
    found = verified(0, *chosen, env=env)
    for name in ("gpu", "temp", "powerWatts"):
        assert results(found, f"gpu.0.{name}") == {"amd-smi": "agrees"}
    assert results(found, "gpu.0.throttled") == {}, "that only another source has it is no difference"
    assert problems(found)["rocm-smi"].startswith("driver_unavailable: rocm-smi was not found")
    stand_in.behave(document([metric(0, usage=usage)], "list"), statics)
    found = verified(1, *chosen, env=env)
    assert results(found, "gpu.0.powerWatts") == {"amd-smi": "differs"}
    assert results(found, "gpu.0.gpu") == {"amd-smi": "agrees"}


def test_files_and_a_library_that_are_read_together(tmp_path: Path) -> None:
    """What the library alone has is not compared with itself."""
    root = tmp_path / "root"
    root.mkdir()
    machines.mi300x(Cards(root))
    rocm = Rocm(tmp_path / "rocm")
    rocm.behave(mi300x())
    env = environment(ACCELMETRICS_SYSROOT=str(root), ROCM_PATH=str(rocm.root), AMDSMI_STAND_IN=str(rocm.state), PATH="/nowhere")
    env["PYTHONPATH"] += f":{libamd_smi.module()}"
    done = run("verify", "--json", *SHORT, "--backends", "amd", env=env)
    found = json.loads(done.stdout)
    assert results(found, "gpu.0.powerWatts") == {"amdsmi": "agrees"}
    assert results(found, "gpu.0.memoryAllocatedBytes") == {"amdsmi": "differs"}, "the stand-ins' numbers are 30 and 31 GiB"
    (alone,) = (one for one in found["comparisons"] if one["key"] == "gpu.0.fanSpeed")
    assert (alone["result"], alone["detail"]) == ("no_reference", "amdsmi: the value is read from it here")
    assert done.returncode == 1


def test_a_tool_and_the_drivers_files(tmp_path: Path) -> None:
    """Of AWS: what belongs to no device too."""
    root, tool = tmp_path / "root", NeuronMonitorStandIn(tmp_path)
    driver = SysfsTree(root)
    driver.add_chip(0)
    driver.add_node(0)
    env = environment(ACCELMETRICS_SYSROOT=str(root), PATH=f"{tool.path}:/usr/bin:/bin")
    found = verified(0, "--backends", "neuron", "--metrics", "*count", env=env)
    assert results(found, "trn.neuron_device_count") == results(found, "neuron.devices") == {"sysfs": "agrees"}


def test_the_host_of_this_machine() -> None:
    """psutil's own counts, and what it does not have."""
    found = verified(0, "--backends", "host", "--metrics", "memory.totalBytes,disk.*.usageGB,load.15m,network.tcpRetransmits")
    if sys.platform.startswith("linux"):
        assert results(found, "disk./.usageGB") == {"psutil": "agrees"}
        assert results(found, "load.15m") == {"psutil": "agrees"}
        assert results(found, "network.tcpRetransmits") == {"": "no_reference"}
        assert problems(found) == {"psutil": ""}


def test_the_host_below_another_root(tree: Tree) -> None:
    """psutil would read this machine."""
    tree.write("/proc/loadavg", "7.00 6.00 5.00 1/100 1\n")
    found = verified(0, "--backends", "host", "--metrics", "load.*", env=tree.environment())
    assert problems(found)["psutil"].endswith("the host is read below ACCELMETRICS_SYSROOT")
    assert found["counts"] == {"agrees": 0, "differs": 0, "no_reference": 3}


def test_a_vendor_without_a_second_source(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    from accelmetrics.cli.main import main

    assert main(["verify", *SHORT, "--backends", "rig"]) == 0
    out = capsys.readouterr().out
    assert "gpu.0, gpu.1, gpu.2: powerWatts, temp, memoryTotalBytes" in " ".join(out.split())
    assert out.splitlines()[-1].startswith("0 agree, 0 differ, 9 have no reference")


def test_beside_a_command(card: dict[str, str], tmp_path: Path) -> None:
    """It is compared until the command ends, which watches us and prints on standard error; the document is alone."""
    calls = tmp_path / "nvidia-smi-bin" / "calls.jsonl"
    script = f"#!/bin/sh\nuntil [ $(wc -l < {calls}) -ge 6 ]; do sleep 0.05; done 2>/dev/null\necho over\n"
    (tmp_path / "train").write_text(script)
    (tmp_path / "train").chmod(0o755)
    done = run("verify", "--json", "--backends", "nvidia", "--", str(tmp_path / "train"), env=card)
    assert (done.returncode, done.stderr) == (0, "over\n")
    found = json.loads(done.stdout)
    assert results(found, "gpu.0.temp") == {"nvidia-ml-py": "agrees", "nvidia-smi": "agrees"}


def test_a_gpu_that_is_lost_meanwhile(card: dict[str, str], simulator: NvmlSimulator, tmp_path: Path) -> None:
    """Before, it agreed; from then on neither side has anything of it."""
    over, asked = tmp_path / "over", "nvmlDeviceGetRemappedRows"  # by the binding alone
    script = f"until [ -e {over} ]; do sleep 0.05; done"
    process = start("verify", "--json", "--backends", "nvidia", "--", "sh", "-c", script, env={**card, "PATH": "/usr/bin:/bin"})
    simulator.wait_for(asked, gpu=1, count=5)
    simulator.lose(1)
    simulator.wait_for(asked, gpu=0, count=simulator.calls()[asked, 0] + 8)
    over.touch()
    out, errors = rest_of(process)
    assert (process.returncode, errors) == (0, "")
    found = json.loads(out)
    assert results(found, "gpu.1.temp") == results(found, "nvidia.devices") == {"nvidia-ml-py": "agrees"}
    rounds = {one["key"]: one["compared"] for one in found["comparisons"]}
    assert rounds["gpu.1.temp"] < rounds["gpu.0.temp"]


def test_signals_reach_the_command() -> None:
    """And what was compared until its end is printed."""
    script = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    process = start("verify", "--backends", "host", "--metrics", "disk.*.usageGB", "--", "sh", "-c", script)
    assert process.stderr.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    out, errors = rest_of(process)
    assert (process.returncode, errors) == (0, "caught\n")
    assert " beside sh -c " in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--span", "0"), 2, "a number of seconds above 0"),
        (("--backends", "nobody"), 2, "unknown backend 'nobody'"),
        (("--backends", "host", "--", "no-such-command"), 127, "command not found: no-such-command"),
    ],
)
def test_what_cannot_be_done(arguments: tuple[str, ...], status: int, said: str) -> None:
    done: subprocess.CompletedProcess[str] = run("verify", *arguments)
    assert done.returncode == status
    assert said in one_line(done.stderr)
    assert done.stdout == ""
