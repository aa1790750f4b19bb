"""Runtimes, an SDK and files that answer nonsense: what they count is bounded, and no answer costs more than its own metric."""

from __future__ import annotations

import math
from typing import Any

import pytest

from accelmetrics.backends.tpu.runtime import MAX_ELEMENTS
from accelmetrics.backends.tpu.sdk import sdk_counts, sdk_devices, sdk_distributions, understood
from accelmetrics.backends.tpu.values import FIELDS, MAX_LABELS
from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.catalogue.tpu import FAMILIES
from accelmetrics.schemas.errors import Unavailable
from tests.backends.tpu.reading import Consumer, Seen
from tests.simulators.tpu import (
    DUTY_CYCLE,
    QUEUE,
    TOTAL,
    USAGE,
    About,
    Exponential,
    Histogram,
    Linear,
    TpuMachine,
    TpuRuntime,
    entry,
    response,
)

TIMING = "hlo.execution.timing.distribution.microseconds"
LABELLED = next(family for family in FAMILIES if family.grpc == TIMING)
EXTREMES: dict[str, Any] = {
    **{"minus one": -1, "minus 2^63": -(2**63), "2^63 - 1": 2**63 - 1, "the largest float": 1.7e308, "the smallest": -1.7e308},
    **{"infinity": math.inf, "no number": math.nan, "yes": True, "a text": "9" * 100_000, "control characters": "\x1b[2J"},
}
extremes = pytest.mark.parametrize("extreme", EXTREMES.values(), ids=EXTREMES)


def check(seen: Seen, key: str = "tpu.0.") -> None:
    """Each value is one that its row allows, each reason one sentence."""
    for name, value in seen.values.items():
        row = match(key + name) or match(name)
        assert row is not None, name
        assert len(name) < 200 and math.isfinite(value) and value >= 0
        assert row.maximum is None or value <= row.maximum
    assert all(len(why.detail) < 500 for why in seen.reasons.values())


@extremes
def test_whatever_the_runtime_measures(v5e: TpuRuntime, extreme: Any) -> None:
    sound = {name: v5e.answers[name] for name in (DUTY_CYCLE, TOTAL, USAGE)}
    found = Consumer()
    for name, answer in sound.items():
        v5e.gauge(name, dict.fromkeys(range(4), extreme))
        check(found.device(0))
        v5e.answers[name] = answer
    v5e.answers[QUEUE] = response(QUEUE, entry(About("core", "x"), extreme))
    check(found.machine())
    assert found.device(3).values["hbmCapacityUsage"] == 4 * 2**30


@extremes
def test_whatever_a_distribution_says(v5e: TpuRuntime, extreme: Any) -> None:
    number = extreme if type(extreme) is float else 3.0
    whole = extreme if type(extreme) is int else 4
    histograms = [
        *(Histogram(whole, 3.0, Linear(3, 1.0, 0.0), [0, 4]), Histogram(4, number, Linear(3, 1.0, 0.0), [0, 4])),
        *(Histogram(4, 3.0, Linear(3, number, number), [0, 4]), Histogram(4, 3.0, Exponential(3, number, number), [0, 4])),
        *(Histogram(4, 3.0, Linear(3, 1.0, 0.0), [0, 0, 4], maximum=number), Histogram(4, 3.0, Linear(3, 1.0, 0.0), [whole] * 4)),
    ]
    found = Consumer()
    for said in histograms:
        v5e.labelled(TIMING, {"main": said})
        check(found.machine(), key="")


def test_where_every_value_is_0_so_is_each_percentile(v5e: TpuRuntime) -> None:
    """Interpolation in the first bucket would give times that nothing took."""
    v5e.labelled(TIMING, {"main": Histogram(10, 0.0, Linear(2, 8.0, 0.0), [0, 10])})
    values = Consumer().machine().values
    assert {values[f"tpu.hloExecTiming.main.{name}Us"] for name in ("mean", "p50", "p90", "p99", "p999")} == {0}


@pytest.mark.parametrize("count", [MAX_ELEMENTS + 1, 5000])
def test_more_devices_than_can_be(v5e: TpuRuntime, count: int) -> None:
    """The answer is refused in words, and the devices of other answers are there."""
    v5e.gauge(DUTY_CYCLE, dict.fromkeys(range(count), 1.0))
    found = Consumer()
    assert len(found.driver.devices) == 4
    assert f"{count} elements, at most {MAX_ELEMENTS} are read" in found.device(0).detail("dutyCycle")
    assert found.device(0).values["hbmCapacityTotal"] == 16 * 2**30


def test_device_numbers_that_no_device_has(v5e: TpuRuntime) -> None:
    v5e.gauge(DUTY_CYCLE, {0: 5.0, 2**31: 1.0, -1: 2.0, 2**63 - 1: 3.0})
    found = Consumer()
    assert [device.vendor_index for device in found.driver.devices] == [0, 1, 2, 3]
    assert found.device(0).values["dutyCycle"] == 5.0


def test_labels_are_bounded_in_number_and_length(v5e: TpuRuntime) -> None:
    labels = [f"{'x' * 5000}{number}" for number in range(3)] + [f"label {number}" for number in range(900)]
    v5e.labelled(TIMING, dict.fromkeys(labels, Histogram(4, 3.0, Linear(3, 1.0, 0.0), [0, 4], maximum=3.0)))
    v5e.answers[QUEUE] = response(QUEUE, *(entry(About("core", label), 1) for label in labels))
    seen = Consumer().machine()
    check(seen, key="")
    for family in ("tpu.hloExecTiming.", "tpu.hloQueueSize."):
        assert 0 < len({name.split(".")[2] for name in seen.values if name.startswith(family)}) <= MAX_LABELS


def test_whatever_the_sdk_says() -> None:
    """Its strings are no numbers until they are found to be, and there may be any number of them."""
    texts = ["9" * 10_000, "-1", "1e400", "nan", "\udcff", "a, b", "[" * 5000, "tray1.chip0.ici0.int: 99", "x: 1e308", "x: 1e308", ""]
    series = ("mean, p50", tuple(texts) + tuple(f"label {number}, 1, 2, 3, 4" for number in range(4000)))
    for field in FIELDS:
        found = sdk_devices(field, series, [[0], [1]], 1)
        assert isinstance(found, Unavailable)
        assert len(found.detail) < 200
    for family in FAMILIES:
        assert len(sdk_distributions(family, series)) <= MAX_LABELS
    assert len(sdk_counts(series)) <= MAX_LABELS
    printed = '{"name": "x", "data": ' + "[" * 100_000 + "\n" + '{"name": "y", "data": ["1"]}\n{"done": true}'
    assert dict(understood(printed, 0, 0.0).metrics) == {"y": ("", ("1",))}


def test_a_chip_whose_files_hold_nonsense(machine: TpuMachine, start: Any) -> None:
    """It is no chip that is known, or one of which nothing is known."""
    machine.chips("v5e", 2)
    bus = machine.root / "sys/bus/pci/devices"
    (bus / "0000:00:05.0/device").write_bytes(b"\xff\xfe" * 100_000)
    (bus / "0000:00:05.0/class").write_bytes(b"\x00")
    start().devices(0)
    assert [device.name for device in Consumer().driver.devices] == ["TPU v5e"]
