"""The end of the program, forks and Ctrl-C: a monitor neither keeps it from them nor loses what it can still deliver."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from accelmetrics.monitor.monitor import Monitor
from accelmetrics.monitor.run import EXIT_TIMEOUT
from tests.monitor.watching import Recorder, gpus, no_threads, program
from tests.sampling.conftest import until
from tests.sampling.test_fork_and_exit import in_child, needs_fork
from tests.support.waiting import HANG

PREFACE = """
import atexit, os, sys, threading, time
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.testing import FakeBackend
gpus = FakeBackend(devices=1)
gpus.device(0).set(powerWatts=100.0)
def say(what):
    os.write(1, f"{what}\\n".encode())
class Exporter:
    name = "lines"
    def open(self): pass
    def export(self, record): say(record.monitor.ticks)
    def flush(self): say("flush")
    def close(self): say("close")
def for_ever(*_): threading.Event().wait()
def ticks(monitor, count):
    while monitor.status.ticks < count:
        time.sleep(0.005)
"""
LIMIT = HANG
"""Seconds after which an exit is taken for one that waits for what hangs; what hangs here does so for ever."""
INTERRUPTED = {-signal.SIGINT, 1}
"""What a program ends with on Ctrl-C; 1 when another thread evaluated a string meanwhile, which has CPython forget the reason."""
TIMED = 'atexit.register(lambda: print("exit took", time.monotonic() - exiting, file=sys.stderr))\n'
"""Registered before the monitor's own, hence called after it."""


def run(text: str) -> tuple[float, int, str, str]:
    """Run a program that says when it begins to end; gives how long that took, its status, output and errors."""
    _, status, output, errors = program(f"import atexit, sys, time\n{TIMED}{PREFACE}{textwrap.dedent(text)}")
    lines = errors.splitlines()
    spent = [float(line.split()[-1]) for line in lines if line.startswith("exit took")]
    assert spent, errors
    return spent[0], status, output, "\n".join(line for line in lines if not line.startswith("exit took"))


def test_a_program_that_just_ends_has_its_last_reading_delivered() -> None:
    """Without a stop, and without a word."""
    spent, status, output, errors = run("""
        monitor = Monitor(3600, [Exporter()], backends=[gpus]).start()
        ticks(monitor, 1)
        exiting = time.monotonic()
    """)
    assert (status, output, errors) == (0, "1\n2\nflush\nclose\n", "")
    assert spent < LIMIT


def test_the_limit_of_all_monitors_is_two_seconds() -> None:
    """For every driver and exporter together."""
    assert EXIT_TIMEOUT < 2.0


@pytest.mark.parametrize("hang", ["gpus.device(0).hang()", "gpus.opening.hang()", "", "Exporter.export = lambda self, record: 1 / 0"])
def test_exit_waits_for_nothing_that_hangs(hang: str) -> None:
    """A call into the driver, and exporters that hang at each of their methods, beside each other: two seconds for all of them."""
    hung = "" if hang else "setattr(hung[-1], name, lambda *_, name=name: (called.append(name), for_ever()))"
    waiting = "while len(called) < 2: time.sleep(0.005)" if not hang else "while threading.active_count() < 6: time.sleep(0.005)"
    spent, status, _, errors = run(f"""
        {hang}
        hung, called = [], []
        for name in ("open", "export", "flush", "close"):
            hung.append(Exporter())
            {hung}
        monitors = [Monitor(0.05 + number / 100, [hung[number]], backends=[gpus]).start() for number in range(4)]
        {waiting}
        exiting = time.monotonic()
    """)
    assert status == 0
    assert spent < LIMIT
    assert "Traceback" not in errors


def test_one_monitor_that_hangs_does_not_keep_another_from_closing_its_exporters() -> None:
    """They are stopped side by side, whatever their order."""
    spent, status, output, _ = run("""
        class Hung(Exporter):
            def export(self, record): for_ever()
            def close(self): say("never")
        monitors = [Monitor(50.0 + number, [Hung() if number % 2 else Exporter()], backends=[gpus]).start() for number in range(4)]
        for monitor in monitors:
            ticks(monitor, 1)
        exiting = time.monotonic()
    """)
    assert (status, sorted(output.split())) == (0, ["1", "1", "2", "2", "close", "close", "flush", "flush"])
    assert spent < LIMIT


def test_a_monitor_is_stopped_before_what_the_program_had_registered() -> None:
    """A tracker's run that was begun before the monitor is still open when the last record comes."""
    _, status, output, _ = run("""
        atexit.register(say, "tracker ends")
        Monitor(3600, [Exporter()], backends=[gpus]).start().stop()
        atexit.register(say, "later tracker ends")
        monitor = Monitor(3600, [Exporter()], backends=[gpus]).start()
        ticks(monitor, 1)
        monitor.flush()
        say("exit")
        exiting = time.monotonic()
    """)
    assert status == 0
    assert re.fullmatch(r"(\d+\n)+flush\nclose\nlater tracker ends\ntracker ends\n", output.split("exit\n")[1])


def test_an_exit_by_error_is_the_programs_own() -> None:
    """Its status and its traceback, with the monitor stopped before."""
    spent, status, output, errors = run("""
        exiting = time.monotonic()
        with Monitor(3600, [Exporter()], backends=[gpus]) as monitor:
            ticks(monitor, 1)
            raise RuntimeError("the program's own")
    """)
    assert (status, output) == (1, "1\n2\nflush\nclose\n")
    assert errors.count("Traceback") == 1
    assert spent < LIMIT


def interrupt(body: str, *marks: str) -> tuple[int, str, str]:
    """Run a program and send it Ctrl-C each time that it has printed a mark; gives its status, output and errors."""
    command = [sys.executable, "-c", PREFACE + textwrap.dedent(body)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stderr is not None
            lines = []
            for mark in marks:
                while (line := child.stdout.readline()) != f"{mark}\n":
                    assert line, child.communicate()
                    lines.append(line)
                child.send_signal(signal.SIGINT)
            output, errors = child.stdout.read(), child.stderr.read()  # communicate() would miss what readline() has buffered
            return child.wait(HANG), "".join(lines) + output, errors
        finally:
            child.kill()


def test_ctrl_c_stops_the_monitor_and_then_the_program() -> None:
    """It reaches the program at once; the last reading is delivered on the way out."""
    text = """
        with Monitor(3600, [Exporter()], backends=[gpus]) as monitor:
            ticks(monitor, 1)
            monitor.flush()
            say("ready")
            for_ever()
    """
    status, output, errors = interrupt(text, "ready")
    assert status in INTERRUPTED
    assert output == "1\nflush\n2\nflush\nclose\n"
    assert "KeyboardInterrupt" in errors


def test_a_second_ctrl_c_cuts_the_stop_short_and_the_rest_is_done_within_the_limit() -> None:
    """An exporter that hangs for ever cannot hold a program that its user wants to end; the others are closed all the same."""
    text = """
        class Hung(Exporter):
            def export(self, record):
                if record.monitor.ticks > 1:
                    say("last")
                    for_ever()
            def close(self): say("never")
        with Monitor(3600, [Hung(), Exporter()], backends=[gpus]) as monitor:
            ticks(monitor, 1)
            monitor.flush()
            say("ready")
            for_ever()
        """
    status, output, errors = interrupt(text, "ready", "last")
    assert status in INTERRUPTED
    assert [line for line in output.split() if line != "flush"] == ["1", "2", "close"]
    assert "KeyboardInterrupt" in errors


def test_ctrl_c_anywhere_leaves_a_monitor_that_can_be_stopped() -> None:
    """Interrupted dozens of times in the middle of windows, logs, starts and stops, it deadlocks nowhere."""
    text = """
        import _thread, random
        monitor = Monitor(0.01, [Exporter()], backends=[gpus])
        Exporter.export = lambda self, record: None
        Exporter.flush = Exporter.close = lambda self: None
        caught = 0
        def annoy():
            chance = random.Random(16)
            while caught < 60:
                time.sleep(chance.uniform(0.005, 0.03))
                _thread.interrupt_main()
        annoying = threading.Thread(target=annoy, daemon=True)
        annoying.start()
        while annoying.is_alive():
            try:
                monitor.start()
                with monitor.window("w") as window:
                    monitor.log(step=1, loss=2.0, tokens=5)
                    monitor.history.to_dict()
                    window.summary
                monitor.windows[-1].summary
                monitor.flush(0.05)
                if caught % 3 == 0:
                    monitor.stop(0.5)
            except KeyboardInterrupt:
                caught += 1
        monitor.start()
        before = monitor.status.ticks
        ticks(monitor, before + 3)
        assert "gpu.0.powerWatts" in monitor.latest.metrics
        with monitor.window("last") as window:
            while not window.summary:
                time.sleep(0.005)
        assert window.summary["gpu.0.powerWatts"].count >= 1
        monitor.stop()
        assert not monitor.running
        print("survived", flush=True)
    """
    _, status, output, errors = program(PREFACE + textwrap.dedent(text))
    assert (status, output, errors) == (0, "survived\n", "")


@needs_fork
def test_a_forked_child_has_a_monitor_that_is_not_running_and_can_be_started() -> None:
    """It has the same labels and its own history; the parent's goes on undisturbed."""
    exporter = Recorder()
    monitor = Monitor(0.02, [exporter], backends=[gpus(1)], history=7)
    with monitor:
        until(lambda: monitor.status.ticks >= 3)
        window = monitor.window("across").begin()

        def child() -> bool:
            fresh = not monitor.running and monitor.latest is None and len(monitor.history) == 0 and monitor.status.ticks == 0
            window.end()
            ended = len(window.summary) < 3
            monitor.log(loss=1.0)
            with monitor, monitor.window("own") as own:
                until(lambda: monitor.status.ticks >= 3)
            return fresh and ended and own.summary["gpu.0.powerWatts"].count > 0 and len(monitor.history) >= 3 and not monitor.running

        for _ in range(10):
            assert in_child(child) == 0
        before = monitor.status.ticks
        until(lambda: monitor.status.ticks >= before + 3)
        window.end()
        assert window.summary["gpu.0.powerWatts"].count > 3
    assert monitor.status.exporters[0].failed == 0


@needs_fork
def test_forks_in_the_middle_of_anything_leave_children_that_can_use_what_they_have() -> None:
    """Whatever lock some thread held at that moment: nothing hangs, and the child ends at once."""
    monitor = Monitor(0.01, [Recorder()], backends=[gpus(2)])
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            with monitor.window("w") as window:
                monitor.log(loss=1.0, tokens=3)
            _ = (window.summary, monitor.history.to_dict(), monitor.status)

    with monitor:
        outer = monitor.window("outer").begin()
        workers = [threading.Thread(target=busy) for _ in range(3)]
        for worker in workers:
            worker.start()
        try:

            def child() -> bool:
                _ = (outer.summary, outer.end().energy_joules, [window.summary for window in monitor.windows], monitor.history.to_dict())
                monitor.log(loss=2.0)
                monitor.stop()
                return monitor.status.ticks == 0

            assert [in_child(child) for _ in range(40)] == [0] * 40
        finally:
            stop.set()
            for worker in workers:
                worker.join()
    no_threads("accelmetrics-")


@needs_fork
def test_a_forked_child_ends_without_touching_the_parents_exporters() -> None:
    """Not even when it ends as a program does, with its exit functions."""
    spent, status, output, _ = run("""
        monitor = Monitor(3600, [Exporter()], backends=[gpus]).start()
        ticks(monitor, 1)
        monitor.flush()
        child = os.fork()
        exiting = time.monotonic()
        if child == 0:
            sys.exit(3)
        say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        exiting = time.monotonic()
    """)
    assert (status, output.split()) == (0, ["1", "flush", "3", "2", "flush", "close"])
    assert spent < LIMIT
