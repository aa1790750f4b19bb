"""What a monitor remembers: bounded by count or by age, by column, with keys that come and go."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from accelmetrics import InvalidOptionError, UnknownNameError
from accelmetrics.schemas.ring import REPEATED, History, Ring
from tests.monitor.watching import put, row


def filled(bound: int | timedelta, count: int, **values: float) -> tuple[Ring, History]:
    ring = Ring(bound)
    for number in range(count):
        put(ring, row({"a": float(number), **values}, float(number)))
    return ring, History(ring)


@pytest.mark.parametrize("bound", [1, 7, 300])
def test_it_keeps_the_last_readings_up_to_a_count(bound: int) -> None:
    """Exactly so many."""
    _, history = filled(bound, 500)
    expected = [float(number) for number in range(500 - bound, 500)]
    assert (len(history), history.column("a")) == (bound, expected)
    assert history.times == [1e9 + number for number in expected]
    assert history.series("a") == (history.times, expected)


def test_it_keeps_the_last_readings_up_to_an_age() -> None:
    """By the monotonic clock: what is older than the bound goes when the next reading comes."""
    ring, history = filled(timedelta(seconds=10), 100)
    assert history.column("a") == [float(number) for number in range(89, 100)]
    put(ring, row({"a": 5.0}, 200.0))
    assert history.column("a") == [5.0]


def test_none_is_kept_on_request() -> None:
    """`history=0` costs nothing."""
    _, history = filled(0, 10)
    assert (len(history), history.times, history.keys(), history.to_dict()) == (0, [], (), {"time": []})


@pytest.mark.parametrize("bound", [-1, 1.5, True, "300", timedelta(0), timedelta(seconds=-1), None])
def test_a_bound_that_cannot_be_used_is_refused(bound: object) -> None:
    """The message says what may stand there."""
    with pytest.raises(InvalidOptionError, match=r"history is .*: it must be a number of readings from 0 up, or a timedelta above 0"):
        Ring(bound)  # type: ignore[arg-type]


def test_keys_that_come_and_go_have_a_hole_in_their_column() -> None:
    """None where a value was absent or had not been read anew; a series leaves those times out; a zero is a value."""
    ring = Ring(10)
    history = History(ring)
    for at, values in enumerate(({"a": 0.0}, {"a": 1.0, "b": 5.0}, {"b": 6.0}, {"a": REPEATED, "b": 7.0}, {"a": 4.0, "b": 8.0})):
        put(ring, row(values, float(at)))
    assert history.column("a") == [0.0, 1.0, None, None, 4.0]
    assert history.column("b") == [None, 5.0, 6.0, 7.0, 8.0]
    assert history.series("a") == ([1e9, 1e9 + 1, 1e9 + 4], [0.0, 1.0, 4.0])
    assert history.to_dict() == {"time": history.times, "a": history.column("a"), "b": history.column("b")}
    assert "a" in history
    assert "c" not in history


def test_a_key_is_forgotten_with_the_last_reading_that_had_it() -> None:
    """A device that went away long ago is in no column any more."""
    ring = Ring(3)
    history = History(ring)
    for at in range(5):
        put(ring, row({"a": 1.0} if at else {"gone": 1.0}, float(at)))
    assert history.keys() == ("a",)


def test_an_unknown_key_is_an_error_that_suggests_one() -> None:
    """A misspelt key is not an empty series; a column of it has nothing but holes."""
    _, history = filled(10, 2)
    with pytest.raises(UnknownNameError, match="'a'"):
        history.series("aa")
    assert history.column("aa") == [None, None]


def test_clearing_forgets_everything() -> None:
    """And what comes after that is remembered."""
    ring, history = filled(10, 5)
    ring.clear()
    assert (len(history), history.times) == (0, [])
    put(ring, row({"a": 9.0}, 9.0))
    assert history.column("a") == [9.0]


def test_columns_agree_while_readings_come_in() -> None:
    """A table read out beside a running monitor is one moment's: all columns are equally long and belong together."""
    ring, history = filled(500, 500, b=1.0)
    stop = threading.Event()

    def write() -> None:
        number = 500.0
        while not stop.is_set():
            put(ring, row({"a": number, "b": 1.0} if int(number) % 97 else {"a": number}, number))
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            table = history.to_dict()
            assert {len(column) for column in table.values()} == {500}
            assert table["a"] == [None if moment is None else moment - 1e9 for moment in table["time"]]
            series = history.series("a")
            assert [moment - 1e9 for moment in series.times] == series.values
    finally:
        stop.set()
        writer.join()


def test_it_takes_eight_bytes_a_value() -> None:
    """An hour at 1 Hz of 8 GPUs with 40 keys each stays below 10 MiB."""
    import tracemalloc

    values = {f"gpu.{gpu}.key{key}": 0.5 for gpu in range(8) for key in range(40)}
    tracemalloc.start()
    try:
        ring = Ring(3600)
        for at in range(8000):
            put(ring, row(values, float(at)))
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(History(ring)) == 3600
    assert 3600 * 320 * 8 < size < 10 * 2**20
