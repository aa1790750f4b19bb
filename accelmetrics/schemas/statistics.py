"""The statistics of a window: what becomes of its readings, a block of them at a time, in bounded memory however long it lasts.

A reading stands until the next one of the same key, or until the window's end; the first one from the window's beginning on,
where the reading before that is known to have had the key too. So a key is in one of three states, from row to row:

- its last reading stands: the time until the next row, and the value that is there then, go on from it;
- it waits: since the window's beginning it has only been served again, and its first reading will stand from there on;
- nothing is known of it: it was absent, or something was left out (a pause, a start). Its next reading stands from its own
  moment on.

The row after the window's end shows that the window was watched until then. It counts where there was no other.
"""

from __future__ import annotations

import copy
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
from math import isfinite

from accelmetrics.schemas.accumulator import Accumulator
from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.energy import COUNTER, DRAW, DeviceEnergy
from accelmetrics.schemas.errors import UnknownNameError
from accelmetrics.schemas.history import REPEATED, HistoryRow, Layout, device_columns
from accelmetrics.schemas.summary import CrossDeviceStatistics, Energy, Summary
from accelmetrics.schemas.vitals import MEMORY_PERCENT, MEMORY_USED, POWER, UTILIZATION

AGGREGATED = frozenset((*UTILIZATION, "memory", *MEMORY_PERCENT, *MEMORY_USED, *POWER))
"""Names whose values are also taken over all devices of a reading."""
COUNTED = f".{COUNTER}"
ACROSS = ("mean", "max", "total")
TOGETHER = 256
"""Readings that are folded together: the cost is shared by them."""


class WindowAggregator:
    """The statistics and the energy of a window so far, or of a recording.

    Args:
        begin: When it begins, on the clock of the rows.
        before: The last reading before that: what lies between it and the next one is known by both.
        trailing: Whether a reading stands for the time since the one before, and not until the next one. Windows that follow each
            other from reading to reading then count each reading once, and all of the time.
        across: Whether there are statistics over all devices too, and of the counters that energy is taken from.
        timed: Of which metrics it is kept how long each value stood; of all when left out.

    Attributes:
        energy: By device key.
        readings: Rows taken.
    """

    def __init__(
        self,
        begin: float,
        before: HistoryRow | None = None,
        trailing: bool = False,
        across: bool = True,
        timed: Callable[[str], bool] = bool,
    ) -> None:
        self._has_across, self._timed = across, timed
        self.energy: dict[str, DeviceEnergy] = {}
        self.readings = 0
        self._trailing = trailing
        self._begin = begin
        self._at = begin  # the last row's moment
        self._layout: Layout | None = None
        self._metrics: dict[str, Accumulator] = {}
        self._across: dict[str, Accumulator] = {}  # over all devices: ``mean.powerWatts``
        self._known: dict[str, set[str]] = {}  # by name, the devices that ever had it
        self._last: dict[str, dict[str, float]] = {}  # by name, each device's last reading
        self._pending: list[HistoryRow] = []
        if before is not None:
            self._start_from(before)

    @property
    def metrics(self) -> Mapping[str, Accumulator]:
        """By key, the statistics of the readings."""
        self.fold()
        return {key: held for key, held in self._metrics.items() if held.count}

    def feed(self, rows: Iterable[HistoryRow]) -> None:
        """Take readings, which are folded when there are many, or results are asked for."""
        self._pending.extend(rows)
        if len(self._pending) >= TOGETHER:
            self.fold()

    def fold(self, rows: Iterable[HistoryRow] = (), end: float = math.inf) -> None:
        """Take readings, of which the last may be the one that closes the window; many at a time cost less."""
        block: list[HistoryRow] = []
        pending, self._pending = self._pending, []
        for row in chain(pending, rows):
            if row.at < self._begin:
                self._start_from(row)  # it was being taken when the window began
                continue
            if block and (row.layout != block[0].layout or not row.joined or row.at > end):
                self._fold(block, end)
                block = []
            block.append(row)
        if block:
            self._fold(block, end)

    def following(self) -> WindowAggregator:
        """Return the statistics of the next window, which begins where the last reading was taken."""
        found = WindowAggregator(-math.inf, None, self._trailing, self._has_across, self._timed)
        found._at, found._layout, found._known, found._last = self._at, self._layout, copy.deepcopy(self._known), copy.deepcopy(self._last)
        found.energy = {key: held.following() for key, held in self.energy.items()}
        found._metrics = {key: held.following() for key, held in self._metrics.items()}
        found._across = {key: held.following() for key, held in self._across.items()}
        return found

    def summary(self) -> dict[str, Summary]:
        """Return, by key, the statistics of the readings."""
        return {key: held.summary() for key, held in self.metrics.items()}

    def energy_joules(self) -> dict[str, Energy]:
        """Return, by device key, the energy that it used."""
        self.fold()
        return {key: energy for key, held in self.energy.items() if (energy := held.result()) is not None}

    def devices(self) -> dict[str, CrossDeviceStatistics]:
        """Return, by name, the metric over all devices."""
        found = {}
        for name in self._known:
            mean, largest, total = (self._across[f"{kind}.{name}"] for kind in ACROSS)
            if mean.count:
                found[name] = CrossDeviceStatistics(mean.summary(), largest.summary(), total.summary() if total.count else None)
        return found

    def seconds_above(self, key: str, threshold: float) -> float | None:
        """Return for how long a metric was above a threshold; None where it was not read, or that is not kept.

        Raises:
            UnknownNameError: It was not read, and there is no such metric.
        """
        held = self.metrics.get(key)
        if held is None and match(key) is None:
            raise UnknownNameError("metric of the window", key, self.metrics)
        return held.seconds_above(threshold) if held is not None else None

    def _members(self, layout: Layout) -> Mapping[str, Mapping[str, int]]:
        """Return, by name that is taken over all devices, the column of each device that has it."""
        return {name: columns for name, columns in device_columns(layout).items() if name in AGGREGATED} if self._has_across else {}

    def _start_from(self, row: HistoryRow) -> None:
        """Take a reading from before the beginning."""
        self._fold_energy([row._replace(at=min(row.at, self._begin))], self._begin)
        self._wait_for(row.layout)

    def _wait_for(self, layout: Layout) -> None:
        """Have the first readings of these keys stand from the window's beginning on."""
        self._layout = layout
        waits = not self._trailing
        self._metrics = {key: Accumulator(waits, self._timed(key)) for key in layout}
        self._across = {f"{kind}.{name}": Accumulator(waits) for name in self._members(layout) for kind in ACROSS}
        self._known = {name: set(positions) for name, positions in self._members(layout).items()}

    def _fold(self, rows: Sequence[HistoryRow], end: float) -> None:
        """Take rows of the same keys with no gap between them, or the one after the end."""
        self._fold_energy(rows, end)
        layout, joined, closing = rows[0].layout, rows[0].joined, rows[0].at > end
        if self._layout is None:  # nothing was read before: as if that had been, and had had the same keys
            self._wait_for(layout)
        moments = [row.at for row in rows]
        lead = max(0.0, min(moments[0], end) - self._at) if joined else 0.0
        after = [*(following - at for at, following in pairwise(moments)), 0.0]
        self.readings += len(rows)
        if self._trailing:
            lead, after = 0.0, [lead, *after[:-1]]
        if not joined:
            self._last.clear()
            for held in (*self._metrics.values(), *self._across.values()):
                held.lose()
        self._change_layout(layout, 0.0 if closing else lead)
        self._at = moments[-1]
        values = array("d", b"".join([row.values.tobytes() for row in rows]))
        columns = [values[position :: len(layout)] for position in range(len(layout))]
        across = self._columns_across(layout, columns)
        for series, found in ((self._metrics, zip(layout, columns, strict=True)), (self._across, across.items())):
            for key, column in found:
                if not self._has_across and key.endswith(COUNTED):
                    continue
                held = series.get(key) or series.setdefault(key, Accumulator(timed=self._timed(key)))
                if closing:
                    held.close(column[0], lead, end - self._begin)
                else:
                    held.fold(column, after, lead, moments[0] - self._begin)

    def _change_layout(self, layout: Layout, lead: float) -> None:
        """End what stands of keys that are gone, and of the metrics over all devices where a device came or went."""
        before, self._layout = self._layout or (), layout
        if layout == before:
            return
        for key in set(before).difference(layout):
            self._metrics[key].lose(lead)
        for name, devices in self._members(before).items():
            now = self._members(layout).get(name, {})
            if devices.keys() != now.keys():
                self._last[name] = {device: value for device, value in self._last.get(name, {}).items() if device in now}
                for kind in ACROSS:
                    self._across[f"{kind}.{name}"].lose(lead)

    def _columns_across(self, layout: Layout, columns: Sequence[array[float]]) -> dict[str, array[float]]:
        """Return each row's mean, largest value and sum over all devices, as columns of further keys.

        A device that was served again stands with its last value beside one that was read; a row in which none was read is no
        reading. There is no sum where a device is missing.
        """
        found: dict[str, array[float]] = {}
        for name, devices in self._members(layout).items():
            known = self._known.setdefault(name, set())
            known.update(devices)
            last = self._last.setdefault(name, {})
            members = [columns[position] for position in devices.values()]
            if isfinite(sum(map(sum, members))):  # all were read in every row
                last.update(zip(devices, (column[-1] for column in members), strict=True))
                added = list(map(sum, zip(*members, strict=True)))
                found[f"mean.{name}"] = array("d", [one / len(devices) for one in added])
                found[f"max.{name}"] = array("d", map(max, zip(*members, strict=True)) if len(members) > 1 else members[0])
                found[f"total.{name}"] = array("d", added if len(devices) == len(known) else [math.nan] * len(added))
                continue
            mean, largest, total = (found.setdefault(f"{kind}.{name}", array("d")) for kind in ACROSS)
            for values in zip(*members, strict=True):
                fresh = {device: value for device, value in zip(devices, values, strict=True) if isfinite(value)}
                last.update(fresh)
                among = sum(last.values())
                mean.append(among / len(last) if fresh else REPEATED)
                largest.append(max(last.values()) if fresh else REPEATED)
                total.append(REPEATED if not fresh else among if len(last) == len(known) else math.nan)
        return found

    def _fold_energy(self, rows: Sequence[HistoryRow], end: float) -> None:
        columns = device_columns(rows[0].layout)
        spans = [following.at - row.at for row, following in pairwise(rows)]
        inside = self._begin <= rows[0].at and rows[-1].at <= end
        together = inside and bool(spans) and min(spans) > 0 and all(row.joined for row in rows[1:])
        counters, powers = columns.get(COUNTER, {}), columns.get(DRAW, {})
        for key in {**self.energy, **counters, **powers}:
            counter, power = counters.get(key), powers.get(key)
            held = self.energy.get(key)
            if held is None:
                held = self.energy[key] = DeviceEnergy(self._begin, waits=self._layout is None)
            counted = None if counter is None else [row.values[counter] for row in rows]
            drawn = None if power is None else [row.values[power] for row in rows]
            held.fold(rows, end, counted, drawn, spans if together else ())
