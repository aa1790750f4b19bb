"""What the processes of a job on one machine say to each other beside the readings that they share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import TYPE_CHECKING, Any

from accelmetrics.backends.guard import guarded

if TYPE_CHECKING:
    from accelmetrics.sampling.rank_file import Logged, RankFile

PENDING = 10_000
"""Messages that wait until the process takes part, and steps that wait to be written; the oldest go."""
TOLD, EARLY = 1.5, 0.6
"""Seconds within which a step is written for the others, and by how much earlier where the thread that writes is awake anyway. Written
one by one on the training's thread, each step would cost it several times what noting it does."""


class NodeChannel:
    """What a process of a job says to the others of its machine beside the readings, and how it takes part.

    Messages are small objects of what JSON has. They are written into a file of this process at once; others hear them when they look.

    Attributes:
        role: ``holder`` reads for the others, ``client`` is read for, ``alone`` reads for itself; empty while nothing is read.
        why: Why it reads for itself.
        devices: What tells the devices that the processes of the job see on this machine from others: UUIDs, where there are.
        processes: How many processes of the job take part here.
        dropped: Messages that were lost, on their way out or in.
        file: Where this process writes what it says; None while it does not take part.
        heard: Whether somebody wants to be told of messages.
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
        self._tells = inf  # until when steps are written; no end while none wait
        self._callbacks: dict[Callable[[Mapping[str, Any]], object], None] = {}

    @property
    def heard(self) -> bool:
        """Whether somebody wants to be told of messages."""
        return bool(self._callbacks)

    def publish(self, message: Mapping[str, Any]) -> None:
        """Send a message to the other processes of the job on this machine. Never waits."""
        if self.file is not None:
            self.dropped += not self.file.message(message)
        elif self.role != "alone":
            self.dropped += len(self._pending) == PENDING
            self._pending.append(message)

    def step(self, at: float, time_ns: int, step: int | None, values: Mapping[str, int | float]) -> bool:
        """Take a step for the others. From any thread, and from signal handlers.

        Returns:
            Whether ``tell`` has to be called, which is not expected to be.
        """
        if self.file is None:
            return False
        self._steps.append((time_ns, step, at, values))
        if self._tells != inf:
            return False
        self._tells = at + TOLD
        return True

    def tell(self, now: float) -> float:
        """Write the steps that have waited long enough, on the thread that reads.

        Returns:
            The moment of ``time.monotonic`` until which it has to be called again; infinite where nothing was logged lately.
        """
        if now >= self._tells - EARLY:
            self._tells = inf  # first: who logs meanwhile sees that nobody will come for it
            steps = [self._steps.popleft() for _ in range(len(self._steps))]
            if steps and self.file is not None:
                self._tells = now + TOLD
                self.file.steps(steps)
        return self._tells

    def subscribe(self, callback: Callable[[Mapping[str, Any]], object]) -> Callable[[], None]:
        """Have a function called with every message of the others, on the thread that reads.

        Returns:
            Call it to end the subscription.
        """
        self._callbacks = {**self._callbacks, callback: None}

        def unsubscribe() -> None:
            self._callbacks = {known: None for known in self._callbacks if known is not callback}

        return unsubscribe

    def join(self, file: RankFile | None) -> None:
        """Take part: say what waits, and from now on at once."""
        self._steps.clear()  # of the parent, in the child of a fork
        self._tells = inf
        self.file = file
        while file is not None and self._pending:
            self.publish(self._pending.popleft())

    def alone(self, why: str) -> None:
        """Note that this process reads for itself: there is nobody to talk to."""
        self.role, self.why, self.devices, self.processes = "alone", why, frozenset(), 0
        self._pending.clear()

    def give(self, message: Mapping[str, Any]) -> None:
        """Hand out what has come."""
        for callback in self._callbacks:
            guarded(callback, message)
