"""A backend for tests. A test sets the values and faults of its devices, also while a sampler reads them."""

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
    """A clock that advances only by ``advance()`` and by a monitor's waits, so that a monitor takes its readings without pauses."""

    def __init__(self, start: float = 1000.0) -> None:
        self._now = start

    def advance(self, seconds: float) -> None:
        """Advance the clock by seconds."""
        self._now += seconds

    def wait(self, woken: Flag, seconds: float) -> None:
        """Advance the clock by seconds instead of waiting, unless the event is set."""
        if not woken.is_set():
            self.advance(max(0.0, seconds))

    def monotonic(self) -> float:
        """Return the clock's seconds."""
        return self._now

    def time_ns(self) -> int:
        """Return nanoseconds since 1970: the same clock, started on 2026-01-01."""
        return 1_767_225_600_000_000_000 + int(self._now * 1e9)


class Script:
    """The scripted outcome of a call: its duration, its error, or that it hangs."""

    def __init__(self) -> None:
        self._error: BaseException | None = None
        self._delay, self._steps = 0.0, 1
        self._free = threading.Event()
        self._free.set()

    def fail(self: S, error: BaseException | None) -> S:
        """Make every call raise an error, until ``fail(None)``."""
        self._error = error
        return self

    def slow(self: S, seconds: float, steps: int = 1) -> S:
        """Make every call consist of ``steps`` driver calls of ``seconds`` each."""
        self._delay, self._steps = seconds, steps
        return self

    def hang(self: S) -> S:
        """Make the next call hang until ``release()``."""
        self._free.clear()
        return self

    def release(self: S) -> S:
        """Make a hanging call return."""
        self._free.set()
        return self

    def play(self, progress: list[Any]) -> None:
        """Act as scripted. Append to ``progress`` after each step."""
        for _ in range(self._steps):
            if self._delay:
                time.sleep(self._delay)
            self._free.wait()
            progress.append(None)
        if self._error is not None:
            raise self._error


class FakeDevice(Script):
    """A scripted device.

    Attributes:
        identity: Its identity. Replace it to simulate a change.
        reads: Number of readings.
    """

    def __init__(self, identity: DeviceIdentity) -> None:
        super().__init__()
        self.identity = identity
        self.reads = 0
        self._values: dict[str, ScriptedValue] = {}
        self._missing: dict[str, Unavailable] = {}
        self._processes: Processes = None

    def set(self, **values: ScriptedValue) -> FakeDevice:
        """Set the values of metrics: numbers, or functions that are called at every reading."""
        self._values.update(values)
        for name in values:
            self._missing.pop(name, None)
        return self

    def miss(self, name: str, reason: str = Reason.NOT_SUPPORTED, detail: str = "") -> FakeDevice:
        """Make a metric missing, with a reason."""
        self._values.pop(name, None)
        self._missing[name] = Unavailable(reason, detail)
        return self

    def run(self, *processes: DeviceProcess) -> FakeDevice:
        """Set the processes that use the device."""
        self._processes = processes
        return self

    def unlist(self, reason: str = Reason.NOT_SUPPORTED, detail: str = "") -> FakeDevice:
        """Make the processes unknown, with a reason."""
        self._processes = Unavailable(reason, detail)
        return self

    def lose(self) -> FakeDevice:
        """Make every call fail as for a device that fell off the bus, until ``fail(None)``."""
        return self.fail(SourceError(Reason.DEVICE_LOST, "the device has fallen off the bus"))

    def read(self, progress: list[Any]) -> Reading:
        """Return the scripted reading, or raise the scripted error."""
        self.reads += 1
        self.play(progress)
        values = {name: value() if callable(value) else value for name, value in self._values.items()}
        return Reading.of(values, dict(self._missing), processes=self._processes)


class FakeBackend:
    """A scripted backend; pass it to ``Sampler(backends=[…])``.

    Args:
        name: Its name. With the name of a built-in backend it has the same coverage.
        kind: The kind of its devices; None makes it a host, whose names are whole keys.
        devices: Number of devices.
        vendor: The vendor in their identities.
        interval: Seconds between two readings in the background; 0 to read on request.

    Attributes:
        opening: The scripted outcome of opening it.
        opened: Number of times it was opened.
        closed: Number of times its driver was closed.
        options: The options of each reader, in order.
        detection: The result of ``detect()``.
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
        """The machine-wide unit, for values with whole keys. The first use adds it to the driver."""
        if self._machine is None:
            self._machine = FakeDevice(_identity(self.kind or "gpu", "", 0))
        return self._machine

    @property
    def machine_wide(self) -> bool:
        """Whether there is a machine-wide unit."""
        return self.kind is None or self._machine is not None

    def reorder(self, *numbers: int) -> None:
        """Change the order of the devices, or list fewer of them, from the next opening on."""
        self._devices = [self._devices[number] for number in numbers]

    def go_away(self) -> None:
        """Unload the driver: readings and openings fail until ``come_back()``."""
        self._gone = True

    def come_back(self) -> None:
        """Load the driver again."""
        self._gone = False

    def detect(self) -> Detection:
        """Return ``detection``."""
        return self.detection

    def open(self) -> FakeDriver:
        """Return a driver, or act as ``opening`` says."""
        self.opened += 1
        self.opening.play([])
        self.check()
        return FakeDriver(self)

    def coverage(self) -> Coverage:
        """Return the coverage of the built-in backend of this name, with the rows in ``metrics`` added."""
        parts = {part: dict(names) for part, names in declared(self.name)._asdict().items()}
        for row in self.metrics:
            part = "processes" if row.of_process else "optional" if row.templated else "devices" if row.device_part else "machine"
            parts[part].update(dict.fromkeys(row.names, "scripted"))
        return Coverage(**parts)

    def own_metrics(self) -> Iterable[Metric]:
        """Return the rows in ``metrics``."""
        return self.metrics

    def check(self) -> None:
        """Raise :class:`DriverGoneError` while the driver is unloaded."""
        if self._gone:
            raise DriverGoneError(
                Reason.DRIVER_UNAVAILABLE, "the scripted driver is not loaded", backend=self.name, advice="call come_back()"
            )

    def all_devices(self) -> list[FakeDevice]:
        """Return the devices in the driver's order, followed by the machine-wide unit if there is one."""
        return list(self._devices) if self._machine is None else [*self._devices, self._machine]


class FakeDriver:
    """An open scripted backend. It is also the reader of each consumer."""

    source = "script"

    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend
        self._listed = backend.all_devices()
        self.machine_wide = backend.machine_wide

    @property
    def devices(self) -> list[DeviceIdentity]:
        """Identities of the listed devices; empty for a host."""
        count = len(self._listed) - self.machine_wide
        return [device.identity for device in self._listed[:count]]

    def reader(self, options: ReadOptions) -> FakeDriver:
        """Record the options of a consumer in ``FakeBackend.options``, and return this driver as its reader."""
        self._backend.options.append(options)
        return self

    def read(self, unit: int, progress: list[Any]) -> Reading:
        """Return the scripted reading of a unit."""
        self._backend.check()
        return self._listed[unit].read(progress)

    def close(self) -> None:
        """Count the call in ``FakeBackend.closed``."""
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
