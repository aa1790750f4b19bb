"""The columns of the graphs: what a client lacks, everything where it lacks too much, peaks and gaps kept."""

from __future__ import annotations

from typing import Any

import pytest

from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.views.page.documents import POINTS, READINGS, RECENT, PageHistory
from tests.records import snapshot as taken

FIRST = taken()


def reading(second: float, **metrics: float) -> Snapshot:
    """A reading of two GPUs at this second; a metric that is nan is not there."""
    values = {f"gpu.{name.replace('_', '.')}": value for name, value in metrics.items()}
    return Snapshot(int(second * 1e9), "node", values, FIRST.identities)


def filled(seconds: range | list[int], **metrics: Any) -> PageHistory:
    """A history with a reading at each second; a metric is what its function says of the second."""
    history = PageHistory(1.0)
    for second in seconds:
        history.add(second + 1, reading(second, **{name: value(second) for name, value in metrics.items() if value(second) is not None}))
    return history


def test_a_client_gets_what_it_lacks() -> None:
    """Put together, its parts are the whole."""
    history = PageHistory(1.0)
    have: list[float | None] = []
    since = 0
    for second in range(20):
        history.add(second + 1, reading(second, **{"0_powerWatts": float(second)}))
        if second % 3 == 0:
            answer = history.columns(since)
            assert answer["complete"] == (since == 0)
            have += answer["series"].get("gpu.0", {}).get("power_watts", [])
            since = answer["sequence"]
    whole = history.columns(0)
    assert have == whole["series"]["gpu.0"]["power_watts"][:19] == [float(second) for second in range(19)]
    assert whole["times"] == [float(second) for second in range(20)]
    assert history.columns(20) == {"sequence": 20, "complete": False, "times": [], "series": {}}


@pytest.mark.parametrize("since", [0, 1, 10**17, 200 - RECENT - 1], ids=str)
def test_a_client_that_lacks_too_much_gets_everything(since: int) -> None:
    """And one of another run, whose numbers are other ones."""
    history = filled(range(200), **{"0_powerWatts": float})
    answer = history.columns(since)
    assert (answer["complete"], answer["sequence"], len(answer["times"])) == (True, 200, 200)
    assert not history.columns(200 - RECENT)["complete"]


def test_long_histories_keep_their_peaks() -> None:
    """The least and the greatest of each stretch, in the order in which they were, at most 600 points."""
    history = filled(range(READINGS + 500), **{"0_temp": lambda second: {2000: 99.0, 3000: 1.0}.get(second, 40.0)})
    answer = history.columns(0)
    times, values = answer["times"], answer["series"]["gpu.0"]["temperature_celsius"]
    assert len(times) == len(values) <= POINTS
    assert times == sorted(times)
    assert times[0] >= 500 - 12 and times[-1] <= READINGS + 500
    assert sorted(value for value in values if value != 40.0) == [1.0, 99.0]
    assert times[values.index(99.0)] == pytest.approx(2000, abs=13)
    assert times[values.index(1.0)] == pytest.approx(3000, abs=13)


def test_gaps_are_told() -> None:
    """Where nothing was read for longer than a value holds, and where a metric was missing; in the parts as in the whole."""
    seconds = [0, 1, 2, 10, 11]
    history = filled(seconds, **{"0_powerWatts": float, "1_powerWatts": lambda second: None if second == 1 else 5.0})
    answer = history.columns(0)
    assert answer["times"] == [0.0, 1.0, 2.0, 3.0, 10.0, 11.0]
    assert answer["series"]["gpu.0"]["power_watts"] == [0.0, 1.0, 2.0, None, 10.0, 11.0]
    assert answer["series"]["gpu.1"]["power_watts"] == [5.0, None, 5.0, None, 5.0, 5.0]
    part = history.columns(3)
    assert (part["times"], part["series"]["gpu.0"]["power_watts"]) == ([3.0, 10.0, 11.0], [None, 10.0, 11.0])


def test_long_gaps_are_told_in_long_histories() -> None:
    """However much is left out, there are no more points."""
    on = [second for second in range(60_000) if second % 2000 < 100]
    answer = filled(on, **{"0_powerWatts": float}).columns(0)
    values = answer["series"]["gpu.0"]["power_watts"]
    assert len(values) == len(answer["times"]) <= POINTS
    assert None in values


def test_metrics_come_and_go() -> None:
    """A device that is lost has gaps, and one that comes later has none of what was before."""
    history = filled(range(6), **{"0_powerWatts": float, "1_temp": lambda second: 40.0 if second > 3 else None})
    assert history.columns(0)["series"]["gpu.1"] == {"temperature_celsius": [None] * 4 + [40.0] * 2}
    assert history.columns(3)["series"]["gpu.1"] == {"temperature_celsius": [None, 40.0, 40.0]}


def test_a_clock_that_is_set_back_begins_anew() -> None:
    """A time axis rises; what was before is not on it."""
    history = filled([100, 101, 50, 51], **{"0_powerWatts": float})
    assert history.columns(102)["complete"]
    assert history.columns(0)["times"] == [50.0, 51.0]


def test_the_metrics_that_are_asked_for_are_given() -> None:
    """Of what graphs can show; without a choice what most look at first."""
    history = filled(range(3), **{"0_powerWatts": float, "0_fanSpeed": lambda _: 30.0, "0_memoryTotalBytes": lambda _: 1.0})
    assert set(history.columns(0)["series"]["gpu.0"]) == {"power_watts"}
    assert history.columns(0, ["fan_percent", "memory_total_bytes"])["series"] == {"gpu.0": {"fan_percent": [30.0] * 3}}
    assert history.columns(2, ["fan_percent"])["series"] == {"gpu.0": {"fan_percent": [30.0]}}
    assert history.columns(0, [])["series"] == {}
    assert len(history.columns(0, [])["times"]) == 3


def test_a_day_is_kept_in_stretches() -> None:
    """Beyond an hour the least and the greatest value of each stretch, peaks among them; a part of the time has more detail."""
    history = PageHistory(1.0, 24 * 3600)
    for second in range(5 * 3600):
        history.add(second + 1, reading(second, **{"0_temp": 99.0 if second == 1000 else 40.0}))
    answer = history.columns(0)
    values = answer["series"]["gpu.0"]["temperature_celsius"]
    assert (answer["times"][0], answer["times"][-1]) == (pytest.approx(0, abs=60), pytest.approx(5 * 3600, abs=60))
    assert len(values) <= POINTS
    assert None not in values
    assert max(values) == 99.0
    early = history.columns(0, begin=900.0, end=1100.0)
    assert 900 <= early["times"][0] <= early["times"][-1] <= 1100
    assert 99.0 in early["series"]["gpu.0"]["temperature_celsius"]
    late = history.columns(0, begin=17_000.0, end=17_100.0)
    assert len(late["times"]) == 101


def test_one_device_and_the_host() -> None:
    """The busiest disk, the mean of the processors; of devices those that are named."""
    history = PageHistory(1.0)
    metrics = {"cpu.0.cpu_percent": 20.0, "cpu.1.cpu_percent": 40.0, "disk.sda.readBps": 5.0, "disk.dm-0.readBps": 4.0}
    gpus = {"gpu.0.temp": 50.0, "gpu.1.temp": 60.0}
    history.add(1, Snapshot(int(1e9), "node", {**metrics, **gpus}, FIRST.identities))
    asked = ["temperature_celsius", "host_cpu_percent", "host_disk_read", "host_disk_written"]
    assert history.columns(0, asked, ["gpu.1"])["series"] == {"gpu.1": {"temperature_celsius": [60.0]}}
    assert history.columns(0, asked)["series"]["host"] == {"host_cpu_percent": [30.0], "host_disk_read": [5.0]}


def test_nothing_was_read() -> None:
    assert PageHistory(1.0).columns(0) == {"sequence": 0, "complete": True, "times": [], "series": {}}


@pytest.mark.parametrize(("interval", "kept", "readings"), [(1.0, 3600.0, 3000), (10.0, 86_400.0, 9000)])
def test_what_is_appended_is_later_than_a_reduced_history(interval: float, kept: float, readings: int) -> None:
    """A long history ends at its newest reading, so that the times of a client that follows it rise."""
    history = PageHistory(interval, kept)
    for number in range(readings):
        history.add(number + 1, reading(interval * number, **{"0_powerWatts": 300.0 + number % 7}))
    whole = history.columns(0)
    for number in range(readings, readings + 5):
        history.add(number + 1, reading(interval * number, **{"0_powerWatts": 300.0}))
    more = history.columns(whole["sequence"])
    assert len(whole["times"]) <= POINTS and not more["complete"]
    assert whole["times"][-1] == interval * (readings - 1)
    assert whole["times"][-1] - whole["times"][0] > 0.8 * min(kept, interval * readings)
    times = whole["times"] + more["times"]
    assert times == sorted(set(times)) and times[-1] == interval * (readings + 4)
    assert None not in whole["series"]["gpu.0"]["power_watts"]
