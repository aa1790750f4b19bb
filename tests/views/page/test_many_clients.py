"""Three hundred browsers cost one reading: what the driver is asked, what is put together, and what the processor does."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import resource
import ssl
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from accelmetrics.exporters.http.access import password_line
from accelmetrics.exporters.prometheus import PrometheusExporter
from accelmetrics.schemas.record import Record
from accelmetrics.views.page import documents as made
from accelmetrics.views.page.documents import NodeDocuments, state_document
from tests.cli.shell import environment, start
from tests.exporters.certificates import Authority
from tests.records import record
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import HANG, wait_for
from tests.views.page.test_files import answering, ask

CLIENTS = 300
pytestmark = pytest.mark.timeout(4 * HANG)


class Client:
    """A browser as the server meets it: one connection, kept, and one request after another.

    Attributes:
        read: Answers by path and status.
        sequences: Of each document of the state that it was sent.
    """

    def __init__(self, port: int, secure: ssl.SSLContext | None = None, user: str = "") -> None:
        self._port = port
        self._secure = secure
        self._head = "Host: localhost\r\nAccept-Encoding: gzip;q=0\r\n"
        if user:
            self._head += f"Authorization: Basic {base64.b64encode(user.encode()).decode()}\r\n"
        self._etag = ""
        self.read: Counter[tuple[str, int]] = Counter()
        self.sequences: list[int] = []

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, ssl=self._secure)

    def say(self, words: bytes) -> None:
        """Send what is no whole request, or one whose answer is not taken."""
        self._writer.write(words)

    async def get(self, path: str, more: str = "") -> tuple[int, bytes]:
        """Ask, and take the answer."""
        self._writer.write(f"GET {path} HTTP/1.1\r\n{self._head}{more}\r\n".encode())
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), HANG)
        status = int(head.split()[1])
        if found := re.search(rb"\r\nEtag: ([^\r]+)", head):
            self._etag = found[1].decode()
        length = re.search(rb"\r\nContent-Length: (\d+)", head)
        body = await self._reader.readexactly(int(length[1])) if length and status != 304 else b""
        self.read[path.partition("?")[0], status] += 1
        return status, body

    async def poll(self) -> None:
        """Do what the page does once in an interval."""
        status, body = await self.get("/api/state", f"If-None-Match: {self._etag}\r\n")
        if status == 200:
            self.sequences.append(json.loads(body)["sequence"])
            since = self.sequences[-2] if len(self.sequences) > 1 else 0
            status, _ = await self.get(f"/api/history?since={since}")
        assert status in (200, 304)

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):  # the server has closed it before
            await self._writer.wait_closed()


async def together(clients: list[Client], polls: int) -> None:
    """Let all poll side by side."""

    async def act(client: Client) -> None:
        for _ in range(polls):
            await client.poll()

    await asyncio.gather(*map(act, clients))


USUAL_FILES, MANY_FILES = 1024, 4096
needs_files = pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[1] < MANY_FILES, reason="platform: no process may open so many files"
)


@contextmanager
def open_files(limit: int) -> Iterator[None]:
    """Let this process, and those that it starts, open so many files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def serving(*arguments: str, **env: str) -> Iterator[tuple[psutil.Process, int]]:
    """The command with a page, in a process of its own, with the usual limits."""
    with open_files(USUAL_FILES):
        program = start("serve", "--ui", "--listen", "127.0.0.1:0", *arguments, env=environment(**env))
    try:
        assert program.stderr is not None
        line = program.stderr.readline()
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        assert found is not None, line
        yield psutil.Process(program.pid), int(found[1])
    finally:
        program.kill()
        program.communicate(timeout=HANG)


@asynccontextmanager
async def browsing(count: int, port: int, secure: ssl.SSLContext | None = None, user: str = "") -> AsyncIterator[list[Client]]:
    """So many clients, closed with the block."""
    clients = [Client(port, secure, user) for _ in range(count)]
    await asyncio.gather(*(client.open() for client in clients))
    try:
        yield clients
    finally:
        await asyncio.gather(*(client.close() for client in clients))


async def first_reading(client: Client) -> None:
    while (await client.get("/api/state"))[0] == 503:
        await asyncio.sleep(0.01)


def readings(simulator: NvmlSimulator) -> int:
    """How often the driver was asked for the utilisation of its first device."""
    return simulator.calls()["nvmlDeviceGetUtilizationRates", 0]


@needs_files
@pytest.mark.slow
def test_three_hundred_clients_cost_one_reading() -> None:
    """The driver is asked as often as the interval says. All see each reading alike, and none is refused."""

    async def act(port: int, simulator: NvmlSimulator) -> tuple[list[Client], int, int]:
        async with browsing(CLIENTS, port) as clients:
            await first_reading(clients[0])
            first, before = json.loads((await clients[0].get("/api/state"))[1])["sequence"], readings(simulator)
            while any(len(client.sequences) < 5 for client in clients):
                await together(clients, 1)
            after, last = readings(simulator), json.loads((await clients[0].get("/api/state"))[1])["sequence"]
            return clients, after - before, last - first

    with NvmlSimulator(8) as simulator, serving("--backends", "nvidia", "--interval", "0.5", **simulator.environment()) as (_, port):
        clients, asked, passed = asyncio.run(act(port, simulator))
    answers = sum((client.read for client in clients), Counter[tuple[str, int]]())
    polls = sum(count for (path, _), count in answers.items() if path == "/api/state")
    assert polls > 5 * CLIENTS
    assert {status for _, status in answers} <= {200, 304, 503}
    assert sum(count for (_, status), count in answers.items() if status == 503) == clients[0].read["/api/state", 503]
    assert 3 <= asked <= passed + 1  # a reading may be under way
    assert all(client.sequences == sorted(set(client.sequences)) for client in clients)


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count how often the state is made."""
    rendered: Counter[str] = Counter()

    def counted(*arguments: Any, **options: Any) -> Any:
        rendered["state"] += 1
        return state_document(*arguments, **options)

    with patch.object(made, "state_document", counted), patch.object(made, "is_recent", return_value=True):
        yield rendered


def readings_each_second() -> Iterator[Record]:
    """The same values a second later, without end."""
    taken = record()
    for second in range(10**6):
        snapshot = taken.snapshot.with_values(taken.snapshot.metrics, taken.snapshot.unavailable)
        snapshot.time_ns = taken.snapshot.time_ns + 10**9 * second
        yield taken._replace(snapshot=snapshot)


@needs_files
def test_each_document_is_made_once_a_reading() -> None:
    """However many clients ask for it at the same time; a reading that no client asks for is not looked at."""
    documents, records = NodeDocuments(1.0, page=True), readings_each_second()
    endpoint = PrometheusExporter("127.0.0.1:0")
    endpoint.routes += documents.routes
    endpoint.limits = replace(endpoint.limits, connections=2 * CLIENTS + 2)

    async def act() -> None:
        async with browsing(CLIENTS, endpoint.address.port) as clients:
            for _ in range(5):
                for given in islice(records, 4):  # of which clients see the last
                    documents.take(given)
                await together(clients, 1)
            assert all(len(client.sequences) == 5 for client in clients)

    with open_files(MANY_FILES), counting() as rendered:
        try:
            endpoint.open()
            asyncio.run(act())
        finally:
            endpoint.close()
    assert rendered["state"] == 5


def test_slow_clients_hold_up_no_other() -> None:
    """Some ask and take nothing, some never finish their request: those that poll see every reading."""

    async def act(port: int) -> list[Client]:
        async with browsing(40, port) as clients, browsing(100, port) as deaf:
            await first_reading(clients[0])
            for number, client in enumerate(deaf):
                client.say(b"GET /api/record HTTP/1.1\r\nHost: localhost\r\n\r\n" if number % 2 else b"GET /api/sta")
            while any(len(client.sequences) < 2 for client in clients):
                await together(clients, 1)
            return clients

    with NvmlSimulator(8) as simulator, serving("--backends", "nvidia", "--interval", "0.1", **simulator.environment()) as (_, port):
        clients = asyncio.run(act(port))
    assert all(status in (200, 304) for client in clients[1:] for _, status in client.read)


def test_with_a_password_and_tls(tmp_path: Path) -> None:
    """As every path of the server: the page and its documents are for those who have it; the page's own files too."""
    certificate, key = Authority(tmp_path).issue("localhost")
    users = tmp_path / "users"
    users.write_text(password_line("ann", "open sesame") + "\n")
    users.chmod(0o600)
    secure = ssl.create_default_context(cafile=str(tmp_path / "test-authority.pem"))
    secure.check_hostname = False
    paths = ("/", "/static/app.js", "/api/state", "/api/history", "/api/record", "/api/summary")

    async def statuses(client: Client) -> list[int]:
        return [(await client.get(path))[0] for path in paths]

    async def act(port: int) -> tuple[list[int], list[int], list[int]]:
        async with (
            browsing(1, port, secure) as strangers,
            browsing(1, port, secure, "ann:open barley") as wrong,
            browsing(30, port, secure, "ann:open sesame") as clients,
        ):
            await first_reading(clients[0])
            await together(clients, 3)
            return await statuses(strangers[0]), await statuses(wrong[0]), await statuses(clients[0])

    options = ("--tls-cert", str(certificate), "--tls-key", str(key), "--auth", str(users))
    with serving("--backends", "host", "--interval", "0.1", *options) as (_, port):
        stranger, wrong, known = asyncio.run(act(port))
    assert stranger == wrong == [401] * len(paths)
    assert known == [200] * len(paths)


class Follower(Client):
    """A browser that reads the lines of ``/api/updates``.

    Attributes:
        times: Of its columns.
        received: Bytes of the answer.
    """

    async def follow(self, *, packed: bool = False) -> int:
        """Ask for the lines; the status."""
        self.times: list[float] = []
        self.received = b""
        head = self._head.replace("gzip;q=0", "gzip") if packed else self._head
        self.say(f"GET /api/updates HTTP/1.1\r\n{head}\r\n".encode())
        answer = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), HANG)
        if length := re.search(rb"\r\nContent-Length: (\d+)", answer):
            await self._reader.readexactly(int(length[1]))
        self._gzip = zlib.decompressobj(31) if b"Content-Encoding: gzip" in answer else None
        self._text = b""
        return int(answer.split()[1])

    async def line(self) -> bytes | None:
        """Read the next line; None at the end."""
        while b"\n" not in self._text:
            size = int(await asyncio.wait_for(self._reader.readline(), HANG), 16)
            chunk = (await self._reader.readexactly(size + 2))[:-2]
            if not size:
                return None
            self.received += chunk
            self._text += self._gzip.decompress(chunk) if self._gzip else chunk
        line, _, self._text = self._text.partition(b"\n")
        return line

    async def reading(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Read the two lines of a reading; None at the end."""
        while (line := await self.line()) == b"":
            pass
        if line is None:
            return None
        state, columns = json.loads(line), json.loads(await self.line() or b"")
        self.times = columns["times"] if columns["complete"] else self.times + columns["times"]
        self.sequences.append(state["sequence"])
        assert columns["sequence"] == state["sequence"]
        return state, columns


@asynccontextmanager
async def following(port: int, clients: int = 1) -> AsyncIterator[list[Follower]]:
    """So many of them, closed with the block."""
    followers = [Follower(port) for _ in range(clients)]
    await asyncio.gather(*(one.open() for one in followers))
    try:
        yield followers
    finally:
        await asyncio.gather(*(one.close() for one in followers))


def test_readings_are_sent_to_all_who_follow() -> None:
    """As they come, made once: the state and the columns of one reading. None is sent twice or left out, whoever came when."""
    documents, records = NodeDocuments(1.0, page=True), readings_each_second()
    endpoint = PrometheusExporter("127.0.0.1:0")
    endpoint.routes += documents.routes
    documents.take(next(records))

    async def act() -> int:
        async with following(endpoint.address.port, 20) as clients:
            early, late = clients[:15], clients[15:]
            assert {await client.follow(packed=place % 2 == 1) for place, client in enumerate(early)} == {200}
            await asyncio.gather(*(client.reading() for client in early))
            for number, given in enumerate(islice(records, 5)):
                documents.take(given)
                if number == 2:
                    assert {await client.follow(packed=True) for client in late} == {200}
                now = early if number < 2 else clients
                lines = [line for line in await asyncio.gather(*(client.reading() for client in now)) if line is not None]
                assert len(lines) == len(now)
                assert all(state == lines[0][0] for state, _ in lines)
                assert {(columns["complete"], len(columns["times"])) for _, columns in lines} == {(False, 1)} | (
                    {(True, 4)} if number == 2 else set()
                )
            for client in clients:
                assert client.sequences == [*range(client.sequences[0], clients[0].sequences[-1] + 1)]
                assert client.times == clients[0].times == sorted(set(client.times))
            assert len({client.received for client in early[1::2]}) == 1
            return len(clients[0].sequences)

    with counting() as rendered:
        try:
            endpoint.open()
            readings = asyncio.run(act())
        finally:
            endpoint.close()
    assert (readings, rendered["state"]) == (6, 2 * 6)  # plain and compressed


def test_who_follows_is_told_that_there_is_no_news_and_when_it_ends() -> None:
    """An empty line tells a quiet node from a broken connection. Without a recent reading there is no answer, or its end."""
    documents, records = NodeDocuments(1.0, page=True), readings_each_second()
    endpoint = PrometheusExporter("127.0.0.1:0")
    endpoint.routes += documents.routes

    async def act() -> None:
        async with following(endpoint.address.port, 3) as (early, client, head):
            assert await early.follow() == 503
            documents.take(next(records))
            assert await client.follow() == 200
            assert await client.reading() is not None
            assert await client.line() == b""
            with patch.object(made, "is_recent", return_value=False):
                while (line := await client.line()) == b"":
                    pass
                assert line is None
            assert (await head.get("/api/updates?metrics=noise"))[0] == 400
            head.say(b"HEAD /api/updates HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await head.get("/api/summary"))[0] == 200

    with patch.object(made, "HEARTBEAT", 0.05), patch.object(made, "is_recent", return_value=True):
        try:
            endpoint.open()
            asyncio.run(act())
        finally:
            endpoint.close()


def test_who_leaves_holds_nothing() -> None:
    """A connection that the client closes in the middle of a stream ends with the next line, and nothing waits for it."""
    documents, records = NodeDocuments(1.0, page=True), readings_each_second()
    endpoint = PrometheusExporter("127.0.0.1:0")
    endpoint.routes += documents.routes
    documents.take(next(records))

    async def act() -> None:
        async with following(endpoint.address.port, 20) as clients:
            assert {await client.follow() for client in clients} == {200}
            await asyncio.gather(*(client.reading() for client in clients))
        server = endpoint._server
        assert server is not None
        while server._clients:
            await asyncio.sleep(0.01)

    with patch.object(made, "HEARTBEAT", 0.05), patch.object(made, "is_recent", return_value=True):
        try:
            endpoint.open()
            asyncio.run(asyncio.wait_for(act(), HANG))
        finally:
            endpoint.close()


def test_who_takes_nothing_is_closed_and_holds_up_no_other() -> None:
    """Another client has every reading meanwhile, and the memory for a slow one is a reading's at most."""
    documents, records = NodeDocuments(1.0, page=True), readings_each_second()
    endpoint = PrometheusExporter("127.0.0.1:0")
    endpoint.routes += documents.routes
    endpoint.limits = replace(endpoint.limits, write=2.0)
    documents.take(next(records))

    def large(*arguments: Any, **options: Any) -> Any:
        return {**state_document(*arguments, **options), "more": "-" * (1 << 20)}

    async def act() -> None:
        async with following(endpoint.address.port, 2) as (deaf, client):
            deaf.say(b"GET /api/updates HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert await client.follow(packed=True) == 200
            assert await client.reading() is not None
            server = endpoint._server
            assert server is not None
            while len(server._clients) == 2:
                waiting = [one.stream._write_buffer for one in tuple(server._clients)]
                assert all(len(buffer) < 3 << 20 for buffer in waiting)
                documents.take(next(records))
                assert await client.reading() is not None
            assert client.sequences == [*range(client.sequences[0], client.sequences[-1] + 1)]

    patches = patch.object(made, "HEARTBEAT", 0.05), patch.object(made, "state_document", large)
    with patches[0], patches[1], patch.object(made, "is_recent", return_value=True):
        try:
            endpoint.open()
            asyncio.run(asyncio.wait_for(act(), HANG))
        finally:
            endpoint.close()


def test_a_password_that_is_no_longer_right_ends_what_is_followed(tmp_path: Path) -> None:
    """With the next reading."""
    users = tmp_path / "users"
    users.write_text(password_line("ann", "open sesame") + "\n")
    users.chmod(0o600)

    async def act(port: int) -> None:
        client = Follower(port, user="ann:open sesame")
        await client.open()
        while await client.follow() == 503:
            await asyncio.sleep(0.01)
        assert await client.reading() is not None
        users.write_text(password_line("ben", "open sesame") + "\n")
        while await client.reading() is not None:
            pass
        assert await client.follow() == 401
        await client.close()

    with serving("--backends", "host", "--interval", "0.1", "--auth", str(users)) as (_, port):
        asyncio.run(act(port))


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("since=12x", 400, b"since must be a whole number"),
        ("since=-1", 400, b"since must be a whole number"),
        ("since=1e3", 400, b"since must be a whole number"),
        ("since=" + "9" * 19, 400, b"since must be a whole number"),
        ("since=%00", 400, b"since must be a whole number"),
        ("since=%ff", 400, b""),
        ("since=" + "9" * 18, 200, b'"complete":true'),
        ("since=", 400, b"since must be a whole number"),
        ("", 200, b'"complete":true'),
        ("metrics=utilization", 200, b'"utilization"'),
        ("metrics=power_watts,", 200, b'"power_watts"'),
        ("metrics=noise", 400, b"no metric 'noise': use power_watts, utilization"),
        ("metrics=%25s%0d%0aSet-Cookie:a", 400, b"no metric '%s\\r\\nSet-Cookie:a'"),
        ("other=1&since=0", 200, b'"complete":true'),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_asked_for_is_checked(history: str, query: str, status: int, said: bytes) -> None:
    """A refusal says what is wrong, in one line."""
    got, headers, body = ask(f"{history}?{query}")
    assert (got, said in body) == (status, True), body
    assert "Set-Cookie" not in headers


def test_a_huge_query_is_refused(history: str) -> None:
    """It costs no more than 8 KiB."""
    wait_for(lambda: ask(history)[0] == 200)
    status = 431
    with suppress(OSError):  # the rest of the query may meet a closed connection, before the answer is read
        status, _, _ = ask(f"{history}?since={'1' * 100_000}")
    assert status == 431
    assert ask(history)[0] == 200


@pytest.fixture(scope="module")
def history() -> Iterator[str]:
    """Where a server has the columns of graphs."""
    documents = NodeDocuments(1.0, page=True, max_age=10 * HANG)
    documents.take(record())
    with answering(documents.routes) as address:
        yield f"{address}/api/history"
