"""One client: its requests are read, answered and written, each within its time.

What a client can do wrong ends its own connection and nothing else: a handshake, a request or an answer that takes too long,
a head that is too large, a connection that is half open. None of it holds a thread.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Protocol

from accelmetrics.exporters.http.limits import Limits
from accelmetrics.exporters.http.messages import RefusedError, Request, Response, parse

_CHUNK = 65536
_END = b"\r\n\r\n"
_CLIENTS_DOING = (OSError, EOFError, asyncio.TimeoutError)
"""What ends a connection without being worth a word: it was reset, cut off, or took too long."""


class Server(Protocol):
    """What a connection needs of its listener."""

    limits: Limits

    def context(self) -> ssl.SSLContext | None:
        """What the handshake of a new connection goes by, None for a listener without TLS."""
        ...

    async def answer(self, request: Request, transport: asyncio.BaseTransport) -> Response:
        """The answer to a request.

        Raises:
            RefusedError: There is none but an error.
        """
        ...

    def enter(self) -> None:
        """A request is being answered.

        Raises:
            RefusedError: Too many are.
        """
        ...

    def leave(self) -> None:
        """One less is."""
        ...


class Connection:
    """One accepted connection.

    Attributes:
        socket: Its socket.
        waiting: Since when the client has kept us waiting, by the loop's clock; None while it waits for us.
        writing: Whether what we wait for is that it takes its answer.
    """

    def __init__(self, server: Server, accepted: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.socket = accepted
        self.waiting: float | None = loop.time()
        self.writing = False
        self._server = server
        self._limits = server.limits
        self._loop = loop
        self._reader = asyncio.StreamReader(limit=self._limits.head_bytes, loop=loop)
        self._transport: asyncio.Transport | None = None

    async def run(self) -> None:
        """Serve the client until it or its time has come to an end."""
        try:
            writer = await self._connect()
            patience = self._limits.head
            while await self._exchange(writer, patience):
                patience = self._limits.idle
            await self._linger(writer)
        except _CLIENTS_DOING:
            pass
        finally:
            if self._transport is not None:
                self._transport.abort()
            self.socket.close()

    async def _connect(self) -> asyncio.StreamWriter:
        context = self._server.context()
        protocol = asyncio.StreamReaderProtocol(self._reader, loop=self._loop)
        made = await self._loop.connect_accepted_socket(
            lambda: protocol, self.socket, ssl=context, ssl_handshake_timeout=self._limits.head if context else None
        )
        self._transport = made[0]
        self._transport.set_write_buffer_limits(high=0)
        return asyncio.StreamWriter(self._transport, protocol, self._reader, self._loop)

    async def _exchange(self, writer: asyncio.StreamWriter, patience: float) -> bool:
        """One request and its answer; whether there may be another one."""
        self._wait()
        first = await asyncio.wait_for(self._reader.readexactly(1), patience)
        request = None
        entered = False
        try:
            request = parse(first + await asyncio.wait_for(self._rest_of_head(), self._limits.head))
            self._server.enter()
            entered = True
            self.waiting = None
            response = await self._server.answer(request, writer.transport)
            return await self._respond(writer, request, response, request.keep)
        except RefusedError as refused:
            keep = entered and request is not None and request.keep
            return await self._respond(writer, request, refused.response, keep)
        finally:
            if entered:
                self._server.leave()

    async def _rest_of_head(self) -> bytes:
        try:
            return await self._reader.readuntil(_END)
        except asyncio.LimitOverrunError:
            raise RefusedError(431, f"the request's head is larger than {self._limits.head_bytes} bytes") from None

    async def _respond(self, writer: asyncio.StreamWriter, request: Request | None, response: Response, keep: bool) -> bool:
        self._wait(writing=True)
        body = b"" if request is not None and request.method == "HEAD" else response.body
        await asyncio.wait_for(_write(writer, response.head(keep), body), self._limits.write)
        return keep

    async def _linger(self, writer: asyncio.StreamWriter) -> None:
        """Say that nothing more comes, and take what the client has still sent: closing on it at once would cut the answer off."""
        self._wait()
        if writer.can_write_eof():
            writer.write_eof()
        await asyncio.wait_for(_discard(self._reader), self._limits.linger)

    def _wait(self, writing: bool = False) -> None:
        self.waiting, self.writing = self._loop.time(), writing


async def _write(writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
    """In pieces, so that a slow client costs us no copy of the whole."""
    writer.write(head + body[:_CHUNK])
    await writer.drain()
    for start in range(_CHUNK, len(body), _CHUNK):
        writer.write(body[start : start + _CHUNK])
        await writer.drain()


async def _discard(reader: asyncio.StreamReader) -> None:
    while await reader.read(_CHUNK):
        pass
