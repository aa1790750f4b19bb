"""What a window makes of its readings: each counted once, for the time it stands for, and nothing that was not measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from accelmetrics.schemas.ring import REPEATED, Row
from accelmetrics.schemas.statistics import Energy, WindowAggregator
from tests.monitor.watching import row

FOREVER = float("inf")


def fold(rows: Sequence[Row], begin: float = 0.0, end: float = FOREVER, before: Row | None = None, size: int = 64) -> WindowAggregator:
    """A window of these rows, folded so many at a time."""
    aggregator = WindowAggregator(begin, () if before is None else [before])
    for start in range(0, len(rows), size):
        aggregator.fold(rows[start : start + size], end)
    return aggregator


def readings(key: str, *values: float, begin: float = 1.0) -> list[Row]:
    return [row({key: value}, begin + number) for number, value in enumerate(values)]


def test_an_idle_zero_counts_and_an_absent_value_does_not() -> None:
    """Missing is not zero: it is no reading, and what was read before stands until then."""
    rows = [row({"gpu.0.gpu": 0.0}, 1.0), row({"gpu.0.gpu": 0.0}, 2.0), row({"gpu.1.gpu": 5.0}, 3.0), row({"gpu.0.gpu": 80.0}, 10.0)]
    found = fold([*rows, row({"gpu.0.gpu": 9.0}, 11.5)], end=11.0, before=row({}, 0.0)).metrics["gpu.0.gpu"].summary()
    assert found.mean == pytest.approx(80 / 3)
    assert (found.count, found.min, found.max, found.seconds) == (3, 0.0, 80.0, 3.0)


def test_a_reading_stands_until_the_next_one() -> None:
    """The first one from the window's beginning on, so a mean over readings at uneven moments is the mean over time."""
    rows = [row({"cpu": 10.0}, 1.0), row({"cpu": 20.0}, 2.0), row({"cpu": 90.0}, 10.0)]
    for before in (row({"cpu": 0.0}, -3.0), None):
        found = fold(rows, before=before).metrics["cpu"].summary()
        assert (found.seconds, found.mean) == (10.0, (10 * 2 + 20 * 8) / 10)
    assert fold(rows, before=row({"gpu.0.gpu": 1.0}, -3.0)).metrics["cpu"].summary().seconds == 9.0


def test_what_is_read_after_the_end_shows_only_that_the_window_was_watched_until_then() -> None:
    """The program does something else by then: its power is neither in the mean nor the largest, nor the last."""
    rows = readings("cpu", 10.0, 30.0)
    found = fold([*rows, row({"cpu": 700.0}, 9.0)], begin=0.5, end=5.0, before=row({"cpu": 99.0}, 0.0)).metrics["cpu"].summary()
    assert (found.count, found.seconds) == (2, 4.5)
    assert found.mean == pytest.approx((10 * 1.5 + 30 * 3) / 4.5)
    assert (found.max, found.last, found.p99) == (30.0, 30.0, 30.0)


@pytest.mark.parametrize(("closing", "seconds"), [(None, 2.0), ({"cpu": REPEATED}, 4.5), ({"gpu.0.gpu": 1.0}, 2.0)])
def test_without_a_closing_reading_nothing_stands_beyond_the_last_row(closing: dict[str, float] | None, seconds: float) -> None:
    """A driver hangs, or the key has gone by then. Served again is there."""
    rows = [row({"cpu": 10.0}, 1.0), row({"cpu": REPEATED}, 2.5)]
    last = [] if closing is None else [row(closing, 5.5)]
    assert fold([*rows, *last], begin=0.5, end=5.0, before=row({"cpu": 9.0}, 0.0)).metrics["cpu"].summary().seconds == seconds


def test_a_window_shorter_than_a_reading_has_the_one_that_closes_it() -> None:
    """For all of its time, if nothing was left out since the row before and that had the key; else for none."""
    closing = row({"cpu": 70.0, "gpu.0.powerWatts": 300.0}, 1.4)
    before = row({"cpu": 10.0, "gpu.0.powerWatts": 50.0}, 0.9)
    window = fold([closing], begin=1.0, end=1.25, before=before)
    assert window.metrics["cpu"].summary()[:5] == (1, 70.0, 70.0, 70.0, 70.0)
    assert [held.summary().seconds for held in window.metrics.values()] == [0.25, 0.25]
    assert window.devices()["powerWatts"].max[:3] == (1, 300.0, 300.0)
    assert window.devices()["powerWatts"].max.seconds == 0.25
    assert window.energy["gpu.0"].result() == Energy(75.0, "integrated", 0.25)
    for known in (fold([closing.but(joined=False)], 1.0, 1.25, before), fold([closing], 1.0, 1.25, row({"gpu.1.gpu": 1.0}, 0.9))):
        assert known.metrics["cpu"].summary()[:2] == (1, 70.0)
        assert known.metrics["cpu"].summary().seconds == 0.0
        assert known.devices()["powerWatts"].max.seconds == 0.0
        assert known.energy["gpu.0"].result() is None


def test_the_first_reading_of_all_stands_from_its_own_moment_on() -> None:
    """It is not known what was before it."""
    first, second = row({"cpu": 10.0}, 5.0, joined=False), row({"cpu": 30.0}, 6.0)
    found = fold([first, second]).metrics["cpu"].summary()
    assert (found.count, found.seconds, found.mean, found.max) == (2, 1.0, 10.0, 30.0)


def test_a_pause_is_part_of_no_statistics() -> None:
    """What was read before it stands until its last row, what is read after it from its own moment on."""
    rows = [row({"cpu": 10.0}, 1.0), row({"cpu": 50.0}, 101.0, joined=False), row({"cpu": 50.0}, 102.0)]
    assert fold(rows, before=row({"cpu": 0.0}, 0.0)).metrics["cpu"].summary().seconds == 2.0
    rows[1] = row({"cpu": REPEATED}, 101.0, joined=False)
    assert fold(rows, before=row({"cpu": 0.0}, 0.0)).metrics["cpu"].summary().seconds == 1.0
    rows = [row({"cpu": 10.0}, 1.0), row({"cpu": REPEATED}, 2.0), row({"cpu": 50.0}, 102.0, joined=False)]
    assert fold(rows, before=row({"cpu": 0.0}, 0.0)).metrics["cpu"].summary().seconds == 2.0
    rows = [row({"cpu": REPEATED}, 1.0), row({"cpu": 50.0}, 102.0, joined=False), row({"cpu": 50.0}, 103.0)]
    assert fold(rows, before=row({"cpu": 0.0}, 0.0)).metrics["cpu"].summary().seconds == 1.0


def test_a_reading_that_was_served_again_counts_once_and_goes_on_standing() -> None:
    """A source read every third tick has a third of the readings and all of the time, whichever of them come first and last."""
    again = REPEATED
    rows = [*readings("gpu.0.temp", again, 40.0, again, again, 50.0, again, again), row({"gpu.0.temp": 60.0}, 9.0)]
    found = fold(rows, end=8.0, before=row({"gpu.0.temp": 30.0}, 0.0)).metrics["gpu.0.temp"].summary()
    assert (found.count, found.seconds, found.mean, found.max) == (2, 8.0, (40 * 5 + 50 * 3) / 8, 50.0)
    unread = fold(readings("gpu.0.temp", again, again, 60.0), end=2.5, before=row({"gpu.0.temp": 30.0}, 0.0))
    assert unread.metrics["gpu.0.temp"].summary()[:2] == (1, 60.0)
    assert unread.metrics["gpu.0.temp"].summary().seconds == 2.5


@pytest.mark.parametrize("name", ["cpu", "gpu.0.powerWatts"])
def test_a_key_that_goes_takes_its_time_with_it(name: str) -> None:
    """Its value stands until the row that lacks it, and the next one not for the time during which there was none."""
    gone = [row({"b": 1.0}, float(at)) for at in range(3, 50)]
    rows = [row({name: 1.0}, 1.0), row({name: REPEATED}, 2.0), *gone, row({name: 5.0}, 51.0), row({name: 5.0}, 52.0)]
    window = fold(rows, before=row({name: 0.0}, 0.0))
    found = window.metrics[name].summary()
    assert (found.count, found.seconds) == (3, 4.0)
    assert name == "cpu" or window.devices()["powerWatts"].total == found


LEVELS = (50.0, 500.0)


@pytest.mark.parametrize("phase", [0.125, 0.25, 3.0])
def test_phases_that_take_turns_have_each_its_own_power(phase: float) -> None:
    """Readings where windows begin, a moment after, and at every second: each phase's mean and energy are the true ones."""
    moments = sorted({*(number * phase for number in range(9)), *(float(at) for at in range(int(8 * phase) + 1))})
    rows = [row({"gpu.0.powerWatts": LEVELS[int(at // phase) % 2]}, at + 0.001) for at in moments]
    for number in range(1, 8):
        begin, end, watts = number * phase, (number + 1) * phase, LEVELS[number % 2]
        before = [one for one in rows if one.at < begin][-1]
        within = [one for one in rows if begin <= one.at <= end]
        closing = next(one for one in rows if one.at > end)
        window = fold([*within, closing], begin, end, before)
        found = window.metrics["gpu.0.powerWatts"].summary()
        assert (found.mean, found.max, found.min, found.count) == (watts, watts, watts, len(within))
        assert found.seconds == pytest.approx(phase)
        assert window.metrics["gpu.0.powerWatts"].seconds_above(49.0) == pytest.approx(phase)
        assert window.devices()["powerWatts"].total == found
        energy = window.energy["gpu.0"].result()
        assert energy is not None
        assert energy.joules == pytest.approx(watts * phase)


@given(
    st.lists(st.tuples(st.floats(0.01, 5.0), st.one_of(st.just(REPEATED), st.floats(0, 1000))), min_size=1, max_size=20), st.floats(0, 1)
)
@settings(max_examples=100, deadline=None)
def test_mean_times_duration_is_the_integrated_energy_but_for_the_slopes(pieces: list[tuple[float, float]], share: float) -> None:
    """Whatever is read, both are of the whole window, and differ by the triangles between its readings alone."""
    key, at, rows = "gpu.0.powerWatts", 0.0, []
    for pause, watts in pieces:
        at += pause
        rows.append(row({key: watts}, at))
    end = at + share
    window = fold([*rows, row({key: 9e9}, end + 0.5)], end=end, before=row({key: 7e9}, -1.0))
    energy, found = window.energy["gpu.0"].result(), window.metrics[key].summary()
    assert energy is not None
    assert energy.seconds == pytest.approx(end)
    assert found.seconds == pytest.approx(end)
    known = [(one.at, one.values[0]) for one in rows if one.values[0] != REPEATED]
    slopes = sum(abs(after[1] - before[1]) * (after[0] - before[0]) / 2 for before, after in pairwise(known))
    assert abs(energy.joules - found.mean * end) <= slopes + 1e-6 * energy.joules + 1e-9


KEYS = st.sampled_from(("gpu.0.gpu", "gpu.0.powerWatts", "gpu.1.powerWatts", "cpu"))
VALUES = st.one_of(st.just(REPEATED), st.just(0.0), st.floats(0, 1000))
ROWS = st.lists(st.tuples(st.dictionaries(KEYS, VALUES, min_size=1), st.floats(0.01, 5.0), st.booleans()), min_size=1, max_size=40)


@given(ROWS, st.integers(2, 7), st.sampled_from((-1.0, 0.0, 0.005, 3.0)))
@settings(max_examples=200, deadline=None)
def test_how_readings_are_put_into_blocks_changes_nothing(
    taken: list[tuple[dict[str, float], float, bool]], size: int, left: float
) -> None:
    """Folding one by one, in small blocks or all at once gives the same statistics, with a closing reading and without."""
    moment, rows, sizes = 0.0, [], (1, size, 64)
    for values, pause, joined in taken:
        moment += pause
        rows.append(row(dict(sorted(values.items())), moment, joined))
    end = moment - left
    one, some, whole = (fold([taken for taken in rows if taken.at <= end or taken is rows[-1]], end=end, size=size) for size in sizes)
    for other in (some, whole):
        assert other.metrics.keys() == one.metrics.keys()
        for key, held in one.metrics.items():
            assert other.metrics[key].summary() == pytest.approx(held.summary())
        assert other.devices().keys() == one.devices().keys()
        for name, found in one.devices().items():
            assert other.devices()[name].mean == pytest.approx(found.mean)
            assert other.devices()[name].total == (None if found.total is None else pytest.approx(found.total))
        assert other.energy.keys() == one.energy.keys()
        for key, energy in one.energy.items():
            used, expected = other.energy[key].result(), energy.result()
            assert (used is None) == (expected is None)
            if used is not None and expected is not None:
                assert used.source == expected.source
                assert used[::2] == pytest.approx(expected[::2])


def spans(rows: Sequence[Row], key: str, end: float, before: Row | None) -> Iterator[tuple[float, float]]:
    """What a key's readings are and how long each stands, the plain way: (value, from, until) of a window that begins at 0."""
    value, since, waiting = None, 0.0, before is None or key in before.layout
    last = 0.0
    for one in rows:
        there = key in one.layout
        if not one.joined:
            if value is not None:
                yield value, last - since
            value, waiting = None, False
        elif value is not None and not there:
            yield value, (one.at if one.at <= end else last) - since
            value = None
        waiting = waiting and there
        fresh = there and (read := one.values[one.layout.index(key)]) != REPEATED
        if fresh and one.at <= end:
            if value is not None:
                yield value, one.at - since
            value, since, waiting = read, 0.0 if waiting else one.at, False
        last = min(one.at, end)
    if value is not None:
        yield value, last - since


@given(ROWS, st.sampled_from((0.0, 0.005, 3.0)), st.sampled_from((None, {"cpu": 1.0}, {"gpu.0.gpu": 1.0, "gpu.0.powerWatts": 5.0})))
@settings(max_examples=200, deadline=None)
def test_every_key_has_the_readings_and_the_time_of_the_plain_definition(
    taken: list[tuple[dict[str, float], float, bool]], left: float, known: dict[str, float] | None
) -> None:
    """Against a definition that looks at one key and one row at a time."""
    before = None if known is None else row(known, -1.0)
    moment, rows = 0.0, []
    for values, pause, joined in taken:
        moment += pause
        rows.append(row(dict(sorted(values.items())), moment, joined))
    end = moment - left
    rows = [one for one in rows if one.at <= end or one is rows[-1]]
    window = fold(rows, end=end, before=before, size=5)
    for key in {key for one in rows for key in one.layout}:
        expected = list(spans(rows, key, end, before))
        if expected:
            found = window.metrics[key].summary()
            assert (found.count, found.last) == (len(expected), expected[-1][0])
            assert (found.min, found.max) == (min(expected)[0], max(expected)[0])
            assert found.seconds == pytest.approx(sum(seconds for _, seconds in expected), abs=1e-9)
            if found.seconds > 1e-6:
                assert found.mean == pytest.approx(sum(value * seconds for value, seconds in expected) / found.seconds, abs=1e-6)
        else:
            assert key not in window.metrics or window.metrics[key].count == 1


def test_all_devices_together() -> None:
    """Each reading's mean, largest and sum; the sum only where every device gave a value."""
    rows = [
        row({"gpu.0.powerWatts": 100.0, "gpu.1.powerWatts": 300.0}, 1.0),
        row({"gpu.0.powerWatts": 500.0}, 2.0),
        row({"gpu.0.powerWatts": 200.0, "gpu.1.powerWatts": 0.0}, 3.0),
    ]
    closing = row({"gpu.0.powerWatts": 900.0, "gpu.1.powerWatts": 900.0}, 5.0)
    found = fold([*rows, closing], end=4.0, before=row({}, 0.0)).devices()["powerWatts"]
    assert (found.mean.count, found.mean.seconds, found.mean.mean) == (3, 3.0, (200 + 500 + 100) / 3)
    assert (found.max.min, found.max.max) == (200.0, 500.0)
    assert found.total is not None
    assert (found.total.count, found.total.seconds, found.total.mean) == (2, 2.0, 300.0)
    assert (found.total.min, found.total.max) == (200.0, 400.0)


def test_partitions_and_processes_are_not_devices() -> None:
    """A MIG instance is part of its board, and `gpu.process.0.powerWatts` is the board's power again."""
    metrics = {"gpu.0.powerWatts": 100.0, "gpu.process.0.powerWatts": 100.0, "gpu.0.mig.1.gpu": 7.0, "gpu.0.mig.1.powerWatts": 50.0}
    window = fold([row(metrics, 1.0), row(metrics, 2.0)])
    across = window.devices()
    assert across.keys() == {"powerWatts"}
    assert across["powerWatts"].mean.mean == 100.0
    assert window.energy.keys() == {"gpu.0"}


def test_a_device_served_again_stands_with_its_last_value_beside_one_that_was_read() -> None:
    """On a machine with a slow and a quick source, sums are of all devices at every reading of the quick one."""
    rows = [
        row({"gpu.0.powerWatts": 100.0, "gpu.1.powerWatts": 10.0}, 1.0),
        row({"gpu.0.powerWatts": 200.0, "gpu.1.powerWatts": REPEATED}, 2.0),
        row({"gpu.0.powerWatts": REPEATED, "gpu.1.powerWatts": REPEATED}, 3.0),
        row({"gpu.0.powerWatts": 300.0, "gpu.1.powerWatts": 30.0}, 4.0),
    ]
    total = fold(rows, before=row({}, 0.0)).devices()["powerWatts"].total
    assert total is not None
    assert (total.count, total.seconds, total.mean) == (3, 3.0, (110 * 1 + 210 * 2) / 3)


def test_after_a_pause_a_device_that_is_served_again_is_not_among_all() -> None:
    """It is not known how long its value has stood; the sum is there again when it has been read."""
    both = ("gpu.0.powerWatts", "gpu.1.powerWatts")
    values = ((100.0, 10.0), (200.0, REPEATED), (300.0, REPEATED), (300.0, 30.0), (300.0, 30.0))
    rows = [row(dict(zip(both, pair, strict=True)), float(at), joined=at != 1) for at, pair in enumerate(values)]
    found = fold(rows).devices()["powerWatts"]
    assert found.total is not None
    assert (found.total.count, found.total.seconds, found.total.mean) == (3, 1.0, 330.0)
    assert (found.max.count, found.max.seconds) == (5, 3.0)


def test_what_no_device_gives_is_not_there() -> None:
    """No statistics of nothing."""
    window = fold([row({"gpu.0.temp": 40.0, "gpu.0.powerWatts": REPEATED}, 1.0)])
    assert window.devices() == {}
    assert "gpu.0.powerWatts" not in window.metrics
