"""What a stretch of watching came to."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from accelmetrics import Monitor
from accelmetrics.monitor.window import Window
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.statistics import Energy
from accelmetrics.testing import FakeBackend
from accelmetrics.views.summaries import of_devices, of_process, of_window
from tests.records import host, machine
from tests.sampling.conftest import until

GIB = 2**30


def watched(*backends: FakeBackend) -> tuple[Window, Snapshot]:
    """A window over a few readings, and the last one."""
    monitor = Monitor(0.02, backends=list(backends))
    with monitor:
        window = monitor.window("test").begin()
        before = len(monitor.history)
        until(lambda: len(monitor.history) >= before + 5)
        window.end()
    assert monitor.latest is not None
    return window, monitor.latest


def test_a_line_for_each_device() -> None:
    """Means and maxima in the units that people use; idle is 0, not left out."""
    window, latest = watched(machine(2), host())
    title, units, headings, first, second = of_window(window, latest, "epoch 3").splitlines()
    assert title.startswith(f"epoch 3: {window.duration:.1f} s, ")
    assert title.endswith(" readings")
    assert units.split() == ["util,", "%", "memory,", "GiB", "power,", "W", "temp,", "°C", "energy"]
    assert [round(float(cell) + 0.1) for cell in first.split()[1:8]] == [86, 86, 1, 1, 300, 300, 35]
    assert [float(cell) for cell in second.split()[1:3]] == [0, 0]
    assert headings.split() == [*["mean", "max"] * 3, "max", "J"]
    assert len({len(headings), len(first), len(second)}) == 1


def test_seconds_that_were_measured_elsewhere() -> None:
    """Stand in the title."""
    window, latest = watched(machine(1))
    assert of_window(window, latest, "x", 12.34).startswith("x: 12.3 s, ")


def test_what_was_not_measured_is_a_dash() -> None:
    """Never 0."""
    backend = FakeBackend("nvidia", devices=1)
    backend.device(0).set(temp=44)
    window, latest = watched(backend)
    cells = of_window(window, latest, "x").splitlines()[3].split()
    assert cells[:7] + cells[8:] == ["gpu.0", *"-------"] and float(cells[7]) == 44


def test_the_host_where_there_is_no_device() -> None:
    """And nothing at all where nothing was read."""
    window, latest = watched(host())
    lines = of_window(window, latest, "x").splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["mean", "max"],
        ["cpu", "12.5", "12.5"],
        ["memory_percent", "40.0", "40.0"],
        ["proc.memory.rssMB", "512.0", "512.0"],
    ]
    said = of_window(Monitor().window("never"), None, "x")
    assert said == "x: 0.0 s, 0 readings\nno values of devices or the host\n"


def test_plain_values_for_programs() -> None:
    """Who each device is, what it did, how often it was read; ready for JSON."""
    window, latest = watched(machine(2), host())
    found = json.loads(json.dumps(of_devices(window, latest)))
    assert list(found) == ["gpu.0", "gpu.1"]
    first = found["gpu.0"]
    assert (first["name"], first["vendor"], first["memory_total_bytes"]) == (latest.devices[0].name, latest.devices[0].vendor, 80 * GIB)
    assert first["utilization_percent"]["mean"] == first["utilization_percent"]["max"] == 85.5
    assert first["memory_bytes"]["max"] == GIB
    assert (first["power_watts"]["mean"], first["temperature_celsius"]["max"]) == (300.0, 35)
    assert first["samples"] == first["power_watts"]["count"] >= 5
    assert first["energy_source"] == "counter"
    assert found["gpu.1"]["utilization_percent"]["mean"] == 0


def test_absent_measures_are_absent() -> None:
    """A device that says nothing still has its name and its readings, of which there are none."""
    backend = FakeBackend("nvidia", devices=1)
    backend.device(0).miss("gpu")
    window, latest = watched(backend)
    (found,) = of_devices(window, latest).values()
    assert found["samples"] == 0
    assert not {"utilization_percent", "power_watts", "energy_joules", "temperature_celsius"} & found.keys()
    assert of_devices(window, None) == {}


def test_the_process_in_bytes() -> None:
    """Converted from MiB, which W&B's key has."""
    window, _ = watched(host())
    found = of_process(window)
    assert found["cpu_percent"]["mean"] == 12.5
    assert found["memory_bytes"]["max"] == pytest.approx(512 * 2**20)
    assert "threads" not in found


def test_a_counter_that_is_not_believed_is_told_beside_the_energy() -> None:
    """To people and to programs."""
    used = Energy(1000.0, "integrated", 4.0, "the energy counter rose by 0 J in 4 s, in which the power readings give 1000 J")
    window = SimpleNamespace(duration=4.0, summary={}, energy_joules={"gpu.0": used})
    _, latest = watched(machine(1))
    text = of_window(window, latest, "x")
    assert text.replace("\n    ", " ").splitlines()[-1] == f"gpu.0: energy is computed from power: {used.reason}"
    window = SimpleNamespace(duration=4.0, summary={}, energy_joules={f"gpu.{number}": used for number in range(4)})
    text = of_window(window, latest, "x").replace("\n    ", " ")
    assert text.count(used.reason.partition(" in")[0]) == 1 and "gpu.0 to gpu.3: energy is computed from power" in text
    window = SimpleNamespace(duration=4.0, summary={}, energy_joules={"gpu.0": used})
    found = of_devices(window, latest)["gpu.0"]
    assert (found["energy_joules"], found["energy_source"], found["energy_reason"]) == (1000.0, "integrated", used.reason)
