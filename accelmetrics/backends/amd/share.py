"""What the watched process and its descendants use of one card: ``gpu.process.{i}.…``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accelmetrics.backends.amd.table import Value, Values
from accelmetrics.backends.contract import Block, Number
from accelmetrics.backends.kit.processes import ProcessTree
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.reasons import Unavailable

BOARD = ("temp", "powerWatts", "enforcedPowerLimitWatts", "powerPercent")
"""What is repeated from the device."""


class Share:
    """One consumer's view of the processes on one card."""

    def __init__(self, family: ProcessTree) -> None:
        self._family = family
        self._names: tuple[str, ...] = ()

    def block(self, processes: Sequence[DeviceProcess] | None, values: Values, now: float) -> Block | None:
        """The family's share, with the board's values beside it; None while the family does not use the card."""
        members = [process for process in processes or () if self._family.owns(process.pid, now)]
        if not members:
            return None
        used = _sum(process.memory_bytes for process in members)
        busy = _sum(process.utilization for process in members)
        found: dict[str, Number] = {}
        if busy is not None:
            found["gpu"] = min(busy, 100)
        if used is not None:
            found["memoryAllocatedBytes"] = used
            found.update(_allocated(used, values["memoryTotalBytes"]))
        found.update((name, value) for name in BOARD if not isinstance(value := values[name], Unavailable))
        names = tuple(found)
        # The same names are the same object, which is what the sampler looks at.
        self._names = self._names if names == self._names else names
        return Block(self._names, tuple(found.values()), process=True)


def _allocated(used: Number, total: Value) -> dict[str, Number]:
    known = not isinstance(total, Unavailable) and used <= total
    return {"memoryAllocated": 100 * used / total} if known and not isinstance(total, Unavailable) else {}


def _sum(values: Iterable[Number | None]) -> Number | None:
    """The sum of what is known, None when nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
