"""Backends whose source is asked for all of its devices at once: a command, a library, a stream, a directory.

::

    backend = PolledBackend(
        "rebellions", kind="npu", source="rbln-smi", connect=COMMAND.poll(parse), fields=FIELDS,
        identity={"vendor_index": "npu", "uuid": "uuid"}, interval=2.0,
    )

The vendor's part is ``connect``: it opens the source and returns what asks it once, and that yields a :class:`DeviceSample` a device.
Everything else is here. One poll, and its failure too, serves all devices and all samplers. Devices are recognised by UUID, PCI
address or number: one that turns up is added, one that is gone is lost. A backend may have several sources, each with its own fields
and pace: a metric is taken from the first that has it, so is each part of an identity, and a source that fails costs only its fields.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, reduce
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.backends.contract import (
    MOST_DEVICES,
    NOT_NEEDED,
    SYSTEM_CLOCK,
    Clock,
    Coverage,
    Detection,
    Processes,
    Reading,
    ReadOptions,
    Value,
)
from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.backends.kit.fields import (
    NOT_READ,
    Chosen,
    Counters,
    DeviceRecord,
    Printed,
    Row,
    Says,
    Table,
    flat,
    joined_words,
    make_reading,
    merge,
    quoted,
    text,
    weightier,
    whole,
)
from accelmetrics.backends.kit.processes import FOUND_HERE, DriverNumbers, ProcessTree, node_pattern, process_values
from accelmetrics.backends.kit.sources import Pinnable
from accelmetrics.backends.kit.system import find_driven, find_pci, let_sleep, link_name
from accelmetrics.backends.visible import declare_list
from accelmetrics.schemas.errors import ADVICE, DriverGoneError, Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity, DeviceKind, pci_address
from accelmetrics.schemas.metric import NOTHING, Metric

PATIENCE = 3
"""Failed polls in a row after which a source is closed, to be opened again."""
RETRY = 30.0
"""Seconds after which a source that is closed is opened again, where others are open."""
AT_ONCE = 0.1
"""Seconds for which a poll of a source that is read when asked is served to devices and samplers that have not had it."""
LISTED = 1.0
"""Seconds for which a poll serves everybody that only lists devices, whose records read when they are asked."""
SELDOM = 9.95
"""Seconds for which limits, sizes and links of a record that reads are kept: a little less than ten, since readings come each second."""
MACHINE = -1
NUMBER = "vendor_index"
NUMBERS = (NUMBER, "numa_node", "cores", "gpu_instance_id", "minor_number", "chassis_slot", "tray_index", "host_id", "module_id")
"""Parts of an identity that are whole numbers."""
ADDRESS = "pci_bus_id"
NAMES = ("uuid", "serial")
"""Parts of an identity that tell one device from all others."""

Identity = Mapping[str, str | Sequence[str]]
"""By attribute of :class:`~accelmetrics.schemas.identity.DeviceIdentity`, where it stands in the record."""


class DeviceSample(NamedTuple):
    """One device as a poll found it.

    Attributes:
        record: What the source says of it: a document's object, or a record that reads when it is asked.
        processes: The processes that use it, or why they are not known; None where the source lists none of any device. Or what finds
            them, which is called with the list that reports progress where a consumer wants to know.
        read_at: When the source took the numbers, on the monotonic clock; None for when the poll ended.
        begin: Called with the list that reports progress before a record that reads is looked up; raises ``SourceError`` for a device
            that cannot be read, or has gone: the source is not polled at each reading.
        machine: Whether this is no device but what belongs to none: the record of the backend's ``machine`` rows.
        scoped: Gives the record for one consumer in the place of ``record``, which then only tells the identity: for values that are
            counted by program. Called with the consumer's options and what says whether a process is one of those it watches.
        whole: The card or board that it is a part of, in any word that all its parts share. What rows with ``of_whole`` read is then
            the first part's alone.
    """

    record: Printed
    processes: Processes | Callable[[list[Any]], Processes] = None
    read_at: float | None = None
    begin: Callable[[list[Any]], None] | None = None
    machine: bool = False
    scoped: Callable[[ReadOptions, Callable[[int], bool]], Printed] | None = None
    whole: str = ""


PollOnce = Callable[[], Iterable[DeviceSample]]
"""Asks the source once. Raises ``SourceError`` for a poll that failed; after some devices, for the output that was cut there. May have
a method ``close``, and a true attribute ``reopens`` where it opens its source again by itself: its failures then do not close it. To
answer with the same tuple again is to say that nothing has changed: what was made of it is then given again."""
Connect = Callable[[], PollOnce]
"""Opens the source, or raises ``SourceError``. A false attribute ``wakes`` says that asking it wakes no device: it is then asked, too,
while one of the backend's devices sleeps."""


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
        instead_of: A source before this one: this one is asked only while that one gives no device.
    """

    name: str
    connect: Connect
    fields: Sequence[Row]
    interval: float = 0.0
    machine: Sequence[Row] = ()
    identity: Identity = NOTHING
    instead_of: str = ""


class PolledBackend(Pinnable):
    """A backend of the kit.

    Args:
        name: The name users select it by.
        kind: The first word of its devices' keys.
        source: What is read, in one word.
        connect: Opens it.
        fields: What is read of each device.
        identity: Where a device's identity stands in its record.
        interval: 0 for a source that is read when asked; else seconds between two polls in the background.
        lasts: Seconds for which the values of devices that read when asked stand, from a consumer's second reading on, which has rates.
        machine: Rows of whole keys, for a poll with a sample of the machine.
        also: Other sources, each with fields of its own.
        vendor: The vendor in one word; the name when left out.
        exclusive: Whether a device is one program's at a time: where a process is watched, devices that it does not use are then
            ``not_in_use``. If not, what its processes use is given as ``{kind}.process.{i}``.
        processes: Where its samples' processes are read, in words; empty where nothing is given of them as metrics. Or by metric, where
            more is given than their memory.
        advice: What to do where no device is listed, unless a failure has advice of its own.
        detect: Looks for the hardware; built-in backends are found by their registration.
        own_metrics: Catalogue rows for metrics that only this vendor has.
        visible: The variable that lists the numbers of the devices that a program sees.
        says: The vendor's words in the place of a number, and what they mean.
        remark: What a person should know of how it is read, for ``doctor``.
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
        lasts: float = 0.0,
        machine: Sequence[Row] = (),
        also: Sequence[Source] = (),
        vendor: str = "",
        exclusive: bool = False,
        processes: str | Mapping[str, str] = "",
        advice: str = "",
        detect: Callable[[], Detection] | None = None,
        own_metrics: Sequence[Metric] = (),
        visible: str = "",
        says: Sequence[Says] = (),
        remark: str = "",
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__()
        self.name = name
        self.kind: DeviceKind | None = kind
        self.interval = interval
        self.lasts = lasts
        self.vendor = vendor or name
        if visible:
            declare_list(self.vendor, visible)
        self.specs = (Source(source, connect, fields, 0.0, machine, identity), *also)
        # What adds to devices at a pace of its own is no second way to them.
        self.sources = tuple(each.name for each in self.specs if not each.interval)
        self.exclusive = exclusive
        self.processes = processes
        self.advice = advice
        self.remark = remark
        self.clock = clock
        self._detect = detect
        self._own = tuple(own_metrics)
        self._says = tuple(says)

    @cached_property
    def tables(self) -> tuple[tuple[Table, Table], ...]:
        """Of each source the rows of devices and those of the machine, bound to the catalogue."""
        own, says = self._own, self._says
        return tuple(
            (Table(each.name, str(self.kind), each.fields, own, says), Table(each.name, "", each.machine, own, says)) for each in self.specs
        )

    def _leave_others(self) -> None:
        covered = self.coverage()  # what a backend owes is the same whichever source is read
        vars(self).update(coverage=lambda: covered)
        self.specs = tuple(each._replace(instead_of="") for each in self.specs if each.name == self.pin)
        vars(self).pop("tables")

    def detect(self) -> Detection:
        return self._detect() if self._detect is not None else Detection(True, "found out by opening")

    def open(self) -> PolledDriver:
        return PolledDriver(self)

    def coverage(self) -> Coverage:
        memory = ("memoryAllocated", "memoryAllocatedBytes")
        told = dict.fromkeys(memory, self.processes) if isinstance(self.processes, str) else self.processes
        devices, machine = (
            joined_words(pair for table in tables for pair in table.words.items()) for tables in zip(*self.tables, strict=True)
        )
        return Coverage(
            {name: words for name, words in devices.items() if "{" not in name},
            machine={name: words for name, words in machine.items() if "{" not in name},
            processes=told if self.processes and not self.exclusive else NOTHING,
            optional={name: words for name, words in (devices | machine).items() if "{" in name},
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
        self.remark = backend.remark
        self.machine_wide = any(source.machine for source in backend.specs)
        self.interval = backend.interval
        self._lock = threading.Lock()
        self.devices: Sequence[DeviceIdentity] = ()
        self._units: dict[tuple[str, object], int] = {}
        self._told_by: dict[tuple[int, str], int] = {}
        self.chosen: dict[int, Chosen] = {}
        self._is_listed = False
        # Streams get ready while other sources are connected.
        self.sources: list[_OpenSource] = []
        for spec, tables in zip(backend.specs, backend.tables, strict=True):
            self.sources.append(_OpenSource(self, spec, tables))
        for source in self.sources:
            source.poll(NOT_WANTED)
        self._is_listed = True
        if not self.devices:
            missing = SourceError(Reason.DRIVER_UNAVAILABLE, f"{self.sources[0].name} lists no {str(backend.kind).upper()}")
            failures = [source.latest.failure for source in self.sources if source.latest.failure is not None]
            self.close()
            raise _combined(failures or [missing], backend)

    @property
    def source(self) -> str:
        """Of the sources that are asked at every reading, those whose last poll did not fail: ``macmon+ioreg``."""
        answered = [each.name for each in self.sources if each.is_wanted and each.latest.failure is None and not each.spec.interval]
        return "+".join(answered) or self.sources[0].name

    @property
    def incomplete(self) -> Unavailable | None:
        """Why there may be more devices: a source that says which there are failed after some of them; None where none did."""
        polls = [each.latest for each in self.sources if each.is_wanted and not each.spec.interval]
        return next((poll.failure.unavailable for poll in polls if poll.units and poll.failure is not None), None)

    def name_of(self, unit: int) -> str:
        """Return what a device is called in messages: ``NPU 3``."""
        return f"{str(self.backend.kind).upper()} {self.devices[unit].vendor_index}"

    def reader(self, options: ReadOptions) -> PolledReader:
        return PolledReader(self, options)

    def close(self) -> None:
        while self.sources:  # which refer to this driver: what is closed is freed at once
            self.sources.pop().close()

    def place(self, source: _OpenSource, samples: Sequence[DeviceSample]) -> dict[int, DeviceSample]:
        """Say which unit each sample is; devices that are new are added, if the source may say which there are.

        Raises:
            DriverGoneError: One is new, and the machine's unit has the number after the known ones.
        """
        listed = [sample for sample in samples if not sample.machine]
        machine = [sample for sample in samples if sample.machine]
        found = {MACHINE: machine[-1]} if machine else {}
        # Where there is no number, the position stands for it.
        identities = source.identify(listed)
        seen = [(told, {NUMBER: position, **told}, of_card, listed[position]) for position, (told, of_card) in enumerate(identities)]
        with self._lock:
            devices, units = list(self.devices), dict(self._units)
            is_beside = any(other.latest.units for other in self.sources[: source.rank] if not other.spec.interval)
            for told, about, of_card, sample in sorted(seen, key=lambda each: each[1][NUMBER]):
                if is_beside and source.repeated and not keys_of(told):
                    continue  # its place in this list says nothing of a device that another source lists
                keys = keys_of(about)
                alike = (units[key] for key in keys if key in units and units[key] not in found and is_same(devices[units[key]], about))
                unit = next(alike, len(devices))
                if unit == len(devices):
                    if source.spec.interval:
                        continue
                    if self._is_listed and self.machine_wide:
                        raise DriverGoneError(Reason.DRIVER_UNAVAILABLE, f"{source.name} lists a new device: all are to be listed again")
                    taken = () if NUMBER in told else [device.vendor_index for device in devices]
                    about[NUMBER] = next(number for number in count(about[NUMBER]) if number not in taken)
                    keys = keys_of(about)
                    devices.append(DeviceIdentity(str(self.backend.kind), self.backend.vendor, about[NUMBER]))
                found[unit] = sample
                # What a better source tells of a device stands.
                best = {
                    part: value for part, value in (told | of_card).items() if source.rank <= self._told_by.get((unit, part), source.rank)
                }
                self._told_by.update(dict.fromkeys(((unit, part) for part in best), source.rank))
                devices[unit] = devices[unit]._replace(**best)
                # And a number that it does not have here is another device's.
                stands = keys_of({part: value for part, value in devices[unit]._asdict().items() if value != ""})
                units.update((key, unit) for key in keys if key in stands)
            self._units = units
            if tuple(devices) != self.devices:
                self.devices = tuple(devices)
        return found


def keys_of(told: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return what a device is found by, the surest first."""
    parts = [(part, told[part]) for part in ("uuid", ADDRESS, NUMBER) if part in told]
    return [(part, pci_address(value) if part == ADDRESS else value) for part, value in parts]


def is_same(known: DeviceIdentity, told: Mapping[str, Any]) -> bool:
    """Return whether a device is the one of which a record tells these parts of an identity."""
    if known.uuid and "uuid" in told:
        return bool(known.uuid == told["uuid"])
    if known.pci_bus_id and ADDRESS in told:
        return pci_address(known.pci_bus_id) == pci_address(told[ADDRESS])
    return bool(known.vendor_index == told[NUMBER])


class PolledReader:
    """One consumer's view: which polls it was given last for each unit, and what its rates are taken from."""

    def __init__(self, driver: PolledDriver, options: ReadOptions) -> None:
        self._driver = driver
        self._options = options
        self._tree = ProcessTree(options.pid)
        # Which sources are asked: none where nothing of the backend's is wanted. Else all that say which devices there are, and of those
        # with a pace of their own the ones that give what is wanted, or what it may be made of.
        backend, wants = driver.backend, options.metrics.wants_some
        device_key, process_key = f"{backend.kind}.{{i}}.", f"{backend.kind}.process.{{i}}."
        self._lists = options.metrics.processes or any(wants(process_key + name) for name in backend.coverage().processes)
        every = self._lists or any(wants(device_key + name) for table, _ in backend.tables for name in table.derived)
        gives = [
            every or any(wants(device_key + name) for name in table.words) or any(map(wants, machine.words))
            for table, machine in backend.tables
        ]
        self._asked = [any(gives) and (wanted or not source.interval) for source, wanted in zip(backend.specs, gives, strict=True)]
        self._units: dict[int, _Unit] = {}

    def read(self, unit: int, progress: list[Any]) -> Reading:
        driver = self._driver
        if not any(self._asked):
            return Reading(processes=NOT_NEEDED)
        state = self._units.get(unit) or self._units.setdefault(unit, _Unit(len(driver.sources)))
        polls, before = [], state.polls
        for source, had, asked in zip(driver.sources, before, self._asked, strict=True):
            polls.append(source.poll(had) if asked else NOT_WANTED)
            progress.append(source.name)
        state.polls = polls
        is_same = all(new.units is old.units for new, old in zip(polls, before, strict=True))
        if state.reading is not None and is_same and driver.backend.clock.monotonic() < state.until:
            return state.reading
        state.reading, is_first = None, state.until == -math.inf
        place = MACHINE if driver.machine_wide and unit == len(driver.devices) else unit
        samples = [poll.units.get(place) for poll in polls]
        listing = [source for source in driver.sources if source.is_wanted and not source.spec.interval]
        if all(samples[source.rank] is None for source in listing):
            failures = [failure for source in listing if (failure := polls[source.rank].failure) is not None]
            if failures:  # where all are closed, the driver is to be opened again
                raise _combined(failures, driver.backend, gone=all(source.ask is None for source in listing))
            name = "the machine" if place == MACHINE else driver.name_of(unit)
            raise SourceError(Reason.DEVICE_LOST, f"{driver.source} no longer lists {name}", backend=driver.backend.name)
        found, read_at = self._values(place, state, polls, samples, progress)
        listed = [sample for sample in samples if sample is not None]
        answers = [answer for sample in listed if (answer := self._processes(sample, progress)) is not None]
        processes = next((answer for answer in answers if not isinstance(answer, Unavailable)), answers[0] if answers else None)
        made = self._reading(found, processes, read_at)
        state.until = math.inf if all(sample.begin is None for sample in listed) else read_at + driver.backend.lasts
        if state.until == math.inf or not is_first:
            state.reading = made
        return made

    def _processes(self, sample: DeviceSample, progress: list[Any]) -> Processes:
        if callable(sample.processes):
            return sample.processes(progress) if self._lists else NOT_NEEDED
        return sample.processes

    def _values(
        self, unit: int, state: _Unit, polls: Sequence[_Poll], samples: Sequence[DeviceSample | None], progress: list[Any]
    ) -> tuple[dict[str, Value], float]:
        """Collect every metric of a unit by all of its names, each from the first source that has it; and when they were read."""
        clock, sources = self._driver.backend.clock, self._driver.sources
        found: dict[str, Value] = {}
        read_at = math.inf
        tables = [source.machine if unit == MACHINE else source.table for source in sources]
        # A source that is down chooses nothing: the others stand in for it.
        known = self._driver.chosen.get(unit, {})
        down = {source.name for source, sample in zip(sources, samples, strict=True) if sample is None}
        chosen = {metric: choice for metric, choice in known.items() if choice[0] not in down}
        for source, table, poll, sample, counters in zip(sources, tables, polls, samples, state.counters, strict=True):
            if poll is NOT_WANTED:
                continue
            if sample is None:
                absent = Unavailable(Reason.NOT_SUPPORTED, f"{source.name} does not list this device, or not by an identity of its own")
                values = table.missing(absent if poll.failure is None else _advised(poll.failure))
            else:
                at = poll.finished if sample.read_at is None else sample.read_at
                if sample.begin is not None:
                    sample.begin(progress)
                    at = clock.monotonic()
                record = sample.record if sample.scoped is None else sample.scoped(self._options, self._watches)
                pace = 0.0 if sample.begin is None else SELDOM
                values = table.read(flat(record), counters, at, idle=sample.processes == (), chosen=chosen, pace=pace)
                first = min(each for each in poll.units if poll.units[each].whole == sample.whole) if sample.whole else unit
                if first != unit:
                    why = f"{source.name} gives it of the whole, and {self._driver.name_of(first)} has it"
                    values |= dict.fromkeys(table.of_whole & values.keys(), Unavailable(Reason.NOT_SUPPORTED, why))
                read_at = read_at if source.spec.interval else min(read_at, at)
            for metric, value in values.items():
                merge(found, metric, value)
        for table in tables:
            table.derive(found, chosen)
        self._driver.chosen[unit] = chosen | known
        return {name: found[metric] for table in tables for metric in found for name in table.names(metric)}, read_at

    def _watches(self, pid: int, whole_tree: bool = False, listed: Iterable[int] = ()) -> bool:
        """Return whether a process is the watched one, or a descendant where those are watched too.

        That of a device which is one program's at a time is known by its number alone: it may hold no device node here.
        """
        driver, named = self._driver, pid == self._options.pid
        children, now = whole_tree or self._options.children, driver.backend.clock.monotonic()
        if driver.backend.exclusive or self._tree.shared or driver.backend.name in FOUND_HERE:
            return named or (children and self._tree.owns(pid, now))
        nodes = node_pattern(driver.devices[0]) if driver.devices else ""
        return (named or children) and self._tree.owns(pid, now, DriverNumbers([pid, *listed]), nodes)

    def _reading(self, found: dict[str, Value], processes: Processes, read_at: float) -> Reading:
        backend, options = self._driver.backend, self._options
        known = None if isinstance(processes, Unavailable) else processes
        pids = [each.pid for each in known or ()]
        owned = [each for each in known or () if self._watches(each.pid, not backend.exclusive, pids)]
        used = None
        if not backend.exclusive:
            used = process_values(str(backend.kind), owned, found) if owned and backend.processes else None
        elif options.watched and known is not None and not owned:
            why = f"the watched process {options.pid} does not use this {str(backend.kind).upper()}"
            found = dict.fromkeys(found, Unavailable(Reason.NOT_IN_USE, why))
        return make_reading(found, processes, read_at, used)


class _Poll:
    """What asking a source once came to.

    Args:
        finished: When it ended, on the monotonic clock.
        units: The samples, by unit; the same object while the source's answer is the same.
        failure: Why there are none, or why there are no more.

    Attributes:
        lists: Whether it only lists devices, whose records read when they are asked.
    """

    def __init__(self, finished: float, units: Mapping[int, DeviceSample], failure: SourceError | None) -> None:
        self.finished = finished
        self.units = units
        self.failure = failure
        self.lists = failure is None and bool(units) and all(sample.begin is not None for sample in units.values())


NOT_WANTED = _Poll(-math.inf, {}, None)
"""Stands for the poll of a source that is not asked: the one that it stands in for gives devices, or nothing of it is wanted."""


class _Unit:
    """What one consumer keeps of one unit: the polls it had, what its rates are taken from, and the reading while it stands, until when."""

    def __init__(self, sources: int) -> None:
        self.until = -math.inf
        self.polls = [NOT_WANTED] * sources
        self.counters: list[Counters] = [{} for _ in range(sources)]
        self.reading: Reading | None = None


class _OpenSource:
    """One source, opened when it can be, and its latest poll.

    Attributes:
        rank: Its place among the backend's sources, the best of which is 0.
        ask: Asks it once; None while it is closed, as it is after some failures, but for one that opens itself again.
        latest: The latest poll.
        repeated: Ids, addresses and numbers that several devices of one poll had, by which none of them is found.
    """

    def __init__(self, driver: PolledDriver, spec: Source, tables: tuple[Table, Table]) -> None:
        self.spec = spec
        self.name = spec.name
        self.table, self.machine = tables
        self.rank = len(driver.sources)
        self.latest = NOT_WANTED
        self._instead_of = next((source for source in driver.sources if source.name == spec.instead_of), None)
        self._driver = driver
        self._clock = driver.backend.clock
        self._fresh = spec.interval or driver.backend.interval / 2 or AT_ONCE
        self._lock = threading.Lock()
        self.ask: PollOnce | None = None
        self._answer: object = None
        self._identities: WeakKeyDictionary[DeviceRecord, dict[str, Any]] = WeakKeyDictionary()
        self.repeated: set[tuple[str, object]] = set()
        self._addresses: list[str] = []
        self._failures = 0
        self._retry_at = -math.inf
        if self._instead_of is None:
            self.latest = _Poll(-math.inf, {}, _failure(guarded(self._connect)))

    @property
    def is_wanted(self) -> bool:
        """Whether it is asked: no source that it stands in for gives devices."""
        return self._instead_of is None or not self._instead_of.latest.units

    def poll(self, had: _Poll) -> _Poll:
        """Return the latest poll while it is fresh, else a new one; a new one too where the caller had it and it is not to last."""
        if not self.is_wanted:
            return NOT_WANTED
        asked = self._clock.monotonic()
        with self._lock:
            fresh = max(LISTED, self._fresh) if self.latest.lists else self._fresh
            if asked - self.latest.finished >= fresh or (self.latest is had and not self.spec.interval and not self.latest.lists):
                self.latest = self._make()
            return self.latest

    def _make(self) -> _Poll:
        """Ask it now; while it stays closed, what is known stands."""
        if self.ask is None and self._clock.monotonic() < self._retry_at:
            return _Poll(self._clock.monotonic(), self.latest.units, self.latest.failure)
        units: dict[int, DeviceSample] = {}
        asked = guarded(self._collect, units)
        finished = self._clock.monotonic()
        if asked.value is not None and asked.value is self._answer:
            return _Poll(finished, self.latest.units, self.latest.failure)
        failure = _failure(asked)
        self._answer = asked.value if isinstance(asked.value, tuple) else None
        self._failures = self._failures + 1 if failure is not None and not units else 0
        if self._failures >= PATIENCE and not getattr(self.ask, "reopens", False):
            self.close()
            self._retry_at = finished + RETRY
        return _Poll(finished, units, failure)

    def _collect(self, units: dict[int, DeviceSample]) -> object:
        """Ask once and place what is new: the answer; some samples may have been taken before it fails."""
        if self.ask is not None:
            self._let_sleep()
        answer = (self.ask or self._connect())()
        if answer is not self._answer:
            samples: list[DeviceSample] = []
            strange = None
            try:
                for each in answer:
                    record: object = each.record
                    if not isinstance(record, (Mapping, DeviceRecord)):
                        strange = SourceError(Reason.PARSE_ERROR, f"{self.name} lists something that is no device: {quoted(record)}")
                        continue
                    if len(samples) == MOST_DEVICES + bool(self.spec.machine):
                        samples.clear()
                        raise SourceError(Reason.INVALID_VALUE, f"{self.name} lists more than {MOST_DEVICES} devices: not believed")
                    samples.append(each._replace(record=flat(each.record)))
            finally:
                units.update(self._driver.place(self, samples))
            if strange is not None:
                raise strange
        return answer

    def _connect(self) -> PollOnce:
        self._retry_at = self._clock.monotonic() + RETRY
        row = BUILT_IN.get(self._driver.backend.name)
        if row is not None:
            self._addresses = [*find_pci(row.pci), *(link_name(f"{path}/device") for path in find_driven(row.drivers))]
        self._let_sleep()
        self.ask = self.spec.connect()
        return self.ask

    def _let_sleep(self) -> None:
        if getattr(self.spec.connect, "wakes", True):
            let_sleep(self._addresses, self.name)

    def identify(self, samples: Sequence[DeviceSample]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return what the samples tell of their devices' identities, and what else is true of these, by which none is found.

        An id or an address that several devices of one poll share tells none of them apart: it is left out until the driver is opened
        again. The address of a card is true of its parts if these name the card and have ids. Where a number repeats, none is trusted.
        """
        identities = [self._identity(flat(sample.record)) for sample in samples]
        keys = [keys_of(told) for told in identities]
        cards: dict[object, set[str]] = {}
        for sample, each in zip(samples, keys, strict=True):
            for key in each:
                cards.setdefault(key, set()).add(sample.whole)
        self.repeated.update(key for key, times in Counter(key for each in keys for key in each).items() if times > 1)
        numbered = all(part != NUMBER for part, _ in self.repeated)
        found = []
        for told, each in zip(identities, keys, strict=True):
            shared = {key: told.pop(key[0]) for key in each if key in self.repeated or (key[0] == NUMBER and not numbered)}
            address = {key[0]: value for key, value in shared.items() if key[0] == ADDRESS and len(cards[key]) == 1 and all(cards[key])}
            found.append((told, address if "uuid" in told else {}))
        return found

    def _identity(self, record: DeviceRecord) -> dict[str, Any]:
        """Return what one record tells; one that stays the same object is asked until it has told all."""
        if record in self._identities:
            return dict(self._identities[record])
        told: dict[str, Any] = {}
        for attribute, where in self.spec.identity.items():
            for place in (where,) if isinstance(where, str) else where:
                said = record.get(place)
                value = said is True if attribute == "unified" else whole(said) if attribute in NUMBERS else text(said)
                if attribute in NAMES and not str(value).strip("0x"):  # zeros name nothing
                    continue
                if value is not None and value is not False and value != "":
                    told[attribute] = value
                    break
        memory = self.table.value("memoryTotalBytes", record)
        if isinstance(memory, int):
            told["memory_total_bytes"] = memory
        if told.keys() >= self.spec.identity.keys() and (memory is NOT_READ or isinstance(memory, int)):
            self._identities[record] = dict(told)
        return told

    def close(self) -> None:
        """Give the source back; it is opened again by a later poll."""
        ask, self.ask, self._answer = self.ask, None, None
        getattr(ask, "close", lambda: None)()


def _failure(outcome: Outcome[Any]) -> SourceError | None:
    if outcome.failure is None:
        return None
    return outcome.error if isinstance(outcome.error, SourceError) else SourceError(outcome.failure.reason, outcome.failure.detail)


def _advised(failure: SourceError) -> Unavailable:
    """Return why the values of one source of several are missing, with what to do about that source where its message has it not."""
    is_said = failure.advice.rpartition(": ")[2] in failure.message
    return failure.unavailable if is_said else failure.unavailable._replace(detail=f"{failure.message}: {failure.advice}")


def _combined(failures: Sequence[SourceError], backend: PolledBackend, gone: bool = False) -> SourceError:
    """Combine the failures of several sources: a new error for each reader, since one raised in two threads gets both tracebacks.

    Args:
        failures: One at least; one for which a driver is to be opened again stands for all.
        backend: The backend.
        gone: Whether the driver is to be opened again in any case.
    """
    first = next((each for each in failures if isinstance(each, DriverGoneError)), None)
    why = first.unavailable if first is not None else reduce(weightier, (each.unavailable for each in failures))
    advice = next((each.advice for each in failures if each.advice), backend.advice)
    # A tool that refuses this user is there: that it lists nothing, or that another source is missing, is not what is wrong.
    if why.reason == Reason.NO_PERMISSION and not any(each.advice for each in failures if each.reason == why.reason):
        advice = "; ".join(filter(None, (ADVICE[why.reason], advice)))
    return (DriverGoneError if gone or first is not None else SourceError)(why.reason, why.detail, backend=backend.name, advice=advice)
