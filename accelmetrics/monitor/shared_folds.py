"""What windows have in common: rows that several are open over are folded once.

Windows whose next rows mean the same form a chain. It consists of parts, one for each time at which windows joined it, and what a
window has of it is its own part and all later ones: only the last one grows. Where no window begins any more, a part goes into the
one before, so that there are never more of them than open windows.

Only the monitor's thread changes a chain. What changes is put in place by one assignment, or first taken out of where it was: the
child of a fork at any moment may lack the last rows, and has none twice.
"""

from __future__ import annotations

import copy
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from weakref import ref

from accelmetrics.monitor.energy import COUNTER, DRAW
from accelmetrics.monitor.history import HistoryRow, Layout
from accelmetrics.monitor.statistics import WindowAggregator
from accelmetrics.schemas.selection import MetricSelection

FEW = 32
"""Rows of a window that take less memory than the statistics of its metrics would: eight bytes a value, and some 300 a metric."""
ENERGY = (f".{COUNTER}", f".{DRAW}")
"""How the keys end that energy is reckoned from."""


class WantedColumns:
    """What is left of rows: the columns that some selection wants, and those of energy; all before there is any."""

    def __init__(self) -> None:
        self._selections: tuple[MetricSelection, ...] = ()
        self._columns: tuple[Layout, Layout, list[int]] = ((), (), [])  # a layout, what is wanted of it, and where that stands

    def add(self, selection: MetricSelection) -> None:
        """Keep what a further selection wants, too."""
        if selection not in self._selections:
            self._selections, self._columns = (*self._selections, selection), ((), (), [])

    def of(self, rows: Iterable[HistoryRow]) -> Iterator[HistoryRow]:
        """Yield rows with nothing else."""
        if not self._selections or any(selection.everything for selection in self._selections):
            yield from rows
            return
        for row in rows:
            if row.layout is not self._columns[0]:
                chosen = [column for column, key in enumerate(row.layout) if self._wants(key)]
                self._columns = (row.layout, tuple(row.layout[column] for column in chosen), chosen)
            _, layout, columns = self._columns
            yield row._replace(layout=layout, values=array("d", [row.values[column] for column in columns]))

    def _wants(self, key: str) -> bool:
        return key.endswith(ENERGY) or any(selection.wants(key) for selection in self._selections)


class WindowFolds:
    """A window's rows, and what became of them.

    Args:
        wanted: What is left of rows of windows that follow each other, each row being of the time before it; None for others.

    Attributes:
        begin: When the window began, on the monitor's clock.
        before: The last row before that.
        rows: Those that are not folded yet.
        taken: What was folded for it alone, None before that.
        head: Rows before those that it shares, which are folded when they are asked for.
        share: What it has in common with other windows, None as long as all is folded for it alone.
    """

    def __init__(self, wanted: WantedColumns | None = None) -> None:
        self.wanted = wanted
        self.begin = 0.0
        self.before: HistoryRow | None = None
        self.rows: deque[HistoryRow] = deque()
        self.taken: WindowAggregator | None = None
        self.head: list[HistoryRow] = []
        self.share: ChainShare | None = None

    @property
    def worth_folding(self) -> bool:
        """Whether folding its rows takes no more memory than it saves: a window that is short may end without."""
        return self.taken is not None or self.share is not None or len(self.rows) >= FEW

    def take_rows(self) -> list[HistoryRow]:
        """Return the rows that are not folded yet, which are forgotten: the child of a fork does not fold them again."""
        rows = []
        while self.rows:
            rows.append(self.rows.popleft())
        return rows

    def fold(self, rows: Iterable[HistoryRow], end: float) -> WindowAggregator:
        """Fold rows for this window alone, and return all that was."""
        if self.taken is None:
            self.taken = self._nothing()
        self.taken.fold(rows if self.wanted is None else self.wanted.of(rows), end)
        return self.taken

    def leave(self) -> None:
        """Share nothing any more, and keep what was shared until now."""
        whole = self.whole()
        self.share, self.head = None, []
        self.taken = whole

    def whole(self) -> WindowAggregator:
        """Return a copy of what is folded, for it alone and for others too."""
        whole = copy.deepcopy(self.taken) or self._nothing()
        whole.fold(self.head)
        for part in self.share.parts if self.share is not None else ():
            whole.absorb(part)
        return whole

    def drop(self) -> None:
        """Forget everything."""
        self.rows.clear()
        self.taken = self.before = self.share = None
        self.head = []

    def _nothing(self) -> WindowAggregator:
        return WindowAggregator(self.begin, self.before, trailing=self.wanted is not None)


class ChainPart(NamedTuple):
    """What was read from one join to the next.

    Attributes:
        windows: Those that joined at its beginning.
        taken: The statistics.
    """

    windows: list[ref[WindowFolds]]
    taken: WindowAggregator


class Chain:
    """Windows that share what is folded from some row on.

    Args:
        before: The statistics of a window so far, which the first rows follow.
    """

    def __init__(self, before: WindowAggregator) -> None:
        self.parts: tuple[ChainPart, ...] = (ChainPart([], before.following()),)

    def accepts(self, taken: WindowAggregator) -> bool:
        """Return whether rows from here on mean the same to a window with these statistics."""
        return self.parts[-1].taken.goes_on_like(taken)

    def accepts_rows(self, window: WindowFolds, rows: Sequence[HistoryRow], end: float) -> bool:
        """Return the same of a window that began with these rows, without folding them; no where that cannot be told so."""
        began = window.taken is None and window.wanted is None and bool(rows) and window.begin <= rows[-1].at <= end
        return began and self.parts[-1].taken.goes_on_after(window.before, rows)

    def join(self, window: WindowFolds) -> ChainShare:
        """Have a window share what is folded from here on."""
        if self.parts[-1].taken.readings:
            self.parts[-1].taken.sort_in()
            self.parts = (*self.parts, ChainPart([], self.parts[-1].taken.following()))
        self.parts[-1].windows.append(ref(window))
        return ChainShare(self, self.parts[-1].windows)

    def since(self, windows: Sequence[ref[WindowFolds]]) -> list[WindowAggregator]:
        """Return the statistics from where these windows joined, in the order of time."""
        position = next(number for number, part in enumerate(self.parts) if part.windows is windows)
        return [part.taken for part in self.parts[position:]]

    def keep(self, going: Iterable[WindowFolds]) -> bool:
        """Go on with those of these windows that share it; others take with them what they have. Whether there are any."""
        kept = {id(window) for window in going}
        parts: list[ChainPart] = []
        for window in [window for part in self.parts for one in part.windows if (window := one()) is not None]:
            if id(window) not in kept and window.share is not None:
                window.leave()
        for part in self.parts:
            part.windows[:] = [one for one in part.windows if (window := one()) is not None and id(window) in kept]
            if part.windows:
                parts.append(part)
            elif parts:
                whole = copy.deepcopy(parts[-1].taken)
                whole.absorb(part.taken)
                parts[-1] = ChainPart(parts[-1].windows, whole)
        if parts:
            self.parts = tuple(parts)
        return bool(parts)

    def fold(self, rows: Iterable[HistoryRow]) -> None:
        """Take rows, for all."""
        self.parts[-1].taken.fold(rows)


class ChainShare(NamedTuple):
    """What a window has of a chain: from where the windows of a part joined it."""

    chain: Chain
    windows: list[ref[WindowFolds]]

    @property
    def parts(self) -> list[WindowAggregator]:
        """The statistics since then, in the order of time."""
        return self.chain.since(self.windows)


class SharedFolds:
    """All chains of a monitor's open windows."""

    def __init__(self) -> None:
        self.chains: list[Chain] = []

    def fold(self, windows: Sequence[tuple[WindowFolds, float]]) -> None:
        """Fold what windows were given since the last time, once for those that share it.

        Args:
            windows: All that are open, each with the rows since then, or since it began; and when it ends.
        """
        self.chains = [chain for chain in self.chains if chain.keep([window for window, _ in windows])]
        given: dict[Chain, list[HistoryRow]] = {}
        alone = []
        for window, end in windows:
            share, rows = window.share, window.take_rows()
            if share is None:
                alone.append((window, rows, end))
            else:
                given[share.chain] = rows
        for chain, rows in given.items():
            chain.fold(rows)
        for window, rows, end in alone:
            accepting = [chain for chain in self.chains if chain.accepts_rows(window, rows, end)]
            if accepting:
                window.head = rows
            else:
                taken = window.fold(rows, end)
                if window.wanted is not None or not taken.settled:
                    continue
                accepting = [chain for chain in self.chains if chain.accepts(taken)]
            if not accepting:
                accepting = [Chain(taken)]
                self.chains += accepting
            window.share = accepting[0].join(window)
