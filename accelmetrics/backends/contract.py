"""The contract between a source of numbers and the sampler.

Three objects, from cheap to busy::

    Backend ──detect()──▶ Detection        is it here? no driver is touched; under 5 ms
       │
       └──open()──▶ Driver                 may be slow, may fail; owns the library, the handles and what is fixed
                      │
                      └──reader(options)──▶ Reader     one consumer's view; owns what that consumer's rates are taken from
                                              │
                                              └──read(unit, progress)──▶ Reading     plain values, reasons, no key numbers

A *unit* is what can be read on its own, so that one hung unit costs only itself: a device, or the whole host. Units are
numbered from 0 as ``Driver.devices`` lists them; a driver that is ``machine_wide`` has one more after them, for what belongs
to no device (all there is of the host).

Who calls what, and from where: all of it on a *worker*, a daemon thread that the sampler may abandon in the middle of a call
that does not return; only ``Driver.source``, ``Driver.devices`` and a reader's ``kept`` are also looked at on the sampler's own
thread, so they must not call the driver. A unit is never read by two workers at once, and two readers of one driver never read the
same unit at once, so per-unit buffers need no locks; state shared between units does.

A reader reports progress by appending to ``progress`` after every call into the driver (anything may be appended, the list's
length is what is looked at): that tells a driver that is slow everywhere from one call that hangs. The time
up to an entry counts as spent inside the driver, and that decides how many workers share a reading: a reader computes at length after its
last call, not between two.

Errors: ``open`` raises :class:`~accelmetrics.schemas.errors.SourceError` with a reason and advice. ``read`` puts a reason
on each value that it could not get. It raises ``SourceError`` when the whole unit cannot be read, ``PartitionRemovedError`` when the
unit is a partition that was removed on purpose, and ``DriverGoneError`` when the driver must be opened again. Anything else that
escapes is caught by the one guard and becomes ``driver_error``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, Protocol

from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity, DeviceKind, DeviceProcess, DeviceSlot
from accelmetrics.schemas.metric import NOTHING, Metric
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.selection import ALL_METRICS, MetricSelection

Number = int | float
Value = Number | Unavailable
"""What one metric gave: a number, or why there is none."""
MOST_DEVICES = 1024
"""Devices of one driver: where one lists more, the number is not believed."""
NO_REASONS: Mapping[str, Unavailable] = MappingProxyType({})
NOT_NEEDED = Unavailable(Reason.NOT_SUPPORTED, "it is not read, since nothing that is wanted depends on it")
"""Why processes are not known where nothing asks for them."""


class Clock(Protocol):
    """Where intervals and timestamps are taken from. Waiting is always real: only measuring goes through here."""

    def monotonic(self) -> float:
        """Return seconds since some fixed point, never going back."""
        ...

    def time_ns(self) -> int:
        """Return nanoseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's own clocks."""

    monotonic = staticmethod(time.monotonic)
    time_ns = staticmethod(time.time_ns)


SYSTEM_CLOCK: Clock = SystemClock()


class Detection(NamedTuple):
    """What a look at hard facts (PCI ids, device nodes, a library that loads) found.

    Attributes:
        present: Whether opening is worth the attempt.
        evidence: What was found or missed, in words, for ``doctor``.
        devices: How many device numbers to reserve, 0 when that cannot be told without the driver.
        advice: What to do if the user expected this vendor's devices here; empty when nothing is wrong.
    """

    present: bool
    evidence: str
    devices: int = 0
    advice: str = ""


class Coverage(NamedTuple):
    """Which metrics a backend gives, and where each of them is read.

    Each part maps a name to words for people (``nvmlDeviceGetPowerUsage``, ``hl-smi "power.draw"``), which the documentation and
    ``accelmetrics metrics`` show. Every spelling that the backend emits is listed, aliases too.

    Attributes:
        devices: Names that each device owes at every reading: a value, or a reason for its absence.
        partitions: The same of each partition of a device.
        machine: Whole keys that the machine-wide unit owes at every reading.
        processes: Names below ``{kind}.process.{i}``, given while the watched process uses the device.
        optional: Names or whole keys that exist only while what they are about does: ``nvlink.{link}.state``, ``disk.{path}.usageGB``.
    """

    devices: Mapping[str, str] = NOTHING
    partitions: Mapping[str, str] = NOTHING
    machine: Mapping[str, str] = NOTHING
    processes: Mapping[str, str] = NOTHING
    optional: Mapping[str, str] = NOTHING


class ReadOptions(NamedTuple):
    """What one consumer wants of every source. Hashable: equal options may share a reader.

    Attributes:
        pid: The watched process.
        children: Whether its descendants are watched with it.
        disk_paths: Mount points whose usage is reported.
        watched: Whether the user named the process. If not, it is the one that samples, and a source that can tell the devices
            of a process from others reports all of them.
        metrics: The metrics that are wanted. A reader may leave out calls that give none of them, and lists of processes where neither a
            metric of the watched process is wanted nor ``metrics.processes`` asks for them (``NOT_NEEDED`` is the reason then); it may as
            well ignore this, since what is not wanted is dropped anyway. It knows names and no numbers of devices:
            ``metrics.wants_some("gpu.{i}.powerWatts")``.
    """

    pid: int
    children: bool = False
    disk_paths: tuple[str, ...] = ("/",)
    watched: bool = False
    metrics: MetricSelection = ALL_METRICS


class Block:
    """Values that are read together: names and values in the same order.

    The same ``names`` tuple (the same object) at every reading, and the same block object while nothing in it was read
    anew, let the sampler reuse what it built for the last one. Both are optimisations, not duties.

    Attributes:
        names: Metric names as the catalogue's rows give them (``powerWatts``); whole keys from a machine-wide unit.
        values: Finite ints and floats, one per name.
        process: Whether the names belong below ``{kind}.process.{i}.`` rather than ``{kind}.{i}.``.
    """

    __slots__ = ("names", "process", "values")

    def __init__(self, names: tuple[str, ...], values: Sequence[Number], process: bool = False) -> None:
        self.names = names
        self.values = values
        self.process = process


Processes = tuple[DeviceProcess, ...] | Unavailable | None
"""The processes that use a device, or why they are not known; None where the source lists none of any device."""


class Reading:
    """What one read of one unit gave.

    Attributes:
        blocks: The values.
        unavailable: By name, why a value is missing. Return the same mapping object while nothing in it changed.
        processes: The processes that use the device, or why they are not known; None where the source lists none of any device.
        read_at: When the source itself took the numbers, on the monotonic clock; None for "now".
    """

    __slots__ = ("blocks", "processes", "read_at", "unavailable")

    def __init__(
        self,
        blocks: Sequence[Block] = (),
        unavailable: Mapping[str, Unavailable] = NO_REASONS,
        processes: Processes = None,
        read_at: float | None = None,
    ) -> None:
        self.blocks = blocks
        self.unavailable = unavailable
        self.processes = processes
        self.read_at = read_at

    @classmethod
    def of(cls, metrics: Mapping[str, Number], unavailable: Mapping[str, Unavailable] = NO_REASONS, **rest: Any) -> Reading:
        """Build a reading from one plain dict: the form to start with when writing a backend."""
        return cls((Block(tuple(metrics), tuple(metrics.values())),), unavailable, **rest)


class Said(NamedTuple):
    """What a reference says of one metric.

    Attributes:
        value: The number, in the metric's unit.
        step: What the reference rounds away.
        over: Empty for a value of now. Over a span of time are compared a ``counter`` that began elsewhere, or whose rate per second
            is the metric; and the ``mean`` since the last reading.
        kept: For how many seconds the backend serves a value that it has read.
        age: How many seconds ago the reference took it.
    """

    value: float
    step: float = 0.0
    over: Literal["", "counter", "mean"] = ""
    kept: float = 1.0
    age: float = 0.0


class Reference(Protocol):
    """A second way to a backend's numbers that shares no code with the first: ``accelmetrics verify`` holds one against the other."""

    @property
    def name(self) -> str:
        """What is asked: ``nvidia-smi``."""
        ...

    def read(self, slots: Sequence[DeviceSlot]) -> Mapping[str, Said | str]:
        """Ask for everything, on a worker thread that is abandoned when this does not return.

        Args:
            slots: The backend's devices, for their keys and UUIDs.

        Returns:
            By whole key (``gpu.0.powerWatts``), what it says, or in words why it says nothing; under ``NAME.devices``, with the
            backend's name, how many devices there are.

        Raises:
            SourceError: It cannot be asked.
        """
        ...

    def close(self) -> None:
        """Give everything back."""
        ...


class Reader(Protocol):
    """One consumer's view of an open driver.

    One of a driver with a single unit, whose values are kept for a while, may have a method ``kept(unit)``: what ``read`` would give now,
    while that is what it gave last, else None. It is called by the thread that samples, so it must not call into the driver, nor look at
    a file.

    One that counts what the driver reports by itself may have a method ``events(unit)``, called in the same way: the counts by name, which
    are shown of a device that is lost, too. All its other values have the reason for which it could not be read.
    """

    def read(self, unit: int, progress: list[Any]) -> Reading:
        """Read one unit now. See the module's docstring for progress and errors."""
        ...


class Driver(Protocol):
    """An open source.

    Where a backend has several sources, of which not all are read in the same way, its drivers have an attribute ``interval``
    of their own, which takes the place of the backend's while they are open.

    One whose source may list some devices and not be understood in others may have an attribute ``incomplete``: why there may be more
    devices than are listed (an :class:`~accelmetrics.schemas.errors.Unavailable`), else None.

    One that can tell of links between devices, or of the clocks that they can be set to, may have a method ``details(unit, progress)``,
    which returns :class:`~accelmetrics.schemas.topology.Details`. It is called on request alone, as ``Reader.read`` is and with its
    errors, never while the unit is read; the answer is kept while the driver is open.
    """

    @property
    def source(self) -> str:
        """What is read, in one word, for ``doctor`` and ``backends[].source``: ``nvml``, ``rocm-smi``, ``proc``."""
        ...

    @property
    def machine_wide(self) -> bool:
        """Whether there is one more unit after the devices, whose names are whole keys (``cpu``, ``trn.host_memory_usage``)."""
        ...

    @property
    def devices(self) -> Sequence[DeviceIdentity]:
        """The devices in the vendor's order; empty for the host. A device that failed at enumeration keeps its place.

        What is known of a device may change while the driver is open, and devices that turn up (a new partition) may be added
        at the end, unless the driver is ``machine_wide``; a unit never becomes another device, and one that is gone says so
        when it is read. A partition that a driver no longer lists when it is opened again, though it lists the whole device, was
        removed on purpose. The same object while nothing changed. Must not call into the driver: it is asked at every reading.
        """
        ...

    def reader(self, options: ReadOptions) -> Reader:
        """Make a new consumer's view. Cheap: it must not call into the driver."""
        ...

    def close(self) -> None:
        """Give everything back. Not called at interpreter exit, nor while a call into the driver is stuck."""
        ...


class Backend(Protocol):
    """A source of numbers that may or may not be on this machine. The first three may be plain class attributes.

    One that can read the same devices in several ways may have a method ``pinned(source)`` and an attribute ``pin``: the same
    backend with that one source alone, the same object for the same name, and the name; that object must pickle. Its attribute ``sources``
    lists the names.

    One whose numbers can be had in a second way may have a method ``references(options)``, which returns a :class:`Reference` for each.
    """

    @property
    def name(self) -> str:
        """The name users select it by."""
        ...

    @property
    def kind(self) -> DeviceKind | None:
        """The first word of its devices' keys; None for the host."""
        ...

    @property
    def interval(self) -> float:
        """0 for a source that is read when asked.

        Otherwise it is read in the background, at most every so many seconds, and its latest reading is served with its
        age (a command that takes seconds, a child that prints at its own pace).
        """
        ...

    def detect(self) -> Detection:
        """Look for the vendor's hardware without touching a driver or starting a process. Must not raise."""
        ...

    def open(self) -> Driver:
        """Open the source, or raise ``SourceError`` saying why not and what to do about it."""
        ...

    def coverage(self) -> Coverage:
        """Return which metrics it gives. Cheap, without touching a driver, and the same at every call."""
        ...

    def own_metrics(self) -> Iterable[Metric]:
        """List catalogue rows that only this backend knows: empty for built-in ones, whose rows stand in the catalogue."""
        ...
