"""What ``accelmetrics serve`` logs of its devices: what begins, and what is over."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest

from accelmetrics.cli.monitoring import set_up
from accelmetrics.schemas.log import log
from tests.cli.shell import environment, start
from tests.cli.test_serve import get, ready, serving
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import HANG, wait_for

pytestmark = pytest.mark.usefixtures("log_as_before")

FAST = ("--backends", "nvidia", "--interval", "0.2", "--timeout", "0.5", "--attribution", "none")


def next_line(program: subprocess.Popen[str]) -> str:
    """The next message that is not about a driver which a loaded machine takes long to open."""
    assert program.stderr is not None
    return next(line for line in program.stderr if "is still being opened" not in line and "source nvidia: answers again" not in line)


def next_event(program: subprocess.Popen[str], name: str) -> dict[str, Any]:
    """The next message about an event of this name."""
    assert program.stderr is not None
    for line in program.stderr:
        message: dict[str, Any] = json.loads(line)
        if message.get("data", {}).get("event") == name:
            return message
    raise AssertionError(f"the command ended without {name}")


def test_a_device_that_is_lost_and_comes_back_is_a_line_each() -> None:
    """With the device, its UUID and how long it took; the reading's other device is in none."""
    with NvmlSimulator(2) as simulator, serving(*FAST, "--rules", "none", **simulator.environment()) as (program, base):
        ready(base)
        simulator.lose(1)
        lost = next_line(program)
        assert re.match(r"accelmetrics: error: gpu\.1 \(GPU-[0-9a-f-]+\): lost: \S", lost), lost
        simulator.recover(1)
        back = next_line(program)
        assert re.match(r"accelmetrics: info: gpu\.1 \(GPU-[0-9a-f-]+\): back, after \d+ s$", back), back


def test_a_device_that_hangs_is_told() -> None:
    """Its driver's calls do not return."""
    with NvmlSimulator(2) as simulator, serving(*FAST, "--rules", "none", **simulator.environment()) as (program, base):
        ready(base)
        simulator.rule("*", 1, hang=True)
        hung = next_line(program)
        assert re.match(r"accelmetrics: error: gpu\.1 \(GPU-[0-9a-f-]+\): does not answer", hung), hung
        simulator.clear_rules()
        assert "back, after" in next_line(program)


def test_each_xid_is_a_line_and_the_finding_about_it_the_first() -> None:
    """In JSON with the code and the device. A finding has the level of its severity."""
    with NvmlSimulator(1) as simulator:
        command = ("serve", "--listen", "127.0.0.1:0", *FAST, "--log-format", "json")
        program = start(*command, env=environment(**simulator.environment()))
        try:
            address = json.loads(program.stderr.readline())["data"]["address"]
            ready(address.removesuffix("/metrics"))
            simulator.xid(0, 79)
            first = next_event(program, "finding")
            assert (first["level"], first["data"]["finding"]["rule"]) == ("error", "xid_hardware")
            simulator.xid(0, 79)
            second = next_event(program, "xid")
            assert (second["level"], second["data"]["code"], second["data"]["device"]) == ("warning", 79, "gpu.0")
        finally:
            program.kill()
            program.communicate(timeout=HANG)


@pytest.mark.parametrize(
    ("level", "lines"), [("info", ["error: gpu.1", "info: gpu.1", "error: gpu.0"]), ("error", ["error: gpu.1", "error: gpu.0"])]
)
def test_the_finding_about_a_lost_device_is_no_second_line(level: str, lines: list[str]) -> None:
    """Neither where it begins nor where it is over. Levels leave lines out."""
    rules = ("--rules", "none,device_lost,device_lost.clear_seconds=0", "--log-level", level)
    with NvmlSimulator(2) as simulator, serving(*FAST, *rules, **simulator.environment()) as (program, base):
        ready(base)

        def found() -> bool:
            return 'rule="device_lost"' in get(f"{base}/metrics")[1]

        simulator.lose(1)
        wait_for(found)
        simulator.recover(1)
        wait_for(lambda: not found())
        simulator.lose(0)
        logged = [next_line(program) for _ in lines]
    assert [line.removeprefix("accelmetrics: ").partition(" (")[0] for line in logged] == lines
    assert "(look at the kernel's log (dmesg);" in logged[0]


def test_a_finding_that_is_over_is_a_line() -> None:
    rules = ("--rules", "none,hot,hot.seconds=0,hot.clear_seconds=0")
    with NvmlSimulator(1) as simulator, serving(*FAST, *rules, **simulator.environment()) as (program, base):
        ready(base)
        simulator.gpu[0].set(temperature=99)
        assert re.match(r"accelmetrics: \w+: warning hot: gpu\.0: ", next_line(program))
        simulator.gpu[0].set(temperature=40)
        assert re.match(r"accelmetrics: info: over: warning hot gpu\.0, after \d+ s$", next_line(program))


def test_the_journal_reads_the_level(capsys: pytest.CaptureFixture[str]) -> None:
    """In front of the line, as systemd takes it off."""
    set_up("journal", {}, "debug")
    for level in ("debug", "info", "warning", "error"):
        getattr(log, level)("words")
    assert [line.partition(": ")[0] for line in capsys.readouterr().err.splitlines()] == [
        "<7>accelmetrics",
        "<6>accelmetrics",
        "<4>accelmetrics",
        "<3>accelmetrics",
    ]
