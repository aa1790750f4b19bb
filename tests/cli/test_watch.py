"""``watch`` on a terminal, as a person sees it; and where there is none."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
from argparse import Namespace
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from accelmetrics.cli.monitoring import Stop, log, set_up
from accelmetrics.cli.output import Stdout
from accelmetrics.cli.watch import View
from tests.cli.shell import call, document, environment, on_path, one_line, rest_of, start
from tests.cli.terminals import Terminal, on_terminal, shell
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import HANG

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?25h\x1b[?1049l"
KEYS = "q quit   s save   r reset history"
FAST = ("watch", "--interval", "0.1")
GIB = 2**30


@pytest.fixture
def watched(simulator: NvmlSimulator) -> Iterator[Terminal]:
    """The live view of two GPUs, drawn at least once."""
    with on_terminal(*FAST, env=simulator.environment()) as terminal:
        terminal.until("GPU1")
        yield terminal


def left(terminal: Terminal) -> bool:
    """Whether the terminal is as it was found."""
    return terminal.attributes == terminal.before and terminal.raw.count(ENTER) == terminal.raw.count(LEAVE) and terminal.size == (24, 100)


def test_a_row_for_each_device_with_bars_and_history(simulator: NvmlSimulator) -> None:
    """Use and memory as bars, power, temperature, a history that grows, the host, the keys."""
    simulator.gpu[0].set(gpu_util=80, power_mw=300_000, temperature=61)
    with on_terminal(*FAST, columns=120, env=simulator.environment()) as terminal:
        terminal.until(r"GPU0 .*[▁-█]{4}$")
        row = next(line for line in terminal.lines if line.startswith("GPU0"))
        assert re.search(r"H100 80GB HBM3 +█{8}░░ +80\.0%", row), row
        assert re.search(r"█░{9} +13\.1% 10\.5/80 GiB +300/700 W +61°C +▇{3,}$", row), row
        terminal.until(r"^host  cpu \d+\.\d%  memory \d+\.\d%")
        assert KEYS in terminal.text
        length = len(row)
        terminal.until(lambda: any(line.startswith("GPU0") and len(line) > length for line in terminal.lines))
        terminal.type("q")
        assert terminal.end() == 0
        assert terminal.attributes == terminal.before


def test_it_is_drawn_in_place(watched: Terminal) -> None:
    """Pictures replace each other: the screen is never emptied, and nothing scrolls."""
    watched.until(lambda: watched.raw.count(b"\x1b[H") > 5)
    assert [line.split()[0] for line in watched.everything if line.startswith("GPU")] == ["GPU0", "GPU1"]
    assert b"\x1b[2J" not in watched.raw
    watched.type("q")
    assert watched.end() == 0
    assert watched.text.strip() == ""


def test_hot_values_are_coloured(simulator: NvmlSimulator) -> None:
    """Above 80 °C and above 90 % of the memory; what is not hot has no colour."""
    simulator.gpu[0].set(temperature=81)
    simulator.gpu[1].set(temperature=80, memory_used=int(78 * GIB))
    with on_terminal(*FAST, env=simulator.environment()) as terminal:
        terminal.until("GPU1")
        assert (terminal.colour("81°C"), terminal.colour("80°C")) == ("red", "default")
        assert (terminal.colour("78.0/80 GiB"), terminal.colour("10.5/80 GiB")) == ("red", "default")


def test_what_is_hot_can_be_set(simulator: NvmlSimulator) -> None:
    """Other limits, other colours."""
    simulator.gpu[0].set(temperature=81)
    with on_terminal(*FAST, "--hot-temperature", "81", "--hot-memory", "10", env=simulator.environment()) as terminal:
        terminal.until("GPU1")
        assert (terminal.colour("81°C"), terminal.colour("10.5/80 GiB")) == ("default", "red")


def test_no_colour_where_none_is_wanted(simulator: NvmlSimulator) -> None:
    """``NO_COLOR`` is heeded."""
    simulator.gpu[0].set(temperature=99)
    with on_terminal(*FAST, env={**simulator.environment(), "NO_COLOR": "1"}) as terminal:
        terminal.until("GPU1")
        assert terminal.colour("99°C") == "default"


def test_s_saves_the_reading(simulator: NvmlSimulator, tmp_path: Path) -> None:
    """As a whole document, under a name with the time, and it says where; a second one does not replace it."""
    with on_terminal(*FAST, "--save-dir", str(tmp_path), columns=200, env=simulator.environment()) as terminal:
        terminal.until("GPU1")
        terminal.type("s")
        terminal.until(r"saved /.*/accelmetrics-\d{8}-\d{6}\.json")
        terminal.type("ss")
        terminal.until(lambda: len(list(tmp_path.iterdir())) == 3)
        terminal.type("q")
        assert terminal.end() == 0
        said = [line for line in terminal.lines if line.startswith("accelmetrics watch: saved ")]
    saved = [Path(line.rpartition(" ")[2]) for line in said]
    assert sorted(saved) == sorted(tmp_path.iterdir())
    assert re.fullmatch(r"accelmetrics-\d{8}-\d{6}\.json", saved[0].name)
    for path in saved:
        assert document(path.read_text()).metrics["gpu.0.temp"] > 0


def test_a_place_that_has_gone_is_said(simulator: NvmlSimulator, tmp_path: Path) -> None:
    """A save that fails ends nothing."""
    place = tmp_path / "gone"
    place.mkdir()
    with on_terminal(*FAST, "--save-dir", str(place), columns=200, env=simulator.environment()) as terminal:
        terminal.until("GPU1")
        place.rmdir()
        terminal.type("s")
        terminal.until("cannot write .*No such file")
        terminal.type("q")
        assert terminal.end() == 0


def test_r_resets_the_history(watched: Terminal) -> None:
    """It begins anew."""
    watched.until(r"GPU0 .*[▁-█]{8}$")
    watched.type("r")
    watched.until(r"GPU0 .*°C( +[▁-█]{1,4})?$")


def test_other_keys_do_nothing(watched: Terminal) -> None:
    """Arrow and function keys send letters too, behind an escape."""
    watched.until(r"GPU0 .*[▁-█]{3}$")
    watched.type("\x1b[A\x1bOQ\x1bOR\x1bOS\x1b[15~\x1bq?x \r")
    drawn = watched.raw.count(b"\x1b[H")
    watched.until(lambda: watched.raw.count(b"\x1b[H") > drawn + 3)
    assert re.search(r"GPU0 .*[▁-█]{4,}$", watched.text, re.MULTILINE), "the history goes on"
    watched.type("Q")
    assert watched.end() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_the_terminal_is_as_before(watched: Terminal, number: signal.Signals) -> None:
    """Modes, screen and cursor."""
    assert watched.attributes != watched.before
    watched.process.send_signal(number)
    assert watched.end() == 0
    assert left(watched)


def test_ctrl_c_is_the_signal_that_it_always_is(watched: Terminal) -> None:
    """Typed."""
    watched.type("\x03")
    assert watched.end() == 0
    assert left(watched)


def test_an_error_of_ours_leaves_the_terminal_as_before(simulator: NvmlSimulator, tmp_path: Path) -> None:
    """And is seen."""
    (tmp_path / "sitecustomize.py").write_text(
        "import accelmetrics.exporters.device_table as module\n"
        "drawn, counted = module.table, []\n"
        "def table(*arguments, **options):\n"
        "    counted.append(1)\n"
        "    if len(counted) > 2: raise RuntimeError('a mistake')\n"
        "    return drawn(*arguments, **options)\n"
        "module.table = table\n"
    )
    with on_terminal(*FAST, env={**simulator.environment(), "PYTHONPATH": on_path(tmp_path)["PYTHONPATH"]}) as terminal:
        assert terminal.end() == 1
        assert "RuntimeError: a mistake" in terminal.text
        assert left(terminal)


def test_ctrl_z_gives_the_terminal_back_until_fg(simulator: NvmlSimulator) -> None:
    """To a real shell, which finds it as it left it; the view goes on where it was."""
    with shell(env=simulator.environment()) as terminal:
        terminal.type("am watch --interval 0.1\r")
        terminal.until(KEYS)
        terminal.type("\x1a")
        terminal.until("Stopped")
        terminal.type("clear; stty -a | grep -o '.icanon'\r")
        terminal.until(r"^ icanon$")
        assert KEYS not in terminal.text
        terminal.type("fg\r")
        terminal.until(KEYS)
        terminal.type("q")
        terminal.until(r"^\$$")
        assert terminal.raw.count(ENTER) == terminal.raw.count(LEAVE) == 2


def test_a_window_of_another_size_is_drawn_anew(watched: Terminal) -> None:
    """At once, and with what there is room for."""
    watched.resize(12, 50)
    watched.until(lambda: re.search(r"(?m)^GPU0 .*37\.0% ", watched.text) is not None and "H100" not in watched.text)
    assert max(map(len, watched.lines)) <= 50
    watched.resize(30, 160)
    watched.until("H100")


def test_more_devices_than_rows(simulator: NvmlSimulator) -> None:
    """The rest is counted; the host and the keys stay in sight."""
    with NvmlSimulator(gpus=12) as many, on_terminal(*FAST, rows=10, env=many.environment()) as terminal:
        terminal.until("GPU4")
        assert "and 7 more" in terminal.text
        assert "GPU5" not in terminal.text
        assert terminal.lines[-1] == KEYS
        assert any(line.startswith("host ") for line in terminal.lines)


def test_standard_input_that_is_no_terminal(simulator: NvmlSimulator) -> None:
    """There are no keys, and it says how it ends."""
    with on_terminal(*FAST, env=simulator.environment(), stdin=subprocess.DEVNULL) as terminal:
        terminal.until("GPU1")
        assert "Ctrl-C ends it" in terminal.text
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
        assert left(terminal)


def test_lines_where_there_is_no_terminal(simulator: NvmlSimulator) -> None:
    """As the console exporter's, and nothing else; a signal ends it with status 0."""
    process = start(*FAST, env=environment(**simulator.environment()))
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    process.send_signal(signal.SIGTERM)
    rest, errors = rest_of(process)
    assert (process.returncode, errors) == (0, "")
    assert {re.sub(r"[\d.]+%", "%", line) for line in [*lines, *rest.splitlines(keepends=True)]} == {
        "GPU Monitor - GPU0: %/% | GPU1: %/%\n"
    }


def test_lines_on_a_terminal_without_a_cursor(simulator: NvmlSimulator) -> None:
    """``TERM=dumb``: no escape is sent."""
    with on_terminal(*FAST, env={**simulator.environment(), "TERM": "dumb"}) as terminal:
        terminal.until("GPU Monitor - GPU0")
        terminal.type("\x03")
        assert terminal.end() == 0
        assert b"\x1b" not in terminal.raw


def test_a_reader_that_has_gone_ends_it() -> None:
    """As any command in a pipeline."""
    process = start("watch", "--backends", "host", "--interval", "0.05")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(HANG) == 141


def test_without_rich_a_terminal_has_lines_and_is_told_how_to_get_the_table(tmp_path: Path) -> None:
    """In one line; where lines are printed anyway nothing is missing."""
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("raise ModuleNotFoundError('no rich here')\n")
    without = {"PYTHONPATH": on_path(tmp_path)["PYTHONPATH"]}
    with on_terminal("watch", "--backends", "host", env=without) as terminal:
        terminal.until(r"accelmetrics: no table: the package 'rich' is not installed: pip install 'accelmetrics\[rich\]'")
        terminal.until(r"Host Monitor - CPU ")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.end() == 0
    process = start("watch", "--backends", "host", env=environment(**without))
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Host Monitor - CPU ")
    process.terminate()
    rest_of(process)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--save-dir", "/nowhere"], "--save-dir '/nowhere' is no directory"),
        (["--hot-memory", "much"], "'much' must be a number"),
        (["--hot-temperature", "nan"], "'nan' must be a number"),
        (["--interval", "0"], "must be a number of seconds from 0.01 to 86,400"),
        (["--gpu", "0"], "Did you mean '--gpus'?"),
        (["--backends", "nvidea"], "Did you mean 'nvidia'?"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments: list[str], said: str) -> None:
    """In a line, with status 2."""
    done = call("watch", *arguments)
    assert done.returncode == 2
    assert said in one_line(done.stderr)


def test_a_hung_driver_holds_neither_the_keys_nor_the_end(simulator: NvmlSimulator) -> None:
    """Who wants to quit, quits."""
    for name in ("nvmlInitWithFlags", "nvmlInit_v2"):
        simulator.rule(name, hang=True)
    with on_terminal("watch", "--timeout", "0.3", env=simulator.environment()) as terminal:
        terminal.until("host  cpu")
        terminal.type("q")
        assert terminal.end() == 0
        assert left(terminal)


@pytest.mark.usefixtures("log_as_before")
def test_messages_wait_until_the_screen_is_free() -> None:
    """They are shown on it, and told once when it is gone: the newest hundred."""
    view = View(Namespace(hot_temperature=80.0, hot_memory=90.0), Stdout(), 1, Stop())
    told = io.StringIO()
    with redirect_stderr(told):
        set_up("text", {})
        with view.holding_messages():
            for number in range(120):
                log.warning(f"message {number}")
                assert (view.said, told.getvalue()) == (f"message {number}", "")
        log.warning("the end")
    assert told.getvalue().splitlines() == [*(f"accelmetrics: message {number}" for number in range(20, 120)), "accelmetrics: the end"]


def test_the_process_in_the_host_line_is_the_one_asked_for(simulator: NvmlSimulator) -> None:
    """Without ``--pid`` there is none: the view's own use of the CPU is of no interest."""
    with on_terminal(*FAST, "--pid", str(os.getpid()), env=simulator.environment()) as terminal:
        terminal.until(r"host  cpu .* process memory \d+")
    with on_terminal(*FAST, env=simulator.environment()) as terminal:
        terminal.until("host  cpu")
        assert "process" not in terminal.text
