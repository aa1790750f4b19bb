"""Readings as rows: what has a column, which columns are marked as served again, and what is kept from one row to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from accelmetrics import Sampler
from accelmetrics.monitor.findings import FindingEngine
from accelmetrics.monitor.run import Run
from accelmetrics.monitor.steps import StepLog
from accelmetrics.monitor.window import Windows
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceSlot
from accelmetrics.schemas.ring import REPEATED, History, Ring, Row, device_columns, marked, row_of
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.testing import FakeBackend

SLOTS = (
    DeviceSlot("gpu.0", 0, None, DeviceIdentity("gpu", "nvidia", 0, uuid="GPU-18ef14e9-dec6-1d7e-1284-3010c6ce98b1")),
    DeviceSlot("gpu.1", 1, None, DeviceIdentity("gpu", "amd", 0, uuid="0x1cf37bd39a23ae61")),
    DeviceSlot("tpu.0", 0, None, DeviceIdentity("tpu", "google", 0)),
)


def snapshot(metrics: Mapping[str, float], **sequences: int) -> Snapshot:
    statuses = tuple(BackendStatus(name, "ok", sequence=sequence) for name, sequence in sequences.items())
    return Snapshot(10**18, "node", dict(metrics), SLOTS, backends=statuses)


def values(found: Row) -> dict[str, float]:
    return dict(zip(found.layout, found.values, strict=True))


def rows(*snapshots: Snapshot) -> list[Row]:
    """Their rows, each beside the one before."""
    return marked([row_of(one, float(at)) for at, one in enumerate(snapshots)], {})[0]


def test_a_row_has_the_snapshots_keys_and_values() -> None:
    """Zeros are values, and nothing stands for what is absent."""
    found = row_of(snapshot({"gpu.0.gpu": 0, "cpu": 12.5}, nvidia=1), 5.0)
    assert (values(found), found.at, found.time, found.joined) == ({"gpu.0.gpu": 0.0, "cpu": 12.5}, 5.0, 1e9, True)


def test_only_the_columns_of_a_source_that_was_served_again_are_marked() -> None:
    """A device's keys are its vendor's, those of a process on it too; the host's are found in the catalogue."""
    slow = {"gpu.1.temp": 50.0, "gpu.process.1.memory": 3.0, "gpu.1.mig.0.gpu": 4.0, "tpu.0.dutyCycle": 9.0}
    metrics = {"gpu.0.temp": 40.0, **slow, "cpu": 1.0}
    sequences = (
        {"nvidia": 1, "amd": 7, "tpu": 3, "host": 1},
        {"nvidia": 2, "amd": 7, "tpu": 3, "host": 2},
        {"nvidia": 3, "amd": 8, "tpu": 4, "host": 2},
    )
    found = rows(*(snapshot(metrics, **each) for each in sequences))
    assert [{key for key, value in values(row).items() if value == REPEATED} for row in found] == [set(), slow.keys(), {"cpu"}]


def test_devices_are_of_the_backend_that_lists_them_whatever_their_vendor() -> None:
    """Backends of other packages are not named after the vendor, and one may list several vendors' devices."""
    identity = DeviceIdentity("gpu", "acme", 0)
    places = [
        DeviceSlot("gpu.0", 0, None, identity, "fake"),
        DeviceSlot("gpu.1", 1, None, identity, "amd"),
        DeviceSlot("gpu.2", 2, None, identity),
    ]
    taken = [snapshot({f"gpu.{number}.temp": 40.0 for number in range(3)}, fake=1, amd=amd, acme=1) for amd in (1, 2)]
    for one in taken:
        one.identities = tuple(places)
    assert values(rows(*taken)[1]) == {"gpu.0.temp": REPEATED, "gpu.1.temp": 40.0, "gpu.2.temp": REPEATED}


def test_a_source_without_a_sequence_is_never_taken_for_served_again() -> None:
    """A document of another producer may not say it."""
    for row in rows(*(snapshot({"gpu.0.temp": 40.0}, nvidia=0) for _ in range(2))):
        assert REPEATED not in row.values


def test_devices_are_told_from_their_partitions_and_processes() -> None:
    """Sums over devices count each board once."""
    keys = ("gpu.0.powerWatts", "gpu.1.powerWatts", "gpu.0.nvlink.3.state")
    others = ("gpu.process.0.powerWatts", "gpu.0.mig.1.powerWatts", "cpu.3.cpu_percent", "soc.powerWatts", "cpu")
    assert device_columns((*others, *keys)) == {"powerWatts": {"gpu.0": 5, "gpu.1": 6}, "nvlink.3.state": {"gpu.0": 7}}


def test_rows_of_a_sampler_are_those_of_the_same_values_from_elsewhere() -> None:
    """Whose keys are compared and not recognised; also where keys come and go, or a snapshot was added to."""
    backend = FakeBackend(devices=2)
    for device in backend.all_devices():
        device.set(temp=40, powerWatts=99.5)
    layouts = set()
    with Sampler([backend]) as sampler:
        for turn in range(6):
            backend.device(0).set(temp=41 + turn)
            backend.device(1).miss("temp") if turn == 3 else backend.device(1).set(temp=2**70)
            taken = sampler.sample()
            if turn == 5:
                taken = taken.with_metrics({"torch.0.memoryAllocatedBytes": 7})
            own, other = (row_of(one, 0.0) for one in (taken, taken.with_values(dict(taken.metrics), taken.unavailable)))
            assert (own.layout, own.values) == (other.layout, other.values)
            assert values(own) == {key: float(value) for key, value in taken.metrics.items()}
            layouts.add(id(own.layout))
    assert len(layouts) == 4, "as it was, without a value, with it at the end, and with one more"


def test_a_reading_between_two_ticks_is_new_at_the_next_tick() -> None:
    """A reader of ticks alone sees each reading of a slow source once, whichever window had it first."""
    ring = Ring(10)
    run = Run(
        cast("Any", None),
        interval=1.0,
        timeout=1.0,
        labels={},
        shared=False,
        ring=ring,
        windows=Windows(ring, float, bool),
        steps=StepLog(),
        findings=FindingEngine((), 1.0, {}),
        extra=None,
        attribution=None,
    )
    for at, (sequence, tick) in enumerate(((1, True), (2, False), (2, False), (2, True), (2, True))):
        run.take(snapshot({"gpu.1.temp": 50.0 + sequence}, amd=sequence), float(at), tick)
    assert History(ring).column("gpu.1.temp") == [51.0, 52.0, None]
