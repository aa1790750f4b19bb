"""Telegraf's configurations: their commands, run as they say, print what another program of the protocol takes."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import urllib.request
from typing import Any

import pytest

from tests.cli.test_serve import get
from tests.exporters.receivers import exported, victoria_metrics
from tests.monitors.machine import ENDPOINT, INSTALLED, LEFT, LOST, POWER, Machine, configuration, installed
from tests.support.waiting import HANG, wait_for

toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
pytestmark = pytest.mark.servers


def plug_in(kind: str, replaced: dict[str, str]) -> dict[str, Any]:
    """The settings of the one plug-in of a file."""
    inputs = toml.loads(configuration(f"telegraf/{kind}.conf", replaced))["inputs"]
    ((settings,),) = inputs.values()
    return dict(settings)


def test_the_lasting_process_gives_every_device_and_nothing_of_a_lost_one(machine: Machine) -> None:
    """A point a device at each reading, which VictoriaMetrics reads; from the next reading on a lost device has its Xid counts alone."""
    settings = plug_in("execd", {INSTALLED: str(installed(machine.folder)), '"10"': '"0.2"'})
    assert (settings["data_format"], settings["signal"]) == ("influx", "none")
    lines: list[str] = []
    devices: list[str] = []
    with subprocess.Popen(settings["command"], env=machine.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            devices += re.findall(r",accelerator=([^,]+),.*powerWatts=", line)
            if devices == list(POWER):
                machine.lose()
            if devices[-3 * len(LEFT) :] == 3 * list(LEFT):
                break
        process.terminate()
    series = written("".join(lines), machine)
    assert {key: values[-1] for key, values in series.items()} == POWER
    assert min(len(series[key]) for key in LEFT) >= len(series[LOST]) + 2


def test_each_run_gives_every_device_and_ends(machine: Machine) -> None:
    """One reading, within the time that the configuration gives it; and one of a machine that has lost a device."""
    settings = plug_in("exec", {INSTALLED: str(installed(machine.folder))})
    assert settings["data_format"] == "influx"
    (command,) = settings["commands"]
    assert written(output(command, machine), machine) == {key: [watts] for key, watts in POWER.items()}
    machine.lose()
    assert LOST not in output(command, machine)


def test_what_serves_has_every_device_where_telegraf_looks(machine: Machine) -> None:
    """Its address is that of the endpoint, and there each device has its power."""
    with machine.served() as base:
        (address,) = plug_in("prometheus", {ENDPOINT: base.removeprefix("http://")})["urls"]
        page = get(address)[1]
        found = re.findall(r'^accel_power_watts\{accelerator="([^"]+)".*\} (\S+)$', page, re.MULTILINE)
    assert {key: float(watts) for key, watts in found} == POWER


def output(command: list[str], machine: Machine) -> str:
    """What a command prints that ends well."""
    done = subprocess.run(command, env=machine.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2 * HANG)
    assert done.returncode == 0, done.stderr
    return done.stdout


def written(text: str, machine: Machine) -> dict[str, list[float]]:
    """What VictoriaMetrics has of devices' power, by device, after these points were written to it."""
    with victoria_metrics(machine.folder) as server:
        request = urllib.request.Request(f"{server}/write", text.encode(), method="POST")
        with urllib.request.urlopen(request, timeout=HANG) as answer:
            assert answer.status == 204
        points = text.count("powerWatts=")

        def arrived() -> list[dict[str, Any]]:
            found = [one for one in exported(server, 1) if one["metric"]["__name__"] == "gpu_powerWatts"]
            return found if sum(len(one["values"]) for one in found) == points else []

        return {one["metric"]["accelerator"]: one["values"] for one in wait_for(arrived)}
