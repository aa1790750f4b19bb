"""The deadline boundary: daemon threads that make the vendor calls, so that no caller ever waits in one.

A *lane* takes tasks from its source's queue. What it is doing inside the driver is a *flight*: one unit, one reader, and
the steps it has reported. When a flight stops making steps, the caller who is waiting disowns the lane and a fresh one
takes over the rest of the work; the disowned lane keeps its flight, hence the unit, until the call returns. So a unit is
never read by two lanes, a stuck call is never repeated, and the number of threads is bounded. Disowning says nothing about
how long others wait: each consumer has its own patience with a flight.

Lanes are daemon threads, made and forgotten here: an executor would join them at interpreter exit, and so wait for a hung
driver.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accelmetrics.sampling.cursor import Cursor

MAX_LANES = 4
"""Lanes that work side by side on one slow source."""
MAX_FRUITLESS = 3
"""Take-overs in a row after which a driver counts as hung as a whole: nothing was read in between."""
MAX_STUCK = 16
"""Threads that one source may have, those stuck in calls among them."""

Task = Callable[["Lane"], None]


class Flight:
    """One unit being read: whom for, since when, and how many calls into the driver have returned.

    Attributes:
        unit: The unit's number, -1 while the driver is being opened.
        cursor: Whose reading it is; None while the driver is being opened.
        steps: What the reader appends to after every call; its length is the progress.
        seen: The progress when it was last looked at.
        looked_at: When that was.
        idle: For how long it has stood there, in seconds during which the looker ran on time.
        followers: Other cursors that wait for the unit.
        abandoned: The lane was disowned: nobody waits for this flight any more.
    """

    # Defaults on the class: one flight is made per unit and reading, and nearly all of them land before anybody looks.
    seen = 0
    looked_at = 0.0
    idle = 0.0
    followers: tuple[Cursor, ...] = ()
    abandoned = False

    def __init__(self, unit: int, cursor: Cursor | None, lane: Lane) -> None:
        self.unit = unit
        self.cursor = cursor
        self.lane = lane
        self.steps: list[Any] = []

    def stood_still(self, seconds: float) -> float:
        """Note that so much time has passed, and say for how long no call has returned. Two who look do not count twice."""
        now = time.perf_counter()
        seconds, self.looked_at = min(seconds, now - self.looked_at), now
        progress = len(self.steps)
        if progress != self.seen:
            self.seen = progress
            self.idle = 0.0
        else:
            self.idle += seconds
        return self.idle


class Lane(threading.Thread):
    """One worker thread of a source."""

    def __init__(self, crew: Crew, number: int) -> None:
        super().__init__(name=f"accelmetrics-{crew.name}-{number}", daemon=True)
        self.crew = crew
        self.disowned = False
        self.leaving = False

    def run(self) -> None:
        """Work until told to leave, or until disowned and no longer needed."""
        try:
            self._work()
        finally:
            self.crew.left(self)

    def _work(self) -> None:
        crew = self.crew
        while True:
            try:
                task = crew.queue.get(timeout=crew.delay())
            except Empty:
                task = crew.on_idle
            task(self)
            if self.leaving or (self.disowned and not crew.take_back(self)):
                return


class Crew:
    """The lanes of one source and the queue they work from.

    Args:
        name: The source's name, for thread names.
        on_idle: A task to run when nothing was asked for within ``delay()`` seconds (sources with a pace of their own).
        delay: How long a lane waits for a task before it runs ``on_idle``; None for ever.
    """

    def __init__(self, name: str, on_idle: Task, delay: Callable[[], float | None]) -> None:
        self.name = name
        self.queue: SimpleQueue[Task] = SimpleQueue()
        self.on_idle = on_idle
        self.delay = delay
        self.flights: dict[int, Flight] = {}
        self.lock = threading.Lock()
        self._live: set[Lane] = set()
        self._stuck: set[Lane] = set()
        self._fruitless = 0
        self._count = 0
        self._closed = False

    @property
    def live(self) -> int:
        """Lanes that take tasks, sooner or later."""
        return len(self._live)

    def staff(self, wanted: int) -> bool:
        """Have so many lanes that are not in the middle of a call, as far as the limits allow; send home those beyond.

        Returns:
            Whether some lane will take a task.
        """
        with self.lock:
            while len(self._free()) < wanted and self._may_hire() and self._hire():
                pass
            surplus = len(self._free()) - wanted
        for _ in range(surplus):
            self.queue.put(self._leave)
        return bool(self._live)

    def _free(self) -> set[Lane]:
        busy = {flight.lane for flight in list(self.flights.values())} if self.flights else set()
        return self._live - busy if busy else self._live

    def _may_hire(self) -> bool:
        return self._fruitless < MAX_FRUITLESS and len(self._stuck) + len(self._live) < MAX_STUCK

    def _hire(self) -> bool:
        self._count += 1
        lane = Lane(self, self._count)
        try:
            lane.start()
        except RuntimeError:  # no thread is to be had: the limit of the system, or an interpreter on its way out
            return False
        self._live.add(lane)
        return True

    def _leave(self, lane: Lane) -> None:
        with self.lock:
            if self._free() - {lane}:
                self._live.discard(lane)
                lane.leaving = True

    def send_home(self, lane: Lane) -> None:
        """Let a lane end after its present task."""
        with self.lock:
            self._live.discard(lane)
            lane.leaving = True

    def disown(self, flight: Flight) -> None:
        """Give up on a lane that is stuck in a call, and let a fresh one take over, unless too many have been."""
        with self.lock:
            lane = flight.lane
            if flight.abandoned or self.flights.get(flight.unit) is not flight:
                return
            flight.abandoned = True
            lane.disowned = True
            self._live.discard(lane)
            self._stuck.add(lane)
            self._fruitless += 1
            if not self._live and self._may_hire():
                self._hire()
        if flight.cursor is not None and self._live:
            self.queue.put(flight.cursor.work)

    def landed(self, flight: Flight) -> tuple[Cursor, ...]:
        """A flight came back: free its unit and say who else waits for it."""
        with self.lock:
            if self.flights.get(flight.unit) is flight:
                del self.flights[flight.unit]
            self._fruitless = 0
            return flight.followers

    def take_back(self, lane: Lane) -> bool:
        """A disowned lane has finished its call: keep it if there is no other, else let it end."""
        with self.lock:
            self._stuck.discard(lane)
            if self._live or self._closed:
                return False
            lane.disowned = False
            self._live.add(lane)
            return True

    def left(self, lane: Lane) -> None:
        """A lane has ended, for whatever reason: it is counted no more, and what it was reading is free."""
        with self.lock:
            self._live.discard(lane)
            self._stuck.discard(lane)
            for unit in [unit for unit, flight in self.flights.items() if flight.lane is lane]:
                del self.flights[unit]

    def dismiss(self) -> None:
        """End every lane: one that is stuck ends when its call returns."""
        with self.lock:
            self._closed = True
            leaving = list(self._live)
            self._live.clear()
        for lane in leaving:
            lane.leaving = True
            self.queue.put(_nothing)

    def reopen(self) -> None:
        """Take lanes on again."""
        with self.lock:
            self._closed = False


def _nothing(lane: Lane) -> None:
    """A task that only wakes a lane, so that it sees that it may leave."""
