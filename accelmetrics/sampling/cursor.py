"""One consumer's readings of one open source: what it asked for, what has come back, what is still in the air."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from accelmetrics.backends.contract import Driver, Reader, Reading, ReadOptions
from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.sampling.boundary import checked_reading
from accelmetrics.sampling.lanes import Flight, Lane
from accelmetrics.schemas.reasons import Reason, Unavailable

if TYPE_CHECKING:
    from accelmetrics.sampling.source import Source

SHORTEST_HANG = 0.05
"""Seconds without a returned call below which no lane is disowned, however impatient a consumer is."""
TIMES = (type(None), float)
GONE = Unavailable(Reason.DRIVER_UNAVAILABLE, "the driver was closed before this was read")


Result = tuple[Outcome[Reading], float]
"""One unit's last answer: the reading, or why there is none, and when the source took it, on the sampler's clock."""


class Gate:
    """Opens when all who are expected have arrived, so that who waits for several sources is woken once.

    Whoever makes it is expected too, and arrives when nobody else is to come.
    """

    __slots__ = ("_expected", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._expected: list[None] = [None]

    def expect(self) -> None:
        """One more is to come."""
        self._expected.append(None)

    def arrive(self) -> None:
        """One has come. Safe from any thread."""
        try:
            self._expected.pop()
            if not self._expected:
                self._lock.release()
        except (IndexError, RuntimeError):  # two who were the last came at once, or one has come twice
            return

    def wait(self, seconds: float) -> bool:
        """Wait until it opens, at most so long; whether it has. It lets one through."""
        return self._lock.acquire(timeout=seconds)


class Cursor:
    """Where one consumer stands in one source.

    Made anew when the driver is opened again, since the reader, and with it what rates are taken from, belongs to one
    driver. Lanes write to it and the consumer's thread waits on it; every shared step is a single operation on a
    built-in container, so neither side holds a lock while the other works.

    Attributes:
        units: The units this consumer reads.
        results: By unit, the last answer.
        asked_at: When the current reading was asked for, on the sampler's clock.
        served_at: When the consumer last looked, on the sampler's clock.
        spent: Seconds that the lanes worked on the current reading, added up over its units.
        blocked: Units stuck in a call that nobody waits for any more.
    """

    def __init__(self, source: Source, driver: Driver, options: ReadOptions, generation: int, units: Sequence[int]) -> None:
        self.source = source
        self.generation = generation
        self.units = tuple(units)
        self.results: dict[int, Result] = {}
        self.asked_at = 0.0
        self.served_at = 0.0
        self.spent = 0.0
        self.blocked: set[int] = set()
        self._make_reader = partial(driver.reader, options)
        self._reader: Reader | None = None
        self._reader_lock = threading.Lock()
        self._pending: deque[int] = deque()
        self._wanted: set[int] = set()
        self._gate = Gate()

    @property
    def finished(self) -> bool:
        """Whether everything asked for has come back, or is beyond waiting for."""
        return not self._wanted

    def ask(self, now: float, gate: Gate | None = None) -> None:
        """Note that every unit is to be read; those in the air from the last time are joined, not read again.

        Args:
            now: When, on the sampler's clock.
            gate: What opens when this and other readings have come back; one of this reading's own when left out.
        """
        self.asked_at = now
        self.spent = 0.0
        self._gate = entered = Gate() if gate is None else gate
        entered.expect()
        missing = self._not_in_the_air() if self.source.crew.flights or self._wanted else self.units
        self._wanted.update(missing)
        self._pending.extend(missing)
        if gate is None:
            entered.arrive()
        if not self._wanted:
            entered.arrive()  # nothing is to be read that is worth waiting for

    def send(self, now: float, lanes: int, gate: Gate | None = None) -> None:
        """Ask, and hand the work to so many lanes, if there are any to be had."""
        crew = self.source.crew
        staffed = crew.staff(lanes)
        self.ask(now, gate)
        if staffed:
            for _ in range(min(lanes, len(self._pending))):
                crew.queue.put(self.work)

    def _not_in_the_air(self) -> Sequence[int]:
        """Which units to read; one that is still stuck since the last time is not waited for again."""
        flights = self.source.crew.flights
        missing = []
        for unit in self.units:
            if unit in self.blocked and unit in flights:
                self._wanted.discard(unit)
            elif unit not in self._wanted:
                missing.append(unit)
        return missing

    def wait(self, seconds: float) -> bool:
        """Wait for the last unit, at most so long; whether it has come."""
        if not self._wanted:
            return True
        return self._gate.wait(seconds) or not self._wanted

    def watch(self, seconds: float, patience: float) -> bool:
        """Note that so much time has passed without the last unit, and give up those whose calls stood still for too long.

        The lane of such a call is disowned, so that another can go on with the rest; who has more patience still waits.

        Returns:
            Whether anything is still worth waiting for.
        """
        crew = self.source.crew
        for unit, flight in list(crew.flights.items()):
            idle = flight.stood_still(seconds)
            if idle >= patience and unit in self._wanted:
                self.blocked.add(unit)
                self._wanted.discard(unit)
            if idle >= max(patience, SHORTEST_HANG) and not flight.abandoned:
                crew.disown(flight)
        return bool(self._wanted) and (crew.live > 0 or not self._wanted.isdisjoint(crew.flights))

    def work(self, lane: Lane) -> None:
        """Read pending units, on a lane, until there are none or the lane is disowned."""
        flights = self.source.crew.flights
        while not lane.disowned:
            try:
                unit = self._pending.popleft()
            except IndexError:
                return
            flight = Flight(unit, self, lane)
            other = flights.setdefault(unit, flight)
            if other is not flight:
                self._follow(other, unit)
            elif self.source.generation != self.generation or self.source.driver is None:
                self._land(flight, Outcome(None, self.source.failure or GONE, None, 0.0))
            else:
                self._land(flight, guarded(self._read, unit, flight.steps))

    def _read(self, unit: int, progress: list[Any]) -> Reading:
        """What the backend's reader gives, held to the contract."""
        reader = self._reader
        if reader is None:
            with self._reader_lock:
                reader = self._reader = self._reader or self._make_reader()
        reading = reader.read(unit, progress)
        if type(reading) is Reading and type(reading.read_at) in TIMES:
            return reading
        return checked_reading(reading)

    def _follow(self, other: Flight, unit: int) -> None:
        """Another reading of this unit is in the air: take its answer if it is ours, read again after it if not."""
        crew = self.source.crew
        with crew.lock:
            if crew.flights.get(unit) is other:
                if other.cursor is not self:
                    other.followers = (*other.followers, self)
                return
        self._pending.append(unit)

    def _land(self, flight: Flight, outcome: Outcome[Reading]) -> None:
        unit = flight.unit
        reading = outcome.value
        read_at = self.source.clock.monotonic() if reading is None or reading.read_at is None else reading.read_at
        self.results[unit] = (outcome, read_at)
        self.spent += outcome.seconds
        for follower in self.source.crew.landed(flight):
            follower._pending.append(unit)
            self.source.crew.queue.put(follower.work)
        if outcome.error is not None:
            self.source.failed_in(self, outcome.error)
        if self.source.retired:
            self.source.bury()
        self.blocked.discard(unit)
        self._wanted.discard(unit)
        if not self._wanted:
            self._gate.arrive()
