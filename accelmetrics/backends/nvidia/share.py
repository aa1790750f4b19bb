"""What the watched process and its descendants use of one device: ``gpu.process.{i}.…``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from accelmetrics.backends.contract import Block, Number
from accelmetrics.backends.kit.processes import PACE, ProcessTree
from accelmetrics.backends.nvidia.layouts import Layout
from accelmetrics.schemas.identity import DeviceProcess

Processes = tuple[DeviceProcess, ...]
_LIMIT = ("enforcedPowerLimitWatts",)


class Share:
    """One consumer's view of one device's processes.

    The family's own part is worked out when the processes were read anew, and once a second since families change too;
    the board's part is put beside it at every reading.

    Args:
        family: Who is watched.
        total: The device's memory in bytes, if known.
    """

    def __init__(self, family: ProcessTree, total: int | None) -> None:
        self._family = family
        self._total = total
        self._processes: Processes | None = None
        self._until = -math.inf
        self._used = False
        self._own_names: tuple[str, ...] = ()
        self._own: tuple[Number, ...] = ()
        self._parts: tuple[object, ...] = ()
        self._names: tuple[str, ...] = ()

    def is_used(self, processes: Processes, now: float) -> bool:
        """Whether the family uses the device."""
        if processes is not self._processes or now >= self._until:
            members = [process for process in processes if self._family.owns(process.pid, now)]
            self._processes, self._until, self._used = processes, now + PACE, bool(members)
            own = _own_part(members, self._total)
            names, self._own = tuple(own), tuple(own.values())
            self._own_names = self._own_names if names == self._own_names else names
        return self._used

    def block(self, layout: Layout, values: Sequence[Number], limit: float | None) -> Block:
        """The family's part, and the board's: of the fast values, and the enforced power limit in watts."""
        parts = (self._own_names, layout.board_names, limit is None)
        if parts != self._parts:
            self._parts = parts
            self._names = (*self._own_names, *layout.board_names, *(() if limit is None else _LIMIT))
        board = layout.board(values)
        return Block(self._names, (*self._own, *board) if limit is None else (*self._own, *board, limit), process=True)


def _own_part(members: Sequence[DeviceProcess], total: int | None) -> dict[str, Number]:
    """What the family's processes use together, as far as the driver says: percent, percent, percent, bytes."""
    used = _sum(process.memory_bytes for process in members)
    own = {
        "gpu": _busy(process.utilization for process in members),
        "memory": _busy(process.memory_utilization for process in members),
        "memoryAllocated": used / total * 100 if used is not None and total and used <= total else None,
        "memoryAllocatedBytes": used,
    }
    return {name: value for name, value in own.items() if value is not None}


def _sum(values: Iterable[Number | None]) -> Number | None:
    """The sum of what is known, None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _busy(values: Iterable[Number | None]) -> Number | None:
    """Shares of the device's time, in percent. Each is rounded by itself, so their sum may come out above the whole."""
    total = _sum(values)
    return None if total is None else min(total, 100)
