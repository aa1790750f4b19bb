"""Signals to processes on devices: real processes, which hold a file open that stands for a device's node."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelmetrics.cli import process_signals
from accelmetrics.cli.process_signals import CHOICES, ProcessHandle, SignalError, node_pattern
from accelmetrics.schemas.identity import DeviceIdentity
from tests.support.waiting import HANG

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="platform: descriptors of processes are Linux'")

GPU = DeviceIdentity("gpu", "nvidia", 0, minor_number=3)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for the node of GPU 3."""
    path = tmp_path / "nvidia3"
    path.touch()
    monkeypatch.setattr(process_signals, "NODES", {**process_signals.NODES, "nvidia": f"{re.escape(str(tmp_path))}/nvidia\\d+"})
    return path


@pytest.fixture
def holder(node: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds it open."""
    with node.open() as held, subprocess.Popen(["sleep", "3600"], stdin=held) as process:
        yield process
        process.kill()


def test_a_signal_reaches_the_process(holder: subprocess.Popen[bytes]) -> None:
    """The one that was asked for."""
    assert CHOICES[0] == signal.SIGTERM
    with ProcessHandle(holder.pid, [GPU]) as handle:
        handle.send(signal.SIGTERM)
        assert holder.wait(HANG) == -signal.SIGTERM
        assert handle.ended
        with pytest.raises(SignalError, match=f"process {holder.pid} has ended: SIGTERM was not sent"):
            handle.send(signal.SIGTERM)
    with pytest.raises(SignalError, match="has ended"):
        ProcessHandle(holder.pid, [GPU])


@pytest.mark.usefixtures("node")
def test_a_process_that_does_not_hold_the_device_is_left_alone() -> None:
    """In a container, another process may have the number that the driver says."""
    with subprocess.Popen(["sleep", "3600"]) as other:
        try:
            with pytest.raises(SignalError, match="does not hold the device: the driver may mean a process outside this container"):
                ProcessHandle(other.pid, [GPU])
            assert other.poll() is None
        finally:
            other.kill()


def test_a_process_on_another_device_is_left_alone(holder: subprocess.Popen[bytes]) -> None:
    """The node's number is known."""
    with pytest.raises(SignalError, match="does not hold the device"):
        ProcessHandle(holder.pid, [GPU._replace(minor_number=4)])


def test_never_this_program(node: Path) -> None:
    """Even where it holds the device."""
    with node.open(), pytest.raises(SignalError, match="is this program: q ends it"):
        ProcessHandle(os.getpid(), [GPU])


def test_a_device_whose_nodes_are_not_known(holder: subprocess.Popen[bytes]) -> None:
    """Nothing can be verified."""
    with pytest.raises(SignalError, match="cannot be verified"):
        ProcessHandle(holder.pid, [GPU._replace(vendor="acme")])


def test_another_users_process(holder: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """The system refuses, and that is said."""

    def refuse(*_: object) -> None:
        raise PermissionError

    with ProcessHandle(holder.pid, [GPU]) as handle:
        monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
        with pytest.raises(SignalError, match="belongs to another user: SIGTERM was not sent"):
            handle.send(signal.SIGTERM)


def test_a_system_without_descriptors_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers alone are not enough."""
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(SignalError, match="on Linux alone"):
        ProcessHandle(1, [GPU])


def test_nodes_of_devices() -> None:
    """By vendor; a partition's process holds the node of the whole device."""
    assert re.fullmatch(node_pattern(GPU), "/dev/nvidia3")
    assert not re.fullmatch(node_pattern(GPU), "/dev/nvidia4")
    assert re.fullmatch(node_pattern(GPU._replace(parent="GPU-1", minor_number=None)), "/dev/nvidia7")
    assert not re.fullmatch(node_pattern(GPU._replace(minor_number=None)), "/dev/nvidiactl")
    assert re.fullmatch(node_pattern(DeviceIdentity("npu", "rebellions", 0)), "/dev/rbln2")
    assert re.fullmatch(node_pattern(DeviceIdentity("tpu", "google", 0)), "/dev/vfio/1")
    assert re.fullmatch(node_pattern(DeviceIdentity("gpu", "amd", 0)), "/dev/dri/renderD128")
