"""The HTTP server: tornado on a separate thread and event loop, with limits on the resources that a client may use.

Tornado parses requests and writes answers. This module accepts connections itself instead of using tornado's ``HTTPServer``: the limit on
connections must hold before the TLS handshake, and one timer must span handshake, request and answer, which ``idle_connection_timeout``
does not do.

Slow, idle and half-open clients cost a connection with a timer, not a thread. Two further threads run one call at a time: one computes
answers, the other hashes passwords. A slow client loses its own connection and delays nobody else:

- Each connection has one timer. It limits the handshake with the first request, the time to receive an answer, and the time to the next
  request.
- Connections are limited in total and per address. A connection beyond the limit closes another one. Connections that were never
  authenticated go first, then the ones of the address with the most connections, then the ones that have been idle longest. A connection
  whose request is being answered is never closed.
- Requests without valid credentials, including probes, are limited per address and second. Passwords that wait to be hashed are limited
  per address. Addresses take turns, so guessing passwords delays neither log-ins from other addresses nor answers to authenticated
  clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import socket
import threading
import weakref
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters, HTTP1ServerConnection
from tornado.httputil import HTTPConnection, HTTPMessageDelegate, HTTPServerConnectionDelegate, HTTPServerRequest
from tornado.iostream import IOStream, SSLIOStream, StreamClosedError, UnsatisfiableReadError
from tornado.web import Application, HTTPError, RequestHandler

from accelmetrics.exporters.http.access import HttpCredentials, Tls
from accelmetrics.exporters.network import Address
from accelmetrics.schemas.log import log

_T = TypeVar("_T")

THREAD = "accelmetrics-http"
PUT_OFF = 1.0
"""Seconds by which the answer to a request beyond its address's limit is delayed."""
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: a browser loads scripts, styles and data only from this server, and runs no inline scripts or styles."""


@dataclass(frozen=True)
class ClientLimits:
    """Limits on the resources that clients may use.

    Attributes:
        connections: Maximum number of open connections; at most half of them from one address.
        computing: Maximum number of requests that wait for an answer to be computed; further ones get status 503.
        guesses: Maximum number of passwords per address that wait to be hashed; further ones get status 429 after a second.
        unauthenticated: Maximum number of requests without valid credentials per address and second, if credentials are required;
            further ones get status 429 after a second.
        head_bytes: Maximum size of the request line and headers, in bytes.
        head: Seconds for the TLS handshake, the request line and the headers of the first request.
        answer: Seconds for computing an answer.
        write: Seconds for a client to receive the answer.
        idle: Seconds from an answer to the headers of the next request, and for a password to wait for its check.
    """

    connections: int = 256
    computing: int = 40
    guesses: int = 64
    unauthenticated: int = 20
    head_bytes: int = 8192
    head: float = 10.0
    answer: float = 10.0
    write: float = 15.0
    idle: float = 60.0


class HttpAnswer(NamedTuple):
    """The answer to a request. ``headers`` are added to the headers that every answer has."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = {}


Compute = Callable[[HTTPServerRequest], HttpAnswer]
"""Function that computes an answer or raises tornado's ``HTTPError``. It must not block: one thread computes all answers in turn."""


class PlainStream(IOStream):
    """A stream that answers headers beyond the size limit with status 431 before it closes."""

    def close(self, exc_info: Any = False) -> None:
        """Close the connection, after an answer if the headers were too large."""
        # Tornado closes such a connection without an answer. Closing with unread data would reset it, and the client's system would then
        # drop the answer.
        if isinstance(exc_info, UnsatisfiableReadError) and not self.closed():
            with contextlib.suppress(OSError, ValueError):
                self.socket.send(b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                for _ in range(64):  # blocks at most
                    if not self.socket.recv(1 << 16):
                        break
        super().close(exc_info)


class TlsStream(SSLIOStream, PlainStream):
    """A TLS stream that sends the closing message, so that a client can distinguish the end of an answer from a truncated one."""

    def close_fd(self) -> None:
        """Send the closing message of TLS without waiting for the client's."""
        with contextlib.suppress(OSError):  # the handshake was not finished, or the client is gone
            self.socket.unwrap()
        super().close_fd()


class ClientConnection:
    """A connection and its timer. Tornado keeps it as the context of the connection's requests.

    Args:
        stream: The connection's stream.
        remote_ip: The client's address.
        seconds: Time until the first request must have arrived.

    Attributes:
        remote_ip: The client's address.
        protocol: ``http`` or ``https``.
        let_in: Whether a request of this connection has been accepted.
        idle_since: Time at which the timer last started, by the loop's clock.
        timeout: Timer that closes the connection. It is cancelled while an answer is computed. A streaming route limits each write itself.
    """

    def __init__(self, stream: IOStream, remote_ip: str, seconds: float) -> None:
        self.stream = stream
        self.remote_ip = remote_ip
        self.protocol = "https" if isinstance(stream, TlsStream) else "http"
        self.let_in = False
        self._start(seconds)

    def wait(self, seconds: float) -> None:
        """Restart the timer. Until it expires, the connection may also be closed to make room for another one."""
        self.timeout.cancel()
        self._start(seconds)

    def _start(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.idle_since = loop.time()
        self.timeout = loop.call_later(seconds, self.stream.close)


class Route(RequestHandler):
    """A request handler that checks access and then computes the answer. Pages and streams are subclasses with another ``get``."""

    def initialize(
        self,
        compute: Compute | None = None,
        give: Callable[[Route], Awaitable[None]] | None = None,
        *,
        public: bool = False,
        any_name: bool = False,
        linked: bool = False,
    ) -> None:
        """Set the arguments of the route.

        Args:
            compute: Function that computes the answer. The default answers 404.
            give: Coroutine function that sends the answer itself, instead of ``compute``.
            public: Whether the route needs no credentials and also answers pages of other sites. Its answer must be quick: it is computed
                on the loop's thread, without waiting for other requests.
            any_name: Whether the route answers under any host name if other machines can reach the server, because monitoring systems
                have their own names for machines. ``allowed_hosts`` restricts it nevertheless.
            linked: Whether pages of other sites may link here. Its answer must contain nothing about the machine.
        """
        self._compute, self._give = compute, give
        self.public = public
        self.any_name = public or any_name
        self.linked = public or linked
        self.client = cast(ClientConnection, cast(HTTP1Connection, self.request.connection).context)
        self.server = cast(Server, self.settings["server"])

    def set_default_headers(self) -> None:
        """Set the headers that every answer has, in place of tornado's."""
        self.clear_header("Server")
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Security-Policy", CONTENT_POLICY)
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        self.set_header("Referrer-Policy", "no-referrer")

    async def prepare(self) -> None:
        """Check the client's access before the request is answered."""
        self.client.timeout.cancel()
        await self.server.check(self)

    async def get(self) -> None:
        """Answer ``GET`` and ``HEAD``. Tornado omits the body for ``HEAD``."""
        if self._give is not None:
            await self._give(self)
        elif self._compute is None:
            raise HTTPError(404, "there is nothing here: see /")
        elif self.public:
            self.answer(self._compute(self.request))
        else:
            self.answer(await self.server.answered(self.server.begin(self._compute, self.request), self.request))

    head = get

    def answer(self, answer: HttpAnswer) -> None:
        """Send an answer, or status 304 if the client already has a copy with this ``Etag``."""
        for name, value in answer.headers.items():
            self.set_header(name, value)
        if self.check_etag_header():
            self.set_status(304)
            self.finish()
            return
        self.set_header("Content-Type", answer.content_type)
        self.set_header("Content-Length", str(len(answer.body)))
        self.flush()  # headers separately: if sent together with the body, tornado copies the body for each client
        self.finish(answer.body)

    def on_finish(self) -> None:
        """Start the timer for the client to receive the answer."""
        self.client.wait(self.server.limits.write)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Send an error as one line of text."""
        error = kwargs["exc_info"][1]
        words = error.log_message if isinstance(error, HTTPError) else f"{type(error).__name__}: see the program's log"
        # Without the header, the browser does not ask for a password during a script's request (Sec-Fetch-Dest: empty). The request would
        # wait for the user's answer; the script reports the error itself.
        if status_code == 401 and self.request.headers.get("Sec-Fetch-Dest") != "empty":
            self.set_header("WWW-Authenticate", cast(HttpCredentials, self.server.credentials).schemes)
        elif status_code == 405:
            words = "only GET and HEAD are served"
            self.set_header("Allow", "GET, HEAD")
        elif status_code in (429, 503):
            self.set_header("Retry-After", "1")
        self.finish(f"{(words or self._reason).replace('%%', '%')}\n")  # tornado doubles percent signs for formatting

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        """Log unexpected errors of an answer. HTTP errors and closed connections are not logged."""
        if not isinstance(value, HTTPError | StreamClosedError):
            log.warning("%s could not be answered", self.request.path, exc_info=value)


class Server(HTTPServerConnectionDelegate):
    """An HTTP server on one port.

    Args:
        address: Address to listen on.
        routes: Routes of tornado's ``Application``: path, :class:`Route` or a subclass, and its arguments.
        tls: The certificates; None serves without TLS.
        credentials: Accepted passwords and tokens; None accepts every client.
        allowed_hosts: Accepted names in a request's ``Host``, in addition to ``localhost`` and this machine's names. A server on loopback
            also accepts loopback addresses. Any other server also accepts all addresses and all names without a dot, which no web site
            has. If this is empty, its routes with ``any_name`` accept every name.
        limits: Limits on the resources that clients may use.

    Attributes:
        address: Address that the server listens on. After :meth:`open` it has the port that the system chose.
        credentials: Accepted passwords and tokens.
    """

    def __init__(
        self,
        address: Address,
        routes: Iterable[tuple[str, type[Route], Mapping[str, Any]]],
        *,
        tls: Tls | None = None,
        credentials: HttpCredentials | None = None,
        allowed_hosts: Iterable[str] = (),
        limits: ClientLimits = ClientLimits(),
    ) -> None:
        self.address = address
        self.limits = limits
        self._tls = tls
        self.credentials = credentials
        names = tuple(allowed_hosts)
        self._hosts = frozenset(name.lower().rstrip(".") for name in (*names, "localhost", address.host))
        self._any_name = not address.is_loopback and not names
        self._application = Application(
            [(path, kind, dict(arguments)) for path, kind, arguments in routes],
            default_handler_class=Route,
            log_function=lambda _: None,
            server=self,
        )
        self._parameters = HTTP1ConnectionParameters(max_header_size=limits.head_bytes, max_body_size=0)
        self._most = limits.connections
        with contextlib.suppress(ImportError):  # Windows
            import resource

            # Leave three quarters of the process's file descriptors to the rest of the program.
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            self._most = self._most if soft == resource.RLIM_INFINITY else min(self._most, max(16, soft // 4))
        self._clients: set[ClientConnection] = set()
        self._places = asyncio.Semaphore(limits.computing)
        # By address: requests without valid credentials in this second, passwords that wait, and the lock that lets them take turns.
        self._unauthenticated: Counter[str] = Counter()
        self._second = 0
        self._guesses: Counter[str] = Counter()
        self._address_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def open(self) -> None:
        """Start listening, and serve requests on a separate thread.

        Raises:
            OSError: The port is in use or not permitted, or no thread can be started.
        """
        self._loop = asyncio.SelectorEventLoop()
        try:
            self._sockets = listen(self.address)
        except OSError:
            self._loop.close()
            raise
        self.address = self.address._replace(port=self._sockets[0].getsockname()[1])
        if not self.address.is_loopback:
            names = [socket.gethostname()]  # followed by the fully qualified name, if the system knows it
            with contextlib.suppress(OSError, UnicodeError):
                names.append(socket.getaddrinfo(names[0], None, flags=socket.AI_CANONNAME)[0][3])
            self._hosts |= {name.lower().rstrip(".") for name in names if name}
        self._end, self._hashing_lock = asyncio.Event(), asyncio.Lock()
        self._answers = ThreadPoolExecutor(1, "accelmetrics-http-answers")
        self._passwords = ThreadPoolExecutor(1, "accelmetrics-http-passwords")
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        for name in ("general", "application"):
            logging.getLogger(f"tornado.{name}").addFilter(_quiet)
        try:
            self._thread.start()
        except RuntimeError as error:  # the system refuses another thread
            self._end.set()
            self._run()  # returns at once and closes the sockets
            raise OSError(f"cannot listen on {self.address}: {error}") from error
        _OPEN.add(self)

    def close(self) -> None:
        """Close all connections and end the threads."""
        # Threads do not survive a fork, so in a forked child there is nothing to end.
        if self not in _OPEN:
            return
        _OPEN.discard(self)
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._answers.shutdown(cancel_futures=True)
        self._passwords.shutdown(cancel_futures=True)

    # Connections, on the loop's thread

    def _run(self) -> None:
        self._loop.set_exception_handler(lambda _, event: log.debug("http: %s", event.get("message"), exc_info=event.get("exception")))
        for listening in self._sockets:
            listening.setblocking(False)
            self._loop.create_task(self._accept(listening))
        self._loop.run_until_complete(self._end.wait())
        _close((*self._sockets, *(client.stream for client in self._clients)))
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, (host, *_) = await self._loop.sock_accept(listening)
            except OSError:  # no free file descriptor, or the client has already disconnected
                self._evict(self._clients)
                await asyncio.sleep(0.1)
                continue
            self._admit(accepted, host)
            await asyncio.sleep(0)  # let other clients be served during a flood of new connections

    def _admit(self, accepted: socket.socket, host: str) -> None:
        """Serve a new connection if there is room or another one can be closed. The TLS handshake comes after this check."""
        same = [client for client in self._clients if client.remote_ip == host]
        crowded = len(same) >= self._most // 2
        if (crowded or len(self._clients) >= self._most) and not self._evict(same if crowded else self._clients):
            accepted.close()
            return
        most = 4 * self.limits.head_bytes
        try:
            if self._tls is None:
                stream = PlainStream(accepted, max_buffer_size=most)
            else:
                secure = self._tls.current().wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
                stream = TlsStream(secure, max_buffer_size=most)
            stream.set_nodelay(True)
        except OSError:  # the client has already disconnected
            accepted.close()
            return
        client = ClientConnection(stream, host, self.limits.head)
        self._clients.add(client)
        HTTP1ServerConnection(stream, self._parameters, client).start_serving(self)

    def _evict(self, clients: Iterable[ClientConnection]) -> bool:
        """Close the least valuable connection: see the module's docstring for the order. Return False if all are being answered."""
        addresses = Counter(client.remote_ip for client in self._clients)
        waiting = (client for client in clients if not client.timeout.cancelled())
        evicted = min(waiting, key=lambda client: (client.let_in, -addresses[client.remote_ip], client.idle_since), default=None)
        if evicted is None:
            return False
        self._clients.discard(evicted)
        evicted.stream.close()
        return True

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Return tornado's handler of the next request on a connection."""
        client = cast(ClientConnection, cast(HTTP1Connection, request_conn).context)
        # A client that has not been accepted yet keeps the shorter time limit of its first request.
        if client.let_in:
            client.wait(self.limits.idle)
        return self._application.start_request(server_conn, request_conn)

    def on_close(self, server_conn: object) -> None:
        """Remove a closed connection from the list."""
        client = cast(ClientConnection, cast(HTTP1ServerConnection, server_conn).context)
        client.timeout.cancel()
        self._clients.discard(client)

    # Requests, on the loop's thread

    async def check(self, route: Route) -> None:
        """Check a request's host name, origin, certificate and credentials.

        Raises:
            HTTPError: The request is refused.
        """
        request, client = route.request, route.client
        if not (self._any_name and route.any_name) and not self._serves(request.host_name):
            raise HTTPError(421, "this host name is not served here: see --allowed-host")
        if route.public:
            await self._limit(client)
            return
        if request.headers.get("Sec-Fetch-Site") == "cross-site" and not route.linked:
            raise HTTPError(403, "pages of other sites cannot read this")
        if self._tls is not None and not self._tls.allows(cast(dict[str, Any], request.get_ssl_certificate())):
            raise HTTPError(403, "the certificate has none of the accepted names")
        if self.credentials is not None:
            authorization = request.headers.get("Authorization", "")
            known = self.credentials.known(authorization)
            if not (await self._guess(self.credentials, client, authorization) if known is None else known):
                await self._limit(client)
                raise HTTPError(401, "credentials are missing or wrong")
        client.let_in = True

    def _serves(self, name: str) -> bool:
        """Return whether this ``Host`` of a request is accepted."""
        # DNS rebinding makes the name of a web site resolve to this machine, so that its scripts could read the answers. Such a name has a
        # dot and is never an IP address.
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            name = name.rstrip(".")
            return name in self._hosts or (not self.address.is_loopback and "." not in name)
        return not self.address.is_loopback or address.is_loopback or name.strip("[]") in self._hosts

    async def _guess(self, credentials: HttpCredentials, client: ClientConnection, authorization: str) -> bool:
        """Return whether a password is correct. Addresses take turns, with one password each."""
        address = client.remote_ip
        if self._guesses[address] >= self.limits.guesses:
            await self._delay_and_refuse(client, "too many passwords of this address are being checked: try again later")
        self._guesses[address] += 1
        client.wait(self.limits.idle)
        try:
            async with self._address_locks[address], self._hashing_lock:
                if client.stream.closed():
                    return False
                client.timeout.cancel()
                began = self._loop.time()
                right = await self._submit(self._passwords, credentials.tried, authorization)
                # A pause as long as the hashing: guessing passwords takes at most half of a processor.
                await asyncio.sleep(self._loop.time() - began)
                return right
        finally:
            self._guesses[address] -= 1
            if not self._guesses[address]:
                del self._guesses[address], self._address_locks[address]

    async def _limit(self, client: ClientConnection) -> None:
        """Count a request without valid credentials. Delay and refuse it if its address has sent too many in this second."""
        second = int(self._loop.time())
        if second != self._second:
            self._second = second
            self._unauthenticated.clear()
        self._unauthenticated[client.remote_ip] += 1
        if self.credentials is not None and self._unauthenticated[client.remote_ip] > self.limits.unauthenticated:
            await self._delay_and_refuse(client, "too many requests without valid credentials")

    async def _delay_and_refuse(self, client: ClientConnection, why: str) -> NoReturn:
        client.wait(PUT_OFF + self.limits.write)
        await asyncio.sleep(PUT_OFF)
        raise HTTPError(429, why)

    def begin(self, call: Compute, request: HTTPServerRequest) -> asyncio.Task[HttpAnswer]:
        """Start to compute an answer, in turn with others. Several requests may wait for it with :meth:`answered`.

        Raises:
            HTTPError: Too many requests are waiting.
        """
        if self._places.locked():
            raise HTTPError(503, "too many requests at once")

        async def computed() -> HttpAnswer:
            async with self._places:
                return await self._submit(self._answers, call, request)

        return self._loop.create_task(computed())

    async def answered(self, answer: asyncio.Task[HttpAnswer], request: HTTPServerRequest) -> HttpAnswer:
        """Wait for an answer, no longer than the server's limit and the client's timeout.

        Raises:
            HTTPError: The time is up.
        """
        limit = self.limits.answer
        # Prometheus sends its scrape timeout. An answer after it would be discarded, so answer with an error in time.
        with contextlib.suppress(ValueError):  # no header, or its value is no number
            asked = float(request.headers.get("X-Prometheus-Scrape-Timeout-Seconds", ""))
            if asked > 0:
                limit = min(limit, max(asked - 0.5, asked / 2))  # half a second to send the error
        if not answer.done():
            await asyncio.wait({answer}, timeout=limit)
        if not answer.done():
            raise HTTPError(503, "the answer took too long")
        return answer.result()

    def _submit(self, executor: ThreadPoolExecutor, call: Callable[[Any], _T], argument: object) -> asyncio.Future[_T]:
        try:
            return self._loop.run_in_executor(executor, call, argument)
        except RuntimeError:  # the interpreter is about to exit
            raise HTTPError(503, "the program is ending") from None


def _close(sockets: Iterable[socket.socket | IOStream]) -> None:
    for one in sockets:
        one.close()


def listen(address: Address, attempts: int = 8) -> list[socket.socket]:
    """Open a listening socket for each address of the host (``localhost`` has two), all on one port.

    Addresses that this machine does not have are skipped, unless there is no other.

    Args:
        address: The address. Port 0 is any free port.
        attempts: Number of free ports to try, since a port that is free in IPv4 may be taken in IPv6.

    Raises:
        OSError: The port is in use or not permitted, or this machine has no such address.
    """
    # tornado.netutil.bind_sockets skips only a missing ::1, leaks sockets when it fails, and its [::] refuses IPv4.
    opened: list[socket.socket] = []
    failed: OSError | None = None
    ends = dict.fromkeys(address.resolve(socket.SOCK_STREAM, socket.AI_PASSIVE))
    for family, _, _, (host, port, *rest) in ends:
        both = family == socket.AF_INET6 and len(ends) == 1 and socket.has_dualstack_ipv6()
        where = (host, opened[0].getsockname()[1] if opened else port, *rest)
        try:
            opened.append(socket.create_server(where, family=family, dualstack_ipv6=both))
        except OSError as error:
            failed = error
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                _close(opened)
                if opened and not port and error.errno == errno.EADDRINUSE and attempts > 1:
                    return listen(address, attempts - 1)  # the port that IPv4 got is taken in IPv6: any other one will do
                opened.clear()
                break
    if failed is not None and not opened:
        why = "is in use by another program" if failed.errno == errno.EADDRINUSE else f"cannot be used: {os.strerror(failed.errno or 0)}"
        raise OSError(failed.errno, f"port {address.port} of {address.host} {why}") from failed
    return opened


def _quiet(record: logging.LogRecord) -> bool:
    """Redirect tornado's log messages of the server's thread to accelmetrics' logger, at the level DEBUG."""
    # Tornado logs misbehaving clients as warnings. Messages of other threads belong to the program's own use of tornado.
    if record.threadName == THREAD:
        log.debug("http: %s", record.getMessage(), exc_info=record.exc_info)
    return record.threadName != THREAD


_OPEN: weakref.WeakSet[Server] = weakref.WeakSet()


def _after_fork() -> None:
    """Close the sockets that a forked child has inherited."""
    # Otherwise the port would remain in use as long as the child lives.
    for server in tuple(_OPEN):
        _OPEN.discard(server)
        _close((*server._sockets, *(client.stream.socket for client in server._clients)))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
