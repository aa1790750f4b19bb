"""One open device: everything about it that its consumers share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from accelmetrics.backends.contract import Block
from accelmetrics.backends.nvidia.calls import EVERY_SECOND, EVERY_TEN_SECONDS, GPM_SUPPORT, MEMORY, ONCE
from accelmetrics.backends.nvidia.fabric import Fabric
from accelmetrics.backends.nvidia.fast import Fast, PowerLimit
from accelmetrics.backends.nvidia.gpm import Gpm
from accelmetrics.backends.nvidia.library import Library
from accelmetrics.backends.nvidia.links import Links
from accelmetrics.backends.nvidia.memory import DeviceMemory
from accelmetrics.backends.nvidia.paced import Group
from accelmetrics.backends.nvidia.processes import ProcessTable
from accelmetrics.backends.nvidia.xid import Listener, Xids
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.reasons import Unavailable

_LIMIT = "enforcedPowerLimitWatts"


class Device:
    """A device's bound calls and the values of the slow paces. Only ever read by one lane at a time.

    Attributes:
        memory: What the device's memory is.
        partitioned: Whether it is in MIG mode.
        fast: What is read at every reading.
        table: The processes on it.
        gpm: Its GPM calls.
        support: Whether it has GPM, as its group's only value.
        blocks: The values of the slow paces.
        due: When ``refresh`` is wanted next.
        limit: The enforced power limit in watts, if it is known.
        unavailable: Why others of them are missing; the same object while nothing changed.
    """

    def __init__(
        self,
        library: Library,
        handle: Any,
        memory: DeviceMemory,
        listener: Listener,
        partitioned: bool,
        identity: DeviceIdentity,
        announce: Callable[[str], None],
    ) -> None:
        self.memory = memory
        self.partitioned = partitioned
        self.fast = Fast(library, handle, skip=(MEMORY,) if memory.unified else ())
        self.table = ProcessTable(library, handle)
        self.gpm = Gpm(library, handle)
        self.blocks: tuple[Block, ...] = ()
        self.unavailable: Mapping[str, Unavailable] = {}
        self._second = Group(library, handle, EVERY_SECOND, 1.0)
        self._ten = Group(library, handle, EVERY_TEN_SECONDS, 10.0)
        self._once = Group(library, handle, ONCE, math.inf)
        self.support = Group(library, handle, (GPM_SUPPORT,), math.inf)
        self._xids = Xids(listener, handle)
        self._links = Links(library, handle)
        self._fabric = Fabric(library, handle, identity.driver_version, announce)
        self.due = -math.inf
        self._changed = False
        self.limit: float | None = None

    def refresh(self, now: float, steps: list[Any]) -> None:
        """Read the slow values that are due: to be called from ``due`` on."""
        groups = (self._once, self._ten, self._links, self._fabric, self._second, self._xids)
        for group in groups:
            # Remembered across a reading that fails half-way.
            self._changed |= group.read(now, steps)
        self.table.read(now, steps)
        self.due = min(self.table.due, *(group.due for group in groups))
        if self._changed:
            self._put_together()
            self._changed = False

    def _put_together(self) -> None:
        groups = (self._second, self._ten, self._once, self._links, self._fabric, self._xids)
        self.blocks = tuple(group.block for group in groups if group.block.names)
        merged = {name: reason for group in groups for name, reason in group.unavailable.items()}
        if merged != self.unavailable:
            self.unavailable = merged
        limit = self._ten.get(_LIMIT)
        missing = limit if isinstance(limit, Unavailable) else None
        self.limit = None if isinstance(limit, Unavailable) else limit
        self.fast.set_limit(PowerLimit(self.limit or 1.0, missing))
        self.fast.leave_out(self._links.totals)
