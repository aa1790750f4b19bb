"""What one sampler keeps for one source: which devices it selected, what it was served, under which keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accelmetrics.backends.contract import Number
from accelmetrics.sampling.assemble import Shelf
from accelmetrics.sampling.cursor import Cursor, Result
from accelmetrics.sampling.inventory import Inventory
from accelmetrics.sampling.options import Options
from accelmetrics.sampling.selection import Selection
from accelmetrics.sampling.source import Source
from accelmetrics.schemas.catalogue import expected_names
from accelmetrics.schemas.identity import BackendStatus, DeviceProcess, Status
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.reasons import Reason, Unavailable
from accelmetrics.schemas.snapshot import Place, rfc3339

HUNG = Unavailable(Reason.TIMED_OUT, "a call into the driver has not returned")
DRIVER_HUNG = Unavailable(Reason.TIMED_OUT, "the driver answers no call: too many have not returned")
TOO_SLOW = Unavailable(Reason.TIMED_OUT, "the driver did not answer within the deadline")
LATE = Unavailable(Reason.STALE, "the reading is late: the interpreter was busy elsewhere, no call into the driver hangs")
OPENING = Unavailable(Reason.TIMED_OUT, "the driver is still being opened")
STALE = Unavailable(Reason.STALE, "the source's last reading is too old")
LOST = Unavailable(Reason.DEVICE_LOST, "the driver no longer lists this device")


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
        self._kind = source.backend.kind
        self._expected = _expected(source)
        self._shelves: dict[int, Shelf] = {}
        self._all_numbers: list[int] = []
        self._numbers: list[int] = []
        self._served: dict[int, Result] = {}
        self._places: tuple[Place, ...] = ()
        self._sequence = 0
        self._began = 0.0

    def prepare(self) -> Cursor | None:
        """Have a cursor on the driver that is open now."""
        source = self.source
        if source.state != "open":
            return None
        if self.cursor is None or self.cursor.generation != source.generation:
            self._list_devices()
            self.cursor = source.new_cursor(self._read_options, self._selected_units())
            self._served = {}
        return self.cursor

    @property
    def places(self) -> tuple[Place, ...]:
        """The devices of this source that were selected, by number: all that were ever seen, lost ones too."""
        return self._places

    def ask(self, now: float) -> bool:
        """Ask for a reading, if one is due.

        Returns:
            Whether there is something to wait for.
        """
        cursor = self.prepare()
        if cursor is None:
            return False
        cursor.served_at = self._began = now
        source = self.source
        if not source.paced:
            cursor.send(now, source.lanes)
            return True
        if cursor.finished and (not cursor.asked_at or now - cursor.asked_at >= source.backend.interval):
            cursor.send(now, 1)
        return not all(self._acceptable(unit, cursor.results.get(unit), now) for unit in cursor.units)

    def collect(self, metrics: dict[str, Number], reasons: list[Mapping[str, Unavailable]], late: bool) -> BackendStatus:
        """Add what was read to the flat dict and the list of reasons, and say how the source fared."""
        cursor = self.cursor
        if self.source.state != "open" or cursor is None:
            return self._closed(reasons)
        failures: dict[str, Unavailable] = {}
        oldest = None
        fresh = False
        now = self.source.clock.monotonic()
        for unit, number in zip(cursor.units, self._numbers, strict=True):
            shelf = self._shelves[number]
            result = cursor.results.get(unit)
            usable = self._acceptable(unit, result, now)
            if usable and result is not None and result.outcome.value is not None:
                reasons.append(shelf.put(result.outcome.value, metrics))
                oldest = result.read_at if oldest is None else min(oldest, result.read_at)
            else:
                failure = self._why(unit, result if usable else None, cursor, late)
                failures[shelf.key] = failure
                reasons.append(shelf.fail(failure))
            if result is not None and self._served.get(unit) is not result:
                fresh = True
                self._served[unit] = result
        self._sequence += fresh
        if cursor.spent:
            self.source.busy_seconds = cursor.spent
        self.timed_out = any(why.reason == Reason.TIMED_OUT for why in failures.values())
        reasons.extend(self._missing_devices())
        return self._status(cursor, failures, oldest, now)

    def processes(self) -> dict[str, tuple[DeviceProcess, ...]]:
        """By device key, the processes that use it, where the source can say."""
        cursor = self.cursor
        if cursor is None or self._kind is None:
            return {}
        found = {}
        for unit, number in zip(cursor.units, self._numbers, strict=True):
            result = self._served.get(unit)
            if result is not None and result is cursor.results.get(unit) and result.outcome.value is not None:
                listed = result.outcome.value.processes
                if listed is not None:
                    found[self._shelves[number].key] = listed
        return found

    def _list_devices(self) -> None:
        if self._kind is None:
            self._shelves.setdefault(0, Shelf("", self._expected))
            return
        numbers = self._inventory.adopt(self.source.backend.name, self.source.devices)
        known = self._inventory.known(self.source.backend.name)
        places = [Place(f"{identity.kind}.{number}", number, None, identity) for number, identity in sorted(known.items())]
        self._places = tuple(place for place in places if self._selection.wants(place))
        for place in self._places:
            self._shelves.setdefault(place.index, Shelf(place.key, self._expected))
        self._all_numbers = numbers

    def _selected_units(self) -> Sequence[int]:
        if self._kind is None:
            self._numbers = [0]
            return (0,)
        chosen = {place.index for place in self._places}
        units = [unit for unit, number in enumerate(self._all_numbers) if number in chosen]
        self._numbers = [self._all_numbers[unit] for unit in units]
        return units

    def _acceptable(self, unit: int, result: Result | None, now: float) -> bool:
        """Whether a result may be served: one that came back since the last time, or of a paced source and not stale."""
        if result is None:
            return False
        interval = self.source.backend.interval
        if interval > 0:
            return now - result.read_at <= 2.0 * interval + self._timeout
        return self._served.get(unit) is not result and self._began - result.read_at <= self._timeout

    def _why(self, unit: int, result: Result | None, cursor: Cursor, late: bool) -> Unavailable:
        if result is not None:
            return result.outcome.failure or Unavailable(Reason.DRIVER_ERROR, "the reader gave nothing")
        if unit in cursor.blocked:
            return HUNG
        if self.source.crew.live == 0:
            return DRIVER_HUNG
        if late:
            return LATE
        return STALE if self.source.paced and unit in cursor.results else TOO_SLOW

    def _closed(self, reasons: list[Mapping[str, Unavailable]]) -> BackendStatus:
        source = self.source
        if source.state == "absent":
            self.timed_out = False
            return BackendStatus(source.backend.name, "absent", source.detection.evidence)
        failure = OPENING if source.state == "opening" else source.failure or OPENING
        if self._kind is None:
            self._shelves.setdefault(0, Shelf("", self._expected))
        reasons.extend(shelf.fail(failure) for shelf in self._shelves.values())
        self.timed_out = failure.reason == Reason.TIMED_OUT
        status: Status = "timed_out" if self.timed_out else "failed"
        return BackendStatus(source.backend.name, status, failure.detail, duration_seconds=source.open_seconds, sequence=self._sequence)

    def _missing_devices(self) -> list[Mapping[str, Unavailable]]:
        """Devices that were there once and that the driver no longer lists."""
        if len(self._shelves) == len(self._numbers):
            return []
        return [shelf.fail(LOST) for number, shelf in self._shelves.items() if number not in self._numbers]

    def _status(self, cursor: Cursor, failures: Mapping[str, Unavailable], oldest: float | None, now: float) -> BackendStatus:
        source = self.source
        driver = source.driver
        detail = source.detection.evidence
        status: Status = "ok"
        if failures:
            detail = "; ".join(f"{key or source.backend.name}: {why.reason}: {why.detail}" for key, why in failures.items())
            status = "degraded"
            if len(failures) == len(cursor.units):
                status = "timed_out" if all(why.reason == Reason.TIMED_OUT for why in failures.values()) else "failed"
        name = driver.source if driver is not None else ""
        if oldest is None:
            return BackendStatus(source.backend.name, status, detail, name, None, "", None, self._sequence)
        age = max(0.0, now - oldest)
        return BackendStatus(source.backend.name, status, detail, name, cursor.spent, self._stamp(age), age, self._sequence)

    def _stamp(self, age: float) -> str:
        return rfc3339(self.source.clock.time_ns() - int(age * 1e9))


def _expected(source: Source) -> tuple[str, ...]:
    rows: tuple[Metric, ...] = tuple(source.backend.own_metrics())
    return (*expected_names(source.backend.name), *(row.name for row in rows if not row.conditional))
