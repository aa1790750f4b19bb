"""Records with chosen values, for tests of dialects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot
from accelmetrics.schemas.record import Record, Step
from accelmetrics.schemas.snapshot import Snapshot

PAGE = Path(__file__).parents[2] / "docs" / "dialects.md"
TIME_NS = 1_767_225_600_123_456_789
GIB = 2**30
H100 = "NVIDIA H100 80GB HBM3"

Numbers = dict[str, int | float]

GPU_0: Numbers = {
    "gpu": 85.5,
    "memory": 40,
    "temp": 65,
    "memoryTemp": 71,
    "powerWatts": 300.25,
    "enforcedPowerLimitWatts": 700.0,
    "energyJoules": 1234.567,
    "memoryTotalBytes": 80 * GIB,
    "memoryAllocatedBytes": 20 * GIB + 512 * 1024,
    "memoryFreeBytes": 59 * GIB,
    "memoryAllocated": 25.0,
    "smClock": 1980,
    "graphicsClock": 1975,
    "memoryClock": 2619,
    "fanSpeed": 30.0,
    "performanceState": 0,
    "xidErrors": 0,
    "pipeTensorActive": 62.5,
    "pcieTxBytes": 1_000_000.0,
    "throttle.swPowerCap": 1,
    "throttle.gpuIdle": 0,
    "correctedMemoryErrors": 3,
    "unCorrectedMemoryErrors": 1,
    "uncorrectedMemoryErrors": 1,
}
HOST: Numbers = {
    "cpu": 12.5,
    "cpu.0.cpu_percent": 20.0,
    "cpu.1.cpu_percent": 60.0,
    "memory_percent": 25.0,
    "proc.memory.availableMB": 48.0 * 1024,
    "disk./data.usageGB": 10.5,
    "disk.in": 1.0,
    "disk.nvme0n1.in": 1.0,
    "network.sent": 1024,
}


def nvidia(number: int) -> DeviceSlot:
    """One H100."""
    identity = DeviceIdentity(
        "gpu",
        "nvidia",
        number,
        H100,
        f"GPU-18ef0d6a-0000-0000-0000-00000000000{number}",
        f"00000000:C{number}:00.0",
        driver_version="570.124.06",
    )
    return DeviceSlot(f"gpu.{number}", number, number, identity)


def amd(number: int) -> DeviceSlot:
    """One MI300X."""
    return DeviceSlot(f"gpu.{number}", number, number, DeviceIdentity("gpu", "amd", 0, "AMD Instinct MI300X", "0x5a", "0000:C1:00.0"))


def tpu(number: int) -> DeviceSlot:
    """One TPU, which has no UUID."""
    return DeviceSlot(f"tpu.{number}", number, None, DeviceIdentity("tpu", "google", number, "TPU v5e", pci_bus_id="0000:00:05.0"))


def instance(parent: DeviceSlot, number: int, gpu_instance: int | None = None, profile: str = "1g.10gb") -> DeviceSlot:
    """A MIG instance of a GPU."""
    who = DeviceIdentity(
        "gpu",
        "nvidia",
        number,
        f"{H100} MIG {profile}",
        f"MIG-0000000{number}",
        driver_version="570.124.06",
        parent=parent.identity.uuid,
        gpu_instance_id=gpu_instance,
    )
    return DeviceSlot(f"{parent.key}.mig.{number}", number, None, who)


def record(
    devices: Mapping[DeviceSlot, Mapping[str, float]],
    host: Mapping[str, float] | None = None,
    steps: tuple[Step, ...] = (),
    time_ns: int = TIME_NS,
) -> Record:
    """Devices with their values by name, and whole keys of the host."""
    metrics = {f"{place.key}.{name}": value for place, values in devices.items() for name, value in values.items()}
    return Record(Snapshot(time_ns, "node-1", {**metrics, **(host or {})}, tuple(devices)), steps=steps)


def step(number: int | None, **values: float) -> Step:
    """What a program logged."""
    return Step(TIME_NS, number, values)
