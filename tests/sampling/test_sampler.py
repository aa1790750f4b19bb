"""The sampling API on scripted backends: keys, statuses, options, rates."""

from __future__ import annotations

import math

import pytest

import accelmetrics
from accelmetrics import Reason, Sampler
from accelmetrics.backends.contract import Block, Detection, Driver, Reading, ReadOptions
from accelmetrics.schemas.catalogue import expected_names
from accelmetrics.schemas.errors import InvalidOptionError, SourceError, UnknownNameError
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.selection import MetricChoice, MetricSelection
from accelmetrics.testing import FakeBackend, FakeClock
from tests.sampling.conftest import workers
from tests.support.waiting import HANG, wait_for


def test_values_come_out_under_the_devices_keys(gpus: FakeBackend) -> None:
    with Sampler([gpus]) as sampler:
        snapshot = sampler.sample()
    assert snapshot.metrics["gpu.0.powerWatts"] == 100.0
    assert snapshot.metrics["gpu.3.powerWatts"] == 103.0
    assert [device.key for device in snapshot.devices] == ["gpu.0", "gpu.1", "gpu.2", "gpu.3"]
    assert snapshot.backends[0].status == "ok"
    assert snapshot.backends[0].sequence == 1


def test_a_missing_value_is_absent_with_its_reason(gpus: FakeBackend) -> None:
    gpus.device(1).miss("fanSpeed", Reason.NOT_SUPPORTED, "no fan")
    with Sampler([gpus]) as sampler:
        snapshot = sampler.sample()
    assert "gpu.1.fanSpeed" not in snapshot.metrics
    assert snapshot.unavailable["gpu.1.fanSpeed"] == (Reason.NOT_SUPPORTED, "no fan")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None, "12", 10**400], ids=lambda bad: str(bad)[:8])
def test_what_is_no_finite_number_becomes_invalid_value_and_harms_nothing_else(gpus: FakeBackend, bad: object) -> None:
    gpus.device(0).set(memory=lambda: bad)  # type: ignore[arg-type, return-value]
    with Sampler([gpus]) as sampler:
        first = sampler.sample()
        gpus.device(0).set(memory=7)
        second = sampler.sample()
    assert first.unavailable["gpu.0.memory"].reason == Reason.INVALID_VALUE
    assert "gpu.0.memory" not in first.metrics
    assert first.metrics["gpu.0.powerWatts"] == 100.0
    assert second.metrics["gpu.0.memory"] == 7
    assert "gpu.0.memory" not in second.unavailable


def test_a_backend_that_keeps_silent_about_a_promised_key_gets_it_explained() -> None:
    backend = FakeBackend("amd", devices=1)
    backend.device(0).set(powerWatts=12.0)
    with Sampler([backend]) as sampler:
        snapshot = sampler.sample()
    for name in expected_names("amd"):
        assert (f"gpu.0.{name}" in snapshot.metrics) != (f"gpu.0.{name}" in snapshot.unavailable), name


def test_one_failing_device_costs_only_itself(gpus: FakeBackend) -> None:
    with Sampler([gpus]) as sampler:
        sampler.sample()
        gpus.device(2).lose()
        snapshot = sampler.sample()
        gpus.device(2).fail(None)
        after = sampler.sample()
    assert snapshot.unavailable["gpu.2.powerWatts"].reason == Reason.DEVICE_LOST
    assert "gpu.2.powerWatts" not in snapshot.metrics
    assert snapshot.metrics["gpu.1.powerWatts"] == 101.0
    assert snapshot.backends[0].status == "degraded"
    assert "gpu.2: device_lost" in snapshot.backends[0].detail
    assert after.metrics["gpu.2.powerWatts"] == 102.0
    assert not after.unavailable


def test_a_lost_device_gives_one_reason_for_every_key_it_ever_had(gpus: FakeBackend) -> None:
    gpus.device(0).miss("fanSpeed")
    with Sampler([gpus]) as sampler:
        sampler.sample()
        gpus.device(0).lose()
        snapshot = sampler.sample()
    reasons = {key: why.reason for key, why in snapshot.unavailable.items() if key.startswith("gpu.0.")}
    assert reasons == {"gpu.0.powerWatts": "device_lost", "gpu.0.temp": "device_lost", "gpu.0.fanSpeed": "device_lost"}


def test_devices_whose_processes_are_not_known_say_why(gpus: FakeBackend) -> None:
    """A list, even an empty one, a reason of the source's own, and that of a device that fails."""
    gpus.device(0).run()
    gpus.device(1).unlist(Reason.NO_PERMISSION, "another user's")
    with Sampler([gpus]) as sampler:
        snapshot = sampler.sample()
        assert (snapshot.processes, snapshot.unlisted) == ({"gpu.0": ()}, {"gpu.1": (Reason.NO_PERMISSION, "another user's")})
        assert sampler.sample().unlisted is snapshot.unlisted
        gpus.device(0).lose()
        lost = sampler.sample()
    assert lost.processes == {}
    assert {key: why.reason for key, why in lost.unlisted.items()} == {"gpu.0": "device_lost", "gpu.1": "no_permission"}


@pytest.mark.parametrize("error", [ValueError("boom"), KeyError("libamd_smi.so"), SystemExit(3), OSError(5, "io"), RecursionError()])
def test_whatever_a_reader_throws_becomes_a_reason(gpus: FakeBackend, error: BaseException) -> None:
    with Sampler([gpus]) as sampler:
        sampler.sample()
        gpus.device(0).fail(error)
        snapshot = sampler.sample()
    assert snapshot.unavailable["gpu.0.temp"].reason == Reason.DRIVER_ERROR
    assert type(error).__name__ in snapshot.unavailable["gpu.0.temp"].detail
    assert snapshot.metrics["gpu.1.temp"] == 41


def test_permission_errors_say_so(gpus: FakeBackend) -> None:
    gpus.device(0).fail(PermissionError(13, "Permission denied"))
    with Sampler([gpus]) as sampler:
        assert sampler.sample().backends[0].detail.startswith("gpu.0: no_permission")


def test_a_source_that_does_not_open_is_failed_with_its_words() -> None:
    backend = FakeBackend()
    backend.opening.fail(SourceError(Reason.NO_PERMISSION, "the device nodes belong to root", advice="join the group"))
    with Sampler([backend]) as sampler:
        snapshot = sampler.sample()
    assert snapshot.backends[0][:3] == ("fake", "failed", "the device nodes belong to root")
    assert snapshot.devices == ()


def test_what_is_not_detected_is_absent_unless_it_was_asked_for_by_name(gpus: FakeBackend) -> None:
    gpus.detection = Detection(False, "no such card")
    from accelmetrics.sampling.engine import ThreadEngine
    from accelmetrics.sampling.options import checked
    from accelmetrics.sampling.sources import SourceRegistry

    options = checked(gpus=None, pid=None, children=False, disk_paths=["/"], timeout=1.0, open_timeout=1.0)
    engine = ThreadEngine(SourceRegistry(), [gpus], frozenset(), options)
    snapshot = engine.sample()
    assert snapshot.backends[0][:3] == ("fake", "absent", "no such card")
    assert gpus.opened == 0
    wait_for(lambda: workers() == 0)
    with Sampler([gpus]) as sampler:
        assert sampler.sample().metrics["gpu.0.powerWatts"] == 100.0


def test_each_reading_has_its_own_number_and_age(gpus: FakeBackend) -> None:
    clock = FakeClock()
    sampler = Sampler([gpus], clock=clock)
    first = sampler.sample()
    clock.advance(5.0)
    second = sampler.sample()
    assert (first.backends[0].sequence, second.backends[0].sequence) == (1, 2)
    assert second.time_ns - first.time_ns == 5_000_000_000
    assert second.backends[0].age_seconds == 0.0
    assert second.backends[0].read_at == second.timestamp
    sampler.close()


def test_processes_are_listed_with_their_device(gpus: FakeBackend) -> None:
    gpus.device(1).run(DeviceProcess(4711, "compute", 1 << 30, 55.0))
    with Sampler([gpus]) as sampler:
        snapshot = sampler.sample()
    assert snapshot.device("gpu.1").processes == (DeviceProcess(4711, "compute", 1 << 30, 55.0),)
    assert snapshot.device("gpu.0").processes is None


def test_process_blocks_stand_below_the_process_key() -> None:
    class Reader:
        def read(self, unit: int, steps: list[object]) -> Reading:
            return Reading((Block(("temp",), (41,)), Block(("temp", "memoryAllocatedBytes"), (41, 5), process=True)))

    backend = FakeBackend()

    class OneReader:
        source = "script"
        machine_wide = False
        devices = (backend.device(0).identity,)

        def reader(self, options: ReadOptions) -> Reader:
            return Reader()

        def close(self) -> None:
            return None

    def opened() -> Driver:
        return OneReader()

    backend.open = opened  # type: ignore[assignment, method-assign]
    with Sampler([backend]) as sampler:
        assert sampler.sample().metrics == {"gpu.0.temp": 41, "gpu.process.0.temp": 41, "gpu.process.0.memoryAllocatedBytes": 5}


def test_readers_are_told_what_the_consumer_wants(gpus: FakeBackend) -> None:
    with Sampler([gpus], pid=77, children=True, disk_paths=["/", "/data"], metrics="core,-temp") as sampler:
        sampler.sample()
    assert gpus.options == [ReadOptions(77, True, ("/", "/data"), watched=True, metrics=MetricSelection("core,-temp"))]


def test_two_samplers_share_the_driver_and_have_readers_of_their_own(gpus: FakeBackend) -> None:
    with Sampler([gpus]) as one, Sampler([gpus]) as two:
        one.sample()
        two.sample()
        assert gpus.opened == 1
        assert len(gpus.options) == 2
        one.close()
        assert gpus.closed == 0
        assert two.sample().metrics["gpu.0.temp"] == 40
    assert gpus.closed == 1


def test_a_closed_sampler_opens_anew_when_it_is_used_again(gpus: FakeBackend) -> None:
    sampler = Sampler([gpus])
    sampler.sample()
    sampler.close()
    assert sampler.sample().metrics["gpu.0.temp"] == 40
    sampler.close()
    assert (gpus.opened, gpus.closed) == (2, 2)


def test_equal_options_share_one_sampler(gpus: FakeBackend) -> None:
    gpus.name = "shared"
    assert accelmetrics.sample([gpus]).metrics["gpu.0.temp"] == 40
    accelmetrics.sample([gpus])
    assert len(gpus.options) == 1
    accelmetrics.sample([gpus], children=True)
    assert len(gpus.options) == 2
    assert gpus.opened == 1


def test_what_is_equal_stays_one_object_from_reading_to_reading(gpus: FakeBackend) -> None:
    """The backend makes everything anew at every reading, and lists its devices anew."""
    for device in gpus.all_devices():
        device.miss("fanSpeed").run(DeviceProcess(4711, "compute", 1 << 30))
    with Sampler([gpus]) as sampler:
        first, second = sampler.sample(), sampler.sample()
        assert first.unavailable is second.unavailable
        assert first.identities is second.identities
        assert first.processes is second.processes
        gpus.device(2).miss("fanSpeed", Reason.NO_PERMISSION)
        third = sampler.sample()
        assert third.unavailable != second.unavailable
        assert third.identities is second.identities


@pytest.mark.parametrize(
    ("chosen", "keys"),
    [
        ([1], ["gpu.1"]),
        (["gpu.3", 0], ["gpu.0", "gpu.3"]),
        (["2"], ["gpu.2"]),
        (["GPU-5cf1a7ed-0000-4000-8000-000000000002"], ["gpu.2"]),
        (["gpu-5CF1A7ED-0000-4000-8000-000000000001"], ["gpu.1"]),
    ],
)
def test_devices_are_selected_by_number_key_or_uuid(gpus: FakeBackend, chosen: list[int | str], keys: list[str]) -> None:
    with Sampler([gpus], gpus=chosen) as sampler:
        snapshot = sampler.sample()
    assert [device.key for device in snapshot.devices] == keys
    assert {key.rpartition(".")[0] for key in snapshot.metrics} == set(keys)
    assert [device.reads for device in gpus.all_devices()] == [int(f"gpu.{number}" in keys) for number in range(4)]


def test_only_wanted_metrics_are_reported() -> None:
    """Values, owed names without one, and reasons; devices, states of sources and processes stay."""
    backend = FakeBackend("nvidia", devices=2)
    for device in backend.all_devices():
        device.set(powerWatts=100.0, temp=40, graphicsClock=1980)
        device.miss("fanSpeed", Reason.NOT_SUPPORTED, "no fan").miss("memoryTemp")
        device.run(DeviceProcess(4711))
    with Sampler([backend], metrics="powerWatts,temp,fanSpeed,smClock,-gpu.1.temp", timeout=HANG) as sampler:
        first, second = sampler.sample(), sampler.sample()
        backend.device(1).fail(SourceError(Reason.DEVICE_LOST, "fell off"))
        failed = sampler.sample().unavailable
    assert first.metrics == second.metrics == {"gpu.0.powerWatts": 100.0, "gpu.0.temp": 40, "gpu.1.powerWatts": 100.0}
    assert {key: why.reason for key, why in first.unavailable.items()} == dict.fromkeys(
        [f"gpu.{number}.{name}" for number in range(2) for name in ("fanSpeed", "smClock")], Reason.NOT_SUPPORTED
    )
    assert {key for key, why in failed.items() if why.detail == "fell off"} == {
        f"gpu.1.{name}" for name in ("powerWatts", "fanSpeed", "smClock")
    }
    assert [device.key for device in first.devices] == list(first.processes) == ["gpu.0", "gpu.1"]
    assert first.backends[0].status == "ok"


def test_samplers_are_shared_by_what_they_report(gpus: FakeBackend) -> None:
    """Metrics given as a list, a text or a selection are options like others."""
    ways: list[MetricChoice] = ["temp", ["temp"], MetricSelection("temp"), ["temp"]]
    assert [set(accelmetrics.sample([gpus], metrics=way, gpus=[0]).metrics) for way in ways] == [{"gpu.0.temp"}] * 4
    assert len(gpus.options) == 3


def test_metrics_of_a_plug_in_are_known_by_name() -> None:
    """Its rows are loaded before names are checked."""
    backend = FakeBackend("own", kind="npu")
    backend.metrics = [Metric("npu.{i}.queueDepth", "1", "gauge", "Commands that wait.")]
    backend.device(0).set(queueDepth=3, temp=40)
    with Sampler([backend], metrics="queueDepth") as sampler:
        assert sampler.sample().metrics == {"npu.0.queueDepth": 3}


@pytest.mark.parametrize("chosen", [[9], ["gpu.4"], ["GPU-ffff0000"], ["GPU"]])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(gpus: FakeBackend, chosen: list[int | str]) -> None:
    with Sampler([gpus], gpus=chosen) as sampler, pytest.raises(UnknownNameError, match=r"unknown device.*gpu\.0 \(GPU-5cf1a7ed"):
        sampler.sample()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"open_timeout": -1}, "open_timeout is -1"),
        ({"gpus": "0"}, r"write \['0'\]"),
        ({"gpus": []}, "gpus is empty"),
        ({"gpus": [-1]}, "gpus has -1"),
        ({"gpus": [True]}, "gpus has True"),
        ({"metrics": ""}, "metrics is ''"),
        ({"metrics": 5}, "metrics is 5"),
        ({"pid": 0}, "pid is 0"),
        ({"disk_paths": "/"}, "disk_paths takes a list"),
        ({"isolation": "fork"}, "'thread' or 'process'"),
        ({"backends": "host,-host"}, "backends is empty"),
        ({"backends": "-host,-accelerators"}, "backends is empty"),
        ({"backends": "host,host"}, "host more than once"),
        ({"backends": []}, "backends is empty"),
        ({"backends": ["host", "host"]}, "host more than once"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidOptionError, match=words):
        Sampler(**options)  # type: ignore[arg-type]


def test_an_unknown_metric_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'powerWatts'"):
        Sampler(metrics="core,powerWats")


def test_an_unknown_backend_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'nvidia'"):
        Sampler(["nvdia"])
