"""``run`` on a terminal: a live line below what the command writes, and never over it."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from accelmetrics.cli.run import live_line
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.text import cells
from accelmetrics.testing import FakeBackend
from tests.cli.shell import COMMAND, environment, is_stopped
from tests.cli.terminals import Terminal, on_terminal, shell
from tests.records import snapshot
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import wait_for

GIB = 2**30
RUN = ("run", "--interval", "0.1")
WAIT = "import os, sys, time\ndef wait():\n    while not os.path.exists(sys.argv[1]): time.sleep(0.02)\n"
"""Defines ``wait()``, which waits until the test lets the program go on."""
LINE = "GPU0 (H100 80GB HBM3): 93 % │ 45.2/79.6 GiB │ 27 W │ 48 °C"


@pytest.fixture
def busy(simulator: NvmlSimulator) -> NvmlSimulator:
    """A GPU with the numbers of the documentation's example, and one that is not asked for."""
    simulator.gpu[0].set(gpu_util=93, memory_used=int(45.2 * GIB), power_mw=27_000, temperature=48)
    return simulator


@pytest.fixture
def go_on(tmp_path: Path) -> Path:
    """A program that waits goes on when this file is there."""
    return tmp_path / "go-on"


def python(terminal_options: tuple[str, ...], program: str, simulator: NvmlSimulator, go_on: Path | None = None, **given: int) -> Terminal:
    """A Python program under ``run``, of the first GPU."""
    arguments = (*RUN, "--gpus", "0", *terminal_options, "--", sys.executable, "-c", WAIT + program, str(go_on))
    return on_terminal(*arguments, env=simulator.environment(), **given)


def test_the_line(busy: NvmlSimulator, go_on: Path) -> None:
    """Word for word, on the last row, changing in place; gone at the end."""
    with python((), "print('hello', flush=True); wait()", busy, go_on) as terminal:
        terminal.until(f"^{re.escape(LINE)}$", "^hello$")
        assert (terminal.lines[0], terminal.lines[-1]) == ("hello", LINE)
        busy.gpu[0].set(gpu_util=7)
        terminal.until(lambda: terminal.lines[-1] == LINE.replace("93 %", "7 %"))
        assert sum("GPU0" in line for line in terminal.everything) == 1
        go_on.touch()
        assert terminal.end() == 0
        assert terminal.lines[0] == "hello"
        assert any(line.endswith("readings") for line in terminal.lines[1:])
        assert not any("│" in line for line in terminal.everything)


def test_nothing_is_drawn_over_the_commands_output(busy: NvmlSimulator, go_on: Path) -> None:
    """Every line of it is there, in order, and no line of ours among them, on the screen or above it."""
    program = "for number in range(120):\n    print('line', number, flush=True); time.sleep(0.005)\n    if number == 60: wait()"
    with python(("--no-summary",), program, busy, go_on) as terminal:
        terminal.until(lambda: terminal.lines[-1] == LINE)
        go_on.touch()
        assert terminal.end() == 0
        shown = [line for line in terminal.everything if line]
        assert shown == [f"line {number}" for number in range(120)]


def test_redrawn_lines_of_the_command_stay_its_own(busy: NvmlSimulator, go_on: Path) -> None:
    """Progress bars go back to the beginning of their line, and up."""
    program = (
        "print()\n"
        "for number in range(30):\n"
        "    print(f'\\x1b[A\\router {number}\\n\\rinner {number}', end='', flush=True); time.sleep(0.01)\n"
        "    if number == 15: wait()\n"
    )
    with python(("--no-summary",), "print('\\n' * 30)\n" + program, busy, go_on) as terminal:
        terminal.until(lambda: terminal.lines[-1] == LINE)
        go_on.touch()
        assert terminal.end() == 0
        assert [line for line in terminal.everything if line] == ["outer 29", "inner 29"]


def test_the_cursor_and_its_style_stay_where_they_are(busy: NvmlSimulator, go_on: Path) -> None:
    """A prompt in the middle of a line goes on there, in its colour."""
    program = "print('\\x1b[31mask: ', end='', flush=True); wait(); print('answer\\x1b[0m')"
    with python(("--no-summary",), program, busy, go_on) as terminal:
        terminal.until("^ask:", lambda: terminal.lines[-1] == LINE)
        go_on.touch()
        assert terminal.end() == 0
        assert terminal.lines[0] == "ask: answer"
        assert terminal.colour("answer") == "red"


def test_the_command_is_told_a_terminal_without_the_last_row(busy: NvmlSimulator) -> None:
    """It has a terminal in all three places; afterwards the terminal is whole, with its modes as before."""
    program = "import os, sys; print([os.isatty(number) for number in range(3)], *os.get_terminal_size())"
    with python(("--no-summary",), program, busy) as terminal:
        assert terminal.end() == 0
        assert terminal.lines[0] == "[True, True, True] 100 23"
        assert (terminal.size, terminal.attributes) == ((24, 100), terminal.before)
        assert terminal.whole_screen_scrolls


def test_keys_are_the_commands(busy: NvmlSimulator) -> None:
    """What is typed is read by it."""
    with python(("--no-summary",), "print('read', input())", busy) as terminal:
        terminal.until(lambda: terminal.lines[-1] == LINE)
        assert terminal.end("some words\r") == 0
        assert terminal.lines[:2] == ["some words", "read some words"]


def test_ctrl_c_reaches_the_command_once(busy: NvmlSimulator) -> None:
    """The terminal sends it to both; it is not passed on again before another signal is."""
    program = (
        "import signal\n"
        "signal.signal(signal.SIGINT, lambda number, frame: os.write(1, b'interrupted\\n'))\n"
        "signal.signal(signal.SIGUSR1, lambda number, frame: sys.exit(9))\n"
        "os.write(1, b'ready\\n')\n"
        "while True: signal.pause()\n"
    )
    with python(("--no-summary",), program, busy) as terminal:
        terminal.until("ready")
        terminal.type("\x03", "interrupted")
        terminal.process.send_signal(signal.SIGUSR1)
        assert terminal.end() == 9
        assert [line for line in terminal.lines if line] == ["ready", "^Cinterrupted"]


def test_ctrl_c_ends_a_command_that_is_ended_by_it(busy: NvmlSimulator) -> None:
    """With the status that a shell gives; the summary is told, and the terminal is whole."""
    with on_terminal(*RUN, "--", "sleep", "30", env=busy.environment()) as terminal:
        terminal.until("GPU0")
        assert terminal.end("\x03") == 130
        assert "sleep 30: exit status 130" in terminal.text
        assert terminal.whole_screen_scrolls
        assert terminal.size == (24, 100)


def test_ctrl_z_and_fg(busy: NvmlSimulator, tmp_path: Path, go_on: Path) -> None:
    """A real shell has its whole terminal while the command is stopped; both go on together."""
    (tmp_path / "count.py").write_text(
        f"{WAIT}open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
        "for number in range(40):\n    print('line', number, flush=True); time.sleep(0.02)\n    if number == 20: wait()\n"
    )
    with shell(env=busy.environment()) as terminal:
        terminal.type(f"am run --interval 0.1 --gpus 0 --no-summary -- {sys.executable} {tmp_path}/count.py {go_on}\r")
        terminal.until(lambda: terminal.lines[-1] == LINE)
        terminal.until("^line 20$")
        terminal.type("\x1a", "Stopped", lambda: (terminal.size, terminal.whole_screen_scrolls) == ((24, 100), True))
        assert not any(LINE in line for line in terminal.everything)
        command = int((tmp_path / "pid").read_text())
        assert is_stopped(command)
        terminal.type("fg\r", lambda: terminal.lines[-1] == LINE)
        assert terminal.size == (23, 100)
        assert not is_stopped(command)
        go_on.touch()
        terminal.until("line 39", r"^\$$")
        numbers = [int(found[1]) for line in terminal.everything if (found := re.match(r"(?:\^Z)?line (\d+)$", line))]
        assert numbers == list(range(40))
        terminal.type("echo status $?; stty size\r", r"^status 0$\s^24 100$")


def test_a_window_of_another_size(busy: NvmlSimulator) -> None:
    """The line is on the new last row, the command is told the new size less a row; afterwards the window's own size stands."""
    program = (
        "import os, signal, time\n"
        "told = lambda *ignored: os.write(1, '{} {}\\n'.format(*os.get_terminal_size()).encode())\n"
        "signal.signal(signal.SIGWINCH, told)\n"
        "print('ready', flush=True)\n"
        "input()\n"
    )
    with python(("--no-summary",), program, busy) as terminal:
        terminal.until("ready", lambda: terminal.lines[-1] == LINE)
        terminal.resize(30, 90)
        terminal.until(r"^90 29$", lambda: terminal.lines[-1] == LINE)
        terminal.resize(29, 90)  # a row less: just what the command was told before
        terminal.until(r"^90 28$", lambda: len(terminal.lines) == 29 and terminal.lines[-1] == LINE)
        assert terminal.end("\r") == 0
        assert terminal.size == (29, 90)
        assert terminal.whole_screen_scrolls


def test_one_below_another_draws_one_line(busy: NvmlSimulator, go_on: Path) -> None:
    """The outer one."""
    script = f"stty size; until [ -e {go_on} ]; do sleep 0.05; done"
    inner = (*COMMAND, *RUN, "--gpus", "0", "--no-summary", "--", "sh", "-c", script)
    with on_terminal(*RUN, "--gpus", "0", "--no-summary", "--", *inner, env=busy.environment()) as terminal:
        terminal.until(lambda: terminal.lines[-1] == LINE)
        terminal.until("^23 100$")
        assert sum("GPU0" in line for line in terminal.lines) == 1
        go_on.touch()
        assert terminal.end() == 0
        assert terminal.size == (24, 100)


def test_a_job_in_the_background_draws_nothing(busy: NvmlSimulator, tmp_path: Path) -> None:
    """The terminal is another job's, however many readings pass."""
    script = f"sh -c 'until [ $(wc -l < {tmp_path}/run.jsonl) -ge 5 ]; do sleep 0.05; done'"
    with shell(env=busy.environment()) as terminal:
        terminal.type(f"am run --interval 0.05 --exporter jsonl:{tmp_path}/run.jsonl --no-summary -- {script} & wait; clear; stty size\r")
        terminal.until(r"^24 100$")
        assert "│" not in terminal.raw.decode()


@pytest.mark.parametrize("how", ["--no-line", "--quiet", "dumb", "redirected", "low"])
def test_no_line(busy: NvmlSimulator, tmp_path: Path, how: str) -> None:
    """Where none is wanted, or can be drawn: the terminal is left alone."""
    options = (how,) if how.startswith("--") else ()
    env = {**busy.environment(), **({"TERM": "dumb"} if how == "dumb" else {})}
    rows = 2 if how == "low" else 24
    with (tmp_path / "errors").open("w") as errors:
        streams: dict[str, Any] = {"stderr": errors} if how == "redirected" else {}
        arguments = (*RUN, "--no-summary", *options, "--", "sh", "-c", "stty size; sleep 0.3")
        with on_terminal(*arguments, env=env, rows=rows, **streams) as terminal:
            assert terminal.end() == 0
            assert terminal.raw == f"{rows} 100\r\n".encode()


def test_the_line_while_standard_output_goes_elsewhere(busy: NvmlSimulator, tmp_path: Path, go_on: Path) -> None:
    """Standard error is what counts; the file has the command's bytes alone."""
    with (tmp_path / "out").open("wb") as out:
        arguments = (*RUN, "--gpus", "0", "--", sys.executable, "-c", WAIT + "print('data'); wait()", str(go_on))
        with on_terminal(*arguments, env=busy.environment(), stdout=out) as terminal:
            terminal.until(lambda: terminal.lines[-1] == LINE)
            go_on.touch()
            assert terminal.end() == 0
    assert (tmp_path / "out").read_bytes() == b"data\n"


def test_the_summary_begins_on_a_line_of_its_own(busy: NvmlSimulator) -> None:
    """Whether the command ended its last line or not."""
    for text, rest in (("done", "done"), ("done\\n", "done"), ("", "")):
        with python((), f"print('{text}', end='')", busy) as terminal:
            assert terminal.end() == 0
            lines = terminal.lines
            assert lines[0] == rest if rest else "exit status" in lines[0]
            assert re.search(r"exit status 0: \d", lines[1 if rest else 0])


def test_an_error_of_ours_leaves_the_terminal_whole(busy: NvmlSimulator, tmp_path: Path, go_on: Path) -> None:
    """Whatever goes wrong in drawing."""
    (tmp_path / "sitecustomize.py").write_text(
        "import accelmetrics.cli.run as module\ndef live_line(*arguments): raise RuntimeError('a mistake')\nmodule.live_line = live_line\n"
    )
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    command = ("sh", "-c", f"until [ -e {go_on} ]; do sleep 0.05; done")
    with on_terminal(*RUN, "--", *command, env={**busy.environment(), "PYTHONPATH": path}) as terminal:
        assert terminal.end() == 1
        go_on.touch()
        assert "RuntimeError: a mistake" in terminal.text
        assert (terminal.size, terminal.whole_screen_scrolls) == ((24, 100), True)


def test_a_signal_ends_it_with_the_terminal_whole(busy: NvmlSimulator) -> None:
    """SIGTERM to `accelmetrics run` ends the command."""
    with on_terminal(*RUN, "--", "sleep", "30", env=busy.environment()) as terminal:
        terminal.until("GPU0")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 143
        assert (terminal.size, terminal.whole_screen_scrolls) == ((24, 100), True)


def test_a_kill_leaves_a_cleared_line_at_most(busy: NvmlSimulator, tmp_path: Path) -> None:
    """All rows scroll again, the terminal has its whole size, and nothing of ours is left running."""
    with shell(env=busy.environment()) as terminal:
        terminal.type(f"am run --interval 0.1 --gpus 0 --no-summary -- sh -c 'echo $PPID > {tmp_path}/pid; exec sleep 3600'\r")
        terminal.until(lambda: terminal.lines[-1] == LINE)
        watching = psutil.Process(int((tmp_path / "pid").read_text()))
        (command,) = (one for one in watching.children() if one.name() == "sleep")
        (guard,) = (one for one in watching.children() if "terminal_guard.py" in " ".join(one.cmdline()))
        watching.kill()
        terminal.until("Killed", lambda: (terminal.size, terminal.whole_screen_scrolls, terminal.lines[-1]) == ((24, 100), True, ""))
        wait_for(lambda: not guard.is_running())
        terminal.type("stty size; seq 60\r", lambda: terminal.lines[-2:] == ["60", "$"])
        assert "24 100" in terminal.everything
        assert terminal.lines[:-1] == [str(number) for number in range(38, 61)]
        command.kill()


def test_a_kill_while_the_command_is_stopped_changes_nothing(busy: NvmlSimulator, tmp_path: Path) -> None:
    """The shell has the terminal then, which was given back."""
    with shell(env=busy.environment()) as terminal:
        terminal.type(f"am run --interval 0.1 --gpus 0 --no-summary -- sh -c 'echo $PPID > {tmp_path}/pid; sleep 3600'\r")
        terminal.until(lambda: terminal.lines[-1] == LINE and (tmp_path / "pid").exists())
        terminal.type("\x1a", "Stopped")
        before = len(terminal.raw)
        terminal.type(f"kill -9 $(cat {tmp_path}/pid); wait; clear; stty size\r", "^24 100$")
        assert b"\x1b[9999" not in terminal.raw[before:]
        terminal.type("kill -9 %1\r")


def test_devices_take_turns_where_they_do_not_fit() -> None:
    """Without their names, as many as there is room for; each is shown in its time."""
    seen = {live_line(snapshot(5), now, 100) for now in range(0, 30, 3)}
    assert len(seen) == 3
    assert all(len(line) <= 100 for line in seen)
    assert {word for line in seen for word in line.split() if word.startswith("GPU")} == {f"GPU{number}:" for number in range(5)}


def test_wide_characters_are_two_columns_each_on_the_line() -> None:
    """So that it never reaches into the last column; a name's own escapes are shown, not obeyed."""
    place = DeviceSlot("gpu.0", 0, None, DeviceIdentity("gpu", "x", 0, name="华为昇腾加速卡九一〇\x1b[31m"))
    taken = Snapshot(0, "host", {"gpu.0.gpu": 50.0, "gpu.0.temp": 40.0}, [place])
    assert live_line(taken, 0, 80) == "GPU0 (华为昇腾加速卡九一〇?[31m): 50 % │ 40 °C"
    for columns in (20, 21, 29, 30):
        line = live_line(taken, 0, columns)
        assert columns - 1 <= cells(line) <= columns
        assert line.endswith("…")
    assert (cells("GPU"), cells("卡"), cells("e\u0301")) == (3, 2, 1)


def test_tokens_are_read_from_what_a_terminal_shows(busy: NvmlSimulator) -> None:
    """The command still writes to a terminal, of the size without the last row; both its streams stay in order."""
    program = """
size = os.get_terminal_size(2)
for number in range(20):
    print(number, 'tokens', os.isatty(1), size.lines, file=(sys.stdout, sys.stderr)[number % 2], flush=True)
"""
    with python(("--tokens-from", "^([0-9]+) tokens"), program, busy) as terminal:
        assert terminal.end() == 0
        height = len(terminal.lines)
        assert [line for line in terminal.everything if " tokens True" in line] == [f"{n} tokens True {height - 1}" for n in range(20)]
        assert any(line.strip().startswith("tokens: ") for line in terminal.everything)


def test_what_a_device_does_not_say_is_left_out() -> None:
    """Nothing stands for it; a device that says nothing has its reason."""
    backend = FakeBackend("nvidia", devices=3)
    backend.device(0).set(gpu=0, temp=30)
    backend.device(1).set(powerWatts=27.4, memoryAllocatedBytes=GIB)
    for name in ("gpu", "temp"):
        backend.device(2).miss(name, "device_lost", "it fell off the bus")
    with Sampler([backend]) as sampler:
        line = live_line(sampler.sample(), 0, 200)
    assert re.sub(r" \([^)]*\)", "", line) == "GPU0: 0 % │ 30 °C   GPU1: 1.0 GiB │ 27 W   GPU2: lost"


def test_the_host_where_there_is_no_device() -> None:
    """Its processors, its memory, the command's."""
    with on_terminal(*RUN, "--backends", "host", "--", "sleep", "3600") as terminal:
        terminal.until(lambda: re.fullmatch(r"CPU \d+ ?% │ memory \d+ ?% │ command \d+ MiB", terminal.lines[-1]) is not None)


def test_stopped_output_stops_nothing_else(busy: NvmlSimulator, tmp_path: Path) -> None:
    """After Ctrl-S nothing is written, signals are still passed on, and after Ctrl-Q all is in order."""
    program = (
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGUSR1, lambda *ignored: pathlib.Path({str(tmp_path / 'told')!r}).touch())\n"
        "while not sys.stdin.readline(): pass\n"
    )
    with python(("--no-summary",), program, busy) as terminal:
        terminal.until(lambda: terminal.lines[-1] == LINE)
        terminal.type("\x13")
        readings = busy.calls()["nvmlDeviceGetTemperature", 0]
        busy.wait_for("nvmlDeviceGetTemperature", 0, count=readings + 4)
        terminal.process.send_signal(signal.SIGUSR1)
        wait_for((tmp_path / "told").exists)
        assert terminal.end("\x11\r") == 0
        assert terminal.whole_screen_scrolls


def test_a_program_that_takes_the_whole_screen(busy: NvmlSimulator) -> None:
    """Takes the rows above, scrolls them, and leaves them as they were."""
    program = (
        "import curses\n"
        "def show(screen):\n"
        "    screen.scrollok(True)\n"
        "    for number in range(60):\n"
        "        screen.addstr(f'row {number}' if number == 0 else f'\\nrow {number}')\n"
        "        screen.refresh()\n"
        "    screen.getch()\n"
        "print('before')\n"
        "curses.wrapper(show)\n"
    )
    with python(("--no-summary",), program, busy) as terminal:
        terminal.until("row 59", lambda: terminal.lines[-1] == LINE)
        assert terminal.lines[:-1] == [f"row {number}" for number in range(37, 60)]
        assert terminal.end("x") == 0
        assert [line for line in terminal.lines if line] == ["before"]
        assert (terminal.size, terminal.whole_screen_scrolls) == ((24, 100), True)
