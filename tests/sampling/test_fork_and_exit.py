"""Forks, exits and threads: what a library inside somebody else's program must survive."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from accelmetrics import Sampler
from accelmetrics.testing import FakeBackend

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="platform: no fork")


def in_child(work: object) -> int:
    """Run a callable in a forked child; its exit status is 0 when the callable was true."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if work() else 2  # type: ignore[operator]
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@needs_fork
def test_a_forked_child_samples_at_once(gpus: FakeBackend) -> None:
    with Sampler([gpus], timeout=0.5) as sampler:
        before = sampler.sample()
        for _ in range(20):
            assert in_child(lambda: len(sampler.sample().metrics) == 8) == 0
        assert len(sampler.sample().metrics) == 8
        assert [device.key for device in before.devices] == [device.key for device in sampler.sample().devices]


@needs_fork
def test_a_fork_while_other_threads_sample_leaves_a_working_child(gpus: FakeBackend) -> None:
    stop = threading.Event()
    with Sampler([gpus], timeout=0.5) as sampler:
        threads = [threading.Thread(target=lambda: [sampler.sample() for _ in iter(stop.is_set, True)]) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            assert [in_child(lambda: len(sampler.sample().metrics) == 8) for _ in range(20)] == [0] * 20
        finally:
            stop.set()
            for thread in threads:
                thread.join()


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
def test_a_fork_beside_a_hung_call_leaves_a_child_that_answers_in_time(gpus: FakeBackend) -> None:
    with Sampler([gpus], timeout=0.3) as sampler:
        sampler.sample()
        gpus.device(0).hang()
        sampler.sample()

        def child() -> bool:
            started = time.monotonic()
            snapshot = sampler.sample()
            return time.monotonic() - started < 1.0 and len(snapshot.metrics) == 6

        assert in_child(child) == 0
        gpus.device(0).release()


def run(program: str) -> tuple[float, int, str]:
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=30)
    return time.monotonic() - started, done.returncode, done.stdout + done.stderr


def test_exit_never_waits_for_a_hung_call() -> None:
    seconds, status, output = run("""
        import accelmetrics
        from accelmetrics.testing import FakeBackend
        gpus = FakeBackend(devices=2)
        sampler = accelmetrics.Sampler([gpus], timeout=0.2)
        sampler.sample()
        gpus.device(0).hang()
        print(sampler.sample().backends[0].status)
    """)
    assert (status, output) == (0, "degraded\n")
    assert seconds < 3.0


def test_exit_never_waits_for_a_hung_opening() -> None:
    seconds, status, output = run("""
        import accelmetrics
        from accelmetrics.testing import FakeBackend
        gpus = FakeBackend(devices=2)
        gpus.hang_open()
        print(accelmetrics.sample([gpus], open_timeout=0.2).backends[0].status)
    """)
    assert (status, output) == (0, "timed_out\n")
    assert seconds < 3.0


def test_importing_the_package_loads_no_model_no_vendor_library_and_no_framework() -> None:
    _, status, output = run("""
        import sys
        import accelmetrics
        assert "sample" in dir(accelmetrics)
        loaded = {name.partition(".")[0] for name in sys.modules}
        print(sorted(loaded & {"pydantic", "psutil", "pynvml", "torch", "ctypes", "asyncio", "subprocess", "importlib.metadata"}))
    """)
    assert (status, output) == (0, "[]\n")
