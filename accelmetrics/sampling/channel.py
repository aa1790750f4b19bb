"""What the processes of a job on one machine say to each other beside the readings that they share."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from accelmetrics.backends.guard import guarded

PENDING = 10_000
"""Messages that wait to be sent; the oldest go."""
BATCH, LONGEST = 200, 4096
"""Messages of one frame, and letters of one message."""


def fits(message: object) -> bool:
    """Return whether a message may be sent: it is what JSON has, and short enough."""
    text = guarded(json.dumps, message, allow_nan=False).value
    return text is not None and len(text) <= LONGEST


class NodeChannel:
    """What a process of a job says to the others of its machine beside the readings, and how it takes part.

    Messages are small objects of what JSON has. They are sent with the next reading, and those that come are handed out with it:
    both on the thread that reads.

    Attributes:
        role: ``holder`` reads for the others, ``client`` is read for, ``alone`` reads for itself; empty while nothing is read.
        why: Why it reads for itself.
        devices: What tells the devices that the processes of the job see on this machine from others: UUIDs, where there are.
        processes: How many processes of the job take part here.
        dropped: Messages that were lost, on their way out or in.
    """

    def __init__(self) -> None:
        self.role = ""
        self.why = ""
        self.devices: frozenset[str] = frozenset()
        self.processes = 0
        self.dropped = 0
        self._pending: deque[Mapping[str, Any]] = deque(maxlen=PENDING)
        self._callbacks: dict[Callable[[Mapping[str, Any]], object], None] = {}

    def publish(self, message: Mapping[str, Any]) -> None:
        """Send a message to the other processes of the job on this machine. Never waits; it must not be changed afterwards."""
        self.dropped += len(self._pending) == PENDING
        self._pending.append(message)

    def subscribe(self, callback: Callable[[Mapping[str, Any]], object]) -> Callable[[], None]:
        """Have a function called with every message of the others, on the thread that reads.

        Returns:
            Call it to end the subscription.
        """
        self._callbacks = {**self._callbacks, callback: None}

        def unsubscribe() -> None:
            self._callbacks = {known: None for known in self._callbacks if known is not callback}

        return unsubscribe

    @property
    def waiting(self) -> bool:
        """Whether messages wait to be sent."""
        return bool(self._pending)

    def take(self) -> list[Mapping[str, Any]]:
        """Return the next messages that wait to be sent; those that are too long, or nothing that JSON has, are dropped."""
        batch: list[Mapping[str, Any]] = []
        while self._pending and len(batch) < BATCH:
            message = self._pending.popleft()
            if fits(message):
                batch.append(message)
            else:
                self.dropped += 1
        return batch

    def note(self, message: Mapping[str, Any]) -> None:
        """Note what is said of the job."""
        self.devices = frozenset(map(str, message.get("devices", ())))
        self.processes = int(message.get("processes", 0))

    def alone(self, why: str) -> None:
        """Note that this process reads for itself."""
        self.role, self.why, self.devices, self.processes = "alone", why, frozenset(), 0

    def forget(self) -> None:
        """Drop what waits to be sent: there is no other process."""
        self._pending.clear()

    def give(self, message: Mapping[str, Any]) -> None:
        """Hand out what has come."""
        self.dropped += int(message.get("dropped", 0))
        for one in message.get("messages", ()):
            if isinstance(one, dict):
                for callback in self._callbacks:
                    guarded(callback, one)
