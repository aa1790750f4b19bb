"""Records that were read elsewhere or before, put together for ``watch``."""

from __future__ import annotations

from collections.abc import Mapping

from accelmetrics.schemas.history import HistoryRow, RowMaker
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.statistics import WindowAggregator
from accelmetrics.schemas.summary import Energy, Summary
from accelmetrics.views.device_view import WarningLevels
from accelmetrics.views.node_view import NodeView, node_view
from accelmetrics.views.summaries import of_window
from accelmetrics.views.trails import Trails

GAP = 3.0
"""In intervals: over a longer silence nothing is reckoned."""
BLOCK = 64
"""Readings that are folded into statistics together, which costs less."""


class RecordWindow:
    """What the devices did in a stretch of records."""

    def __init__(self) -> None:
        self._rows = RowMaker()
        self._pending: list[HistoryRow] = []
        self._statistics: WindowAggregator | None = None
        self._begin_ns = self._newest_ns = 0

    def add(self, snapshot: Snapshot, interval: float) -> None:
        """Take a reading; the same one twice counts once. Where the clock was set back, the stretch begins anew."""
        if self._statistics is None or snapshot.time_ns < self._newest_ns:
            self._rows, self._statistics = RowMaker(), WindowAggregator(0.0, across=False)
            self._pending.clear()
            self._begin_ns = self._newest_ns = snapshot.time_ns
        elif snapshot.time_ns == self._newest_ns:
            return
        elapsed = (snapshot.time_ns - self._newest_ns) / 1e9
        self._newest_ns = snapshot.time_ns
        self._pending.append(self._rows.row(snapshot, self.duration, elapsed <= GAP * max(1.0, interval)))
        if len(self._pending) >= BLOCK:
            self._fold()

    @property
    def duration(self) -> float:
        """Seconds from the first reading to the last."""
        return (self._newest_ns - self._begin_ns) / 1e9

    @property
    def summary(self) -> Mapping[str, Summary]:
        """By key, the statistics."""
        return {} if (statistics := self._fold()) is None else statistics.summary()

    @property
    def energy_joules(self) -> Mapping[str, Energy]:
        """By device key, the energy that it used."""
        return {} if (statistics := self._fold()) is None else statistics.energy_joules()

    def _fold(self) -> WindowAggregator | None:
        """Return the statistics of all readings."""
        if self._statistics is not None:
            self._statistics.fold(self._pending)
            self._pending.clear()
        return self._statistics


class RecordSource:
    """Records that come one after the other, for what shows them.

    Args:
        levels: From where on values are warnings.
        interval: Seconds between two records, as long as none says it.

    Attributes:
        view: The node; None before the first record.
        record: The record that this is of.
        trails: The history.
    """

    error = ""
    local = replay = ended = False

    def __init__(self, levels: WarningLevels, interval: float) -> None:
        self.view: NodeView | None = None
        self.record: Record | None = None
        self.trails = Trails(interval)
        self._levels = levels
        self._window = RecordWindow()

    @property
    def notice(self) -> str:
        """Why nothing new comes."""
        return ""

    def press(self, key: str, scale: str) -> str | None:
        """Leave the key to what is shown."""
        return None

    def follow(self, metric: str) -> None:
        """Have a history of one more metric, from now on."""
        self.trails.follow(metric)

    def reset(self) -> None:
        """Forget the history, and begin the summary anew."""
        self.trails.clear()
        self._window = RecordWindow()

    def summary(self) -> str:
        """Return what the devices did since the start, or the last reset: a line each."""
        return of_window(self._window, None if self.record is None else self.record.snapshot, "since the start or the last reset")

    def _take(self, record: Record) -> None:
        """Take a record, for the history and the summary too."""
        if record.monitor is not None:
            self.trails.interval = record.monitor.interval
        self.record = record
        self._show(0.0)
        if self.view is not None:
            self.trails.add(self.view)
        self._window.add(record.snapshot, self.trails.interval)

    def _show(self, age: float) -> None:
        """Put together what is shown of the record, which is so many seconds old."""
        if self.record is not None:
            now = self.record.snapshot.time_ns + int(age * 1e9)
            self.view = node_view(self.record, interval=self.trails.interval, now_ns=now, levels=self._levels, before=self.view)
