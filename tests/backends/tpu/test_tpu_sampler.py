"""TPUs through the public API, every snapshot held to the whole schema."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.tpu import backend, driver, runtime
from accelmetrics.sampling.sources import SourceRegistry
from accelmetrics.schemas.catalogue.tpu import FAMILIES
from accelmetrics.schemas.snapshot import Snapshot
from tests.cli.shell import call
from tests.simulators.tpu import DUTY_CYCLE, QUEUE, Histogram, Linear, RefusalError, TpuMachine, TpuRuntime
from tests.support.waiting import HANG, wait_for

GIB = 2**30
INTERVAL = driver.TpuDriver.interval
Start = Callable[[], TpuRuntime]


@pytest.fixture(autouse=True)
def new_process(machine: TpuMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was sampled yet. The runtime is asked ten times as often as outside of tests, and polls are shared as they are there."""
    monkeypatch.setattr("accelmetrics.sampling.sampler.SHARED", SourceRegistry())
    monkeypatch.setattr(driver.TpuDriver, "interval", INTERVAL / 10)
    monkeypatch.setattr(driver, "FRESH", INTERVAL / 20)


def resting(start: Start, *devices: int) -> TpuRuntime:
    """A runtime of these devices that has ended."""
    runtime = start()
    runtime.devices(*devices)
    runtime.stop()
    return runtime


def keys_of(snapshot: Snapshot) -> set[str]:
    return {place.key for place in snapshot.identities}


def assert_whole(snapshot: Snapshot) -> None:
    """Each key that is owed is in exactly one of the two."""
    coverage = backend.coverage()
    owed = {f"{key}.{name}" for key in keys_of(snapshot) for name in coverage.devices} | coverage.machine.keys()
    assert not snapshot.metrics.keys() & snapshot.unavailable.keys()
    assert snapshot.metrics.keys() | snapshot.unavailable.keys() >= owed


def settled(sampler: Sampler, condition: Callable[[Snapshot], bool]) -> Snapshot:
    """The first snapshot of which something is true."""

    def found() -> Snapshot | None:
        snapshot = sampler.sample()
        return snapshot if condition(snapshot) else None

    snapshot = wait_for(found, what=lambda: sampler.sample().to_json())
    assert snapshot is not None
    return snapshot


def test_a_machine_in_use(v5e: TpuRuntime) -> None:
    for family in FAMILIES:
        v5e.labelled(family.grpc, {"8MB+": Histogram(4, 5.0, Linear(10, 1.0, 0.0), [0, 0, 4])})
    v5e.labelled(QUEUE, {"tensor_core-0": 3})
    with Sampler(["tpu"]) as sampler:
        sampler.sample()
        v5e.gauge(DUTY_CYCLE, {0: 99.5, 1: 0.0, 2: 1.0, 3: 2.0})
        snapshot = settled(sampler, lambda snapshot: snapshot.metrics.get("tpu.0.dutyCycle") == 99.5)
    assert_whole(snapshot)
    assert keys_of(snapshot) == {"tpu.0", "tpu.1", "tpu.2", "tpu.3"}
    assert [snapshot.metrics[f"tpu.{number}.dutyCycle"] for number in range(4)] == [99.5, 0.0, 1.0, 2.0]
    assert snapshot.metrics["tpu.3.memoryUsageBytes"] == 4 * GIB
    assert snapshot.metrics["tpu.3.memoryUsage"] == snapshot.devices[3].metrics.hbm_memory_usage == 25.0
    assert snapshot.metrics["tpu.grpcTcpMinRtt.meanUs"] == 5.0
    assert snapshot.metrics["tpu.bufferTransferLatency.8mb_plus.p50Us"] == 1.5
    assert snapshot.metrics["tpu.hloQueueSize.tensor_core_0"] == 3
    assert [process.pid for process in snapshot.devices[0].processes or ()] == [4711]
    (status,) = snapshot.backends
    assert (status.status, status.source) == ("ok", "grpc")
    assert "4 TPU v5e chips" in status.detail
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


def test_a_machine_that_no_program_uses_is_well(machine: TpuMachine) -> None:
    machine.chips("v5p", 2)
    with Sampler(["tpu"]) as sampler:
        snapshot = sampler.sample()
    assert_whole(snapshot)
    assert snapshot.metrics == {}
    assert {why.reason for why in snapshot.unavailable.values()} == {"not_in_use"}
    assert [(device.name, device.memory_total_bytes) for device in snapshot.devices] == [("TPU v5p", 95 * GIB)] * 2
    assert snapshot.backends[0].status == "ok"


def test_a_machine_without_a_tpu_has_none(machine: TpuMachine) -> None:
    with Sampler(["tpu"]) as sampler:
        (status,) = sampler.sample().backends
    assert status.status == "absent"
    assert "no TPU on the PCI bus" in status.detail


def test_a_program_that_starts_and_ends_changes_no_key(machine: TpuMachine, start: Start) -> None:
    """Its runtime's numbers are those of a pod: the keys stay what they were, and each device tells its number."""
    machine.chips("v6e", 2)
    runtime = resting(start, 8, 9)
    with Sampler(["tpu"], timeout=1.0) as sampler:
        assert keys_of(sampler.sample()) == {"tpu.0", "tpu.1"}
        runtime.start()
        snapshot = settled(sampler, lambda snapshot: bool(snapshot.metrics))
        assert_whole(snapshot)
        assert {device.key: device.vendor_index for device in snapshot.devices} == {"tpu.0": 8, "tpu.1": 9}
        assert snapshot.metrics["tpu.1.hbmCapacityUsage"] == 2 * GIB
        runtime.stop()
        snapshot = settled(sampler, lambda snapshot: not snapshot.metrics)
        assert {why.reason for why in snapshot.unavailable.values()} == {"not_in_use"}
        assert keys_of(snapshot) == {"tpu.0", "tpu.1"}


def test_both_devices_of_a_chip_keep_their_keys_too(machine: TpuMachine, start: Start) -> None:
    machine.chips("v3", 2)
    runtime = resting(start, 8, 9, 10, 11)
    with Sampler(["tpu"], timeout=1.0) as sampler:
        idle = keys_of(sampler.sample())
        assert idle == {"tpu.0", "tpu.1", "tpu.2", "tpu.3"}
        runtime.start()
        snapshot = settled(sampler, lambda snapshot: bool(snapshot.metrics))
    assert keys_of(snapshot) == idle
    assert [snapshot.metrics[f"tpu.{number}.hbmCapacityUsage"] for number in range(4)] == [GIB, 2 * GIB, 3 * GIB, 4 * GIB]


def test_ids_that_fit_no_chip_take_no_chips_key(machine: TpuMachine, start: Start) -> None:
    machine.chips("v5e", 2)
    runtime = resting(start, 1, 42, 46)
    with Sampler(["tpu"], timeout=1.0) as sampler:
        assert keys_of(sampler.sample()) == {"tpu.0", "tpu.1"}
        runtime.start()
        snapshot = settled(sampler, lambda snapshot: bool(snapshot.metrics))
        assert_whole(snapshot)
    found = {device.key: (device.vendor_index, device.pci_bus_id) for device in snapshot.devices}
    assert len(snapshot.devices) == len(found) == 5
    assert (found["tpu.0"][1], found["tpu.1"][1]) == ("0000:00:04.0", "0000:00:05.0")
    usage = {found[key][0]: snapshot.metrics.get(f"{key}.hbmCapacityUsage") for key in found if not found[key][1]}
    assert usage == {1: GIB, 42: 2 * GIB, 46: 3 * GIB}


def test_a_program_that_runs_already_gives_its_own_numbers(machine: TpuMachine, start: Start) -> None:
    machine.chips("v6e", 2)
    start().devices(8, 12)
    with Sampler(["tpu"]) as sampler:
        snapshot = sampler.sample()
    assert keys_of(snapshot) == {"tpu.8", "tpu.12"}
    assert snapshot.metrics["tpu.12.memoryUsageBytes"] == 2 * GIB


def test_a_runtime_that_hangs_holds_no_reading_up_and_is_told_of(v5e: TpuRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its deadline passes beside the readings; the source is not well although it is open."""
    with Sampler(["tpu"], timeout=HANG) as sampler:
        assert sampler.sample().backends[0].status == "ok"
        before = len(v5e.requests)
        v5e.hang()
        wait_for(lambda: bool(sampler.sample().backends) and len(v5e.requests) > before)
        served = sampler.sample()
        assert served.metrics["tpu.0.dutyCycle"] == 10.5, "the latest reading, while the runtime answers nothing"
        monkeypatch.setattr(runtime, "CALL_TIMEOUT", 0.2)
        v5e.release()  # what hangs now would hang until the deadline that it was given
        settled(sampler, lambda snapshot: snapshot.backends[0].sequence > served.backends[0].sequence)
        v5e.hang()
        snapshot = settled(sampler, lambda snapshot: not snapshot.metrics)
        assert_whole(snapshot)
        assert {why.reason for why in snapshot.unavailable.values()} == {"timed_out"}
        (status,) = snapshot.backends
        assert status.status == "timed_out"
        assert status.detail.startswith("timed_out: localhost:")
        assert sampler.statistics.timed_out > 0
        assert [process.pid for process in snapshot.devices[0].processes or ()] == [4711], "what is known still is told"
        monkeypatch.setattr(runtime, "CALL_TIMEOUT", HANG)
        v5e.release()
        snapshot = settled(sampler, lambda snapshot: "tpu.0.dutyCycle" in snapshot.metrics)
        assert_whole(snapshot)
        assert snapshot.backends[0].status == "ok"


def test_many_samples_within_an_interval_ask_the_runtime_once(v5e: TpuRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver.TpuDriver, "interval", 100 * HANG)
    with Sampler(["tpu"]) as sampler:
        for _ in range(20):
            sampler.sample()
    assert len(v5e.requests) <= 2 * len(v5e.answers), "once to open the source, at most once more"
    assert INTERVAL == 1.0


def test_a_runtime_that_refuses_everything_is_not_well(v5e: TpuRuntime) -> None:
    with Sampler(["tpu"]) as sampler:
        sampler.sample()
        v5e.answers = dict.fromkeys(v5e.answers, RefusalError("PERMISSION_DENIED", "not for you"))
        snapshot = settled(sampler, lambda snapshot: not snapshot.metrics)
    (status,) = snapshot.backends
    assert status.status == "degraded"
    assert "no_permission: localhost:" in status.detail


def test_a_label_that_goes_takes_its_keys_with_it(v5e: TpuRuntime) -> None:
    with Sampler(["tpu"]) as sampler:
        v5e.labelled(QUEUE, {"a": 1, "b": 2})
        sampler.sample()
        v5e.labelled(QUEUE, {"b": 3})
        snapshot = settled(sampler, lambda snapshot: snapshot.metrics["tpu.hloQueueSize.b"] == 3)
    assert {key: value for key, value in snapshot.metrics.items() if "Queue" in key} == {"tpu.hloQueueSize.b": 3}
    assert "tpu.hloQueueSize.a" not in snapshot.unavailable


def test_two_samplers_have_readings_of_their_own(v5e: TpuRuntime) -> None:
    with Sampler(["tpu"]) as one, Sampler(["tpu", "host"]) as other:
        for share in (10.0, 20.0, 30.0):
            v5e.gauge(DUTY_CYCLE, {0: share})
            for sampler in (one, other):
                settled(sampler, lambda snapshot, share=share: snapshot.metrics["tpu.0.dutyCycle"] == share)  # type: ignore[misc]


def test_a_program_that_only_looks_loads_neither_grpc_nor_libtpu(machine: TpuMachine) -> None:
    machine.chips("v5e", 1)
    code = (
        "import sys; from accelmetrics.backends.tpu import backend; found = backend.detect();"
        "print(found.present, *sorted({'grpc', 'libtpu', 'json', 'subprocess', 'socket'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True"]


def test_the_command_line_prints_it(v5e: TpuRuntime) -> None:
    done = call("dump", "--json", "--backends", "tpu", "--settle", "0", env=dict(os.environ))
    document = json.loads(done.stdout)
    assert document["metrics"]["tpu.1.dutyCycle"] == 11.5
    assert [device["vendor_index"] for device in document["devices"]] == [0, 1, 2, 3]
