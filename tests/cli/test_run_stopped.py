"""``run`` that is stopped and goes on, that loses its terminal, and that is given commands which shells alone know how to run."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from accelmetrics.cli import run as command
from accelmetrics.cli.run import Signals
from tests.cli.shell import COMMAND, call, environment, is_stopped, one_line, rest_of, run, start
from tests.cli.terminals import Terminal, shell
from tests.support.waiting import HANG, idle, wait_for

RUN = ("run", "--backends", "host", "--no-summary")
TELLS = """
import os, signal, sys, time
def told(number, frame):
    with open(sys.argv[1], "a") as file: file.write(signal.Signals(number).name + "\\n")
    if len(sys.argv) > 2: os._exit(int(sys.argv[2]))
for name in ("SIGHUP", "SIGCONT", "SIGUSR1"): signal.signal(getattr(signal, name), told)
print("ready", flush=True)
time.sleep(20)
"""


@contextmanager
def lost(*command: str) -> Iterator[Terminal]:
    """A command that leads the session of a terminal, and that says ``ready``; the terminal goes away when it has."""
    terminal = Terminal(command, environment())
    try:
        terminal.until("ready")
        terminal.hang_up()
        yield terminal
    finally:
        if terminal.process.poll() is None:
            os.killpg(terminal.process.pid, signal.SIGKILL)
        terminal.process.wait(HANG)


def test_a_stop_and_its_end_are_no_signal_that_was_sent(tmp_path: Path) -> None:
    """However often it was stopped, and wherever it waited: the command goes on, and its status is ours."""
    end = tmp_path / "end"
    process = start(*RUN, "--", "sh", "-c", f"echo ready; until [ -e {end} ]; do sleep 0.05; done")
    assert process.stdout.readline() == "ready\n"
    for _ in range(8):
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: is_stopped(process.pid))
        process.send_signal(signal.SIGCONT)
        wait_for(lambda: not is_stopped(process.pid))
    end.touch()
    assert (*rest_of(process), process.returncode) == ("", "", 0)


def test_a_command_that_waited_in_the_background_for_the_terminal_is_brought_to_the_front() -> None:
    """It read and was stopped, `accelmetrics run` with it; ``fg`` lets both go on."""
    with shell() as terminal:
        terminal.type(f"am {' '.join(RUN)} -- cat & wait $!; clear; jobs\r", "Stopped", lambda: not terminal.in_line_mode)
        terminal.type("fg\r", lambda: terminal.in_line_mode)
        terminal.type("hello\r\x04", r"^hello$\s^hello$")
        terminal.type("echo status $?\r", "^status 0$")
        assert "Traceback" not in "\n".join(terminal.everything)


def test_what_was_not_asked_for_is_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the system calls."""
    with Signals() as signals:
        found = iter([type("Info", (), {"si_signo": 1580671520, "si_code": 5})])
        monkeypatch.setattr(signal, "sigtimedwait", lambda numbers, seconds: next(found, None))
        assert signals.next() is None


def test_signals_are_passed_on_between_two_readings() -> None:
    """And at the cost of next to no CPU time while there are none."""
    program = (
        "import os, signal, time; signal.signal(signal.SIGUSR1, lambda *ignored: os.write(1, b'told\\n'))\n"
        "os.write(1, b'ready\\n')\n"
        "while True: time.sleep(5)\n"
    )
    process = start(*RUN, "--interval", "3600", "--", sys.executable, "-c", program)
    assert process.stdout.readline() == "ready\n"
    for _ in range(3):
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == "told\n"
    before = cpu_ticks(process.pid)
    idle(1.0)
    spent = cpu_ticks(process.pid) - before
    process.terminate()
    rest_of(process)
    assert spent / os.sysconf("SC_CLK_TCK") < 0.1


def cpu_ticks(pid: int) -> int:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


def test_a_terminal_that_goes_away_ends_the_command_of_its_leader(tmp_path: Path) -> None:
    """As it ends a command that was started alone; it is told once, and neither process is left over."""
    told = tmp_path / "told"
    with lost(*COMMAND, *RUN, "--", sys.executable, "-c", TELLS, str(told), "7") as terminal:
        assert terminal.process.wait(HANG) == 7
    assert told.read_text() in ("SIGHUP\n", "SIGCONT\n")
    with lost(*COMMAND, *RUN, "--", "sh", "-c", "echo ready; exec sleep 20") as terminal:
        assert terminal.process.wait(HANG) == 129


def test_a_hang_up_is_told_once(tmp_path: Path) -> None:
    """To a command that goes on after it: below another leader of the session the system tells it, and `run` does not."""
    told = tmp_path / "told"
    arguments = (*COMMAND, *RUN, "--", sys.executable, "-c", TELLS, str(told))
    with lost(*arguments) as terminal:
        assert sorted(_told_before_another(told, terminal.process.pid, "SIGCONT")) == ["SIGCONT", "SIGHUP"]
    told.unlink()
    leader = "import signal, subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); signal.pause()"
    with lost(sys.executable, "-c", leader, *arguments) as terminal:
        pid = int(terminal.raw.split()[0])
        assert _told_before_another(told, pid).count("SIGHUP") == 1
        os.kill(pid, signal.SIGKILL)
        for child in _running(str(told)):
            os.kill(child, signal.SIGKILL)


def _told_before_another(told: Path, pid: int, *more: str) -> list[str]:
    """What a command noted, once it has been hung up and has noted more: everything before another signal, which is passed on last."""
    wait_for(lambda: told.exists() and {"SIGHUP", *more} <= set(told.read_text().split()))
    os.kill(pid, signal.SIGUSR1)
    wait_for(lambda: "SIGUSR1" in told.read_text())
    return told.read_text().split("SIGUSR1")[0].split()


def _running(word: str) -> Iterator[int]:
    """The processes that have this word on their command line."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if word.encode() in (path / "cmdline").read_bytes():
                yield int(path.name)


@pytest.mark.parametrize("told", [True, False])
def test_who_leads_a_session_passes_a_hang_up_on(told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system does not tell who sent a signal too."""
    monkeypatch.setattr(command, "terminal_group", os.getpgrp)
    for leader, to_all in ((os.getpid(), False), (os.getpid() + 1, True)):
        monkeypatch.setattr(os, "getsid", lambda pid, leader=leader: leader)
        with Signals(told) as signals:
            if told:
                info = type("Info", (), {"si_signo": int(signal.SIGHUP), "si_code": 0x80})
                found = iter([info])
                monkeypatch.setattr(signal, "sigtimedwait", lambda numbers, seconds, found=found: next(found, None))
            else:
                signal.pthread_kill(threading.get_ident(), signal.SIGHUP)  # another thread of the tests might take it
            assert wait_for(signals.next) == (signal.SIGHUP, to_all)


def test_a_command_without_a_name() -> None:
    """Is one that is not found."""
    done = call(*RUN, "--", "", "argument")
    assert (done.returncode, one_line(done.stderr)) == (127, "accelmetrics run: command not found: ''")


@pytest.mark.parametrize("by", ["path", "name"])
def test_a_script_that_does_not_say_what_runs_it(tmp_path: Path, by: str) -> None:
    """Is run by the system's shell, as shells, env and timeout do it; with its arguments."""
    script = tmp_path / "plain"
    script.write_text('echo "$#: $1; $2"; exit 4\n')
    script.chmod(0o755)
    command = str(script) if by == "path" else script.name
    done = run(*RUN, "--", command, "a b", "*", env=environment(PATH=f"{tmp_path}:/bin"))
    assert (done.returncode, done.stdout, done.stderr) == (4, "2: a b; *\n", "")


def test_a_program_for_another_machine(tmp_path: Path) -> None:
    """Is no script."""
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF\x02\x01\x01\0\0\0\0")
    program.chmod(0o755)
    done = call(*RUN, "--", str(program))
    assert (done.returncode, one_line(done.stderr)) == (126, f"accelmetrics run: cannot run {program}: Exec format error")
