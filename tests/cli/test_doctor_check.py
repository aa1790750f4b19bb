"""``doctor --check``: one line and the exit status of a Nagios plug-in, on a machine with two simulated GPUs."""

from __future__ import annotations

import time
from collections.abc import Generator

import pytest

from tests.cli.shell import Tree, call, run
from tests.simulators.nvml import NvmlSimulator, Ret


class Node:
    """The machine, and what a check says of it."""

    def __init__(self, simulator: NvmlSimulator, env: dict[str, str]) -> None:
        self.nvidia = simulator
        self.env = env
        self.address = "0000:10:00"
        """Of the first GPU, as the driver prints it."""

    def check(self, *more: str) -> tuple[int, str]:
        done = call("doctor", "--check", "--backends", "nvidia", *(more or ("--timeout", "20")), env=self.env)
        assert done.stderr == ""
        assert done.stdout.count("\n") == 1
        return done.returncode, done.stdout.rstrip("\n")


@pytest.fixture
def node(tree: Tree) -> Generator[Node, None, None]:
    for number in (0, 1):
        tree.gpu(f"0000:0{number + 1}:00.0", "0x10de", "nvidia")
    tree.write("/dev/nvidiactl")
    with NvmlSimulator(gpus=2, profile="h100") as simulator:
        for gpu in simulator.gpu:
            gpu.set(ecc_uncorrected_volatile={2: 0}, fabric_health_mask=0)
        yield Node(simulator, tree.environment(**simulator.environment()))


def test_all_is_well(node: Node) -> None:
    assert node.check() == (0, "OK: 2 devices read")


def test_what_is_merely_to_be_reset_is_a_warning(node: Node) -> None:
    node.nvidia.gpu[1].set(remapped_pending=1)
    assert node.check() == (1, "WARNING: gpu.1: memory rows will be replaced by spare rows at the next reset")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"ecc_uncorrected_volatile": {2: 3}}, "gpu.1: uncorrected errors: 3"),
        ({"remapped_failure": 1}, "gpu.1: a memory row could not be replaced by a spare row"),
    ],
)
def test_what_speaks_against_the_hardware_is_critical(node: Node, values: dict[str, int], words: str) -> None:
    node.nvidia.gpu[0].set(remapped_pending=1)
    node.nvidia.gpu[1].set(**values)
    status, line = node.check()
    assert status == 2
    assert line.startswith(f"CRITICAL: {words}"), line
    assert line.endswith("; gpu.0: memory rows will be replaced by spare rows at the next reset"), "the gravest first"


def test_a_device_that_has_fallen_off_the_bus_is_critical(node: Node) -> None:
    node.nvidia.lose(1, enumerable=True)
    status, line = node.check()
    assert (status, line.partition(":")[0]) == (2, "CRITICAL")
    assert "gpu.1" in line


def test_a_device_that_is_lost_when_it_is_read_is_critical(node: Node, tree: Tree) -> None:
    """Also where its count of Xid errors of the kernel's log is known, which makes no device readable."""
    tree.write("/dev/kmsg", "6,8,1,-;NVRM: loading\n")
    node.nvidia.gpu[1].set(temperature=Ret.GPU_IS_LOST, power_mw=Ret.GPU_IS_LOST)
    done = run("doctor", "--check", "--backends", "nvidia", "--timeout", "20", env=node.env)
    assert (done.returncode, done.stdout.partition("lost")[0]) == (2, "CRITICAL: gpu.1 cannot be read: device_")


def test_a_driver_that_does_not_open_is_critical(node: Node) -> None:
    node.nvidia.fail_init(Ret.LIB_RM_VERSION_MISMATCH)
    status, line = node.check()
    assert status == 2
    assert line.startswith("CRITICAL: nvidia: ")


def test_a_driver_that_hangs_is_critical_within_the_time_limit(node: Node) -> None:
    node.nvidia.rule("nvmlDeviceGetTemperature", hang=True)
    status, line = node.check("--timeout", "0.5")
    node.nvidia.release("nvmlDeviceGetTemperature")
    assert (status, line.partition(":")[0]) == (2, "CRITICAL")


@pytest.mark.parametrize("arguments", [("--backends", "tenstorrent"), ("--backends", "unheard-of")])
def test_where_nothing_can_be_said_it_is_unknown(tree: Tree, arguments: tuple[str, ...]) -> None:
    done = call("doctor", "--check", *arguments, env=tree.environment())
    assert (done.returncode, done.stdout.partition(":")[0]) == (3, "UNKNOWN"), done


def test_an_xid_of_the_kernels_log_is_found_and_a_log_that_may_not_be_read_is_said(node: Node, tree: Tree) -> None:
    """NVML tells of none that was before it was asked. `doctor` says what to do."""
    record = "4,8,{},-;NVRM: Xid (PCI:{}): 79, pid=1, GPU has fallen off the bus.\n"
    tree.write("/dev/kmsg", record.format(int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6), node.address))
    # In a process of its own, which counts it.
    done = run("doctor", "--check", "--backends", "nvidia", "--timeout", "20", env=node.env)
    assert (done.returncode, done.stdout.strip()) == (2, "CRITICAL: gpu.0: Xid 79: the GPU has fallen off the bus")
    log = tree.root / "dev" / "kmsg"
    log.unlink()
    log.symlink_to(log)
    problem = "/dev/kmsg: Too many levels of symbolic links"
    assert node.check() == (0, f"OK: 2 devices read; Xid errors before this moment are not seen: {problem}")
    told = call("doctor", "--backends", "nvidia", env=node.env).stdout
    assert f"problem: {problem}" in told and "CAP_SYSLOG" in told
