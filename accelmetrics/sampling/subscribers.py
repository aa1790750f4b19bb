"""Who follows a monitor from within the program: callbacks, and loops over ``async for``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

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
    """The snapshots from now on, for one ``async for``. Ends when the monitor stops.

    Args:
        forget: Called when the loop ends.
    """

    def __init__(self, forget: Callable[[Stream], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Snapshot | None] = asyncio.Queue()
        self._forget = forget

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Snapshot:
        snapshot = await self._queue.get()
        if snapshot is None:
            self._forget(self)
            raise StopAsyncIteration
        return snapshot

    def put(self, snapshot: Snapshot | None) -> None:
        """Hand over a snapshot, or None for the end, from any thread. A loop that has been closed gets nothing more."""
        try:
            self._loop.call_soon_threadsafe(self._put, snapshot)
        except RuntimeError:
            self._forget(self)

    def _put(self, snapshot: Snapshot | None) -> None:
        if self._queue.qsize() >= WAITING:
            self._queue.get_nowait()
        self._queue.put_nowait(snapshot)
