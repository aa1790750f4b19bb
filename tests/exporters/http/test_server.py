"""The server withstands slow, idle and hostile clients: each costs a connection with a timer, and others are served meanwhile."""

from __future__ import annotations

import base64
import contextlib
import errno
import http.client
import logging
import random
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tornado.httputil import HTTPServerRequest

from accelmetrics.exporters.http import access
from accelmetrics.exporters.http.access import HttpCredentials, Tls, password_line
from accelmetrics.exporters.http.server import ClientLimits, Compute, HttpAnswer, Route, Server, listen
from accelmetrics.exporters.network import Address
from accelmetrics.exporters.prometheus import PrometheusExporter
from tests.exporters.certificates import Authority
from tests.records import record
from tests.support.programs import Program
from tests.support.threads import own_threads
from tests.support.waiting import HANG, Gate, wait_for

LARGE = b"x" * (16 << 20)
"""More than the kernel takes for a client that does not read."""
Open = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Open]:
    """Opens servers with these limits; closed with the test."""
    with contextlib.ExitStack() as stack:

        def make(
            routes: dict[str, Compute] | None = None,
            public: tuple[str, ...] = (),
            any_name: tuple[str, ...] = (),
            tls: Tls | None = None,
            credentials: HttpCredentials | None = None,
            allowed_hosts: Iterable[str] = (),
            address: str = "127.0.0.1",
            **limits: float,
        ) -> Server:
            computed: dict[str, Compute] = {"/": lambda _: HttpAnswer(b"fine"), **(routes or {})}
            server = Server(
                Address(address, 0),
                [
                    (path, Route, {"compute": compute, "public": path in public, "any_name": path in any_name})
                    for path, compute in computed.items()
                ],
                tls=tls,
                credentials=credentials,
                allowed_hosts=allowed_hosts,
                limits=ClientLimits(**limits),  # type: ignore[arg-type]  # its fields by name
            )
            server.open()
            stack.callback(server.close)
            return server

        yield make


@pytest.fixture
def slow() -> tuple[Gate, Compute]:
    """What is computed when its gate is released."""
    gate = Gate()

    def compute(_: HTTPServerRequest) -> HttpAnswer:
        gate()
        return HttpAnswer(b"at last")

    return gate, compute


@pytest.fixture
def secured(tmp_path: Path) -> tuple[Tls, ssl.SSLContext]:
    """What a server and a client need for TLS."""
    certificate, key = Authority(tmp_path).issue("accelmetrics")
    client = ssl.create_default_context(cafile=str(tmp_path / "test-authority.pem"))
    tls = Tls(certificate, key)
    tls.read()
    return tls, client


def connect(server: Server | PrometheusExporter, first: bytes = b"", source: str = "127.0.0.1") -> socket.socket:
    """A client that has said so much."""
    client = socket.create_connection(("127.0.0.1", server.address.port), timeout=HANG, source_address=(source, 0))
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


def told(client: socket.socket, end: bytes = b"fine") -> bytes:
    """What the client is sent up to the end of an answer."""
    found = b""
    while not found.endswith(end):
        data = client.recv(1 << 16)
        assert data, found
        found += data
    return found


def exchange(server: Server, request: bytes) -> bytes:
    """What a request is answered with, until the connection ends."""
    return answer(connect(server, request))


def is_open(client: socket.socket) -> bool:
    """Whether the server has neither said anything nor closed the connection."""
    client.setblocking(False)
    try:
        client.recv(1)
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    finally:
        client.settimeout(HANG)
    return False


def get(server: Server | PrometheusExporter, path: str = "/", source: str = "127.0.0.1", **headers: str) -> int:
    """The status of one plain request."""
    connection = http.client.HTTPConnection("127.0.0.1", server.address.port, timeout=HANG, source_address=(source, 0))
    try:
        connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        return connection.getresponse().status
    finally:
        connection.close()


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


# Slow and idle clients


def test_three_hundred_slow_clients_and_an_idle_tls_client_cost_nothing(tmp_path: Path) -> None:
    """Scrapes are answered, no thread is added, and files stay bounded, however many clients never finish their requests."""
    certificate, key = Authority(tmp_path).issue("accelmetrics")
    plain, secret = PrometheusExporter("127.0.0.1:0"), PrometheusExporter("127.0.0.1:0", tls_cert=str(certificate), tls_key=str(key))
    for exporter in (plain, secret):
        exporter.open()
        exporter.export(record())
    files = psutil.Process().num_fds()
    with contextlib.ExitStack() as clients:
        idle = clients.enter_context(connect(secret))  # never begins its handshake
        slow = [clients.enter_context(connect(plain, b"GET /metrics HTTP/1.1\r\nHost: a\r\n")) for _ in range(300)]
        assert get(plain, "/metrics") == 200
        context = ssl.create_default_context(cafile=str(tmp_path / "test-authority.pem"))
        scrape = http.client.HTTPSConnection(secret.address.host, secret.address.port, timeout=HANG, context=context)
        scrape.request("GET", "/metrics")
        assert scrape.getresponse().status == 200
        scrape.close()
        assert is_open(idle)
        assert own_threads("accelmetrics-http") == ["accelmetrics-http"] * 2 + ["accelmetrics-http-answers_0"] * 2
        assert psutil.Process().num_fds() - files - len(slow) < 300
        for client in slow[-100:]:
            client.sendall(b"X-More: 1\r\n")  # another drop
        assert get(plain, "/metrics") == 200
    plain.close()
    secret.close()
    assert own_threads("accelmetrics-http") == []


def test_the_connection_that_is_waited_for_longest_makes_room(serve: Open) -> None:
    """Past the limit of an address its oldest connection is closed; the newest is always served."""
    server = serve(connections=8)
    clients = []
    for number in range(4):
        clients.append(connect(server, b"GET / HT"))
        wait_for(lambda: len(server._clients) == number + 1)  # noqa: B023 - called within the loop
    assert get(server) == 200
    assert answer(clients[0]) == b""
    clients[-1].sendall(b"TP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert answer(clients[-1]).endswith(b"fine")
    for client in clients:
        client.close()


def test_a_crowd_closes_neither_connections_of_others_nor_those_that_were_let_in(serve: Open) -> None:
    """Of the crowd's own address the half-open ones go first; another address has its share of the connections for itself."""
    server = serve(connections=16)
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(server, request) as let_in, connect(server, b"GET / HT", source="127.0.0.2") as other:
        told(let_in)
        wait_for(lambda: len(server._clients) == 2)
        crowd = [connect(server, b"GET / HT") for _ in range(60)]
        wait_for(lambda: sum(map(is_open, crowd)) <= 8)
        let_in.sendall(request)
        told(let_in)
        other.sendall(b"TP/1.1\r\nHost: localhost\r\n\r\n")
        told(other)
    for client in crowd:
        client.close()


def test_room_is_made_by_strangers_before_clients_that_were_let_in(serve: Open) -> None:
    """However few connections of an address the strangers have: of two idle clients that were let in none is closed for another one."""
    server = serve(connections=16)
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    let_in = [connect(server, request) for _ in range(2)]
    for client in let_in:
        told(client)
    strangers = [connect(server, b"GET / HT", source=f"127.0.0.{number}") for number in range(2, 16)]
    wait_for(lambda: len(server._clients) == 16)
    assert get(server, source="127.0.0.99") == 200
    assert all(map(is_open, let_in))
    for client in (*let_in, *strangers):
        client.close()


@pytest.mark.parametrize(
    ("said", "limits"),
    [
        (b"", {"head": 0.1}),
        (b"GET / HTTP/1.1\r\n", {"head": 0.1}),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", {"idle": 0.1}),
    ],
    ids=["nothing", "half a request", "nothing more"],
)
def test_time_is_limited(serve: Open, said: bytes, limits: dict[str, float]) -> None:
    """A client that says nothing, half of a request, or nothing more after an answer, is let go; one with more time is not."""
    with connect(serve(), said) as patient:
        if limits == {"idle": 0.1}:
            told(patient)
        exchange(serve(**limits), said)
        assert is_open(patient)


def test_a_handshake_is_limited(serve: Open, secured: tuple[Tls, ssl.SSLContext]) -> None:
    """A client of TLS that does not begin, or speaks plain HTTP, is let go without a word in the log; the next one is served."""
    server = serve(tls=secured[0], head=0.3)
    assert exchange(server, b"") == b""
    assert not exchange(server, b"GET / HTTP/1.1\r\n\r\n").startswith(b"HTTP")
    patient = serve(tls=secured[0])
    with secured[1].wrap_socket(connect(patient), server_hostname="accelmetrics") as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert client.recv(15) == b"HTTP/1.1 200 OK"


def test_tornado_is_silent_about_clients(serve: Open, secured: tuple[Tls, ssl.SSLContext], caplog: pytest.LogCaptureFixture) -> None:
    """What it logs on the server's thread goes to our own logger at DEBUG; a program's own use of tornado is heard."""
    server = serve(tls=secured[0])
    with caplog.at_level(logging.DEBUG):
        exchange(server, b"GET / HTTP/1.1\r\n\r\n")
        wait_for(lambda: "accelmetrics" in {record.name for record in caplog.records})
        logging.getLogger("tornado.general").warning("the program's own")
    said = [(record.name, record.levelname) for record in caplog.records if record.name.startswith(("tornado", "accelmetrics"))]
    assert ("tornado.general", "WARNING") in said
    assert set(said) == {("tornado.general", "WARNING"), ("accelmetrics", "DEBUG")}
    assert "the program's own" in caplog.text


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_the_connection_ends_with_the_answer(serve: Open, secured: tuple[Tls, ssl.SSLContext], version: str) -> None:
    """By TLS too, a client that says so, or speaks HTTP/1.0, waits for no limit to see the end, which TLS marks as such."""
    server = serve(tls=secured[0], head=10 * HANG, write=10 * HANG, idle=10 * HANG)
    with secured[1].wrap_socket(connect(server), server_hostname="accelmetrics", suppress_ragged_eofs=False) as client:
        client.sendall(f"GET / HTTP/{version}\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert answer(client).endswith(b"fine")
    wait_for(lambda: not server._clients)


def test_a_client_that_does_not_take_its_answer_is_let_go(serve: Open) -> None:
    """Writing has its time, and the answer is not copied for each client."""
    computed: list[HTTPServerRequest] = []

    def large(request: HTTPServerRequest) -> HttpAnswer:
        computed.append(request)
        return HttpAnswer(LARGE)

    server = serve({"/large": large}, write=1.0)
    request = b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    memory = psutil.Process().memory_info().rss
    clients = [connect(server, request) for _ in range(20)]
    wait_for(lambda: len(computed) == 20)
    assert get(server) == 200
    assert psutil.Process().memory_info().rss - memory < 10 * len(LARGE)
    wait_for(lambda: not server._clients)
    assert all(len(answer(client)) < len(LARGE) for client in clients)
    with connect(serve({"/large": large}), request) as taker:
        assert len(answer(taker)) > len(LARGE)


def test_half_open_tls_connections_cost_little_memory(tmp_path: Path) -> None:
    """300 of them, which have begun their handshakes, take less than 30 MB of a fresh program."""
    Authority(tmp_path).issue("accelmetrics")
    text = """
        import sys, socket, ssl, psutil
        from pathlib import Path
        from accelmetrics.exporters.http.access import Tls
        from accelmetrics.exporters.network import Address
        from accelmetrics.exporters.http.server import ClientLimits, HttpAnswer, Route, Server
        folder = Path(sys.argv[1])
        tls = Tls(folder / "accelmetrics.crt", folder / "accelmetrics.key")
        tls.read()
        routes = [("/", Route, {"compute": lambda _: HttpAnswer(b"fine")})]
        server = Server(Address("127.0.0.1", 0), routes, tls=tls, limits=ClientLimits(connections=1000))
        server.open()
        context = ssl.create_default_context(cafile=folder / "test-authority.pem")
        with context.wrap_socket(socket.create_connection(server.address), server_hostname="accelmetrics") as client:
            client.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
            client.recv(1000)
        outgoing = ssl.MemoryBIO()
        try:
            context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="accelmetrics").do_handshake()
        except ssl.SSLWantReadError:
            hello = outgoing.read()
        before = psutil.Process().memory_info().rss
        clients = [socket.create_connection(server.address) for _ in range(300)]
        for client in clients:
            client.sendall(hello)
        for client in clients:
            client.recv(1)  # the server's own hello
        tell(len(server._clients), psutil.Process().memory_info().rss - before)
        server.close()
    """
    with Program(text, str(tmp_path)) as program:
        count, grown = program.told()
        assert count == 300
        assert grown < 30e6
        assert (program.end(), program.errors) == (0, "")


# Load


def test_more_than_forty_requests_at_once_are_refused(serve: Open, slow: tuple[Gate, Compute]) -> None:
    """The forty-first is told to come again, and the forty are answered; thereafter all is as before."""
    server = serve({"/slow": slow[1]}, answer=2 * HANG)
    clients = [connect(server, b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") for _ in range(40)]
    wait_for(server._places.locked)
    refused = exchange(server, b"GET /slow HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert refused.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nRetry-After: 1\r\n" in refused
    slow[0].release()
    assert [answer(client)[:15] for client in clients] == [b"HTTP/1.1 200 OK"] * 40
    assert get(server) == 200


def test_clients_that_do_not_take_their_answers_do_not_fill_the_places(serve: Open) -> None:
    """Only requests that wait to be computed count."""
    server = serve({"/large": lambda _: HttpAnswer(LARGE)}, computing=3)
    clients = []
    for _ in range(6):
        clients.append(connect(server, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        assert clients[-1].recv(15) == b"HTTP/1.1 200 OK"
    assert get(server) == 200
    for client in clients:
        client.close()


def test_the_scrape_timeout_is_respected(serve: Open, slow: tuple[Gate, Compute]) -> None:
    """The answer comes before Prometheus gives up, if only to say that there is none; a late one harms nothing."""
    server = serve({"/slow": slow[1]}, answer=10 * HANG)
    assert get(server, "/slow", X_Prometheus_Scrape_Timeout_Seconds="0.7") == 503
    slow[0].release()
    for nonsense in ("soon", "-1", "nan", "inf", "0"):
        assert get(server, X_Prometheus_Scrape_Timeout_Seconds=nonsense) == 200


def test_a_route_that_fails_costs_its_own_request(serve: Open, caplog: pytest.LogCaptureFixture) -> None:
    """500 without a traceback for the client, one in the log, and the next request is answered."""

    def broken(_: HTTPServerRequest) -> HttpAnswer:
        raise KeyError("a secret")

    server = serve({"/broken": broken})
    with caplog.at_level(logging.WARNING, "accelmetrics"):
        said = exchange(server, b"GET /broken HTTP/1.0\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 500 ")
    assert b"secret" not in said
    assert "a secret" in caplog.text
    assert get(server) == 200


# Strangers


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HttpCredentials:
    """Lets in Ada, whose password takes half a millisecond to check."""
    monkeypatch.setattr(access, "COST", 2**8)
    (tmp_path / "users").write_text(password_line("ada", "secret"))
    return HttpCredentials(str(tmp_path / "users"))


def test_requests_without_credentials_cost_no_scrape(serve: Open, closed: HttpCredentials, secured: tuple[Tls, ssl.SSLContext]) -> None:
    """Beside clients of the same address that ask without end, each on a new TLS connection, all scrapes of who is known succeed."""
    server, ended = serve(tls=secured[0], credentials=closed, unauthenticated=5), threading.Event()
    refused: list[bytes] = []

    def ask(authorization: str) -> bytes:
        request = f"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{authorization}\r\n\r\n"
        with secured[1].wrap_socket(connect(server), server_hostname="accelmetrics") as client:
            client.sendall(request.encode())
            return answer(client)[9:12]

    def stranger() -> None:
        while not ended.is_set():
            refused.append(ask("X-Nothing: 1"))

    strangers = [threading.Thread(target=stranger) for _ in range(8)]
    for one in strangers:
        one.start()
    wait_for(lambda: b"429" in refused)
    assert [ask(f"Authorization: {basic('ada', 'secret')}") for _ in range(45)] == [b"200"] * 45
    ended.set()
    for one in strangers:
        one.join()
    assert set(refused) == {b"401", b"429"}


@pytest.mark.parametrize("source", ["127.0.0.1", "127.0.0.2"])
def test_forty_guessers_do_not_lock_out_a_first_log_in(serve: Open, closed: HttpCredentials, source: str) -> None:
    """The first log-in of who has the password succeeds, from another address and from the guessers' own; so do all later ones."""
    server, ended = serve(credentials=closed), threading.Event()
    statuses: list[int] = []

    def guess(number: int) -> None:
        turn = 0
        while not ended.is_set():
            statuses.append(get(server, Authorization=basic("ada", f"{number}-{turn}")))
            turn += 1

    guessers = [threading.Thread(target=guess, args=(number,)) for number in range(40)]
    for guesser in guessers:
        guesser.start()
    wait_for(lambda: server._guesses["127.0.0.1"] > 10)
    assert [get(server, source=source, Authorization=basic("ada", "secret")) for _ in range(24)] == [200] * 24
    ended.set()
    for guesser in guessers:
        guesser.join()
    assert set(statuses) <= {401, 429}


def test_more_guesses_than_may_wait_are_refused(serve: Open, closed: HttpCredentials, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each address by itself; a guess whose client has gone is not tried."""
    gate, tried = Gate(), []

    def slowly(self: HttpCredentials, said: str) -> bool:
        tried.append(said)
        gate()
        return False

    monkeypatch.setattr(HttpCredentials, "tried", slowly)
    server = serve(credentials=closed, guesses=3)
    request = f"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: {basic('ada', 'wrong')}\r\n\r\n".encode()
    waiting = [connect(server, request) for _ in range(3)]
    wait_for(lambda: server._guesses["127.0.0.1"] == 3)
    assert get(server, Authorization=basic("ada", "another")) == 429
    with connect(server, request, source="127.0.0.2") as other:
        wait_for(lambda: server._guesses["127.0.0.2"] == 1)
        for client in waiting:
            client.close()
        wait_for(lambda: len(server._clients) == 1)
        gate.release()
        assert told(other, b"wrong\n").startswith(b"HTTP/1.1 401 ")
    wait_for(lambda: not server._guesses)
    assert len(tried) == 2


def test_guessers_that_wait_make_room(serve: Open, closed: HttpCredentials, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all connections of their address taken by passwords that wait, a client of the same address that is known is answered."""
    gate = Gate()
    server = serve(credentials=closed, connections=16)
    assert get(server, Authorization=basic("ada", "secret")) == 200
    monkeypatch.setattr(HttpCredentials, "tried", lambda *_: gate())
    request = f"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: {basic('ada', 'wrong')}\r\n\r\n".encode()
    guessers = [connect(server, request) for _ in range(8)]
    wait_for(lambda: server._guesses["127.0.0.1"] == 8)
    assert get(server, Authorization=basic("ada", "secret")) == 200
    gate.release()
    for guesser in guessers:
        guesser.close()


def test_probes_cost_no_scrape_and_no_scrape_a_probe(serve: Open, closed: HttpCredentials, slow: tuple[Gate, Compute]) -> None:
    """What is answered without a password takes no place of what is computed, and waits for none."""
    server = serve(
        {"/slow": slow[1], "/probe": lambda _: HttpAnswer(b"fine")}, ("/probe",), credentials=closed, computing=1, answer=2 * HANG
    )
    authorization = f"Authorization: {basic('ada', 'secret')}\r\n".encode()
    with connect(server, b"GET /slow HTTP/1.1\r\nHost: localhost\r\n" + authorization + b"\r\n") as scrape:
        wait_for(server._places.locked)
        assert get(server, "/probe") == 200
        slow[0].release()
        told(scrape, b"at last")


def test_probes_are_limited_as_all_that_needs_no_password(serve: Open, closed: HttpCredentials) -> None:
    """Where a password is asked for, and nowhere else."""
    for credentials, status in ((closed, 429), (None, 200)):
        server = serve({"/probe": lambda _: HttpAnswer(b"fine")}, ("/probe",), credentials=credentials, unauthenticated=0)
        assert get(server, "/probe") == status


# Sites and names


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.1:9", "[::1]:80", "127.5.5.5"])
def test_on_loopback_its_own_names_are_served(serve: Open, host: str) -> None:
    """With any port."""
    assert get(serve(), Host=host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:22235",
        "evil.example:80",
        "node7",
        "0.0.0.0",
        "10.0.0.1:80",
        "[::2]",
        "a b",
    ],
)
def test_on_loopback_no_other_name_is_served(serve: Open, host: str) -> None:
    """A web site whose name is made to mean this machine reads nothing (DNS rebinding)."""
    assert get(serve(), Host=host) in ({400, 421} if host == "a b" else {421})


def test_more_names_can_be_allowed(serve: Open) -> None:
    """Beside those that are answered to anyway."""
    server = serve(allowed_hosts=["gpu.example", "10.0.0.1"])
    assert [get(server, Host=host) for host in ("GPU.example:1", "localhost", "10.0.0.1", "evil.example")] == [200, 200, 200, 421]
    server = serve(address="0.0.0.0", allowed_hosts=["gpu.example"])
    assert [get(server, Host=host) for host in ("gpu.example", "10.0.0.1", "evil.example")] == [200, 200, 421]


def test_where_other_machines_reach_it_no_web_site_is_answered(serve: Open) -> None:
    """Addresses are, this machine's own names, and names without a dot, which no web site has."""
    server = serve(address="0.0.0.0")
    own = socket.gethostname()
    served = ["10.0.0.1:22235", "[fd00::7]:1", own, f"{own.upper()}:1", "localhost", "exporter:22235"]
    assert [get(server, Host=host) for host in (*served, "evil.example", f"{own}.evil.example")] == [200] * len(served) + [421, 421]


def test_its_full_name_is_its_own(serve: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system knows it when it begins to listen; a web site cannot have the first part of it mean anything."""
    real = socket.getaddrinfo

    def looked_up(host: str, *arguments: Any, **options: Any) -> Any:
        if host != "node7":
            return real(host, *arguments, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "Node7.gpu.example.", ("10.0.0.7", 0))]

    monkeypatch.setattr(socket, "gethostname", lambda: "node7")
    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    server = serve(address="0.0.0.0")
    assert [get(server, Host=host) for host in ("node7.gpu.example:80", "NODE7", "node7.evil.example", "gpu.example")] == [
        200,
        200,
        421,
        421,
    ]
    assert get(serve(), Host="node7.gpu.example") == 421


def test_scrapes_come_under_any_name(serve: Open) -> None:
    """Where other machines reach it, and no names were given: a monitoring system has its own for a machine."""
    host = "node7.gpu.example:22235"
    for options, status in (({}, 200), ({"allowed_hosts": ["other.example"]}, 421), ({"address": "127.0.0.1"}, 421)):
        server = serve({"/metrics": lambda _: HttpAnswer(b"fine")}, any_name=("/metrics",), **{"address": "0.0.0.0", **options})
        assert [get(server, path, Host=host) for path in ("/metrics", "/")] == [status, 421]


@pytest.mark.parametrize(("site", "status"), [("cross-site", 403), ("same-origin", 200), ("same-site", 200), ("none", 200)], ids=str)
def test_pages_of_other_sites_read_nothing(serve: Open, site: str, status: int) -> None:
    """As browsers say."""
    assert get(serve(), Sec_Fetch_Site=site) == status


def test_nothing_says_that_pages_of_other_sites_may_read(serve: Open) -> None:
    """No header of CORS, whatever the origin."""
    said = exchange(serve(), b"GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost:3000\r\nConnection: close\r\n\r\n")
    assert b"access-control" not in said.lower()


# Requests


def test_an_oversized_head_is_refused(serve: Open) -> None:
    """More than 8 KiB of headers end the connection while the client still sends, in one line or in many."""
    server = serve()
    for head in (b"X: " + b"a" * 20_000, b"X: a\r\n" * 5_000, b"X: " + b"a" * 8_000_000):
        with connect(server) as client, contextlib.suppress(ConnectionError):
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n")
            assert not answer(client).startswith(b"HTTP/1.1 200")
    assert get(server, X="a" * 8000) == 200


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"GET http://other/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nspace : before\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n folded: line\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nGET /", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 405),
        (b"GET /%2e%2e/etc/passwd HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 404),
        (b"GET /? HTTP/1.0\r\n\r\n", 200),
        (b"GET /%2f HTTP/1.0\r\n\r\n", 404),
    ],
    ids=lambda value: repr(value)[2:30] if isinstance(value, bytes) else str(value),
)
def test_what_is_no_plain_request_is_refused(serve: Open, request_text: bytes, status: int) -> None:
    """Nothing is guessed at: one answer, and the connection ends."""
    said = exchange(serve(), request_text)
    assert said.startswith(b"HTTP/1.1 %d " % status)
    assert len(re.findall(rb"HTTP/1.1 \d", said)) == 1


def test_one_connection_serves_many_requests(serve: Open) -> None:
    """Also those that were sent ahead; in their order, until the client says that it is the last."""
    host = b"Host: localhost\r\n"
    requests = [b"GET / HTTP/1.1\r\n", b"HEAD / HTTP/1.1\r\n", b"GET /no HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nConnection: close\r\n"]
    said = exchange(serve(), b"".join(request + host + b"\r\n" for request in requests))
    assert re.findall(rb"HTTP/1.1 (\d+)", said) == [b"200", b"200", b"404", b"200"]
    assert said.count(b"fine") == 2
    assert said.count(b"Connection: close") == 1


def test_every_answer_forbids_guessing_its_type(serve: Open) -> None:
    """Errors too; none says what serves it."""
    for path in (b"/", b"/nothing"):
        said = exchange(serve(), b"GET " + path + b" HTTP/1.0\r\n\r\n")
        assert b"\r\nX-Content-Type-Options: nosniff\r\n" in said
        assert b"\r\nCache-Control: no-store\r\n" in said
        assert b"\r\nServer:" not in said


def test_random_bytes_do_not_bring_it_down(serve: Open, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is sent, the server goes on, and has nothing to report."""
    server = serve()
    chance = random.Random(1)
    with caplog.at_level(logging.WARNING):
        for _ in range(50):
            with connect(server) as client, contextlib.suppress(ConnectionError):
                client.sendall(chance.randbytes(chance.randrange(1, 3000)) + b"\r\n\r\n")
        wait_for(lambda: not server._clients)
        assert get(server) == 200
    assert caplog.messages == []


def test_random_authorizations_let_nothing_in(serve: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever bytes stand for an authorization, they are answered with 401 or 400, and there is nothing to report."""
    (tmp_path / "users").write_text(password_line("ada", "secret"))
    (tmp_path / "token").write_text("t0ken")
    for name in ("users", "token"):
        (tmp_path / name).chmod(0o600)
    server = serve(credentials=HttpCredentials(str(tmp_path / "users"), str(tmp_path / "token")), unauthenticated=1000)
    chance = random.Random(2)
    said = [b"Basic \xe9", b"Bearer \xe9", b"Basic YWRhOg==\xff", b"Basic w6k=", b"\xe9"]
    said += [chance.choice((b"Basic ", b"Bearer ", b"")) + chance.randbytes(chance.randrange(40)) for _ in range(200)]
    with caplog.at_level(logging.WARNING):
        for words in said:
            told = exchange(server, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: " + words + b"\r\n\r\n")
            assert told[:13] in (b"HTTP/1.1 401 ", b"HTTP/1.1 400 "), words
    assert exchange(server, b"GET / HTTP/1.0\r\nAuthorization: Basic \xe9\r\n\r\n").startswith(b"HTTP/1.1 401 ")
    assert caplog.messages == []


def test_a_route_can_be_a_handler_of_its_own(serve: Open) -> None:
    """One that streams: it is checked as any other, sends piece by piece, and its time is its own."""

    class Counting(Route):
        async def get(self) -> None:
            for number in range(3):
                self.write(f"{number}\n")
                await self.flush()

    routes: list[tuple[str, type[Route], dict[str, Any]]] = [("/count", Counting, {"compute": lambda _: HttpAnswer(b"")})]
    server = Server(Address("127.0.0.1", 0), routes, limits=ClientLimits(answer=0.01, write=HANG))
    server.open()
    try:
        assert exchange(server, b"GET /count HTTP/1.0\r\n\r\n").endswith(b"0\n1\n2\n")
        assert get(server, "/count", Host="evil.example") == 421
    finally:
        server.close()


# Opening


def test_a_server_without_a_thread_gives_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started, opening fails as something that passes, and neither a file nor the port stays taken."""
    server = Server(Address("127.0.0.1", 0), [])
    files = psutil.Process().num_fds()

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(OSError, match="can't start new thread"):
            server.open()
    assert psutil.Process().num_fds() <= files
    server.open()  # on the port that the system chose before
    server.close()
    assert psutil.Process().num_fds() <= files


def test_a_port_in_use_costs_no_file() -> None:
    """However often opening is tried."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = Server(Address("127.0.0.1", taken.getsockname()[1]), [])
        files = psutil.Process().num_fds()
        for _ in range(5):
            with pytest.raises(OSError, match="in use"):
                server.open()
        assert psutil.Process().num_fds() <= files


def test_every_address_of_a_name_is_listened_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one port; those that this machine does not have are passed over, and one that is in use is an error that leaks nothing."""
    hosts = ["192.0.2.1", "127.0.0.1", "127.0.0.9", "127.0.0.1"]

    def lookup(_: str, port: int, **__: int) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]

    files = psutil.Process().num_fds()
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lookup)
        server = Server(Address("localhost", 0), [("/", Route, {"compute": lambda _: HttpAnswer(b"fine")})])
        server.open()
        other = Server(server.address, [])
        with pytest.raises(OSError, match=f"port {server.address.port} of localhost is in use"):
            other.open()
        hosts[1:] = []
        with pytest.raises(OSError, match="of localhost cannot be used: Cannot assign"):
            listen(Address("localhost", 0))
    for host in ("127.0.0.1", "127.0.0.9"):
        with socket.create_connection((host, server.address.port), timeout=HANG) as client:
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert client.recv(15) == b"HTTP/1.1 200 OK"
    server.close()
    assert psutil.Process().num_fds() <= files


def test_localhost_of_both_versions_of_ip_is_listened_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever a client takes, it is answered."""
    ends = [(socket.AF_INET6, ("::1", 0, 0, 0)), (socket.AF_INET, ("127.0.0.1", 0))]
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lambda *_, **__: [(family, socket.SOCK_STREAM, 6, "", where) for family, where in ends])
        listening = listen(Address("localhost", 0))
    try:
        if len(listening) == 1:
            pytest.skip("platform: this machine has no IPv6")
        assert len({one.getsockname()[1] for one in listening}) == 1
    finally:
        for one in listening:
            one.close()


def test_a_free_port_that_is_taken_in_the_other_version_of_ip_is_left_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sockets with an address each stand for the two versions, since this machine may have one alone."""
    ends = [(socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_INET, ("127.0.0.2", 0))]
    taken: list[int] = []
    create = socket.create_server

    def create_server(where: tuple[Any, ...], **named: Any) -> socket.socket:
        if where[0] == "127.0.0.2" and len(taken) < 2:
            taken.append(where[1])
            raise OSError(errno.EADDRINUSE, "in use")
        return create(where, **named)

    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lambda *_, **__: [(family, socket.SOCK_STREAM, 6, "", where) for family, where in ends])
        patched.setattr(socket, "create_server", create_server)
        listening = listen(Address("localhost", 0))
    ports = {one.getsockname()[1] for one in listening}
    for one in listening:
        one.close()
    assert (len(listening), len(ports), len(taken)) == (2, 1, 2)


@pytest.mark.parametrize("host", ["a..b", "x" * 64, "no-such-host.invalid"])
def test_a_host_that_cannot_be_is_an_error_of_the_network(host: str) -> None:
    """Also one that is no name at all, which Python reports as an error of text."""
    with pytest.raises(OSError, match=f"the host '{host}' is not found: \\w"):
        listen(Address(host, 22932))
