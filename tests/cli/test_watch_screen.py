"""``watch`` where there is little room, where the screen is another job's, and where something else than its user ends it."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.cli.shell import COMMAND, REPOSITORY, environment
from tests.cli.terminals import on_terminal, shell
from tests.simulators.nvml import NvmlSimulator
from tests.support.missing import MissingHere
from tests.support.waiting import wait_for

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
FAST = ("watch", "--interval", "0.1")
NUMBER = re.compile(r"[\d.:/-]+…")
LOW = (r"2 gpu", r"gpu\.0 .*37%", r"gpu\.1 .*48%", r"^q quit")
"""What stands on four rows."""


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU])
def test_a_signal_that_ends_any_program_ends_it_with_the_terminal_as_before(simulator: NvmlSimulator, number: signal.Signals) -> None:
    """And by that signal, as a shell expects."""
    with on_terminal(*FAST, env=simulator.environment()) as terminal:
        terminal.until("gpu.1")
        assert terminal.attributes != terminal.before
        if number == signal.SIGQUIT:
            terminal.type("\x1c")
        else:
            terminal.process.send_signal(number)
        assert terminal.end() == -number
        assert terminal.attributes == terminal.before
        assert (terminal.raw.count(ENTER), terminal.raw.count(LEAVE)) == (1, 1)


def test_in_the_background_without_keys_it_prints_lines(simulator: NvmlSimulator) -> None:
    """The screen is the shell's."""
    with shell(env=simulator.environment()) as terminal:
        terminal.type("am watch --interval 0.1 </dev/null &\r", "GPU Monitor - GPU0: ")
        terminal.type("kill %1; wait; clear; echo still here\r", "^still here$")
        assert ENTER not in terminal.raw


def test_sent_to_the_background_it_leaves_the_screen_alone_until_it_is_back(simulator: NvmlSimulator) -> None:
    """Ctrl-Z, ``bg``, ``fg``."""
    with shell(env=simulator.environment()) as terminal:
        terminal.type("am watch --interval 0.1 </dev/null\r", "gpu.1")
        terminal.type("\x1a", "Stopped")
        terminal.type("bg\r")
        terminal.type("clear; echo mine\r", "^mine$")
        simulator.wait_for("nvmlDeviceGetTemperature", 0, count=simulator.calls()["nvmlDeviceGetTemperature", 0] + 4)
        assert terminal.raw.count(ENTER) == terminal.raw.count(LEAVE) == 1
        terminal.type("fg\r", "gpu.1")
        terminal.type("\x03", lambda: terminal.raw.count(LEAVE) == 2)


def test_killed_it_leaves_the_terminal_as_it_was(simulator: NvmlSimulator, tmp_path: Path) -> None:
    """Even by SIGKILL: the other screen is left, the modes are those from before, nothing of ours goes on."""
    with on_terminal("run", "--no-line", "--quiet", "--", *COMMAND, *FAST, env=simulator.environment()) as terminal:
        terminal.until("gpu.1", lambda: terminal.attributes != terminal.before)
        family = psutil.Process(terminal.process.pid).children(recursive=True)
        watching = next(one for one in family if "watch" in one.cmdline())
        (guard,) = (one for one in family if "terminal_guard.py" in " ".join(one.cmdline()))
        watching.kill()
        assert terminal.end() == 137
        terminal.until(lambda: LEAVE in terminal.raw)
        wait_for(lambda: not guard.is_running())
        assert terminal.attributes == terminal.before
        assert terminal.text.strip() == ""
        assert terminal.cursor_shown


def test_ended_otherwise_it_leaves_nothing_running(simulator: NvmlSimulator) -> None:
    """The guard goes first."""
    with on_terminal(*FAST, env=simulator.environment()) as terminal:
        terminal.until("gpu.1")
        (guard,) = psutil.Process(terminal.process.pid).children()
        assert terminal.end("q") == 0
        assert not guard.is_running()
        assert terminal.raw.count(LEAVE) == 1


def test_a_terminal_that_was_stopped_by_ctrl_s_is_left_too(simulator: NvmlSimulator) -> None:
    """On SIGTERM; what was held back is let go."""
    with on_terminal(*FAST, env=simulator.environment()) as terminal:
        terminal.until("gpu.1")
        terminal.type("\x13")
        readings = simulator.calls()["nvmlDeviceGetTemperature", 0]
        simulator.wait_for("nvmlDeviceGetTemperature", 0, count=readings + 20)
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 0
        assert terminal.attributes == terminal.before
        assert terminal.raw.count(LEAVE) == 1


@pytest.mark.parametrize("columns", [100, 60, 40, 30, 24, 20, 16])
def test_a_narrow_window_has_fewer_numbers_and_none_cut_off(simulator: NvmlSimulator, columns: int) -> None:
    """The utilisation stays longest; the keys are fewer."""
    with on_terminal(*FAST, columns=columns, env=simulator.environment()) as terminal:
        terminal.until("gpu.1", "q quit", r"gpu\.0 .*37%")
        text = terminal.text
        assert not NUMBER.search(text), text


def test_a_low_window_has_rows_for_devices_first(simulator: NvmlSimulator) -> None:
    """Two devices between head and foot; columns where there is a row more."""
    with on_terminal(*FAST, rows=4, env=simulator.environment()) as terminal:
        terminal.until(lambda: [bool(re.search(wanted, line)) for wanted, line in zip(LOW, terminal.lines, strict=True)] == [True] * 4)
        terminal.resize(1, 100)
        terminal.until("gpu.0")


@pytest.mark.parametrize(("rows", "columns"), [(24, 50), (5, 60)])
def test_where_a_reading_was_saved_can_be_read(simulator: NvmlSimulator, tmp_path: Path, rows: int, columns: int) -> None:
    """At least the name of the file; the whole path is told at the end."""
    place = tmp_path / ("d" * 90)
    place.mkdir()
    with on_terminal(*FAST, "--save-dir", str(place), rows=rows, columns=columns, env=simulator.environment()) as terminal:
        terminal.until("gpu.1")
        terminal.type("S", r"saved")
        (saved,) = place.iterdir()
        terminal.until(lambda: saved.name in terminal.lines[-1])
        terminal.until("gpu.1")
        assert terminal.end("q") == 0
        assert str(saved) in "".join(terminal.lines)


def test_findings_stand_below_the_table_where_there_are_rows(simulator: NvmlSimulator) -> None:
    """And are counted in the head where there are not."""
    simulator.gpu[1].set(temperature=97)
    rules = ("--rules", "overheating,overheating.seconds=0")
    with on_terminal(*FAST, *rules, columns=120, env=simulator.environment()) as terminal:
        terminal.until("X 1 critical", "^X gpu.1  overheating  core at 97 °C")
        terminal.resize(8, 60)
        terminal.until("X 1 critical")


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """A tmux server of its own: a call runs one of its commands."""
    if shutil.which("tmux") is None:
        raise MissingHere("tmux is not installed: apt-get install tmux")
    server = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null"]

    def call(*words: str) -> str:
        return subprocess.run(
            [*server, *words], env=environment(TERM="xterm-256color"), text=True, stdout=subprocess.PIPE, check=True
        ).stdout

    yield call
    subprocess.run([*server, "kill-server"], stderr=subprocess.DEVNULL, check=False)


def test_in_tmux(simulator: NvmlSimulator, tmux: Callable[..., str]) -> None:
    """Drawn, resized, scrolled by keys, and left as it was found, with what stood there before."""
    given = [f"{name}={value}" for name, value in simulator.environment().items()]
    command = shlex.join(["env", f"PYTHONPATH={REPOSITORY}", *given, *COMMAND, *FAST])
    tmux("new-session", "-d", "-x", "100", "-y", "30", "bash", "--norc", "--noprofile")

    def screen(*words: str) -> str:
        return tmux("capture-pane", "-p", *words)

    tmux("send-keys", "echo before", "Enter")
    wait_for(lambda: "\nbefore\n" in screen())
    tmux("send-keys", command, "Enter")
    wait_for(lambda: "gpu.1" in screen() and "q quit" in screen(), what=screen)
    tmux("send-keys", "Down")
    wait_for(lambda: "power gpu.1, 1 min" in screen(), what=screen)
    tmux("resize-window", "-x", "60", "-y", "20")
    wait_for(lambda: max(map(len, screen().splitlines())) <= 60 and screen().splitlines()[-1].startswith("q quit"), what=screen)
    tmux("send-keys", "/")
    wait_for(lambda: "filter devices" in screen(), what=screen)
    tmux("send-keys", "Escape")
    wait_for(lambda: "filter devices" not in screen(), what=screen)
    tmux("send-keys", "q")
    wait_for(lambda: "q quit" not in screen() and screen().rstrip().endswith(("#", "$")), what=screen)
    assert "\nbefore\n" in screen("-S", "-")  # in a lower window it may have scrolled away
