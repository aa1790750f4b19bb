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
        lost = program.stderr.readline()
        assert re.match(r"accelmetrics: error: gpu\.1 \(GPU-[0-9a-f-]+\): lost: \S", lost), lost
        simulator.recover(1)
        back = program.stderr.readline()
        assert re.match(r"accelmetrics: info: gpu\.1 \(GPU-[0-9a-f-]+\): back, after \d+ s$", back), back


def test_a_device_that_hangs_is_told() -> None:
    """Its driver's calls do not return."""
    with NvmlSimulator(2) as simulator, serving(*FAST, "--rules", "none", **simulator.environment()) as (program, base):
        ready(base)
        simulator.rule("*", 1, hang=True)
        hung = program.stderr.readline()
        assert re.match(r"accelmetrics: error: gpu\.1 \(GPU-[0-9a-f-]+\): does not answer", hung), hung
        simulator.clear_rules()
        assert "back, after" in program.stderr.readline()


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


def test_a_finding_that_is_over_is_told_and_levels_leave_lines_out() -> None:
    """With `--log-level error` of a lost device and its finding: their beginnings, and not their ends."""
    rules = ("--rules", "none,device_lost,device_lost.clear_seconds=0")
    with NvmlSimulator(2) as simulator:
        for level in ("info", "error"):
            with serving(*FAST, *rules, "--log-level", level, **simulator.environment()) as (program, base):
                ready(base)
                simulator.lose(1)
                assert "error: gpu.1" in program.stderr.readline()
                assert "error: critical device_lost: gpu.1: lost" in program.stderr.readline()
                simulator.recover(1)
                if level == "info":
                    ends = [program.stderr.readline(), program.stderr.readline()]
                    assert any("info: over: critical device_lost gpu.1, after" in line for line in ends), ends
                else:
                    wait_for(lambda: 'rule="device_lost"' not in get(f"{base}/metrics")[1], what="the finding is not over")
                    simulator.lose(0)
                    assert "error: gpu.0" in program.stderr.readline()
                    simulator.recover(0)


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
