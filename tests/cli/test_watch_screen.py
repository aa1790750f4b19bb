"""``watch`` where there is little room, where the screen is another job's, and where something else than its user ends it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from accelmetrics.cli.watch import foot, found_words
from accelmetrics.schemas.finding import Finding, Findings
from tests.cli.terminals import on_terminal, shell
from tests.simulators.nvml import NvmlSimulator

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?25h\x1b[?1049l"
FAST = ("watch", "--interval", "0.1")
NUMBER = re.compile(r"[\d.:/-]+…")


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU])
def test_a_signal_that_ends_any_program_ends_it_with_the_terminal_as_before(simulator: NvmlSimulator, number: signal.Signals) -> None:
    """And by that signal, as a shell expects."""
    with on_terminal(*FAST, env=simulator.environment()) as terminal:
        terminal.until("GPU1")
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
        terminal.type("am watch --interval 0.1 </dev/null &\r")
        terminal.until("GPU Monitor - GPU0: ")
        terminal.type("kill %1; wait; clear; echo still here\r")
        terminal.until("^still here$")
        assert ENTER not in terminal.raw


def test_sent_to_the_background_it_leaves_the_screen_alone_until_it_is_back(simulator: NvmlSimulator) -> None:
    """Ctrl-Z, ``bg``, ``fg``."""
    with shell(env=simulator.environment()) as terminal:
        terminal.type("am watch --interval 0.1 </dev/null\r")
        terminal.until("GPU1")
        terminal.type("\x1a")
        terminal.until("Stopped")
        terminal.type("bg\r")
        terminal.type("clear; echo mine\r")
        terminal.until("^mine$")
        simulator.wait_for("nvmlDeviceGetPowerUsage", 0, count=simulator.calls()["nvmlDeviceGetPowerUsage", 0] + 4)
        assert terminal.raw.count(ENTER) == terminal.raw.count(LEAVE) == 1
        terminal.type("fg\r")
        terminal.until("GPU1")
        terminal.type("\x03")
        terminal.until(lambda: terminal.raw.count(LEAVE) == 2)


@pytest.mark.parametrize("columns", [60, 40, 30, 24, 20, 16])
def test_a_narrow_window_has_fewer_numbers_and_none_cut_off(simulator: NvmlSimulator, columns: int) -> None:
    """The utilisation stays longest; the keys are in fewer words."""
    with on_terminal(*FAST, columns=columns, env=simulator.environment()) as terminal:
        terminal.until("GPU1")
        terminal.until("q quit")
        text = terminal.text
        assert re.search(r"^GPU0 .*37\.0%", text, re.MULTILINE)
        assert not NUMBER.search(text), text
        assert "…" not in text, text


def test_a_low_window_has_rows_for_devices_first(simulator: NvmlSimulator) -> None:
    """Two devices, the columns, the host and the keys on five; a heading where there is a sixth."""
    rows = [["Device"], ["GPU0"], ["GPU1"], ["host"], ["q"]]
    with on_terminal(*FAST, rows=5, env=simulator.environment()) as terminal:
        terminal.until(lambda: [line.split()[:1] for line in terminal.lines] == rows)
        terminal.resize(6, 100)
        terminal.until(lambda: [line.split()[:1] for line in terminal.lines[1:]] == rows)


@pytest.mark.parametrize(("rows", "columns"), [(24, 50), (5, 60)])
def test_where_a_reading_was_saved_can_be_read(simulator: NvmlSimulator, tmp_path: Path, rows: int, columns: int) -> None:
    """In full where there are rows; else at least the name of the file, and the keys below."""
    place = tmp_path / ("d" * 90)
    place.mkdir()
    with on_terminal(*FAST, "--save-dir", str(place), rows=rows, columns=columns, env=simulator.environment()) as terminal:
        terminal.until("GPU1")
        terminal.type("s")
        terminal.until(r"saved")
        (saved,) = place.iterdir()
        terminal.until(lambda: saved.name in "".join(terminal.lines))
        assert terminal.lines[-1].startswith("q quit") or rows > 5
        assert "q quit" in terminal.text
        assert "GPU1" in terminal.text or rows == 5
        terminal.type("q")
        assert terminal.end() == 0


def test_the_rows_below_the_table() -> None:
    """An empty one is only where there is room; a message that is too long loses its middle."""
    size = os.terminal_size
    assert foot("", ("many keys", "few"), size((80, 24)), 5) == ["", "many keys"]
    assert foot("", ("many keys", "few"), size((5, 6)), 5) == ["few"]
    assert foot("a b c", ("few",), size((3, 24)), 5) == ["a b", "c", "few"]
    assert foot("x" * 100 + "end", ("few",), size((20, 3)), 5) == ["xxxxx…" + "x" * 11 + "end", "few"]


HOT = Finding("hot", "warning", "gpu.0", "core at 83 °C", 83.0, 80.0, 1, None, "")


def test_findings_are_told_the_gravest_first_and_each_rule_once() -> None:
    """Within the width that there is; nothing while there is none."""
    stuck = HOT._replace(rule="goodput", key="", severity="info", message="steps take 40 % of the time")
    found = Findings((HOT, HOT._replace(key="gpu.3", message="core at 90 °C"), stuck))
    whole = "! 3 findings: hot gpu.0, gpu.3: core at 83 °C; goodput the run: steps take 40 % of the time"
    assert found_words(found, 200, 1) == found_words(found, 50, 2) == whole
    assert found_words(found, 50, 1) == "! 3 findings: hot gpu.0, gpu.3; goodput the run"
    assert found_words(found, 30, 1) == "! 3 findings: hot, goodput"
    assert found_words(found, 20, 1) == "! 3 findings"
    assert found_words(found, 5, 1) == ""
    assert found_words(Findings((HOT,)), 200, 1) == "! 1 finding: hot gpu.0: core at 83 °C"
    assert found_words(Findings((), (HOT,)), 200, 1) == ""


def test_findings_stand_below_the_table_where_there_is_a_row(simulator: NvmlSimulator) -> None:
    """Devices come first."""
    simulator.gpu[1].set(temperature=97)
    with on_terminal(*FAST, "--rules", "overheating,overheating.seconds=0", env=simulator.environment()) as terminal:
        terminal.until("! 1 finding: overheating gpu.1: core at 97 °C")
