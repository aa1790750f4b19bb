"""``accelmetrics demo``: commands on simulated GPUs, from outside."""

from __future__ import annotations

import itertools
import json
import signal
from pathlib import Path

import pytest

import accelmetrics
from accelmetrics.testing import DemoBackend
from tests.cli.shell import call, start
from tests.exporters.prometheus_server import fetch
from tests.support.waiting import HANG, wait_for


def test_a_recording_reads_back_as_a_report(tmp_path: Path) -> None:
    """What a person without a GPU does first: record, then look."""
    done = call("demo", "record", "--interval", "0.1", "--duration", "0.5", "--exporter", f"jsonl:{tmp_path / 'run.jsonl'}")
    assert (done.returncode, "GPU Monitor - GPU0: " in done.stdout) == (0, True), done.stderr
    assert done.stderr.startswith("accelmetrics demo: 4 simulated GPUs: their numbers are invented\n")
    found = json.loads(call("report", str(tmp_path / "run.jsonl"), "--format", "json").stdout)
    assert [found["devices"][f"gpu.{number}"]["name"] for number in range(4)] == ["Simulated GPU 80GB"] * 4
    assert all(device["energy"]["source"] == "counter" for device in found["devices"].values())


def test_the_page_and_the_endpoint(tmp_path: Path) -> None:
    """By ``serve --ui``; as many devices as were asked for."""
    program = start("demo", "--devices", "2", "serve", "--ui", "--listen", "127.0.0.1:0")
    try:
        assert program.stderr is not None
        lines = (program.stderr.readline(), program.stderr.readline())
        assert lines[0].startswith("accelmetrics demo: 2 simulated GPUs")
        address = lines[1].split("http://")[1].split("/")[0]
        wait_for(lambda: "accel_power_watts" in fetch(f"http://{address}/metrics"))
        assert len(json.loads(fetch(f"http://{address}/api/snapshot"))["devices"]) == 2
        assert "<html" in fetch(f"http://{address}/")
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=HANG)
        assert program.returncode == 0
    finally:
        program.kill()
        program.communicate(timeout=HANG)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dump"], "'dump' cannot be shown: watch, serve, record can"),
        (["watch", "--backends", "host"], "--backends says what is read"),
        (["watch", "--url", "http://node"], "--url reads no device"),
        (["record", "--isolation", "process"], "leave out --isolation process"),
        (["record", "--intervall", "1"], "Did you mean '--interval'?"),
        (["--devices", "0"], "must be a whole number above 0"),
    ],
)
def test_what_cannot_be_shown(arguments: list[str], words: str) -> None:
    """One line, and the status of arguments that cannot be used."""
    done = call("demo", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr and done.stderr.count("\n") == 1


def test_they_work_get_hot_and_use_energy() -> None:
    """Over three simulated minutes: phases of load, one that is hot and slower for it, one idle; energy is the area below the power."""
    now = [0.0]
    with accelmetrics.Sampler(backends=[DemoBackend(4, lambda: now[0])]) as sampler:
        seen = []
        for now[0] in map(float, range(181)):
            seen.append(sampler.sample().metrics)
    busy = [one["gpu.0.gpu"] for one in seen]
    assert max(busy) > 90 and min(busy) < 60
    assert {one["gpu.3.gpu"] for one in seen} == {0}
    assert max(one["gpu.1.temp"] for one in seen) > 80 > max(one["gpu.0.temp"] for one in seen)
    assert {one["gpu.1.smClock"] for one in seen} == {1980, 1410}
    area = sum((one["gpu.0.powerWatts"] + other["gpu.0.powerWatts"]) / 2 for one, other in itertools.pairwise(seen))
    assert seen[-1]["gpu.0.energyJoules"] - seen[0]["gpu.0.energyJoules"] == pytest.approx(area, rel=0.001)
