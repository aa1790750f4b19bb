"""``isolation="process"``: the child may hang, exit or be killed; the parent goes on, says so, and starts another."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import psutil
import pytest

from accelmetrics import Reason, Sampler, Snapshot
from accelmetrics.backends.contract import Coverage, Detection, Reading, ReadOptions
from accelmetrics.backends.registry import declared
from accelmetrics.sampling import engine as engines, isolation
from accelmetrics.sampling.engine import SHORTEST_BUDGET
from accelmetrics.sampling.isolation import Channel, ProcessEngine, ReadingProcess
from accelmetrics.sampling.options import checked
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceKind
from accelmetrics.schemas.metric import Metric
from accelmetrics.testing import FakeBackend
from tests.simulators import hanging
from tests.support.waiting import HANG, wait_for


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
        wait_for(lambda: self.script.read_text() != "open slowly")
        return self

    def coverage(self) -> Coverage:
        return declared(self.name)

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
            threading.Event().wait()
        if order == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if order == "hold the interpreter":
            ctypes.PyDLL(None).pause()
        if order == "start a helper":
            return Reading.of({"helper": subprocess.Popen(["/bin/sleep", "120"]).pid})
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


TIMEOUT = 1.0


def isolated(script: Path, timeout: float = TIMEOUT) -> Sampler:
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


def test_a_reading_whose_numbers_alone_differ_has_the_header_of_the_one_before(script: Path) -> None:
    """It does not cross the line again; one that differs does, also beside a part that does not."""
    with Sampler([Scripted(script), "host"], isolation="process") as sampler:
        heads = {id(sampler.sample().header) for _ in range(5)}
        script.write_text("sys.exit")
        failed = sampler.sample()
        script.write_text("")
        wait_for(lambda: "gpu.0.temp" in sampler.sample().metrics)
        again = sampler.sample()
    assert len(heads) <= 2, "the host's rates come with its second reading"
    assert {"gpu.0.temp", "gpu.1.temp"} <= failed.unavailable.keys()
    assert again.metrics.keys() >= {"gpu.0.temp", "cpu.0.cpu_percent"}


def test_only_wanted_metrics_cross_the_line_and_are_missed(script: Path) -> None:
    with Sampler([Scripted(script)], metrics="temp", isolation="process", timeout=TIMEOUT) as sampler:
        assert sampler.sample().metrics == {"gpu.0.temp": 40, "gpu.1.temp": 41}
        script.write_text("exit")
        assert set(sampler.sample().unavailable) == {"gpu.0.temp", "gpu.1.temp"}


def test_a_host_that_was_never_read_misses_what_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with Sampler(["host"], metrics="memory_percent", isolation="process", timeout=TIMEOUT) as sampler:
        assert set(sampler.sample().unavailable) == {"memory_percent"}


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
        wait_for(lambda: len(sampler.sample().metrics) == 6)


def killed(sampler: Sampler) -> float:
    """Kill the child, as seen by a reading."""
    victim = sampler.sample().metrics["gpu.0.pid"]
    os.kill(int(victim), signal.SIGKILL)
    missed = sampler.sample()
    assert "killed by signal 9 (SIGKILL)" in missed.backends[0].detail
    assert "killed by signal 9" in missed.unlisted["gpu.0"].detail
    assert missed.unavailable["gpu.0.temp"].reason == Reason.DRIVER_UNAVAILABLE
    return victim


def test_a_killed_child_is_replaced_and_devices_keep_their_numbers(script: Path) -> None:
    with isolated(script) as sampler:
        victim = killed(sampler)
        wait_for(lambda: len(sampler.sample().metrics) == 6)
        assert sampler.sample().metrics["gpu.0.temp"] == 40
        assert sampler.sample().metrics["gpu.0.pid"] != victim


def test_a_hung_device_costs_only_itself(script: Path) -> None:
    with isolated(script) as sampler:
        sampler.sample()
        script.write_text("hang")
        snapshot = sampler.sample()
        assert snapshot.metrics["gpu.0.temp"] == 40
        assert snapshot.unavailable["gpu.1.temp"].reason == Reason.TIMED_OUT


def test_a_child_that_stops_as_a_whole_is_timed_out_within_the_deadline_and_replaced(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    receive = Channel.receive

    def noted(channel: Channel, until: float | None) -> Any:
        waits.append((until or 0.0) - time.monotonic())
        return receive(channel, until)

    with isolated(script) as sampler:
        sampler.sample()
        script.write_text("stop")
        with monkeypatch.context() as patch:
            patch.setattr(Channel, "receive", noted)
            snapshot = sampler.sample()
        assert 0.0 < sum(waits) <= TIMEOUT, "it is not waited for beyond the deadline"
        assert {why.reason for why in snapshot.unavailable.values()} == {Reason.TIMED_OUT}
        assert snapshot.backends[0].status == "timed_out"
        script.write_text("")
        wait_for(lambda: len(sampler.sample().metrics) == 6)


def test_the_exit_status_of_a_child_that_ends_late_is_not_waited_for_beyond_the_deadline(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moment = [1000.0]
    waits: list[float] = []

    def receive(_: Channel, until: float) -> NoReturn:
        moment[0] = until - 0.01
        raise EOFError

    with isolated(script) as sampler:
        sampler.sample()
        moment[0] += time.monotonic()
        with monkeypatch.context() as patch:
            for module in (isolation, engines):
                patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: moment[0]))
            patch.setattr(Channel, "receive", receive)
            patch.setattr(ReadingProcess, "receive", lambda child: waits.append(child.control.gettimeout() or 0.0))
            assert "closed the channel" in sampler.sample().backends[0].detail
    assert waits == [pytest.approx(0.01)]


def test_what_the_libraries_of_the_child_started_leaves_with_it(script: Path) -> None:
    script.write_text("start a helper")
    with isolated(script) as sampler:
        helper = int(sampler.sample().metrics["gpu.0.helper"])
        assert not gone(helper)
    wait_for(lambda: gone(helper))


def test_an_answer_that_drips_is_not_waited_for_beyond_the_deadline() -> None:
    """Bytes keep coming for as long as it is waited for."""
    ours, theirs = socket.socketpair()
    enough = threading.Event()

    def drip() -> None:
        theirs.send((1 << 20).to_bytes(4, "big"))
        while not enough.wait(0.002):
            theirs.send(b"x")

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        with pytest.raises(BlockingIOError):
            Channel(ours).receive(time.monotonic() + 0.05)
    finally:
        enough.set()
        dripping.join()
        ours.close()
        theirs.close()


@pytest.mark.parametrize(("waited", "left"), [(0.25, 0.75), (5.0, SHORTEST_BUDGET)])
def test_a_thread_that_waited_for_another_has_what_is_left_of_its_time(
    script: Path, monkeypatch: pytest.MonkeyPatch, waited: float, left: float
) -> None:
    moment = [1000.0]
    waits: list[float] = []

    class Lock:
        def __enter__(self) -> None:
            moment[0] += waited * TIMEOUT

        def __exit__(self, *_: object) -> None: ...

    def receive(_: Channel, until: float) -> NoReturn:
        waits.append(until - moment[0])
        raise BlockingIOError

    with isolated(script) as sampler:
        sampler.sample()
        moment[0] += time.monotonic()
        with monkeypatch.context() as patch:
            for module in (isolation, engines):
                patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: moment[0]))
            patch.setattr(Channel, "receive", receive)
            patch.setattr(sampler._engine, "_lock", Lock())
            sampler.sample()
    assert waits == [pytest.approx(left * TIMEOUT)]


def test_what_a_library_prints_does_not_reach_the_programs_output(script: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with isolated(script) as sampler:
        script.write_text("print")
        assert len(sampler.sample().metrics) == 6
    assert capfd.readouterr().out == ""


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


class Mine(Scripted):
    """As one of the program that is run."""

    __module__ = "__main__"


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        (FakeBackend(), "entry-point group"),
        (Mine(Path()), r"Mine is defined in the main program.*move it into a module of its own"),
    ],
    ids=["scripted", "of the program"],
)
def test_a_backend_that_cannot_travel_is_refused_with_the_way_out(backend: FakeBackend | Mine, words: str) -> None:
    with pytest.raises(InvalidOptionError, match=words):
        Sampler([backend], isolation="process")


def test_while_another_is_starting_samples_answer_and_it_is_let_start(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, go = tmp_path / "starts", tmp_path / "go"
    slow = tmp_path / "slow-python"
    slow.write_text(f'#!/bin/sh\necho >>{starts}\nwhile [ ! -e {go} ]; do sleep 0.02; done\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    with isolated(script, timeout=0.2) as sampler:
        killed(sampler)
        monkeypatch.setattr(sys, "executable", str(slow))
        wait_for(lambda: sampler.sample().time_ns and starts.exists())
        for _ in range(5):
            snapshot = sampler.sample()
            assert snapshot.backends[0].detail == "the reading process is being started again"
            assert snapshot.unavailable["gpu.0.temp"].reason == "driver_unavailable"
        go.touch()
        wait_for(lambda: bool(sampler.sample().metrics))
        assert starts.read_text() == "\n\n", "one child and its watchdog"


def test_a_source_that_opens_slowly_again_keeps_its_devices_and_keys_and_samples_answer(script: Path) -> None:
    with isolated(script) as sampler:
        sampler.sample()
        victim = killed(sampler)
        script.write_text("open slowly")
        wait_for(lambda: "opened" in sampler.sample().backends[0].detail)
        snapshot = sampler.sample()
        assert [device.key for device in snapshot.devices] == ["gpu.0", "gpu.1"]
        assert {str(why.reason) for why in snapshot.unavailable.values()} == {"timed_out"}
        assert len(snapshot.unavailable) == 6
        assert snapshot.backends[0].sequence == 2
        script.write_text("")
        wait_for(lambda: len(sampler.sample().metrics) == 6)
        assert sampler.sample().metrics["gpu.0.pid"] != victim


class Unreadable(Scripted):
    """It goes into a pickle and does not come out."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _cannot, ()


def _cannot() -> NoReturn:
    raise RuntimeError("cannot be made again")


def test_what_ends_the_child_is_said_in_words(script: Path) -> None:
    with Sampler([Unreadable(script), "host"], isolation="process", timeout=0.5) as sampler:
        snapshot = sampler.sample()
        words = "the reading process failed: RuntimeError: cannot be made again; another will be started"
        assert [(status.status, status.detail == words) for status in snapshot.backends] == [("failed", True), ("ok", False)]


def test_a_vendor_that_ends_its_process_takes_no_host_metrics_along(script: Path) -> None:
    """Nor counts its reading twice, nor has devices looked for among the host's."""
    script.write_text("exit")
    with Sampler([Scripted(script), "host"], isolation="process", timeout=20.0, gpus=[1]) as sampler:
        for _ in range(3):
            snapshot = sampler.sample()
            assert [(status.name, status.status) for status in snapshot.backends] == [("scripted", "failed"), ("host", "ok")]
            assert "memory_percent" in snapshot.metrics
        script.write_text("")
        wait_for(lambda: "gpu.1.temp" in sampler.sample().metrics)
        whole = sampler.sample()
        assert "memory_percent" in whole.metrics
        assert [device.key for device in whole.devices] == ["gpu.1"]
        assert Snapshot.from_json(whole.to_json()) == whole
        assert sampler.statistics.readings == whole.backends[1].sequence


def test_a_backend_made_by_hand_travels_whatever_its_name(script: Path) -> None:
    backend = Scripted(script)
    backend.name = "nvidia"
    with Sampler([backend], isolation="process") as sampler:
        assert sampler.sample().metrics["gpu.1.temp"] == 41


def descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@pytest.mark.parametrize(
    "change", [("executable", "/nonexistent/python"), ("executable", ""), ("executable", None), ("frozen", True)], ids=str
)
def test_a_child_that_cannot_be_started_is_a_reason_and_leaves_nothing_open(
    script: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, object]
) -> None:
    """What freezes Python is no interpreter: started as one, it would start itself once more."""
    before = descriptors()
    with isolated(script) as sampler:
        with monkeypatch.context() as patch:
            patch.setattr(sys, *change, raising=False)
            snapshot = sampler.sample()
        assert snapshot.backends[0].detail.startswith("the reading process could not be started: ")
        assert not descriptors() - before
        assert sampler.sample().backends[0].detail == snapshot.backends[0].detail, "it is not tried again at once"
        wait_for(lambda: len(sampler.sample().metrics) == 6)


def test_when_no_descriptors_are_left_it_is_a_reason(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    with isolated(script) as sampler:
        monkeypatch.setattr(socket, "socketpair", full)
        assert "Too many open files" in sampler.sample().backends[0].detail


def program(script: Path, code: str) -> str:
    """A program of its own that has ``sampler``."""
    return f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from pathlib import Path
from tests.sampling.test_isolation import isolated
sampler = isolated(Path({str(script)!r}))
{code}"""


@pytest.mark.parametrize("closed", ["2>&-", "2>&- <&-"])
def test_standard_streams_may_be_closed(script: Path, closed: str) -> None:
    script.write_text("print")
    code = program(script, "print(len(sampler.sample().metrics), len(sampler.sample().metrics)); sampler.close()")
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code], capture_output=True, text=True, timeout=2 * HANG
    )
    assert done.stdout == "6 6\n"


def test_the_path_may_hold_what_is_no_text(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/nonexistent"), None])
    with isolated(script) as sampler:
        assert len(sampler.sample().metrics) == 6


class Absent(Scripted):
    """Not on this machine."""

    name = "absent"

    def detect(self) -> Detection:
        return Detection(False, "no such hardware")


def engine(*backends: Scripted) -> ProcessEngine:
    """As a sampler that leaves the choice of backends to detection has it."""
    options = checked(gpus=None, pid=None, children=False, disk_paths=("/",), timeout=0.5, open_timeout=0.5)
    return ProcessEngine(backends, frozenset(), options)


def test_counting_goes_on_and_the_absent_stay_absent_while_the_child_is_replaced(script: Path) -> None:
    taker = engine(Absent(script), Scripted(script))
    for _ in range(3):
        before = taker.sample()
    assert (before.backends[1].sequence, taker.statistics) == (3, (3, 0, 0))
    os.kill(int(before.metrics["gpu.0.pid"]), signal.SIGKILL)
    away = taker.sample()
    assert [(status.status, status.sequence) for status in away.backends] == [("absent", 0), ("failed", 3)]
    assert away.backends[0] == before.backends[0]
    taken = [before, before, before, away]

    def is_back() -> bool:
        taken.append(taker.sample())
        return bool(taken[-1].metrics)

    wait_for(is_back)
    assert taken[-1].backends[1].sequence > 3
    timed_out = sum(one.backends[1].status == "timed_out" for one in taken)  # on a busy machine
    assert taker.statistics[:2] == (len(taken), timed_out)
    taker.close()


class Vanishing(Scripted):
    """Its hardware is there or not, as the file says."""

    def detect(self) -> Detection:
        return Detection(self.script.read_text() != "absent", "a look at the bus", 2)


def test_a_source_that_a_new_child_does_not_find_is_missed_and_read_again_when_it_is_back(script: Path) -> None:
    taker = engine(Vanishing(script))
    before = taker.sample()
    script.write_text("absent")
    os.kill(int(before.metrics["gpu.0.pid"]), signal.SIGKILL)
    wait_for(lambda: taker.sample().backends[0].detail == "a look at the bus")
    away = taker.sample()
    assert (away.backends[0].status, away.backends[0].sequence) == ("failed", before.backends[0].sequence)
    assert away.unavailable == dict.fromkeys(before.metrics, (Reason.DRIVER_UNAVAILABLE, "a look at the bus"))
    assert away.identities == before.identities
    script.write_text("")
    wait_for(lambda: taker.sample().metrics.keys() == before.metrics.keys())
    taker.close()


class Stuck(Scripted):
    """A vendor whose library is loaded with the interpreter's lock held, and never returns from that."""

    name = "stuck"
    devices = (DeviceIdentity("gpu", "stuck", 0, uuid="GPU-7777-0"),)

    def detect(self) -> Detection:
        return Detection(True, "one", 1)

    def open(self) -> Scripted:
        ctypes.CDLL(self.script.read_text())
        return self


def test_a_vendor_whose_library_hangs_takes_no_other_along(script: Path, tmp_path: Path) -> None:
    """Each has a child of its own, the numbers set aside for its devices, and is replaced by itself."""
    library = tmp_path / "library"
    library.write_text(str(hanging.library()))
    with Sampler([Stuck(library), Scripted(script), "host"], isolation="process", timeout=TIMEOUT, open_timeout=0.5) as sampler:
        snapshot = sampler.sample()
        assert {status.name: status.status for status in snapshot.backends} == {"scripted": "ok", "stuck": "timed_out", "host": "ok"}
        assert {"gpu.0.temp", "gpu.1.temp", "memory_percent"} <= snapshot.metrics.keys()
        wait_for(lambda: "was ended" in sampler.sample().backends[1].detail)
        library.write_text(str(hanging.library(returns=True)))
        wait_for(lambda: sampler.sample().backends[1].status == "ok")
        whole = sampler.sample()
        assert [(device.key, device.vendor) for device in whole.devices] == [("gpu.0", "acme"), ("gpu.1", "acme"), ("gpu.2", "stuck")]
        assert int(whole.metrics["gpu.0.pid"]) != int(whole.metrics["gpu.2.pid"])
        assert Snapshot.from_json(whole.to_json()) == whole


def test_vendors_share_a_child_where_one_alone_is_here(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or where it is not known in time what is here: a detection that hangs is not repeated beside it."""
    begun = threading.Event()

    def detect(_: Scripted) -> Detection:
        begun.wait()
        return Detection(True, "one", 1)

    backends = [Scripted(script), Second(script)]
    assert [part for part, _ in isolation.divided(backends)] == [[each] for each in backends]
    with monkeypatch.context() as patch:
        patch.setattr(Second, "detect", lambda self: Detection(False, "none"))
        assert isolation.divided(backends) == []
    with monkeypatch.context() as patch:
        patch.setattr(Second, "detect", detect)
        patch.setattr(isolation, "DETECTION", 0.05)
        assert isolation.divided(backends) == isolation.divided(backends) == []
        assert len([thread for thread in threading.enumerate() if thread.name == "accelmetrics-detection"]) == 1
        begun.set()
    wait_for(lambda: len(isolation.divided(backends)) == 2)


class Second(Scripted):
    """Of another vendor."""

    name = "second"
    devices = (DeviceIdentity("gpu", "second", 0, uuid="GPU-9999-0"),)

    def detect(self) -> Detection:
        return Detection(True, "one", 1)


def test_places_set_aside_for_a_vendor_that_opens_late_survive_the_child(script: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("")
    script.write_text("open slowly")
    taker = engine(Scripted(script), Second(other))
    first = taker.sample()
    assert [(device.key, device.vendor) for device in first.devices] == [("gpu.2", "second")]
    os.kill(int(first.metrics["gpu.2.pid"]), signal.SIGKILL)
    script.write_text("")
    wait_for(lambda: len(taker.sample().devices) == 3)
    assert [(device.key, device.vendor) for device in taker.sample().devices] == [("gpu.0", "acme"), ("gpu.1", "acme"), ("gpu.2", "second")]
    taker.close()


def test_a_sampler_can_be_closed_in_the_child_of_a_fork_that_another_thread_was_sampling_at(script: Path) -> None:
    with isolated(script, timeout=5.0) as sampler:
        sampler.sample()
        script.write_text("hang")
        thread = threading.Thread(target=sampler.sample)
        thread.start()
        wait_for(sampler._engine._lock.locked)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(HANG))
            sampler.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        thread.join()


def test_a_forked_worker_that_never_samples_does_not_keep_the_child(script: Path) -> None:
    with isolated(script) as sampler:
        reader = int(sampler.sample().metrics["gpu.0.pid"])
        worker = os.fork()
        if worker == 0:
            signal.pause()
            os._exit(0)
        sampler.close()
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
    assert gone(reader)


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_the_child_leaves_with_its_parent_whoever_that_has_forked(script: Path) -> None:
    code = """
print(int(sampler.sample().metrics["gpu.0.pid"]), flush=True)
worker = os.fork()
if worker == 0:
    signal.pause()
print(worker, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    running = subprocess.Popen([sys.executable, "-c", program(script, code)], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    reader, worker = int(running.stdout.readline()), int(running.stdout.readline())
    running.wait()
    running.stdout.close()
    try:
        wait_for(lambda: gone(reader))
        assert not gone(worker)
    finally:
        os.kill(worker, signal.SIGKILL)


@pytest.mark.parametrize("order", ["stop", "hold the interpreter"])
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "sampler.close()", "os._exit(0)"])
def test_a_child_that_cannot_run_leaves_with_its_parent(script: Path, order: str, end: str) -> None:
    code = f"""
print(int(sampler.sample().metrics["gpu.0.pid"]), flush=True)
Path({str(script)!r}).write_text({order!r})
sampler.sample()
{end}
"""
    done = subprocess.run([sys.executable, "-c", program(script, code)], stdout=subprocess.PIPE, text=True, timeout=2 * HANG)
    wait_for(lambda: gone(int(done.stdout)))


def test_ctrl_c_is_for_the_program(script: Path) -> None:
    with isolated(script) as sampler:
        assert os.getsid(int(sampler.sample().metrics["gpu.0.pid"])) != os.getsid(0)


@pytest.mark.filterwarnings("error")
def test_a_sampler_that_is_forgotten_lets_its_child_go(script: Path, recwarn: pytest.WarningsRecorder) -> None:
    sampler = isolated(script)
    reader = int(sampler.sample().metrics["gpu.0.pid"])
    del sampler
    gc.collect()
    wait_for(lambda: gone(reader))
    assert not recwarn.list


def test_samplers_that_are_forgotten_leave_no_zombies(script: Path) -> None:
    """Neither that of the vendors' child nor that of the host's, though no other is ever started or ended."""
    samplers = [Sampler([Scripted(script), "host"], isolation="process") for _ in range(2)]
    for sampler in samplers:
        sampler.sample()
    watchdogs = [part._child.pid for sampler in samplers for part in sampler._engine._parts]  # type: ignore[union-attr]
    assert len(watchdogs) == 4
    del samplers, sampler
    gc.collect()
    wait_for(lambda: not any(map(psutil.pid_exists, watchdogs)))


def test_a_program_that_ends_without_closing_is_quiet_and_does_not_wait(script: Path) -> None:
    code = program(script, "print(int(sampler.sample().metrics['gpu.0.pid']))")
    done = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, text=True, timeout=2 * HANG)
    assert done.stderr == ""
    wait_for(lambda: gone(int(done.stdout)))


@pytest.mark.skipif(sys.platform != "linux", reason="platform: only Linux hands orphans to another process than the first")
def test_a_child_that_is_replaced_leaves_no_zombie_where_orphans_are_handed_to_the_program(script: Path) -> None:
    """As in a container of which it is the first process."""
    code = f"""
import ctypes, psutil
from tests.support.waiting import wait_for
PR_SET_CHILD_SUBREAPER = 36
ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
sampler.sample()
before = psutil.Process().children(recursive=True)
Path({str(script)!r}).write_text("stop")
wait_for(lambda: "was ended" in sampler.sample().backends[0].detail)
Path({str(script)!r}).write_text("")
wait_for(lambda: len(sampler.sample().metrics) == 6)
sampler.close()
print(len(before), [child.status() for child in psutil.Process().children()])
"""
    done = subprocess.run([sys.executable, "-c", program(script, code)], capture_output=True, text=True, timeout=2 * HANG)
    assert done.stdout == "2 []\n", done.stderr


def test_a_child_that_cannot_be_killed_is_not_waited_for(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with isolated(script, timeout=0.2) as sampler:
        stuck = int(sampler.sample().metrics["gpu.0.pid"])
        watchdog = sampler._engine._parts[0]._child.pid  # type: ignore[union-attr]
        os.kill(watchdog, signal.SIGSTOP)
        script.write_text("stop")
        with monkeypatch.context() as patch:
            patch.setattr(os, "killpg", lambda *_: None)
            wait_for(lambda: "was ended" in sampler.sample().backends[0].detail)
        assert not gone(stuck)
        script.write_text("")
        wait_for(lambda: len(sampler.sample().metrics) == 6)
        os.kill(watchdog, signal.SIGCONT)
        wait_for(lambda: gone(stuck))


@pytest.mark.skipif(sys.gettrace() is not None, reason="platform: another trace function is in use")
def test_an_interrupt_in_the_middle_of_a_message_costs_one_child_at_most(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    with isolated(script) as sampler:
        victim = int(sampler.sample().metrics["gpu.0.pid"])
        for message in ("send", "receive"):
            with monkeypatch.context() as patch:
                patch.setattr(Channel, message, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    sampler.sample()
            wait_for(lambda: len(sampler.sample().metrics) == 6)
        wait_for(lambda: gone(victim))
