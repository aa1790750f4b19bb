"""The HTTP server: tornado on a thread and an event loop of its own, with limits on what a client may cost.

Tornado parses requests and writes answers. Connections are accepted here, before its ``HTTPServer`` would take them: a limit must hold
before the handshake, and one timer must span handshake, request and answer, which ``idle_connection_timeout`` does not.

Slow, idle and half-open clients are connections with a timer, not threads. Two more threads hold one call each: one computes
answers, one hashes passwords. What takes long ends its own connection and nothing else:

- Each connection has one timer: for the handshake and the first request, for an answer to be taken, for the next request.
- Connections are limited in all and per address. One more closes another one: of those that were never let in before those that
  were, of the address that has most of them, the one that has waited longest. Only a request that is being answered is spared.
- Requests without valid credentials, probes among them, are limited per address and second, passwords that wait to be hashed per
  address. Addresses take turns, so that guessing holds up no log-in from elsewhere, and none of it an answer to a client that is let in.
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
LEAST_CONNECTIONS = 16
PAUSE = 0.1
"""Seconds until the next attempt where no connection can be accepted."""
SPARE = 0.5
"""Seconds of a scrape's timeout that are left for the answer's way back."""
PUT_OFF = 1.0
"""Seconds until what is one too many of its address is answered."""
SCRAPE_TIMEOUT = "X-Prometheus-Scrape-Timeout-Seconds"
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a browser may load for an answer: what this server has, and no script or style that stands in the text itself."""


@dataclass(frozen=True)
class ClientLimits:
    """What a client may cost, in counts, bytes and seconds.

    Attributes:
        connections: Open at once; half of them from one address.
        computing: Requests that wait to be computed at once; one more is answered with 503.
        guesses: Passwords of one address that wait to be hashed; one more waits a second, and is answered with 429.
        unauthenticated: Requests of one address and second without valid credentials, where such are asked for; one more likewise.
        head_bytes: Request line and headers.
        head: Seconds for the TLS handshake, the request line and the headers of the first request.
        answer: Seconds for computing an answer.
        write: Seconds for a client to take the answer.
        idle: Seconds from an answer to the next request's headers, and for a password to be tried.
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
    """What a request is answered with; ``headers`` beside those that every answer has."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = {}


Compute = Callable[[HTTPServerRequest], HttpAnswer]
"""Computes an answer, or raises tornado's ``HTTPError``. Called on the thread for answers, one request at a time: it must not wait."""


def _nothing(_: HTTPServerRequest) -> HttpAnswer:
    raise HTTPError(404, "there is nothing here: see /")


TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
UNREAD = 64
"""Blocks of a head that is too large that are taken from the client, so that its system does not drop the answer."""


class PlainStream(IOStream):
    """A stream that answers a head beyond its limit before it ends."""

    def close(self, exc_info: Any = False) -> None:
        """End; where the head was too large, say so."""
        if isinstance(exc_info, UnsatisfiableReadError) and not self.closed():
            with contextlib.suppress(OSError, ValueError):
                self.socket.send(TOO_LARGE)
                for _ in range(UNREAD):
                    if not self.socket.recv(1 << 16):
                        break
        super().close(exc_info)


class TlsStream(SSLIOStream, PlainStream):
    """A stream that ends as TLS demands, so that a client can tell the end of an answer from one that was cut off."""

    def close_fd(self) -> None:
        """Say that this is the end, without waiting for the client to say so too."""
        with contextlib.suppress(OSError):  # the handshake was not finished, or the client is gone
            self.socket.unwrap()
        super().close_fd()


class ClientConnection:
    """A connection, as the context that tornado keeps with its requests.

    Args:
        stream: The connection.
        remote_ip: The client's address.
        seconds: Until its first request must be there.

    Attributes:
        remote_ip: The client's address.
        protocol: ``http`` or ``https``.
        let_in: Whether a request of it has been let in.
        idle_since: When its timer last began, by the loop's clock.
        timeout: Closes the connection. Cancelled while an answer is made; a route that streams limits each write itself.
    """

    def __init__(self, stream: IOStream, remote_ip: str, seconds: float) -> None:
        self.stream = stream
        self.remote_ip = remote_ip
        self.protocol = "https" if isinstance(stream, TlsStream) else "http"
        self.let_in = False
        self._start(seconds)

    def wait(self, seconds: float) -> None:
        """Close the connection in so many seconds, or before that to make room for another one."""
        self.timeout.cancel()
        self._start(seconds)

    def _start(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.idle_since = loop.time()
        self.timeout = loop.call_later(seconds, self.stream.close)


class Route(RequestHandler):
    """Checks a request, and answers with what is computed. Pages and streams subclass it and define ``get``."""

    def initialize(
        self,
        compute: Compute = _nothing,
        give: Callable[[Route], Awaitable[None]] | None = None,
        *,
        public: bool = False,
        any_name: bool = False,
        linked: bool = False,
    ) -> None:
        """Take the arguments of the route.

        Args:
            compute: Computes the answer; without it there is none.
            give: Answers by itself, in its place.
            public: Whether it is answered without credentials, and to pages of other sites. It is computed at once, in no time, so that
                it takes the place of no other request.
            any_name: Whether it is answered under any host name where other machines can reach the server: monitoring systems have names
                of their own for machines. ``allowed_hosts`` bound it too.
            linked: Whether pages of other sites may lead here. It tells nothing of the machine.
        """
        self._compute, self._give = compute, give
        self.public = public
        self.any_name = public or any_name
        self.linked = public or linked
        self.client = cast(ClientConnection, cast(HTTP1Connection, self.request.connection).context)
        self.server = cast(Server, self.settings["server"])

    def set_default_headers(self) -> None:
        """Replace tornado's."""
        self.clear_header("Server")
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Content-Security-Policy", CONTENT_POLICY)
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        self.set_header("Referrer-Policy", "no-referrer")

    async def prepare(self) -> None:
        """Refuse a client that may not come in."""
        self.client.timeout.cancel()
        await self.server.check(self)

    async def get(self) -> None:
        """Answer; ``HEAD`` likewise, without the body."""
        if self._give is not None:
            await self._give(self)
        elif self.public:
            self.answer(self._compute(self.request))
        else:
            self.answer(await self.server.answered(self.server.begin(self._compute, self.request), self.request))

    head = get

    def answer(self, answer: HttpAnswer) -> None:
        """Send an answer; where its ``Etag`` is the one that the client has, only that it has not changed."""
        for name, value in answer.headers.items():
            self.set_header(name, value)
        if self.check_etag_header():
            self.set_status(304)
            self.finish()
            return
        self.set_header("Content-Type", answer.content_type)
        self.set_header("Content-Length", str(len(answer.body)))
        self.flush()  # the headers by themselves: sent together, tornado copies the body for each client
        self.finish(answer.body)

    def on_finish(self) -> None:
        """Limit the time for the answer to be taken."""
        self.client.wait(self.server.limits.write)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer an error in one line."""
        error = kwargs["exc_info"][1]
        said = error.log_message if isinstance(error, HTTPError) else f"{type(error).__name__}: see the program's log"
        # A script's request would wait until its user has answered the browser's question: it is the script that says so.
        if status_code == 401 and self.request.headers.get("Sec-Fetch-Dest") != "empty":
            self.set_header("WWW-Authenticate", cast(HttpCredentials, self.server.credentials).schemes)
        elif status_code == 405:
            said = "only GET and HEAD are served"
            self.set_header("Allow", "GET, HEAD")
        elif status_code in (429, 503):
            self.set_header("Retry-After", "1")
        self.finish(f"{(said or self._reason).replace('%%', '%')}\n")  # tornado doubles them, to format it

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        """Log what an answer failed of; not that a client has gone."""
        if not isinstance(value, HTTPError | StreamClosedError):
            log.warning("%s could not be answered", self.request.path, exc_info=value)


class Server(HTTPServerConnectionDelegate):
    """Answers HTTP requests on one port.

    Args:
        address: Where to listen.
        routes: As tornado's ``Application`` takes them: path, :class:`Route` or a subclass of it, its arguments.
        tls: The certificates; None serves without TLS.
        credentials: Passwords and tokens that are let in; None lets in every client.
        allowed_hosts: Names that a request's ``Host`` may have, beside ``localhost`` and this machine's own. On loopback only addresses
            of that are answered to as well. Elsewhere all addresses are, and names without a dot, which no web site has; and unless names
            are given here, routes with ``any_name`` under all names.
        limits: What a client may cost.

    Attributes:
        address: Where it listens once it is open: with the port that the system chose.
        credentials: Passwords and tokens that are let in.
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

            # Three quarters of the files that this process may open are left to the program around the server.
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            self._most = self._most if soft == resource.RLIM_INFINITY else min(self._most, max(LEAST_CONNECTIONS, soft // 4))
        self._clients: set[ClientConnection] = set()
        self._places = asyncio.Semaphore(limits.computing)
        self._unauthenticated: Counter[str] = Counter()
        self._second = 0
        self._guesses: Counter[str] = Counter()
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def open(self) -> None:
        """Listen, from a thread of its own.

        Raises:
            OSError: The port is in use or may not be used, or no thread can be started.
        """
        self._loop = asyncio.SelectorEventLoop()
        try:
            self._sockets = listen(self.address)
        except OSError:
            self._loop.close()
            raise
        self.address = self.address._replace(port=self._sockets[0].getsockname()[1])
        if not self.address.is_loopback:
            names = [socket.gethostname()]  # and the full one, where the system knows it
            with contextlib.suppress(OSError, UnicodeError):
                names.append(socket.getaddrinfo(names[0], None, flags=socket.AI_CANONNAME)[0][3])
            self._hosts |= {name.lower().rstrip(".") for name in names if name}
        self._end, self._turn = asyncio.Event(), asyncio.Lock()
        self._answers = ThreadPoolExecutor(1, "accelmetrics-http-answers")
        self._passwords = ThreadPoolExecutor(1, "accelmetrics-http-passwords")
        self._thread = threading.Thread(target=self._run, name=THREAD, daemon=True)
        for name in ("general", "application"):
            logging.getLogger(f"tornado.{name}").addFilter(_quiet)
        try:
            self._thread.start()
        except RuntimeError as error:  # no thread is to be had
            self._end.set()
            self._run()  # ends at once, giving everything back
            raise OSError(f"cannot listen on {self.address}: {error}") from error
        _OPEN.add(self)

    def close(self) -> None:
        """End all connections and threads. In a child that was forked meanwhile there is nothing to end."""
        if self not in _OPEN:
            return
        _OPEN.discard(self)
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._answers.shutdown(cancel_futures=True)
        self._passwords.shutdown(cancel_futures=True)

    # Connections, on the loop's thread

    def _run(self) -> None:
        self._loop.set_exception_handler(lambda _, said: log.debug("http: %s", said.get("message"), exc_info=said.get("exception")))
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
            except OSError:  # no file descriptor is free, or the client is gone already
                self._evict(self._clients)
                await asyncio.sleep(PAUSE)
                continue
            self._admit(accepted, host)
            await asyncio.sleep(0)  # a flood of new clients does not hold up the others

    def _admit(self, accepted: socket.socket, host: str) -> None:
        """Serve a connection, if there is room for it or another one can be closed; all before its TLS handshake."""
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
        except OSError:  # the client is gone already
            accepted.close()
            return
        client = ClientConnection(stream, host, self.limits.head)
        self._clients.add(client)
        HTTP1ServerConnection(stream, self._parameters, client).start_serving(self)

    def _evict(self, clients: Iterable[ClientConnection]) -> bool:
        """Close the connection that is missed least; False where all of them are being answered."""
        addresses = Counter(client.remote_ip for client in self._clients)
        waiting = (client for client in clients if not client.timeout.cancelled())
        missed = min(waiting, key=lambda client: (client.let_in, -addresses[client.remote_ip], client.idle_since), default=None)
        if missed is None:
            return False
        self._clients.discard(missed)
        missed.stream.close()
        return True

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """Wait for a connection's first request or its next one."""
        client = cast(ClientConnection, cast(HTTP1Connection, request_conn).context)
        if client.let_in:
            client.wait(self.limits.idle)
        return self._application.start_request(server_conn, request_conn)

    def on_close(self, server_conn: object) -> None:
        """Forget a connection."""
        client = cast(ClientConnection, cast(HTTP1ServerConnection, server_conn).context)
        client.timeout.cancel()
        self._clients.discard(client)

    # Requests, on the loop's thread

    async def check(self, route: Route) -> None:
        """Check a request's host, site, certificate and credentials.

        Raises:
            HTTPError: It is refused.
        """
        request, client = route.request, route.client
        if not (self._any_name and route.any_name) and not self._serves(request.host_name):
            raise HTTPError(421, "this host name is not served here: see --allowed-host")
        if route.public:
            await self._limit(client)
            return
        if request.headers.get("Sec-Fetch-Site") == "cross-site" and not route.linked:
            raise HTTPError(403, "pages of other sites may not read this")
        if self._tls is not None and not self._tls.allows(cast(dict[str, Any], request.get_ssl_certificate())):
            raise HTTPError(403, "the certificate bears none of the names that are let in")
        if self.credentials is not None:
            said = request.headers.get("Authorization", "")
            known = self.credentials.known(said)
            if not (await self._guess(self.credentials, client, said) if known is None else known):
                await self._limit(client)
                raise HTTPError(401, "credentials are missing or wrong")
        client.let_in = True

    def _serves(self, name: str) -> bool:
        """Return whether a request may have this ``Host``.

        A web site whose name is made to mean this machine (DNS rebinding) has a name with a dot, and never an address.
        """
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            name = name.rstrip(".")
            return name in self._hosts or (not self.address.is_loopback and "." not in name)
        return not self.address.is_loopback or address.is_loopback or name.strip("[]") in self._hosts

    async def _guess(self, credentials: HttpCredentials, client: ClientConnection, said: str) -> bool:
        """Hash a password, one at a time of each address in turn, and for half of the time at most."""
        address = client.remote_ip
        if self._guesses[address] >= self.limits.guesses:
            await self._put_off(client, "too many passwords wait to be tried")
        self._guesses[address] += 1
        client.wait(self.limits.idle)
        try:
            async with self._turns[address], self._turn:
                if client.stream.closed():
                    return False
                client.timeout.cancel()
                began = self._loop.time()
                right = await self._submit(self._passwords, credentials.tried, said)
                await asyncio.sleep(self._loop.time() - began)
                return right
        finally:
            self._guesses[address] -= 1
            if not self._guesses[address]:
                del self._guesses[address], self._turns[address]

    async def _limit(self, client: ClientConnection) -> None:
        """Count a request without valid credentials, and put it off where there are too many of its address in this second."""
        second = int(self._loop.time())
        if second != self._second:
            self._second = second
            self._unauthenticated.clear()
        self._unauthenticated[client.remote_ip] += 1
        if self.credentials is not None and self._unauthenticated[client.remote_ip] > self.limits.unauthenticated:
            await self._put_off(client, "too many requests without valid credentials")

    async def _put_off(self, client: ClientConnection, why: str) -> NoReturn:
        client.wait(PUT_OFF + self.limits.write)
        await asyncio.sleep(PUT_OFF)
        raise HTTPError(429, why)

    def begin(self, call: Compute, request: HTTPServerRequest) -> asyncio.Task[HttpAnswer]:
        """Have an answer computed, in turn. Several requests may wait for it, each by :meth:`answered`.

        Raises:
            HTTPError: Too many wait.
        """
        if self._places.locked():
            raise HTTPError(503, "too many requests at once")

        async def computed() -> HttpAnswer:
            async with self._places:
                return await self._submit(self._answers, call, request)

        return self._loop.create_task(computed())

    async def answered(self, answer: asyncio.Task[HttpAnswer], request: HTTPServerRequest) -> HttpAnswer:
        """Wait for an answer, within the client's own timeout, where Prometheus tells it.

        Raises:
            HTTPError: It takes too long.
        """
        limit = self.limits.answer
        with contextlib.suppress(ValueError):  # no header, or no number in it
            asked = float(request.headers.get(SCRAPE_TIMEOUT, ""))
            if asked > 0:
                limit = min(limit, max(asked - SPARE, asked / 2))
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


def listen(address: Address) -> list[socket.socket]:
    """Open sockets that listen: one for each address of the host, such as both of ``localhost``, on one port.

    Addresses that this machine does not have are passed over, if it has another one. (``tornado.netutil.bind_sockets`` does that for
    ``::1`` alone, leaks sockets when it fails, and has ``[::]`` refuse version 4.)

    Raises:
        OSError: The port is in use or may not be used, or there is no such host here.
    """
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
                opened.clear()
                break
    if failed is not None and not opened:
        why = "is in use by another program" if failed.errno == errno.EADDRINUSE else f"cannot be used: {os.strerror(failed.errno or 0)}"
        raise OSError(failed.errno, f"port {address.port} of {address.host} {why}") from failed
    return opened


def _quiet(record: logging.LogRecord) -> bool:
    """Keep what tornado logs about clients that misbehave: our own logger says it, at the level DEBUG."""
    if record.threadName == THREAD:
        log.debug("http: %s", record.getMessage(), exc_info=record.exc_info)
    return record.threadName != THREAD


_OPEN: weakref.WeakSet[Server] = weakref.WeakSet()


def _after_fork() -> None:
    """Close what a forked child has inherited, or the port would stay taken while it lives."""
    for server in tuple(_OPEN):
        _OPEN.discard(server)
        _close((*server._sockets, *(client.stream.socket for client in server._clients)))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
