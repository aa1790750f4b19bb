"""The process that reads for others of its machine: takes one reading at the pace of its fastest client and sends it to all.

It works on a thread of its own, with an event loop; readings are taken on another one beside that, so that a driver that hangs holds up
no client's message. That thread makes its calls itself, as a monitor's does, and the loop looks at it: where it is stuck in one, another
thread goes on. While there is no client nothing is read.

A client is let in by its user. It costs the others nothing whatever it does: frames are bounded before they are kept, one that does not
say ``hello`` in time, sends what is no message, or takes nothing for long is hung up on; a process has so many connections at most,
and the oldest that has said nothing makes room for the next one. A client that is behind gets the newest reading, not all of them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, cast

from accelmetrics._version import __version__
from accelmetrics.backends.contract import MOST_DEVICES
from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.sampling.channel import fits
from accelmetrics.sampling.node_wire import (
    LONGEST_HELLO,
    LONGEST_MESSAGES,
    PROTOCOL,
    Credentials,
    Encoder,
    Frames,
    Hello,
    WireError,
    credentials,
    frame,
    hello,
)
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.schemas.errors import AccelMetricsError
from accelmetrics.schemas.selection import ALL, MetricSelection
from accelmetrics.schemas.snapshot import Snapshot

HELLO_TIMEOUT = 5.0
"""Seconds that a client has to say hello."""
SLOW = 10.0
"""Seconds for which a client may take nothing of what it was sent."""
MOST_CLIENTS, MOST_OF_PROCESS = 512, 16
"""Connections in all, and of one process."""
MOST_HEARD, MOST_MESSAGES = 1 << 18, 5000
"""Between two readings: bytes that one client may say, and messages that are kept for one."""
MOST_ACCEPTED = 32
"""Connections that are taken at once before others have their turn."""
REQUEST_PAUSE, REQUEST_SHARE = 0.02, 10
"""Seconds from one reading to one that is requested, and the same in durations of the last: however often clients ask."""
TOLERANCE = 0.3
"""Share of an interval by which a reading may come early for a client."""
CLOSING = 1.0
"""Seconds that closing waits for the thread."""
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logging.getLogger("accelmetrics")


class Client(asyncio.Protocol):
    """One connection, from its beginning to its end.

    Attributes:
        connection: Its socket.
        peer: Who it is.
        hello: What it said first; None until then.
        devices: What tells the devices that it sees from others.
        wants: Whether it is owed a reading that begins from now on.
        due: When its next reading is due, on the loop's clock.
        news: Whether it is to be told of its job anew.
    """

    def __init__(self, server: NodeServer, connection: socket.socket, peer: Credentials) -> None:
        self.connection = connection
        self.peer = peer
        self.hello: Hello | None = None
        self.devices: tuple[str, ...] = ()
        self.wants = True
        self.due = 0.0
        self.news = True
        self._server = server
        self._frames = Frames(LONGEST_HELLO)
        self._transport: asyncio.Transport | None = None
        self._serial = 0
        self._stuck_since: float | None = None
        self._heard = 0
        self._outbox: deque[object] = deque(maxlen=MOST_MESSAGES)
        self._dropped = 0

    @property
    def group(self) -> tuple[int, str]:
        """Those with which it exchanges messages: the same user's, of the same job."""
        return self.peer.uid, self.hello.job if self.hello is not None else ""

    @property
    def interval(self) -> float:
        """Seconds between two readings that it is sent."""
        return self.hello.interval if self.hello is not None else math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note where to write."""
        self._transport = cast("asyncio.Transport", transport)
        self._server.loop.call_later(HELLO_TIMEOUT, self._hear_nothing)

    def data_received(self, data: bytes) -> None:
        """Take what it says; one that says much is heard on after the next reading."""
        self._heard += len(data)
        if self._heard > MOST_HEARD and self._transport is not None:
            self._transport.pause_reading()
        try:
            for message in self._frames.feed(data):
                if self.hello is None:
                    self.hello = hello(message)
                    self._frames.longest = LONGEST_MESSAGES
                    self._server.join(self)
                else:
                    self._server.heard(self, message)
        except WireError as error:
            log.debug("process %d is hung up on: %s", self.peer.pid, error)
            self.hang_up()

    def connection_lost(self, _error: Exception | None) -> None:
        """Forget it."""
        self._server.leave(self)

    def send(self, *messages: Mapping[str, Any] | bytes) -> None:
        """Send messages."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(message if isinstance(message, bytes) else frame(message) for message in messages))

    def pass_on(self, messages: Iterable[object]) -> None:
        """Keep messages of others for it until its next reading; of too many, the oldest go and are counted."""
        for message in messages:
            self._dropped += len(self._outbox) == MOST_MESSAGES
            self._outbox.append(message)

    def send_reading(self, encoder: Encoder) -> None:
        """Send the latest reading, and before it what that stands on and what waits."""
        if self._outbox or self._dropped:
            self.send({"type": "messages", "messages": list(self._outbox), "dropped": self._dropped})
            self._outbox.clear()
            self._dropped = 0
        if self._serial != encoder.serial:
            self._serial = encoder.serial
            self.send(encoder.standing)
        self.send(encoder.reading)

    def hear_on(self) -> None:
        """Hear it again, where it had said too much."""
        if self._heard > MOST_HEARD and self._transport is not None:
            self._transport.resume_reading()
        self._heard = 0

    def is_behind(self) -> bool:
        """Return whether something that it was sent still waits here; where that has lasted too long it is hung up on."""
        if self._transport is None or not self._transport.get_write_buffer_size():
            self._stuck_since = None
            return False
        now = self._server.loop.time()
        self._stuck_since = self._stuck_since or now
        if now - self._stuck_since > SLOW:
            log.debug("process %d is hung up on: it has taken nothing for %g s", self.peer.pid, SLOW)
            self.hang_up()
        return True

    def refuse(self, why: str) -> None:
        """Say why there is nothing for it here, and end the connection."""
        self.send({"type": "refused", "why": why})
        if self._transport is not None:
            self._transport.close()

    def hang_up(self) -> None:
        """End the connection at once."""
        if self._transport is None:
            with suppress(OSError):  # the loop is about to take it up, and closes what has ended
                self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self._transport.abort()

    def _hear_nothing(self) -> None:
        if self.hello is None:
            self.hang_up()


class ReadingThread:
    """The thread that takes readings of one sampler.

    Args:
        sampler: The sampler.
        land: Called on the thread with the outcome of each reading.

    Attributes:
        thread: The thread.
    """

    def __init__(self, sampler: Sampler, land: Callable[[Outcome[Snapshot]], object]) -> None:
        self.sampler = sampler
        self._land = land
        self._wanted: SimpleQueue[bool] = SimpleQueue()
        self.thread = threading.Thread(target=self._run, name="accelmetrics-node-reader", daemon=True)
        self.thread.start()

    def take(self) -> None:
        """Have a reading taken."""
        self._wanted.put(True)

    def end(self) -> None:
        """Have the sampler closed, and the thread end."""
        self._wanted.put(False)

    def _run(self) -> None:
        while self._wanted.get():
            self._land(guarded(self.sampler.sample))
        self.sampler.close()


class NodeServer:
    """Serves readings on a listening socket, on a thread of its own.

    Args:
        listener: The socket.
        options: Those of :class:`~accelmetrics.sampling.sampler.Sampler`, for its readings.
        allowed: Whether a process is let in.

    Attributes:
        loop: The event loop of its thread.
        clients: Those that are connected.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self, listener: socket.socket, options: Mapping[str, Any], allowed: Callable[[Credentials], bool]) -> None:
        self.clients: dict[Client, None] = {}
        self._listener = listener
        self._options = dict(options)
        self._allowed = allowed
        self._shared = {"backends": None, "amd_source": None, "disk_paths": ["/"]} | {
            name: list(value) if isinstance(value, tuple) else value
            for name in ("backends", "amd_source", "disk_paths")
            if (value := options.get(name)) is not None
        }
        self._encoder = Encoder()
        self._readers: dict[tuple[str, ...], ReadingThread] = {}  # by what they read: one, but while it is replaced
        # The reading that is being taken: what is read, and its interval, the clients that requested it, when it began, if it is the first.
        self._taking: tuple[tuple[str, ...], float, frozenset[Client], float, bool] | None = None
        self._ready: dict[Client, None] = {}
        self._due = 0.0
        self._last = self._spent = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._connecting: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="accelmetrics-node", daemon=True)
        self._closed = threading.Event()

    def start(self) -> None:
        """Begin.

        Raises:
            RuntimeError: No thread is to be had. The socket is closed then.
        """
        try:
            self._thread.start()
        except RuntimeError:
            self._listener.close()
            raise

    def close(self) -> None:
        """End: all connections are ended, and nothing is read any more. Waits a moment for that."""
        self._closed.set()
        with suppress(AttributeError, RuntimeError):  # it has not begun, or has ended
            self.loop.call_soon_threadsafe(self._stop_serving)
        until = time.monotonic() + CLOSING
        for thread in (self._thread, *[reader.thread for reader in tuple(self._readers.values())]):
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))

    def after_fork(self) -> None:
        """Close, in the child of a fork, the copies of the connections, which would outlive the parent."""
        for client in list(self.clients):
            client.connection.close()
        self._listener.close()

    def _run(self) -> None:
        failure = guarded(asyncio.run, self._serve()).failure
        if failure is not None:
            log.warning("readings are shared no longer by process %d: %s", os.getpid(), failure.detail)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = self.loop.create_future()
        self._listener.setblocking(False)
        self.loop.add_reader(self._listener, self._accept)
        try:
            if not self._closed.is_set():
                await self._stop
        finally:
            self.loop.remove_reader(self._listener)
            self._listener.close()
            for client in list(self.clients):
                client.hang_up()
            for reader in self._readers.values():
                reader.end()

    def _end(self, outcome: Outcome[object]) -> None:
        """End where something of ours has failed: without readings there is nothing to serve."""
        if outcome.error is not None and not self._stop.done():
            self._stop.set_exception(outcome.error)

    def _stop_serving(self) -> None:
        if not self._stop.done():
            self._stop.set_result(None)

    # Clients

    def _accept(self) -> None:
        """Take connections that wait, a few at a time."""
        for _ in range(MOST_ACCEPTED):
            try:
                connection, _address = self._listener.accept()
            except OSError as error:
                if error.errno in _NO_ROOM and self.clients:
                    self._make_room()
                return
            outcome = guarded(credentials, connection)
            peer = outcome.value
            if peer is None or not self._allowed(peer) or self._connections(peer) >= MOST_OF_PROCESS:
                connection.close()
                continue
            if len(self.clients) >= MOST_CLIENTS:
                self._make_room()
            connection.setblocking(False)
            client = Client(self, connection, peer)
            self.clients[client] = None
            task = self.loop.create_task(self._connect(client))
            self._connecting.add(task)  # the loop itself does not keep it
            task.add_done_callback(self._connecting.discard)

    def _connections(self, peer: Credentials) -> int:
        return Counter(client.peer.pid for client in self.clients)[peer.pid] if peer.pid else 0

    def _make_room(self) -> None:
        """Hang up on the oldest connection that has said nothing yet; else on the newest."""
        silent = [client for client in self.clients if client.hello is None]
        victim = silent[0] if silent else next(reversed(self.clients))
        self.clients.pop(victim)
        victim.hang_up()

    async def _connect(self, client: Client) -> None:
        with suppress(OSError, ValueError):  # it was closed since, to make room
            await self.loop.connect_accepted_socket(lambda: client, client.connection)

    def join(self, client: Client) -> None:
        """Let a client take part, or say why not."""
        said = client.hello
        if said is None:
            return
        differing = [name for name, value in said.options.items() if value != self._shared[name]]
        if said.protocol != PROTOCOL:
            client.refuse(f"it is accelmetrics {__version__} and speaks protocol {PROTOCOL}, not {said.protocol} of {said.release}")
            return
        if differing:
            client.refuse(f"it reads with other {' and '.join(differing)}: {', '.join(f'{self._shared[name]}' for name in differing)}")
            return
        self._ready[client] = None
        client.send({"type": "welcome", "protocol": PROTOCOL, "release": __version__, "pid": os.getpid()})
        client.due = self.loop.time()
        self._changed(client)
        self._schedule()

    def leave(self, client: Client) -> None:
        """Forget a client."""
        self.clients.pop(client, None)
        if self._ready.pop(client, self) is None:
            self._changed(client)

    def heard(self, client: Client, message: Mapping[str, Any]) -> None:
        """Take a later message of a client.

        Raises:
            WireError: It is none that a client sends.
        """
        kind = message.get("type")
        if client not in self._ready:
            return
        if kind == "read":
            client.wants = True
            self._schedule()
        elif kind == "devices" and isinstance(message.get("devices"), list) and len(message["devices"]) <= MOST_DEVICES:
            client.devices = tuple(map(str, message["devices"]))
            self._changed(client)
        elif kind == "messages" and isinstance(message.get("messages"), list) and all(map(fits, message["messages"])):
            for other in self._ready:
                if other is not client and other.group == client.group:
                    other.pass_on(message["messages"])
        else:
            raise WireError(f"a message of the type {kind!r} was not expected")

    def _changed(self, client: Client) -> None:
        """Have the processes of a client's job told of it anew, with their next readings."""
        for other in self._ready:
            other.news = other.news or other.group == client.group

    def _tell_of_jobs(self, clients: Iterable[Client]) -> None:
        """Tell processes which devices those of their job see together, and how many they are."""
        for client in clients:
            if client.news and not client.is_behind():
                client.news = False
                group = [other for other in self._ready if other.group == client.group]
                devices = list(dict.fromkeys(device for other in group for device in other.devices))
                client.send({"type": "job", "devices": devices, "processes": len(group)})

    # Readings

    def _schedule(self) -> None:
        """Have the next reading begin when it is due: by the fastest client's pace, or as soon as one that was requested may."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._taking is not None or not self._ready:
            return
        now = self.loop.time()
        until = self._due
        if any(client.wants for client in self._ready):
            until = min(until, self._last + max(REQUEST_PAUSE, REQUEST_SHARE * self._spent))
        self._timer = self.loop.call_at(max(now, until), lambda: self._end(guarded(self._take)))

    def _take(self) -> None:
        """Have a reading taken of what the clients want together."""
        self._timer = None
        interval = min(client.interval for client in self._ready)
        now = self._last = self.loop.time()
        if now >= self._due - TOLERANCE * interval:
            self._due += interval * (1 + max(0, (now - self._due) // interval))
        self._due = min(self._due, now + interval)
        asked = [client for client in self._ready if client.wants]
        for client in asked:
            client.wants = False
        wanted = union(tuple(client.hello.metrics) for client in self._ready if client.hello is not None)
        first = wanted not in self._readers
        if first:
            # A plug-in's metric may not be known here.
            metrics = guarded(MetricSelection, wanted).value or ALL
            self._readers[wanted] = ReadingThread(Sampler(**{**self._options, "metrics": metrics}), self._arrived)
        self._taking = (wanted, interval, frozenset(asked), time.monotonic(), first)
        self._readers[wanted].take()

    def _arrived(self, outcome: Outcome[Snapshot]) -> None:
        """Take what came of a reading, on the thread that took it."""
        with suppress(RuntimeError):  # the loop has been closed
            self.loop.call_soon_threadsafe(lambda: self._end(guarded(self._land, outcome)))

    def _land(self, outcome: Outcome[Snapshot]) -> None:
        """Send a reading to those for which one is due, and go on to the next."""
        taking, self._taking = self._taking, None
        if taking is None:
            return
        wanted, interval, asked, began, first = taking
        for former in [other for other in self._readers if other != wanted]:  # only now: what both read stays open
            self._readers.pop(former).end()
        if outcome.value is not None:
            self._send(outcome.value, interval, asked, began)
        elif isinstance(outcome.error, AccelMetricsError):
            log.warning("no reading for the processes of this machine: %s", outcome.error)
        elif outcome.error is not None:
            raise outcome.error
        self._spent = 0.0 if first else self.loop.time() - self._last  # an opening is no measure
        self._schedule()

    def _send(self, snapshot: Snapshot, interval: float, asked: frozenset[Client], began: float) -> None:
        self._encoder.encode(snapshot, began, time.monotonic())
        now = self.loop.time()
        early = TOLERANCE * interval
        due = [client for client in self._ready if client in asked or now >= client.due - early]
        self._tell_of_jobs(due)
        for client in due:
            client.due = max(client.due + client.interval, now)
            if not client.is_behind():
                client.send_reading(self._encoder)
            client.hear_on()


def union(selections: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """Return items that select all that any of the selections does: the same one, or all of theirs without what they exclude."""
    distinct = list(dict.fromkeys(selections))
    if len(distinct) == 1:
        return distinct[0]
    chosen = [[item for item in items if not item.startswith("-")] or [ALL] for items in distinct]
    every = tuple(sorted({item for items in chosen for item in items}))
    return (ALL,) if ALL in every or not every else every
