"""The table for people: values with units, laid out within a width."""

from __future__ import annotations

import pytest

from accelmetrics.cli.formats import packed, table
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.text import aligned, brief, clipped, number, quantity, wrapped
from accelmetrics.testing import FakeBackend
from accelmetrics.views.summaries import of_job
from tests.cli.machines import Rig


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (300.0, "W", "300 W"),
        (299.125, "W", "299.13 W"),
        (0.0, "%", "0 %"),
        (0.0312, "%", "0.031 %"),
        (41, "Cel", "41 °C"),
        (85520809984, "By", "79.6 GiB"),
        (1023, "By", "1023 B"),
        (2048, "By/s", "2.0 KiB/s"),
        (5123456.789, "J", "5123457 J"),
        (7, "1", "7"),
        (1.5, "GiBy", "1.5 GiB"),
        (120, "us", "120 µs"),
        (2**80, "By", "1073741824.0 PiB"),
    ],
)
def test_quantity(value: float, unit: str, text: str) -> None:
    """Short, with the unit that people write."""
    assert quantity(value, unit) == text


def test_small_helpers() -> None:
    """Numbers and durations stay short."""
    assert (number(-0.5), number(1e-9), brief(0.0123), brief(2.5), brief(None)) == ("-0.5", "1e-09", "12.3 ms", "2.5 s", "unknown")


def test_layout() -> None:
    """Columns below each other, words wrapped, long lines cut."""
    assert aligned([("a", "10"), ("bcd", "5")], "  ", numeric=True) == ["  a    10", "  bcd   5"]
    assert aligned([("算力", "x"), ("bcde", "y")]) == ["算力  x", "bcde  y"]  # both are four columns wide
    assert packed([("a", "1"), ("b", "2"), ("c", "3")], 16, "") == ["a  1    c  3", "b  2"]
    assert packed([], 20, "") == []
    assert wrapped("one two three", 9, "  ") == ["  one two", "  three"]
    assert wrapped("", 9, "  ") == []
    assert clipped("one two three", 8) == "one two…"
    assert (clipped("温度温度", 8), clipped("温度温度", 7), clipped("温度温度", 6)) == ("温度温度", "温度温…", "温度…")


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_devices_stand_side_by_side(rig: Rig, width: int) -> None:
    """As many as fit; none is lost where they do not."""
    with Sampler([rig.backend]) as sampler:
        text = table(sampler.sample(), width)
    assert max(map(len, text.splitlines())) <= width
    for watts in ("100.5 W", "101.5 W", "102.5 W"):
        assert text.count(watts) == 1
    assert "not_supported" in text


def test_a_machine_without_devices_points_to_the_doctor() -> None:
    """In words, not as an empty table."""
    text = table(Snapshot(0, "host", {"memory_percent": 12.5}), 80)
    assert "No devices. `accelmetrics doctor` says why." in text
    assert "memory_percent  12.5 %" in text


def test_keys_that_the_catalogue_does_not_have() -> None:
    """A plug-in's own metrics are shown, under their device."""
    backend = FakeBackend(devices=1)
    backend.device(0).set(temp=40, wafers=3)
    with Sampler([backend]) as sampler:
        text = table(sampler.sample(), 80)
    assert "wafers" in text


def test_missing_keys_are_put_together() -> None:
    """One line a reason, the devices' numbers left out where all of them miss the same."""
    with Sampler([FakeBackend(devices=2)]) as sampler:
        snapshot = sampler.sample()
    missing = {f"gpu.{number}.fanSpeed": Unavailable(Reason.NOT_SUPPORTED) for number in range(2)}
    text = table(Snapshot(0, "host", {}, snapshot.identities, missing), 80)
    assert "  not_supported  2  gpu.*.fanSpeed" in text.splitlines()


def test_texts_of_others_change_nothing_about_the_terminal() -> None:
    """In tables, paragraphs and summaries."""
    assert aligned([("a\x1b[31m", "b\n")]) == ["a?[31m  b"]
    assert wrapped("a\x1b]0;x\x07 b", 80, "") == ["a?]0;x? b"]
    hours = dict.fromkeys(("held_hours", "used_hours", "wasted_hours", "unmeasured_hours"), 1.0)
    about = {"job_id": "7", "labels": {"user": "a\x1b[2J"}, "hostname": "h\n", "began": 0.0, "ended": 1.0, "devices_held": 0}
    assert of_job({**about, **hours, "energy_joules": None, "devices": []}).startswith("job 7 (a?[2J) on h : 0 devices for 0:00:01\n")


def test_a_job_whose_energy_is_from_power_says_why() -> None:
    """A summary that was written before there was a reason reads as ever."""
    names = ("utilization_percent_mean", "memory_used_bytes_max", "power_watts_mean", "temperature_celsius_max")
    device = {"device": "gpu.0", **dict.fromkeys(names), "energy_joules": 5.0}
    hours = dict.fromkeys(("held_hours", "used_hours", "wasted_hours", "unmeasured_hours"), 1.0)
    about = {"job_id": "7", "labels": {}, "hostname": "h", "began": 0.0, "ended": 1.0, "devices_held": 1, "energy_joules": 5.0, **hours}
    before = of_job({**about, "devices": [device]})
    assert of_job({**about, "devices": [{**device, "energy_reason": "why"}]}) == f"{before}gpu.0: energy is computed from power: why\n"
