"""Nothing of a command outlives the program: neither the command nor its children nor its directory, however the program ends.

The ends that ``tests/test_nothing_outlives.py`` has no command for: at awkward moments, beside forks, of the watchdog itself.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import psutil
import pytest

from accelmetrics.backends.kit import commands
from accelmetrics.backends.kit.commands import Child
from accelmetrics.schemas.errors import SourceError
from tests.support.pids import gone
from tests.support.programs import Program
from tests.support.waiting import HANG, wait_for

SH = "/bin/sh"


class Traces:
    """What a command has left on the machine.

    Attributes:
        script: A shell script that writes down itself, its child and one in a session of its own, and goes on for long, whatever it
            is told.
        scratch: Where directories are made.
    """

    def __init__(self, directory: Path) -> None:
        self.scratch = directory / "scratch"
        self.scratch.mkdir()
        self._noted = directory / "noted"
        self.script = f"""
            trap '' HUP INT TERM
            echo text > left
            sleep 120 & echo $! > {self._noted}.new
            setsid sleep 120 & echo $! >> {self._noted}.new
            echo $$ >> {self._noted}.new
            mv {self._noted}.new {self._noted}
            while :; do sleep 1; done
        """

    @property
    def pids(self) -> list[int]:
        """The processes; empty as long as they are not all there."""
        return [int(pid) for pid in self._noted.read_text().split()] if self._noted.exists() else []

    def wait(self) -> None:
        """Wait until the command is at work."""
        wait_for(lambda: self.pids)

    def wait_for_none(self) -> None:
        """Wait until nothing is left."""
        wait_for(lambda: all(map(gone, self.pids)) and not list(self.scratch.iterdir()), what=lambda: list(self.scratch.iterdir()))


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Traces]:
    found = Traces(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(found.scratch))
    yield found
    for pid in found.pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


PREFACE = """
import ctypes, os, signal, sys, tempfile, threading
from accelmetrics.backends.kit import commands
from accelmetrics.backends.kit.watchdog import Watchdog
tempfile.tempdir, script = sys.argv[1:]
libc = ctypes.CDLL(None)

def run(script=script, timeout=100):
    try:
        commands.run(["/bin/sh", "-c", script], timeout=timeout)
    except commands.SourceError:
        pass

def die_after(method):
    def dying(*arguments, **named):
        before(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)
    before = getattr(Watchdog, method)
    setattr(Watchdog, method, dying)
"""


def program(text: str, traces: Traces) -> Program:
    root = str(Path(commands.__file__).parents[3])
    return Program(PREFACE + dedent(text), str(traces.scratch), traces.script, env={**os.environ, "PYTHONPATH": root})


@pytest.mark.parametrize("moment", ["__init__", "receive", "release", "end", "await_end"])
def test_it_may_be_killed_at_any_step_of_a_run(moment: str, traces: Traces) -> None:
    """Of a run that ends by itself, and for the fourth of one that is late."""
    with program(f"die_after({moment!r})\nrun('echo out > left', 20)\nrun('sleep 120', 0.01)", traces) as running:
        assert running.end() == -signal.SIGKILL
    traces.wait_for_none()


def test_it_may_be_killed_before_its_command_has_its_files(traces: Traces) -> None:
    """More of them than a socket holds."""
    text = "die_after('__init__')\ncommands.Child(['/bin/sh', '-c', script], files={'a': 'x' * 100, 'b': 'y' * 3_000_000})"
    with program(text, traces) as running:
        assert running.end() == -signal.SIGKILL
    traces.wait_for_none()


FORKED = """
started = threading.Event()
before = Watchdog.__init__
def begin(*arguments, **named):
    before(*arguments, **named)
    pid = libc.fork()  # without what Python does at one: as a fork in the middle of a start
    if pid == 0:
        libc.pause()
    tell(pid)
Watchdog.__init__ = begin
"""


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)"], ids=["killed", "left"])
def test_a_fork_that_has_a_copy_of_everything_does_not_keep_it(end: str, traces: Traces) -> None:
    text = f"{FORKED}\nthreading.Thread(target=run, daemon=True).start()\nwait_to_go_on()\n{end}"
    with program(text, traces) as running:
        (fork,) = running.told()
        try:
            traces.wait()
            running.go_on()
            running.end()
            traces.wait_for_none()
            assert not gone(fork)
        finally:
            os.kill(fork, signal.SIGKILL)


def test_a_late_command_is_ended_beside_such_a_fork(traces: Traces) -> None:
    text = f"{FORKED}\nthreading.Timer(100, os._exit, (1,)).start()\nrun(timeout=3)\ntell('returned')\nwait_to_go_on()\nos._exit(0)"
    with program(text, traces) as running:
        (fork,) = running.told()
        try:
            assert running.told() == ["returned"]
            traces.wait_for_none()
            running.go_on()
            running.end()
        finally:
            os.kill(fork, signal.SIGKILL)


def test_forks_while_a_command_is_started_do_not_hold_it(traces: Traces) -> None:
    """A forked process that lives long, such as a data loader's worker, would keep open what its start is known by."""
    text = """
        from tests.support.waiting import wait_for
        ended = []
        def go_on():
            while True:
                run("exit 0")
                ended.append(1)
        threading.Thread(target=go_on, daemon=True).start()
        forked = []
        for _ in range(30):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            forked.append(pid)
            before = len(ended)
            wait_for(lambda: len(ended) > before)
        for pid in forked:
            os.kill(pid, signal.SIGKILL)
        tell(len(forked))
        os._exit(0)
    """
    with program(text, traces) as running:
        assert running.told() == [30]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_a_job_whose_processes_are_all_told_to_end_leaves_nothing(number: signal.Signals, traces: Traces) -> None:
    """As a service manager and a batch system do; the command does not listen, and the thread that runs it has the signals blocked."""
    text = """
        def unheard():
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
            run()
        threading.Thread(target=unheard, daemon=True).start()
        signal.pause()
    """
    with program(text, traces) as running:
        traces.wait()
        job = psutil.Process(running.pid)
        for process in [*job.children(recursive=True), job]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        running.end()
    traces.wait_for_none()


def test_where_the_watchdog_is_killed_the_command_is_ended_with_its_directory(traces: Traces) -> None:
    """With its group: what has left that is not known any more."""
    with Child([SH, "-c", traces.script]) as child:
        reading = child.read()
        next(reading)
        traces.wait()
        os.kill(child.process.pid, signal.SIGKILL)
        list(reading)
        assert child.process.ended
    assert not list(traces.scratch.iterdir())
    wait_for(lambda: sum(map(gone, traces.pids)) == 2)


def test_how_a_command_ended_is_known_in_a_program_that_ignores_the_end_of_its_children(traces: Traces) -> None:
    text = """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        tell(commands.run(["/bin/sh", "-c", "exit 3"], timeout=100).returncode)
    """
    with program(text, traces) as running:
        assert running.told() == [3]


@pytest.mark.skipif(sys.platform != "linux", reason="platform: only Linux hands orphans to another process than the first")
def test_a_late_command_leaves_no_zombie_where_orphans_are_handed_to_the_program(traces: Traces) -> None:
    """As in a container of which it is the first process."""
    text = """
        import psutil
        PR_SET_CHILD_SUBREAPER = 36
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        run("exec sleep 120", 0.2)
        tell([child.status() for child in psutil.Process().children()])
    """
    with program(text, traces) as running:
        assert running.told() == [[]]


@pytest.mark.parametrize("here", [False, True], ids=["no directory", "no such name"])
def test_files_that_cannot_be_written_are_a_reason(here: bool, traces: Traces, monkeypatch: pytest.MonkeyPatch) -> None:
    if not here:
        monkeypatch.setattr("tempfile.tempdir", str(traces.scratch / "none"))
    with Child([SH, "-c", traces.script], files={"a/b" if here else "a": "text"}) as child, pytest.raises(SourceError) as caught:
        list(child.read(HANG))
    assert caught.value.message == f"the files that {SH} needs cannot be written: No such file or directory"
    assert not traces.pids
    assert not list(traces.scratch.iterdir())


def test_files_of_any_size_are_there_when_the_command_starts(traces: Traces) -> None:
    with Child([SH, "-c", "cat a; wc -c < b"], files={"a": "text\n", "b": "y" * 3_000_000}) as child:
        printed = b"".join(piece for stream, piece in child.read(HANG) if stream == 0)
    assert printed == b"text\n3000000\n"
