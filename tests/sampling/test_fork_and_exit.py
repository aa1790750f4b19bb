"""Forks, exits and threads: what a library inside a program must survive."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.sampling import sources
from accelmetrics.testing import FakeBackend
from tests.sampling.conftest import beside
from tests.simulators.nvml import NvmlSimulator
from tests.support.programs import Program
from tests.support.waiting import HANG, Gate, wait_for

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="platform: no fork")


def in_child(work: Callable[[], object]) -> int:
    """Run a callable in a forked child; its exit status is 0 when the callable was true, 3 when it hung."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            watch = threading.Timer(HANG, os._exit, (3,))
            watch.daemon = True
            watch.start()
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@needs_fork
def test_a_forked_child_samples_at_once(gpus: FakeBackend) -> None:
    with Sampler([gpus], timeout=HANG) as sampler:
        before = sampler.sample()
        for _ in range(20):
            assert in_child(lambda: len(sampler.sample().metrics) == 8) == 0
        assert len(sampler.sample().metrics) == 8
        assert [device.key for device in before.devices] == [device.key for device in sampler.sample().devices]


@needs_fork
def test_a_fork_while_other_threads_sample_leaves_a_working_child(gpus: FakeBackend) -> None:
    """Not while they import what tests hold every snapshot to: Python leaves the lock of a module that is being imported to the child."""
    with Sampler([gpus], timeout=HANG) as sampler:
        sampler.sample()
    with Sampler([gpus], timeout=HANG) as sampler, beside(sampler.sample), beside(sampler.sample), beside(sampler.sample):
        assert [in_child(lambda: len(sampler.sample().metrics) == 8) for _ in range(20)] == [0] * 20


@needs_fork
def test_a_forked_child_watches_itself_unless_a_process_was_named(gpus: FakeBackend) -> None:
    with Sampler([gpus]) as sampler, Sampler([gpus], pid=1) as fixed:
        sampler.sample()
        fixed.sample()

        def child() -> bool:
            sampler.sample()
            fixed.sample()
            return [options.pid for options in gpus.options[-2:]] == [os.getpid(), 1]

        assert in_child(child) == 0


@needs_fork
def test_a_fork_beside_a_hung_call_leaves_a_child_that_answers(gpus: FakeBackend) -> None:
    with Sampler([gpus], timeout=0.5) as sampler:
        sampler.sample()
        gpus.device(0).hang()
        sampler.sample()
        assert in_child(lambda: len(sampler.sample().metrics) == 6) == 0
        gpus.device(0).release()


@needs_fork
def test_a_fork_waits_for_a_driver_that_is_being_opened(gpus: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-open driver, or an import of its module, would stay locked in the child."""
    monkeypatch.setattr(sources, "FORK_PATIENCE", HANG)
    gate = Gate()
    opening = gpus.open
    gpus.open = lambda: (gate(), opening())[1]  # type: ignore[func-returns-value, method-assign]
    with Sampler([gpus], timeout=HANG, open_timeout=HANG) as sampler:
        first = threading.Thread(target=sampler.sample)
        first.start()
        assert gate.entered.wait(HANG)
        release = threading.Timer(0.3, gate.release)
        release.start()
        assert in_child(lambda: gpus.opened == 1) == 0, "the parent's opening had ended"
        first.join()


@needs_fork
def test_a_fork_does_not_wait_for_an_opening_that_hangs(gpus: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "FORK_PATIENCE", 0.1)
    gpus.opening.hang()
    with Sampler([gpus], timeout=0.1, open_timeout=0.1) as sampler:
        sampler.sample()
        assert in_child(lambda: gpus.closed == 0) == 0
        gpus.opening.release()


@needs_fork
def test_a_fork_soon_after_a_start_leaves_a_child_that_samples() -> None:
    """Of a monitor that is still importing and opening its sources: forks at several moments of that, in programs of their own."""
    program = """
        import os, sys, time
        import accelmetrics
        monitor = accelmetrics.Monitor(0.05, backends=["host"])
        monitor.start()
        children = []
        for pause in (0.0, 0.002, 0.01, 0.02):
            time.sleep(pause)
            pid = os.fork()
            if pid == 0:
                snapshot = accelmetrics.sample(["host"])
                os._exit(0 if snapshot.backends[0].status == "ok" and snapshot.metrics else 1)
            children.append(pid)
        tell([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children])
        monitor.stop()
    """
    # Validation, which only tests add, has models built in the sampling thread.
    with Program(program, env={**os.environ, "ACCELMETRICS_VALIDATE": "0"}) as running:
        assert running.told() == [[0, 0, 0, 0]]
        assert running.end() == 0, running.errors


DAEMON = """
    import json, os, sys
    import accelmetrics
    isolation, result = sys.argv[1:]
    sampler = accelmetrics.Sampler(["nvidia", "host"], isolation=isolation, timeout=20.0)
    before = sampler.sample()
    monitor = accelmetrics.Monitor(0.05, backends=["nvidia", "host"], timeout=20.0)
    monitor.start()
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    assert [os.open(os.devnull, os.O_RDWR), os.dup(0), os.dup(0)] == [0, 1, 2]
    after = sampler.sample()
    monitor.start()
    monitor.stop()
    sampler.close()
    with open(f"{result}.draft", "w") as file:
        statuses = [status.status for status in (*after.backends, *monitor.latest.backends)]
        json.dump([statuses, sorted(before.metrics.keys() - after.metrics.keys()), monitor.error], file)
    os.rename(f"{result}.draft", result)
"""
"""Becomes a daemon as programs do: two forks, a session of its own, every descriptor closed."""


@needs_fork
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_daemon_samples_with_what_was_made_before_it_was_one(isolation: str, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    with NvmlSimulator(gpus=2) as simulator:
        environment = {**os.environ, **simulator.environment(), "ACCELMETRICS_VALIDATE": "0"}
        with Program(DAEMON, isolation, str(result), env=environment) as program:
            assert program.end() == 0, program.errors
            wait_for(result.exists, what=lambda: program.errors)
    assert json.loads(result.read_text()) == [["ok"] * 4, [], ""]


@needs_fork
def test_children_of_a_loop_of_forks_beside_a_monitor_have_every_source() -> None:
    """Forks at any moment of readings and of what follows them."""
    program = """
        import os, random
        import accelmetrics
        monitor = accelmetrics.Monitor(0.01, backends=["nvidia", "host"])
        monitor.start()
        chance, found = random.Random(7), []
        for _ in range(40):
            monitor.stop() if chance.random() < 0.2 else monitor.start()
            pid = os.fork()
            if pid == 0:
                snapshot = accelmetrics.sample(["nvidia", "host"], timeout=20.0)
                os._exit(0 if [status.status for status in snapshot.backends] == ["ok", "ok"] else 1)
            found.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        tell(found)
        monitor.stop()
    """
    with NvmlSimulator(gpus=1) as simulator:
        environment = {**os.environ, **simulator.environment(), "ACCELMETRICS_VALIDATE": "0"}
        with Program(program, env=environment) as running:
            assert running.told(4 * HANG) == [[0] * 40]
            assert running.end() == 0, running.errors


def run(program: str) -> tuple[int, str]:
    """Run a program to its end; one that waits for what hangs in it is killed after a while."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=2 * HANG)
    return done.returncode, done.stdout + done.stderr


def test_exit_never_waits_for_a_hung_call() -> None:
    assert run("""
        import accelmetrics
        from accelmetrics.testing import FakeBackend
        gpus = FakeBackend(devices=2)
        sampler = accelmetrics.Sampler([gpus], timeout=2.0)
        sampler.sample()
        gpus.device(0).hang()
        print(sampler.sample().backends[0].status)
    """) == (0, "degraded\n")


def test_exit_never_waits_for_a_hung_opening() -> None:
    assert run("""
        import accelmetrics
        from accelmetrics.testing import FakeBackend
        gpus = FakeBackend(devices=2)
        gpus.opening.hang()
        print(accelmetrics.sample([gpus], open_timeout=0.2).backends[0].status)
    """) == (0, "timed_out\n")
