"""Where ``watch`` takes its readings from: what every source has, the monitor of this machine, and records put together."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from accelmetrics.backends.kit.system import sysroot
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.schemas.errors import Unavailable
from accelmetrics.schemas.record import NO_HOLDERS, HoldersOf, Record, Step
from accelmetrics.schemas.ring import row_of
from accelmetrics.schemas.snapshot import Snapshot, own_processes
from accelmetrics.schemas.statistics import WindowAggregator
from accelmetrics.schemas.summary import Energy, Summary
from accelmetrics.views.device_view import WarningLevels
from accelmetrics.views.node_view import NodeView, node_view
from accelmetrics.views.summaries import Measured, of_window
from accelmetrics.views.trails import Trails, metric_row
from accelmetrics.visibility.processes import ProcessDetails, ProcessListing, ProcessLookup, SystemLookup, process_details

if TYPE_CHECKING:
    import psutil

LATE = 2.5
"""Intervals after which a reading that has not come is missed on the screen too."""
MOST_MEASURED = 64
"""Processes whose processor time is measured; more are not seen at once."""
GAP = 3.0
"""In intervals: over a longer silence nothing is reckoned."""


class RecordWindow:
    """What the devices did in a stretch of records."""

    def __init__(self) -> None:
        self._newest: Snapshot | None = None
        self._begin_ns = 0
        self._statistics = WindowAggregator(0.0, across=False)

    def add(self, snapshot: Snapshot, interval: float) -> None:
        """Take a reading; the same one twice counts once. Where the clock was set back, the stretch begins anew."""
        before = self._newest
        if before is None or snapshot.time_ns < before.time_ns:
            before, self._begin_ns, self._statistics = None, snapshot.time_ns, WindowAggregator(0.0, across=False)
        elif snapshot.time_ns == before.time_ns:
            return
        self._newest = snapshot
        joined = before is None or (snapshot.time_ns - before.time_ns) / 1e9 <= GAP * max(1.0, interval)
        self._statistics.feed([row_of(snapshot, self.duration, joined)])

    @property
    def duration(self) -> float:
        """Seconds from the first reading to the last."""
        return 0.0 if self._newest is None else (self._newest.time_ns - self._begin_ns) / 1e9

    @property
    def summary(self) -> Mapping[str, Summary]:
        """By key, the statistics."""
        return self._statistics.summary()

    @property
    def energy_joules(self) -> Mapping[str, Energy]:
        """By device key, the energy that it used."""
        return self._statistics.energy_joules()


class WatchSource(ABC):
    """Where readings come from, put together for people: this machine, another one, a recording.

    What shows them asks :meth:`look` again and again, and finds here what is to be shown.

    Args:
        levels: From where on values are warnings.
        interval: Seconds between two readings, as long as none says it.

    Attributes:
        view: The node now; None before the first reading.
        record: The reading that this is of, with what rules find and who holds the devices.
        trails: The history.
        local: Whether its processes are this machine's and live, so that a signal can reach them.
        replay: Whether keys go through time.
        ended: Whether nothing more is to come.
    """

    local = replay = ended = False

    def __init__(self, levels: WarningLevels, interval: float) -> None:
        self.view: NodeView | None = None
        self.record: Record | None = None
        self.trails = Trails(interval)
        self._levels = levels
        self._window = RecordWindow()
        self._measured: Measured = self._window

    @property
    def label(self) -> str:
        """Where the readings come from; empty: they are live."""
        return ""

    @property
    def notice(self) -> str:
        """Why nothing new comes, in words, for as long as that is so; empty otherwise."""
        return ""

    @property
    def error(self) -> str:
        """What is not read and why; empty while everything answers."""
        return ""

    @abstractmethod
    def look(self) -> bool:
        """Take what is new; return whether there is another view."""

    def details(self, pid: int, environment: bool) -> ProcessDetails | None:
        """Return the tree of a process, and its environment if that is wanted; None where they are not known, or not yet."""
        return None

    def press(self, key: str, scale: str) -> str | None:
        """Do what a key asks of this kind of source.

        Args:
            key: Its name.
            scale: The stretch of time that graphs show.

        Returns:
            What to say; None for a key that asks nothing of it.
        """
        return None

    def follow(self, metric: str) -> None:
        """Have a history of one more metric."""
        self.trails.follow(metric)

    def reset(self) -> None:
        """Forget the history, and begin the summary anew."""
        self.trails.clear()
        self._measured = self._window = RecordWindow()

    def summary(self) -> str:
        """Return what the devices did since the start, or the last reset: a line each."""
        return of_window(self._measured, None if self.record is None else self.record.snapshot, "since the start or the last reset")

    def _show(self, age: float) -> None:
        """Put together what is shown of the record, which is so many seconds old."""
        if self.record is not None:
            now = self.record.snapshot.time_ns + int(age * 1e9)
            self.view = node_view(self.record, interval=self.trails.interval, now_ns=now, levels=self._levels, before=self.view)


class LiveSource(WatchSource):
    """The readings of a monitor as they come.

    Args:
        watching: The monitor.
        levels: From where on values are warnings.
        holders: Tells who holds the devices.
        own: Whether the process that the monitor watches is this one, which is of no interest.
    """

    local = True

    def __init__(self, watching: Monitor, levels: WarningLevels, holders: HoldersOf | None = None, *, own: bool = True) -> None:
        super().__init__(levels, watching.interval)
        self._watching = watching
        self._holders = holders
        self._own = own
        self._due = self._since = 0.0
        self._last_step: Step | None = None
        self._measured = watching.window("watch").begin()
        self._lookup = ProcessLookup()
        self._listing: ProcessListing | None = None
        self._processes: dict[int, psutil.Process] = {}
        self._cpu: dict[int, float] = {}
        self._memory: dict[int, int] = {}
        self._details = SystemLookup[ProcessDetails]()

    @property
    def error(self) -> str:
        """What is not read and why; empty while everything answers."""
        return self._watching.error

    def look(self) -> bool:
        """Take what is new; return whether there is another view. A reading that does not come makes the last one old."""
        latest, findings, now = self._watching.latest, self._watching.findings, time.monotonic()
        known = self.record
        if latest is None or (known is not None and latest is known.snapshot and findings is known.findings and now < self._due):
            return False
        if known is None or latest is not known.snapshot:
            self._listing = self._lookup.listing(latest)
            self._measure(latest)
            if known is not None:  # the first picture does not wait for the import
                self._watching.collect_program_steps()
        self._due = now + LATE * self._watching.interval
        self.record = Record(latest, findings=findings, holders=NO_HOLDERS if self._holders is None else self._holders(latest))
        view = node_view(
            self.record,
            processes=self._listing,
            cpu=self._cpu,
            memory=self._memory,
            interval=self._watching.interval,
            now_ns=time.time_ns(),
            levels=self._levels,
            before=self.view,
        )
        self.view = replace(
            view, host={name: value for name, value in view.host.items() if not (self._own and name.startswith("process_"))}
        )
        self.trails.add(self.view)
        steps = self._watching.steps
        new = next((place for place in range(len(steps), 0, -1) if steps[place - 1] is self._last_step), 0)
        self.trails.add_steps(steps[new:])
        self._last_step = steps[-1] if steps else None
        return True

    def details(self, pid: int, environment: bool) -> ProcessDetails | None:
        """Return the tree of a process, and its environment if that is wanted; None while the system has not answered."""
        if self.record is None:
            return None
        snapshot = self.record.snapshot
        found = self._details.answer((pid, environment), lambda: process_details(snapshot, pid, environment=environment))
        return found if found is not None and found.pid == pid else None

    def follow(self, metric: str) -> None:
        """Have a history of one more metric: of what the monitor remembers too."""
        view, history = self.view, self._watching.history
        if view is None or not self.trails.follow(metric):
            return
        known = history.keys()
        for device in view.devices:
            keys = (f"{device.key}.{name}" for name in metric_row(view, metric).names)
            key = next((key for key in keys if key in known), "")
            for moment, value in zip(*history.series(key), strict=True) if key else ():
                if moment >= self._since:
                    self.trails.add_values(int(moment * 1e9), device.key, {metric: value})

    def reset(self) -> None:
        """Forget the history, and begin the summary anew."""
        self.trails.clear()
        self._since = time.time()
        self._measured = self._watching.window("watch").begin()

    def _measure(self, snapshot: Snapshot) -> None:
        """Measure processor time since the last reading, and memory, of those that are to be seen here under the driver's number."""
        if sysroot():  # another numbering than psutil's
            return
        import psutil

        here = {process.pid for process in (() if self._listing is None else self._listing.processes) if process.started is not None}
        pids = {use.pid for found in own_processes(snapshot).values() if not isinstance(found, Unavailable) for use in found}
        kept, self._processes, self._cpu, self._memory = self._processes, {}, {}, {}
        for pid in sorted(here & pids)[:MOST_MEASURED]:
            try:
                process = kept.get(pid) or psutil.Process(pid)
                percent, memory = process.cpu_percent(), process.memory_info().rss
            except psutil.Error:
                continue
            self._processes[pid], self._memory[pid] = process, memory
            if pid in kept:  # the first look gives nothing to compare with
                self._cpu[pid] = percent
