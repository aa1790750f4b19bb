"""The command as a process: signals, pipes, terminals, and standard output that carries documents alone."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.cli.shell import COMMAND, document, documents, environment, on_path, one_line, plug_in, rest_of, run, start
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import HANG, idle, wait_for

HOST = ["dump", "--json", "--backends", "host", "--settle", "0"]
STREAM = ["dump", "--backends", "host", "--interval", "0.05"]

NOISY = """
import os, sys
print("noise from the interpreter")
os.write(1, b"noise from C\\n")
from accelmetrics.testing import FakeBackend
def backend():
    print("more noise")
    os.write(1, b"more noise from C\\n")
    return FakeBackend("noisy")
"""


def test_one_document_and_silence() -> None:
    """The host's real metrics, rates among them, exit status 0, not a word beside them."""
    done = run("dump", "--json", "--backends", "host")
    assert (done.returncode, done.stderr) == (0, "")
    assert {"memory_percent", "cpu"} <= document(done.stdout).metrics.keys()


def test_ctrl_c_ends_a_stream_quietly() -> None:
    """Whole lines, no traceback, the status that shells give."""
    process = start(*STREAM)
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, errors = rest_of(process)
    assert (process.returncode, errors) == (130, "")
    assert documents(first + rest)


@pytest.mark.parametrize("delay", [0.01, 0.03, 0.06, 0.1])
def test_ctrl_c_at_any_moment_shows_no_traceback_of_ours(delay: float) -> None:
    """While it starts, while it reads, while it waits: whichever it is at, after this or that pause."""
    program = "import sys; from accelmetrics.cli import program; sys.stderr.write('go'); sys.stderr.flush(); program()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *STREAM], env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert process.stderr.read(2) == "go"
    idle(delay)
    process.send_signal(signal.SIGINT)
    errors = rest_of(process)[1]
    assert (errors, process.returncode) == ("", 130) or ("KeyboardInterrupt" in errors and "accelmetrics" not in errors)


def test_ctrl_c_while_modules_are_loaded_shows_nothing() -> None:
    """Half of what a start takes is loading modules: none of them is named in a traceback."""
    program = (
        "import signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'accelmetrics.cli.main':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from accelmetrics.cli import program\n"
        "program()"
    )
    done = subprocess.run([sys.executable, "-c", program, *STREAM], env=environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_while_a_driver_hangs(simulator: NvmlSimulator) -> None:
    """A call that never returns delays no end."""
    simulator.rule("nvmlInitWithFlags", hang=True)
    simulator.rule("nvmlInit_v2", hang=True)
    process = start("dump", "--backends", "nvidia", env=environment(**simulator.environment()))
    wait_for(lambda: any(simulator.calls().get((name, None)) for name in ("nvmlInitWithFlags", "nvmlInit_v2")))
    process.send_signal(signal.SIGINT)
    assert rest_of(process)[1] == ""
    assert process.returncode == 130


def test_a_hung_driver_does_not_hold_the_exit(simulator: NvmlSimulator) -> None:
    """The document says what hangs, and the process ends."""
    simulator.rule("nvmlDeviceGetTemperature", gpu=1, hang=True)
    simulator.rule("nvmlDeviceGetTemperatureV", gpu=1, hang=True)
    done = run("dump", "--json", "--backends", "nvidia", "--timeout", "2", env=environment(**simulator.environment()))
    assert (done.returncode, done.stderr) == (0, "")
    snapshot = document(done.stdout)
    assert snapshot.unavailable["gpu.1.temp"].reason == "timed_out"
    assert "gpu.0.temp" in snapshot.metrics


@pytest.mark.parametrize("arguments", [STREAM, ["schema"], ["metrics"], ["--help"], ["dump", "--help"]], ids=" ".join)
def test_a_closed_pipe_ends_it_quietly(arguments: list[str]) -> None:
    """The reader has had enough: as for any command in a pipeline."""
    process = start(*arguments)
    if arguments is STREAM:
        document(process.stdout.readline())
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(HANG) == 141


def test_standard_output_that_is_closed() -> None:
    """There is nowhere to write to, and that is said."""
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *COMMAND, *HOST], env=environment(), capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 1
    assert one_line(done.stderr) == "accelmetrics dump: cannot write to standard output: it is closed"


def test_standard_error_that_is_closed() -> None:
    """No message reaches a reader; documents and statuses are as ever."""
    shell = ["sh", "-c", '"$@" 2>&-', "sh", *COMMAND]
    done = subprocess.run([*shell, *HOST], env=environment(), stdout=subprocess.PIPE, text=True, timeout=HANG)
    assert done.returncode == 0
    document(done.stdout)
    refused = subprocess.run([*shell, "dump", "--count", "0"], env=environment(), stdout=subprocess.PIPE, text=True, timeout=HANG)
    assert (refused.returncode, refused.stdout) == (2, "")


def test_kill_leaves_complete_lines(tmp_path: Path) -> None:
    """``kill -9`` loses nothing that was written."""
    target = tmp_path / "run.jsonl"
    process = start("dump", "--backends", "host", "--interval", "0.005", "--output", str(target))
    wait_for(lambda: target.exists() and target.stat().st_size > 30_000)
    process.kill()
    rest_of(process)
    assert len(documents(target.read_text())) > 3


def test_what_plug_ins_print_is_not_in_the_document(tmp_path: Path) -> None:
    """From Python and from C, at import and later: it all goes to standard error."""
    plug_in(tmp_path, "noisy", "accelmetrics_noisy:backend", NOISY)
    done = run("dump", "--json", "--backends", "noisy", env=on_path(tmp_path))
    assert done.returncode == 0
    assert document(done.stdout).backends[0].name == "noisy"
    assert sorted(done.stderr.splitlines()) == ["more noise", "more noise from C", "noise from C", "noise from the interpreter"]


def test_child_process_isolation() -> None:
    """The same document from a child process; Ctrl-C reaches both and is quiet."""
    done = run(*HOST, "--isolation", "process")
    assert (done.returncode, done.stderr) == (0, "")
    assert "memory_percent" in document(done.stdout).metrics
    process = start(*STREAM, "--isolation", "process", session=True)
    document(process.stdout.readline())
    os.killpg(process.pid, signal.SIGINT)
    assert rest_of(process)[1] == ""
    assert process.returncode == 130


def on_terminal(columns: int, *arguments: str, **changes: str) -> tuple[int, str]:
    """Run the command on a terminal so wide; its exit status and what is on the screen."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen([*COMMAND, *arguments], env=environment(**changes), stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], HANG)[0]:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # the last one who had it open has gone
            break
        shown += part
    os.close(ours)
    return process.wait(HANG), shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [60, 120])
def test_a_table_on_a_terminal(simulator: NvmlSimulator, columns: int) -> None:
    """Within its width: the devices, their values with units, what is missing and why, how the sources fared."""
    simulator.gpu[0].set(power_mw=301_250)
    status, screen = on_terminal(columns, "dump", "--all", **simulator.environment())
    lines = screen.splitlines()
    assert status == 0
    assert max(map(len, lines)) <= columns
    assert any(line.split()[:1] == ["powerWatts"] and "301.25 W" in line for line in lines)
    assert any(line.split()[:2] == ["gpu.0", "NVIDIA"] for line in lines)
    assert any("memory_percent" in line and "%" in line for line in lines)
    assert any(line.split()[:1] == ["not_supported"] and "gpu.*.fanSpeed" in line for line in lines)
    assert any(line.split()[:2] == ["amd", "absent"] for line in lines)
    assert not screen.startswith("{")


def test_json_on_a_terminal() -> None:
    """One document is indented, for people; a stream has a document a line, wherever it goes."""
    status, screen = on_terminal(80, *HOST, "--json")
    assert status == 0
    document(screen)
    assert screen.count("\n") > 10
    status, screen = on_terminal(80, "dump", "--backends", "host", "--interval", "0.02", "--count", "2")
    assert (status, len(documents(screen))) == (0, 2)
