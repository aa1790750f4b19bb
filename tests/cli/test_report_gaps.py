"""What ``accelmetrics report`` takes for a gap: a silence longer than three usual intervals, whatever the first interval was."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from accelmetrics.schemas.record import MonitorStatus, Record
from accelmetrics.schemas.snapshot import rfc3339
from accelmetrics.views.report.making import run_report
from tests.cli.test_report import START, record


def of(seconds: Iterable[float], interval: float | None = None) -> dict[str, Any]:
    """What readings of a GPU at 600 W come to; the monitor's interval stands in them, where there is one."""
    status = None if interval is None else MonitorStatus(interval)
    found = run_report(Record(record(second, {"gpu.0.powerWatts": 600.0}, gpus=1).snapshot, {}, (), status) for second in seconds)
    assert found is not None
    return found.document


def joules(found: dict[str, Any]) -> float:
    energy = found["devices"]["gpu.0"]["energy"]
    return 0.0 if energy is None else float(energy["joules"])


def test_a_short_first_interval() -> None:
    """It says nothing of those that follow: neither a recording of seconds nor one of an hour falls apart."""
    seconds = [46.585, 46.599, 47.526, 48.526, 49.526]
    for interval in (1.0, None):
        found = of(seconds, interval)
        assert (found["readings"], found["gaps"], found["devices"]["gpu.0"]["gaps"]) == (5, [], [])
        assert joules(found) == pytest.approx(600.0 * (seconds[-1] - seconds[0]))
        assert of([0, 0.02, *range(1, 600)], interval)["gaps"] == []


def test_readings_between_the_ticks() -> None:
    """Short windows have readings of their own: many of them make no gap of an interval without any."""
    assert of([*(second / 10 for second in range(50)), *range(6, 12)], 1.0)["gaps"] == []


def test_a_long_first_interval() -> None:
    """It is a gap, if it is one by those that follow."""
    found = of([0, 100, *range(101, 120)])
    assert [gap["seconds"] for gap in found["gaps"]] == [100.0]
    assert joules(found) == pytest.approx(600.0 * 19)


def test_gaps_are_found_beside_the_interval_that_the_records_name() -> None:
    """Where readings took longer than they were to, the usual interval is the one that was kept."""
    assert of(range(0, 100, 4), 1.0)["gaps"] == []
    assert [gap["seconds"] for gap in of([*range(10), *range(12, 20), *range(24, 30)], 1.0)["gaps"]] == [5.0]
    assert [gap["seconds"] for gap in of([0, 1, 101], 1.0)["gaps"]] == [100.0]


def test_a_recording_that_changes_its_pace() -> None:
    """A slower pace is a gap only until it is the usual one."""
    found = of([*range(60), *range(60, 1000, 10)])
    assert len(found["gaps"]) <= 26
    assert found["gaps"][-1]["after"] < rfc3339((START + 490) * 10**9)


def test_what_is_there_twice_is_no_interval() -> None:
    """Of the same time are any number."""
    found = of([0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 5, 6])
    assert (found["readings"], found["repeated"], found["gaps"]) == (7, 5, [])
