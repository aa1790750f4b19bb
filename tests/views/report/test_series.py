"""Reduced series: no peak is lost, gaps are gaps, and memory does not grow."""

from __future__ import annotations

from array import array
from math import inf, nan

import pytest
from hypothesis import given, settings, strategies as st

from accelmetrics.views.report.series import BUCKETS, SeriesReducer


def reduced(values: dict[float, float], block: int = 512) -> SeriesReducer:
    """Values by their moments."""
    reducer, times = SeriesReducer(), list(values)
    for begin in range(0, len(times), block):
        part = times[begin : begin + block]
        reducer.add(part, {"gpu.0.temp": array("d", [values[moment] for moment in part])})
    return reducer


def test_opposite_spikes_of_one_reading_are_kept() -> None:
    """In a day at 1 Hz, side by side and alone."""
    day = {float(second): 50.0 for second in range(86_400)}
    day |= {40_000.0: 99.0, 40_001.0: 1.0, 70_000.0: 98.0, 20.0: 2.0}
    reducer = reduced(day)
    low, mean, high, _ = reducer.points("gpu.0.temp")
    assert len(reducer.begins()) == len(low) <= BUCKETS
    assert sorted(value for value in high if value is not None and value != 50.0) == [98.0, 99.0]
    assert sorted(value for value in low if value is not None and value != 50.0) == [1.0, 2.0]
    assert all(value is not None and 1.0 < value < 99.0 for value in mean)


def test_a_short_recording_is_not_reduced() -> None:
    """Each reading has a bucket of its own."""
    reducer = reduced({second / 10: float(second) for second in range(900)})
    low, mean, high, last = reducer.points("gpu.0.temp")
    assert low == mean == high == last == list(range(900))


@pytest.mark.parametrize("block", [1, 7, 512])
def test_means_are_of_all_readings(block: int) -> None:
    """However many doublings there were; whatever the blocks were in which they came."""
    values = {float(second): float(second % 7) for second in range(20_000)}
    reducer = reduced(values, block)
    for begin, low, mean, high, _ in zip(reducer.begins(), *reducer.points("gpu.0.temp"), strict=True):
        inside = [value for moment, value in values.items() if begin <= moment < begin + reducer.width]
        assert (low, high) == (min(inside), max(inside))
        assert mean == pytest.approx(sum(inside) / len(inside))


MOMENTS = st.lists(st.floats(0, 3000), min_size=1, max_size=80)


@given(MOMENTS, st.lists(st.one_of(st.just(nan), st.floats(-1e6, 1e6)), min_size=80, max_size=80), st.integers(1, 80), st.integers(2, 40))
@settings(max_examples=150, deadline=None)
def test_buckets_that_are_wide_before_a_block_is_put_into_them_hold_what_narrow_ones_come_to(
    moments: list[float], values: list[float], size: int, most: int
) -> None:
    """Against the plain way, which blocks with something that was served again go: narrow buckets first, and then fewer of them."""
    quick, plain = SeriesReducer(most), SeriesReducer(most)
    for begin in range(0, len(moments), size):
        times = moments[begin : begin + size]
        column = array("d", values[begin : begin + len(times)])
        quick.add(times, {"cpu": column})
        plain.add(times, {"cpu": column, "served": array("d", [inf] * len(times))})
    assert quick.begins() == plain.begins()
    for mine, other in zip(quick.points("cpu"), plain.points("cpu"), strict=True):
        assert mine == pytest.approx(other)


def test_what_was_not_read_has_no_value_and_what_was_served_again_stands() -> None:
    """Neither is a zero."""
    reducer = SeriesReducer()
    reducer.add([0.0, 1.0, 2.0, 3.0], {"a": array("d", [5.0, inf, nan, 7.0]), "b": array("d", [inf, 1.0, 2.0, inf])})
    reducer.add([4.0], {"a": array("d", [8.0])})
    assert reducer.points("a")[1] == [5.0, 5.0, None, 7.0, 8.0]
    assert reducer.points("b")[1] == [None, 1.0, 2.0, 2.0, None]


def test_what_a_lost_device_gave_stays_where_it_was() -> None:
    """Its columns end, and those of other devices go on until buckets are merged."""
    reducer = SeriesReducer(8)
    for begin in range(0, 40, 4):
        times = [float(second) for second in range(begin, begin + 4)]
        lost = {} if begin >= 4 else {"gpu.1.temp": array("d", [60.0] * 4)}
        reducer.add(times, {"gpu.0.temp": array("d", [50.0] * 4), **lost})
    means = reducer.points("gpu.1.temp")[1]
    assert set(reducer.points("gpu.0.temp")[1]) == {50.0}
    assert (means[0], set(means[1:])) == (60.0, {None})


def test_a_clock_that_is_set_back_finds_its_buckets_again() -> None:
    """The readings of both times are in them, in the order of time."""
    reducer = reduced({**{float(second): 1.0 for second in range(100, 200)}, **{second + 0.25: 3.0 for second in range(50, 150)}}, 30)
    begins = reducer.begins()
    assert begins == sorted(begins)
    low, _, high, _ = reducer.points("gpu.0.temp")
    assert (low[0], high[-1], set(low), set(high)) == (3.0, 1.0, {1.0, 3.0}, {1.0, 3.0})
