"""Gauges, read back from Etsy's own StatsD."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from accelmetrics.exporters.statsd import MAX_PACKET, StatsdExporter, packets_of
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot
from accelmetrics.schemas.record import MonitorStatus, Record, Step
from accelmetrics.schemas.snapshot import Snapshot
from tests.exporters.receivers import Statsd, statsd
from tests.records import record, unknown
from tests.support.exporting import export, exporting
from tests.support.network import free_port
from tests.support.waiting import HANG, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Statsd]:
    with statsd(tmp_path_factory.mktemp("statsd")) as running:
        yield running


def sent_to(server: Statsd, sent: Record, options: str) -> dict[str, float]:
    """The server's gauges after a record, none of an earlier one among them."""
    server.ask("delgauges *")
    export(f"statsd:127.0.0.1:{server.port}?{options}", sent)
    wait_for(lambda: "queued" in " ".join(server.gauges()))  # the last line of a record with a monitor's state
    return server.gauges()


@pytest.mark.servers
def test_every_number_is_a_gauge_with_its_key(server: Statsd) -> None:
    """Each key is a gauge under the prefix, the program's and the monitor's numbers too, and the server finds no bad line."""
    sent = record(8)
    found = sent_to(server, sent, "prefix=lab.{hostname}")
    head = f"lab.{sent.snapshot.hostname.replace('.', '_')}"
    assert found[f"{head}.gpu.0.powerWatts"] == 300.0
    assert found[f"{head}.gpu.7.memoryAllocatedBytes"] == 8 * 2**30
    assert found[f"{head}.disk.-.usageGB"] == 10.5
    assert found[f"{head}.training.learning_rate"] == 3e-4
    assert found[f"{head}.monitor.exporter.jsonl.dropped"] == 1
    assert f"{head}.gpu.1.fanSpeed" not in found
    assert len([name for name in found if ".gpu." in name or ".disk." in name]) == len(sent.snapshot.metrics) - 4
    assert server.counter("statsd.bad_lines_seen") == 0


@pytest.mark.servers
def test_negative_numbers_are_set_not_added(server: Statsd) -> None:
    """A sign makes StatsD add; after falling twice a negative gauge still shows the number that was measured."""
    base = record(1)
    for value in (-5.0, -7.5, 3.0, -1e-07):
        taken = Snapshot(1, "h", {"cpu.avg_temp": value, "gpu.0.temp": 40}, base.snapshot.identities)
        found = sent_to(server, Record(taken, monitor=base.monitor), "")
        assert found["accelmetrics.cpu.avg_temp"] == value
        export(StatsdExporter(f"127.0.0.1:{server.port}"), Record(taken, monitor=MonitorStatus(1.0, ticks=99)))
        wait_for(lambda: server.gauges()["accelmetrics.monitor.ticks"] == 99)
        assert server.gauges()["accelmetrics.cpu.avg_temp"] == value


@pytest.mark.servers
def test_tags_tell_the_devices_apart(server: Statsd) -> None:
    """With Datadog's tags a device's number is no longer part of the name, and eight GPUs stay eight series."""
    found = sent_to(server, record(8), "tags=datadog")
    power = {name: value for name, value in found.items() if name.startswith("accelmetrics.gpu.powerWatts;")}
    assert sorted(power.values()) == [70.0] + [300.0] * 7
    second = next(name for name in power if ";accelerator=gpu.1;" in name)
    assert ";uuid=GPU-5cf1a7ed-0000-4000-8000-000000000001;" in second
    assert ";run_id=20260101-abc" in second and ";rank=0" in second
    assert any(name.startswith("accelmetrics.cpu;host=") for name in found)
    assert server.counter("statsd.bad_lines_seen") == 0


@pytest.mark.servers
def test_a_peer_that_comes_back_is_found_again(server: Statsd) -> None:
    """While no server listens the kernel says so, as something that passes; once one does, records arrive."""
    port = free_port(socket.SOCK_DGRAM)
    with exporting(StatsdExporter(f"127.0.0.1:{port}")) as exporter:
        with pytest.raises(ConnectionRefusedError, match=rf"127\.0\.0\.1:{port}: Connection refused"):
            for _ in range(5):
                exporter.export(record(1))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
            listener.bind(("127.0.0.1", port))
            listener.settimeout(HANG)
            exporter.export(record(1))
            assert listener.recv(65536).startswith(b"accelmetrics.gpu.0.gpu:85.5|g\n")


def test_a_descriptor_that_is_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    """A program that closed all descriptors has files of its own under the same numbers: they are neither written to nor closed."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener, (tmp_path / "foreign").open("w+b") as foreign:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(HANG)
        taken: list[int] = []

        def take() -> None:
            assert exporter._socket is not None
            taken.append(exporter._socket.fileno())
            os.dup2(foreign.fileno(), taken[-1])

        with exporting(StatsdExporter(f"127.0.0.1:{listener.getsockname()[1]}")) as exporter:
            exporter.export(record(1))
            take()
            exporter.export(record(1))
            assert exporter._socket is not None
            os.close(exporter._socket.fileno())
            exporter.export(record(1))
            take()
        for number in taken:
            assert os.path.sameopenfile(number, foreign.fileno())
            os.close(number)
        assert foreign.read() == b""
        for _ in range(3):
            assert listener.recv(65536).startswith(b"accelmetrics.gpu.0.gpu:85.5|g\n")


def test_the_next_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no server listens on a name's first address, as on that of IPv6 for ``localhost``, the record reaches the other one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(HANG)
        port = listener.getsockname()[1]
        found = [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (host, port)) for host in ("127.0.0.9", "127.0.0.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        with exporting(StatsdExporter(f"localhost:{port}")) as exporter:
            with pytest.raises(ConnectionRefusedError, match=rf"localhost:{port}: Connection refused"):
                for _ in range(5):
                    exporter.export(record(1))
            exporter.export(record(1))
            assert listener.recv(65536).startswith(b"accelmetrics.gpu.0.gpu:85.5|g\n")


def test_an_address_of_version_6_is_reached() -> None:
    """In brackets, as everywhere."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as listener:
        try:
            listener.bind(("::1", 0))
        except OSError:
            pytest.skip("platform: has no IPv6")
        listener.settimeout(HANG)
        exporter = StatsdExporter(f"[::1]:{listener.getsockname()[1]}")
        exporter.export(record(1))
        assert listener.recv(65536).startswith(b"accelmetrics.gpu.0.gpu:85.5|g\n")
        exporter.close()


def test_a_large_record_travels_in_several_packets() -> None:
    """Eight GPUs do not fit into one packet: each is nearly full, none is larger than a network carries whole."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(HANG)
        exporter = StatsdExporter(f"127.0.0.1:{listener.getsockname()[1]}", tags="datadog")
        exporter.export(record(8))
        exporter.close()
        sizes = []
        while b"exporter.jsonl.queued" not in (packet := listener.recv(65536)):
            sizes.append(len(packet))
    assert len(sizes) > 5 and max(sizes) <= MAX_PACKET < min(sizes) + 250


def test_a_host_that_is_not_found_passes() -> None:
    """A name that does not resolve is an error of the network, so that the record is offered again."""
    exporter = StatsdExporter("no-such-host.invalid:8125")
    with pytest.raises(OSError, match=r"no-such-host\.invalid:8125: the host 'no-such-host\.invalid' is not found: \w"):
        exporter.open()
    exporter.close()
    with pytest.raises(OSError, match=r"a\.\.b:8125: \w"):
        StatsdExporter("a..b").open()
    with pytest.raises(OSError, match="invalid:8125"):
        exporter.export(record(1))


@pytest.mark.parametrize("address", ["host:", "host:0", "host:65536", "host:x", "[::1]:x", "::1", "[::1", "a:b:c", "0"])
def test_an_address_that_cannot_be_read_is_said_at_once(address: str) -> None:
    """So is anything else than HOST:PORT."""
    with pytest.raises(InvalidOptionError, match=r"HOST:PORT|give the port of a server"):
        StatsdExporter(address)


TEXT = st.text(max_size=600)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70)


@given(st.dictionaries(TEXT, NUMBERS, max_size=30), st.dictionaries(TEXT, TEXT, max_size=8))
def test_packets_are_whole_lines_of_bounded_size(numbers: dict[str, float], labels: dict[str, str]) -> None:
    """Whatever names, numbers and labels there are: no packet is larger than a network carries whole, and no line is cut."""
    found = [packet.split(b"\n") for packet in packets_of(Record(Snapshot(1, "h", numbers), labels), "x", tagged=True)]
    lines = iter([line for packet in found for line in packet])
    assert all(len(b"\n".join(packet)) <= MAX_PACKET or len(packet) == 2 for packet in found)
    assert not [packet for packet in found if b":-" in packet[0].partition(b"|g")[0]]  # its zero would be in another packet
    for value in numbers.values():
        if math.copysign(1, value) < 0:
            name, _, tail = next(lines).partition(b":0|g")
        line = next(lines)
        if math.copysign(1, value) < 0:
            assert line.startswith(name + b":-") and line.endswith(b"|g" + tail)
        name, _, rest = line.partition(b":")
        assert float(rest.partition(b"|g")[0]) == float(value)
        assert len(line) <= MAX_PACKET and not set(name) & set(b"|@# ")
    assert not [*lines]


def test_odd_numbers_are_written_plainly() -> None:
    """A zero stands before each sign, few numbers have an exponent, and a tag keeps no space: byte for byte."""
    values = -5, 0, -0.0, 2**64, 1e-07, -1e-07, 1e16, 10**35, 10**36, -(10**35), 2.5
    numbers = dict(zip("abcdefghijk", values, strict=True))
    plain = [
        *("a:0|g", "a:-5|g", "b:0|g", "c:0|g", "c:-0.0|g", "d:18446744073709551616|g", "e:0.0000001|g", "f:0|g", "f:-0.0000001|g"),
        *("g:10000000000000000|g", f"h:{10**35}|g", "i:1e+36|g", "j:0|g", "j:-1e+35|g", "k:2.5|g"),
    ]
    for one, tags in (({}, ""), ({"team": "a b,c"}, "|#host:n,team:a_b_c")):
        record_of = Record(Snapshot(1, "n", numbers), one)
        assert [*packets_of(record_of, "", tagged=bool(tags))] == ["\n".join([line + tags for line in plain]).encode()]


SLOTS = [DeviceSlot(f"gpu.{number}", number, None, DeviceIdentity("gpu", "nvidia", number, "H 100%", f"GPU-{number}")) for number in (0, 1)]
METRICS = st.dictionaries(
    st.sampled_from([f"gpu.{number}.m{name}" for number in (0, 1) for name in range(30)] + ["cpu", "disk./%s.x"]), NUMBERS
)
USUAL = st.fixed_dictionaries({f"gpu.{number}.{'m' * 40}{name}": st.floats(0, 1e6) for number in (0, 1) for name in range(30)})
RECORDS = st.builds(
    Record,
    st.builds(Snapshot, st.just(1), st.sampled_from(["node.a", "node.b"]), METRICS | USUAL, st.sampled_from([(), SLOTS])),
    st.dictionaries(st.sampled_from(["rank", "team%d"]), st.text(max_size=5)),
    st.just(()) | st.just((Step(1, 7, {"loss": -0.5, "odd": float("nan")}, 3, "node.c"),)),
    st.none() | st.just(MonitorStatus(1.0)),
)


@settings(max_examples=50, deadline=None)
@example([Record(Snapshot(1, "node.a", {"cpu": number})) for number in (1.5, -0.0, 1e-7, 1e16, 10**35, 10**36, 10**40, 2)], True)
@given(st.lists(RECORDS, min_size=1, max_size=5), st.booleans())
def test_what_is_kept_is_what_would_be_made_anew(several: list[Record], tagged: bool) -> None:
    """Whatever records follow each other, packets are, byte for byte, those of the first record of its kind."""
    for one in several:
        assert list(packets_of(one, "lab.{hostname}", tagged)) == list(packets_of(unknown(one), "lab.{hostname}", tagged))


@pytest.mark.parametrize(("more", "full"), [(0, True), (1, False)])
def test_a_packet_is_filled_to_its_last_byte(more: int, full: bool) -> None:
    """Lines that come to just what a network carries whole are one packet; a byte more, and one of them is in the next."""
    lengths = [350, 350, 350, MAX_PACKET - 3 * 350 - len("\n") * 3 + more]
    names = [letter * (length - len(":1|g")) for letter, length in zip("abcd", lengths, strict=True)] + ["e"]
    one = Record(Snapshot(1, "node", dict.fromkeys(names, 1)))
    found = list(packets_of(one, "", tagged=False))
    assert [len(packet) == MAX_PACKET for packet in found] == [full, False]
    assert b"\n".join(found).split(b"\n") == [f"{name}:1|g".encode() for name in names]
