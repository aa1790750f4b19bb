"""One answer for every unit and every consumer, and readings of which the unchanged parts are the same objects."""

from __future__ import annotations

import threading
from typing import NamedTuple

import pytest

from accelmetrics.backends.kit.poll_cache import Form, PollCache
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.reasons import Reason, Unavailable
from accelmetrics.testing import FakeClock

LATE = Unavailable(Reason.TIMED_OUT, "it was late")


class Answer(NamedTuple):
    """A round of nothing."""

    number: int
    finished: float


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def rounds(clock: FakeClock) -> PollCache[Answer]:
    return PollCache(Answer(1, clock.monotonic()), clock, 0.5)


def get(rounds: PollCache[Answer], clock: FakeClock, had: int) -> int:
    return rounds.get(had, lambda number: Answer(number, clock.monotonic())).number


def test_who_has_not_had_a_round_is_served_it_while_it_is_fresh(rounds: PollCache[Answer], clock: FakeClock) -> None:
    assert get(rounds, clock, 0) == 1
    clock.advance(0.4)
    assert get(rounds, clock, 0) == 1
    clock.advance(0.1)
    assert get(rounds, clock, 0) == 2


def test_who_has_had_it_gets_a_new_one(rounds: PollCache[Answer], clock: FakeClock) -> None:
    assert get(rounds, clock, 1) == 2
    assert get(rounds, clock, 1) == 2, "another unit of the same pass"
    assert get(rounds, clock, 2) == 3
    assert rounds.latest.number == 3


def test_what_fails_leaves_the_round_before_it(rounds: PollCache[Answer], clock: FakeClock) -> None:
    def fail(number: int) -> Answer:
        raise OSError(number)

    with pytest.raises(OSError, match="2"):
        rounds.get(1, fail)
    assert (get(rounds, clock, 0), get(rounds, clock, 1)) == (1, 2)


def test_who_asks_while_one_is_made_waits_for_that_one(rounds: PollCache[Answer], clock: FakeClock) -> None:
    made: list[int] = []
    begun, may_end = threading.Event(), threading.Event()

    def make(number: int) -> Answer:
        begun.set()
        may_end.wait(5.0)
        made.append(number)
        return Answer(number, clock.monotonic())

    threads = [threading.Thread(target=rounds.get, args=(1, make)) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(5.0)
    may_end.set()
    for thread in threads:
        thread.join()
    assert made == [2]


def test_a_reading_has_values_reasons_and_the_rest() -> None:
    reading = Form().reading({"temp": 40, "powerWatts": LATE}, (DeviceProcess(7),), 12.5)
    (block,) = reading.blocks
    assert (block.names, tuple(block.values)) == (("temp",), (40,))
    assert dict(reading.unavailable) == {"powerWatts": LATE}
    assert (reading.processes, reading.read_at) == ((DeviceProcess(7),), 12.5)


def test_what_did_not_change_is_the_same_object() -> None:
    form = Form()
    first, second = (form.reading({"temp": number, "powerWatts": LATE}) for number in (40, 41))
    assert second.blocks[0].names is first.blocks[0].names
    assert second.unavailable is first.unavailable
    third = form.reading({"temp": 41, "powerWatts": 5.0})
    assert (third.blocks[0].names, dict(third.unavailable)) == (("temp", "powerWatts"), {})
    assert dict(first.unavailable) == {"powerWatts": LATE}, "what was given out is never altered"
