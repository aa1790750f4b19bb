"""A server of shared readings, met by clients that behave and by some that do not."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from accelmetrics.sampling import node_server
from accelmetrics.sampling.node import connected, listening
from accelmetrics.sampling.node_server import NodeServer, union
from accelmetrics.sampling.node_wire import PROTOCOL, Encoder, frame
from accelmetrics.schemas.snapshot import Snapshot
from tests.sampling.node import BareClient, serving
from tests.support.waiting import idle, wait_for

LENGTH = struct.Struct("!I")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.sock"


@pytest.fixture
def good(path: Path) -> Iterator[BareClient]:
    """A client that has readings, and goes on having them."""
    with serving(path), BareClient(path) as client:
        client.hello().wait_for("reading")
        yield client


def goes_on(client: BareClient) -> bool:
    """Whether readings still come: of those that follow, not of those that had been sent."""
    had = sum(message["type"] == "reading" for message in client.got)
    return bool(client.wait_for("reading", had + 5))


def test_a_client_has_a_layout_and_then_numbers_alone(path: Path) -> None:
    """On a busy machine the first reading may be late: its layout has no keys."""
    keys = ["load.1m", "load.5m"]
    with serving(path), BareClient(path) as client:
        client.hello(metrics=keys)
        wait_for(lambda: client.wait_for("layout")["keys"] == keys or not client.receive())
        had = sum(message["type"] == "reading" for message in client.got)
        client.wait_for("reading", had + 3)
        begin = next(place for place, message in enumerate(client.got) if message["type"] == "layout" and message["keys"] == keys)
        after = client.got[begin + 1 :]
        assert len(next(message for message in after if message["type"] == "reading")["values"]) == 2
        layouts = [message for message in client.got if message["type"] == "layout"]
        assert all(one != other for one, other in pairwise(layouts)), "sent again only when something in it is different"
        assert client.wait_for("welcome")["pid"] == os.getpid()


def test_a_client_that_comes_later_begins_with_the_layout_too(good: BareClient, path: Path) -> None:
    goes_on(good)
    with BareClient(path) as late:
        late.hello().wait_for("reading")
        assert late.wait_for("layout")["keys"] == good.wait_for("layout")["keys"]


def test_what_any_client_wants_is_read(good: BareClient, path: Path) -> None:
    with BareClient(path) as other:
        other.hello(metrics=["load.5m"]).wait_for("reading")
        wait_for(lambda: good.receive() and good.wait_for("layout")["keys"] == ["load.1m", "load.5m"])


def test_nothing_is_read_while_there_is_no_client(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Snapshot] = []
    encode = Encoder.encode

    def count(encoder: Encoder, snapshot: Snapshot, began: float, ended: float) -> None:
        taken.append(snapshot)
        encode(encoder, snapshot, began, ended)

    monkeypatch.setattr(Encoder, "encode", count)
    with serving(path) as server:
        idle(0.1)
        assert not taken
        with BareClient(path) as client:
            client.hello().wait_for("reading", 2)
        wait_for(lambda: not server.clients)
        before = len(taken)
        idle(0.2)
        assert len(taken) <= before + 1, "one may have begun before it left"


def test_the_fastest_client_sets_the_pace_and_others_keep_their_own(path: Path) -> None:
    with serving(path), BareClient(path) as slow, BareClient(path) as fast:
        slow.hello(interval=0.2)
        slow.wait_for("reading")
        fast.hello(interval=0.02).wait_for("reading", 60)
        slow.wait_for("reading", 3)
        assert sum(message["type"] == "reading" for message in slow.got) < 30


def test_a_reading_that_is_asked_for_begins_afterwards(path: Path) -> None:
    with serving(path), BareClient(path) as client:
        first = client.hello(interval=3600.0).wait_for("reading")
        client.socket.sendall(frame({"type": "read"}))
        assert client.wait_for("reading", 2)["began"] > first["ended"]


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        LENGTH.pack(2**31) + b"x",
        LENGTH.pack(2**32 - 1),
        LENGTH.pack(4) + b"null",
        LENGTH.pack(3) + b"NaN",
        LENGTH.pack(60_000) + b"[" * 60_000,
        frame({"type": "hello"}),
        frame({"type": "hello", "protocol": PROTOCOL, "interval": 1e-9}),
        frame({"type": "hello", "protocol": PROTOCOL, "interval": 1e300}).replace(b"1e+300", b"1e+999"),
        frame({"type": "hello", "protocol": PROTOCOL, "interval": 1.0, "job": "x" * 5000}),
    ],
    ids=["http", "2^31", "2^32-1", "null", "nan", "nested", "no-fields", "interval", "infinite-interval", "long-text"],
)
def test_a_client_that_says_no_hello_is_hung_up_on(good: BareClient, path: Path, said: bytes) -> None:
    with BareClient(path) as bad:
        bad.socket.sendall(said)
        assert bad.is_hung_up_on()
    assert goes_on(good)


@pytest.mark.parametrize(
    "said",
    [
        LENGTH.pack(2**31),
        LENGTH.pack(2) + b"{}",
        frame({"type": "messages", "messages": 3}),
        frame({"type": "messages", "messages": ["x" * 5000]}),
        frame({"type": "devices", "devices": list(range(2000))}),
        frame({"type": "reading"}),
    ],
    ids=["long", "no-type", "no-list", "long-message", "devices", "reading"],
)
def test_a_client_that_says_nonsense_later_is_hung_up_on(good: BareClient, path: Path, said: bytes) -> None:
    with BareClient(path) as bad:
        bad.hello().wait_for("reading")
        bad.socket.sendall(said)
        assert bad.is_hung_up_on()
    assert goes_on(good)


def test_a_client_that_says_half_a_hello_is_hung_up_on_in_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_server, "HELLO_TIMEOUT", 0.05)
    with serving(path), BareClient(path) as bad:
        bad.socket.sendall(frame({"type": "hello"})[:7])
        assert bad.is_hung_up_on()


def test_a_client_that_takes_nothing_is_hung_up_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_server, "SLOW", 0.2)
    with serving(path) as server, BareClient(path) as slow, BareClient(path) as good:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.hello(interval=0.01, metrics=["all"]).wait_for("welcome")
        good.hello(interval=0.01, metrics=["all"]).wait_for("reading")
        while len(server.clients) == 2:
            assert good.receive()
        assert goes_on(good)


def test_ten_thousand_connections_cost_the_others_nothing(good: BareClient, path: Path) -> None:
    with ExitStack() as stack:
        for number in range(10_000):
            try:
                connection = stack.enter_context(connected(str(path)))
            except BlockingIOError:  # more wait already than the system keeps
                assert goes_on(good)
                continue
            if number % 100:
                connection.close()
        assert goes_on(good)


def test_the_oldest_that_has_said_nothing_makes_room(good: BareClient, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_server, "MOST_CLIENTS", 3)
    with BareClient(path) as first, BareClient(path) as second, BareClient(path) as third:
        third.hello().wait_for("reading")
        assert first.is_hung_up_on()
        second.hello().wait_for("reading")
        assert goes_on(good)


def test_one_process_has_so_many_connections(good: BareClient, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_server, "MOST_OF_PROCESS", 2)
    with BareClient(path) as second, BareClient(path) as third:
        second.hello().wait_for("reading")
        assert third.is_hung_up_on()
        assert goes_on(good)


def test_another_user_is_not_let_in(path: Path) -> None:
    server = NodeServer(listening(str(path)), {"backends": ["host"]}, lambda peer: peer.uid == os.geteuid() + 1)
    server.start()
    with BareClient(path) as client:
        assert client.is_hung_up_on()
    server.close()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"protocol": PROTOCOL + 1, "release": "9.9"}, f"speaks protocol {PROTOCOL}, not {PROTOCOL + 1} of 9.9"),
        ({"backends": None}, "other backends: ['host']"),
        ({"disk_paths": ["/data"]}, "other disk_paths: ['/']"),
    ],
    ids=["protocol", "backends", "paths"],
)
def test_a_client_that_cannot_take_part_is_told_why(good: BareClient, path: Path, other: dict[str, object], words: str) -> None:
    with BareClient(path) as client:
        assert words in client.hello(**other).wait_for("refused")["why"]
        assert client.is_hung_up_on()
    assert goes_on(good)


def test_messages_reach_the_others_of_the_job(path: Path) -> None:
    with serving(path), BareClient(path) as one, BareClient(path) as two, BareClient(path) as stranger:
        for client, job in ((one, "a"), (two, "a"), (stranger, "b")):
            client.hello(job=job).wait_for("reading")
        one.socket.sendall(frame({"type": "messages", "messages": [{"step": 1}, {"step": 2}]}))
        assert two.wait_for("messages")["messages"] == [{"step": 1}, {"step": 2}]
        stranger.socket.sendall(frame({"type": "read"}))
        goes_on(stranger)
        goes_on(one)
        assert not [message for message in (*stranger.got, *one.got) if message["type"] == "messages"]


def test_too_many_messages_are_dropped_and_counted(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_server, "MOST_MESSAGES", 3)
    with serving(path), BareClient(path) as one, BareClient(path) as two:
        two.hello().wait_for("reading")
        one.hello().wait_for("reading")
        one.socket.sendall(frame({"type": "messages", "messages": list(range(10))}))
        got = two.wait_for("messages")
        assert (got["messages"], got["dropped"]) == ([7, 8, 9], 7)


def test_one_that_says_much_holds_up_no_other(good: BareClient, path: Path) -> None:
    with BareClient(path) as loud:
        loud.hello(job="loud").wait_for("reading")
        loud.socket.setblocking(False)
        said = frame({"type": "messages", "messages": ["x" * 1000] * 200})
        for _ in range(50):
            try:
                loud.socket.send(said)
            except BlockingIOError:
                break
        assert goes_on(good)


def test_the_processes_of_a_job_know_which_devices_they_see_together(path: Path) -> None:
    with serving(path), BareClient(path) as one, BareClient(path) as two:
        one.hello().wait_for("reading")
        two.hello().wait_for("reading")
        one.socket.sendall(frame({"type": "devices", "devices": ["GPU-0"]}))
        two.socket.sendall(frame({"type": "devices", "devices": ["GPU-1"]}))
        wait_for(lambda: one.receive() and sorted(one.wait_for("job")["devices"]) == ["GPU-0", "GPU-1"])
        assert one.wait_for("job")["processes"] == 2


def test_a_server_that_fails_says_why_and_ends(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(Encoder, "encode", fail)
    with serving(path), BareClient(path) as client:
        assert client.hello().is_hung_up_on()
        wait_for(lambda: "readings are shared no longer" in caplog.text)
    assert "a mistake of ours" in caplog.text


@pytest.mark.parametrize(
    ("selections", "wanted"),
    [
        ([("core",), ("core",)], ("core",)),
        ([("core", "-temp"), ("core", "-temp")], ("core", "-temp")),
        ([("core",), ("powerWatts",)], ("core", "powerWatts")),
        ([("core", "-temp"), ("temp",)], ("core", "temp")),
        ([("-temp",), ("core",)], ("all",)),
        ([("all",), ("core",)], ("all",)),
    ],
    ids=["same", "same-excluded", "two", "excluded", "all-but", "all"],
)
def test_the_union_of_selections(selections: list[tuple[str, ...]], wanted: tuple[str, ...]) -> None:
    assert union(selections) == wanted
