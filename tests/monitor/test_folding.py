"""Windows fold rows a block at a time, and come to what folding each row alone comes to."""

from __future__ import annotations

import math
import os
import threading
from array import array
from collections.abc import Sequence
from typing import NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import given, settings, strategies as st

from accelmetrics.monitor import window as module
from accelmetrics.monitor.window import PENDING, Window
from accelmetrics.schemas import statistics
from accelmetrics.schemas.ring import REPEATED, Row
from accelmetrics.schemas.statistics import DISTINCT, Accumulator, CounterJudge, WindowAggregator
from tests.monitor.watching import Owner, row
from tests.sampling.test_fork_and_exit import in_child, needs_fork

ROWS = 40
WATTS = "gpu.0.powerWatts"


def approximately(found: object) -> object:
    """Equal but for the last digits: sums of other parts are rounded otherwise."""
    return None if found is None else pytest.approx(found, rel=1e-9, abs=1e-9)


def assert_same(found: Window, expected: WindowAggregator, levels: Sequence[float] = (0.0, 100.0, 500.0)) -> None:
    """Hold the results of a window against the statistics of its rows alone."""
    summaries = expected.summary()
    assert found.summary.keys() == summaries.keys()
    for key, summary in summaries.items():
        assert found.summary[key] == approximately(summary), key
        for level in levels:
            assert found.seconds_above(key, level) == approximately(expected.seconds_above(key, level)), key
    across = expected.devices()
    assert found.devices.keys() == across.keys()
    for name, one in across.items():
        for part, other in zip(found.devices[name], one, strict=True):
            assert part == approximately(other)
    energy = expected.energy_joules()
    assert found.energy_joules.keys() == energy.keys()
    for device, used in energy.items():
        assert found.energy_joules[device].source == used.source
        assert found.energy_joules[device][::2] == approximately(used[::2])


KEYS = st.sampled_from((WATTS, "gpu.1.powerWatts", "gpu.0.energyJoules", "gpu.0.gpu", "cpu"))
VALUES = st.one_of(st.just(REPEATED), st.just(0.0), st.integers(0, 1000).map(float), st.floats(0, 1000))
READINGS = st.lists(st.tuples(st.dictionaries(KEYS, VALUES, min_size=1), st.floats(0.01, 5.0)), min_size=1, max_size=6)
STRETCHES = st.lists(st.tuples(READINGS, st.integers(1, 12), st.booleans()), min_size=1, max_size=5)
SPANS = st.lists(st.tuples(st.integers(0, ROWS), st.integers(0, ROWS), st.floats(0.0, 0.9)), min_size=1, max_size=6)


def as_rows(stretches: Sequence[tuple[Sequence[tuple[dict[str, float], float]], int, bool]]) -> list[Row]:
    """Rows that have the same keys for a while."""
    moment, rows = 1.0, []
    for readings, times, joined in stretches:
        for number in range(times):
            values, pause = readings[number % len(readings)]
            moment += pause
            rows.append(row(dict(sorted(values.items())), moment, joined or number > 0))
    return rows[:ROWS]


class Watched(NamedTuple):
    """A window, and what it alone is to be made of."""

    window: Window
    before: Sequence[Row]
    rows: list[Row]
    until: int


def watched(owner: Owner, rows: Sequence[Row], spans: Sequence[tuple[int, int, float]], looked_at: bool) -> list[Watched]:
    """Hand out rows to windows that begin at some and end some rows later; all have ended by the last."""
    known: list[Watched] = []
    last = rows[0]
    for number, one in enumerate([*rows, rows[-1].but(at=rows[-1].at + 1.0)]):
        for begin, length, share in spans:
            if min(begin, len(rows) - 1) == number:
                owner.time = last.at + share * (one.at - last.at)
                known.append(Watched(Window(owner, "w").begin(), owner.ring.newest(2), [], min(number + length, len(rows))))
        owner.time = max(owner.time, last.at + 0.9 * (one.at - last.at))
        for each in known:
            if each.until <= number:
                each.window.end()
            if not each.window.closed.is_set():
                each.rows.append(one)
        owner.feed(one)
        if looked_at and known and number % 3 == 0:
            assert known[0].window.summary is not None
        last = one
    return known


@given(STRETCHES, SPANS, st.integers(1, 7), st.booleans())
@settings(max_examples=200, deadline=None)
def test_each_window_comes_to_what_its_rows_alone_come_to(
    stretches: list[tuple[list[tuple[dict[str, float], float]], int, bool]],
    spans: list[tuple[int, int, float]],
    size: int,
    looked_at: bool,
) -> None:
    """Nested, crossing and side by side; over keys that come, go and are served again, pauses, and whatever is looked at meanwhile."""
    with (
        patch.object(module, "PENDING", size),
        patch.object(statistics, "MANY", 2),
        patch.object(statistics, "RECENT", 3),
        patch.object(CounterJudge, "add"),  # which knows rows outside of a window too
    ):
        for window, before, rows, _ in watched(Owner(), as_rows(stretches), spans, looked_at):
            assert window.closed.is_set()
            alone = WindowAggregator(window._begin or 0.0, before)
            for each in rows:
                alone.fold([each], window.end_moment)
            assert_same(window, alone)


def busy(number: int) -> Row:
    """A reading of two devices of which some metrics change and others do not."""
    values = {WATTS: 300.0 + number * 37 % 101, "gpu.1.powerWatts": 200.0 + number % 7, "gpu.0.temp": 60.0, "cpu": float(number % 3)}
    return row(values, float(number))


def test_short_windows_keep_their_rows_until_they_are_looked_at() -> None:
    """Statistics of every metric would take more room, and be made for nothing where no result is asked for."""
    owner = Owner()
    known = [Window(owner, "short").begin()]
    with patch.object(WindowAggregator, "fold", side_effect=AssertionError("folded")):
        for number in range(1, 6 * PENDING):
            owner.time = number - 0.5
            if number % 8 == 0:
                known[-1].end()
                known.append(Window(owner, "short").begin())
            owner.feed(busy(number))
    assert {window.summary[WATTS].count for window in known[1:-1]} == {8}


def test_windows_keep_a_bounded_number_of_rows() -> None:
    """However their beginnings lie to the moments at which rows are folded."""
    owner = Owner()
    known: list[Window] = []
    for number in range(1, 4 * PENDING):
        owner.time = number - 0.5
        if number < 2 * PENDING:
            known.append(Window(owner, str(number)).begin())
        owner.feed(busy(number))
        assert len(owner.ring.after(0)) <= PENDING + 1
    assert [window.summary[WATTS].count for window in known] == [4 * PENDING - number for number in range(1, 2 * PENDING)]


def test_rows_wait_while_the_program_looks_at_results() -> None:
    """The monitor's thread does not wait for it, and folds them with the next one."""
    owner = Owner()
    window = Window(owner, "w").begin()
    held, released = owner.lock, []
    for number in range(1, 2 * PENDING):
        owner.feed(busy(number))

    def feed() -> None:
        owner.feed(busy(2 * PENDING))
        released.append(window.read)

    with held:
        thread = threading.Thread(target=feed)
        thread.start()
        thread.join()
    assert released == [PENDING]
    owner.feed(busy(2 * PENDING + 1))
    assert window.read == 2 * PENDING + 1
    assert window.summary[WATTS].count == 2 * PENDING + 1


@needs_fork
def test_in_the_child_of_a_fork_each_window_has_what_it_had() -> None:
    """Though the lock is held by a thread that is not there, and rows are not folded yet."""
    owner = Owner()
    windows = [Window(owner, str(number)).begin() for number in range(3)]
    for number in range(1, 3 * PENDING + 10):
        owner.feed(busy(number))
    parent = os.getpid()
    with owner.lock:
        assert in_child(lambda: os.getpid() != parent and all(one.summary[WATTS].count == 3 * PENDING + 9 for one in windows)) == 0


READ = st.one_of(st.just(REPEATED), st.just(math.nan), st.sampled_from((0.0, 1.0, 5.0)), st.floats(-1e6, 1e6))
BLOCKS = st.lists(st.lists(READ, min_size=1, max_size=20), min_size=1, max_size=6)


@given(BLOCKS, st.booleans(), st.integers(1, 40), st.integers(2, 30))
@settings(max_examples=200, deadline=None)
def test_blocks_of_values_come_to_what_each_value_after_the_other_does(
    blocks: list[list[float]], waits: bool, recent: int, distinct: int
) -> None:
    """Of one metric, whatever is folded together, with cells of its own for each value or shared."""
    together, apart, age = Accumulator(waits), Accumulator(waits), 0.0
    with patch.object(statistics, "RECENT", recent), patch.object(statistics, "DISTINCT", distinct):
        for block in blocks:
            values, after = array("d", block), [*([0.5] * (len(block) - 1)), 0.0]
            together.fold(values, after, sum(after), 0.25, age)
            if apart.last_applies:
                apart.hold(0.25)
            apart._add_each(values, after, age)
            age += 0.5 * len(block)
        assert (together.count, together.last_applies, together.waits) == (apart.count, apart.last_applies, apart.waits)
        if apart.count:
            assert together.summary() == approximately(apart.summary())
            assert together.buckets() == apart.buckets()
            assert together.seconds_above(0.5) == approximately(apart.seconds_above(0.5))


def test_sharing_buckets_is_the_same_whether_values_come_together_or_apart() -> None:
    """Of zeros, of numbers below 1 and of both signs."""
    for lowest in (0.0, 1e-9, -50.0):
        values = [lowest, *(lowest + number * 0.731 for number in range(1, 4 * DISTINCT))]
        together, apart = Accumulator(), Accumulator()
        together.fold(array("d", values), [1.0] * len(values), float(len(values)))
        for value in values:
            apart.add(value, 1.0)
        assert together.buckets() == apart.buckets()
        assert together.summary() == approximately(apart.summary())
