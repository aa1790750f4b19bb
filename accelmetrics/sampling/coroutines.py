"""Readings for coroutines: taken on a daemon thread, handed to the event loops that wait for them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.sampling.threads import OnDemandThread
from accelmetrics.schemas.snapshot import Snapshot

LINGER = 5.0
"""Seconds for which the thread waits for the next request: a program that reads every second starts one, not one a reading."""


class Request(NamedTuple):
    """A coroutine that waits for a reading.

    Attributes:
        take: Takes the reading.
        loop: The coroutine's event loop.
        future: What the coroutine awaits.
    """

    take: Callable[[], Snapshot]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Snapshot]


class CoroutineReader:
    """The thread of one sampler that takes readings for coroutines, of any number of event loops.

    It ends by itself some seconds after the last request, keeps no interpreter from exiting and holds no sampler that is not
    being read.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._requests: SimpleQueue[Request] = SimpleQueue()
        self._thread = OnDemandThread("accelmetrics-coroutines", self._requests.qsize, partial(_serve, self._requests))

    async def read(self, take: Callable[[], Snapshot]) -> Snapshot:
        """Return a reading that began after this call.

        Raises:
            BaseException: What ``take`` raised, or that no thread is to be had.
        """
        if os.getpid() != self._pid:  # the thread stayed behind, and with it whatever it held
            self._begin()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Snapshot] = loop.create_future()
        self._requests.put(Request(take, loop, future))
        error = self._thread.start().error
        if error is not None:
            future.cancel()
            raise error
        return await future


def _serve(requests: SimpleQueue[Request]) -> None:
    """Answer requests, all that wait with one reading, until none has come for a while."""
    while True:
        try:
            waiting = [requests.get(timeout=LINGER)]
        except Empty:
            return
        while not requests.empty():
            waiting.append(requests.get())
        waiting = [request for request in waiting if not request.future.cancelled()]
        if waiting:
            outcome = guarded(waiting[0].take)
            for request in waiting:
                with suppress(RuntimeError):  # the loop has been closed
                    request.loop.call_soon_threadsafe(_settle, request.future, outcome)
            del request, outcome
        del waiting  # nothing here keeps a sampler alive while the thread waits


def _settle(future: asyncio.Future[Snapshot], outcome: Outcome[Snapshot]) -> None:
    if future.done():  # cancelled meanwhile
        return
    if outcome.error is not None:
        future.set_exception(outcome.error)
    elif outcome.value is not None:
        future.set_result(outcome.value)
