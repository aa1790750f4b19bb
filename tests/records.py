"""Records for tests of what comes after sampling: real snapshots of scripted devices, with labels, steps and a monitor's state."""

from __future__ import annotations

from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas import reading
from accelmetrics.schemas.record import ExporterStatus, MonitorStatus, Record, Step
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.testing import FakeBackend
from tests.support.waiting import HANG

LABELS = {"run_id": "20260101-abc", "hostname": "node-1", "rank": "0", "team": 'a"b\\c'}
STATUS = MonitorStatus(1.0, 10, 1, 0, (ExporterStatus("jsonl", 9, 0, 1, 0),))


def machine(gpus: int = 2) -> FakeBackend:
    """NVIDIA GPUs that say what every GPU says. GPU 1's fan is not supported, and GPU 1 idles."""
    backend = FakeBackend("nvidia", devices=gpus)
    for number in range(gpus):
        device = backend.device(number)
        idle = number == 1
        device.set(gpu=0 if idle else 85.5, memory=0 if idle else 40, temp=35 + number, powerWatts=70.0 if idle else 300.0)
        device.set(memoryAllocatedBytes=2**30 * (number + 1), memoryTotalBytes=80 * 2**30, memoryAllocated=1.25 * (number + 1))
        device.set(energyJoules=1000.0 * (number + 1), enforcedPowerLimitWatts=700.0, smClock=1980, memoryClock=2619, graphicsClock=1980)
        device.set(fanSpeed=30.0) if not idle else device.miss("fanSpeed", detail="NVML_ERROR_NOT_SUPPORTED")
    return backend


def host() -> FakeBackend:
    """A host that gives a few of its keys."""
    backend = FakeBackend("host", None)
    values = {"cpu": 12.5, "memory_percent": 40.0, "proc.memory.rssMB": 512.0, "disk./.usageGB": 10.5, "network.sent": 1024}
    backend.device(0).set(**values)
    return backend


def snapshot(gpus: int = 2) -> Snapshot:
    """One real snapshot of the scripted machine."""
    with Sampler([machine(gpus), host()], timeout=HANG) as sampler:
        return sampler.sample()


def record(gpus: int = 2, steps: bool = True) -> Record:
    """One tick of a monitor on it."""
    taken = snapshot(gpus)
    logged = Step(taken.time_ns, 7, {"loss": 0.25, "learning_rate": 3e-4, "epoch": 1, "step_seconds": 0.5, "tokens_per_second": 8192.0})
    return Record(taken, LABELS, (logged,) if steps else (), STATUS)


def unknown(one: Record) -> Record:
    """The same record, of whose header nothing is kept yet."""
    reading._known.clear()
    kept = one.snapshot
    taken = Snapshot(kept.time_ns, kept.hostname, dict(kept.metrics), kept.identities, kept.unavailable, kept.backends, kept.processes)
    return one._replace(snapshot=taken)
