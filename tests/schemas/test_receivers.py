"""What a reading hands out cannot change later readings, nor what other receivers of the same reading see."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from accelmetrics import Sampler
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.testing import FakeBackend
from tests.monitor.watching import Recorder
from tests.support.waiting import wait_for


def scripted() -> FakeBackend:
    backend = FakeBackend(devices=2)
    for device in backend.all_devices():
        device.set(powerWatts=100.0, gpu=50).run(DeviceProcess(7))
    backend.device(1).miss("temp").unlist()
    return backend


def of_a_sampler() -> Snapshot:
    with Sampler([scripted()]) as sampler:
        sampler.sample()
        return sampler.sample()


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    exporter = Recorder()
    with Monitor(0.01, [exporter], backends=[scripted()], labels={"team": "a"}) as found:
        found.log(step=1, loss=2.0)
        wait_for(lambda: found.steps)
        yield found


def mappings(monitor: Monitor) -> dict[str, Any]:
    """Every mapping that several may hold."""
    snapshot = of_a_sampler()
    latest = monitor.latest
    assert latest is not None
    with monitor.window("w") as window:
        pass
    own = {
        "metrics": snapshot.metrics,
        "latest.metrics": latest.metrics,
        "selected.metrics": latest.with_metrics({"torch.0.allocatedBytes": 1}).metrics,
        "unavailable": snapshot.unavailable,
        "unlisted": snapshot.unlisted,
        "processes": snapshot.processes,
        "device.values": snapshot.devices[0].values,
        "device.unavailable": snapshot.devices[0].unavailable,
        "header.unavailable": snapshot.header.unavailable,
        "labels": monitor.labels,
        "record.labels": Record(snapshot).labels,
        "summary": window.summary,
        "energy_joules": window.energy_joules,
        "devices": window.devices,
        "step.values": monitor.steps[0].values,
    }
    read = Snapshot.from_json(snapshot.to_json())
    return {**own, "read.metrics": read.metrics, "read.unavailable": read.unavailable, "read.processes": read.processes}


WRITES: dict[str, Callable[[Any], object]] = {
    "[]": lambda found: found.__setitem__("x", 1),
    "del": lambda found: found.__delitem__(next(iter(found), "x")),
    "update": lambda found: found.update(x=1),
    "|=": lambda found: found.__ior__({"x": 1}),
    "setdefault": lambda found: found.setdefault("x", 1),
    "pop": lambda found: found.pop(next(iter(found), "x"), None),
    "popitem": lambda found: found.popitem(),
    "clear": lambda found: found.clear(),
}


def test_what_several_receivers_hold_raises_on_writing(monitor: Monitor) -> None:
    for name, found in mappings(monitor).items():
        before = dict(found)
        for way, write in WRITES.items():
            with pytest.raises(TypeError, match="dict"):
                pytest.fail(f"{name}: {way} was taken: {write(found)}")
        assert found == before, name


def test_copies_are_the_receiver_s_own(monitor: Monitor) -> None:
    """Plain dicts, also where they come by way of another process."""
    for name, found in mappings(monitor).items():
        for own in (
            dict(found),
            found.copy(),
            copy.copy(found),
            copy.deepcopy(found),
            pickle.loads(pickle.dumps(found)),
            {**found},
            found | {},
        ):
            assert type(own) is dict, name
            assert own == found
            own["x"] = 1
        assert "x" not in found
    latest = monitor.latest
    assert latest is not None
    latest.flat()["x"] = 1
    latest.to_dict()["metrics"]["x"] = 1
    for column in monitor.history.to_dict().values():
        column.clear()
    monitor.work["x", (None, "")] = 1  # type: ignore[index]
    assert "x" not in latest.metrics
    assert monitor.history.times
    assert len(monitor.work) == 0


def test_they_are_dicts_to_those_that_write_them_out(monitor: Monitor) -> None:
    found = mappings(monitor)
    for name in ("metrics", "unavailable", "labels", "step.values", "summary"):
        assert json.loads(json.dumps(found[name])) == json.loads(json.dumps(dict(found[name])))


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_sources_are_a_tuple_in_both_isolations(isolation: Any) -> None:
    with Sampler(["host"], isolation=isolation, timeout=20.0) as sampler:
        snapshot = sampler.sample()
    assert [type(snapshot.backends), type(snapshot.identities)] == [tuple, tuple]
    assert type(Snapshot.from_json(snapshot.to_json()).backends) is tuple
    written: Any
    for written in (snapshot.unavailable, snapshot.metrics, snapshot.processes):
        with pytest.raises(TypeError):
            written["x"] = None
