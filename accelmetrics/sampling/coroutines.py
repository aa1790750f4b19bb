"""Readings for coroutines: taken on a daemon thread, handed to the event loops that wait for them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import lru_cache, partial, wraps
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, ParamSpec

from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.sampling.sampler import MOST_SHARED, hashable, sample
from accelmetrics.sampling.threads import OnDemandThread
from accelmetrics.schemas.snapshot import Snapshot

P = ParamSpec("P")

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


@lru_cache(MOST_SHARED)
def _shared(*args: object, **options: object) -> CoroutineReader:
    """Return the reader of all calls with these options."""
    return CoroutineReader()


def _for_coroutines(take: Callable[P, Snapshot]) -> Callable[P, Coroutine[Any, Any, Snapshot]]:
    @wraps(take, assigned=("__annotations__",))  # the options, for help() and editors
    async def asample(*args: P.args, **options: P.kwargs) -> Snapshot:
        """Read everything once, as :func:`sample` with the same options, while the caller's event loop runs on.

        Coroutines that wait at the same time, for the same options, share a reading that began after they asked. One that
        is cancelled stops waiting at once.
        """
        given: list[Any] = [hashable(value) for value in args]  # once: an iterator is used up by it
        named: dict[str, Any] = {name: hashable(value) for name, value in options.items()}
        try:
            reader = _shared(*given, **named)
        except TypeError:  # an option that cannot be used, or a backend that cannot be hashed
            reader = CoroutineReader()
        return await reader.read(partial(take, *given, **named))

    return asample


asample = _for_coroutines(sample)
