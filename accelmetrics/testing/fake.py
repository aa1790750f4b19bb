"""A backend whose devices give the values and faults that a test scripts, also while a sampler reads it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from accelmetrics.backends.contract import Coverage, Detection, Number, Processes, Reading, ReadOptions
from accelmetrics.backends.registry import declared
from accelmetrics.monitor.run import MonitorClock
from accelmetrics.sampling.threads import Flag
from accelmetrics.schemas.errors import DriverGoneError, Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity, DeviceKind, DeviceProcess
from accelmetrics.schemas.metric import Metric

ScriptedValue = Number | Callable[[], Number]
S = TypeVar("S", bound="Script")


class FakeClock(MonitorClock):
    """A clock that stands until it is told to go on, or until a monitor waits by it: a monitor on it runs back to back."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start

    def advance(self, seconds: float) -> None:
        """Let seconds pass."""
        self._now += seconds

    def wait(self, woken: Flag, seconds: float) -> None:
        """Let seconds pass at once, unless the event is set."""
        if not woken.is_set():
            self.advance(max(0.0, seconds))

    def monotonic(self) -> float:
        """Return seconds since some fixed point."""
        return self._now

    def time_ns(self) -> int:
        """Return nanoseconds since 1970: the same clock, started on 2026-01-01."""
        return 1_767_225_600_000_000_000 + int(self._now * 1e9)


class Script:
    """What becomes of a call: how long it takes, whether it returns, what it raises."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._delay, self._steps = 0.0, 1
        self._free = threading.Event()
        self._free.set()

    def fail(self: S, error: BaseException | None) -> S:
        """Let every call raise an error, until ``fail(None)``."""
        self._error = error
        return self

    def slow(self: S, seconds: float, steps: int = 1) -> S:
        """Let every call be ``steps`` calls of ``seconds`` each."""
        self._delay, self._steps = seconds, steps
        return self

    def hang(self: S) -> S:
        """Let the next call not return, until ``release()``."""
        self._free.clear()
        return self

    def release(self: S) -> S:
        """Let a hanging call return."""
        self._free.set()
        return self

    def play(self, progress: list[Any]) -> None:
        """Do as scripted, and note each step."""
        for _ in range(self._steps):
            if self._delay:
                time.sleep(self._delay)
            self._free.wait()
            progress.append(None)
        if self._error is not None:
            raise self._error


class FakeDevice(Script):
    """One scripted device, whose readings do as its script says.

    Attributes:
        identity: Its identity; replace it to have it change.
        reads: How often it was read.
    """

    def __init__(self, identity: DeviceIdentity) -> None:
        super().__init__()
        self.identity = identity
        self.reads = 0
        self._values: dict[str, ScriptedValue] = {}
        self._missing: dict[str, Unavailable] = {}
        self._processes: Processes = None

    def set(self, **values: ScriptedValue) -> FakeDevice:
        """Give metrics values: numbers, or callables that are called at every reading."""
        self._values.update(values)
        for name in values:
            self._missing.pop(name, None)
        return self

    def miss(self, name: str, reason: str = Reason.NOT_SUPPORTED, detail: str = "") -> FakeDevice:
        """Let a metric be missing, with a reason."""
        self._values.pop(name, None)
        self._missing[name] = Unavailable(reason, detail)
        return self

    def run(self, *processes: DeviceProcess) -> FakeDevice:
        """Let these processes use the device."""
        self._processes = processes
        return self

    def unlist(self, reason: str = Reason.NOT_SUPPORTED, detail: str = "") -> FakeDevice:
        """Let the processes that use the device be unknown, with a reason."""
        self._processes = Unavailable(reason, detail)
        return self

    def lose(self) -> FakeDevice:
        """Let it fall off the bus, until ``fail(None)``."""
        return self.fail(SourceError(Reason.DEVICE_LOST, "the device has fallen off the bus"))

    def read(self, progress: list[Any]) -> Reading:
        """Read it as scripted."""
        self.reads += 1
        self.play(progress)
        values = {name: value() if callable(value) else value for name, value in self._values.items()}
        return Reading.of(values, dict(self._missing), processes=self._processes)


class FakeBackend:
    """A scripted backend; pass it to ``Sampler(backends=[…])``.

    Args:
        name: Its name; one with the name of a built-in backend owes the same metrics.
        kind: The kind of its devices; None makes it a host, which gives whole keys.
        devices: How many there are.
        vendor: The vendor in their identities.
        interval: Seconds between two readings in the background; 0 to be read when asked.

    Attributes:
        opening: What becomes of its opening.
        opened: How often it was opened.
        closed: How often its driver was closed.
        options: What each reader was told, in order.
        detection: What detection finds.
    """

    def __init__(
        self, name: str = "fake", kind: DeviceKind | None = "gpu", devices: int = 1, vendor: str = "acme", interval: float = 0.0
    ) -> None:
        self.name = name
        self.kind = kind
        self.interval = interval
        self.opening = Script()
        self.opened = 0
        self.closed = 0
        self.options: list[ReadOptions] = []
        self.detection = Detection(True, f"{devices} scripted devices", devices if kind else 0)
        self.metrics: list[Metric] = []
        self._devices = [FakeDevice(_identity(kind or "gpu", vendor, number)) for number in range(devices)]
        self._machine: FakeDevice | None = None
        self._gone = False

    def device(self, number: int) -> FakeDevice:
        """Return the device with the vendor's own number."""
        return self._devices[number]

    @property
    def machine(self) -> FakeDevice:
        """What belongs to no device: give it whole keys, and the driver has one more unit."""
        if self._machine is None:
            self._machine = FakeDevice(_identity(self.kind or "gpu", "", 0))
        return self._machine

    @property
    def machine_wide(self) -> bool:
        """Whether the machine was given anything, or is all there is."""
        return self.kind is None or self._machine is not None

    def reorder(self, *numbers: int) -> None:
        """Let the driver list its devices in another order, or fewer of them, when it is opened next."""
        self._devices = [self._devices[number] for number in numbers]

    def go_away(self) -> None:
        """Unload the driver: readings and openings fail until ``come_back()``."""
        self._gone = True

    def come_back(self) -> None:
        """Load the driver again."""
        self._gone = False

    def detect(self) -> Detection:
        """Give the scripted detection."""
        return self.detection

    def open(self) -> FakeDriver:
        """Open as scripted."""
        self.opened += 1
        self.opening.play([])
        self.check()
        return FakeDriver(self)

    def coverage(self) -> Coverage:
        """Give what a built-in backend of this name gives, and the rows in ``metrics``."""
        parts = {part: dict(names) for part, names in declared(self.name)._asdict().items()}
        for row in self.metrics:
            part = "processes" if row.of_process else "optional" if row.templated else "devices" if row.device_part else "machine"
            parts[part].update(dict.fromkeys(row.names, "scripted"))
        return Coverage(**parts)

    def own_metrics(self) -> Iterable[Metric]:
        """Give the rows in ``metrics``."""
        return self.metrics

    def check(self) -> None:
        """Raise what a driver that is not loaded raises, while the driver is unloaded."""
        if self._gone:
            raise DriverGoneError(
                Reason.DRIVER_UNAVAILABLE, "the scripted driver is not loaded", backend=self.name, advice="call come_back()"
            )

    def all_devices(self) -> list[FakeDevice]:
        """Return what can be read, in the driver's order: the devices, then the machine if it was given anything."""
        return list(self._devices) if self._machine is None else [*self._devices, self._machine]


class FakeDriver:
    """An open scripted backend, which notes what its readers are told and is the reader of each."""

    source = "script"

    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend
        self._listed = backend.all_devices()
        self.machine_wide = backend.machine_wide

    @property
    def devices(self) -> list[DeviceIdentity]:
        """What the script lists; none for a host."""
        count = len(self._listed) - self.machine_wide
        return [device.identity for device in self._listed[:count]]

    def reader(self, options: ReadOptions) -> FakeDriver:
        """Note what the reader is told."""
        self._backend.options.append(options)
        return self

    def read(self, unit: int, progress: list[Any]) -> Reading:
        """Read one device as scripted."""
        self._backend.check()
        return self._listed[unit].read(progress)

    def close(self) -> None:
        """Count it."""
        self._backend.closed += 1


def _identity(kind: DeviceKind, vendor: str, number: int) -> DeviceIdentity:
    return DeviceIdentity(
        kind=kind,
        vendor=vendor,
        vendor_index=number,
        name=f"Scripted {kind.upper()}",
        uuid=f"{kind.upper()}-5cf1a7ed-0000-4000-8000-{number:012x}",
        pci_bus_id=f"00000000:{0x41 + number:02X}:00.0",
    )
