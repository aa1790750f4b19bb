"""Sources of readings for ``watch``: the base class, this machine's monitor, and statistics over a stretch of records."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from accelmetrics.backends.kit.system import sysroot
from accelmetrics.monitor.monitor import Monitor, cannot_share
from accelmetrics.monitor.steps import StepLog
from accelmetrics.schemas.errors import Unavailable
from accelmetrics.schemas.record import NO_HOLDERS, HoldersOf, Record, Step
from accelmetrics.schemas.ring import row_of
from accelmetrics.schemas.snapshot import Snapshot, own_processes
from accelmetrics.schemas.statistics import Energy, Meter, Summary, WindowAggregator
from accelmetrics.views.device_view import WarningLevels
from accelmetrics.views.node_view import NodeView, node_view
from accelmetrics.views.summaries import Measured, of_window
from accelmetrics.views.trails import Trails, metric_row
from accelmetrics.visibility.processes import ProcessDetails, ProcessListing, ProcessLookup, SystemLookup, process_details

if TYPE_CHECKING:
    import psutil

LATE = 2.5
"""Number of intervals after which the screen shows that a reading is overdue."""
MOST_MEASURED = 64
"""Maximum number of processes whose CPU time is measured. A screen does not show more at once."""
GAP = 3.0
"""Number of intervals between two readings above which the time between them counts as a gap."""


class RecordWindow:
    """Statistics over a stretch of records."""

    def __init__(self) -> None:
        self._newest: Snapshot | None = None
        self._begin_ns = 0
        self._statistics = WindowAggregator(0.0, across=False)

    def add(self, snapshot: Snapshot, interval: float) -> None:
        """Add a reading. A repeated reading counts once. If its time is before the previous one's, the stretch starts over."""
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
        """The statistics by key."""
        return self._statistics.summary()

    @property
    def energy_joules(self) -> Mapping[str, Energy]:
        """The energy of each device by its key."""
        return self._statistics.energy_joules()


class WatchSource(ABC):
    """Source of readings for the screen: this machine, another machine, or a recording.

    The screen calls :meth:`look` repeatedly and shows the attributes.

    Args:
        levels: Levels above which values are warnings.
        interval: Seconds between two readings, until a record states it.

    Attributes:
        view: The current view of the node; None before the first reading.
        record: The record of this view, with findings and holders of devices.
        trails: The history.
        local: Whether the processes run on this machine now, so that they can be sent signals.
        replay: Whether keys move through time.
        ended: Whether no further reading will come.
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
        """The name of the source; empty for this machine's live readings."""
        return ""

    @property
    def notice(self) -> str:
        """The reason why no new readings come; empty if they do."""
        return ""

    @property
    def error(self) -> str:
        """The sources that cannot be read, with reasons; empty if all can."""
        return ""

    @abstractmethod
    def look(self) -> bool:
        """Take new readings. Return whether the view has changed."""

    def details(self, pid: int, environment: bool) -> ProcessDetails | None:
        """Return the tree of a process, with its environment if requested; None if it is unknown, or not known yet."""
        return None

    def press(self, key: str, scale: str) -> str | None:
        """Handle a key of this kind of source.

        Args:
            key: The key's name.
            scale: The time scale of the graphs.

        Returns:
            A message; None for a key that this source does not have.
        """
        return None

    def follow(self, metric: str) -> None:
        """Keep a history of one more metric."""
        self.trails.follow(metric)

    def reset(self) -> None:
        """Clear the history and restart the summary."""
        self.trails.clear()
        self._measured = self._window = RecordWindow()

    def summary(self) -> str:
        """Return a summary since the start or the last reset, one line per device."""
        return of_window(self._measured, None if self.record is None else self.record.snapshot, "since the start or the last reset")

    def _show(self, age: float) -> None:
        """Update the view from the record.

        Args:
            age: The record's age in seconds.
        """
        if self.record is not None:
            now = self.record.snapshot.time_ns + int(age * 1e9)
            self.view = node_view(self.record, interval=self.trails.interval, now_ns=now, levels=self._levels, before=self.view)


def earlier_steps() -> tuple[Step, ...]:
    """Return the steps that this user's running programs on this machine logged before now, as far as their files still hold them."""
    if cannot_share():
        return ()
    from accelmetrics.sampling.node import ProgramSteps  # here, because the import would delay the first picture

    log = StepLog()
    with closing(ProgramSteps(log.add, earlier=True)) as programs:
        programs.look()
    return log.take(Meter(), everything=True)


class LiveSource(WatchSource):
    """Live readings of this machine's monitor.

    Args:
        watching: The monitor.
        levels: Levels above which values are warnings.
        holders: Returns the holders of the devices.
        own: Whether the monitor watches this process. Its values are then not shown.
    """

    local = True

    def __init__(self, watching: Monitor, levels: WarningLevels, holders: HoldersOf | None = None, *, own: bool = True) -> None:
        super().__init__(levels, watching.interval)
        self._watching = watching
        self._holders = holders
        self._own = own
        self._due = self._since = 0.0
        self._last_step: Step | None = None
        self._caught_up = False  # whether the history has the steps from before the start
        self._measured = watching.window("watch").begin()
        self._lookup = ProcessLookup()
        self._listing: ProcessListing | None = None
        self._processes: dict[int, psutil.Process] = {}
        self._cpu: dict[int, float] = {}
        self._memory: dict[int, int] = {}
        self._details = SystemLookup[ProcessDetails]()

    @property
    def error(self) -> str:
        """The sources that cannot be read, with reasons; empty if all can."""
        return self._watching.error

    def look(self) -> bool:
        """Take a new reading, or mark the last one as old if the next is overdue. Return whether the view has changed."""
        latest, findings, now = self._watching.latest, self._watching.findings, time.monotonic()
        known = self.record
        if latest is None or (known is not None and latest is known.snapshot and findings is known.findings and now < self._due):
            return False
        if known is None or latest is not known.snapshot:
            self._listing = self._lookup.listing(latest)
            self._measure(latest)
            if known is not None:  # not at the first reading: the import would delay the first picture
                self._watching.collect_program_steps()
                if not self._caught_up:
                    self._caught_up = True
                    self.trails.add_steps(earlier_steps())
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
        """Return the tree of a process, with its environment if requested; None until the system has answered."""
        if self.record is None:
            return None
        snapshot = self.record.snapshot
        found = self._details.answer((pid, environment), lambda: process_details(snapshot, pid, environment=environment))
        return found if found is not None and found.pid == pid else None  # else it is the answer about another process

    def follow(self, metric: str) -> None:
        """Keep a history of one more metric, beginning with the values that the monitor remembers."""
        view, history = self.view, self._watching.history
        if view is None or not self.trails.follow(metric):
            return
        known = history.keys()
        for device in view.devices:
            keys = (f"{device.key}.{name}" for name in metric_row(view, metric).names)
            key = next((key for key in keys if key in known), "")
            for moment, value in zip(*history.series(key), strict=True) if key else ():
                if moment >= self._since:  # a reset hides older values
                    self.trails.add_values(int(moment * 1e9), device.key, {metric: value})

    def reset(self) -> None:
        """Clear the history and restart the summary."""
        self.trails.clear()
        self._since = time.time()
        self._measured = self._watching.window("watch").begin()

    def _measure(self, snapshot: Snapshot) -> None:
        """Measure CPU time since the last reading, and memory, of processes that have the same id here as in the driver."""
        if sysroot():  # the ids belong to another system than the one that psutil reads
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
            if pid in kept:  # psutil's first value is 0, since it has no earlier time to compare with
                self._cpu[pid] = percent
