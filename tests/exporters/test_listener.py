"""The listener withstands slow, idle and hostile clients: they cost an entry in a table, and others are served meanwhile."""

from __future__ import annotations

import contextlib
import http.client
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from accelmetrics.exporters.credentials import Credentials, password_line
from accelmetrics.exporters.http.address import Address, close_all
from accelmetrics.exporters.http.limits import Limits
from accelmetrics.exporters.http.listener import Listener
from accelmetrics.exporters.http.messages import Handler, Request, Response
from accelmetrics.exporters.prometheus import PrometheusExporter
from accelmetrics.exporters.tls import TlsContexts, TlsFiles
from tests.exporters.certificates import Authority
from tests.records import record

THREADS = 3
LARGE = b"x" * (16 << 20)
"""More than the kernel takes for a client that does not read."""
Open = Callable[..., Listener]


@pytest.fixture
def serve() -> Iterator[Open]:
    """Opens listeners with these limits; closed with the test."""
    with contextlib.ExitStack() as stack:

        def make(
            routes: Mapping[str, Handler] | None = None,
            tls: TlsContexts | None = None,
            credentials: Credentials | None = None,
            **limits: float,
        ) -> Listener:
            fine: dict[str, Handler] = {"/": lambda _: Response(200, b"fine")}
            bounds = Limits(**limits)  # type: ignore[arg-type]
            listener = Listener(Address("127.0.0.1", 0), {**fine, **(routes or {})}, tls=tls, credentials=credentials, limits=bounds)
            listener.open()
            stack.callback(listener.close)
            return listener

        yield make


def connect(listener: Listener | PrometheusExporter, first: bytes = b"") -> socket.socket:
    """A client that has said so much."""
    client = socket.create_connection(listener.address, timeout=5)
    client.sendall(first)
    return client


def answer(client: socket.socket) -> bytes:
    """All that the client is sent until its connection ends."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := client.recv(1 << 20):
            found += data
    client.close()
    return found


def exchange(listener: Listener, request: bytes) -> bytes:
    """What a request is answered with, until the connection ends."""
    return answer(connect(listener, request))


def get(listener: Listener | PrometheusExporter, path: str = "/", **headers: str) -> int:
    """The status of one plain request."""
    connection = http.client.HTTPConnection(listener.address.host, listener.address.port, timeout=5)
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        return connection.getresponse().status
    finally:
        connection.close()


def seconds(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


# Slow and idle clients


def test_three_hundred_slow_clients_and_an_idle_tls_client_cost_nothing(tmp_path: Path) -> None:
    """Scrapes are answered at once, no thread is added, and files stay bounded, however many clients never finish their requests."""
    certificate, key = Authority(tmp_path).issue("accelmetrics")
    plain, secret = PrometheusExporter("127.0.0.1:0"), PrometheusExporter("127.0.0.1:0", tls_cert=str(certificate), tls_key=str(key))
    threads = threading.active_count()
    for exporter in (plain, secret):
        exporter.open()
        exporter.export(record())
    files = psutil.Process().num_fds()
    with contextlib.ExitStack() as clients:
        clients.enter_context(connect(secret))  # never begins its handshake
        slow = [clients.enter_context(connect(plain, b"GET /metrics HTTP/1.1\r\nHost: a\r\n")) for _ in range(300)]
        assert seconds(lambda: get(plain, "/metrics")) < 1
        context = ssl.create_default_context(cafile=str(tmp_path / "test-authority.pem"))
        scrape = http.client.HTTPSConnection(secret.address.host, secret.address.port, timeout=5, context=context)
        assert seconds(lambda: scrape.request("GET", "/metrics")) < 1
        assert scrape.getresponse().status == 200
        scrape.close()
        assert threading.active_count() <= threads + 2 * THREADS
        assert psutil.Process().num_fds() - files - len(slow) < 300
        for client in slow[-100:]:
            client.sendall(b"X-More: 1\r\n")  # another drop
        assert seconds(lambda: get(plain, "/metrics")) < 1
    plain.close()
    secret.close()
    assert threading.active_count() <= threads


def test_whoever_waits_longest_makes_room(serve: Open) -> None:
    """Past the limit of connections the oldest that keeps us waiting is closed; the newest is always served."""
    listener = serve(connections=4)
    clients = [connect(listener, b"GET / HT") for _ in range(4)]
    time.sleep(0.05)
    assert get(listener) == 200
    assert clients[0].recv(1) == b""
    clients[-1].sendall(b"TP/1.1\r\nConnection: close\r\n\r\n")
    assert answer(clients[-1]).endswith(b"fine")
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    ("said", "limits"),
    [
        (b"", {"head": 0.2}),
        (b"GET / HTTP/1.1\r\n", {"head": 0.2}),
        (b"GET / HTTP/1.1\r\n\r\n", {"idle": 0.2}),
    ],
)
def test_time_is_limited(serve: Open, said: bytes, limits: dict[str, float]) -> None:
    """A client that says nothing, half of a request, or nothing more after an answer, is let go."""
    listener = serve(**limits)
    assert 0.15 < seconds(lambda: exchange(listener, said)) < 2


def test_a_handshake_is_limited(serve: Open, tmp_path: Path) -> None:
    """A client of TLS that does not begin, or speaks plain HTTP, is let go; the next one is served."""
    certificate, key = Authority(tmp_path).issue("accelmetrics")
    listener = serve(tls=TlsContexts(TlsFiles(str(certificate), str(key))), head=0.3)
    assert 0.25 < seconds(lambda: exchange(listener, b"")) < 2
    assert not exchange(listener, b"GET / HTTP/1.1\r\n\r\n").startswith(b"HTTP")
    context = ssl.create_default_context(cafile=str(tmp_path / "test-authority.pem"))
    with context.wrap_socket(connect(listener), server_hostname="accelmetrics") as client:
        client.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert client.recv(15) == b"HTTP/1.1 200 OK"


def test_a_client_that_does_not_take_its_answer_is_let_go(serve: Open) -> None:
    """Writing has its time, and no more of the answer is copied than is under way."""
    listener = serve({"/large": lambda _: Response(200, LARGE)}, write=0.5)
    memory = psutil.Process().memory_info().rss
    clients = [connect(listener, b"GET /large HTTP/1.1\r\n\r\n") for _ in range(20)]
    time.sleep(0.3)
    assert psutil.Process().memory_info().rss - memory < 10 * len(LARGE)
    assert get(listener) == 200
    time.sleep(0.4)
    assert all(len(answer(client)) < len(LARGE) for client in clients)
    with connect(listener, b"GET /large HTTP/1.1\r\nConnection: close\r\n\r\n") as taker:
        assert len(answer(taker)) > len(LARGE)


# Load


def test_more_than_forty_requests_at_once_are_refused(serve: Open) -> None:
    """The forty-first is told to come again, and the forty are answered; thereafter all is as before."""
    may = threading.Event()

    def slowly(_: Request) -> Response:
        may.wait(5)
        return Response(200, b"at last")

    listener = serve({"/slow": slowly})
    clients = [connect(listener, b"GET /slow HTTP/1.1\r\nConnection: close\r\n\r\n") for _ in range(40)]
    time.sleep(0.2)
    refused = exchange(listener, b"GET /slow HTTP/1.1\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nRetry-After: 1\r\n" in refused
    may.set()
    assert [answer(client)[:15] for client in clients] == [b"HTTP/1.1 200 OK"] * 40
    assert get(listener) == 200


def test_clients_that_do_not_take_their_answers_do_not_fill_the_places(serve: Open) -> None:
    """Where every place is held by one that has stalled, the one that stalled longest makes room."""
    listener = serve({"/large": lambda _: Response(200, LARGE)}, in_flight=3, stalled=0.2)
    clients = [connect(listener, b"GET /large HTTP/1.1\r\n\r\n") for _ in range(3)]
    time.sleep(0.4)
    assert get(listener) == 200
    for client in clients:
        client.close()


def test_the_scrape_timeout_is_respected(serve: Open) -> None:
    """The answer comes before Prometheus gives up, if only to say that there is none; a late one harms nobody."""
    may = threading.Event()

    def slowly(_: Request) -> Response:
        may.wait(5)
        return Response(200, b"")

    listener = serve({"/slow": slowly})
    began = time.monotonic()
    assert get(listener, "/slow", X_Prometheus_Scrape_Timeout_Seconds="0.7") == 503
    assert 0.2 < time.monotonic() - began < 0.7
    may.set()
    for nonsense in ("soon", "-1", "nan", "inf", "0"):
        assert get(listener, X_Prometheus_Scrape_Timeout_Seconds=nonsense) == 200


def test_a_handler_that_fails_costs_its_own_request(serve: Open, caplog: pytest.LogCaptureFixture) -> None:
    """500 without a traceback for the client, one in the log, and the next request is answered."""

    def broken(_: Request) -> Response:
        raise KeyError("a secret")

    listener = serve({"/broken": broken})
    with caplog.at_level(logging.WARNING, "accelmetrics"):
        said = exchange(listener, b"GET /broken HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in said
    assert "a secret" in caplog.text
    assert get(listener) == 200


# Requests


def test_an_oversized_head_is_refused(serve: Open) -> None:
    """More than 8 KiB of headers are answered with 431 while the client still sends, in one line or in many."""
    listener = serve()
    for head in (b"X: " + b"a" * 20_000, b"X: a\r\n" * 5_000, b"X: " + b"a" * 8_000_000):
        assert exchange(listener, b"GET / HTTP/1.1\r\n" + head + b"\r\n\r\n").startswith(b"HTTP/1.1 431 ")
    assert get(listener, X="a" * 8000) == 200


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET http://other/ HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nspace : before\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n folded: line\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: a\nInjected: b\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nGET /", 413),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nConnection: close\r\n\r\n", 405),
        (b"GET /%2e%2e/etc/passwd HTTP/1.1\r\nConnection: close\r\n\r\n", 404),
        (b"GET /? HTTP/1.0\r\n\r\n", 200),
        (b"GET /%2f HTTP/1.0\r\n\r\n", 404),
    ],
)
def test_what_is_no_plain_request_is_refused(serve: Open, request_text: bytes, status: int) -> None:
    """Nothing is guessed at: one answer, and the connection ends."""
    said = exchange(serve(), request_text)
    assert said.startswith(b"HTTP/1.1 %d " % status)
    assert len(re.findall(rb"HTTP/1.1 \d", said)) == 1


def test_one_connection_serves_many_requests(serve: Open) -> None:
    """Also those that were sent ahead; in their order, until the client says that it is the last."""
    said = exchange(
        serve(), b"GET / HTTP/1.1\r\n\r\nHEAD / HTTP/1.1\r\n\r\nGET /no HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\nConnection: close\r\n\r\n"
    )
    assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"200", b"200", b"404", b"200"]
    assert said.count(b"fine") == 2
    assert said.count(b"Connection: close") == 1


def test_every_answer_forbids_guessing_its_type(serve: Open) -> None:
    """Errors too."""
    for path in (b"/", b"/nothing"):
        said = exchange(serve(), b"GET " + path + b" HTTP/1.0\r\n\r\n")
        assert b"\r\nX-Content-Type-Options: nosniff\r\n" in said
        assert b"\r\nCache-Control: no-store\r\n" in said


def test_random_bytes_do_not_bring_it_down(serve: Open, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is sent, the listener goes on, and has nothing to report."""
    import random

    listener = serve(head=0.2)
    chance = random.Random(1)
    with caplog.at_level(logging.WARNING, "accelmetrics"):
        clients = [connect(listener, chance.randbytes(chance.randrange(1, 3000)) + b"\r\n\r\n") for _ in range(50)]
        for client in clients:
            client.close()
        assert get(listener) == 200
    assert caplog.messages == []


def test_random_words_of_who_one_is_let_nobody_in(serve: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever bytes say who somebody is, they are answered with 401 or 400, and there is nothing to report."""
    import random

    (tmp_path / "users").write_text(password_line("ada", "secret"))
    (tmp_path / "token").write_text("t0ken")
    listener = serve(credentials=Credentials(str(tmp_path / "users"), str(tmp_path / "token")))
    chance = random.Random(2)
    said = [b"Basic \xe9", b"Bearer \xe9", b"Basic YWRhOg==\xff", b"Basic w6k=", b"\xe9"]
    said += [chance.choice((b"Basic ", b"Bearer ", b"")) + chance.randbytes(chance.randrange(40)) for _ in range(200)]
    with caplog.at_level(logging.WARNING, "accelmetrics"):
        for words in said:
            told = exchange(listener, b"GET / HTTP/1.1\r\nConnection: close\r\nAuthorization: " + words + b"\r\n\r\n")
            assert told[:13] in (b"HTTP/1.1 401 ", b"HTTP/1.1 400 "), words
    assert exchange(listener, b"GET / HTTP/1.0\r\nAuthorization: Basic \xe9\r\n\r\n").startswith(b"HTTP/1.1 401 ")
    assert caplog.messages == []


# Opening


def test_a_listener_without_a_thread_gives_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started, opening fails as something that passes, and neither a file nor the port stays taken."""
    listener = Listener(Address("127.0.0.1", 0), {})
    files = psutil.Process().num_fds()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            listener.open()
    assert psutil.Process().num_fds() <= files
    listener.open()  # on the port that the system chose before
    listener.close()
    assert psutil.Process().num_fds() <= files


def test_a_port_in_use_costs_no_file() -> None:
    """However often opening is tried."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listener = Listener(Address("127.0.0.1", taken.getsockname()[1]), {})
        files = psutil.Process().num_fds()
        for _ in range(5):
            with pytest.raises(OSError, match="in use"):
                listener.open()
        assert psutil.Process().num_fds() <= files


def test_every_address_of_a_name_is_listened_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one port; those that this machine does not have are passed over, and one that is in use is an error that leaks nothing."""
    hosts = ["192.0.2.1", "127.0.0.1", "127.0.0.9", "127.0.0.1"]

    def lookup(_: str, port: int, **__: int) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]

    files = psutil.Process().num_fds()
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lookup)
        listener = Listener(Address("localhost", 0), {"/": lambda _: Response(200, b"fine")})
        listener.open()
        other = Listener(listener.address, {})
        with pytest.raises(OSError, match=f"port {listener.address.port} of localhost is in use"):
            other.open()
        hosts[1:] = []
        with pytest.raises(OSError, match="of localhost cannot be used: Cannot assign"):
            Address("localhost", 0).listen()
    for host in ("127.0.0.1", "127.0.0.9"):
        with socket.create_connection((host, listener.address.port), timeout=5) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert client.recv(15) == b"HTTP/1.1 200 OK"
    listener.close()
    assert psutil.Process().num_fds() <= files


def test_localhost_of_both_versions_of_ip_is_listened_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever a client takes, it is answered."""
    ends = [(socket.AF_INET6, ("::1", 0, 0, 0)), (socket.AF_INET, ("127.0.0.1", 0))]
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lambda *_, **__: [(family, socket.SOCK_STREAM, 6, "", where) for family, where in ends])
        listening = Address("localhost", 0).listen()
    try:
        if len(listening) == 1:
            pytest.skip("machine: has no IPv6")
        assert len({one.getsockname()[1] for one in listening}) == 1
    finally:
        close_all(listening)


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "no-such-host.invalid"])
def test_a_host_that_cannot_be_is_an_error_of_the_network(host: str) -> None:
    """Also one that is no name at all, which Python reports as an error of text."""
    with pytest.raises(OSError, match=f"the host '{host}' is not found: \\w"):
        Address(host, 22932).listen()
