"""Readings for coroutines: a daemon thread takes them and hands them to the event loops that wait."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.sampling.threads import OnDemandThread
from accelmetrics.schemas.snapshot import Snapshot

Request = tuple[Callable[[], Snapshot], asyncio.AbstractEventLoop, "asyncio.Future[Snapshot]"]
"""A waiting coroutine: the function that takes the reading, the coroutine's event loop, and the future it awaits."""
LINGER = 5.0
"""Seconds the thread waits for the next request, so that a program that reads every second starts one thread, not one per reading."""


class CoroutineReader:
    """The thread of one sampler that takes readings for coroutines of any number of event loops.

    It ends some seconds after the last request. It never keeps the interpreter from exiting, and references no sampler between readings.
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
            BaseException: The error that ``take`` raised, or the reason why no thread could be started.
        """
        if os.getpid() != self._pid:  # in the child of a fork the thread is gone, and its queue may be locked
            self._begin()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Snapshot] = loop.create_future()
        self._requests.put((take, loop, future))
        error = self._thread.start().error
        if error is not None:
            future.cancel()
            raise error
        return await future


def _serve(requests: SimpleQueue[Request]) -> None:
    """Answer requests until none has come for a while. One reading answers all requests that wait."""
    while True:
        try:
            waiting = [requests.get(timeout=LINGER)]
        except Empty:
            return
        while not requests.empty():
            waiting.append(requests.get())
        # All of them asked before the reading begins, so one reading serves all.
        waiting = [request for request in waiting if not request[2].cancelled()]
        if waiting:
            outcome = guarded(waiting[0][0])
            for _, loop, future in waiting:
                with suppress(RuntimeError):  # the loop has been closed
                    loop.call_soon_threadsafe(_settle, future, outcome)
            del loop, future, outcome
        del waiting  # a reference here would keep the sampler alive while the thread waits


def _settle(future: asyncio.Future[Snapshot], outcome: Outcome[Snapshot]) -> None:
    if future.done():  # it was cancelled during the reading
        return
    if outcome.error is not None:
        future.set_exception(outcome.error)
    elif outcome.value is not None:
        future.set_result(outcome.value)
