"""What a window makes of its readings: each counted once, for the time it stands for, and nothing that was not measured."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelmetrics.sampling.folding import Folder
from accelmetrics.sampling.rows import REPEATED, Block, Row
from tests.sampling.watching import row

FOREVER = float("inf")


def fold(rows: Sequence[Row], begin: float = 0.0, end: float = FOREVER, before: Row | None = None, size: int = 64) -> Folder:
    """A window of these rows, folded in blocks of so many, or whenever the keys change, as a window does it."""
    folder = Folder(begin)
    if before is not None:
        folder.start_from(before)
    block: Block | None = None
    for one in rows:
        if block is None or block.layout is not one.layout or len(block) >= size:
            if block is not None:
                folder.fold(block, end)
            block = Block(one.layout)
        block.append(one)
    if block is not None:
        folder.fold(block, end)
    return folder


def readings(key: str, *values: float, begin: float = 1.0) -> list[Row]:
    return [row({key: value}, begin + number) for number, value in enumerate(values)]


def test_an_idle_zero_counts_and_an_absent_value_does_not() -> None:
    """Missing is not zero: it is no reading."""
    rows = [row({"gpu.0.gpu": 0.0}, 1.0), row({"gpu.0.gpu": 0.0}, 2.0), row({"gpu.1.gpu": 5.0}, 3.0), row({"gpu.0.gpu": 80.0}, 4.0)]
    found = fold(rows, before=row({}, 0.0)).metrics["gpu.0.gpu"].summary()
    assert found.mean == pytest.approx(80 / 3)
    assert (found.count, found.min, found.max) == (3, 0.0, 80.0)


def test_a_reading_stands_for_the_time_since_the_one_before_it() -> None:
    """So a mean over readings at uneven moments is the mean over time."""
    rows = [row({"cpu": 10.0}, 1.0), row({"cpu": 20.0}, 2.0), row({"cpu": 90.0}, 10.0)]
    found = fold(rows, before=row({"cpu": 0.0}, -3.0)).metrics["cpu"].summary()
    assert (found.seconds, found.mean) == (10.0, (10 * 1 + 20 * 1 + 90 * 8) / 10)


def test_only_the_part_within_the_window_counts() -> None:
    """What a reading stands for before the beginning and after the end is not the window's."""
    found = fold(readings("cpu", 10.0, 30.0), begin=0.5, end=1.5, before=row({"cpu": 99.0}, 0.0)).metrics["cpu"].summary()
    assert (found.count, found.seconds, found.mean) == (2, 1.0, 20.0)


def test_the_first_reading_of_all_stands_for_no_time() -> None:
    """Nobody knows what was before it; it counts as a reading all the same."""
    first, second = row({"cpu": 10.0}, 5.0, joined=False), row({"cpu": 30.0}, 6.0)
    found = fold([first, second]).metrics["cpu"].summary()
    assert (found.count, found.seconds, found.mean, found.min) == (2, 1.0, 30.0, 10.0)


def test_a_pause_is_part_of_no_statistics() -> None:
    """The reading after it stands for no time, whether its source was read anew or not."""
    rows = [row({"cpu": 10.0}, 1.0), row({"cpu": 50.0}, 101.0, joined=False), row({"cpu": 50.0}, 102.0)]
    assert fold(rows, before=row({"cpu": 0.0}, 0.0)).metrics["cpu"].summary().seconds == 2.0
    rows[1] = row({"cpu": REPEATED}, 101.0, joined=False)
    assert fold(rows, before=row({"cpu": 0.0}, 0.0)).metrics["cpu"].summary().seconds == 2.0
    rows = [row({"cpu": 10.0}, 1.0), row({"cpu": REPEATED}, 2.0), row({"cpu": 50.0}, 102.0, joined=False)]
    assert fold(rows, before=row({"cpu": 0.0}, 0.0)).metrics["cpu"].summary().seconds == 1.0


def test_a_reading_that_was_served_again_counts_once_and_its_time_is_the_next_ones() -> None:
    """A source read every third tick has a third of the readings and all of the time."""
    again = REPEATED
    rows = readings("gpu.0.temp", 40.0, again, again, 50.0, again, again, 60.0)
    found = fold(rows, before=row({"gpu.0.temp": 30.0}, 0.0)).metrics["gpu.0.temp"].summary()
    assert (found.count, found.seconds, found.mean) == (3, 7.0, (40 * 1 + 50 * 3 + 60 * 3) / 7)


def test_a_key_that_goes_takes_its_time_with_it() -> None:
    """When it comes back, its value does not stand for the time during which there was none."""
    rows = [row({"a": 1.0}, 1.0), row({"a": REPEATED}, 2.0), row({"b": 1.0}, 3.0), row({"b": 1.0}, 50.0), row({"a": 5.0}, 51.0)]
    found = fold(rows, before=row({"a": 0.0}, 0.0)).metrics["a"].summary()
    assert (found.count, found.seconds) == (2, 2.0)


KEYS = st.sampled_from(("gpu.0.gpu", "gpu.0.powerWatts", "gpu.1.powerWatts", "cpu"))
VALUES = st.one_of(st.just(REPEATED), st.just(0.0), st.floats(0, 1000))
ROWS = st.lists(st.tuples(st.dictionaries(KEYS, VALUES, min_size=1), st.floats(0.01, 5.0), st.booleans()), min_size=1, max_size=40)


@given(ROWS, st.integers(1, 7))
@settings(max_examples=150, deadline=None)
def test_how_readings_are_put_into_blocks_changes_nothing(taken: list[tuple[dict[str, float], float, bool]], size: int) -> None:
    """Folding one by one, in small blocks or all at once gives the same statistics."""
    moment, rows = 0.0, []
    for values, pause, joined in taken:
        moment += pause
        rows.append(row(dict(sorted(values.items())), moment, joined))
    one, some, whole = (fold(rows, size=number) for number in (1, size, 64))
    for other in (some, whole):
        assert other.metrics.keys() == one.metrics.keys()
        for key, held in one.metrics.items():
            assert other.metrics[key].summary() == pytest.approx(held.summary())
        assert other.across().keys() == one.across().keys()
        for name, found in one.across().items():
            assert other.across()[name].mean == pytest.approx(found.mean)
        assert {key: energy.result() for key, energy in other.energy.items()} == {key: held.result() for key, held in one.energy.items()}


def test_all_devices_together() -> None:
    """Each reading's mean, largest and sum; the sum only where every device gave a value."""
    rows = [
        row({"gpu.0.powerWatts": 100.0, "gpu.1.powerWatts": 300.0}, 1.0),
        row({"gpu.0.powerWatts": 500.0}, 2.0),
        row({"gpu.0.powerWatts": 200.0, "gpu.1.powerWatts": 0.0}, 3.0),
    ]
    found = fold(rows, before=row({}, 0.0)).across()["powerWatts"]
    assert (found.mean.count, found.mean.mean) == (3, (200 + 500 + 100) / 3)
    assert (found.max.min, found.max.max) == (200.0, 500.0)
    assert found.total is not None
    assert (found.total.count, found.total.min, found.total.max) == (2, 200.0, 400.0)


def test_partitions_and_processes_are_not_devices() -> None:
    """A MIG instance is part of its board, and `gpu.process.0.powerWatts` is the board's power again."""
    metrics = {"gpu.0.powerWatts": 100.0, "gpu.process.0.powerWatts": 100.0, "gpu.0.mig.1.gpu": 7.0, "gpu.0.mig.1.powerWatts": 50.0}
    folder = fold([row(metrics, 1.0), row(metrics, 2.0)])
    across = folder.across()
    assert across.keys() == {"powerWatts"}
    assert across["powerWatts"].mean.mean == 100.0
    assert folder.energy.keys() == {"gpu.0"}


def test_a_device_served_again_stands_with_its_last_value_beside_one_that_was_read() -> None:
    """On a machine with a slow and a quick source, sums are of all devices at every reading of the quick one."""
    rows = [
        row({"gpu.0.powerWatts": 100.0, "gpu.1.powerWatts": 10.0}, 1.0),
        row({"gpu.0.powerWatts": 200.0, "gpu.1.powerWatts": REPEATED}, 2.0),
        row({"gpu.0.powerWatts": REPEATED, "gpu.1.powerWatts": REPEATED}, 3.0),
        row({"gpu.0.powerWatts": 300.0, "gpu.1.powerWatts": 30.0}, 4.0),
    ]
    total = fold(rows, before=row({}, 0.0)).across()["powerWatts"].total
    assert total is not None
    assert (total.count, total.seconds, total.mean) == (3, 4.0, (110 * 1 + 210 * 1 + 330 * 2) / 4)


def test_what_no_device_gives_is_not_there() -> None:
    """No statistics of nothing."""
    folder = fold([row({"gpu.0.temp": 40.0, "gpu.0.powerWatts": REPEATED}, 1.0)])
    assert folder.across() == {}
    assert "gpu.0.powerWatts" not in folder.metrics
