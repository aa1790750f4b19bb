"""The other side of ``isolation="process"``: reads the devices in a process that may hang, crash or be killed.

It lives exactly as long as its parent keeps the line open, and leaves with ``os._exit``: no driver is shut down on the way
out, and no stuck call is waited for. What ends it before that, it says.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
from collections.abc import Sequence
from typing import NamedTuple

from accelmetrics.backends.guard import guarded
from accelmetrics.backends.registry import select
from accelmetrics.sampling.engine import Statistics, ThreadEngine
from accelmetrics.sampling.inventory import Seen
from accelmetrics.sampling.options import Options
from accelmetrics.sampling.session import SHARED
from accelmetrics.sampling.wire import Wire
from accelmetrics.schemas.errors import UnknownNameError
from accelmetrics.schemas.reasons import Unavailable
from accelmetrics.schemas.snapshot import Snapshot


class Order(NamedTuple):
    """What a child is told when it starts.

    Attributes:
        backends: Names of registered backends, and others pickled: their code runs when the child takes them out.
        forced: Which of them are opened whatever detection says.
        options: What to read; the watched process is named.
        seen: The numbering that users have seen so far.
    """

    backends: tuple[str | bytes, ...]
    forced: frozenset[str]
    options: Options
    seen: Sequence[Seen]


class Answer(NamedTuple):
    """What a child answers.

    Attributes:
        ticket: The number of the request; 0 when the child leaves.
        snapshot: The snapshot, None when the request was refused.
        statistics: What the child has counted.
        seen: The numbering, when it changed.
        error: Why the request was refused.
        failure: Why the child leaves.
    """

    ticket: int
    snapshot: Snapshot | None = None
    statistics: Statistics = Statistics()
    seen: Sequence[Seen] | None = None
    error: UnknownNameError | None = None
    failure: Unavailable | None = None


def main(descriptor: int) -> None:
    """Serve readings on the line until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        wire = Wire(socket.socket(fileno=descriptor))
        outcome = guarded(_serve, wire)
        if outcome.failure is not None:  # it may be that the parent has hung up: then nobody hears it
            guarded(wire.send, Answer(0, failure=outcome.failure))
    finally:
        os._exit(0)


def _serve(wire: Wire) -> None:
    order: Order = wire.receive(None)
    backends = [item if isinstance(item, str) else pickle.loads(item) for item in order.backends]
    engine = ThreadEngine(SHARED, select(backends), order.forced, order.options, order.seen)
    told: object = None
    while True:
        ticket = wire.receive(None)
        try:
            snapshot = engine.take()
        except UnknownNameError as error:
            wire.send(Answer(ticket, statistics=engine.statistics, error=error))
            continue
        seen = engine.numbering()
        wire.send(Answer(ticket, snapshot, engine.statistics, None if seen == told else seen))
        told = seen
