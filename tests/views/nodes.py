"""Nodes to look at: readings of any shape, made without a driver."""

from __future__ import annotations

from collections.abc import Mapping

from accelmetrics.schemas.errors import Unavailable
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceProcess, DeviceSlot
from accelmetrics.schemas.record import Finding, Findings, Record
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.views.terminal.picture import Picture

SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND
GIB = 2**30
HEALTHY: Mapping[str, int | float] = {
    "gpu": 93.0,
    "memory": 41.0,
    "memoryAllocated": 56.5,
    "memoryAllocatedBytes": int(45.2 * GIB),
    "memoryTotalBytes": 80 * GIB,
    "temp": 71,
    "tempLimit.slowdown": 90,
    "powerWatts": 612.4,
    "enforcedPowerLimitWatts": 700.0,
    "smClock": 1980,
    "maxSmClock": 1980,
    "memoryClock": 2619,
    "fanSpeed": 30,
    "pcieLinkGen": 5,
    "pcieLinkWidth": 16,
    "maxPcieLinkWidth": 16,
    "throttle.swPowerCap": 0,
    "throttle.hwThermalSlowdown": 0,
    "correctedMemoryErrors": 0,
    "uncorrectedMemoryErrors": 0,
}
"""What a sound GPU gives."""
CORE = ("gpu", "memoryAllocated", "memoryAllocatedBytes", "temp", "powerWatts")


class Node:
    """A node whose devices are changed between readings.

    Args:
        devices: NVIDIA GPUs that it has.
        hostname: Its name.
    """

    def __init__(self, devices: int = 8, hostname: str = "node7") -> None:
        self.hostname = hostname
        self.time_ns = START
        self.slots: list[DeviceSlot] = []
        self.metrics: dict[str, dict[str, int | float]] = {}
        self.gaps: dict[str, dict[str, Unavailable]] = {}
        self.host: dict[str, int | float] = {"cpu.0.cpu_percent": 12.0, "memory_percent": 40.0}
        self.processes: dict[str, tuple[DeviceProcess, ...]] = {}
        self.unlisted: dict[str, Unavailable] = {}
        self.sources = {"nvidia": BackendStatus("nvidia", "ok", "8 devices", "nvml", 0.01, "", 0.0, 1, devices)}
        self.found: list[Finding] = []
        for _ in range(devices):
            self.add()

    def add(self, kind: str = "gpu", vendor: str = "nvidia", name: str = "NVIDIA H100 80GB HBM3", parent: str = "") -> str:
        """Add a device; return its key."""
        number = sum(1 for slot in self.slots if slot.identity.kind == kind and not slot.identity.parent)
        key = f"{kind}.{number}"
        if parent:
            whole = next(slot for slot in self.slots if slot.key == parent)
            key = f"{parent}.mig.{sum(1 for slot in self.slots if slot.identity.parent == whole.identity.uuid)}"
        uuid = f"{'MIG' if parent else 'GPU'}-18ef1c2a-{len(self.slots):012x}"
        identity = DeviceIdentity(kind, vendor, number, name, uuid, parent=whole.identity.uuid if parent else "")
        self.slots.append(DeviceSlot(key, number, number, identity, vendor))
        self.metrics[key] = dict(HEALTHY)
        self.gaps[key] = {}
        return key

    def set(self, key: str, values: Mapping[str, int | float] | None = None, *, only: bool = False) -> None:
        """Give a device other values; ``only`` those."""
        self.metrics[key] = {**({} if only else self.metrics[key]), **(values or {})}
        self.gaps[key] = {name: why for name, why in self.gaps[key].items() if name not in self.metrics[key]}

    def miss(self, key: str, names: tuple[str, ...], reason: str, detail: str = "") -> None:
        """Take values away from a device."""
        for name in names:
            self.metrics[key].pop(name, None)
            self.gaps[key][name] = Unavailable(reason, detail)

    def silence(self, key: str, reason: str, detail: str = "") -> None:
        """Take all values away from a device."""
        self.miss(key, tuple({*HEALTHY, *self.metrics[key]}), reason, detail)

    def find(self, rule: str, severity: str, key: str, message: str, advice: str = "Do something.") -> None:
        """Add a finding."""
        self.found.append(Finding(rule, severity, key, message, 1.0, 0.0, self.time_ns, None, advice))  # type: ignore[arg-type]

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.time_ns += int(seconds * SECOND)

    def record(self) -> Record:
        """Return one reading."""
        metrics = {f"{key}.{name}": value for key, values in self.metrics.items() for name, value in values.items()} | self.host
        gaps = {f"{key}.{name}": why for key, found in self.gaps.items() for name, why in found.items()}
        slots = [slot for slot in self.slots if slot.key in self.metrics]
        sources = list(self.sources.values())
        snapshot = Snapshot(self.time_ns, self.hostname, metrics, slots, gaps, sources, self.processes, self.unlisted)
        return Record(snapshot, findings=Findings(tuple(self.found)))


def plain(drawn: Picture) -> list[str]:
    """Return the lines of a picture as text alone."""
    return ["".join(text for text, _ in line) for line in drawn.lines]
