"""No process of ours or of a vendor's tool outlives us, and no directory of theirs: every way of ending, of everything that runs tools.

The tool never answers, does not listen to signals, and has a child and another one in a session of its own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.cli.shell import environment
from tests.support.programs import Program
from tests.support.waiting import wait_for

TOOL = """#!/bin/sh
trap '' HUP INT TERM
echo text > left
sleep 120 &
setsid sleep 120 &
touch "$HOME/at-work"
while :; do sleep 1; done
"""
COMMAND = "from accelmetrics.cli import program; program()"
SAMPLER = """
import os, sys, threading
import accelmetrics
isolation, timeout, end = sys.argv[1:]
sampler = accelmetrics.Sampler(["rebellions"], isolation=isolation, timeout=float(timeout), open_timeout=float(timeout))
if end == "by itself":
    sampler.sample()
    sampler.close()
elif end.startswith("SIG"):
    sampler.sample()
else:
    threading.Thread(target=sampler.sample, daemon=True).start()
    wait_to_go_on()
    os._exit(3) if end == "os._exit" else 1 / 0
"""
FORMS = {
    "dump": (COMMAND, "dump", "--backends", "rebellions", "--settle", "0", "--timeout"),
    "list": (COMMAND, "list", "--backends", "rebellions", "--timeout"),
    "run": (COMMAND, "run", "--backends", "rebellions", "--timeout"),
    "watch": (COMMAND, "watch", "--backends", "rebellions", "--timeout"),
    "Sampler": (SAMPLER, "thread"),
    "isolation": (SAMPLER, "process"),
}
COMMAND_ENDS = ("by itself", "SIGINT", "SIGTERM", "SIGHUP", "SIGKILL")
PROGRAM_ENDS = (*COMMAND_ENDS, "os._exit", "exception")
CASES = [
    *((form, end) for form in ("dump", "list", "run") for end in COMMAND_ENDS),
    *(("watch", end) for end in COMMAND_ENDS[1:]),
    *((form, end) for form in ("Sampler", "isolation") for end in PROGRAM_ENDS),
]


class Machine:
    """A home, which every process has in its environment, a tool, and a place for temporary directories."""

    def __init__(self, directory: Path) -> None:
        self.home, self.temporary, programs = (directory / name for name in ("home", "tmp", "bin"))
        for made in (self.home, self.temporary, programs):
            made.mkdir()
        tool = programs / "rbln-smi"
        tool.write_text(TOOL)
        tool.chmod(0o755)
        self.environment = environment(HOME=str(self.home), TMPDIR=str(self.temporary), PATH=f"{programs}:/usr/bin:/bin")

    def tool_is_at_work(self) -> bool:
        return (self.home / "at-work").exists()

    def processes(self) -> list[psutil.Process]:
        """Those that were started there, and have not ended."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("HOME") == str(self.home) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def left(self) -> list[object]:
        """What there is of processes and directories."""
        return [*self.processes(), *self.temporary.iterdir()]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    for process in made.processes():
        process.kill()


@pytest.mark.parametrize(("form", "end"), CASES)
def test_nothing_is_left(form: str, end: str, machine: Machine) -> None:
    text, *arguments = FORMS[form]
    timeout = "2" if end == "by itself" else "100"
    rest = {COMMAND: (timeout,), SAMPLER: (timeout, end)}[text]
    watched = ("--", "/usr/bin/env", "-i", *(("/bin/sleep", "1") if end == "by itself" else ("/bin/cat",))) if form == "run" else ()
    inside, outside = os.pipe()  # what run runs is not ours to end: it ends with this
    try:
        with Program(text, *arguments, *rest, *watched, env=machine.environment, stdin=inside) as program:
            wait_for(machine.tool_is_at_work)
            if end.startswith("SIG"):
                os.kill(program.pid, signal.Signals[end])
            elif end != "by itself":
                program.go_on()
            program.end()
    finally:
        os.close(inside)
        os.close(outside)
    wait_for(lambda: not machine.left(), what=machine.left)
