"""Messages and logged steps that the processes of a job on one machine exchange in addition to shared readings."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any

from accelmetrics.backends.guard import guarded

if TYPE_CHECKING:
    from accelmetrics.sampling.rank_file import Logged, RankFile

PENDING = 10_000
"""Limit of queued messages (until the process joins) and of queued steps (until they are written). The oldest are dropped."""
# Steps are batched: a write per step, on the training thread, would cost several times as much as queueing it.
WRITE_DELAY, EARLY = 1.5, 0.6
"""Longest time until a step is written, and how much earlier it may be written if the writing thread is awake anyway. In seconds."""


class NodeChannel:
    """The channel of one process to the other processes of its job on this machine, and its role in the job.

    Messages are small JSON-compatible objects. Each is written to this process's file at once; other processes receive it when they
    next read that file.

    Attributes:
        role: ``holder`` reads for the others, ``client`` uses their readings, ``alone`` reads for itself; empty while nothing is read.
        why: Why it reads for itself.
        devices: Identifiers of the devices that the job's processes see on this machine: UUIDs, where there are any.
        processes: Number of processes of the job that take part here.
        dropped: Number of messages lost, sent or received.
        file: The file this process writes to; None while it does not take part.
        has_subscriber: Whether messages have a subscriber.
    """

    def __init__(self) -> None:
        self.role = ""
        self.why = ""
        self.devices: frozenset[str] = frozenset()
        self.processes = 0
        self.dropped = 0
        self.file: RankFile | None = None
        self._pending: deque[Mapping[str, Any]] = deque(maxlen=PENDING)
        self._steps: deque[Logged] = deque(maxlen=PENDING)
        self._write_due = inf  # deadline of the next write of steps; infinite while no write is scheduled
        self._callbacks: dict[Callable[[Mapping[str, Any]], object], None] = {}

    @property
    def has_subscriber(self) -> bool:
        """Whether messages have a subscriber."""
        return bool(self._callbacks)

    def publish(self, message: Mapping[str, Any]) -> None:
        """Send a message to the other processes of the job on this machine. Never blocks."""
        if self.file is not None:
            self.dropped += not self.file.message(message)
        # Not joined yet: there may be receivers once it has.
        elif self.role != "alone":
            self.dropped += len(self._pending) == PENDING
            self._pending.append(message)

    def step(self, at: float, time_ns: int, step: int | None, values: Mapping[str, int | float]) -> bool:
        """Queue a logged step for the other processes. Safe from any thread and from signal handlers.

        Returns:
            Whether the caller must schedule a call of ``tell``, because none is scheduled.
        """
        if self.file is None:
            return False
        # Writing a step at once would cost 50 to 70 µs, several times as much as the rest of logging it.
        self._steps.append((time_ns, step, at, values))
        if self._write_due != inf:
            return False
        self._write_due = at + WRITE_DELAY
        return True

    def tell(self, now: float) -> float:
        """Write the queued steps if they have waited long enough. For the thread that reads.

        Returns:
            The time (``time.monotonic``) of the next call needed; infinite if nothing was logged lately.
        """
        if now >= self._write_due - EARLY:
            self._write_due = inf  # before the queue is read: a step logged from here on schedules a call of its own
            if self._steps and self.file is not None:
                self._write_due = now + WRITE_DELAY
                self.file.steps([self._steps.popleft() for _ in range(len(self._steps))])
        return self._write_due

    def subscribe(self, callback: Callable[[Mapping[str, Any]], object]) -> Callable[[], None]:
        """Call a function with every message of the other processes, on the thread that reads.

        Returns:
            A function that ends the subscription.
        """
        # Replaced, never changed: another thread may be iterating over it.
        self._callbacks = {**self._callbacks, callback: None}

        def unsubscribe() -> None:
            self._callbacks = {known: None for known in self._callbacks if known is not callback}

        return unsubscribe

    def join(self, file: RankFile | None) -> None:
        """Start using a file: send the queued messages, and write later ones at once."""
        self._steps.clear()  # after a fork these are the parent's steps, which the parent writes
        self._write_due = inf
        self.file = file
        while file is not None and self._pending:
            self.publish(self._pending.popleft())

    def alone(self, why: str) -> None:
        """Set the role to ``alone`` and drop queued messages: there are no other processes to receive them."""
        self.role, self.why, self.devices, self.processes = "alone", why, frozenset(), 0
        self._pending.clear()

    def give(self, message: Mapping[str, Any]) -> None:
        """Call every subscriber with a received message."""
        for callback in self._callbacks:
            guarded(callback, message)
