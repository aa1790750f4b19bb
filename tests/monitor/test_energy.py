"""Energy: from counters and from power, against what can be reckoned by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from accelmetrics.schemas.ring import REPEATED
from accelmetrics.schemas.statistics import CounterJudge, DeviceEnergy, Energy, Meter, contradiction
from tests.monitor.watching import row

Reading = tuple[float, float | None, float | None]
"""Moment, counter, power."""
FOREVER = float("inf")


def energy(readings: Sequence[Reading], begin: float = 0.0, end: float = FOREVER) -> Energy | None:
    held = DeviceEnergy(begin)
    for at, counter, power in readings:
        held.add(at, end, True, counter, power)
    return held.result()


def test_the_counter_is_interpolated_to_the_moments_of_the_window() -> None:
    """A window from 0.5 to 2.5 has half of the first and half of the last second."""
    readings: list[Reading] = [(0.0, 1000.0, 1.0), (1.0, 1100.0, 1.0), (2.0, 1300.0, 1.0), (3.0, 1400.0, 1.0)]
    assert energy(readings, 0.5, 2.5) == Energy(50.0 + 200.0 + 50.0, "counter", 2.0)


def test_without_a_counter_power_is_integrated_along_straight_lines() -> None:
    """From 100 W to 300 W in two seconds is 400 J."""
    assert energy([(0.0, None, 100.0), (2.0, None, 300.0)]) == Energy(400.0, "integrated", 2.0)


def test_at_the_edges_of_the_window_power_holds() -> None:
    """What was drawn before it and after it is not the window's: no line goes there."""
    readings: list[Reading] = [(0.0, None, 900.0), (1.0, None, 100.0), (2.0, None, 300.0), (9.0, None, 900.0)]
    assert energy(readings, 0.5, 5.0) == Energy(50.0 + 200.0 + 900.0, "integrated", 4.5)
    readings[-1] = (9.0, None, REPEATED)
    assert energy(readings, 0.5, 5.0) == Energy(50.0 + 200.0 + 900.0, "integrated", 4.5)
    readings[-1] = (9.0, None, None)
    assert energy(readings, 0.5, 5.0) == Energy(50.0 + 200.0, "integrated", 1.5)
    readings[0] = (0.0, 5.0, None)
    assert energy(readings, 0.5, 5.0) == Energy(200.0, "integrated", 1.0)


def test_a_counter_that_is_served_again_at_the_edges_is_still_the_one_to_believe() -> None:
    """Power is held there, which is no more than a guess: what counts is where each was read."""
    again = REPEATED
    readings: list[Reading] = [(0.0, again, again), (1.0, 100.0, 90.0), (2.0, again, again), (3.0, 300.0, 90.0), (4.0, again, again)]
    assert energy(readings, 0.5, 3.5) == Energy(200.0, "counter", 2.0)


def test_a_counter_that_begins_anew_is_not_used() -> None:
    """The driver was loaded again: what was used until then is not known by the counter, so the power has to tell."""
    readings: list[Reading] = [(0.0, 5000.0, 100.0), (1.0, 5100.0, 100.0), (2.0, 3.0, 100.0), (3.0, 103.0, 100.0)]
    assert energy(readings) == Energy(300.0, "integrated", 3.0)
    assert energy([(at, counter, None) for at, counter, _ in readings]) is None


def test_a_device_that_is_lost_and_comes_back_has_the_time_that_is_known() -> None:
    """Neither source invents what was used while it could not be read, and `seconds` says how much is known."""
    held = DeviceEnergy(0.0)
    for at, counter, power in ((0.0, 0.0, 100.0), (1.0, 100.0, 100.0)):
        held.add(at, FOREVER, True, counter, power)
    held.add(5.0, FOREVER, True, None, None)
    for at, counter, power in ((10.0, 200.0, 100.0), (11.0, 300.0, 100.0)):
        held.add(at, FOREVER, True, counter, power)
    assert held.result() == Energy(200.0, "counter", 2.0)


def test_a_counter_that_is_seldom_there_gives_way_to_the_power() -> None:
    """The source that covers the window is the one to believe."""
    readings: list[Reading] = [(0.0, 0.0, 100.0), (1.0, 100.0, 100.0), (2.0, None, 100.0), (3.0, None, 100.0)]
    assert energy(readings) == Energy(300.0, "integrated", 3.0)


def test_a_pause_is_not_integrated_over() -> None:
    """Whether the readings beside it were new or served again."""
    held = DeviceEnergy(0.0)
    held.add(0.0, FOREVER, True, 0.0, 100.0)
    held.add(1.0, FOREVER, True, 100.0, 100.0)
    held.add(60.0, FOREVER, False, REPEATED, REPEATED)
    held.add(61.0, FOREVER, True, 5000.0, 100.0)
    held.add(62.0, FOREVER, True, 5100.0, 100.0)
    assert held.result() == Energy(200.0, "counter", 2.0)


def test_a_value_that_was_served_again_is_no_point_of_the_line() -> None:
    """100 W, the same once more, then 300 W: the line goes from the first to the last."""
    assert energy([(0.0, None, 100.0), (1.0, None, REPEATED), (2.0, None, 300.0)]) == Energy(400.0, "integrated", 2.0)


@given(
    st.lists(st.tuples(st.floats(0.01, 5), st.floats(0, 1000)), min_size=3, max_size=30),
    st.floats(0, 1),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_windows_side_by_side_have_the_energy_of_the_whole(pieces: list[tuple[float, float]], share: float, counted: bool) -> None:
    """Wherever a window is cut in two, at a reading where power is held, nothing is lost and nothing counted twice."""
    at, counter, readings = 0.0, 0.0, []
    for seconds, watts in pieces:
        readings.append((at, counter, None) if counted else (at, None, watts))
        at, counter = at + seconds, counter + seconds * watts
    last = readings[-1][0]
    middle = share * last if counted else readings[int(share * (len(readings) - 1))][0]
    parts = [found.joules for begin, end in ((0.0, middle), (middle, last)) if (found := energy(readings, begin, end))]
    whole = energy(readings, 0.0, last)
    assert whole is not None
    assert sum(parts) == pytest.approx(whole.joules, rel=1e-9, abs=1e-9)


def told(
    load: Callable[[float], float], every: float, seconds: float, *, factor: float = 1.0, mean: float = 0.0, step: float = 0.001
) -> Energy:
    """Return the energy of a window in which a device of this load is read at this pace.

    Args:
        load: Its watts at a moment.
        every: Seconds between two readings.
        seconds: How long the window is.
        factor: How much faster than the truth its counter runs.
        mean: Over how many seconds its power is a mean.
        step: Joules that its counter advances by.
    """
    fine = min(0.005, every / 4)
    places = round(seconds / fine) + 1
    joules = [0.0, *accumulate(load((place + 0.5) * fine) * fine for place in range(places))]
    held, back = DeviceEnergy(0.0), round(mean / fine)
    for number in range(round(seconds / every) + 1):
        place = round(number * every / fine)
        earlier = max(0, place - back)
        watts = (joules[place] - joules[earlier]) / ((place - earlier) * fine) if back and place else load(place * fine)
        held.add(number * every, seconds, True, factor * joules[place] // step * step, watts)
    found = held.result()
    assert found is not None
    return found


WRONG = {"frozen": 0.0, "a thousandth": 0.001, "three times too fast": 3.0, "of the whole module": 1.8}


@pytest.mark.parametrize("factor", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("every", [0.1, 1.0, 5.0])
def test_a_counter_that_contradicts_the_power_is_not_believed(factor: float, every: float) -> None:
    """At any pace and at a steady load: many readings leave no doubt, and the result says what contradicts what."""
    found = told(lambda _: 250.0, every, 400 * every, factor=factor)
    assert (found.joules, found.seconds) == pytest.approx((100_000 * every, 400 * every))
    assert found.source == "integrated"
    assert f"the power readings give {100_000 * every:.6g} J" in found.reason


@pytest.mark.parametrize("factor", [0.0, 0.001])
def test_a_counter_that_stands_still_is_not_believed_after_seconds(factor: float) -> None:
    """Few readings are enough where hardly anything was counted: in 4 s, 250 W are 1,000 J."""
    found = told(lambda _: 250.0, 0.2, 4.0, factor=factor)
    assert found.joules == pytest.approx(1000.0)
    assert found.source == "integrated"
    assert found.reason.endswith("J in 4 s, in which the power readings give 1000 J")


@pytest.mark.parametrize(("seconds", "every"), [(1.5, 0.1), (20.0, 10.0)])
def test_what_is_short_or_seldom_read_is_no_contradiction(seconds: float, every: float) -> None:
    """Power may follow the load seconds later, and two readings may both miss what lies between them."""
    assert told(lambda _: 250.0, every, seconds, factor=0.0) == Energy(0.0, "counter", seconds)


@given(
    random=st.randoms(use_true_random=False),
    low=st.floats(2, 120),
    rise=st.floats(1, 8),
    share=st.floats(0, 1),
    burst=st.floats(0.02, 5),
    every=st.sampled_from([0.1, 0.5, 1.0, 3.0]),
    readings=st.integers(1, 300),
    mean=st.sampled_from([0.0, 0.1, 1.0]),
    step=st.sampled_from([0.001, 1.0]),
)
@settings(max_examples=200, deadline=None)
def test_a_true_counter_is_believed(  # one argument for each property of a device and its load
    *, random: Random, low: float, rise: float, share: float, burst: float, every: float, readings: int, mean: float, step: float
) -> None:
    """A load that swings by up to the factor that accelerators do, in bursts that readings may miss, whatever the sensor is."""
    bursts = [low * rise if random.random() < share else low for _ in range(int(readings * every / burst) + 2)]

    def load(at: float) -> float:
        return bursts[int(at / burst)]

    assert told(load, every, readings * every, mean=mean, step=step).source == "counter"


@pytest.mark.parametrize("mean", [0.0, 1.0])
@pytest.mark.parametrize(("before", "after"), [(700.0, 70.0), (70.0, 700.0)])
def test_a_true_counter_is_believed_while_the_load_changes(mean: float, before: float, after: float) -> None:
    """A window that begins with the load's change: power that is a mean says for another second what was drawn before."""
    for tenths in range(5, 200):
        held, end = DeviceEnergy(0.0), tenths / 10
        for number in range(tenths * 5 + 1):
            at = number / 50
            power = before + (after - before) * min(1.0, at / mean) if mean else after
            held.add(at, end, True, after * at, power)
        found = held.result()
        assert found is not None
        assert found.source == "counter", found


def test_an_idle_device_whose_power_is_rounded_keeps_its_counter() -> None:
    """5 W that are given as 10, beside a counter of whole joules."""
    held = DeviceEnergy(0.0)
    for at in range(600):
        held.add(float(at), FOREVER, True, float(5 * at), 10.0)
    assert held.result() == Energy(2995.0, "counter", 599.0)


def test_a_pause_of_the_readings_is_no_evidence() -> None:
    """Power is a line over two minutes in which the driver did not answer: the counter knows better."""
    held = DeviceEnergy(0.0)
    for at, joules in (*((at / 10, 70.0 * at / 10) for at in range(20)), (120.0, 40_000.0)):
        held.add(at, FOREVER, True, joules, 70.0)
    assert held.result() == Energy(40_000.0, "counter", 120.0)


def test_rows_one_by_one_and_together_come_to_the_same_verdict() -> None:
    """The columns of a block are judged like the readings of which they consist."""
    moments, counters = [at / 2 for at in range(100)], [0.0] * 100
    powers = [100.0 + at % 7 for at in range(100)]
    together, alone = DeviceEnergy(0.0), DeviceEnergy(0.0)
    together.fold(moments, True, FOREVER, counters, powers, [0.5] * 99)
    for reading in zip(moments, counters, powers, strict=True):
        alone.add(reading[0], FOREVER, True, *reading[1:])
    found = together.result()
    assert found is not None
    assert found.source == "integrated"
    assert found == alone.result()


def between(meter: Meter, start: float, end: float) -> float | None:
    first, last = meter.at(start), meter.at(end)
    return last[1] - first[1] if first is not None and last is not None and first[0] == last[0] else None


def test_the_meter_adds_the_devices_up_and_tells_any_moment_between_two_readings() -> None:
    """One device by its counter, the other by its power."""
    meter = Meter()
    for at in range(4):
        meter.add([row({"gpu.0.energyJoules": 500.0 + 200 * at, "gpu.0.powerWatts": 150.0, "gpu.1.powerWatts": 100.0}, float(at), at > 0)])
    assert meter.devices == 2
    assert meter.latest == 3.0
    assert between(meter, 0.0, 3.0) == pytest.approx(900.0)
    assert between(meter, 0.25, 1.75) == pytest.approx(450.0)
    assert between(meter, -0.1, 1.0) is None
    assert between(meter, 2.0, 3.1) is None


def test_the_meter_takes_power_in_the_place_of_a_counter_that_contradicts_it() -> None:
    """Steps of a second have no energy until that is known; those after it have what was drawn."""
    meter = Meter()
    for at in range(20):
        meter.add([row({"gpu.0.energyJoules": 7.0, "gpu.0.powerWatts": 250.0, "gpu.1.powerWatts": 100.0}, float(at), at > 0)])
    assert between(meter, 10.0, 19.0) == pytest.approx(9 * 350.0)
    assert between(meter, 1.0, 19.0) is None


@pytest.mark.parametrize("watts", [10.5, 50.0, 700.0])
def test_a_counter_that_the_finding_calls_stuck_is_not_believed(watts: float) -> None:
    """`stuck_counter` is about three readings and ten seconds above 10 W."""
    assert contradiction(0.0, 10 * watts, 10.0, 3, watts)


def test_the_judge_finds_a_counter_that_stops_after_hours_and_believes_one_that_begins_anew() -> None:
    """Old readings do not outvote new ones."""
    judge = CounterJudge()
    joules = [250.0 * min(at, 5000) for at in range(5600)] + [250.0 * at for at in range(600)]
    known = []
    for at, counter in enumerate(joules):
        judge.add([row({"gpu.0.energyJoules": counter, "gpu.0.powerWatts": 250.0}, float(at), at > 0)])
        known.append("gpu.0" in judge.doubts)
    assert not any(known[:5001])
    assert all(known[5000 + 2 * CounterJudge.RECENT : 5600])
    assert not any(known[5600:])


def test_the_meter_does_not_take_a_lost_device_for_an_idle_one() -> None:
    """While one of them says nothing, what all used is not known."""
    meter = Meter()
    both = {"gpu.0.powerWatts": 100.0, "gpu.1.powerWatts": 100.0}
    for at, values in enumerate((both, both, {"gpu.0.powerWatts": 100.0}, both, both, both)):
        meter.add([row(values, float(at), at > 0)])
        if at in {2, 3}:
            assert between(meter, 1.0, float(at)) is None
    assert between(meter, 3.0, 5.0) == pytest.approx(400.0)
    assert between(meter, 1.0, 5.0) is None


@pytest.mark.parametrize("gap", ["pause", "reset"])
def test_the_meter_forgets_what_it_cannot_compare(gap: str) -> None:
    """After a pause, and after a counter began anew, energy is told from there on."""
    meter = Meter()
    counts = [100.0, 200.0, 10.0 if gap == "reset" else 900.0, 110.0 if gap == "reset" else 1000.0]
    for at, count in enumerate(counts):
        meter.add([row({"gpu.0.energyJoules": count}, float(at), joined=at > 0 and not (gap == "pause" and at == 2))])
    assert between(meter, 0.0, 3.0) is None
    assert between(meter, 2.0, 3.0) == pytest.approx(100.0)


def test_the_meter_waits_for_a_slow_source() -> None:
    """Steps between two readings of it share what was used evenly, instead of one having it all."""
    meter = Meter()
    for at, count in enumerate((0.0, REPEATED, REPEATED, 300.0)):
        meter.add([row({"tpu.0.energyJoules": count}, float(at), at > 0)])
        assert meter.latest == (3.0 if at == 3 else 0.0)
    assert between(meter, 1.0, 2.0) == pytest.approx(100.0)


def test_after_a_pause_the_meter_does_not_count_a_slow_source_over_it() -> None:
    """Though the first reading after it was served again."""
    meter = Meter()
    for at, count, joined in ((0.0, 0.0, False), (1.0, 100.0, True), (60.0, REPEATED, False), (61.0, 9000.0, True), (62.0, 9100.0, True)):
        meter.add([row({"tpu.0.energyJoules": count}, at, joined)])
    assert between(meter, 60.0, 62.0) is None
    assert between(meter, 61.0, 62.0) == pytest.approx(100.0)


def test_without_any_device_the_meter_knows_of_no_energy() -> None:
    """A machine without accelerators used no known energy, not none."""
    meter = Meter()
    for at in range(3):
        meter.add([row({"cpu": 5.0}, float(at), at > 0)])
    assert meter.latest == 2.0
    assert between(meter, 1.0, 2.0) is None


def test_the_meters_memory_is_bounded() -> None:
    """It tells the last few thousand readings."""
    meter = Meter()
    for at in range(3 * Meter.KEPT):
        meter.add([row({"gpu.0.powerWatts": 100.0}, float(at), at > 0)])
    assert len(meter._moments) == len(meter._totals) == Meter.KEPT
    assert between(meter, float(2.5 * Meter.KEPT), 2.5 * Meter.KEPT + 10) == pytest.approx(1000.0)
