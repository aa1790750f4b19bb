"""Whether a value agrees with a reference: between its answers, within tolerances, over spans; pure numbers, no device."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from pytest_mock import MockerFixture

from accelmetrics.backends.contract import ReferenceValue
from accelmetrics.schemas import catalogue
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot
from accelmetrics.visibility import verify
from accelmetrics.visibility.verify import AGREES, DIFFERS, NO_REFERENCE, Comparison, Pair

MIB = 2.0**20
NOW = ReferenceValue(0)
Round = tuple[float, float | Unavailable, float]
"""What the reference says before, our value, what the reference says after."""


def compared(key: str, rounds: Iterable[Round], said: ReferenceValue = NOW, age: float = 0.0) -> Comparison:
    """What comes of rounds, one each second."""
    pair = Pair(catalogue.find(key))
    for number, (before, ours, after) in enumerate(rounds):
        now = 100.0 + number
        pair.add_answer(said._replace(value=before), now, now + 0.01)
        pair.add_value(ours, now + 0.02, now + 0.03, age)
        pair.add_answer(said._replace(value=after), now + 0.04, now + 0.05)
    return pair.result(key, "reference")


@pytest.mark.parametrize(
    ("key", "before", "ours", "after", "result"),
    [
        ("gpu.0.powerWatts", 300, 340, 380, AGREES),
        ("gpu.0.powerWatts", 300, 305, 300, AGREES),
        ("gpu.0.powerWatts", 300, 320, 300, DIFFERS),
        ("gpu.0.powerWatts", 300, 0.3, 300, DIFFERS),
        ("gpu.0.gpu", 98, 99, 98, AGREES),
        ("gpu.0.gpu", 98, 95, 98, DIFFERS),
        ("gpu.0.temp", 41, 42, 41, AGREES),
        ("gpu.0.temp", 41, 52, 41, DIFFERS),
        ("gpu.0.smClock", 1980, 1965, 1980, AGREES),
        ("gpu.0.smClock", 1980, 1755, 1980, DIFFERS),
        ("gpu.0.memoryAllocatedBytes", 10e9, 10.05e9, 10e9, AGREES),
        ("gpu.0.memoryAllocatedBytes", 10e9, 10e9 / MIB, 10e9, DIFFERS),
        ("gpu.0.performanceState", 0, 1, 0, DIFFERS),
        ("gpu.0.throttled", 0, 1, 1, AGREES),
    ],
)
def test_a_value_lies_between_two_answers_within_its_units_tolerance(
    key: str, before: float, ours: float, after: float, result: str
) -> None:
    found = compared(key, [(before, ours, after)])
    assert (found.result, found.ours, found.low, found.high) == (result, ours, before, after)


def test_what_the_reference_rounds_away_counts() -> None:
    rounds = [(80 * MIB, 80.9 * MIB, 80 * MIB)]
    assert compared("gpu.0.memoryAllocatedBytes", rounds).result == DIFFERS
    assert compared("gpu.0.memoryAllocatedBytes", rounds, ReferenceValue(0, step=MIB)).result == AGREES


def test_a_value_that_moves_may_be_missed_but_not_three_times_in_a_row() -> None:
    inside, outside = (300.0, 300.0, 300.0), (300.0, 400.0, 300.0)
    assert compared("gpu.0.powerWatts", [inside, outside, outside, inside, outside, outside]).result == AGREES
    found = compared("gpu.0.powerWatts", [inside, inside, *3 * [outside], inside])
    assert (found.result, found.ours, found.compared, found.agreed) == (DIFFERS, 400.0, 6, 3)
    assert compared("gpu.0.powerWatts", 2 * [outside]).result == DIFFERS


def test_a_value_that_is_kept_is_held_against_what_was_said_since() -> None:
    """It was read up to so many seconds ago: what the reference said then counts, and what it said long before does not."""
    rounds = [(1.0, 1.0, 1.0), (5.0, 1.0, 5.0), (5.0, 1.0, 5.0)]
    assert compared("gpu.0.pcieLinkGen", rounds).agreed == 2
    assert compared("gpu.0.pcieLinkGen", rounds, ReferenceValue(0, kept=11.0)).agreed == 3
    assert compared("gpu.0.pcieLinkGen", rounds, age=11.0).agreed == 3


def test_a_counter_is_compared_by_what_it_gained() -> None:
    """Each began elsewhere."""
    said = ReferenceValue(0, over="counter", kept=0.0)
    rounds = [(1000.0 * n, 50.0 + 1000 * n, 1000.0 * n) for n in range(4)]
    found = compared("gpu.0.energyJoules", rounds, said)
    assert (found.result, found.ours, found.low, found.high) == (AGREES, 3000, 3000, 3000)
    slower = [(1000.0 * n, 50.0 + 900 * n, 1000.0 * n) for n in range(4)]
    assert compared("gpu.0.energyJoules", slower, said).result == DIFFERS


def test_a_rate_is_compared_with_a_counter_by_its_mean() -> None:
    rounds = [(5e6 * n, 5e6, 5e6 * n) for n in range(6)]
    found = compared("disk.sda.readBps", rounds, ReferenceValue(0, over="counter"))
    assert (found.result, found.detail) == (AGREES, "mean of 5.0 s")
    assert found.ours == pytest.approx(5e6)
    assert found.low == pytest.approx(5e6, rel=0.02)
    in_kib = [(5e6 * n, 5e6 / 1024, 5e6 * n) for n in range(6)]
    assert compared("disk.sda.readBps", in_kib, ReferenceValue(0, over="counter")).result == DIFFERS


def test_means_are_compared_over_the_whole_span() -> None:
    """Each over intervals of its own, so that single answers differ."""
    rounds = [(10.0 if n % 2 else 90.0, 90.0 if n % 2 else 10.0, 90.0 if n % 2 else 10.0) for n in range(20)]
    assert compared("gpu.0.smActive", rounds, ReferenceValue(0, over="mean")).result == AGREES
    assert compared("gpu.0.smActive", [(80.0, 20.0, 80.0)] * 20, ReferenceValue(0, over="mean")).result == DIFFERS
    assert compared("gpu.0.smActive", [(80.0, 20.0, 80.0)], ReferenceValue(0, over="mean")).result == NO_REFERENCE


def test_a_value_that_is_missing_here_differs_unless_it_is_only_late() -> None:
    refused = Unavailable(Reason.NOT_SUPPORTED, "the driver has no such call")
    found = compared("gpu.0.temp", [(41.0, refused, 41.0)] * 3)
    assert (found.result, found.ours, found.low, found.detail) == (DIFFERS, None, 41.0, "not_supported: the driver has no such call")
    for reason in (Reason.NEEDS_INTERVAL, Reason.TIMED_OUT, Reason.SUSPENDED):
        assert compared("gpu.0.temp", [(41.0, Unavailable(reason), 41.0)] * 3).result == NO_REFERENCE


def test_what_neither_has_any_more_does_not_count() -> None:
    """A device that is lost after two rounds."""
    pair = Pair(catalogue.find("gpu.0.temp"))
    for now in (100.0, 101.0, 102.0):
        pair.add_answer(ReferenceValue(41), now, now + 0.01)
        pair.add_value(41, now + 0.1, now + 0.2)
    for now in (103.0, 104.0, 105.0, 106.0):
        pair.add_value(Unavailable(Reason.DEVICE_LOST), now, now + 0.1)
    found = pair.result("gpu.0.temp", "nvidia-smi")
    assert (found.result, found.compared) == (AGREES, 2)


def test_an_answer_that_is_older_than_the_reading_does_not_count_as_after_it() -> None:
    """A command that is polled serves what it said before."""
    pair = Pair(catalogue.find("gpu.0.temp"))
    for now, age in ((100.0, 1.0), (101.0, 2.0)):
        pair.add_answer(ReferenceValue(41, age=age), now, now)
        pair.add_value(60, now + 0.1, now + 0.2)
    assert pair.result("gpu.0.temp", "amd-smi").result == NO_REFERENCE
    pair.add_answer(ReferenceValue(41, age=0.5), 102.0, 102.0)
    assert pair.result("gpu.0.temp", "amd-smi").result == DIFFERS


def test_parts_of_one_card_are_told_apart_in_another_source(mocker: MockerFixture) -> None:
    """By their numbers too, since they have one address, however each source spells it; one alone is found by that."""
    parts = [DeviceIdentity("npu", "acme", number, uuid=f"a{number}", pci_bus_id="0000:c1:00.0") for number in range(2)]
    alone = DeviceIdentity("npu", "acme", 9, pci_bus_id="0000:c2:00.0")
    there = [each._replace(uuid="", pci_bus_id=f"0000{each.pci_bus_id.upper()}") for each in (*parts[::-1], alone._replace(vendor_index=2))]
    other = mocker.Mock(identities=[DeviceSlot(f"npu.{place}", place, None, each) for place, each in enumerate(there)])
    assert [slot.key for each in (*parts, alone) if (slot := verify._same(each, other))] == ["npu.1", "npu.0", "npu.2"]
