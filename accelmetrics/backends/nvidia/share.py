"""What the watched process and its descendants use of one device: ``gpu.process.{i}.…``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from accelmetrics.backends.contract import Block, Number
from accelmetrics.backends.nvidia.family import PACE, Family
from accelmetrics.backends.nvidia.layouts import Layout
from accelmetrics.schemas.identity import DeviceProcess


class Board(NamedTuple):
    """What is repeated from the device: the fast values by name, the power limit, the device's memory in bytes."""

    names: tuple[str, ...]
    values: tuple[Number, ...]
    limit: float | None
    total: float | None


class Share:
    """One consumer's view of one device's processes."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._processes: tuple[DeviceProcess, ...] | None = None
        self._until = -math.inf
        self._members: list[DeviceProcess] = []
        self._names: tuple[str, ...] = ()

    def members(self, processes: tuple[DeviceProcess, ...] | None, now: float) -> list[DeviceProcess]:
        """The family's processes on the device, worked out again when the list changed or the answer is old."""
        if processes is not self._processes or now >= self._until:
            self._members = [process for process in processes or () if self._family.owns(process.pid, now)]
            self._processes, self._until = processes, now + PACE
        return self._members

    def block(self, board: Board) -> Block:
        """The family's share, with the board's values beside it."""
        found: dict[str, Number] = {}
        members = self._members
        _put(found, "gpu", _busy(process.utilization for process in members))
        _put(found, "memory", _busy(process.memory_utilization for process in members))
        used = _sum(process.memory_bytes for process in members)
        if used is not None and board.total and used <= board.total:
            found["memoryAllocated"] = used / board.total * 100
        _put(found, "memoryAllocatedBytes", used)
        found.update(zip(board.names, board.values, strict=True))
        _put(found, "enforcedPowerLimitWatts", board.limit)
        names = tuple(found)
        # The same names are the same object, which is what the sampler looks at.
        self._names = self._names if names == self._names else names
        return Block(self._names, tuple(found.values()), process=True)


def board_of(layout: Layout, values: Sequence[Number], limit: float | None, total: float | None) -> Board:
    """What the process keys repeat of a reading."""
    return Board(layout.board_names, layout.board(values), limit, total)


def _put(found: dict[str, Number], name: str, value: Number | None) -> None:
    if value is not None:
        found[name] = value


def _sum(values: Iterable[Number | None]) -> Number | None:
    """The sum of what is known, None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _busy(values: Iterable[Number | None]) -> Number | None:
    """Shares of the device's time, in percent. Each is rounded by itself, so their sum may come out above the whole."""
    total = _sum(values)
    return None if total is None else min(total, 100)
