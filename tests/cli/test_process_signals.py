"""Signals to processes on devices: real processes, which hold a file open that stands for a device's node."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from accelmetrics.backends.kit import processes
from accelmetrics.cli.watch_screen import CHOICES, ProcessHandle, SignalError
from accelmetrics.schemas.identity import DeviceIdentity
from tests.support.waiting import HANG

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="platform: descriptors of processes are Linux'")

GPU = DeviceIdentity("gpu", "nvidia", 0, minor_number=3)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for the node of GPU 3."""
    path = tmp_path / "nvidia3"
    path.touch()
    monkeypatch.setattr(processes, "NODES", {**processes.NODES, "nvidia": f"{re.escape(str(tmp_path))}/nvidia\\d+"})
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
    with closing(ProcessHandle(holder.pid, [GPU], [holder.pid])) as handle:
        handle.send(signal.SIGTERM)
        assert holder.wait(HANG) == -signal.SIGTERM
        assert handle.ended
        with pytest.raises(SignalError, match=f"process {holder.pid} has ended: SIGTERM was not sent"):
            handle.send(signal.SIGTERM)
    with pytest.raises(SignalError, match="has ended"):
        ProcessHandle(holder.pid, [GPU], [holder.pid])


@pytest.mark.usefixtures("node")
def test_a_process_that_does_not_hold_the_device_is_left_alone() -> None:
    """In a container, another process may have the number that the driver says."""
    with subprocess.Popen(["sleep", "3600"]) as other:
        try:
            with pytest.raises(SignalError, match="does not hold the device: the driver may mean a process outside this container"):
                ProcessHandle(other.pid, [GPU], [other.pid])
            assert other.poll() is None
        finally:
            other.kill()


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (GPU._replace(minor_number=4), "does not hold the device"),  # the node's number is known
        (GPU._replace(vendor="acme"), "cannot be verified"),  # its nodes are not
    ],
)
def test_a_process_that_is_not_certainly_on_the_device(holder: subprocess.Popen[bytes], device: DeviceIdentity, why: str) -> None:
    """Is left alone."""
    with pytest.raises(SignalError, match=why):
        ProcessHandle(holder.pid, [device], [holder.pid])


def test_never_this_program(node: Path) -> None:
    """Even where it holds the device."""
    with node.open(), pytest.raises(SignalError, match="is watch itself: q quits"):
        ProcessHandle(os.getpid(), [GPU], [os.getpid()])


def test_in_a_container(holder: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the driver lists processes that are not here, it counts as the machine does: this holder may not be the one that it means."""
    monkeypatch.setattr(processes, "WHOLE_MACHINE", "pid:[1]")
    monkeypatch.setattr(processes.DriverNumbers, "_shows_machine", False)
    with pytest.raises(SignalError, match="is unknown: the driver lists others that are not"):
        ProcessHandle(holder.pid, [GPU], [holder.pid, 4_194_301])
    assert holder.poll() is None
    with closing(ProcessHandle(holder.pid, [GPU], [holder.pid])) as handle:
        handle.send(signal.SIGTERM)
    assert holder.wait(HANG) == -signal.SIGTERM


def test_a_process_of_another_proc(holder: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number there may be another process's here."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", "/host")
    with pytest.raises(SignalError, match="belongs to the system below /host: here, the number may mean another process"):
        ProcessHandle(holder.pid, [GPU], [holder.pid])
    assert holder.poll() is None


def test_another_users_process(holder: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """The system refuses, and that is said."""

    def refuse(*_: object) -> None:
        raise PermissionError

    with closing(ProcessHandle(holder.pid, [GPU], [holder.pid])) as handle:
        monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
        with pytest.raises(SignalError, match="belongs to another user: SIGTERM was not sent"):
            handle.send(signal.SIGTERM)


def test_a_system_without_descriptors_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers alone are not enough."""
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(SignalError, match="needs Linux"):
        ProcessHandle(1, [GPU], [1])
