"""Who follows a monitor from within the program: callbacks, and loops over ``async for``."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot

WAITING = 64
"""Snapshots that wait for a slow loop; the oldest go."""


class CallbackExporter:
    """Hands snapshots to a function, on a thread of its own.

    Args:
        callback: Called with each snapshot. What it raises is counted, and told once.
    """

    name = "callback"

    def __init__(self, callback: Callable[[Snapshot], object]) -> None:
        self._callback = callback

    def open(self) -> None:
        """Nothing is needed."""

    def export(self, record: Record) -> None:
        """Call it."""
        self._callback(record.snapshot)

    def flush(self) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing is held."""


class Stream:
    """The snapshots from now on, for one ``async for``. Ends when the monitor stops, after what is still waiting.

    The monitor knows it only as long as the loop does: one that is left by ``break`` costs nothing any more.

    Attributes:
        dropped: Snapshots that the loop was too slow for.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Snapshot] = deque(maxlen=WAITING)
        self._woken = asyncio.Event()
        self._waking = False
        self._over = False

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Snapshot:
        while not self._waiting:
            if self._over:
                raise StopAsyncIteration
            self._woken.clear()
            await self._woken.wait()
        return self._waiting.popleft()

    def put(self, snapshot: Snapshot | None) -> None:
        """Hand over a snapshot, or None for the end, from any thread. A loop that has been closed gets nothing more."""
        if snapshot is None:
            self._over = True
        else:
            self.dropped += len(self._waiting) == WAITING
            self._waiting.append(snapshot)
        if self._loop.is_closed():
            self._waiting.clear()
        elif not self._waking:  # a loop that is busy elsewhere is called once, not once for every snapshot
            self._waking = True
            with suppress(RuntimeError):  # closed just now
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._waking = False
        self._woken.set()
