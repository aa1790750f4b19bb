"""Backends that poll one source for all devices at once: a command, a library, a stream, a directory.

::

    backend = PolledBackend(
        "rebellions", kind="npu", source="rbln-smi", connect=COMMAND.poll(parse), fields=FIELDS,
        identity={"vendor_index": "npu", "uuid": "uuid"}, interval=2.0,
    )

The vendor writes ``connect``. It opens the source and returns a callable that polls it once, yielding a :class:`DeviceSample` per device.
This module does the rest. One poll, or its failure, serves all devices and all samplers. Devices are recognised by UUID, PCI address or
number: a new one is added, a missing one is lost. A backend may have several sources, each with its own fields and interval. Each metric,
and each part of an identity, comes from the first source that has it. If a source fails, only its fields are missing.
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
"""Failed polls in a row after which a source is closed, to be reopened later."""
RETRY = 30.0
"""Seconds after which a closed source is reopened while others are open."""
MACHINE = -1
"""Unit of the sample that belongs to the machine and no device."""
NUMBER = "vendor_index"
NUMBERS = (NUMBER, "numa_node", "cores", "gpu_instance_id", "minor_number", "chassis_slot", "tray_index", "host_id", "module_id")
"""Parts of an identity that are whole numbers."""
ADDRESS = "pci_bus_id"

Identity = Mapping[str, str | Sequence[str]]
"""The place in the record by attribute of :class:`~accelmetrics.schemas.identity.DeviceIdentity`."""


class DeviceSample(NamedTuple):
    """A device as one poll found it.

    Attributes:
        record: The source's values: a document's object, or a record that reads on demand.
        processes: The processes that use the device, or why they are not known; None if the source lists processes of no device. It
            may be a function that finds them. That is called with the progress list, only if a consumer wants processes.
        read_at: When the source took the numbers, on the monotonic clock; None for the end of the poll.
        begin: Called with the progress list before a record that reads on demand is used. Raises ``SourceError`` if the device
            cannot be read or is gone. With it, the source is not polled at each reading.
        machine: Whether the sample belongs to the machine and no device. It is the record of the backend's ``machine`` rows.
        scoped: Returns the record for one consumer, for values that are counted by program; ``record`` then serves only to identify
            the device. Called with the consumer's options and a function that tells whether it watches a process.
        whole: The card or board that the device is a part of, as any text that its parts share. Rows with ``of_whole`` are then
            reported by the first part alone.
    """

    record: Printed
    processes: Processes | Callable[[list[Any]], Processes] = None
    read_at: float | None = None
    begin: Callable[[list[Any]], None] | None = None
    machine: bool = False
    scoped: Callable[[ReadOptions, Callable[[int], bool]], Printed] | None = None
    whole: str = ""


PollOnce = Callable[[], Iterable[DeviceSample]]
"""Polls the source once. Raises ``SourceError`` if the poll failed, or after some devices if the output was incomplete.

It may have a method ``close``. A true attribute ``reopens`` says that it reopens its source by itself, so failures do not close it.
Returning the same tuple again means that nothing has changed: the results made from it are reused.
"""
Connect = Callable[[], PollOnce]
"""Opens the source, or raises ``SourceError``.

A false attribute ``wakes`` says that polling wakes no device. The source is then polled even while one of the devices sleeps.
"""


class Source(NamedTuple):
    """A source of a polled backend.

    Attributes:
        name: The source in one word: ``hl-smi``.
        connect: Opens it.
        fields: The rows of each device.
        interval: Shortest time in seconds between two polls. A source with 0 is polled at every reading and lists the devices; one
            with its own interval only adds values to them.
        machine: The rows of the machine's sample; their metrics are whole keys.
        identity: The places of a device's identity in this source's records.
        instead_of: An earlier source in the list. This one is polled only while that one lists no device.
    """

    name: str
    connect: Connect
    fields: Sequence[Row]
    interval: float = 0.0
    machine: Sequence[Row] = ()
    identity: Identity = NOTHING
    instead_of: str = ""


class PolledBackend(Pinnable):
    """A backend that polls its sources for all devices at once.

    Args:
        name: The name that users select it by.
        kind: The first word of its devices' keys.
        source: The source in one word.
        connect: Opens the source.
        fields: The rows of each device.
        identity: The places of a device's identity in its record.
        interval: 0 for a source that is read on request; otherwise seconds between two polls in the background.
        lasts: Seconds for which values of devices that read on demand are reused. This begins with a consumer's second reading, the
            first with rates.
        machine: Rows whose metrics are whole keys, for a poll with a sample of the machine.
        also: Other sources, each with its own fields.
        vendor: The vendor in one word; the backend's name by default.
        exclusive: Whether a device belongs to one program at a time. If so, devices that a watched process does not use are
            ``not_in_use``. If not, the use by the watched processes is reported as ``{kind}.process.{i}``.
        processes: Where the samples' processes are read, in words; empty if no metrics come from them. A mapping by metric if more
            than their memory is reported.
        advice: What to do if no device is listed, unless a failure has its own advice.
        detect: Looks for the hardware. Built-in backends are found by their registration.
        own_metrics: Catalogue rows for metrics that only this vendor has.
        visible: The environment variable that lists the numbers of the devices visible to a program.
        says: The vendor's words in place of a number, and their meaning.
        remark: A note on how the devices are read, for ``doctor``.
        clock: Clock for ages and rates.
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
        # A source with its own interval only adds values, so it cannot be pinned.
        self.sources = tuple(each.name for each in self.specs if not each.interval)
        self.exclusive = exclusive
        if isinstance(processes, str):
            processes = {"memoryAllocated": processes, "memoryAllocatedBytes": processes} if processes else {}
        self.processes = processes
        self.advice = advice
        self.remark = remark
        self.clock = clock
        self._detect = detect
        self._own = tuple(own_metrics)
        self._says = tuple(says)

    @cached_property
    def tables(self) -> tuple[tuple[Table, Table], ...]:
        """For each source, its rows of devices and its rows of the machine, bound to the catalogue."""
        own, says = self._own, self._says
        return tuple(
            (Table(each.name, str(self.kind), each.fields, own, says), Table(each.name, "", each.machine, own, says)) for each in self.specs
        )

    def _drop_others(self) -> None:
        covered = self.coverage()  # a backend promises the same metrics, whichever source is pinned
        vars(self).update(coverage=lambda: covered)
        self.specs = tuple(each._replace(instead_of="") for each in self.specs if each.name == self.pin)
        # The cached property has the tables of all sources, because coverage() has just used them.
        vars(self).pop("tables")

    def detect(self) -> Detection:
        return self._detect() if self._detect is not None else Detection(True, "found out by opening")

    def open(self) -> PolledDriver:
        return PolledDriver(self)

    def coverage(self) -> Coverage:
        devices, machine = (
            joined_words(pair for table in tables for pair in table.words.items()) for tables in zip(*self.tables, strict=True)
        )
        return Coverage(
            {name: words for name, words in devices.items() if "{" not in name},
            machine={name: words for name, words in machine.items() if "{" not in name},
            processes=NOTHING if self.exclusive else self.processes,
            optional={name: words for name, words in (devices | machine).items() if "{" in name},
        )

    def own_metrics(self) -> Iterable[Metric]:
        return self._own


class PolledDriver:
    """The open sources of a polled backend. Any thread may read.

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
        self._reported_by: dict[tuple[int, str], int] = {}
        self.chosen: dict[int, Chosen] = {}
        self._is_listed = False
        # All sources are connected before the first is polled, so that streams start up meanwhile.
        self.sources: list[_OpenSource] = []
        for spec, tables in zip(backend.specs, backend.tables, strict=True):
            self.sources.append(_OpenSource(self, spec, tables))
        for source in self.sources:
            source.poll(NOT_WANTED)
        self._is_listed = True
        if not self.devices:
            failures = [source.latest.failure for source in self.sources if source.latest.failure is not None]
            if not failures:
                failures = [SourceError(Reason.DRIVER_UNAVAILABLE, f"{self.sources[0].name} lists no {str(backend.kind).upper()}")]
            self.close()
            raise _combined(failures, backend)

    @property
    def source(self) -> str:
        """Names of the sources that list devices and did not fail in their last poll, joined: ``macmon+ioreg``."""
        return "+".join(each.name for each in self.listing if each.latest.failure is None) or self.sources[0].name

    @property
    def incomplete(self) -> Unavailable | None:
        """Why there may be more devices: a source that lists them failed after some. None if no source did."""
        return next((each.latest.failure.unavailable for each in self.listing if each.latest.units and each.latest.failure), None)

    @property
    def listing(self) -> list[_OpenSource]:
        """The sources that list devices now: a source with its own interval only adds values."""
        return [each for each in self.sources if each.is_wanted and not each.spec.interval]

    def name_of(self, unit: int) -> str:
        """Return a device's name for messages: ``NPU 3``."""
        return f"{str(self.backend.kind).upper()} {self.devices[unit].vendor_index}"

    def reader(self, options: ReadOptions) -> PolledReader:
        return PolledReader(self, options)

    def close(self) -> None:
        while self.sources:  # they refer to this driver: removing them frees both without the garbage collector
            self.sources.pop().close()

    def place(self, source: _OpenSource, samples: Sequence[DeviceSample]) -> dict[int, DeviceSample]:
        """Return the samples by unit. New devices are added if the source lists devices.

        Raises:
            DriverGoneError: There is a new device, and the machine's unit has the number after the known ones.
        """
        listed = [sample for sample in samples if not sample.machine]
        machine = [sample for sample in samples if sample.machine]
        found = {MACHINE: machine[-1]} if machine else {}
        # Without a number, the position serves as one.
        seen = [
            ({NUMBER: position, **reported}, reported, of_card, listed[position])
            for position, (reported, of_card) in enumerate(source.identify(listed))
        ]
        with self._lock:
            devices, units = list(self.devices), dict(self._units)
            is_secondary = any(other.latest.units for other in self.sources[: source.rank] if not other.spec.interval)
            for about, reported, of_card, sample in sorted(seen, key=lambda each: each[0][NUMBER]):
                if is_secondary and source.repeated and not keys_of(reported):
                    continue  # its position alone does not identify a device that another source lists
                keys = keys_of(about)
                alike = (units[key] for key in keys if key in units and units[key] not in found and is_same(devices[units[key]], about))
                unit = next(alike, len(devices))
                if unit == len(devices):
                    # A source with its own interval lists no devices.
                    if source.spec.interval:
                        continue
                    # The machine's unit follows the devices' units, so a new device would take its number.
                    if self._is_listed and self.machine_wide:
                        raise DriverGoneError(Reason.DRIVER_UNAVAILABLE, f"{source.name} lists a new device: the devices are listed again")
                    # A position that serves as a number must not be another device's real number.
                    numbers = () if NUMBER in reported else [device.vendor_index for device in devices]
                    about[NUMBER] = next(number for number in count(about[NUMBER]) if number not in numbers)
                    keys = keys_of(about)
                    devices.append(DeviceIdentity(str(self.backend.kind), self.backend.vendor, about[NUMBER]))
                found[unit] = sample
                # A part of the identity is kept if a better source reported it.
                best = {
                    part: value
                    for part, value in (reported | of_card).items()
                    if source.rank <= self._reported_by.get((unit, part), source.rank)
                }
                self._reported_by.update(dict.fromkeys(((unit, part) for part in best), source.rank))
                devices[unit] = devices[unit]._replace(**best)
                # A number that lost to a better source's may be another device's, so it is no key.
                valid = keys_of({part: value for part, value in devices[unit]._asdict().items() if value != ""})
                units.update((key, unit) for key in keys if key in valid)
            self._units = units
            if tuple(devices) != self.devices:
                self.devices = tuple(devices)
        return found


def keys_of(reported: Mapping[str, Any]) -> list[tuple[str, object]]:
    """Return the parts of an identity that devices are found by, the most reliable first."""
    keys = ("uuid", ADDRESS, NUMBER)
    return [(part, pci_address(reported[part]) if part == ADDRESS else reported[part]) for part in keys if part in reported]


def is_same(known: DeviceIdentity, reported: Mapping[str, Any]) -> bool:
    """Return whether a known device has these parts of an identity, compared by UUID, else PCI address, else number."""
    if known.uuid and "uuid" in reported:
        return bool(known.uuid == reported["uuid"])
    if known.pci_bus_id and ADDRESS in reported:
        return pci_address(known.pci_bus_id) == pci_address(reported[ADDRESS])
    return bool(known.vendor_index == reported[NUMBER])


class PolledReader:
    """A consumer's reader: the last poll of each unit that it was given, and the state of its rates."""

    def __init__(self, driver: PolledDriver, options: ReadOptions) -> None:
        self._driver = driver
        self._options = options
        self._tree = ProcessTree(options.pid)
        # If nothing of the backend is wanted, no source is polled. Otherwise all sources that list devices are polled, and of the sources
        # with their own interval only those with a wanted metric or a possible input of one.
        backend, wants = driver.backend, options.metrics.wants_some
        device_key, process_key = f"{backend.kind}.{{i}}.", f"{backend.kind}.process.{{i}}."
        self._lists = options.metrics.processes or any(wants(process_key + name) for name in backend.coverage().processes)
        every = self._lists or any(wants(device_key + name) for table, _ in backend.tables for name in table.derived)
        gives = [
            every or any(wants(device_key + name) for name in table.words) or any(map(wants, machine.words))
            for table, machine in backend.tables
        ]
        self._wanted = [any(gives) and (wanted or not source.interval) for source, wanted in zip(backend.specs, gives, strict=True)]
        self._units: dict[int, _Unit] = {}

    def read(self, unit: int, progress: list[Any]) -> Reading:
        driver = self._driver
        if not any(self._wanted):
            return Reading(processes=NOT_NEEDED)
        state = self._units.get(unit) or self._units.setdefault(unit, _Unit(len(driver.sources)))
        polls, before = [], state.polls
        for source, previous, wanted in zip(driver.sources, before, self._wanted, strict=True):
            polls.append(source.poll(previous) if wanted else NOT_WANTED)
            progress.append(source.name)
        # Stored before anything can fail: a poll that this consumer has had is not served to it again.
        state.polls = polls
        is_same = all(new.units is old.units for new, old in zip(polls, before, strict=True))
        if state.reading is not None and is_same and driver.backend.clock.monotonic() < state.until:
            return state.reading
        state.reading, is_first = None, state.until == -math.inf
        place = MACHINE if driver.machine_wide and unit == len(driver.devices) else unit
        samples = [poll.units.get(place) for poll in polls]
        listing = driver.listing
        if all(samples[source.rank] is None for source in listing):
            failures = [failure for source in listing if (failure := polls[source.rank].failure) is not None]
            if failures:  # if all sources are closed, the driver is to be reopened
                raise _combined(failures, driver.backend, gone=all(source.poll_once is None for source in listing))
            lost = "the machine" if place == MACHINE else driver.name_of(unit)
            raise SourceError(Reason.DEVICE_LOST, f"{driver.source} no longer lists {lost}", backend=driver.backend.name)
        found, read_at = self._values(place, state, polls, samples, progress)
        listed = [sample for sample in samples if sample is not None]
        answers = [answer for sample in listed if (answer := self._processes(sample, progress)) is not None]
        processes = next((answer for answer in answers if not isinstance(answer, Unavailable)), answers[0] if answers else None)
        reading = self._reading(found, processes, read_at)
        state.until = math.inf if all(sample.begin is None for sample in listed) else read_at + driver.backend.lasts
        # The first reading has no rates yet, so it is not reused.
        if state.until == math.inf or not is_first:
            state.reading = reading
        return reading

    def _processes(self, sample: DeviceSample, progress: list[Any]) -> Processes:
        if callable(sample.processes):
            return sample.processes(progress) if self._lists else NOT_NEEDED
        return sample.processes

    def _values(
        self, unit: int, state: _Unit, polls: Sequence[_Poll], samples: Sequence[DeviceSample | None], progress: list[Any]
    ) -> tuple[dict[str, Value], float]:
        """Collect every metric of a unit under all of its names, from the first source that has it, and when they were read."""
        clock, sources = self._driver.backend.clock, self._driver.sources
        found: dict[str, Value] = {}
        read_at = math.inf
        tables = [source.machine if unit == MACHINE else source.table for source in sources]
        # While a source is down, the others may report the metrics that it reported first.
        known = self._driver.chosen.get(unit, {})
        down = {source.name for source, sample in zip(sources, samples, strict=True) if sample is None}
        chosen = {metric: choice for metric, choice in known.items() if choice[0] not in down}
        for source, table, poll, sample, counters in zip(sources, tables, polls, samples, state.counters, strict=True):
            if poll is NOT_WANTED:
                continue
            if sample is None:
                absent = Unavailable(Reason.NOT_SUPPORTED, f"{source.name} does not list this device, or not with a unique identity")
                values = table.missing(absent if poll.failure is None else _advised(poll.failure))
            else:
                at = poll.finished if sample.read_at is None else sample.read_at
                if sample.begin is not None:
                    sample.begin(progress)
                    at = clock.monotonic()
                record = sample.record if sample.scoped is None else sample.scoped(self._options, self._watches)
                # A record that reads on demand keeps limits, sizes and links for ten seconds, less a little: readings come every second.
                pace = 0.0 if sample.begin is None else 9.95
                values = table.read(flat(record), counters, at, idle=sample.processes == (), chosen=chosen, pace=pace)
                # A value of the whole card must not be counted once for each part.
                first = min(each for each in poll.units if poll.units[each].whole == sample.whole) if sample.whole else unit
                if first != unit:
                    why = f"{source.name} reports it for the whole card, and {self._driver.name_of(first)} has it"
                    values |= dict.fromkeys(table.of_whole & values.keys(), Unavailable(Reason.NOT_SUPPORTED, why))
                read_at = read_at if source.spec.interval else min(read_at, at)
            for metric, value in values.items():
                merge(found, metric, value)
        for table in tables:
            table.derive(found, chosen)
        self._driver.chosen[unit] = chosen | known
        return {name: found[metric] for table in tables for metric in found for name in table.names(metric)}, read_at

    def _watches(self, pid: int, whole_tree: bool = False, listed: Iterable[int] = ()) -> bool:
        """Return whether a process is the watched one, or a descendant if descendants are watched too.

        If a device belongs to one program at a time, the process is found by its number alone, because it may hold no device node
        here.
        """
        driver, named = self._driver, pid == self._options.pid
        children, now = whole_tree or self._options.children, driver.backend.clock.monotonic()
        # In these cases the number alone identifies the process.
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
    """The result of one poll of a source.

    Args:
        finished: When it ended, on the monotonic clock.
        units: The samples by unit; the same object while the source's answer is the same.
        failure: Why there are no samples, or no more.

    Attributes:
        lists: Whether the poll only lists devices whose records read on demand.
    """

    def __init__(self, finished: float, units: Mapping[int, DeviceSample], failure: SourceError | None) -> None:
        self.finished = finished
        self.units = units
        self.failure = failure
        self.lists = failure is None and bool(units) and all(sample.begin is not None for sample in units.values())


NOT_WANTED = _Poll(-math.inf, {}, None)
"""Placeholder for the poll of a source that is not polled: an alternative that is not needed, or one without wanted metrics."""


class _Unit:
    """A consumer's state of one unit: its polls, the counters of its rates, and the reading with the time until which it is reused."""

    def __init__(self, sources: int) -> None:
        self.until = -math.inf
        self.polls = [NOT_WANTED] * sources
        self.counters: list[Counters] = [{} for _ in range(sources)]
        self.reading: Reading | None = None


class _OpenSource:
    """A source with its latest poll, opened as soon as it can be.

    Attributes:
        rank: Its position among the backend's sources; 0 is the best.
        poll_once: Polls it once. None while it is closed, as after some failures; a source that reopens itself stays open.
        latest: The latest poll.
        repeated: Ids, addresses and numbers that several devices of one poll shared. They identify none of them.
    """

    def __init__(self, driver: PolledDriver, spec: Source, tables: tuple[Table, Table]) -> None:
        self.spec = spec
        self.name = spec.name
        self.table, self.machine = tables
        self.rank = len(driver.sources)
        self._instead_of = next((source for source in driver.sources if source.name == spec.instead_of), None)
        self._driver = driver
        self._clock = driver.backend.clock
        # Without an interval, one poll serves the devices and samplers that ask at about the same time.
        self._fresh = spec.interval or driver.backend.interval / 2 or 0.1
        self._lock = threading.Lock()
        self.poll_once: PollOnce | None = None
        self._answer: object = None
        self._identities: WeakKeyDictionary[DeviceRecord, dict[str, Any]] = WeakKeyDictionary()
        self.repeated: set[tuple[str, object]] = set()
        self._addresses: list[str] = []
        self._failures = 0
        self._retry_at = -math.inf
        self.latest = NOT_WANTED if self._instead_of is not None else _Poll(-math.inf, {}, _failure(guarded(self._connect)))

    @property
    def is_wanted(self) -> bool:
        """Whether the source is polled: the source that it replaces lists no devices."""
        return self._instead_of is None or not self._instead_of.latest.units

    def poll(self, previous: _Poll) -> _Poll:
        """Return the latest poll while it is fresh, else a new one.

        A caller that has had the latest poll gets a new one as well, unless the source has an interval or only lists devices.
        """
        if not self.is_wanted:
            return NOT_WANTED
        now = self._clock.monotonic()
        # A thread that waited here finds the poll that the first thread made.
        with self._lock:
            # A poll that only lists devices serves everyone for a second: their records read on demand.
            fresh = max(1.0, self._fresh) if self.latest.lists else self._fresh
            if now - self.latest.finished >= fresh or (self.latest is previous and not self.spec.interval and not self.latest.lists):
                self.latest = self._make()
            return self.latest

    def _make(self) -> _Poll:
        """Poll the source now. While it stays closed, repeat the last result."""
        if self.poll_once is None and self._clock.monotonic() < self._retry_at:
            return _Poll(self._clock.monotonic(), self.latest.units, self.latest.failure)
        units: dict[int, DeviceSample] = {}
        outcome = guarded(self._collect, units)
        finished = self._clock.monotonic()
        # The same tuple as before: the source reports that nothing has changed.
        if outcome.value is not None and outcome.value is self._answer:
            return _Poll(finished, self.latest.units, self.latest.failure)
        failure = _failure(outcome)
        self._answer = outcome.value if isinstance(outcome.value, tuple) else None
        self._failures = self._failures + 1 if failure is not None and not units else 0
        if self._failures >= PATIENCE and not getattr(self.poll_once, "reopens", False):
            self.close()
            self._retry_at = finished + RETRY
        return _Poll(finished, units, failure)

    def _collect(self, units: dict[int, DeviceSample]) -> object:
        """Poll once and assign the samples to units. Returns the answer; some samples may be recorded before it fails."""
        if self.poll_once is not None:
            self._let_sleep()
        answer = (self.poll_once or self._connect())()
        if answer is not self._answer:
            samples: list[DeviceSample] = []
            unexpected = None
            try:
                for each in answer:
                    record: object = each.record
                    if not isinstance(record, (Mapping, DeviceRecord)):
                        unexpected = SourceError(Reason.PARSE_ERROR, f"{self.name} lists something that is no device: {quoted(record)}")
                    elif len(samples) == MOST_DEVICES + bool(self.spec.machine):
                        # A list this long is noise: none of its devices is reported.
                        samples.clear()
                        raise SourceError(Reason.INVALID_VALUE, f"{self.name} lists more than {MOST_DEVICES} devices: not believed")
                    else:
                        samples.append(each._replace(record=flat(each.record)))
            finally:
                units.update(self._driver.place(self, samples))
            if unexpected is not None:
                raise unexpected
        return answer

    def _connect(self) -> PollOnce:
        self._retry_at = self._clock.monotonic() + RETRY
        row = BUILT_IN.get(self._driver.backend.name)
        if row is not None:
            # The devices that polling might wake.
            self._addresses = [*find_pci(row.pci), *(link_name(f"{path}/device") for path in find_driven(row.drivers))]
        self._let_sleep()
        self.poll_once = self.spec.connect()
        return self.poll_once

    def _let_sleep(self) -> None:
        if getattr(self.spec.connect, "wakes", True):
            let_sleep(self._addresses, self.name)

    def identify(self, samples: Sequence[DeviceSample]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return for each sample its identity, and facts about the device that must not be used to find it.

        An id or an address shared by several devices of one poll identifies none of them. It is left out until the driver is
        reopened. A card's address is reported for its parts if they name the card and have ids. If a number repeats, no number is
        trusted.
        """
        identities = [self._identity(flat(sample.record)) for sample in samples]
        keys = [keys_of(reported) for reported in identities]
        cards: dict[object, set[str]] = {}
        for sample, each in zip(samples, keys, strict=True):
            for key in each:
                cards.setdefault(key, set()).add(sample.whole)
        self.repeated.update(key for key, times in Counter(key for each in keys for key in each).items() if times > 1)
        numbered = all(part != NUMBER for part, _ in self.repeated)
        found = []
        for reported, each in zip(identities, keys, strict=True):
            shared = {key: reported.pop(key[0]) for key in each if key in self.repeated or (key[0] == NUMBER and not numbered)}
            address = {key[0]: value for key, value in shared.items() if key[0] == ADDRESS and len(cards[key]) == 1 and all(cards[key])}
            found.append((reported, address if "uuid" in reported else {}))
        return found

    def _identity(self, record: DeviceRecord) -> dict[str, Any]:
        """Return the identity in one record. A record that stays the same object is read again only until its identity is complete."""
        if record in self._identities:
            return dict(self._identities[record])
        reported: dict[str, Any] = {}
        for attribute, where in self.spec.identity.items():
            for place in (where,) if isinstance(where, str) else where:
                raw = record.get(place)
                value = raw is True if attribute == "unified" else whole(raw) if attribute in NUMBERS else text(raw)
                if attribute in ("uuid", "serial") and not str(value).strip("0x"):
                    value = ""  # zeros identify nothing
                if value is not None and value is not False and value != "":
                    reported[attribute] = value
                    break
        memory = self.table.value("memoryTotalBytes", record)
        if isinstance(memory, int):
            reported["memory_total_bytes"] = memory
        if reported.keys() >= self.spec.identity.keys() and (memory is NOT_READ or isinstance(memory, int)):
            self._identities[record] = dict(reported)
        return reported

    def close(self) -> None:
        """Close the source; a later poll reopens it."""
        poll_once, self.poll_once, self._answer = self.poll_once, None, None
        getattr(poll_once, "close", lambda: None)()


def _failure(outcome: Outcome[Any]) -> SourceError | None:
    if outcome.failure is None:
        return None
    return outcome.error if isinstance(outcome.error, SourceError) else SourceError(*outcome.failure)


def _advised(failure: SourceError) -> Unavailable:
    """Return why the values of one source of several are missing, with the advice for that source unless its message has it."""
    if failure.advice.rpartition(": ")[2] in failure.message:
        return failure.unavailable
    return failure.unavailable._replace(detail=f"{failure.message}: {failure.advice}")


def _combined(failures: Sequence[SourceError], backend: PolledBackend, gone: bool = False) -> SourceError:
    """Combine the failures of several sources into a new error.

    It is new for each reader, since an error raised in two threads gets both tracebacks.

    Args:
        failures: The failures, at least one. A ``DriverGoneError`` among them decides.
        backend: The backend.
        gone: Whether the driver is to be reopened in any case.
    """
    first = next((each for each in failures if isinstance(each, DriverGoneError)), None)
    why = first.unavailable if first is not None else reduce(weightier, (each.unavailable for each in failures))
    advice = next((each.advice for each in failures if each.advice), backend.advice)
    # A tool that refuses this user is installed, so the advice on permissions comes before the advice for a missing tool.
    if why.reason == Reason.NO_PERMISSION and not any(each.advice for each in failures if each.reason == why.reason):
        advice = "; ".join(filter(None, (ADVICE[why.reason], advice)))
    return (DriverGoneError if gone or first is not None else SourceError)(why.reason, why.detail, backend=backend.name, advice=advice)
