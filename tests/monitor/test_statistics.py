"""The statistics of one metric: against the plain definition, and within bounds where they are not exact."""

from __future__ import annotations

import math
import random
import statistics
import sys
from array import array

import pytest
from hypothesis import given, settings, strategies as st

from accelmetrics.schemas.statistics import DISTINCT, Accumulator, Summary


def accumulate(values: list[float], seconds: float = 1.0) -> Accumulator:
    held = Accumulator()
    for value in values:
        held.add(value, seconds)
    return held


def nearest_rank(values: list[float], percent: int) -> float:
    ranked = sorted(values)
    return ranked[-(-percent * len(values) // 100) - 1]


NUMBERS = st.one_of(st.integers(-1000, 1000).map(float), st.floats(-1e12, 1e12, allow_subnormal=False))


@given(st.lists(NUMBERS, min_size=1, max_size=300))
@settings(max_examples=200, deadline=None)
def test_up_to_512_different_values_everything_is_exact(values: list[float]) -> None:
    """Count, extremes and percentiles equal those of the sorted list; the mean is that of equal weights."""
    found = accumulate(values).summary()
    exact = [min(values), max(values), values[-1], *(nearest_rank(values, percent) for percent in (50, 95, 99))]
    assert [found.min, found.max, found.last, found.p50, found.p95, found.p99] == exact
    assert found.count == len(values)
    assert found.mean == pytest.approx(statistics.fmean(values), rel=1e-9, abs=1e-6)
    assert found.min <= found.mean <= found.max


def test_idle_zeros_count() -> None:
    """`[0, 0, 80]` averages 26.7, not 80."""
    found = accumulate([0.0, 0.0, 80.0]).summary()
    assert found.mean == pytest.approx(80 / 3)
    assert found._replace(mean=0.0) == Summary(3, 0.0, 0.0, 80.0, 80.0, 0.0, 80.0, 80.0, 3.0)


def test_the_mean_is_weighted_by_time() -> None:
    """A value that stood for nine seconds weighs nine times one that stood for a second; percentiles are of readings."""
    held = Accumulator()
    held.add(100.0, 9.0)
    held.add(0.0, 1.0)
    assert held.summary().mean == 90.0
    assert held.summary().p50 == 0.0
    assert held.summary().seconds == 10.0


def test_a_reading_that_goes_on_standing_weighs_more_and_counts_once() -> None:
    """Before and after there are others, and too many others; a summary that was told stays as it was."""
    held = accumulate([5.0])
    held.hold(2.0)
    first = held.summary()
    assert (first, held.summary()) == (Summary(1, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0, 3.0), first)
    held.add(80.0, 1.0)
    held.hold(3.0)
    assert (first.count, held.summary().count, held.summary().seconds, held.summary().mean) == (1, 2, 7.0, (5 * 3 + 80 * 4) / 7)
    assert held.seconds_above(79.0) == 4.0
    for number in range(DISTINCT + 5):
        held.add(100.0 + number, 0.0)
    held.hold(9.0)
    assert held.seconds_above(99.0) == 9.0
    assert held.summary().count == DISTINCT + 7


def test_readings_that_stand_for_no_time_have_a_plain_mean() -> None:
    """A window shorter than the clock can tell still has a mean."""
    assert accumulate([10.0, 30.0], seconds=0.0).summary().mean == 20.0


def test_equal_values_added_together_are_as_many_readings() -> None:
    """A block of equal values is one addition and counts as all of them."""
    together, apart = Accumulator(), Accumulator()
    together.add(7.0, 64.0, 64)
    for _ in range(64):
        apart.add(7.0, 1.0)
    assert together.summary() == apart.summary()
    assert together.count == 64


def test_ranks_are_reckoned_in_whole_numbers() -> None:
    """For each number of readings up to 512, percentiles are those of the definition (0.95 × 180 is more than 171 in floats)."""
    held = Accumulator()
    for count in range(1, 513):
        held.add(float(count), 1.0)
        found = held.summary()
        assert (found.p50, found.p95, found.p99) == tuple(float(-(-percent * count // 100)) for percent in (50, 95, 99))


@pytest.mark.parametrize("spread", [lambda r: r.gauss(300, 40), lambda r: r.expovariate(1e-6), lambda r: r.uniform(-5, 5)])
def test_beyond_that_percentiles_are_within_half_a_percent_and_the_rest_stays_exact(spread: object) -> None:
    """Whatever the values are like: narrow, over many orders of magnitude, of both signs."""
    chance = random.Random(7)
    values = [spread(chance) for _ in range(20_000)]  # type: ignore[operator]
    found = accumulate(values).summary()
    assert (found.count, found.min, found.max, found.last) == (20_000, min(values), max(values), values[-1])
    assert found.mean == pytest.approx(statistics.fmean(values), rel=1e-9)
    for percent, told in ((50, found.p50), (95, found.p95), (99, found.p99)):
        assert told == pytest.approx(nearest_rank(values, percent), rel=0.005)


def test_memory_is_bounded_however_many_different_values_there_are() -> None:
    """A counter that rises a million times over takes no more room than its order of magnitude needs."""
    held = Accumulator()
    for number in range(100_000):
        held.add(1e9 + number * 1e4, 1.0)
    cells = [getattr(held, name) for name in ("_buckets", "_times", "_spans")]
    assert all(len(part) <= DISTINCT for part in cells)
    assert sum(map(sys.getsizeof, cells)) < 16_384


def test_zero_keeps_its_own_cell_beyond_512_values() -> None:
    """How long a device idled is not blurred into small values."""
    held = accumulate([0.0] * 700 + [number / 10 for number in range(1, 701)])
    assert held.summary().p50 == 0.0
    assert held.seconds_above(0.0) == 700


def test_time_above_a_threshold() -> None:
    """Exactly the readings above it, none that equals it."""
    held = Accumulator()
    for value, seconds in ((79.0, 5.0), (80.0, 3.0), (81.0, 2.0), (95.0, 0.5)):
        held.add(value, seconds)
    assert held.seconds_above(80.0) == 2.5
    assert held.seconds_above(95.0) == 0.0
    assert held.seconds_above(-math.inf) == 10.5


@pytest.mark.parametrize("digits", [0, 3], ids=["few", "many"])
def test_without_the_time_of_each_value_all_else_is_the_same(digits: int) -> None:
    """Up to 512 different values and beyond; how long they stood above a threshold is then not known."""
    chance = random.Random(digits)
    timed, plain = Accumulator(), Accumulator(timed=False)
    for _ in range(4):
        values = array("d", [round(chance.uniform(0, 100), digits) for _ in range(600)])
        seconds = [1.0] * len(values)
        for held in (timed, plain):
            held.fold(values, seconds, sum(seconds))
    assert plain.summary() == timed.summary()
    assert plain.buckets() == timed.buckets()
    assert timed.seconds_above(50) == pytest.approx(1200, rel=0.1)
    assert plain.seconds_above(50) is None


def test_the_largest_numbers_do_not_overflow() -> None:
    """Values up to what a double holds have their cell."""
    held = accumulate([1.7e308 - number * 1e300 for number in range(600)], seconds=1e-300)
    assert held.summary().p99 == pytest.approx(1.7e308, rel=0.005)
