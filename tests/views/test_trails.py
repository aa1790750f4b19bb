"""History for graphs: peaks are kept, gaps are gaps, and memory is bounded."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from accelmetrics.schemas.errors import Reason
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.record import Step
from accelmetrics.views.node_view import node_view
from accelmetrics.views.trails import (
    BEFORE,
    BUCKETS,
    FOLLOWED,
    GAP,
    MOST_FOLLOWED,
    SCALES,
    Trails,
    TrainingSeries,
    graph_metrics,
    metric_row,
    process_key,
    training_key,
)
from tests.views.nodes import SECOND, START, Node


def kinds(trails: Trails, scale: str = "1 min", columns: int = 60, key: str = "gpu.0") -> str:
    return "".join({"value": "v", "gap": "x", "before": "."}[point.kind] for point in trails.points(key, "power_watts", scale, columns))


def filled(values: Mapping[int, float | None], interval: float = 1.0) -> Trails:
    """The power of one device by second."""
    trails = Trails(interval)
    for second, watts in values.items():
        trails.add_values(START + second * SECOND, "gpu.0", {"power_watts": watts})
    return trails


def test_a_reading_a_second_fills_a_column_a_second() -> None:
    node, trails = Node(1), Trails()
    for watts in range(30):
        node.set("gpu.0", {"powerWatts": float(watts)})
        trails.add(node_view(node.record()))
        node.wait(1)
    points = trails.points("gpu.0", "power_watts", "1 min", 60)
    assert [point.mean for point in points[30:]] == [float(watts) for watts in range(30)]
    assert points[:30] == [BEFORE] * 30


def test_more_columns_than_readings_have_no_gaps() -> None:
    assert "x" not in kinds(filled(dict.fromkeys(range(60), 1.0)), columns=200)


@pytest.mark.parametrize("scale", SCALES)
def test_a_single_peak_is_kept_on_every_scale(scale: str) -> None:
    trails = filled({**dict.fromkeys(range(0, 86_400, 10), 100.0), 86_370: 5.0, 86_380: 900.0}, interval=10)
    points = [point for point in trails.points("gpu.0", "power_watts", scale, 40) if point.kind == "value"]
    assert (max(point.high for point in points), min(point.low for point in points)) == (900.0, 5.0)


def test_a_stretch_between_two_scales_and_one_of_the_past() -> None:
    """From the finest buckets that reach so far back; where it begins within a value's time, that value is there."""
    trails = filled({second: float(second) for second in range(0, 3600)})
    points = trails.points("gpu.0", "power_watts", "2 min", 120)
    assert [round(point.mean) for point in points[1:]] == pytest.approx(list(range(3481, 3600)), abs=1.5)
    trails.until_ns = START + 1800 * SECOND
    past = trails.points("gpu.0", "power_watts", "15 min", 60)
    assert {point.kind for point in past} == {"value"}
    assert [past[0].mean, past[-1].mean] == pytest.approx([900, 1800], abs=30)
    assert {point.kind for point in trails.points("gpu.0", "power_watts", "15 s", 140)} == {"value"}
    assert (trails.oldest_ns, trails.newest_ns) == (START, START + 3599 * SECOND)


def test_the_mean_is_that_of_all_readings() -> None:
    trails = filled({second: float(second % 2) for second in range(3600)})
    means = [point.mean for point in trails.points("gpu.0", "power_watts", "1 h", 6) if point.kind == "value"]
    assert all(mean == pytest.approx(0.5, abs=0.01) for mean in means)


def test_a_device_that_says_nothing_leaves_a_gap() -> None:
    node, trails = Node(1), Trails()
    for second in range(20):
        if second == 10:
            node.silence("gpu.0", Reason.DEVICE_LOST)
        trails.add(node_view(node.record()))
        node.wait(1)
    assert kinds(trails) == "." * 40 + "v" * 10 + "x" * 10


def test_time_without_a_reading_is_a_gap_and_one_late_reading_is_none() -> None:
    trails = filled(dict.fromkeys((*range(10), *range(11, 20), *range(40, 50)), 1.0))
    assert kinds(trails) == "." * 10 + "v" * 22 + "x" * 18 + "v" * 10


def test_a_zero_is_a_value() -> None:
    assert filled({0: 0.0}).points("gpu.0", "power_watts", "1 min", 10)[-1] == ("value", 0.0, 0.0, 0.0)


def test_what_is_older_than_the_scale_is_gone() -> None:
    trails = filled({0: 1.0, 3600: 2.0})
    values = [point.mean for point in trails.points("gpu.0", "power_watts", "5 min", BUCKETS) if point.kind == "value"]
    assert set(values) == {2.0}
    assert {point.mean for point in trails.points("gpu.0", "power_watts", "24 h", 60) if point.kind == "value"} == {1.0, 2.0}


def test_the_same_reading_twice_counts_once() -> None:
    node, trails = Node(1), Trails()
    view = node_view(node.record())
    trails.add(view)
    node.set("gpu.0", {"powerWatts": 1.0})
    trails.add(node_view(node.record()))
    assert trails.points("gpu.0", "power_watts", "1 min", 1)[0].low == 612.4


def test_any_metric_of_the_catalogue_can_be_followed() -> None:
    node, trails = Node(1), Trails()
    node.set("gpu.0", {"nvlinkCrcErrors": 3})
    assert trails.follow("nvlinkCrcErrors")
    assert not trails.follow("nvlinkCrcErrors")
    view = node_view(node.record())
    trails.add(view)
    assert trails.points("gpu.0", "nvlinkCrcErrors", "1 min", 1)[0].mean == 3.0
    assert (metric_row(view, "nvlinkCrcErrors").unit, metric_row(view, "power_watts").label) == ("1", "power")
    names = [row.name for row in graph_metrics(view)]
    assert names[:2] == ["power_watts", "utilization"]
    assert "nvlinkCrcErrors" in names
    assert "power_limit_watts" not in names
    assert set(FOLLOWED) <= set(names)


def test_readings_from_before_can_be_added_later() -> None:
    assert kinds(filled({30: 2.0, **dict.fromkeys(range(30), 1.0)}))[-31:] == "v" * 31


def test_a_band_spans_the_devices() -> None:
    trails = Trails()
    for number in range(5):
        trails.add_values(START, f"gpu.{number}", {"power_watts": 100.0 * number})
    trails.add_values(START, "gpu.5", {"power_watts": 1.0})
    trails.add_values(START + 59 * SECOND, "gpu.5", {"power_watts": None})
    keys = [f"gpu.{number}" for number in range(6)]
    points = trails.band(keys, "power_watts", "1 min", 60)
    assert (points[0].low, points[0].high) == (0.0, 400.0)
    assert points[-1] == GAP
    assert trails.band((), "power_watts", "1 min", 3) == [BEFORE] * 3


def test_cleared_it_has_nothing() -> None:
    trails = filled({0: 1.0})
    trails.clear()
    assert kinds(trails) == "." * 60


def test_history_begins_anew_where_the_clock_was_set_back() -> None:
    node, trails = Node(1), Trails()
    trails.add(node_view(node.record()))
    node.wait(-3600)
    node.set("gpu.0", {"powerWatts": 1.0})
    trails.add(node_view(node.record()))
    assert (trails.newest_ns, kinds(trails)) == (node.time_ns, "." * 59 + "v")
    assert trails.points("gpu.0", "power_watts", "1 min", 1)[0].mean == 1.0


def test_the_history_of_a_process_is_kept_for_as_long_as_it_is_there() -> None:
    node, trails = Node(1), Trails()
    for second in range(10):
        node.processes["gpu.0"] = (DeviceProcess(7, "compute", second, 10.0 * second), DeviceProcess(8, "compute", 1, None))
        trails.add(node_view(node.record(), cpu={7: 50.0}, memory={7: 1024}))
        node.wait(1)
    points = trails.points(process_key(7), "utilization", "1 min", 60)
    assert [point.mean for point in points[-10:]] == [10.0 * second for second in range(10)]
    assert trails.points(process_key(7), "cpu_percent", "1 min", 60)[-1].mean == 50
    assert trails.points(process_key(7), "host_memory_bytes", "1 min", 60)[-1].mean == 1024
    assert trails.points(process_key(8), "utilization", "1 min", 60) == [BEFORE] * 60
    node.processes["gpu.0"] = ()
    trails.add(node_view(node.record()))
    assert trails.points(process_key(7), "utilization", "1 min", 60) == [BEFORE] * 60


def test_values_from_elsewhere_may_be_newer_than_the_next_reading() -> None:
    """A history of what was remembered may have that reading already, and its time is a rounded one."""
    node, trails = Node(1), Trails()
    trails.add(node_view(node.record()))
    node.wait(1)
    trails.add_values(node.time_ns + 100, "gpu.0", {"fan_percent": 30.0})
    trails.add(node_view(node.record()))
    assert kinds(trails) == "." * 58 + "vv"


def test_few_metrics_are_followed_at_a_time() -> None:
    """Those that are looked at first for good, and of the others the latest."""
    trails = Trails()
    for number in range(100):
        assert trails.follow(f"metric-{number}")
        trails.add_values(START, "gpu.0", {f"metric-{number}": 1.0})
    assert trails.metrics[: len(FOLLOWED)] == FOLLOWED
    assert len(trails.metrics) == MOST_FOLLOWED and trails.metrics[-1] == "metric-99"
    assert trails.points("gpu.0", "metric-0", "1 min", 1) == [BEFORE]
    assert trails.points("gpu.0", "metric-99", "1 min", 1)[0].mean == 1.0


def test_earlier_steps_do_not_count_the_rates_of_later_ones() -> None:
    """Of a recording, what was before is added later."""
    trails = filled({51: 1.0})
    trails.add_steps(Step(START + 50 * SECOND, None, {"tokens_per_second": 100.0}, rank, "") for rank in range(8))
    trails.add_steps([Step(START + SECOND, None, {"tokens_per_second": 30.0}, 0, "")], TrainingSeries())
    trails.add_steps([Step(START + 51 * SECOND, None, {"tokens_per_second": 100.0}, 0, "")])
    points = [point for point in trails.points(training_key(""), "tokens_per_second", "1 min", 60) if point.kind == "value"]
    assert (points[0].mean, points[-1].high) == (30.0, 800.0)
