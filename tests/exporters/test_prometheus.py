"""The scrape endpoint: what it serves, when it refuses to, and how it begins and ends."""

from __future__ import annotations

import gzip
import http.client
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from accelmetrics import Sampler, Snapshot
from accelmetrics.dialects import registry as dialects
from accelmetrics.dialects.contract import Dialect, Point
from accelmetrics.dialects.prometheus import PROMETHEUS
from accelmetrics.exporters import registry
from accelmetrics.exporters.http.server import HttpAnswer, Route
from accelmetrics.exporters.network import Address
from accelmetrics.exporters.prometheus import PORT, PrometheusExporter
from accelmetrics.exporters.scrape_cache import ScrapeCache
from accelmetrics.exporters.textfile import TextfileExporter
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.record import Finding, Findings, MonitorStatus, Record, Step
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.schemas.snapshot import Device
from accelmetrics.testing import FakeClock
from tests.records import machine, record
from tests.support.exporting import exporting
from tests.support.threads import own_threads
from tests.support.waiting import HANG

Answered = tuple[int, Mapping[str, str], bytes]


@pytest.fixture
def exporter() -> Iterator[PrometheusExporter]:
    """An open endpoint on a free port."""
    made = PrometheusExporter("127.0.0.1:0")
    made.open()
    yield made
    made.close()


def ask(exporter: PrometheusExporter, path: str = "/metrics", method: str = "GET", **headers: str) -> Answered:
    """Status, headers by lower-case name and body of one request."""
    connection = http.client.HTTPConnection(exporter.address.host, exporter.address.port, timeout=HANG)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def lines(exporter: PrometheusExporter) -> dict[str, str]:
    """The series of a scrape and their values."""
    _, _, body = ask(exporter)
    return dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#"))


# What is served


def test_the_latest_record_is_served(exporter: PrometheusExporter) -> None:
    """A scrape has the values of the last record, as plain text without timestamps."""
    exporter.export(record(1))
    exporter.export(record(2))
    status, headers, body = ask(exporter)
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert headers["x-content-type-options"] == "nosniff"
    assert int(headers["content-length"]) == len(body)
    assert body.count(b"\naccel_power_watts{") == 2
    assert lines(exporter)["accelmetrics_up"] == "1.0"


def test_openmetrics_is_served_where_it_is_preferred(exporter: PrometheusExporter) -> None:
    """By the Accept header, ended as that format demands."""
    exporter.export(record())
    _, headers, body = ask(exporter, Accept="application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert body.endswith(b"# EOF\n")


def test_gzip_is_used_where_it_is_accepted(exporter: PrometheusExporter) -> None:
    """The packed body is the same text, and smaller."""
    exporter.export(record())
    _, _, plain = ask(exporter)
    for _ in range(2):  # written, then served as it was written
        _, headers, packed = ask(exporter, Accept_Encoding="gzip")
        assert headers["content-encoding"] == "gzip"
        assert gzip.decompress(packed) == plain
    assert len(packed) < len(plain) / 3


def test_head_has_the_headers_alone(exporter: PrometheusExporter) -> None:
    """The length is that of the body that GET would have had."""
    exporter.export(record())
    _, full, _ = ask(exporter)
    status, headers, body = ask(exporter, method="HEAD")
    assert (status, headers["content-length"], body) == (200, full["content-length"], b"")


def test_a_snapshot_is_served_as_json(exporter: PrometheusExporter) -> None:
    """It is the document that ``dump --json`` prints, and reads back equal."""
    assert ask(exporter, "/api/snapshot")[0] == 503
    what = record()
    exporter.export(what)
    status, headers, body = ask(exporter, "/api/snapshot?pretty=no")
    assert (status, headers["content-type"]) == (200, "application/json")
    assert Snapshot.from_dict(json.loads(body)) == what.snapshot
    packed = ask(exporter, "/api/snapshot", Accept_Encoding="gzip")[2]
    assert gzip.decompress(packed) == body


def test_probes_tell_alive_from_ready(exporter: PrometheusExporter) -> None:
    """It is healthy at once, and ready from the first record that holds a value."""
    assert ask(exporter, "/-/healthy")[0] == 200
    assert ask(exporter, "/-/ready")[0] == 503
    exporter.export(Record(Snapshot(time.time_ns(), "node-1", {})))
    assert ask(exporter, "/-/ready")[0] == 503
    exporter.export(record())
    assert ask(exporter, "/-/ready")[0] == 200
    exporter.export(Record(Snapshot(time.time_ns(), "node-1", {})))
    assert ask(exporter, "/-/ready")[0] == 200


def test_other_paths_and_methods_are_refused(exporter: PrometheusExporter) -> None:
    """404 names where to look, 405 what is allowed; the connection stays usable."""
    connection = http.client.HTTPConnection(exporter.address.host, exporter.address.port, timeout=HANG)
    for method, path, status in (("GET", "/nothing", 404), ("DELETE", "/metrics", 405), ("OPTIONS", "/", 405), ("GET", "/", 200)):
        connection.request(method, path)
        answer = connection.getresponse()
        assert (answer.status, b"/metrics" in answer.read()) == (status, status == 200)
    assert answer.headers["Content-Type"].startswith("text/html")
    connection.close()
    assert ask(exporter, method="POST", Content_Length="0")[1]["allow"] == "GET, HEAD"


class Foreign(Dialect):
    """A dialect of a plug-in."""

    name = "foreign"
    summary = "a plug-in's"

    def points(self, record: Record) -> list[Point]:
        return [Point("gpu.power", record.snapshot.metrics["gpu.0.powerWatts"], {"GPU": "0"})]


FOREIGN = Foreign()


@pytest.mark.parametrize("wanted", ["foreign", f"{__name__}:FOREIGN", FOREIGN], ids=["name", "attribute", "object"])
def test_another_dialect_can_be_served(wanted: str | Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its names are made legal; how the tool and the devices fare is told under our own names all the same."""
    monkeypatch.setitem(dialects.BUILT_IN, "foreign", f"{__name__}:FOREIGN")
    with exporting(PrometheusExporter("127.0.0.1:0", dialect=wanted)) as exporter:
        exporter.export(record())
        found = lines(exporter)
    assert found['gpu_power{GPU="0"}'] == "300.0"
    assert found["accelmetrics_up"] == "1.0"
    assert not [name for name in found if name.startswith("accel_power")]
    with pytest.raises(UnknownNameError, match="Did you mean 'prometheus'"):
        PrometheusExporter(dialect="promethius")


def test_a_dialect_is_chosen_in_a_string_by_name_or_attribute(tmp_path: Path) -> None:
    """The words of an exporter's string form reach the registry of dialects as they are."""
    for word in ("dcgm", f"{__name__}:FOREIGN"):
        registry.create(f"textfile:{tmp_path / 'now.prom'}?dialect={word}")
    with pytest.raises(InvalidOptionError, match="the dialect 'nowhere:RACK' could not be loaded"):
        registry.create(f"textfile:{tmp_path / 'now.prom'}?dialect=nowhere:RACK")


def pod_of(device: Device) -> Mapping[str, str]:
    """The first GPU is given to a pod."""
    return {"pod": "train-0", "namespace": "ml", "container": "main"} if device.index == 0 else {}


@pytest.mark.parametrize(
    ("dialect", "name"), [("dcgm", "DCGM_FI_DEV_POWER_USAGE"), ("amd", "gpu_power_usage"), ("prometheus", "accel_job_info")]
)
def test_who_uses_a_device_stands_on_its_series(dialect: str, name: str) -> None:
    """The function is asked of each device of a record; one of which it says nothing has none of the labels."""
    cache = ScrapeCache(dialect, device_labels=pod_of)
    cache.take(record(2))
    served = [line for line in cache.metrics().decode().splitlines() if line.startswith(f"{name}{{")]
    given = [line for line in served if 'pod="train-0"' in line and 'namespace="ml"' in line and 'container="main"' in line]
    assert len(given) == 1
    assert [line for line in served if line not in given and "pod=" in line] == []
    assert len(served) == (1 if name == "accel_job_info" else 2)


def test_labels_are_made_texts() -> None:
    """A number is one; what says nothing is left out."""

    def job_of(_: Device) -> Mapping[str, str]:
        return {"job": 4711, "pod": None}  # type: ignore[dict-item]

    cache = ScrapeCache("prometheus", device_labels=job_of)
    cache.take(record(1))
    (served,) = [line for line in cache.metrics().decode().splitlines() if line.startswith("accel_job_info{")]
    assert 'job="4711"' in served
    assert "pod=" not in served


def test_whose_a_process_is_stands_on_its_info_alone() -> None:
    """The function is asked of the processes that are served, once for each; it changes no label that says which series it is."""
    asked: list[list[int]] = []

    def whose(snapshot: Snapshot, pids: Sequence[int]) -> dict[int, dict[str, str]]:
        assert snapshot.processes
        asked.append(list(pids))
        return {7: {"user": "anna", "pod": "", "pid": "0"}, 9: {"user": 'bo"b\n'}}

    backend = machine()
    backend.device(0).run(DeviceProcess(7, "compute", 2**30), DeviceProcess(8, "", 2**20), DeviceProcess(9, "", 2**31))
    backend.device(1).run(DeviceProcess(7, "", 2**29))
    with Sampler([backend], timeout=HANG) as sampler:
        taken = sampler.sample()
    cache = ScrapeCache("prometheus", processes=3, process_labels=whose)
    cache.take(Record(taken))
    served = [line for line in cache.metrics().decode().splitlines() if line.startswith("accel_process_")]
    assert asked == [[9, 7]]
    info = [line for line in served if line.startswith("accel_process_info{")]
    assert len(info) == 3
    assert [line.count('user="anna"') for line in info if 'pid="7"' in line] == [1, 1]
    assert [line.count('user="bo\\"b\\n"') for line in info if 'pid="9"' in line] == [1]
    assert not any("user=" in line for line in served if line not in info)
    assert not any("pod=" in line or 'pid="0"' in line for line in served)
    none = ScrapeCache("prometheus", process_labels=whose)
    none.take(Record(taken))
    assert len(asked) == 1


def test_what_is_not_selected_is_not_down() -> None:
    """A device of which nothing is wanted stays up while it is listed, and so does the whole of a reading without a value."""
    cache = ScrapeCache("prometheus")
    taken = record(2).snapshot.selected(MetricSelection("gpu.0.*"))
    cache.take(Record(taken))
    served = cache.metrics().decode().splitlines()
    assert [line.rpartition(" ")[2] for line in served if line.startswith("accel_up{")] == ["1.0", "1.0"]
    nothing = ScrapeCache("prometheus")
    nothing.take(Record(taken.selected(MetricSelection("tpu.0.temp"))))
    assert nothing.ready
    assert "accelmetrics_up 1" in nothing.metrics().decode()


def test_a_function_that_fails_costs_the_labels_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What passes by itself is logged once; any other error is the exporter's. Either way the record is served."""

    def away(device: Device) -> Mapping[str, str]:
        raise ConnectionRefusedError("the kubelet is away")

    def wrong(device: Device) -> Mapping[str, str]:
        raise KeyError(device.key)

    cache = ScrapeCache("dcgm", device_labels=away)
    for _ in range(2):
        cache.take(record())
    assert b"DCGM_FI_DEV_POWER_USAGE" in cache.metrics()
    assert [line.message for line in caplog.records] == ["labels of the devices' users are incomplete: the kubelet is away"]
    path = tmp_path / "now.prom"
    written = TextfileExporter(path, dialect="dcgm", device_labels=wrong)
    with pytest.raises(KeyError):
        written.export(record())
    assert "DCGM_FI_DEV_POWER_USAGE" in path.read_text()


def test_routes_can_be_added() -> None:
    """What stands in ``routes`` before the endpoint is opened is served beside the rest."""
    exporter = PrometheusExporter("127.0.0.1:0")
    exporter.routes.append(("/more", Route, {"compute": lambda request: HttpAnswer(request.query.encode())}))
    with exporting(exporter):
        assert ask(exporter, "/more?a=b")[2] == b"a=b"


def test_what_the_program_logged_last_stays(exporter: PrometheusExporter) -> None:
    """A scrape between two steps still sees the loss of the last one."""
    first, then = record(), record(steps=False)
    exporter.export(first)
    exporter.export(then._replace(steps=(Step(1, 8, {"accuracy": 0.5}),)))
    exporter.export(then)
    found = lines(exporter)
    assert (found["training_loss"], found["training_accuracy"], found["training_step"]) == ("0.25", "0.5", "8.0")


# What is not


def test_before_the_first_record_nothing_is_up(exporter: PrometheusExporter) -> None:
    """The endpoint answers, and says that it has nothing."""
    assert lines(exporter)["accelmetrics_up"] == "0.0"


def test_old_values_are_never_served_as_fresh() -> None:
    """A record older than max_age leaves every device down under its own labels, and no measurement; a new one mends that."""
    with exporting(PrometheusExporter("127.0.0.1:0", max_age=3600)) as exporter:
        exporter.export(record())
        before = lines(exporter)
        old = record()
        old.snapshot.time_ns -= 3601 * 10**9
        exporter.export(old)
        after = lines(exporter)
        assert {name for name in after if name.startswith("accel_")} == {name for name in before if name.startswith("accel_up")}
        assert {value for name, value in after.items() if name.startswith("accel_up")} == {"0.0"}
        assert after["accelmetrics_up"] == "0.0"
        assert after["accelmetrics_ticks_total"] == "10.0"
        assert not [name for name in after if name.startswith("training")]
        assert ask(exporter, "/api/snapshot")[0] == 503
        exporter.export(record())
        assert lines(exporter).keys() == before.keys()


@pytest.mark.parametrize(
    ("interval", "age", "fresh"), [(1.0, 4.9, True), (1.0, 5.1, False), (10.0, 20.9, True), (10.0, 21.1, False), (None, 4.9, True)]
)
@pytest.mark.parametrize("set_back", [False, True], ids=["clock goes on", "clock is set back"])
def test_how_old_is_too_old_follows_the_interval(interval: float | None, age: float, fresh: bool, set_back: bool) -> None:
    """Two intervals and a second, and never less than five seconds; a record that seems to come from the future grows old all the same."""
    clock = FakeClock()
    cache = ScrapeCache("prometheus", clock=clock)
    snapshot = Snapshot(clock.time_ns() + set_back * 3600 * 10**9, "node-1", {"cpu": 1.0})
    cache.take(Record(snapshot, monitor=None if interval is None else MonitorStatus(interval)))
    assert cache.snapshot() is not None
    clock.advance(age)
    assert (cache.snapshot() is not None) == (b"\naccelmetrics_up 1.0\n" in cache.metrics()) == fresh


def test_a_machine_that_slept_has_no_fresh_values() -> None:
    """The monotonic clock stands meanwhile, the wall clock does not."""
    clock = FakeClock()
    cache = ScrapeCache("prometheus", clock=clock)
    cache.take(Record(Snapshot(clock.time_ns() - 3600 * 10**9, "node-1", {"cpu": 1.0})))
    assert cache.snapshot() is None


# Beginning and end


def test_it_can_be_opened_again_on_the_same_port() -> None:
    """After close the port is free at once, even with a client connected, and nothing of before is served."""
    exporter = PrometheusExporter("127.0.0.1:0")
    exporter.open()
    exporter.export(record())
    port = exporter.address.port
    again = PrometheusExporter(str(port))
    with socket.create_connection(exporter.address) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        exporter.close()
        again.open()
    assert lines(again)["accelmetrics_up"] == "0.0"
    again.export(record())
    assert lines(again)["accelmetrics_up"] == "1.0"
    with exporting(again):
        assert lines(again)["accelmetrics_up"] == "0.0"
    with pytest.raises(ConnectionRefusedError):
        ask(again)


def test_close_leaves_nothing_behind() -> None:
    """No thread, no file: after twenty rounds with clients in every state there are as many as after the first."""

    def round_trip() -> None:
        exporter = PrometheusExporter("127.0.0.1:0")
        exporter.open()
        exporter.export(record())
        with socket.create_connection(exporter.address), socket.create_connection(exporter.address) as half:
            half.sendall(b"GET /metr")
            assert lines(exporter)
            exporter.close()
            exporter.close()

    round_trip()
    files = psutil.Process().num_fds()
    for _ in range(20):
        round_trip()
    assert own_threads("accelmetrics-http") == []
    assert psutil.Process().num_fds() <= files


@pytest.mark.skipif(not hasattr(os, "fork"), reason="platform: no fork")
def test_a_forked_child_does_not_keep_the_port(exporter: PrometheusExporter) -> None:
    """A data loader's worker that outlives the endpoint holds neither its port nor its clients, and may close it without harm."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        exporter.close()
        os.write(writer, b"x")
        signal.pause()
    try:
        assert os.read(reader, 1) == b"x"
        assert lines(exporter)
        port = exporter.address.port
        exporter.close()
        with pytest.raises(ConnectionRefusedError):
            ask(exporter)
        with socket.create_server(("127.0.0.1", port)):
            pass
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)


def test_other_machines_are_let_in_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """One line says that other machines can read; on loopback there is none."""
    for address, said in (("0.0.0.0:0", 1), ("127.0.0.1:0", 0), ("localhost:0", 0)):
        caplog.clear()
        exporter = PrometheusExporter(address)
        with caplog.at_level(logging.WARNING, "accelmetrics"):
            exporter.open()
        exporter.close()
        assert [message.count("without TLS or a password") for message in caplog.messages] == [1] * said


# Options


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9000", ("127.0.0.1", 9000)),
        ("9000", ("127.0.0.1", 9000)),
        (":9000", ("127.0.0.1", 9000)),
        ("0.0.0.0", ("0.0.0.0", PORT)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:9000", ("::1", 9000)),
        ("[::]", ("::", PORT)),
    ],
)
def test_addresses_are_read(text: str, address: tuple[str, int]) -> None:
    """What is left out is loopback, or our own port."""
    assert Address.parse(text, PORT) == address
    assert Address.parse(str(Address.parse(text, PORT)), 1) == address


@pytest.mark.parametrize("text", ["host:port", "::1", "1.2.3.4:70000", "a:b:c", "999999", "[::1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    """The message shows how one looks."""
    with pytest.raises(InvalidOptionError, match="is not HOST:PORT"):
        PrometheusExporter(text)


@pytest.mark.parametrize(
    "options",
    [
        {"tls_key": "k"},
        {"tls_client_ca": "c"},
        {"tls_cert": "c", "tls_client_names": "a"},
        {"max_series": 0},
        {"max_age": 0.0},
        {"processes": -1},
    ],
)
def test_options_that_lack_another_are_refused(options: dict[str, str]) -> None:
    """Half of a protection is none: it is an error at once."""
    with pytest.raises(InvalidOptionError):
        PrometheusExporter(**options)  # type: ignore[arg-type]  # what is wrong is the point


def test_the_string_form_sets_everything() -> None:
    """``prometheus:ADDRESS?option=value`` makes the same exporter."""
    exporter = registry.create("prometheus:0.0.0.0:9000?max_series=5&max_age=2.5&tls_cert=a&tls_client_ca=b&tls_client_names=c,d")
    assert isinstance(exporter, PrometheusExporter)
    assert exporter.address == ("0.0.0.0", 9000)
    default = registry.create("prometheus")
    assert isinstance(default, PrometheusExporter)
    assert default.address == ("127.0.0.1", PORT)


def test_findings_are_series_while_they_last() -> None:
    """Of a device with its labels, of a rank with its key, of the run with neither; what is over has none."""
    device = Finding("hot", "warning", "gpu.1", "core at 83 °C", 83.0, 80.0, 1, None, "")
    rank, run = device._replace(rule="non_finite", key="rank 2"), device._replace(rule="goodput", severity="info", key="")
    taken = record(2)
    points = [point for point in PROMETHEUS.points(taken._replace(findings=Findings((device, rank, run)))) if point.name == "accel_finding"]
    uuid = taken.snapshot.identities[1].identity.uuid
    assert [(point.value, dict(point.labels)) for point in points] == [
        (1, {"accelerator": "gpu.1", "uuid": uuid, "rule": "hot", "severity": "warning"}),
        (1, {"key": "rank 2", "rule": "non_finite", "severity": "warning"}),
        (1, {"rule": "goodput", "severity": "info"}),
    ]
    assert not any(point.name == "accel_finding" for point in PROMETHEUS.points(taken._replace(findings=Findings((), (device,)))))
