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
from unittest.mock import create_autospec

import psutil
import pytest

from accelmetrics.cli.monitoring import Stop, holding_messages, set_up
from accelmetrics.cli.output import Stdout
from accelmetrics.cli.watch_screen import LOOK, WatchScreen
from accelmetrics.cli.watch_source import LiveSource
from accelmetrics.schemas.log import log
from tests.cli.shell import document, environment, on_path, rest_of, start
from tests.cli.terminals import LIGHT_ROW, Terminal, on_terminal, shell
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import HANG, wait_for

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
KEYS = "q quit"
ROW_ENDINGS = (b"48;2;29;58;82", b"48;5;17")
FAST = ("watch", "--interval", "0.1")
GIB = 2**30


@pytest.fixture
def watched(simulator: NvmlSimulator) -> Iterator[Terminal]:
    """The live view of two GPUs, drawn at least once."""
    with on_terminal(*FAST, env=simulator.environment()) as terminal:
        terminal.until("gpu.1")
        yield terminal


def left(terminal: Terminal) -> bool:
    """Whether the terminal is as it was found."""
    return terminal.attributes == terminal.before and terminal.raw.count(ENTER) == terminal.raw.count(LEAVE) and terminal.size == (24, 100)


def row(terminal: Terminal, device: str) -> str:
    """The device's row; empty while there is none."""
    return next((line for line in terminal.lines if re.match(rf"[> ][!X -]?{re.escape(device)} ", line)), "")


def test_a_row_for_each_device_graphs_and_the_host(simulator: NvmlSimulator) -> None:
    """Use as a bar, memory, power against its limit, temperature; the host in the head, the keys at the foot."""
    simulator.gpu[0].set(gpu_util=80, power_mw=300_000, temperature=61)
    with on_terminal(*FAST, columns=120, env=simulator.environment()) as terminal:
        terminal.until(lambda: bool(re.search(r"80% +[━─]+ +13% +10\.5/79\.6 +[━─]+ +300/700 +61C", row(terminal, "gpu.0"))))
        terminal.until("power gpu.0, 1 min .* now 300 W  max 300 W", r"2 gpu .* cpu \d+ %  mem \d+ %", "no process uses a device")
        terminal.until(lambda: terminal.lines[-1].startswith(KEYS))
        assert terminal.end("q") == 0
        assert terminal.attributes == terminal.before


def test_it_is_drawn_in_place(watched: Terminal) -> None:
    """Pictures replace each other: the screen is emptied once, at the beginning, and nothing scrolls."""
    drawn = watched.raw.count(b"\x1b[?2026h")
    watched.until(lambda: watched.raw.count(b"\x1b[?2026h") > drawn + 5)
    assert sum(" gpu.0 " in line and "/700" in line for line in watched.everything) == 1
    assert watched.raw.count(b"\x1b[2J") == 1
    assert watched.end("q") == 0
    assert watched.text.strip() == ""


def test_hot_values_are_coloured_by_the_devices_own_limit() -> None:
    """The simulated H100 slows down at 92 °C; above 90 % of the memory. What is not hot has no colour."""
    with NvmlSimulator(gpus=3) as three, on_terminal(*FAST, columns=120, env=three.environment()) as terminal:
        three.gpu[1].set(temperature=90, memory_used=int(78 * GIB))
        three.gpu[2].set(temperature=81)
        terminal.until("90C", "78.0/79.6")
        assert terminal.colour("90C") != "default" == terminal.colour("81C")
        assert terminal.colour("98%") != "default" == terminal.colour("11.5/79.6")


def test_what_is_hot_can_be_set(simulator: NvmlSimulator) -> None:
    """Other levels, other colours."""
    simulator.gpu[1].set(temperature=81)
    for level, hot in (("80", True), ("81", False)):
        with on_terminal(*FAST, "--hot-temperature", level, columns=120, env=simulator.environment()) as terminal:
            terminal.until("81C")
            assert (terminal.colour("81C") != "default") == hot


def drawn_colours(terminal: Terminal) -> set[bytes]:
    """The codes of colours that were sent."""
    codes = {code.removesuffix(b";7") for code in re.findall(rb"\x1b\[([\d;]+)m", terminal.raw)}
    return {code for code in codes if code not in (b"0", b"1", b"2", b"7", b"22") and not code.endswith(ROW_ENDINGS)}


@pytest.mark.parametrize(
    ("arguments", "env", "sent"),
    [
        ((), {"NO_COLOR": "1"}, None),
        (("--no-colour",), {"COLORTERM": "truecolor"}, None),
        ((), {"TERM": "vt100"}, None),
        ((), {"TERM": "xterm-16color"}, rb"(1;)?[39]\d"),
        ((), {"TERM": "linux"}, rb"(1;)?[39]\d"),
        ((), {"TERM": "xterm-256color"}, rb"(1;)?38;5;\d+"),
        ((), {"COLORTERM": "truecolor"}, rb"(1;)?38;2;\d+;\d+;\d+"),
    ],
)
def test_as_many_colours_as_the_terminal_has(
    simulator: NvmlSimulator, arguments: list[str], env: dict[str, str], sent: bytes | None
) -> None:
    """And none where none are wanted: marks and words say it too."""
    simulator.gpu[0].set(temperature=99)
    with on_terminal(*FAST, *arguments, env={**simulator.environment(), **env}) as terminal:
        terminal.until("99C", "^>[!X]gpu.0")
        colours = drawn_colours(terminal)
        assert bool(colours) == (sent is not None)
        assert all(sent is not None and re.fullmatch(sent, code) for code in colours), colours
        assert terminal.end("q") == 0


@pytest.mark.parametrize(
    ("arguments", "env", "answer", "light"),
    [
        ((), {}, "", False),
        ((), {}, "\x1b]11;rgb:ffff/ffff/ffff\x1b\\", True),
        ((), {"COLORFGBG": "15;0"}, "\x1b]11;rgb:fa/fa/fa\x07", True),
        ((), {"COLORFGBG": "0;15"}, "", True),
        (("--theme", "light"), {}, "", True),
        (("--theme", "dark"), {"COLORFGBG": "0;15"}, "", False),
    ],
)
def test_colours_follow_the_background(
    simulator: NvmlSimulator, arguments: list[str], env: dict[str, str], answer: str, light: bool
) -> None:
    """The terminal is asked for it, and what it answers is no key."""
    given = {**simulator.environment(), "COLORTERM": "truecolor", **env}
    with on_terminal(*FAST, *arguments, env=given) as terminal:
        terminal.until("gpu.1")
        assert (b"\x1b]11;?" in terminal.raw) == (not arguments)
        terminal.type(answer, lambda: (LIGHT_ROW in terminal.raw) == light)
        assert "filter devices" not in terminal.text
        assert terminal.end("q") == 0


@pytest.mark.parametrize(
    ("locale", "options"),
    [({"LC_ALL": "C"}, ()), ({"LC_ALL": "", "LANG": "C"}, ()), ({"LC_ALL": "POSIX"}, ()), ({}, ("--ascii",))],
    ids=["C", "LANG=C", "POSIX", "--ascii"],
)
def test_a_locale_of_ascii_letters_has_no_blocks(simulator: NvmlSimulator, locale: dict[str, str], options: tuple[str, ...]) -> None:
    """Though Python writes UTF-8 there; nor is there any with the option."""
    with on_terminal(*FAST, *options, env={**simulator.environment(), **locale}) as terminal:
        terminal.until("gpu.1", "power gpu.0, 1 min")
        assert terminal.raw.isascii()


def test_capital_s_saves_the_reading(simulator: NvmlSimulator, tmp_path: Path) -> None:
    """As a whole document, under a name with the time, and it says where; a second one does not replace it."""
    with on_terminal(*FAST, "--save-dir", str(tmp_path), columns=200, env=simulator.environment()) as terminal:
        terminal.until("gpu.1")
        terminal.type("S", r"saved accelmetrics-\d{8}-\d{6}\.json in /")
        terminal.type("SS", lambda: len(list(tmp_path.iterdir())) == 3)
        assert terminal.end("q") == 0
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
        terminal.until("gpu.1")
        place.rmdir()
        terminal.type("S", "cannot write .*No such file")
        assert terminal.end("q") == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, None])
def test_a_signal_ends_it_and_the_terminal_is_as_before(watched: Terminal, number: signal.Signals | None) -> None:
    """Modes, screen and cursor; Ctrl-C is the signal that it always is."""
    assert watched.attributes != watched.before
    if number is not None:
        watched.process.send_signal(number)
    assert watched.end("\x03" if number is None else "") == 0
    assert left(watched)


def test_an_error_of_ours_leaves_the_terminal_as_before(simulator: NvmlSimulator, tmp_path: Path) -> None:
    """And is seen."""
    (tmp_path / "sitecustomize.py").write_text(
        "import accelmetrics.views.terminal.picture as module\n"
        "drawn, counted = module.picture, []\n"
        "def picture(*arguments, **options):\n"
        "    counted.append(1)\n"
        "    if len(counted) > 2: raise RuntimeError('a mistake')\n"
        "    return drawn(*arguments, **options)\n"
        "module.picture = picture\n"
    )
    with on_terminal(*FAST, env={**simulator.environment(), "PYTHONPATH": on_path(tmp_path)["PYTHONPATH"]}) as terminal:
        assert terminal.end() == 1
        assert "RuntimeError: a mistake" in terminal.text
        assert left(terminal)


def test_what_a_driver_prints_does_not_spoil_the_screen(simulator: NvmlSimulator, tmp_path: Path) -> None:
    """It is told afterwards."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "import accelmetrics.views.node_view as module\n"
        "made = module.NodeView.__init__\n"
        "def printing(*arguments, **options):\n"
        "    os.write(1, b'a driver was here\\n'); os.write(2, b'and there\\n')\n"
        "    made(*arguments, **options)\n"
        "module.NodeView.__init__ = printing\n"
    )
    with on_terminal(*FAST, env={**simulator.environment(), "PYTHONPATH": on_path(tmp_path)["PYTHONPATH"]}) as terminal:
        terminal.until("gpu.1")
        drawn = terminal.raw.count(b"\x1b[?2026h")
        terminal.until(lambda: terminal.raw.count(b"\x1b[?2026h") > drawn + 3)
        assert b"driver was here" not in terminal.raw
        assert terminal.end("q") == 0
        terminal.until("^a driver was here$")
        assert "and there" in terminal.text
        assert terminal.attributes == terminal.before


def test_a_terminal_that_goes_away_ends_it(simulator: NvmlSimulator) -> None:
    """As the end of an ssh session does; nothing of it is left."""
    with on_terminal(*FAST, env=simulator.environment()) as terminal:
        terminal.until("gpu.1")
        family = psutil.Process(terminal.process.pid).children(recursive=True)
        terminal.hang_up()
        terminal.process.wait(HANG)
        wait_for(lambda: not any(one.is_running() for one in family))


def test_ctrl_z_gives_the_terminal_back_until_fg(simulator: NvmlSimulator) -> None:
    """To a real shell, which finds it as it left it; the view goes on where it was."""
    with shell(env=simulator.environment()) as terminal:
        terminal.type("am watch --interval 0.1\r", KEYS)
        terminal.type("\x1a", "Stopped")
        terminal.type("clear; stty -a | grep -o '.icanon'\r", r"^ icanon$")
        assert KEYS not in terminal.text
        terminal.type("fg\r", KEYS)
        terminal.type("q", r"^\$$")
        assert terminal.raw.count(ENTER) == terminal.raw.count(LEAVE) == 2


def test_windows_of_other_sizes_are_drawn_anew(simulator: NvmlSimulator) -> None:
    """At once, and with what there is room for: from 80x24 to 200x60 to 20x5, and back."""
    with on_terminal(*FAST, rows=24, columns=80, env=simulator.environment()) as terminal:
        terminal.until("gpu.1")
        for rows, columns in ((60, 200), (5, 20), (24, 80)):
            terminal.resize(rows, columns)
            terminal.until(lambda: terminal.lines[-1] != "" and "gpu.0" in terminal.text)
            assert len(terminal.lines) == rows
            assert max(map(len, terminal.lines)) <= columns
        terminal.until(r"^q quit")
        assert terminal.end("q") == 0
        assert terminal.attributes == terminal.before


def test_standard_input_that_is_no_terminal(simulator: NvmlSimulator) -> None:
    """There are no keys, and it says how it ends."""
    with on_terminal(*FAST, env=simulator.environment(), stdin=subprocess.DEVNULL) as terminal:
        terminal.until("gpu.1", "^Ctrl-C quits")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
        assert left(terminal)


def test_lines_where_there_is_no_terminal(simulator: NvmlSimulator) -> None:
    """As the console exporter's, and nothing else; a signal ends it with status 0."""
    process = start(*FAST, env=environment(**simulator.environment()))
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
        assert terminal.end("\x03") == 0
        assert b"\x1b" not in terminal.raw


def test_a_reader_that_has_gone_ends_it() -> None:
    """As any command in a pipeline."""
    process = start("watch", "--backends", "host", "--interval", "0.05")
    process.stdout.readline()
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(HANG) == 141


def test_a_plain_install_has_the_screen(tmp_path: Path) -> None:
    """Without rich, which the table of the console exporter alone needs."""
    (tmp_path / "rich").mkdir()
    (tmp_path / "rich" / "__init__.py").write_text("raise ModuleNotFoundError('no rich here')\n")
    with on_terminal("watch", "--backends", "host", env={"PYTHONPATH": on_path(tmp_path)["PYTHONPATH"]}) as terminal:
        terminal.until("^q quit")
        assert terminal.end("q") == 0


@pytest.mark.parametrize("how", ["q", "\x03"])
def test_a_driver_that_does_not_open_holds_neither_the_keys_nor_the_end(simulator: NvmlSimulator, how: str) -> None:
    """Who wants to quit, quits."""
    for name in ("nvmlInitWithFlags", "nvmlInit_v2"):
        simulator.rule(name, hang=True)
    with on_terminal("watch", "--timeout", "0.3", env=simulator.environment()) as terminal:
        terminal.until(r"cpu \d+ %", "nvidia")
        assert terminal.end(how) == 0
        assert left(terminal)


@pytest.mark.parametrize("how", ["q", "\x03"])
@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_looking_for_a_chosen_device_holds_neither_the_keys_nor_the_end(simulator: NvmlSimulator, isolation: str, how: str) -> None:
    """One reading of it would take an hour; the screen is there meanwhile."""
    simulator.rule("nvmlDeviceGetTemperature", hang=True)
    with on_terminal("watch", "--gpus", "0", "--timeout", "3600", "--isolation", isolation, env=simulator.environment()) as terminal:
        simulator.wait_for("nvmlDeviceGetTemperature", 0, count=1)
        terminal.until(lambda: ENTER in terminal.raw)
        assert terminal.end(how) == 0
        assert left(terminal)


def test_ctrl_c_ends_the_look_for_a_chosen_device(simulator: NvmlSimulator) -> None:
    """Before there is a line."""
    simulator.rule("nvmlDeviceGetTemperature", hang=True)
    process = start("watch", "--gpus", "0", "--timeout", "3600", env=environment(**simulator.environment()))
    simulator.wait_for("nvmlDeviceGetTemperature", 0, count=1)
    process.send_signal(signal.SIGINT)
    said = rest_of(process)
    assert (process.returncode, said[1]) == (0, "")


def test_a_device_that_is_found_missing_late_ends_the_screen(simulator: NvmlSimulator) -> None:
    """The driver opens when the screen is there, and has no such device: the terminal is left, and the error told behind it."""
    for name in ("nvmlInitWithFlags", "nvmlInit_v2"):
        simulator.rule(name, hang=True)
    with on_terminal("watch", "--gpus", "7", "--backends", "nvidia", env=simulator.environment()) as terminal:
        terminal.until(lambda: ENTER in terminal.raw)
        for name in ("nvmlInitWithFlags", "nvmlInit_v2"):
            simulator.rule(name)
        assert terminal.end() == 2
        assert left(terminal)
        terminal.until("accelmetrics watch: .*7")


def test_a_driver_that_hangs_later_holds_neither_the_keys_nor_the_end(simulator: NvmlSimulator) -> None:
    """With a patience of an hour, keys are heard and the end comes while the call hangs; the device's row says what is the matter."""
    with on_terminal(*FAST, "--timeout", "3600", env=simulator.environment()) as terminal:
        terminal.until("gpu.1")
        before = simulator.calls()["nvmlDeviceGetTemperature", 0]  # a call that hangs as soon as the rule is there counts too
        simulator.rule("nvmlDeviceGetTemperature", hang=True)
        simulator.wait_for("nvmlDeviceGetTemperature", 0, count=before + 1)
        terminal.type("?", "open or close this help")
        assert terminal.end("q") == 0
        assert left(terminal)


@pytest.mark.usefixtures("log_as_before")
def test_messages_wait_until_the_screen_is_free() -> None:
    """They are shown on it, and told once when it is gone: the newest hundred."""
    options = Namespace(ascii=False, colour=True, theme="dark", read_only=False, flags_given=[])
    screen = WatchScreen(options, Stdout(), 1, Stop(), create_autospec(LiveSource, instance=True, replay=False))
    told = io.StringIO()
    with redirect_stderr(told):
        set_up("text", {})
        with holding_messages(screen.say):
            for number in range(120):
                log.warning(f"message {number}")
                assert (screen.message, told.getvalue()) == (f"message {number}", "")
        log.warning("the end")
    assert told.getvalue().splitlines() == [
        *(f"accelmetrics: warning: message {number}" for number in range(20, 120)),
        "accelmetrics: warning: the end",
    ]


def test_a_first_reading_that_never_comes_is_looked_for_less_often_after_a_while() -> None:
    options = Namespace(ascii=False, colour=True, theme="dark", read_only=False, flags_given=[])
    source = create_autospec(LiveSource, instance=True, replay=False)
    source.look.return_value = False
    screen = WatchScreen(options, Stdout(), 1, Stop(), source)
    pauses = [screen.patience for _ in range(200) if not screen.look()]
    assert pauses[0] < pauses[-1] == LOOK
    assert sum(pauses[:100]) < 2


def test_the_process_in_the_host_line_is_the_one_asked_for(simulator: NvmlSimulator) -> None:
    """Without ``--pid`` there is none: the view's own use of the CPU is of no interest."""
    with on_terminal(*FAST, "--pid", str(os.getpid()), rows=40, columns=160, env=simulator.environment()) as terminal:
        terminal.until(r"^host .* watched process cpu \d+ %  memory \d+")
    with on_terminal(*FAST, rows=40, columns=160, env=simulator.environment()) as terminal:
        terminal.until("^host +cpu")
        assert "process cpu" not in terminal.text
