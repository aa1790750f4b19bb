"""What one sampler keeps for one source: which devices it selected, what it was served, under which keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from accelmetrics.backends.contract import Block, Reading
from accelmetrics.sampling.assemble import Entry, Shelf
from accelmetrics.sampling.boundary import fault
from accelmetrics.sampling.cursor import Cursor, Gate, Result
from accelmetrics.sampling.inventory import Inventory
from accelmetrics.sampling.options import Options
from accelmetrics.sampling.selection import Selection
from accelmetrics.sampling.source import Source
from accelmetrics.sampling.viewer import UNSEEN, Viewer
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, Status
from accelmetrics.schemas.reasons import Reason, Unavailable
from accelmetrics.schemas.snapshot import DeviceSlot, rfc3339

HUNG = Unavailable(Reason.TIMED_OUT, "a call into the driver has not returned")
DRIVER_HUNG = Unavailable(Reason.TIMED_OUT, "the driver answers no call: too many have not returned")
NO_THREAD = Unavailable(Reason.DRIVER_ERROR, "no thread is to be had to call the driver with")
TOO_SLOW = Unavailable(Reason.TIMED_OUT, "the driver did not answer within the deadline")
LATE = Unavailable(Reason.STALE, "the reading is late: the interpreter was busy elsewhere, no call into the driver hangs")
OPENING = Unavailable(Reason.TIMED_OUT, "the driver is still being opened")
STALE = Unavailable(Reason.STALE, "the source's last reading is too old")
NO_FAULTS = frozenset({Reason.NOT_IN_USE, Reason.NOT_SUPPORTED, Reason.NEEDS_INTERVAL, Reason.SUSPENDED})
"""Reasons for which a source may give no value, and be well."""
LOST = Unavailable(Reason.DEVICE_LOST, "the driver no longer lists this device")


class Served(NamedTuple):
    """What one source gave for one snapshot.

    Attributes:
        entries: Of every unit, the reading or the reason why there is none.
        status: How the source fared.
    """

    entries: list[Entry]
    status: BackendStatus


class Post:
    """One sampler's place at one source.

    Attributes:
        source: The source.
        cursor: The current reader and its results; None while the driver is not open.
        timed_out: Whether some unit gave no answer at the last reading.
    """

    def __init__(self, source: Source, inventory: Inventory, options: Options, selection: Selection, forced: bool) -> None:
        self.source = source
        self.cursor: Cursor | None = None
        self.forced = forced
        self.timed_out = False
        self._inventory = inventory
        self._read_options = options.read_options()
        self._timeout = options.timeout
        self._selection = selection
        self._viewer = Viewer(options)
        self._shown: dict[str, DeviceSlot] = {}
        self._listing: tuple[DeviceIdentity, ...] = ()
        self._shelves: dict[str, Shelf] = {}
        self._shelved: list[tuple[int, Shelf]] = []
        self._lost: list[Shelf] = []
        self._served: dict[int, Result] = {}
        self._places: tuple[DeviceSlot, ...] = ()
        self._sequence = 0
        self._began = 0.0

    def prepare(self) -> Cursor | None:
        """Have a cursor on the driver that is open now."""
        source = self.source
        if source.state != "open":
            return None
        if self.cursor is None or self.cursor.generation != source.generation:
            self.cursor = source.new_cursor(self._read_options, self._selected_units(self._list_devices(source.devices)))
            self._served = {}
        elif source.look() is not self._listing:
            self.cursor.units = tuple(self._selected_units(self._list_devices(source.devices)))
        return self.cursor

    @property
    def places(self) -> tuple[DeviceSlot, ...]:
        """The devices of this source that were selected, by number: all that were ever seen, lost ones too."""
        return self._places

    @property
    def candidates(self) -> tuple[DeviceSlot, ...]:
        """The devices that could be selected: all of this source, or those that the watched process sees."""
        return tuple(self._shown.values())

    def ask(self, now: float, gate: Gate) -> bool:
        """Ask for a reading, if one is due.

        Args:
            now: When, on the sampler's clock.
            gate: What opens when all sources without a pace of their own have answered.

        Returns:
            Whether there is something to wait for.
        """
        cursor = self.prepare()
        if cursor is None:
            return False
        cursor.served_at = self._began = now
        source = self.source
        if not source.paced:
            cursor.send(now, source.lanes, gate)
            return True
        if cursor.finished and (not cursor.asked_at or now - cursor.asked_at >= source.pace):
            cursor.send(now, 1)
        return not all(unit in cursor.blocked or self._acceptable(unit, cursor.results.get(unit), now) for unit in cursor.units)

    def collect(self, late: bool) -> Served:
        """What came of the reading: an entry for every unit, and how the source fared.

        Args:
            late: The interpreter was too busy elsewhere to wait for everything.
        """
        cursor = self.cursor
        if self.source.state != "open" or cursor is None:
            return self._closed()
        entries: list[Entry] = []
        failures: dict[str, Unavailable] = {}
        oldest = None
        fresh = False
        now = self.source.clock.monotonic()
        served, results = self._served, cursor.results
        for unit, shelf in self._shelved:
            result = results.get(unit)
            usable = self._acceptable(unit, result, now)
            if usable and result is not None and result[0].value is not None:
                entries.append((shelf, result[0].value))
                oldest = result[1] if oldest is None else min(oldest, result[1])
            else:
                failures[shelf.key] = failure = self._why(unit, result if usable else None, cursor, late)
                entries.append((shelf, failure))
            if result is not None and served.get(unit) is not result:
                fresh = fresh or unit not in served or served[unit][1] != result[1] or not self.source.paced
                served[unit] = result
        if self.source.look() is not self._listing:
            # What this reading found out about its devices; those that it found besides are read from the next one on.
            self._list_devices(self.source.devices[: len(self._listing)])
        self._sequence += fresh
        if cursor.spent:
            self.source.busy_seconds = cursor.spent
        silence = None if failures else _silence(entries)
        missing = failures.values() if silence is None else (silence,)
        self.timed_out = bool(missing) and any(why.reason == Reason.TIMED_OUT for why in missing)
        entries.extend((shelf, LOST) for shelf in self._lost)
        status, detail = self._fared(cursor, failures, silence)
        return Served(entries, self._status(status, detail, cursor, None if oldest is None else max(0.0, now - oldest)))

    def _list_devices(self, devices: tuple[DeviceIdentity, ...]) -> list[str]:
        """Note which devices there are and have a shelf for each that was selected: the keys of the driver's units."""
        name = self.source.backend.name
        self._listing = devices
        listed = self._inventory.adopt(name, devices)
        self._shown = self._viewer.show(self._inventory.known(name))
        self._places = tuple(place for place in self._shown.values() if self._selection.wants(place))
        for place in self._places:
            if place.key not in self._shelves:
                coverage = self.source.coverage
                self._shelves[place.key] = Shelf(place.key, tuple(coverage.partitions if place.identity.parent else coverage.devices))
        return [self._shown[place.key].key if place.key in self._shown else UNSEEN for place in listed]

    def _selected_units(self, keys: Sequence[str]) -> list[int]:
        """The units to read, in the driver's order; notes on the way which shelf each goes to and which devices are lost."""
        self._shelved = [(unit, self._shelves[key]) for unit, key in enumerate(keys) if key in self._shelves]
        self._lost = [shelf for key, shelf in self._shelves.items() if key and key not in keys]
        driver = self.source.driver
        if driver is not None and driver.machine_wide:
            self._shelved.append((len(keys), self._machine_shelf()))
        return [unit for unit, _ in self._shelved]

    def _machine_shelf(self) -> Shelf:
        return self._shelves.setdefault("", Shelf("", tuple(self.source.coverage.machine)))

    def _acceptable(self, unit: int, result: Result | None, now: float) -> bool:
        """Whether a result may be served: one that came back since the last time, or of a paced source and not stale."""
        if result is None:
            return False
        if self.source.paced:
            return now - result[1] <= 2.0 * self.source.pace + self._timeout
        return self._served.get(unit) is not result and self._began - result[1] <= self._timeout

    def _why(self, unit: int, result: Result | None, cursor: Cursor, late: bool) -> Unavailable:
        if result is not None:
            return result[0].failure or Unavailable(Reason.DRIVER_ERROR, "the reader gave nothing")
        if unit in cursor.blocked:
            return HUNG
        if self.source.crew.live == 0:
            return DRIVER_HUNG if self.source.crew.flights else NO_THREAD
        if late:
            return LATE
        return STALE if self.source.paced and unit in cursor.results else TOO_SLOW

    def _closed(self) -> Served:
        """What is to be said of a source that is not open: the reason, under every key that it ever gave."""
        source = self.source
        if source.state == "absent":
            self.timed_out = False
            return Served([], BackendStatus(source.backend.name, "absent", source.detection.evidence))
        failure = OPENING if source.state == "opening" else source.failure or OPENING
        if source.coverage.machine:
            self._machine_shelf()
        self.timed_out = failure.reason == Reason.TIMED_OUT
        status: Status = "timed_out" if self.timed_out else "failed"
        said = BackendStatus(source.backend.name, status, failure.detail, duration_seconds=source.open_seconds, sequence=self._sequence)
        return Served([(shelf, failure) for shelf in self._shelves.values()], said)

    def _fared(self, cursor: Cursor, failures: Mapping[str, Unavailable], silence: Unavailable | None) -> tuple[Status, str]:
        """How an open source fared, and what there is to say about it."""
        if failures:
            words = [f"{key or self.source.backend.name}: {why.reason}: {why.detail}" for key, why in failures.items()]
            if len(failures) < len(cursor.units):
                return "degraded", "; ".join(words)
            late = all(why.reason == Reason.TIMED_OUT for why in failures.values())
            return "timed_out" if late else "failed", "; ".join(words)
        if silence is not None:
            return "timed_out" if silence.reason == Reason.TIMED_OUT else "degraded", f"{silence.reason}: {silence.detail}"
        if self._lost:
            return "degraded", "; ".join(f"{shelf.key}: {LOST.reason}: {LOST.detail}" for shelf in self._lost)
        return "ok", "; ".join(filter(None, (self.source.detection.evidence, self._viewer.caveat)))

    def _status(self, status: Status, detail: str, cursor: Cursor, age: float | None) -> BackendStatus:
        source = self.source
        name = source.driver.source if source.driver is not None else ""
        if age is None:
            return BackendStatus(source.backend.name, status, detail, name, None, "", None, self._sequence)
        return BackendStatus(source.backend.name, status, detail, name, cursor.spent, self._stamp(age), age, self._sequence)

    def _stamp(self, age: float) -> str:
        return rfc3339(self.source.clock.time_ns() - int(age * 1e9))


def _silence(entries: Sequence[Entry]) -> Unavailable | None:
    """Why a source that was read gives no value of any unit, where something is wrong; None where it gives one."""
    faults: list[Unavailable] = []
    for _, what in entries:
        if type(what) is not Reading or _gives(what) or fault(what):
            return None
        faults.extend(why for why in what.unavailable.values() if why.reason not in NO_FAULTS)
    return next((why for why in faults if why.reason != Reason.TIMED_OUT), faults[0] if faults else None)


def _gives(reading: Reading) -> bool:
    """Whether there is a value in a reading, or something that is none of the contract's."""
    if not isinstance(reading.blocks, (list, tuple)):
        return True
    for block in reading.blocks:  # noqa: SIM110 - a generator costs more here
        if type(block) is not Block or block.names:
            return True
    return False
