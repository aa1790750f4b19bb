"""``watch --plain``: lines for screen readers, of what changes."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from accelmetrics.cli.watch import changes, folded, overview
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.record import Finding, Findings, Record
from accelmetrics.testing import FakeBackend
from accelmetrics.views.node_view import NodeView, node_view
from tests.cli.shell import environment, rest_of, start
from tests.cli.terminals import on_terminal, shell
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import HANG

PLAIN = ("watch", "--plain", "--interval", "0.1")
SECOND = 1_000_000_000
HOT = Finding("hot", "warning", "gpu.1", "core at 83 °C", 83.0, 80.0, 0, None, "Look at the fans.")


@pytest.fixture
def backend() -> FakeBackend:
    """Two devices."""
    made = FakeBackend("nvidia", devices=2)
    made.device(0).set(gpu=93, memoryAllocatedBytes=45 * 2**30, memoryTotalBytes=80 * 2**30, powerWatts=612, temp=71)
    made.device(1).set(gpu=0, powerWatts=70, temp=34)
    return made


def view_of(backend: FakeBackend, *current: Finding, **more: Any) -> NodeView:
    """What is shown of the devices, and of these findings."""
    with Sampler([backend]) as sampler:
        return node_view(Record(sampler.sample(), findings=Findings(current)), **more)


def test_nothing_is_said_where_nothing_changed(backend: FakeBackend) -> None:
    """Numbers are no change; the first line says what there is."""
    first = view_of(backend)
    (line,) = changes(None, first)
    assert line.endswith(": 2 gpu, util 47 %, 682 W, no finding")
    backend.device(0).set(gpu=10, powerWatts=100)
    assert list(changes(first, view_of(backend))) == []


def test_findings_begin_and_are_over(backend: FakeBackend) -> None:
    """Each in a line, with what to do."""
    before, during = view_of(backend), view_of(backend, HOT)
    assert list(changes(before, during)) == ["warning hot gpu.1: core at 83 °C; Look at the fans."]
    assert list(changes(during, during)) == []
    after = replace(view_of(backend), time_ns=240 * SECOND)
    assert list(changes(during, after)) == ["over: warning hot gpu.1, after 4 min"]


def test_a_device_is_lost_and_back(backend: FakeBackend) -> None:
    """With the reason."""
    before = view_of(backend)
    for name in ("gpu", "powerWatts", "temp"):
        backend.device(1).miss(name, "device_lost", "it fell off the bus")
    lost = view_of(backend, before=before)
    (line,) = changes(before, lost)
    assert line.startswith("gpu.1: lost; it fell off the bus; ")
    assert list(changes(lost, lost)) == []
    assert list(changes(lost, before)) == ["gpu.1: back"]
    fewer = replace(before, devices=before.devices[:1])
    assert list(changes(before, fewer)) == ["gpu.1: no longer listed"]


def test_a_fact_is_said_once(backend: FakeBackend) -> None:
    """A lost device by its own line and no finding beside it, one cause on several devices in one line, and a finding once."""
    hot = [HOT._replace(key=key) for key in ("gpu.0", "gpu.1")]
    before, during = view_of(backend), view_of(backend, *hot)
    assert list(changes(before, during)) == ["warning hot gpu.0-1: core at 83 °C; Look at the fans."]
    (over,) = changes(during, replace(before, time_ns=240 * SECOND))
    assert over == "over: warning hot gpu.0-1, after 4 min"
    assert "\n".join(overview(during)).count("core at 83 °C") == 1
    for name in ("gpu", "powerWatts", "temp"):
        backend.device(1).miss(name, "device_lost", "it fell off the bus")
    gone = Finding("device_lost", "critical", "gpu.1", "it gives nothing", 1.0, 0.0, 0, None, "Drain the node.")
    lost = view_of(backend, gone, before=before)
    (line,) = changes(before, lost)
    assert line.startswith("gpu.1: lost; ")
    (back,) = changes(lost, before)
    assert back == "gpu.1: back"
    assert "\n".join(overview(lost)).count("it gives nothing") == 0


def test_no_line_is_wider_than_79_columns() -> None:
    """What goes on is indented; an address is not broken."""
    text = folded(f"21:03:12 gpu.0: {'word ' * 40}https://example.org/{'x' * 90} end")
    lines = text.splitlines()
    assert all(len(line) < 80 for line in lines if "https" not in line)
    assert all(line.startswith("  ") for line in lines[1:])
    assert text.split() == f"21:03:12 gpu.0: {'word ' * 40}https://example.org/{'x' * 90} end".split()


def test_a_source_falls_silent_and_answers_again(backend: FakeBackend) -> None:
    """One whose hardware is there."""
    good = view_of(backend)
    (source,) = (one for one in good.sources if one.name == "nvidia")
    silent = replace(good, sources=(replace(source, status="timed_out", detail="no answer for 12 s", advice="Wait.", silent=True),))
    assert list(changes(good, silent)) == ["source nvidia: timed out; no answer for 12 s; Wait."]
    assert list(changes(silent, good)) == ["source nvidia: answers again"]


def test_the_overview_says_each_device_in_a_sentence(backend: FakeBackend) -> None:
    """And each finding."""
    head, first, second, finding = overview(view_of(backend, HOT))
    assert head.endswith("682 W, 1 finding")
    assert first.endswith(": util 93 %, memory 45.0/80.0 GiB, 612 W, 71 °C")
    assert "util 0 %, 70 W, 34 °C" in second
    assert finding == "warning hot gpu.1: core at 83 °C"


def test_on_a_terminal(simulator: NvmlSimulator) -> None:
    """A line for a change, an overview on Enter, an end by q; the cursor is never moved, and nothing is said again."""
    with on_terminal(*PLAIN, "--rules", "overheating,overheating.seconds=0", columns=200, env=simulator.environment()) as terminal:
        terminal.until("2 gpu.*no finding$")
        simulator.gpu[1].set(temperature=97)
        terminal.until(r"^\d\d:\d\d:\d\d critical overheating gpu.1: core at 97 °C")
        simulator.lose(0)
        terminal.until("gpu.0: lost")
        terminal.type("\r", "^gpu.1 H100 80GB HBM3: util 48 %")
        assert terminal.end("q\r") == 0
        assert b"\x1b" not in terminal.raw
        assert sum("gpu.0: lost" in line for line in terminal.everything) == 1
        assert terminal.attributes == terminal.before


def test_without_a_terminal(simulator: NvmlSimulator) -> None:
    """Lines for a log."""
    process = start(*PLAIN, env=environment(**simulator.environment()))
    assert "2 gpu" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, errors = rest_of(process)
    assert (process.returncode, errors) == (0, "")


def test_in_the_background_it_goes_on(simulator: NvmlSimulator) -> None:
    """Where what is typed is the shell's."""
    with shell(env=simulator.environment()) as terminal:
        terminal.type("am watch --plain --interval 0.1 &\r", "2 gpu")
        simulator.lose(0)
        terminal.until("gpu.0: lost")
        terminal.type("kill %1; wait; clear; echo still here\r", "^still here$")


def test_a_terminal_that_goes_away_ends_it(simulator: NvmlSimulator) -> None:
    """Without a word of complaint; Ctrl-D ends nothing but the typing."""
    with on_terminal(*PLAIN, env=simulator.environment()) as terminal:
        terminal.until("2 gpu")
        terminal.type("\x04")
        simulator.lose(0)
        terminal.until("gpu.0: lost")
        terminal.hang_up()
        assert terminal.process.wait(HANG) == 0
        assert b"Traceback" not in terminal.raw
