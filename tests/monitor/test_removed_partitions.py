"""A partition that is removed on purpose while a monitor runs: everything that readings are handed to goes on without it."""

from __future__ import annotations

from pathlib import Path

from accelmetrics import PartitionRemovedError, Reason, recordings
from accelmetrics.dialects.health import NO_HISTORY, health
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.testing import FakeBackend
from accelmetrics.views.node_view import node_view
from tests.monitor.watching import HeldClock, Recorder, ticks

MINUTES = 15


def divided() -> FakeBackend:
    """A GPU with one partition."""
    backend = FakeBackend(devices=2)
    whole, part = backend.device(0), backend.device(1)
    part.identity = part.identity._replace(parent=whole.identity.uuid, vendor_index=0, uuid="MIG-1", pci_bus_id="")
    whole.set(powerWatts=300.0, temp=50, gpu=90)
    part.set(memoryAllocatedBytes=7, memoryTotalBytes=10)
    return backend


def go(monitor: Monitor, clock: HeldClock, readings: int) -> None:
    for _ in range(readings):
        before = monitor.status.ticks
        clock.advance(60.0)
        ticks(monitor, before + 1)


def test_everything_goes_on_without_it(tmp_path: Path) -> None:
    """Windows and recordings have what was read of it; no finding, no device that is down, no source that is not well."""
    clock, backend, records = HeldClock(), divided(), Recorder()
    path = tmp_path / "run.jsonl"
    with Monitor(60.0, backends=[backend], clock=clock, exporters=[records, f"jsonl:{path}"]) as monitor:
        ticks(monitor, 1)
        with monitor.window("across") as window:
            go(monitor, clock, 2)
            backend.device(1).fail(PartitionRemovedError(Reason.DEVICE_LOST, "it was removed"))
            go(monitor, clock, MINUTES)
            gone = monitor.latest
            backend.device(1).fail(None)
            go(monitor, clock, 2)
            back = monitor.latest
    assert gone is not None
    assert back is not None
    assert ([device.key for device in gone.devices], gone.backends[0].status) == (["gpu.0"], "ok")
    assert not [key for key in (*gone.metrics, *gone.unavailable) if ".mig." in key]
    assert [device.key for device in back.devices] == ["gpu.0", "gpu.0.mig.0"]
    assert (window.summary["gpu.0.mig.0.memoryAllocatedBytes"].max, window.summary["gpu.0.powerWatts"].mean) == (7, 300.0)
    assert window.summary["gpu.0.powerWatts"].seconds > window.summary["gpu.0.mig.0.memoryAllocatedBytes"].seconds > 0
    history, listed = NO_HISTORY, []
    for record in records.records:
        assert record.findings.current == ()
        points = list(health(record, history))
        history = history.after(record)
        listed.append([point.labels["accelerator"] for point in points if point.name == "accel_up"])
        assert {point.value for point in points if point.name == "accel_up"} == {1}
        assert {point.value for point in points if point.name == "accelmetrics_devices_expected"} == {1}
        assert [device.key for device in node_view(record).devices] == listed[-1]
    assert ["gpu.0"] in listed
    assert listed[-1] == ["gpu.0", "gpu.0.mig.0"]
    (recording,) = recordings(path)
    assert [len(record.snapshot.devices) for record in recording] == [len(keys) for keys in listed]
