"""The listener: one thread for all clients, one for computing answers, one for trying passwords; never more.

Slow, idle and half-open clients are entries in a table, not threads. A request is parsed, its sender checked, and a handler
called by path. Nothing that a client does reaches the program that the listener lives in.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

from accelmetrics.exporters.credentials import Credentials
from accelmetrics.exporters.http.address import Address, close_all
from accelmetrics.exporters.http.connection import Connection
from accelmetrics.exporters.http.limits import Limits
from accelmetrics.exporters.http.messages import Handler, RefusedError, Request, Response
from accelmetrics.exporters.tls import TlsContexts

log = logging.getLogger("accelmetrics")
_T = TypeVar("_T")
_METHODS = ("GET", "HEAD")
_PAUSE = 0.1
_SPARE = 0.5
"""Seconds of a scrape's timeout that are left for the answer's way back."""
_DEFAULT = Limits()
_RETRY = {"Retry-After": "1"}


class Listener:
    """Answers HTTP requests on one port.

    Args:
        address: Where to listen.
        routes: By path, what answers.
        tls: The certificates; None serves without TLS.
        credentials: Who may come in; None lets in everyone.
        limits: What a client may cost.

    Attributes:
        address: Where it listens once it is open: with the port that the system chose.
    """

    def __init__(
        self,
        address: Address,
        routes: Mapping[str, Handler],
        *,
        tls: TlsContexts | None = None,
        credentials: Credentials | None = None,
        limits: Limits = _DEFAULT,
    ) -> None:
        self.address = address
        self.limits = limits
        self._routes = routes
        self._tls = tls
        self._credentials = credentials
        self._most = limits.affordable_connections
        self._connections: dict[asyncio.Task[None], Connection] = {}
        self._in_flight = 0
        self._guesses = 0

    def open(self) -> None:
        """Listen, from a thread of its own.

        Raises:
            OSError: The port is in use or may not be used, or no thread can be started.
        """
        self._loop = asyncio.SelectorEventLoop()
        try:
            self._listening = self.address.listen()
        except OSError:
            self._loop.close()
            raise
        self.address = self.address._replace(port=self._listening[0].getsockname()[1])
        self._owner = os.getpid()
        self._computing: Executor = ThreadPoolExecutor(1, "accelmetrics-http-answers")
        self._guessing: Executor = ThreadPoolExecutor(1, "accelmetrics-http-passwords")
        self._loop.set_exception_handler(_unexpected)
        self._main = self._loop.create_task(self._accept_all())
        self._thread = threading.Thread(target=self._run, name="accelmetrics-http", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no thread is to be had
            self._main.cancel()
            self._run()  # ends at once, giving everything back
            raise OSError(f"cannot listen on {self.address}: {error}") from error
        _leave_open_to_parent()
        _OPEN.add(self)

    def close(self) -> None:
        """End all connections and threads. In a child that was forked meanwhile there is nothing to end."""
        _OPEN.discard(self)
        if os.getpid() != self._owner:
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join()
        self._computing.shutdown(cancel_futures=True)
        self._guessing.shutdown(cancel_futures=True)

    def leave_to_parent(self) -> None:
        """Close what a forked child has inherited, or the port would stay taken while it lives."""
        close_all(self._listening)
        for connection in self._connections.values():
            connection.socket.close()

    # The loop's thread

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._main)
        self._loop.run_until_complete(self._end_all())
        close_all(self._listening)
        self._loop.close()

    async def _accept_all(self) -> None:
        await asyncio.gather(*map(self._accept, self._listening))

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(listening)
            except OSError:  # no file descriptor is free, or the client is gone already
                self._evict()
                await asyncio.sleep(_PAUSE)
                continue
            if len(self._connections) >= self._most:
                self._evict()
            await asyncio.sleep(0)  # a flood of new clients does not hold up the others
            connection = Connection(self, accepted, self._loop)
            task = self._loop.create_task(connection.run())
            self._connections[task] = connection
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.pop(task, None)
        if not task.cancelled() and (error := task.exception()):
            log.warning("a connection ended in an error", exc_info=error)

    async def _end_all(self) -> None:
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self.limits.linger)
        await asyncio.sleep(0)  # what was aborted is closed in the loop's next round

    def _evict(self, writing_for: float | None = None) -> bool:
        """End the connection that has kept us waiting longest; with a time, of those that do not take their answer for so long."""
        latest = self._loop.time() - (writing_for or 0.0)
        longest = None
        for task, connection in self._connections.items():
            if connection.waiting is not None and connection.waiting <= latest and (writing_for is None or connection.writing):
                longest, latest = (task, connection), connection.waiting
        if longest is None:
            return False
        longest[0].cancel()
        longest[1].waiting = None
        return True

    # What connections ask for

    def context(self) -> ssl.SSLContext | None:
        return self._tls.current() if self._tls else None

    def enter(self) -> None:
        if self._in_flight >= self.limits.in_flight and not self._evict(writing_for=self.limits.stalled):
            raise RefusedError(503, "too many requests at once", _RETRY)
        self._in_flight += 1

    def leave(self) -> None:
        self._in_flight -= 1

    async def answer(self, request: Request, transport: asyncio.BaseTransport) -> Response:
        if self._tls and not self._tls.allows(transport.get_extra_info("peercert")):
            raise RefusedError(403, "the certificate bears none of the names that are let in")
        await self._check(request)
        if request.method not in _METHODS:
            raise RefusedError(405, "only GET and HEAD are served", {"Allow": ", ".join(_METHODS)})
        handler = self._routes.get(request.path)
        if handler is None:
            raise RefusedError(404, "there is nothing here: see /")
        return await self._compute(handler, request)

    async def _compute(self, handler: Handler, request: Request) -> Response:
        asked = request.scrape_timeout
        limit = self.limits.answer if asked is None else min(self.limits.answer, max(asked - _SPARE, asked / 2))
        answer = self._submit(self._computing, handler, request)
        await asyncio.wait({answer}, timeout=limit)
        if not answer.done():
            raise RefusedError(503, "the answer took too long", _RETRY)
        if error := answer.exception():
            log.warning("%s could not be answered", request.path, exc_info=error)
            raise RefusedError(500, f"{type(error).__name__}: see the program's log")
        return answer.result()

    async def _check(self, request: Request) -> None:
        """Whether the client may come in."""
        if self._credentials is None:
            return
        said = request.header("authorization")
        known = self._credentials.known(said)
        if known is None:
            known = await self._guess(self._credentials, said)
        if not known:
            raise RefusedError(401, "say who you are", {"WWW-Authenticate": ", ".join(self._credentials.schemes)})

    async def _guess(self, credentials: Credentials, said: str) -> bool:
        if self._guesses >= self.limits.guesses:
            raise RefusedError(503, "too many passwords to try", _RETRY)
        self._guesses += 1
        try:
            return await self._submit(self._guessing, credentials.tried, said)
        finally:
            self._guesses -= 1

    def _submit(self, executor: Executor, call: Callable[[Any], _T], argument: object) -> asyncio.Future[_T]:
        try:
            return self._loop.run_in_executor(executor, call, argument)
        except RuntimeError:  # the interpreter is about to exit
            raise RefusedError(503, "the program is ending") from None


def _unexpected(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What asyncio remarks about connections that break: worth a line only to whoever looks for it."""
    log.debug("http: %s", context.get("message"), exc_info=context.get("exception"))


_OPEN: weakref.WeakSet[Listener] = weakref.WeakSet()


@lru_cache(maxsize=1)
def _leave_open_to_parent() -> None:
    """Have forked children close what they inherit; asked for once."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_leave_all)


def _leave_all() -> None:
    for listener in list(_OPEN):
        listener.leave_to_parent()
