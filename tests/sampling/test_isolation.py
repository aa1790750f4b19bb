"""``isolation="process"``: the child may hang, exit or be killed; the parent goes on, says so, and starts another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from accelmetrics import Reason, Sampler
from accelmetrics.backends.contract import Detection, Reading, ReadOptions
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceKind
from accelmetrics.schemas.metric import Metric
from accelmetrics.testing import FakeBackend
from tests.sampling.conftest import until


class Scripted:
    """A backend that does what a file says: it travels to the child as itself, and is switched from outside."""

    name = "scripted"
    kind: DeviceKind = "gpu"
    interval = 0.0

    def __init__(self, script: Path) -> None:
        self.script = script

    def detect(self) -> Detection:
        return Detection(True, "a file", 2)

    def open(self) -> Scripted:
        return self

    def own_metrics(self) -> Iterable[Metric]:
        return ()

    source = "file"
    machine_wide = False
    devices = tuple(DeviceIdentity("gpu", "acme", number, uuid=f"GPU-0000-{number}") for number in range(2))

    def reader(self, options: ReadOptions) -> Scripted:
        self.options = options
        return self

    def read(self, unit: int, steps: list[Any]) -> Reading:
        order = self.script.read_text()
        if order == "exit":
            os._exit(3)
        if order == "sys.exit":
            sys.exit(4)
        if order == "hang" and unit == 1:
            time.sleep(600)
        if order == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if order == "print":
            print("noise of a vendor's library")
        return Reading.of({"temp": 40 + unit, "watched": self.options.pid, "pid": os.getpid()})

    def close(self) -> None:
        return None


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "order"
    path.write_text("")
    return path


def isolated(script: Path, timeout: float = 0.5) -> Sampler:
    return Sampler([Scripted(script)], isolation="process", timeout=timeout)


def children() -> list[str]:
    """Processes of ours, by state."""
    listing = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "stat=,args="], capture_output=True, text=True)
    return [line for line in listing.stdout.splitlines() if "accelmetrics" in line or "<defunct>" in line]


def test_it_answers_like_the_other_one_and_watches_the_parent(script: Path) -> None:
    with isolated(script) as sampler:
        snapshot = sampler.sample()
        assert snapshot.metrics["gpu.1.temp"] == 41
        assert snapshot.metrics["gpu.0.watched"] == os.getpid()
        assert snapshot.metrics["gpu.0.pid"] != os.getpid()
        assert snapshot.backends[0].status == "ok"
        assert sampler.sample().backends[0].sequence == 2
    assert not children()


@pytest.mark.parametrize(("order", "words"), [("exit", "exited with status 3"), ("sys.exit", "")])
def test_a_library_that_calls_exit_takes_only_the_child_with_it(script: Path, order: str, words: str) -> None:
    with isolated(script) as sampler:
        before = sampler.sample()
        script.write_text(order)
        snapshot = sampler.sample()
        assert not snapshot.metrics
        assert set(snapshot.unavailable) == set(before.metrics)
        assert words in snapshot.backends[0].detail
        assert [device.key for device in snapshot.devices] == ["gpu.0", "gpu.1"]
        script.write_text("")
        until(lambda: len(sampler.sample().metrics) == 6)


def test_a_killed_child_is_replaced_and_devices_keep_their_numbers(script: Path) -> None:
    with isolated(script) as sampler:
        victim = int(sampler.sample().metrics["gpu.0.pid"])
        os.kill(victim, signal.SIGKILL)
        snapshot = sampler.sample()
        assert "killed by signal 9 (SIGKILL)" in snapshot.backends[0].detail
        assert snapshot.unavailable["gpu.0.temp"].reason == Reason.DRIVER_UNAVAILABLE
        until(lambda: len(sampler.sample().metrics) == 6)
        assert sampler.sample().metrics["gpu.0.temp"] == 40
        assert sampler.sample().metrics["gpu.0.pid"] != victim


def test_a_hung_device_costs_only_itself(script: Path) -> None:
    with isolated(script) as sampler:
        sampler.sample()
        script.write_text("hang")
        snapshot = sampler.sample()
        assert snapshot.metrics["gpu.0.temp"] == 40
        assert snapshot.unavailable["gpu.1.temp"].reason == Reason.TIMED_OUT


def test_a_child_that_stops_as_a_whole_is_timed_out_and_replaced(script: Path) -> None:
    with isolated(script, timeout=0.3) as sampler:
        sampler.sample()
        script.write_text("stop")
        started = time.monotonic()
        snapshot = sampler.sample()
        assert time.monotonic() - started < 0.6
        assert {why.reason for why in snapshot.unavailable.values()} == {Reason.TIMED_OUT}
        assert snapshot.backends[0].status == "timed_out"
        script.write_text("")
        until(lambda: len(sampler.sample().metrics) == 6, 10.0)


def test_what_a_library_prints_does_not_reach_the_programs_output(script: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with isolated(script) as sampler:
        script.write_text("print")
        assert len(sampler.sample().metrics) == 6
    assert capfd.readouterr().out == ""


def test_the_child_leaves_with_its_parent(script: Path, tmp_path: Path) -> None:
    program = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from tests.sampling.test_isolation import isolated
print(int(isolated(Path({str(script)!r})).sample().metrics["gpu.0.pid"]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
    pid = int(done.stdout)
    until(lambda: not Path(f"/proc/{pid}").exists() or "State:\tZ" in Path(f"/proc/{pid}/status").read_text())


def test_a_fork_starts_a_child_of_its_own_and_leaves_the_parents_alone(script: Path) -> None:
    with isolated(script) as sampler:
        first = sampler.sample().metrics["gpu.0.pid"]
        pid = os.fork()
        if pid == 0:
            ours = sampler.sample().metrics.get("gpu.0.pid", first)
            sampler.close()
            os._exit(0 if ours != first else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert sampler.sample().metrics["gpu.0.pid"] == first


def test_an_unknown_device_is_refused_here_too(script: Path) -> None:
    with Sampler([Scripted(script)], isolation="process", gpus=[7]) as sampler, pytest.raises(UnknownNameError, match="unknown device"):
        sampler.sample()


def test_a_backend_that_cannot_travel_is_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidOptionError, match="entry-point group"):
        Sampler([FakeBackend()], isolation="process")
