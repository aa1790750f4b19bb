"""``watch`` as a person uses it: keys on a real terminal, and what is on the screen then."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from accelmetrics.cli.saved_choices import read_choices, write_choices
from accelmetrics.schemas.errors import AccelMetricsError
from accelmetrics.views.terminal.choices import HIDDEN, Choices
from tests.cli.shell import on_path
from tests.cli.terminals import LIGHT_ROW, Terminal, on_terminal
from tests.simulators.nvml import NvmlSimulator, Process
from tests.support.waiting import HANG

FAST = ("watch", "--interval", "0.1")
GIB = 2**30


@pytest.fixture
def machine() -> Iterator[NvmlSimulator]:
    """Four GPUs that differ in all that lists are put in order by."""
    with NvmlSimulator(gpus=4) as made:
        for number, (util, power, memory, heat) in enumerate(((10, 400, 30, 50), (80, 200, 10, 60), (30, 600, 20, 40), (50, 300, 40, 45))):
            made.gpu[number].set(gpu_util=util, power_mw=1000 * power, memory_used=memory * GIB, temperature=heat)
        yield made


@pytest.fixture
def watched(machine: NvmlSimulator) -> Iterator[Terminal]:
    """The program on an ordinary terminal."""
    with on_terminal(*FAST, rows=40, columns=120, env=machine.environment()) as terminal:
        terminal.until("gpu.3")
        yield terminal


@pytest.fixture
def busy(machine: NvmlSimulator) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two processes on the first two GPUs."""
    with subprocess.Popen(["sleep", "3601"]) as first, subprocess.Popen(["sleep", "3602"]) as second:
        machine.processes(0, [Process(first.pid, used=3 * GIB, sm=20)])
        machine.processes(1, [Process(second.pid, used=5 * GIB, sm=10)])
        yield [first, second]
        first.kill()
        second.kill()


def devices(terminal: Terminal) -> list[str]:
    """The devices, in the order of their rows."""
    return [found[1] for line in terminal.lines if (found := re.match(r"[> ][!X -]?(gpu\.\d+) .*/\d+", line))]


def ordered(terminal: Terminal, order: list[str]) -> bool:
    """Whether the devices are in this order."""
    return devices(terminal) == order


def chosen(terminal: Terminal) -> str:
    """What is chosen."""
    return next((found[1] for line in terminal.lines if (found := re.match(r">[!X -]?(\S+)", line))), "")


def test_arrows_choose_a_device_and_the_graph_follows(watched: Terminal) -> None:
    """The terminal's own mark stands on the chosen row, where a Braille display finds it."""
    assert chosen(watched) == "gpu.0"
    watched.type("\x1b[B", "power gpu.1, 1 min", lambda: watched.lines[watched.place[0]].startswith(">") and watched.place[1] == 0)
    assert chosen(watched) == "gpu.1"
    watched.type("\x1bOB", "power gpu.2, 1 min")
    watched.type("\x1b[F", "power gpu.3, 1 min")
    watched.type("k\x1b[H", "power gpu.0, 1 min")


def test_a_filter_is_typed(watched: Terminal) -> None:
    """Words and conditions; what is wrong with one is said; Escape drops it."""
    watched.type("/util>4x0", "filter devices.*util>4x0")
    watched.type("\r", "not a number")
    watched.type("\x1b[D\x7f\r", lambda: devices(watched) == ["gpu.1", "gpu.3"])
    watched.type("\x1b", lambda: len(devices(watched)) == 4)


def test_graphs_are_zoomed_and_moved_through_time(machine: NvmlSimulator, watched: Terminal) -> None:
    """The past has a place on the clock and stays there while readings go on; 0 comes back."""
    watched.type("[", "^no earlier history")
    watched.type("+", "power gpu.0, 30 s .* now 400 W", r"-30 s .* now *$")
    watched.type("+", r"power gpu.0, 15 s", r"-15 s .* now *$")
    readings = machine.calls()["nvmlDeviceGetTemperature", 0]
    machine.wait_for("nvmlDeviceGetTemperature", 0, count=readings + 160)  # of more than the 15 s that are shown
    watched.type("[", r"power gpu.0, 15 s to (\d\d:\d\d:\d\d) .*last 400 W", "^0 returns to now")
    machine.gpu[0].set(power_mw=700_000)
    watched.until("700/700")
    assert "last 400 W  max 400 W" in watched.text
    watched.type("0", "power gpu.0, 15 s .* now 700 W  max 700 W", "^q quit")
    watched.type("--", "power gpu.0, 1 min")


def test_a_graph_has_several_metrics_and_those_of_the_host(watched: Terminal) -> None:
    """With a scale at each side for two units."""
    watched.until(r"^host +cpu \d+ %")  # a rate, which the first reading does not have: without it `m` passes over it
    watched.type("b", r"^── gpu.0, 1 min .*power 400 W.*util 10 %", r"700 W.*100 %")
    watched.type("mmmm", r"^── gpu.0, 1 min .*power 400 W.*host CPU \d+ %")
    watched.type("a", "^a graph of several metrics shows one device: B removes a metric")
    watched.type("bm", "^── gpu.0, 1 min, own scales .*host disk read")
    watched.type("BBaa", "^── power gpu.0, 1 min")
    watched.type("mmmmm", "^── CPU host, 1 min.* now .* %")


def test_the_graph_of_another_metric_begins_with_what_is_remembered(machine: NvmlSimulator, watched: Terminal) -> None:
    """The memory in use is followed from the key on: what it was before is known all the same."""
    machine.gpu[0].set(memory_used=10 * GIB)
    watched.until("10.0/79.6")
    watched.type("mmm", "memory used gpu.0, 1 min .* now 10.0 GiB  max 30.0 GiB")


def test_space_lets_the_picture_stand_still(machine: NvmlSimulator, watched: Terminal) -> None:
    """Readings go on meanwhile, and nothing is written; keys are heard."""
    watched.type(" ", lambda: "PAUSED" in watched.text and watched.raw.endswith(b"\x1b[?2026l"))
    machine.gpu[0].set(gpu_util=99)
    readings = machine.calls()["nvmlDeviceGetTemperature", 0]
    written = len(watched.raw)
    machine.wait_for("nvmlDeviceGetTemperature", 0, count=readings + 5)
    assert len(watched.raw) == written
    assert "99%" not in watched.text
    watched.type("?", "open or close this help")
    watched.type("? ", "99%")


def test_help_details_and_findings_are_shown_and_left(machine: NvmlSimulator) -> None:
    """By their own keys and by Escape."""
    machine.gpu[1].set(temperature=97)
    with on_terminal(*FAST, "--rules", "overheating,overheating.seconds=0", rows=50, columns=120, env=machine.environment()) as terminal:
        terminal.until("gpu.3")
        terminal.type("?", "show the findings of rules")
        terminal.until(lambda: not any("processes 0" in line for line in terminal.lines))  # all of it is drawn
        terminal.type("\x1b", "processes 0")
        terminal.type("f", "core at 97 °C.*", "what to do")
        terminal.type("f", "processes 0")
        terminal.type(
            "\x1b[B\r", "H100 80GB HBM3.*escape leaves", "core at 97 °C", "^── Utilisation .* 1 min ─", "━ util 80 %  ━ memory busy"
        )
        terminal.type("+", "^── Utilisation .* 30 s ─")
        terminal.type("e\x1b[F", "^  not supported +.*fanSpeed", r"^  violationSeconds.thermal +\d")
        terminal.type("\r", "processes 0")


def test_details_scroll_on_a_low_terminal(machine: NvmlSimulator) -> None:
    """To the end and back."""
    with on_terminal(*FAST, rows=20, columns=80, env=machine.environment()) as terminal:
        terminal.until("gpu.3")
        terminal.type("\r", "escape leaves")
        first = terminal.lines[1]
        terminal.type("\x1b[6~", lambda: terminal.lines[1] != first)
        terminal.type("\x1b[F\x1b[H", lambda: terminal.lines[1] == first)


def test_s_shows_the_summary_and_saves_it(machine: NvmlSimulator, tmp_path: Path) -> None:
    """Mean and maximum of each device, and its energy, since the start or the last reset."""
    with on_terminal(*FAST, "--save-dir", str(tmp_path), rows=40, columns=120, env=machine.environment()) as terminal:
        terminal.until("gpu.3")
        terminal.type("s", r"gpu\.1 +80\.0 +80 +10\.0 +10\.0 .* 60 +\d+$")
        machine.gpu[1].set(gpu_util=20)
        terminal.until(r"gpu\.1 +\d\d\.\d +80 ")
        terminal.type("s", "saved .*accelmetrics-summary-.*txt")
        (saved,) = tmp_path.iterdir()
        assert re.search(r"gpu\.1 +\d\d\.\d +80 ", saved.read_text())
        terminal.type("\x1b", "processes 0")
        terminal.type("rs", r"gpu\.1 +20\.0 +20 ")


def test_r_resets_the_history(watched: Terminal) -> None:
    """Graphs begin anew."""
    watched.type("m", "util gpu.0, 1 min .* max 10 %")
    watched.type("r", "the history was cleared")


def test_keys_that_mean_nothing_change_nothing(watched: Terminal) -> None:
    """Functions, Alt, reports of the terminal: the letters in them are no keys."""
    watched.type("\x1b[15~\x1bq\x1b[?1;2c\x1b[I Z")
    watched.type("m", "util gpu.0, 1 min")
    assert watched.process.poll() is None
    assert watched.end("Q") == 0


def test_processes_by_device_with_user_and_command(busy: list[subprocess.Popen[bytes]], watched: Terminal) -> None:
    """The busiest first; ordered and filtered like devices."""
    first, second = busy
    watched.until(rf"{first.pid} +root .*20.* 3\.0 .*sleep 3601", rf"(?s){first.pid} .*{second.pid} ")
    watched.type("\to", rf"(?s){second.pid} .*{first.pid} ")
    watched.type("/3601\r", lambda: str(second.pid) not in watched.text)
    watched.type("\x1b", str(second.pid))


def test_enter_opens_the_process_with_its_tree_and_on_request_its_environment(machine: NvmlSimulator) -> None:
    """The chosen process, and not the device of the other list; what it has in its environment is shown when it is asked for alone."""
    command = ["bash", "-c", "sleep 3601 & sleep 3602 & wait"]
    with subprocess.Popen(command, env={"PATH": os.environ["PATH"], "SECRET": "s3same"}, start_new_session=True) as holder:
        try:
            machine.processes(1, [Process(holder.pid, used=3 * GIB, sm=20)])
            with on_terminal(*FAST, rows=50, columns=120, env=machine.environment()) as terminal:
                terminal.until(str(holder.pid))
                terminal.type("\t\r", f"process {holder.pid}  bash .*escape leaves", "command +bash -c sleep 3601 & sleep 3602 & wait")
                terminal.until(rf"^ +{holder.pid} +root +bash -c", r"^ +\d+ +root +sleep 3601", r"^ +\d+ +root +sleep 3602")
                terminal.until(r"GPU 1 min .* now 20 %", r"GPU memory 1 min .* now 3.0 GiB", r"host memory 1 min .* now \d")
                assert "s3same" not in terminal.text
                terminal.type("e", "SECRET=s3same")
                terminal.type("e", lambda: "s3same" not in terminal.text)
                machine.processes(1, [])
                terminal.until("the process has ended, or no longer uses a device")
                terminal.type("\x1b", "no process uses a device")
                terminal.type("\t\r", "gpu.0 .*escape leaves")
        finally:
            os.killpg(holder.pid, signal.SIGKILL)


def test_the_processes_of_a_lost_device_stay(machine: NvmlSimulator, busy: list[subprocess.Popen[bytes]], watched: Terminal) -> None:
    """As they were seen last, with how long that is ago; those of others go on, and the list is as ever when the device is back."""
    watched.until(str(busy[0].pid), str(busy[1].pid))
    machine.lose(1)
    watched.until(rf"{busy[1].pid} .* 1 .*10\? .*5\.0\? .*last seen \d+ s ago: sleep 3602", rf"{busy[0].pid} .* 20 .* sleep 3601")
    machine.recover(1)
    watched.until(rf"{busy[1].pid} .* 10 .*5\.0 .* sleep 3602", lambda: "last seen" not in watched.text)


def test_no_signal_of_a_read_only_view(machine: NvmlSimulator, busy: list[subprocess.Popen[bytes]]) -> None:
    """The key says so, and is not in the help."""
    with on_terminal(*FAST, "--read-only", rows=40, columns=120, env=machine.environment()) as terminal:
        terminal.until(str(busy[0].pid))
        terminal.type("\tx", "no signals: watch was started with --read-only")
        terminal.type("?", "open or close this help")
        assert "send a signal" not in terminal.text
    assert busy[0].poll() is None


def report(button: int, terminal: Terminal, pattern: str) -> str:
    """What the terminal sends for a button that is pressed on the line that has this."""
    row = next(number for number, line in enumerate(terminal.lines, 1) if re.search(pattern, line))
    return f"\x1b[<{button};5;{row}M\x1b[<{button};5;{row}m"


def test_the_mouse_chooses_scrolls_and_opens(machine: NvmlSimulator, busy: list[subprocess.Popen[bytes]]) -> None:
    """A click chooses, the wheel moves, two clicks open; the terminal no longer reports the mouse afterwards."""
    with on_terminal(*FAST, rows=40, columns=120, env=machine.environment()) as terminal:
        terminal.until(str(busy[1].pid))
        terminal.type(report(0, terminal, "gpu.2 "), lambda: chosen(terminal) == "gpu.2")
        terminal.type(report(65, terminal, "gpu.0 "), lambda: chosen(terminal) == "gpu.3")
        terminal.type(report(0, terminal, "sleep 3602"), rf"^> *{busy[1].pid} ")
        terminal.type(report(0, terminal, "gpu.1 ") * 2, "gpu.1 .*escape leaves")
        assert terminal.end("q") == 0
        assert terminal.raw.count(b"\x1b[?1000h") == 1
        assert terminal.raw.rfind(b"\x1b[?1000l") > terminal.raw.rfind(b"\x1b[?1000h")


def test_without_the_mouse_the_terminal_keeps_it(machine: NvmlSimulator) -> None:
    """Text is selected as everywhere."""
    with on_terminal(*FAST, "--no-mouse", env=machine.environment()) as terminal:
        terminal.until("gpu.3")
        assert terminal.end("q") == 0
        assert b"\x1b[?1000h" not in terminal.raw


@contextmanager
def at_node(machine: NvmlSimulator, directory: Path) -> Iterator[tuple[dict[str, str], IO[str]]]:
    """An environment in which an open file stands for the node of GPU 0, and that file."""
    node = directory / "nvidia0"
    node.touch()
    (directory / "sitecustomize.py").write_text(
        "import accelmetrics.backends.kit.processes as module, re\n"
        f"module.NODES = {{'nvidia': re.escape({str(directory)!r}) + '/nvidia\\\\d+'}}\n"
    )
    with node.open() as held:
        yield {**machine.environment(), "PYTHONPATH": on_path(directory)["PYTHONPATH"]}, held


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="platform: descriptors of processes are Linux'")
def test_a_signal_is_sent_after_a_question(machine: NvmlSimulator, tmp_path: Path) -> None:
    """To the chosen process, which holds the device; one that does not hold it is left alone."""
    with (
        at_node(machine, tmp_path) as (env, held),
        subprocess.Popen(["sleep", "3601"], stdin=held) as holder,
        subprocess.Popen(["sleep", "3602"]) as other,
    ):
        machine.processes(0, [Process(holder.pid, used=GIB, sm=20), Process(other.pid, used=GIB, sm=10)])
        with on_terminal(*FAST, rows=40, columns=120, env=env) as terminal:
            terminal.until(str(other.pid))
            terminal.type("x", "select a process first")
            terminal.type("\tx", rf"send SIGTERM to process {holder.pid}\?", "user root, on gpu.0", "sleep 3601")
            terminal.type("n", "no signal was sent")
            assert holder.poll() is None
            terminal.type("x\x1b[C", rf"send SIGINT to process {holder.pid}\?")
            terminal.type("y")
            assert holder.wait(HANG) == -2
            terminal.until("SIGINT was sent")
            machine.processes(0, [Process(other.pid, used=GIB, sm=10)])
            terminal.until(lambda: str(holder.pid) not in terminal.text.replace("SIGINT was sent to process", ""))
            terminal.type("x", "does not hold the device")
            assert other.poll() is None
        other.kill()
        holder.kill()


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="platform: descriptors of processes are Linux'")
def test_a_signal_is_sent_to_all_that_are_tagged(machine: NvmlSimulator, tmp_path: Path) -> None:
    """The question names them, and those that are left alone with the reason."""
    with at_node(machine, tmp_path) as (env, held), subprocess.Popen(["sleep", "3600"]) as other:
        holders = [subprocess.Popen(["sleep", f"360{number}"], stdin=held) for number in (1, 2, 3)]
        try:
            uses = [Process(one.pid, used=GIB, sm=20 - number) for number, one in enumerate([*holders, other])]
            machine.processes(0, uses)
            with on_terminal(*FAST, rows=40, columns=120, env=env) as terminal:
                terminal.until(*(str(use.pid) for use in uses))
                terminal.type("\t  \x1b[B ", "3 tagged", rf"^ \* *{holders[0].pid} ", rf"^>\* *{other.pid} ")
                terminal.type("x", r"send SIGTERM to 2 processes\?", f"{holders[1].pid}, user root, on gpu.0: sleep 3602")
                terminal.until(f"no signal: process {other.pid} does not hold the device")
                terminal.type("y", f"SIGTERM was sent to process {holders[0].pid}, {holders[1].pid}")
                assert [one.wait(HANG) for one in holders[:2]] == [-15, -15]
                assert [one.poll() for one in (holders[2], other)] == [None, None]
        finally:
            for one in (*holders, other):
                one.kill()
                one.wait(HANG)


def test_a_lost_device_keeps_its_row_and_comes_back(machine: NvmlSimulator, watched: Terminal) -> None:
    """With the reason; the others go on."""
    machine.lose(2)
    watched.until(r"Xgpu\.2 .*lost", "1 lost")
    machine.gpu[0].set(gpu_util=77)
    watched.until("77%")
    machine.recover(2)
    watched.until(lambda: len(devices(watched)) == 4 and "lost" not in watched.text)


def test_a_driver_that_goes_and_comes_back(machine: NvmlSimulator) -> None:
    """A reload: rows stay with the reason, and have numbers again afterwards."""
    with on_terminal(*FAST, rows=40, columns=120, env=machine.environment()) as terminal:
        terminal.until("gpu.3")
        machine.driver_away()
        terminal.until(lambda: not devices(terminal) or "no driver" in terminal.text)
        machine.driver_back()
        terminal.until(lambda: len(devices(terminal)) == 4)


def test_what_is_written_is_bounded_and_nothing_where_nothing_changes(machine: NvmlSimulator) -> None:
    """A reading with other numbers writes changed lines: fewer bytes than the screen has places."""
    with on_terminal(*FAST, "--backends", "nvidia", rows=40, columns=120, env=machine.environment()) as terminal:
        terminal.until("gpu.3")
        terminal.type("s\x1b")
        drawn = terminal.raw.count(b"\x1b[?2026h")
        begun = len(terminal.raw)
        terminal.until(lambda: terminal.raw.count(b"\x1b[?2026h") >= drawn + 10)
        pictures = terminal.raw.count(b"\x1b[?2026h") - drawn
        assert (len(terminal.raw) - begun) / pictures < 40 * 120


def test_what_is_chosen_is_saved_on_request_and_read_at_the_next_start(machine: NvmlSimulator, tmp_path: Path) -> None:
    """Orders, columns, graphs and the theme; without the key nothing is written."""
    env = {**machine.environment(), "XDG_CONFIG_HOME": str(tmp_path), "COLORTERM": "truecolor"}
    with on_terminal(*FAST, "--theme", "light", rows=40, columns=160, env=env) as terminal:
        terminal.until("gpu.3")
        terminal.type("zm", partial(ordered, terminal, ["gpu.3", "gpu.0", "gpu.2", "gpu.1"]))
        assert list(tmp_path.iterdir()) == []
        terminal.type("cx\r", lambda: "XID" not in terminal.text)
        terminal.type("mt", "^── util gpu.0, 5 min")
        terminal.type("lW", f"saved orders, columns, graphs and theme in {tmp_path}/accelmetrics/watch.json")
        assert terminal.end("q") == 0
    with on_terminal(*FAST, rows=40, columns=160, env=env) as terminal:
        terminal.until(partial(ordered, terminal, ["gpu.3", "gpu.0", "gpu.2", "gpu.1"]), "^── util gpu.3, 5 min")
        assert "XID" not in terminal.text
        assert LIGHT_ROW in terminal.raw and b"\x1b]11;?" not in terminal.raw
    with on_terminal(*FAST, "--theme", "auto", env=env) as terminal:
        terminal.until("gpu.3")
        assert LIGHT_ROW not in terminal.raw
    assert [path.name for path in (tmp_path / "accelmetrics").iterdir()] == ["watch.json"]
    assert json.loads((tmp_path / "accelmetrics" / "watch.json").read_text())["training"] == HIDDEN


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "the file is not JSON"),
        ("[" * 100_000, "the file is not JSON"),
        ("[]", "the file is not a JSON object"),
        ('{"scale": "7 min"}', "scale cannot be '7 min'"),
        ('{"beside": [1]}', r"beside cannot be \[1\]"),
        ('{"theme": "blue"}', "theme cannot be 'blue'"),
        ('{"device_hidden": "MEM"}', "device_hidden cannot be 'MEM'"),
        ('{"process_order": ["mem"]}', r"process_order cannot be \['mem'\]"),
    ],
)
def test_a_file_of_choices_that_cannot_be_used_is_said_once(text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is usual is shown, and saving replaces it."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert read_choices(Choices()) == Choices()
    path = tmp_path / "accelmetrics" / "watch.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(AccelMetricsError, match=f"the saved choices in {path} are ignored: {why}.*; W saves new ones"):
        read_choices(Choices())
    chosen = Choices(node_order="power", process_hidden=frozenset({"TIME"}), message="not saved")
    assert write_choices(chosen) == path
    assert read_choices(Choices()) == replace(chosen, message="")


def test_a_start_with_such_a_file_goes_on(machine: NvmlSimulator, tmp_path: Path) -> None:
    """With a sentence at the foot; where nothing can be saved, that is said too."""
    path = tmp_path / "accelmetrics" / "watch.json"
    path.parent.mkdir()
    path.write_text("{}}")
    with on_terminal(*FAST, columns=200, env={**machine.environment(), "XDG_CONFIG_HOME": str(tmp_path)}) as terminal:
        terminal.until("gpu.3", "^the saved choices in .* are ignored: the file is not JSON")
        path.unlink()
        path.parent.rmdir()
        path.parent.write_text("no directory")
        terminal.type("W", "the choices cannot be saved in .*watch.json: (Not a directory|File exists)")
        assert terminal.end("q") == 0
