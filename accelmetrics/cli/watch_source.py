"""Where ``watch`` takes its readings from: what every source has, and the monitor of this machine."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from accelmetrics.backends.kit.system import sysroot
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.schemas.errors import Unavailable
from accelmetrics.schemas.record import NO_HOLDERS, HoldersOf, Record
from accelmetrics.schemas.snapshot import Snapshot, own_processes
from accelmetrics.views.device_view import WarningLevels
from accelmetrics.views.node_view import NodeView, node_view
from accelmetrics.views.summaries import of_window
from accelmetrics.views.trails import Trails, metric_row
from accelmetrics.visibility.processes import ProcessListing, ProcessLookup

if TYPE_CHECKING:
    import psutil

LATE = 2.5
"""Intervals after which a reading that has not come is missed on the screen too."""
MOST_MEASURED = 64
"""Processes whose processor time is measured; more are not seen at once."""


class WatchSource(Protocol):
    """Where readings come from, put together for people: this machine, another one, a recording.

    What shows them asks :meth:`look` again and again, and finds here what is to be shown.

    Attributes:
        view: The node now; None before the first reading.
        record: The reading that this is of, with what rules find and who holds the devices.
        trails: The history.
    """

    view: NodeView | None
    record: Record | None
    trails: Trails

    @property
    def label(self) -> str:
        """Where the readings come from; empty: they are live."""
        ...

    @property
    def notice(self) -> str:
        """Why nothing new comes, in words, for as long as that is so; empty otherwise."""
        ...

    @property
    def error(self) -> str:
        """What is not read and why; empty while everything answers."""
        ...

    @property
    def local(self) -> bool:
        """Whether its processes are this machine's and live, so that a signal can reach them."""
        ...

    @property
    def replay(self) -> bool:
        """Whether keys go through time."""
        ...

    @property
    def ended(self) -> bool:
        """Whether nothing more is to come."""
        ...

    def look(self) -> bool:
        """Take what is new; return whether there is another view."""
        ...

    def press(self, key: str, scale: str) -> str | None:
        """Do what a key asks of this kind of source.

        Args:
            key: Its name.
            scale: The stretch of time that graphs show.

        Returns:
            What to say; None for a key that asks nothing of it.
        """
        ...

    def follow(self, metric: str) -> None:
        """Have a history of one more metric."""
        ...

    def reset(self) -> None:
        """Forget the history, and begin the summary anew."""
        ...

    def summary(self) -> str:
        """Return what the devices did since the start, or the last reset: a line each."""
        ...


class LiveSource:
    """The readings of a monitor as they come.

    Args:
        watching: The monitor.
        levels: From where on values are warnings.
        holders: Tells who holds the devices.
        own: Whether the process that the monitor watches is this one, which is of no interest.
    """

    label = notice = ""
    local, replay, ended = True, False, False

    def __init__(self, watching: Monitor, levels: WarningLevels, holders: HoldersOf | None = None, *, own: bool = True) -> None:
        self.view: NodeView | None = None
        self.record: Record | None = None
        self.trails = Trails(watching.interval)
        self._watching = watching
        self._levels = levels
        self._holders = holders
        self._own = own
        self._due = self._since = 0.0
        self._window = watching.window("watch").begin()
        self._processes = ProcessDetails()

    def look(self) -> bool:
        """Take what is new; return whether there is another view. A reading that does not come makes the last one old."""
        latest, findings, now = self._watching.latest, self._watching.findings, time.monotonic()
        known = self.record
        if latest is None or (known is not None and latest is known.snapshot and findings is known.findings and now < self._due):
            return False
        if known is None or latest is not known.snapshot:
            self._processes.update(latest)
        self._due = now + LATE * self._watching.interval
        self.record = Record(latest, findings=findings, holders=NO_HOLDERS if self._holders is None else self._holders(latest))
        view = node_view(
            self.record,
            processes=self._processes.listing,
            cpu=self._processes.cpu,
            interval=self._watching.interval,
            now_ns=time.time_ns(),
            levels=self._levels,
            before=self.view,
        )
        self.view = replace(
            view, host={name: value for name, value in view.host.items() if not (self._own and name.startswith("process_"))}
        )
        self.trails.add(self.view)
        return True

    def press(self, key: str, scale: str) -> str | None:
        """Leave the key to what is shown."""
        return None

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

    @property
    def error(self) -> str:
        """What is not read and why; empty while everything answers."""
        return self._watching.error

    def reset(self) -> None:
        """Forget the history, and begin the summary anew."""
        self.trails.clear()
        self._since = time.time()
        self._window = self._watching.window("watch").begin()

    def summary(self) -> str:
        """Return what the devices did since the start, or the last reset: a line each."""
        return of_window(self._window, None if self.record is None else self.record.snapshot, "since the start or the last reset")


class ProcessDetails:
    """What the system says of the processes on the devices.

    Attributes:
        listing: The processes.
        cpu: By process, its processor time since the last reading in percent of one; those of this machine's own ``/proc``.
    """

    def __init__(self) -> None:
        self.listing: ProcessListing | None = None
        self.cpu: dict[int, float] = {}
        self._measured: dict[int, psutil.Process] = {}
        self._lookup = ProcessLookup()

    def update(self, snapshot: Snapshot) -> None:
        """Take a reading."""
        self.listing = self._lookup.listing(snapshot)
        told = () if self.listing is None else self.listing.processes
        pids = {use.pid for found in own_processes(snapshot).values() if not isinstance(found, Unavailable) for use in found}
        self._measure({process.pid for process in told if process.started is not None} & pids)

    def _measure(self, pids: set[int]) -> None:
        """Measure the processor time of those that are to be seen here under the driver's number."""
        if sysroot():  # another numbering than psutil's
            return
        import psutil

        kept, self._measured, self.cpu = self._measured, {}, {}
        for pid in sorted(pids)[:MOST_MEASURED]:
            try:
                process = kept.get(pid) or psutil.Process(pid)
                percent = process.cpu_percent()
            except psutil.Error:
                continue
            self._measured[pid] = process
            if pid in kept:  # the first look gives nothing to compare with
                self.cpu[pid] = percent
