"""What the page's graphs are drawn of: the last readings of what is looked at, as columns of at most 600 points.

A reading is one row of doubles in a :class:`~accelmetrics.schemas.history.History`. Columns are made when they are asked for.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby, pairwise
from threading import Lock
from typing import Any

from accelmetrics.schemas.history import History, HistoryRow
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.views.device_view import VALUES
from accelmetrics.views.trails import FIXED, FOLLOWED, HELD

READINGS = 3600
"""That are kept: an hour at one a second."""
POINTS = 600
"""Of a column at most: above that each two are the least and the greatest value of a stretch of time."""
RECENT = 60
"""Readings for which a client gets what it lacks; one that lacks more gets everything."""
DIGITS = 3
"""Behind the decimal point: more is not seen in a graph."""

DRAWN = {row.name: row for row in VALUES if row.name not in FIXED}
"""What graphs can show."""

Column = list[float | None]


class PageHistory:
    """The last readings of each device. Readings are added on one thread, and read on another one.

    Args:
        interval: Seconds between two readings.
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._lock = Lock()
        self._rows = History(READINGS)
        self._recent: deque[tuple[int, HistoryRow]] = deque(maxlen=RECENT + 1)

    def add(self, sequence: int, snapshot: Snapshot) -> None:
        """Remember a reading under its number, which rises."""
        header = snapshot.header

        def lay_out() -> tuple[tuple[str, ...], list[int]]:
            """Find the column of each device and metric: the first of the metric's keys that the device gives."""
            places = {key: place for place, key in enumerate(header.keys)}
            found: dict[str, int] = {}
            for slot in header.identities:
                for metric, row in DRAWN.items():
                    given = [places[key] for name in row.names if (key := f"{slot.key}.{name}") in places]
                    if given:
                        found[f"{slot.key} {metric}"] = given[0]
            return tuple(found), list(found.values())

        names, chosen = header.kept("columns of graphs", lay_out)
        values = array("d", map(snapshot.numbers.__getitem__, chosen))
        seconds = snapshot.time_ns / 1e9
        row = HistoryRow(names, values, seconds, seconds, True)
        with self._lock:
            if self._recent and seconds <= self._recent[-1][1].time:  # the clock was set back: what follows has an axis of its own
                self._rows.clear()
                self._recent.clear()
            self._rows.add(row)
            self._recent.append((sequence, row))

    def columns(self, since: int, metrics: Collection[str] = FOLLOWED) -> dict[str, Any]:
        """Return what came after a reading; everything where that is not among the recent ones.

        Args:
            since: The number of that reading.
            metrics: Of these.

        Returns:
            ``sequence``: the number of the newest reading in it. ``complete``: whether this is everything. ``times``: seconds since 1970.
            ``series``: by device and metric a value for each of the times, None where there was none.
        """

        def wanted(name: str) -> bool:
            return name.partition(" ")[2] in metrics

        with self._lock:
            recent = self._recent.copy()
            partly = any(number == since for number, _ in recent)
            rows = {} if partly else self._rows.to_dict(wanted)
        times, columns = self._after(since, recent, wanted) if partly else self._everything(rows)
        series: dict[str, dict[str, Column]] = {}
        for name, column in columns.items():
            device, _, metric = name.partition(" ")
            series.setdefault(device, {})[metric] = [None if value is None else round(value, DIGITS) for value in column]
        return {
            "sequence": recent[-1][0] if recent else 0,
            "complete": not partly,
            "times": [round(at, 3) for at in times],
            "series": series,
        }

    def _after(
        self, since: int, recent: Sequence[tuple[int, HistoryRow]], wanted: Callable[[str], bool]
    ) -> tuple[list[float], dict[str, Column]]:
        """Put recent readings into columns; what is between the one that the client has and the next is told too."""
        rows = [row for number, row in recent if number >= since]
        names = dict.fromkeys(name for row in rows[1:] for name in row.layout if wanted(name))
        given = [dict(zip(row.layout, row.values, strict=True)) for row in rows]
        places = self._with_gaps([row.time for row in rows], self.interval)[1:]
        return [at for at, _ in places], {
            name: [None if place is None else given[place].get(name) for _, place in places] for name in names
        }

    def _everything(self, columns: dict[str, Column]) -> tuple[list[float], dict[str, Column]]:
        """Put all readings into columns, of which one is their time."""
        times = [at for at in columns.pop("time") if at is not None]
        places = self._with_gaps(times, self.interval)
        if len(places) <= POINTS:
            return [at for at, _ in places], {
                name: [None if place is None else column[place] for _, place in places] for name, column in columns.items()
            }
        # A gap stands for two stretches at least without a reading, so that all fits.
        width = (times[-1] - times[0]) / (POINTS // 2 - 1)
        stretches = list(_stretches(times, width))
        places = self._with_gaps([begin for begin, _, _ in stretches], width)
        moments: list[float] = []
        found: dict[str, Column] = {name: [] for name in columns}
        for at, place in places:
            moments += [at] if place is None else [at, at + width / 2]
            for name, column in columns.items():
                found[name] += [None] if place is None else _extremes(column[stretches[place][1] : stretches[place][2]])
        return moments, found

    def _with_gaps(self, times: Sequence[float], width: float) -> list[tuple[float, int | None]]:
        """Return moments with the places of their values; None where nothing was read for so long that a line would be a lie."""
        found: list[tuple[float, int | None]] = [(times[0], 0)] if times else []
        for place, (before, at) in enumerate(pairwise(times), 1):
            if at - before > HELD * width:
                found.append((before + width, None))
            found.append((at, place))
        return found


def _stretches(times: Sequence[float], width: float) -> Iterator[tuple[float, int, int]]:
    """Yield stretches of equal time that have readings: when each begins, and from where to where its readings stand."""
    first = 0
    for number, same in groupby(int(at // width) for at in times):
        last = first + sum(1 for _ in same)
        yield number * width, first, last
        first = last


def _extremes(values: Column) -> tuple[float | None, float | None]:
    """Return the least and the greatest value, the earlier one first."""
    known = [value for value in values if value is not None]
    if not known:
        return None, None
    low, high = min(known), max(known)
    return (low, high) if values.index(low) <= values.index(high) else (high, low)
