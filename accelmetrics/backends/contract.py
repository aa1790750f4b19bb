"""The contract between a source of numbers and the sampler.

Three objects, from the cheapest to the busiest::

    Backend ──detect()──▶ Detection        is the hardware here? touches no driver; under 5 ms
       │
       └──open()──▶ Driver                 may be slow, may fail; owns the library, the handles and everything that never changes
                      │
                      └──reader(options)──▶ Reader     one consumer's view; owns the last counters, from which its rates are computed
                                              │
                                              └──read(unit, progress)──▶ Reading     plain values and reasons, no device numbers

A *unit* is the smallest part that can be read by itself, so that a unit that hangs delays no other: a device, or the whole host. Units
are numbered from 0 in the order of ``Driver.devices``. A ``machine_wide`` driver has one more unit after them, for metrics that belong
to no device. The host has only this unit.

Threads: all methods are called on a *worker*, a daemon thread that the sampler abandons if a call does not return. Only
``Driver.source``, ``Driver.devices`` and a reader's ``kept`` are also called on the sampler's own thread, so they must not call the
driver. Two workers never read one unit at the same time, also not through two readers of one driver. So buffers of one unit need no
lock; state shared between units needs one.

Progress: a reader appends to ``progress`` after every call into the driver. The appended object is ignored; the sampler looks at the
length of the list, which tells a slow driver from a call that hangs. The time up to an entry counts as time inside the driver,
and decides how many workers share a reading. So long computations belong after the last call, not between two calls.

Errors: ``open`` raises :class:`~accelmetrics.schemas.errors.SourceError` with a reason and advice. ``read`` gives a reason for each
value that is missing. It raises ``SourceError`` if the whole unit cannot be read, ``PartitionRemovedError`` if the unit is a partition
that was removed on purpose, and ``DriverGoneError`` if the driver must be opened again. The guard catches every other exception and
turns it into ``driver_error``.
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
"""Value of one metric: a number, or the reason why there is none."""
MOST_DEVICES = 1024
"""Largest number of devices of one driver. A driver that reports more is not believed."""
TIMES_LIMIT = 10
"""Highest plausible power draw, as a multiple of the power limit. Short peaks above the limit are real."""
# Shared by all readings without missing values, so it must not be changed.
NO_REASONS: Mapping[str, Unavailable] = MappingProxyType({})
NOT_NEEDED = Unavailable(Reason.NOT_SUPPORTED, "it is not read, since nothing that is wanted depends on it")
"""Reason for missing processes if no consumer asks for processes."""


class Clock(Protocol):
    """Clock for intervals and timestamps. Only measurements use it; waiting always uses real time."""

    def monotonic(self) -> float:
        """Return seconds since a fixed point. The value never decreases."""
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
    """Result of a search for hardware by facts: PCI ids, device nodes, a library that can be loaded.

    Attributes:
        present: Whether it is worth trying to open the source.
        evidence: The facts that were found or missed, in words, for ``doctor``.
        devices: How many device numbers to reserve; 0 if only the driver knows.
        advice: What a user does who expects this vendor's devices here; empty if nothing is wrong.
    """

    present: bool
    evidence: str
    devices: int = 0
    advice: str = ""


class Coverage(NamedTuple):
    """Metrics that a backend gives, and where it reads each of them.

    Each part maps a name to words for people (``nvmlDeviceGetPowerUsage``, ``hl-smi "power.draw"``), which the documentation and
    ``accelmetrics metrics`` show. It lists every spelling that the backend emits, aliases too.

    Attributes:
        devices: Names that every reading of a device has: a value, or a reason for its absence.
        partitions: Names that every reading of a partition of a device has.
        machine: Whole keys that every reading of the machine-wide unit has.
        processes: Names below ``{kind}.process.{i}``, present while the watched process uses the device.
        optional: Names or whole keys that exist only while their subject does: ``nvlink.{link}.state``, ``disk.{path}.usageGB``.
    """

    devices: Mapping[str, str] = NOTHING
    partitions: Mapping[str, str] = NOTHING
    machine: Mapping[str, str] = NOTHING
    processes: Mapping[str, str] = NOTHING
    optional: Mapping[str, str] = NOTHING


class ReadOptions(NamedTuple):
    """Options of one consumer, the same for every source. Hashable: consumers with equal options may share a reader.

    Attributes:
        pid: The watched process.
        children: Whether its descendants are watched too.
        disk_paths: Mount points for which disk usage is reported.
        watched: Whether the user named the process. Otherwise it is the sampling process, and a source that can tell the devices of a
            process from other devices reports all devices.
        metrics: The selected metrics. A reader may skip calls that give no selected metric. It may also skip lists of processes (with the
            reason ``NOT_NEEDED``) if neither a metric of the watched process nor ``metrics.processes`` is selected. Skipping is optional:
            metrics that are not selected are dropped later. The selection knows names, no device numbers:
            ``metrics.wants_some("gpu.{i}.powerWatts")``.
    """

    pid: int
    children: bool = False
    disk_paths: tuple[str, ...] = ("/",)
    watched: bool = False
    metrics: MetricSelection = ALL_METRICS


class Block:
    """Values that are read together: names and values in the same order.

    The sampler reuses its work of the last reading if ``names`` is the same tuple object, or if the whole block is the same object because
    none of its values was read again. Both are optional.

    Attributes:
        names: Metric names as in the catalogue (``powerWatts``); whole keys from a machine-wide unit.
        values: Finite ints and floats, one for each name.
        process: Whether the names belong below ``{kind}.process.{i}.`` rather than ``{kind}.{i}.``.
    """

    __slots__ = ("names", "process", "values")

    # A plain class with slots, not a NamedTuple: the sampler compares blocks by identity.
    def __init__(self, names: tuple[str, ...], values: Sequence[Number], process: bool = False) -> None:
        self.names = names
        self.values = values
        self.process = process


Processes = tuple[DeviceProcess, ...] | Unavailable | None
"""Processes that use a device, or the reason why they are unknown; None if the source never lists processes."""


class Reading:
    """Result of reading one unit once.

    Attributes:
        blocks: The values.
        unavailable: Reason for each missing value, by name. Return the same mapping object while nothing in it changes.
        processes: Processes that use the device, or the reason why they are unknown; None if the source never lists processes.
        read_at: When the source took the numbers, on the monotonic clock; None for "now".
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
        """Return a reading with the values of one plain dict. Start with this form when you write a backend."""
        return cls((Block(tuple(metrics), tuple(metrics.values())),), unavailable, **rest)


class ReferenceValue(NamedTuple):
    """Value of one metric according to a reference.

    Attributes:
        value: The number, in the metric's unit.
        step: Resolution of the reference: the step to which it rounds.
        over: Empty for a momentary value. ``counter`` and ``mean`` are compared over a span of time: a counter may start elsewhere, or its
            rate per second may be the metric; a mean covers the time since the last reading.
        kept: For how many seconds the backend serves a value that it has read.
        age: How many seconds ago the reference took the value.
    """

    value: float
    step: float = 0.0
    over: Literal["", "counter", "mean"] = ""
    kept: float = 1.0
    age: float = 0.0


class Reference(Protocol):
    """Second way to a backend's numbers, which shares no code with the first. ``accelmetrics verify`` compares the two."""

    @property
    def name(self) -> str:
        """Name of the tool or library that is asked: ``nvidia-smi``."""
        ...

    def read(self, slots: Sequence[DeviceSlot]) -> Mapping[str, ReferenceValue | str]:
        """Read all values. Called on a worker thread, which is abandoned if the call does not return.

        Args:
            slots: The backend's devices, for their keys and UUIDs.

        Returns:
            For each whole key (``gpu.0.powerWatts``) the value, or in words why there is none. The key ``NAME.devices``, with the backend's
            name, has the number of devices.

        Raises:
            SourceError: The reference cannot be asked.
        """
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class Reader(Protocol):
    """A consumer's view of an open driver.

    Optional method ``kept(unit)``, for a driver with a single unit that serves its values for a while: the reading that ``read`` would
    return now if it is the last one returned, else None. The sampling thread calls it, so it must not call the driver or open a file.

    Optional method ``events(unit)``, for a reader that counts events the driver reports by itself: the counts by name. It is called like
    ``kept``. The counts are shown even while the device is lost; all other values of a lost device have the reason of the failed read.
    """

    def read(self, unit: int, progress: list[Any]) -> Reading:
        """Read one unit now. The module's docstring describes progress and errors."""
        ...


class Driver(Protocol):
    """An open source.

    Optional attribute ``interval``, for a backend with several sources that are read in different ways: it replaces the backend's
    ``interval`` while the driver is open.

    Optional attribute ``incomplete``, for a source that may list some devices and fail on others: the reason why devices may be missing
    from the list (an :class:`~accelmetrics.schemas.errors.Unavailable`), else None.

    Optional method ``details(unit, progress)``, for a driver that knows the links between devices or the clocks that can be set: it returns
    :class:`~accelmetrics.schemas.topology.Details`. It is called only on request, in the same way and with the same errors as
    ``Reader.read``, and never while the unit is read. The sampler keeps the answer while the driver is open.
    """

    @property
    def source(self) -> str:
        """Name of the source in one word, for ``doctor`` and ``backends[].source``: ``nvml``, ``rocm-smi``, ``proc``."""
        ...

    @property
    def machine_wide(self) -> bool:
        """Whether one more unit follows the devices. Its names are whole keys (``cpu``, ``trn.host_memory_usage``)."""
        ...

    @property
    def devices(self) -> Sequence[DeviceIdentity]:
        """The devices in the vendor's order; empty for the host. A device that failed during enumeration keeps its place.

        The same object while nothing changes. The sampler asks at every reading, so this must not call the driver.

        The identity of a device may gain or change fields while the driver is open. New devices (a new partition) are added at the end,
        unless the driver is ``machine_wide``. A unit never becomes another device; a read of a device that is gone fails. If a driver is
        opened again and lists a device but no longer one of its partitions, this partition was removed on purpose.
        """
        ...

    def reader(self, options: ReadOptions) -> Reader:
        """Return a new reader. Cheap: it must not call the driver."""
        ...

    def close(self) -> None:
        """Release all resources. Not called at interpreter exit, nor while a call into the driver hangs."""
        ...


class Backend(Protocol):
    """A source of numbers that may or may not exist on this machine. ``name``, ``kind`` and ``interval`` may be plain class attributes.

    Optional method ``pinned(source)`` and attributes ``pin`` and ``sources``, for a backend that can read the same devices in several ways.
    ``sources`` lists the names of the sources. ``pinned`` returns the same backend with only this source, the same object for the same
    name, and it must pickle. ``pin`` is the name of the pinned source.

    Optional method ``references(options)``: returns a :class:`Reference` for each second way to the numbers.
    """

    @property
    def name(self) -> str:
        """Name by which users select it."""
        ...

    @property
    def kind(self) -> DeviceKind | None:
        """First word of its devices' keys; None for the host."""
        ...

    @property
    def interval(self) -> float:
        """Shortest time in seconds between two readings of the source; 0 for a source that is read on demand.

        A source with an interval is read in the background, and its latest reading is served with its age: a command that takes seconds, or
        a child process that prints at its own pace.
        """
        ...

    def detect(self) -> Detection:
        """Look for the vendor's hardware without touching a driver or starting a process. Must not raise."""
        ...

    def open(self) -> Driver:
        """Open the source.

        Raises:
            SourceError: It cannot be opened; the message says why and what to do.
        """
        ...

    def coverage(self) -> Coverage:
        """Return the metrics that it gives. Cheap: touches no driver, and returns the same at every call."""
        ...

    def own_metrics(self) -> Iterable[Metric]:
        """List catalogue rows that only this backend knows. Empty for a built-in backend, since the catalogue has its rows."""
        ...
