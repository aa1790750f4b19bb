from __future__ import annotations

import pickle
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from accelmetrics.schemas.catalogue import add, expected_keys, expected_names, resolve
from accelmetrics.schemas.errors import DocumentError, Reason, Unavailable
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceSlot
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.validation import findings, validate
from tests.schemas.samples import AMD, NVIDIA, complete
from tests.support.published_schema import view_findings

put: Any = dict.update  # what a snapshot hands out refuses it
WHY = Unavailable(Reason.DRIVER_ERROR, "NVML_ERROR_UNKNOWN")


def test_a_complete_snapshot_breaks_no_rule() -> None:
    assert list(findings(complete())) == []


def a_value(row: Metric, random: Random) -> int | float:
    low = int(row.minimum or 0)
    high = 2**53 if row.maximum is None else int(row.maximum)
    return random.randint(low, high) if row.integer or random.random() < 0.5 else random.uniform(low, high)


@given(st.randoms(use_true_random=False))
@settings(max_examples=25, deadline=None)
def test_any_mix_of_values_and_reasons_breaks_no_rule(random: Random) -> None:
    metrics: dict[str, int | float] = {}
    owed = [f"{place.key}.{name}" for place in (NVIDIA, AMD) for name in expected_names(place.identity.vendor)]
    owed += expected_keys("host")
    for key in owed:
        found = resolve(key)
        assert found is not None
        if not found.alias and random.random() < 0.5:
            head = f"{found.device}." if found.device else ""
            metrics |= dict.fromkeys((head + name for name in found.row.names), a_value(found.row, random))
    missing = {key: WHY for key in owed if key not in metrics}
    assert list(findings(complete(metrics=metrics, unavailable=missing))) == []


PLANTED: list[tuple[str, Callable[[Snapshot], object], str]] = [
    ("too high", lambda s: put(s.metrics, {"gpu.0.gpu": 4000.0}), "gpu.0.gpu = 4000.0 is above 100"),
    ("too low", lambda s: put(s.metrics, {"gpu.1.powerWatts": -1.0}), "gpu.1.powerWatts = -1.0 is below 0"),
    ("below absolute zero", lambda s: put(s.metrics, {"gpu.0.temp": -274}), "gpu.0.temp = -274 is below -273.15"),
    ("a fraction", lambda s: put(s.metrics, {"gpu.0.smClock": 1.5}), "gpu.0.smClock = 1.5 is not an int"),
    ("a whole float", lambda s: put(s.metrics, {"gpu.0.smClock": 1980.0}), "gpu.0.smClock = 1980.0 is not an int"),
    ("an alias too high", lambda s: put(s.metrics, {"gpu.0.unCorrectedMemoryErrors": -1}), "unCorrectedMemoryErrors = -1 is below 0"),
    (
        "an alias that differs",
        lambda s: put(s.metrics, {"gpu.0.unCorrectedMemoryErrors": 8}),
        "differs from gpu.0.uncorrectedMemoryErrors = 7",
    ),
    ("a truth value", lambda s: put(s.metrics, {"gpu.0.throttle.gpuIdle": True}), "gpuIdle = True is neither int nor float"),
    ("text", lambda s: put(s.metrics, {"cpu": "3"}), "cpu = '3' is neither int nor float"),
    ("NaN", lambda s: put(s.metrics, {"cpu": float("nan")}), "cpu = nan is not finite"),
    ("NaN from elsewhere", lambda s: put(s.metrics, {"acme": float("inf")}), "acme = inf is not finite"),
    ("a disk too full", lambda s: put(s.metrics, {"disk./.usagePercent": 101.0}), "disk./.usagePercent = 101.0 is above 100"),
    ("a lost key", lambda s: dict.pop(s.metrics, "gpu.0.powerWatts"), "gpu.0.powerWatts is in neither metrics nor unavailable"),
    ("a lost alias", lambda s: dict.pop(s.metrics, "gpu.1.unCorrectedMemoryErrors"), "gpu.1.unCorrectedMemoryErrors is in neither"),
    ("a lost host key", lambda s: dict.pop(s.metrics, "swap.used_percent"), "swap.used_percent is in neither metrics nor unavailable"),
    ("a key in both", lambda s: put(s.metrics, {"gpu.0.fanSpeed": 3}), "gpu.0.fanSpeed is in both metrics and unavailable"),
    ("no reason", lambda s: put(s.unavailable, {"gpu.0.fanSpeed": Unavailable("")}), "gpu.0.fanSpeed is unavailable without a reason"),
    ("a device that is not listed", lambda s: put(s.metrics, {"gpu.7.temp": 40}), "gpu.7.temp names a device that is not listed"),
    ("a process nowhere", lambda s: put(s.metrics, {"gpu.process.7.temp": 40}), "gpu.process.7.temp names a device that is not listed"),
    ("a reason nowhere", lambda s: put(s.unavailable, {"gpu.7.temp": WHY}), "gpu.7.temp names a device that is not listed"),
    ("an empty key", lambda s: put(s.metrics, {"": 1}), "the document is not valid: metrics"),
    (
        "an unknown status",
        lambda s: setattr(s, "backends", (BackendStatus("acme", "fine"),)),  # type: ignore[arg-type]
        "the document is not valid: backends[0].status",
    ),
    ("a device twice", lambda s: setattr(s, "identities", (NVIDIA, AMD, NVIDIA)), "devices has gpu.0 more than once"),
]


@pytest.mark.parametrize(("plant", "words"), [(plant, words) for _, plant, words in PLANTED], ids=[name for name, _, _ in PLANTED])
def test_each_broken_rule_is_found(plant: Callable[[Snapshot], object], words: str) -> None:
    snapshot = complete()
    plant(snapshot)
    with pytest.raises(DocumentError) as caught:
        validate(snapshot)
    assert words in str(caught.value)


def test_all_findings_are_told_at_once() -> None:
    snapshot = complete()
    put(snapshot.metrics, {"gpu.0.gpu": 4000.0, "gpu.0.temp": -300.0})
    dict.pop(snapshot.metrics, "cpu")
    with pytest.raises(DocumentError) as caught:
        validate(snapshot)
    assert str(caught.value).count("\n- ") == 3


def test_a_view_that_differs_from_the_metrics_is_found() -> None:
    snapshot = complete()
    assert snapshot.devices[0].metrics.power_watts and snapshot.host.cpu
    put(snapshot.metrics, {"gpu.0.powerWatts": 1.0, "disk./.usagePercent": 1.0})
    assert snapshot._by_device is not None
    del snapshot._by_device._grouped
    assert list(view_findings(snapshot)) == [
        "the typed view of gpu.0 differs from metrics in powerWatts",
        "the typed view of disk./ differs from metrics in usagePercent",
    ]


def test_a_host_that_was_not_read_owes_nothing() -> None:
    snapshot = complete(backends=())
    for name in expected_keys("host"):
        dict.pop(snapshot.metrics, name)
    validate(snapshot)
    snapshot.backends = (BackendStatus("host", "failed"),)
    assert len(list(findings(snapshot))) == len(expected_keys("host"))


def test_keys_from_elsewhere_break_no_rule() -> None:
    snapshot = complete()
    put(snapshot.metrics, {"gpu.0.own": -1e30, "acme.load": 3})
    validate(snapshot)


def test_a_plug_in_s_own_metrics_are_held_to_their_bounds() -> None:
    """On a device of a kind that only the plug-in has, under its own rows and under those that every kind has."""
    add([Metric("dpu.{i}.queueDepth", "1", "gauge", "Requests that wait.", integer=True, maximum=64)])
    place = DeviceSlot("dpu.0", 0, None, DeviceIdentity("dpu", "acme", 0))
    sound = {"dpu.0.queueDepth": 64, "dpu.0.powerWatts": 12.5, "dpu.0.anything": -1e30}
    validate(complete(identities=(NVIDIA, AMD, place), metrics={**complete().metrics, **sound}))
    broken = {"dpu.0.queueDepth": 65.5, "dpu.0.powerWatts": -1.0, "dpu.1.powerWatts": 1.0}
    assert list(findings(complete(identities=(NVIDIA, AMD, place), metrics={**complete().metrics, **broken}))) == [
        "dpu.0.queueDepth = 65.5 is not an int",
        "dpu.0.queueDepth = 65.5 is above 64",
        "dpu.0.powerWatts = -1.0 is below 0",
        "dpu.1.powerWatts names a device that is not listed",
    ]


def test_the_error_pickles() -> None:
    with pytest.raises(DocumentError) as caught:
        validate(complete(metrics={}))
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
