"""Runtimes are asked for what is wanted, by every consumer of the same driver together."""

from __future__ import annotations

import os

import pytest

from accelmetrics.backends.contract import NOT_NEEDED, Reading, ReadOptions
from accelmetrics.backends.tpu import driver
from accelmetrics.backends.tpu.driver import TpuDriver
from accelmetrics.backends.tpu.values import FIELDS, GRPC_NAMES
from accelmetrics.schemas.catalogue.tpu import FAMILIES
from accelmetrics.schemas.selection import MetricSelection
from tests.backends.tpu.reading import Consumer
from tests.simulators.tpu import DUTY_CYCLE, QUEUE, TOTAL, USAGE, TpuRuntime

OF_DEVICES = {field.grpc for field in FIELDS if field.grpc}
HLO = next(family.grpc for family in FAMILIES if family.key == "tpu.hloExecTiming")


def read(opened: TpuDriver, metrics: str, unit: int = 0) -> Reading:
    return opened.reader(ReadOptions(os.getpid(), metrics=MetricSelection(metrics))).read(unit, [])


@pytest.fixture
def opened(v5e: TpuRuntime) -> TpuDriver:
    """Duty cycles, memory and a queue."""
    v5e.gauge(DUTY_CYCLE, dict.fromkeys(range(4), 50.0))
    v5e.gauge(TOTAL, dict.fromkeys(range(4), 16 << 30))
    v5e.gauge(USAGE, dict.fromkeys(range(4), 4 << 30))
    return Consumer().driver


def fresh(v5e: TpuRuntime) -> TpuDriver:
    """A driver that no consumer has wanted anything of yet."""
    made = TpuDriver()
    Consumer.opened.append(made)
    v5e.requests.clear()
    return made


@pytest.mark.parametrize(
    ("metrics", "names"),
    [
        ("all", set(GRPC_NAMES)),
        ("core", OF_DEVICES),
        ("dutyCycle", OF_DEVICES),
        ("tpu.2.tensorcoreUtilization", OF_DEVICES),
        ("tpu.hloExecTiming.core0.p50Us", {HLO}),
        ("tpu.hlo*", {HLO, QUEUE}),
        ("cpu", set()),
        ("processes", set()),
    ],
)
def test_what_gives_nothing_wanted_is_not_asked(v5e: TpuRuntime, metrics: str, names: set[str]) -> None:
    """Each wanted distribution by itself; about devices all or nothing, since that says which there are."""
    read(fresh(v5e), metrics)
    assert set(v5e.requests) <= names
    assert bool(v5e.requests) == bool(names)
    assert bool(OF_DEVICES.intersection(v5e.requests)) == bool(OF_DEVICES & names)


def test_values_of_a_choice_are_those_of_everything(opened: TpuDriver, v5e: TpuRuntime) -> None:
    every = read(opened, "all")
    some = read(fresh(v5e), "core")
    (whole,), (part,) = every.blocks, some.blocks
    assert dict(zip(part.names, part.values, strict=True)) == dict(zip(whole.names, whole.values, strict=True))
    assert some.unavailable == every.unavailable


def test_a_consumer_that_wants_more_has_it_at_once(v5e: TpuRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll that was not asked for it does not serve it, however fresh; one that wants less is served by it."""
    monkeypatch.setattr(driver, "FRESH", 3600.0)
    made = fresh(v5e)
    first = made.reader(ReadOptions(1, metrics=MetricSelection("tpu.hloExecTiming.*")))
    assert first.read(4, []) is not None
    assert v5e.requests == [], "what was read when it was opened is fresh, and has everything"
    first.read(4, [])
    assert set(v5e.requests) <= {HLO}
    read(made, "dutyCycle")
    assert set(v5e.requests) & OF_DEVICES
    v5e.requests.clear()
    read(made, "tpu.hloExecTiming.*", 4)
    assert v5e.requests == []


def test_nothing_wanted_is_nothing_read(v5e: TpuRuntime) -> None:
    """Nor are the processes, unless they are asked for by their word."""
    made = fresh(v5e)
    progress: list[object] = []
    reader = made.reader(ReadOptions(1, metrics=MetricSelection("cpu")))
    assert [reader.read(unit, progress).processes for unit in (0, 4)] == [NOT_NEEDED, None]
    assert progress == []
    assert read(made, "cpu,processes").processes not in (None, NOT_NEEDED)
