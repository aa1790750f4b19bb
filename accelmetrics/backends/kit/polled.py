"""Backends whose source is asked for all of its devices at once: a command, a library, a stream, a directory.

::

    backend = PolledBackend(
        "rebellions", kind="npu", source="rbln-smi", connect=COMMAND.poll(parse), fields=FIELDS,
        identity={"vendor_index": "npu", "uuid": "uuid"}, interval=2.0,
    )

The vendor's part is ``connect``: it opens the source and returns what asks it once, and that yields a :class:`DeviceSample` a device.
Everything else is here. One poll, and its failure too, serves all devices and all samplers. Devices are recognised by UUID, PCI
address or number: one that turns up is added, one that is gone is lost. A backend may have several sources, each with its own fields
and pace: a metric is taken from the first that has it, and a source that fails costs only its fields.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock
from accelmetrics.backends.contract import NO_REASONS, Block, Coverage, Detection, Number, Reading, ReadOptions
from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.backends.kit.fields import Counters, Printed, Record, Row, Table, Value, flat, text, whole
from accelmetrics.backends.kit.processes import ProcessTree, process_values
from accelmetrics.backends.visible import declare_list
from accelmetrics.schemas.errors import DriverGoneError, SourceError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceKind, DeviceProcess
from accelmetrics.schemas.metric import NOTHING, Metric
from accelmetrics.schemas.reasons import Reason, Unavailable

PATIENCE = 3
"""Failed polls in a row after which the source is opened again."""
RETRY = 30.0
"""Seconds between two attempts to open one source of several again."""
AT_ONCE = 0.1
"""Seconds for which a poll of a source that is read when asked is served to devices and samplers that have not had it."""
MACHINE = -1

Identity = Mapping[str, str | Sequence[str]]
"""By attribute of :class:`~accelmetrics.schemas.identity.DeviceIdentity`, where it stands in the record."""


class DeviceSample(NamedTuple):
    """One device as a poll found it.

    Attributes:
        record: What the source says of it: a document's object, or a record that reads when it is asked.
        processes: The processes that use it; None where the source cannot say.
        read_at: When the source took the numbers, on the monotonic clock; None for when the poll ended.
        begin: Called with the list that reports progress before a record that reads is looked up; raises ``SourceError`` for a device
            that cannot be read.
        machine: Whether this is no device but what belongs to none: the record of the backend's ``machine`` rows.
    """

    record: Printed
    processes: tuple[DeviceProcess, ...] | None = None
    read_at: float | None = None
    begin: Callable[[list[Any]], None] | None = None
    machine: bool = False


PollOnce = Callable[[], Iterable[DeviceSample]]
"""Asks the source once. Raises ``SourceError`` for a poll that failed; after some devices, for the output that was cut there. May have
a method ``close``."""
Connect = Callable[[], PollOnce]
"""Opens the source, or raises ``SourceError``."""


class Source(NamedTuple):
    """One source of a polled backend.

    Attributes:
        name: What is read, in one word: ``hl-smi``.
        connect: Opens it.
        fields: What is read of each device.
        interval: Seconds between two polls at least; 0 for one that is polled at every reading and says which devices there are. One with
            a pace of its own only adds to them.
        machine: What is read of the sample that is the machine's; whole keys.
        identity: Where a device's identity stands in this source's records.
    """

    name: str
    connect: Connect
    fields: Sequence[Row]
    interval: float = 0.0
    machine: Sequence[Row] = ()
    identity: Identity = NOTHING


class PolledBackend:
    """A backend of the kit.

    Args:
        name: The name users select it by.
        kind: The first word of its devices' keys.
        source: What is read, in one word.
        connect: Opens it.
        fields: What is read of each device.
        identity: Where a device's identity stands in its record.
        interval: 0 for a source that is read when asked; else seconds between two polls in the background.
        machine: Rows of whole keys, for a poll with a sample of the machine.
        also: Other sources, each with fields of its own.
        vendor: The vendor in one word; the name when left out.
        exclusive: Whether a device is one program's at a time: where a process is watched, devices that it does not use are then
            ``not_in_use``. If not, what its processes use is given as ``{kind}.process.{i}``.
        processes: Where its samples' processes are read, in words; empty where there are none.
        advice: What to do where no device is listed.
        detect: Looks for the hardware; built-in backends are found by their registration.
        own_metrics: Catalogue rows for metrics that only this vendor has.
        visible: The variable that lists the numbers of the devices a program sees, for a backend of another package.
        clock: Where ages and rates are taken from.
    """

    def __init__(  # noqa: PLR0913 - a vendor's file is this call
        self,
        name: str,
        *,
        kind: DeviceKind,
        source: str,
        connect: Connect,
        fields: Sequence[Row],
        identity: Identity = NOTHING,
        interval: float = 0.0,
        machine: Sequence[Row] = (),
        also: Sequence[Source] = (),
        vendor: str = "",
        exclusive: bool = False,
        processes: str = "",
        advice: str = "",
        detect: Callable[[], Detection] | None = None,
        own_metrics: Sequence[Metric] = (),
        visible: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.name = name
        self.kind: DeviceKind | None = kind
        self.interval = interval
        self.vendor = vendor or name
        if visible:
            declare_list(self.vendor, visible)
        self.sources = (Source(source, connect, fields, 0.0, machine, identity), *also)
        self.exclusive = exclusive
        self.processes = processes
        self.advice = advice
        self.clock = clock
        self._detect = detect
        self._own = tuple(own_metrics)
        self._tables: tuple[tuple[Table, Table], ...] = ()

    @property
    def tables(self) -> tuple[tuple[Table, Table], ...]:
        """Of each source the rows of devices and those of the machine, bound to the catalogue."""
        if not self._tables:
            kind = str(self.kind)
            made = [
                (Table(each.name, kind, each.fields, self._own), Table(each.name, "", each.machine, self._own)) for each in self.sources
            ]
            self._tables = tuple(made)
        return self._tables

    def detect(self) -> Detection:
        return self._detect() if self._detect is not None else Detection(True, "found out by opening")

    def open(self) -> PolledDriver:
        return PolledDriver(self)

    def coverage(self) -> Coverage:
        return Coverage(
            {name: words for table, _ in reversed(self.tables) for name, words in table.words.items()},
            machine={name: words for _, table in reversed(self.tables) for name, words in table.words.items()},
            processes=dict.fromkeys(("memoryAllocated", "memoryAllocatedBytes"), self.processes)
            if self.processes and not self.exclusive
            else NOTHING,
        )

    def own_metrics(self) -> Iterable[Metric]:
        return self._own


class PolledDriver:
    """The open sources. Any thread may read.

    Raises:
        SourceError: No source opens, or none lists a device.
    """

    def __init__(self, backend: PolledBackend) -> None:
        self.backend = backend
        self.machine_wide = any(source.machine for source in backend.sources)
        self._lock = threading.Lock()
        self._devices: tuple[DeviceIdentity, ...] = ()
        self._listed = False
        self.sources = [_OpenSource(self, source, *tables) for source, tables in zip(backend.sources, backend.tables, strict=True)]
        self._listed = True
        if not self._devices:
            self.close()
            kind = str(backend.kind).upper()
            failure = next((source.latest.failure for source in self.sources if source.latest.failure is not None), None)
            raise failure or SourceError(
                Reason.DRIVER_UNAVAILABLE, f"{self.sources[0].name} lists no {kind}", backend=backend.name, advice=backend.advice
            )

    @property
    def source(self) -> str:
        """The sources whose last poll did not fail: ``macmon+ioreg``."""
        return "+".join(source.name for source in self.sources if source.latest.failure is None) or self.sources[0].name

    @property
    def devices(self) -> Sequence[DeviceIdentity]:
        return self._devices

    def reader(self, options: ReadOptions) -> PolledReader:
        return PolledReader(self, options)

    def close(self) -> None:
        for source in self.sources:
            source.close()

    def place(self, source: _OpenSource, samples: Sequence[DeviceSample]) -> dict[int, DeviceSample]:
        """Say which unit each sample is; devices that are new are added, if the source may say which there are.

        Raises:
            SourceError: Two samples are one device.
            DriverGoneError: One is new, and the machine's unit has the number after the known ones.
        """
        seen = [(source.identify(position, sample), sample) for position, sample in enumerate(samples)]
        if not self._listed:
            seen.sort(key=lambda each: each[0].vendor_index)
        found: dict[int, DeviceSample] = {}
        with self._lock:
            devices = list(self._devices)
            for identity, sample in seen:
                unit = next((number for number, known in enumerate(devices) if is_same(known, identity)), len(devices))
                unit = MACHINE if sample.machine else unit
                if unit in found:
                    raise SourceError(Reason.PARSE_ERROR, f"{source.name} lists two devices as number {identity.vendor_index}")
                if unit == len(devices):
                    if source.spec.interval:
                        continue
                    if self._listed and self.machine_wide:
                        raise DriverGoneError(Reason.DRIVER_UNAVAILABLE, f"{source.name} lists a new device: all are to be listed again")
                    devices.append(identity)
                elif unit != MACHINE:
                    told = {part: value for part, value in identity._asdict().items() if value not in ("", None, False)}
                    devices[unit] = devices[unit]._replace(**told)
                found[unit] = sample
            if tuple(devices) != self._devices:
                self._devices = tuple(devices)
        return found


def is_same(known: DeviceIdentity, seen: DeviceIdentity) -> bool:
    """Whether two identities, of which parts may be missing, are one device's."""
    if known.uuid and seen.uuid:
        return known.uuid == seen.uuid
    if known.pci_bus_id and seen.pci_bus_id:
        return pci_address(known.pci_bus_id) == pci_address(seen.pci_bus_id)
    return known.vendor_index == seen.vendor_index


def pci_address(printed: str) -> str:
    """A PCI address in one form: domains are printed with four digits, eight or none, and in either case."""
    *domain, bus, function = printed.strip().lower().rsplit(":", 2)
    return f"{''.join(domain).zfill(8)}:{bus}:{function}"


class PolledReader:
    """One consumer's view: which polls it was given last for each unit, and what its rates are taken from."""

    def __init__(self, driver: PolledDriver, options: ReadOptions) -> None:
        self._driver = driver
        self._options = options
        self._tree = ProcessTree(options.pid)
        self._units: dict[int, _Unit] = {}

    def read(self, unit: int, progress: list[Any]) -> Reading:
        driver = self._driver
        state = self._units.get(unit)
        if state is None:
            state = self._units[unit] = _Unit(len(driver.sources))
        polls = []
        for source, had in zip(driver.sources, state.had, strict=True):
            polls.append(source.poll(had))
            progress.append(source.name)
        had_now = [poll.number for poll in polls]
        if had_now == state.had and state.reading is not None:
            return state.reading
        state.had = had_now
        place = MACHINE if driver.machine_wide and unit == len(driver.devices) else unit
        samples = [poll.units.get(place) for poll in polls]
        self._require(place, polls, samples)
        found, read_at = self._values(place, state, polls, samples, progress)
        processes = next((sample.processes for sample in samples if sample is not None and sample.processes is not None), None)
        reading = self._reading(state, found, processes, read_at)
        live = any(sample is not None and sample.begin is not None for sample in samples)
        state.reading = None if live else reading
        return reading

    def _require(self, unit: int, polls: Sequence[_Poll], samples: Sequence[DeviceSample | None]) -> None:
        """Make sure that a source which says what devices there are has this one.

        Raises:
            SourceError: None has.
            DriverGoneError: None has, and the sources are to be opened again.
        """
        driver = self._driver
        listing = [number for number, source in enumerate(driver.sources) if not source.spec.interval]
        if any(samples[number] is not None for number in listing):
            return
        failure = next((polls[number].failure for number in listing if polls[number].failure is not None), None)
        if failure is None:
            name = f"{str(driver.backend.kind).upper()} {driver.devices[unit].vendor_index}" if unit != MACHINE else "the machine"
            raise SourceError(Reason.DEVICE_LOST, f"{driver.source} no longer lists {name}", backend=driver.backend.name)
        gone = isinstance(failure, DriverGoneError) or driver.sources[0].failures >= PATIENCE
        # Made anew for each reader: raised in two threads, one error would get both tracebacks.
        raise (DriverGoneError if gone else SourceError)(
            failure.reason, failure.message, backend=driver.backend.name, advice=failure.advice
        )

    def _values(
        self, unit: int, state: _Unit, polls: Sequence[_Poll], samples: Sequence[DeviceSample | None], progress: list[Any]
    ) -> tuple[dict[str, Value], float]:
        """Every metric of a unit by all of its names, each from the first source that has it; and when they were read."""
        clock, sources = self._driver.backend.clock, self._driver.sources
        found: dict[str, Value] = {}
        read_at = math.inf
        tables = [source.machine if unit == MACHINE else source.table for source in sources]
        for source, table, poll, sample, counters in zip(sources, tables, polls, samples, state.counters, strict=True):
            if sample is None:
                absent = Unavailable(Reason.NOT_SUPPORTED, f"{source.name} does not list this device")
                values = table.missing(poll.failure.unavailable if poll.failure is not None else absent)
            else:
                at = poll.finished if sample.read_at is None else sample.read_at
                if sample.begin is not None:
                    sample.begin(progress)
                    at = clock.monotonic()
                values = table.read(sample.record, counters, at, idle=sample.processes == ())
                read_at = read_at if source.spec.interval else min(read_at, at)
            for metric, value in values.items():
                if metric not in found or (isinstance(found[metric], Unavailable) and not isinstance(value, Unavailable)):
                    found[metric] = value
        for table in tables:
            table.derive(found)
        return {name: found[metric] for table in tables for metric in found for name in table.names(metric)}, read_at

    def _reading(self, state: _Unit, found: dict[str, Value], processes: tuple[DeviceProcess, ...] | None, read_at: float) -> Reading:
        backend, options = self._driver.backend, self._options
        now = backend.clock.monotonic()
        family = options.children or not backend.exclusive
        owned = [each for each in processes or () if each.pid == options.pid or (family and self._tree.owns(each.pid, now))]
        if not backend.exclusive:
            return state.form.reading(found, processes, read_at, process_values(str(backend.kind), owned, found) if owned else None)
        if options.watched and processes is not None and not owned:
            why = f"the watched process {options.pid} does not use this {str(backend.kind).upper()}"
            found = dict.fromkeys(found, Unavailable(Reason.NOT_IN_USE, why))
        return state.form.reading(found, processes, read_at)


class _Unit:
    """What one consumer keeps of one unit."""

    def __init__(self, sources: int) -> None:
        self.had = [0] * sources
        self.counters: list[Counters] = [{} for _ in range(sources)]
        self.form = Form()
        self.reading: Reading | None = None


class _Poll(NamedTuple):
    """What asking a source once came to.

    Attributes:
        number: Counted from 1.
        finished: When it ended, on the monotonic clock.
        units: The samples, by unit.
        failure: Why there are none, or why there are no more.
    """

    number: int
    finished: float
    units: Mapping[int, DeviceSample]
    failure: SourceError | None


class _OpenSource:
    """One source, opened when it can be, and its latest poll."""

    def __init__(self, driver: PolledDriver, spec: Source, table: Table, machine: Table) -> None:
        self.spec = spec
        self.name = spec.name
        self.table = table
        self.machine = machine
        self.failures = 0
        self._driver = driver
        self._clock = driver.backend.clock
        self._ask: PollOnce | None = None
        self._retry_at = -math.inf
        self._closed_for = SourceError(Reason.DRIVER_UNAVAILABLE, f"{spec.name} is not open")
        interval = driver.backend.interval
        self._polls = PollCache(self._make(1), self._clock, spec.interval or (interval / 2 if interval else AT_ONCE))

    @property
    def latest(self) -> _Poll:
        """The latest poll."""
        return self._polls.latest

    def poll(self, had: int) -> _Poll:
        """The latest poll while it is fresh; else, or where it was had and the source has no pace of its own, a new one."""
        return self._polls.get(0 if self.spec.interval else had, self._make)

    def identify(self, position: int, sample: DeviceSample) -> DeviceIdentity:
        """A device's identity, as far as its record tells."""
        told: dict[str, Any] = {"vendor_index": position}
        for attribute, where in () if sample.machine else self.spec.identity.items():
            for place in (where,) if isinstance(where, str) else where:
                said = sample.record.get(place)
                value = whole(said) if attribute in ("vendor_index", "numa_node", "cores") else text(said)
                if value not in ("", None):
                    told[attribute] = value
                    break
        memory = None if sample.machine else self.table.value("memoryTotalBytes", sample.record)
        told["memory_total_bytes"] = memory if isinstance(memory, int) else None
        kind: Any = self._driver.backend.kind
        return DeviceIdentity(kind, self._driver.backend.vendor, **told)

    def _make(self, number: int) -> _Poll:
        samples: list[DeviceSample] = []
        failure = _failure(guarded(self._collect, samples))
        placed = guarded(self._driver.place, self, samples)
        failure = _failure(placed) or failure
        self.failures = self.failures + 1 if failure is not None and not placed.value else 0
        if failure is not None and self.failures >= PATIENCE and len(self._driver.backend.sources) > 1:
            self._closed_for = failure
            self.close()
        return _Poll(number, self._clock.monotonic(), placed.value or {}, failure)

    def _collect(self, samples: list[DeviceSample]) -> None:
        if self._ask is None:
            now = self._clock.monotonic()
            if now < self._retry_at:
                raise self._closed_for
            self._retry_at = now + RETRY
            self._ask = self.spec.connect()
        samples.extend(each if isinstance(each.record, Record) else each._replace(record=flat(each.record)) for each in self._ask())

    def close(self) -> None:
        """Give the source back; it is opened again by a later poll."""
        ask, self._ask = self._ask, None
        close = getattr(ask, "close", None)
        if close is not None:
            close()


def _failure(outcome: Outcome[Any]) -> SourceError | None:
    if outcome.failure is None:
        return None
    return outcome.error if isinstance(outcome.error, SourceError) else SourceError(outcome.failure.reason, outcome.failure.detail)


class Poll(Protocol):
    """What asking a source once came to."""

    @property
    def number(self) -> int:
        """Counted from 1."""
        ...

    @property
    def finished(self) -> float:
        """When the answer was there, in seconds on the monotonic clock."""
        ...


R = TypeVar("R", bound=Poll)


class PollCache(Generic[R]):
    """The latest round of an open source. Any thread may ask.

    Args:
        first: The one that opening the source came to.
        clock: Where the age of a round is taken from.
        fresh: Seconds for which a round is served to units and consumers that have not had it.
    """

    def __init__(self, first: R, clock: Clock, fresh: float) -> None:
        self._clock = clock
        self._fresh = fresh
        self._lock = threading.Lock()
        self.latest = first

    def get(self, had: int, make: Callable[[int], R]) -> R:
        """The latest round while it is fresh, else a new one.

        Args:
            had: Number of the round that the caller was given last for the unit it reads now, 0 at first.
            make: Makes a round of that number.
        """
        asked = self._clock.monotonic()
        with self._lock:
            if self.latest.number <= had or asked - self.latest.finished >= self._fresh:
                self.latest = make(self.latest.number + 1)
            return self.latest


class Form:
    """One unit's readings: names and reasons that did not change are the same objects, so that the sampler builds nothing anew."""

    def __init__(self) -> None:
        self._names: dict[bool, tuple[str, ...]] = {}
        self._reasons: Mapping[str, Unavailable] = NO_REASONS

    def reading(
        self,
        found: Mapping[str, Value],
        processes: tuple[DeviceProcess, ...] | None = None,
        read_at: float | None = None,
        used: Mapping[str, Number] | None = None,
    ) -> Reading:
        """The reading.

        Args:
            found: By metric, its value or why there is none.
            processes: The processes that use the device; None where that is not known.
            read_at: When the source took the numbers, in seconds on the monotonic clock; None for now.
            used: By metric, what the watched process uses of the device.
        """
        values = {name: value for name, value in found.items() if not isinstance(value, Unavailable)}
        reasons = {name: value for name, value in found.items() if isinstance(value, Unavailable)}
        if reasons != self._reasons:
            self._reasons = reasons
        blocks = [self._block(values, False)] if used is None else [self._block(values, False), self._block(used, True)]
        return Reading(blocks, self._reasons, processes, read_at)

    def _block(self, values: Mapping[str, Number], process: bool) -> Block:
        names = tuple(values)
        if names != self._names.get(process):
            self._names[process] = names
        return Block(self._names[process], tuple(values.values()), process)
