"""Line protocol, read back from VictoriaMetrics and from files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings, strategies as st

from accelmetrics.exporters.influx import HEADER, InfluxExporter, PointWriter, escaped, measurement_name
from accelmetrics.exporters.network import RejectedError
from accelmetrics.exporters.registry import create
from accelmetrics.schemas.errors import DocumentError, InvalidOptionError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot
from accelmetrics.schemas.record import MonitorStatus, Record, Step
from accelmetrics.schemas.snapshot import Snapshot
from tests.exporters.receivers import exported, http_server, victoria_metrics
from tests.records import record, unknown
from tests.support.exporting import export, exporting
from tests.support.waiting import wait_for

RESERVED = {"time", "_field", "_measurement"}
SECRET = "s3cr3t-token"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with victoria_metrics(tmp_path_factory.mktemp("victoria")) as address:
        yield address


class Point(NamedTuple):
    """One line, read."""

    measurement: str
    tags: dict[str, str]
    fields: dict[str, int | float]
    time: int


def lines(one: Record) -> list[str]:
    """The points of a record."""
    return PointWriter().text(one).split("\n")[:-1]


def read(line: str) -> Point:
    """A line as InfluxDB's reference reads it: a backslash escapes a comma, an equals sign or a space, nothing else."""
    head, fields, stamp = split(line, " ")
    measurement, *tags = split(head, ",")
    pairs = [split(tag, "=") for tag in tags]
    numbers = [split(field, "=") for field in split(fields, ",")]
    assert all(len(pair) == 2 and all(pair) for pair in (*pairs, *numbers))
    values = {bare(name): int(text[:-1]) if text.endswith("i") else float(text) for name, text in numbers}
    return Point(bare(measurement), {bare(tag): bare(value) for tag, value in pairs}, values, int(stamp))


def split(text: str, at: str) -> list[str]:
    """The parts between separators that no backslash stands before."""
    parts, escape = [""], False
    for letter in text:
        if letter == at and not escape:
            parts.append("")
        else:
            parts[-1] += letter
        escape = letter == "\\"
    return parts


def bare(text: str) -> str:
    """Without the escapes."""
    for special in ",= ":
        text = text.replace(f"\\{special}", special)
    return text


@pytest.mark.servers
def test_a_point_per_device_and_one_for_the_host_arrive(server: str) -> None:
    """VictoriaMetrics has every number of eight GPUs under measurement and name, with who it belongs to and the labels."""
    sent = record(8)
    export(f"influx:{server}/write?db=lab&prefix=am_", sent)
    assert sent.monitor is not None
    expected = len(sent.snapshot.metrics) + len(sent.steps[0].values) + len(["step"]) + len(sent.monitor.flat())
    found = {(one["metric"]["__name__"], one["metric"].get("accelerator", "")): one for one in exported(server, expected)}
    assert len(found) == expected
    power = found["am_gpu_powerWatts", "gpu.1"]
    assert power["values"] == [70] and power["timestamps"] == [sent.snapshot.time_ns // 1_000_000]
    assert power["metric"] == {
        "__name__": "am_gpu_powerWatts",
        "accelerator": "gpu.1",
        "uuid": "GPU-5cf1a7ed-0000-4000-8000-000000000001",
        "vendor": "acme",
        "model": "Scripted GPU",
        "host": sent.snapshot.hostname,
        "db": "lab",
        **sent.labels,
    }
    assert found["am_host_disk./.usageGB", ""]["values"] == [10.5]
    assert found["am_training_loss", ""]["values"] == [0.25]
    assert found["am_monitor_exporter.jsonl.sent", ""]["values"] == [9]
    assert ("am_gpu_fanSpeed", "gpu.1") not in found


ODD = ["a b", "a,b", "a=b", "a\\b", 'a"b', "a, =b", "ü→🦆", "'x'", "a\\\\b", "a\\,b", "end\\", "\\", " lead", "a\nb", "#", "a\\ "]


@pytest.mark.servers
def test_odd_labels_survive_a_real_server(server: str) -> None:
    """What the protocol can carry arrives as it was; the rest is replaced as documented, and costs no other point."""
    with exporting(InfluxExporter(server, prefix="odd_")) as exporter:
        base = Snapshot(record(1).snapshot.time_ns, "h", {"cpu": 1.0})
        for number, text in enumerate(ODD):
            exporter.export(Record(base, {"text": text, "number": str(number), f"k {text}": "v"}))

    def arrived() -> dict[int, dict[str, str]]:
        series = [one["metric"] for one in exported(server, 1) if one["metric"]["__name__"] == "odd_host_cpu"]
        return {int(metric["number"]): metric for metric in series} if len(series) == len(ODD) else {}

    found = wait_for(arrived)
    replaced = {"a\\\\b": "a/\\b", "a\\,b": "a/,b", "end\\": "end/", "\\": "/", "a\nb": "a b", "a\\ ": "a/ "}
    for number, text in enumerate(ODD):
        assert found[number]["text"] == replaced.get(text, text)
        assert found[number][f"k {replaced.get(text, text)}"] == "v"


TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20)
SPECIAL = st.text(st.sampled_from("\\,= \"'ab#\n"), min_size=1, max_size=12)


@given(st.dictionaries(TEXT | SPECIAL, TEXT | SPECIAL, max_size=5), SPECIAL, st.floats(allow_nan=False, allow_infinity=False))
def test_any_text_reads_back(labels: dict[str, str], name: str, value: float) -> None:
    """Whatever the labels, the mount points and the numbers are, each line is one point, and has what was meant."""
    steps = (Step(5, None, {name: value}),)
    written = lines(Record(Snapshot(7, "h", {f"disk.{name}.usageGB": value}), labels, steps))
    assert "\n" not in "".join(written)
    host, training = map(read, written)
    disk = bare(escaped(f"disk.{name}.usageGB"))
    assert (host.measurement, host.fields, host.time) == ("host", {disk: value}, 7)
    assert (training.measurement, training.fields, training.time) == ("training", {bare(escaped(name)): value}, 5)
    named = {f"{label}_" if label in RESERVED else label: text for label, text in labels.items()}
    assert host.tags == {**{bare(escaped(label)): bare(escaped(text)) for label, text in named.items()}, "host": "h"}
    assert all(
        text == label
        for label, text in zip(labels, map(bare, map(escaped, labels)), strict=True)
        if "\\" not in label and "\n" not in label
    )


def test_a_name_that_is_no_text_reads_back_as_letters() -> None:
    """A byte of a mount point that is not UTF-8 is written as the six letters that stand for it."""
    (line,) = lines(Record(Snapshot(1, "h", {"disk./d\udcff.usageGB": 1.0})))
    assert line.encode() == rb"host,host=h disk./d\udcff.usageGB=1.0 1"


def test_a_field_keeps_its_type() -> None:
    """What is always whole is an integer, everything else a float even when it happens to be whole: servers refuse a change."""
    gpu, host, *_ = lines(record(1))
    assert ",memory=40.0," in gpu and ",smClock=1980i," in gpu and ",temp=35.0," in gpu
    assert ",memoryAllocatedBytes=1073741824i," in gpu
    assert "network.sent=1024i" in host


def test_odd_numbers_are_written_as_their_fields_are() -> None:
    """A whole number beyond 64 bits has no room and costs no other one, a float has an exponent: byte for byte."""
    odd = {"cpu": 1e-07, "network.sent": 2**63, "network.recv": 2**63 - 1, "a": 2**80, "b c": -0.0}
    head = r"host,host=h,team=a\ b\,c cpu=1e-07,"
    rest = rf"network.recv={2**63 - 1}i,a={float(2**80)!r},b\ c=-0.0 1"
    for value, field in (
        (5, "network.sent=5i,"),
        (2**63, ""),
        (-(2**63) - 1, ""),
        (-(2**63), f"network.sent={-(2**63)}i,"),
        (0, "network.sent=0i,"),
    ):
        assert lines(Record(Snapshot(1, "h", {**odd, "network.sent": value}), {"team": "a b,c"})) == [head + field + rest]
    assert not lines(Record(Snapshot(1, "h", {"network.sent": 2**63})))


def test_what_is_said_of_a_device_stands_in_its_point() -> None:
    """The watched process's share and PyTorch's allocator are fields of the device, a partition is a point of its own."""
    base = record(1).snapshot
    place = base.identities[0]
    part = place._replace(key="gpu.0.mig.1", identity=place.identity._replace(uuid="MIG-1", parent=place.identity.uuid))
    metrics: dict[str, int | float] = {
        "gpu.process.0.memoryAllocatedBytes": 3,
        "torch.0.memoryReservedBytes": 4,
        "gpu.0.mig.1.memoryAllocatedBytes": 5,
        "gpu.10.temp": 6,
    }
    points = [read(line) for line in lines(Record(Snapshot(1, "h", metrics, [place, part])))]
    assert [(point.measurement, point.tags.get("accelerator"), point.fields) for point in points] == [
        ("gpu", "gpu.0", {"process.memoryAllocatedBytes": 3, "torch.memoryReservedBytes": 4}),
        ("gpu", "gpu.0.mig.1", {"memoryAllocatedBytes": 5}),
        ("host", None, {"gpu.10.temp": 6.0}),
    ]


def test_a_file_holds_every_record(tmp_path: Path) -> None:
    """A file begins with a comment, grows by whole records, and what a killed writer left of a line is removed."""
    file = tmp_path / "run.lp"
    for _ in range(2):
        export(f"influx:{file}", record(2))
        with file.open("ab") as torn:
            torn.write(b"gpu,accelerator=gpu.0 powerWatts=3")
    exporter = create(f"influx:{file}")
    exporter.open()
    exporter.close()
    text = file.read_text()
    assert text.startswith(HEADER.decode()) and text.count("#") == 1
    points = [read(line) for line in text.splitlines()[1:]]
    assert [point.measurement for point in points] == ["gpu", "gpu", "host", "training", "monitor"] * 2
    assert points[0].tags["team"] == 'a"b\\c'


def test_a_file_that_is_something_else_is_not_touched(tmp_path: Path) -> None:
    """A file that this exporter did not write stays as it is."""
    file = tmp_path / "thesis.txt"
    file.write_text("all my work")
    exporter = InfluxExporter(str(file))
    with pytest.raises(DocumentError):
        exporter.open()
    exporter.close()
    assert file.read_text() == "all my work"


@pytest.mark.parametrize(
    ("status", "body", "passes"),
    [
        (400, b'{"error":"partial write: field type conflict"}', False),
        (401, b'{"error":"authorization failed"}', False),
        (404, b'{"error":"database not found: x"}', False),
        (302, b"log in first", False),
        (408, b"too slow", True),
        (429, b"too much", True),
        (500, b"engine: timeout", True),
        (503, b"starting", True),
    ],
)
def test_what_may_be_offered_again(status: int, body: bytes, passes: bool, tmp_path: Path) -> None:
    """A server in trouble is offered the record again, one that refuses it is not; its words are kept and no secret is shown."""
    token = tmp_path / "token"
    token.write_text(f"{SECRET}\n")
    asked: list[tuple[str, dict[str, str]]] = []

    def answer(path: str, headers: dict[str, str], _: bytes) -> tuple[int, str, bytes]:
        asked.append((path, headers))
        return status, "application/json", body

    with (
        http_server(answer) as address,
        exporting(f"influx:{address}?org=lab&bucket=runs&precision=us&token_file={token}") as exporter,
        pytest.raises(ConnectionError if passes else RejectedError, match=str(status)) as caught,
    ):
        exporter.export(record(1))
    (path, headers) = asked[0]
    assert len(asked) == 1
    assert path == "/api/v2/write?org=lab&bucket=runs&precision=us"
    assert headers["authorization"] == f"Token {SECRET}"
    assert body.decode().strip('{}"').split('"')[-1] in str(caught.value)
    assert SECRET not in f"{caught.value!r} {exporter!r}"


def test_version_1_with_a_name_and_a_password(tmp_path: Path) -> None:
    """A password, from the file or from the address, goes as basic authentication and into no message."""
    password = tmp_path / "password"
    password.write_text("me:s3cr3t")
    asked: list[tuple[str, str, bytes]] = []

    def answer(path: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        asked.append((path, headers["authorization"], body))
        return 401, "text/plain", b"no"

    with http_server(answer) as address:
        with_file = InfluxExporter(f"{address}/write?db=x", precision="us", token_file=str(password))
        in_address = InfluxExporter(address.replace("//", "//me:s3cr3t@"), db="x", precision="us")
        for exporter in (with_file, in_address):
            with exporting(exporter), pytest.raises(RejectedError) as caught:
                exporter.export(record(1))
            assert "s3cr3t" not in str(caught.value) and address in str(caught.value)
    assert [(path, sent) for path, sent, _ in asked] == [("/write?db=x&precision=u", "Basic bWU6czNjcjN0")] * 2
    assert read(asked[0][2].decode().splitlines()[0]).time < 10**16


@pytest.mark.parametrize(
    "options",
    [
        {"target": "http://h:x"},
        {"target": "http://h", "timeout": 0.0},
        {"target": "http://h", "timeout": float("nan")},
        {"target": "http://h", "timeout": float("inf")},
        {"target": "f.lp", "prefix": "#"},
        {"target": "ftp://h:8086"},
        {"target": "u:s3cr3t-token@h:8086"},
        {"target": "u:s3cr3t-token@h/write"},
        {"target": "u:s3cr3t-token/@h:8086"},
        {"target": "http://u:s3cr3t-token/@h:8086"},
        {"target": "h:8086"},
        {"target": "h:8086/write"},
    ],
)
def test_options_that_cannot_be_used_are_said_at_once(options: dict[str, object]) -> None:
    """A wrong option is an error when the exporter is made, also half an address; no secret is shown."""
    with pytest.raises(InvalidOptionError) as caught:
        InfluxExporter(**options)  # type: ignore[arg-type]
    assert SECRET not in str(caught.value)


def test_an_address_in_capitals_is_one_and_a_path_is_a_file(tmp_path: Path) -> None:
    """``HTTP://`` is an address; an at sign or a colon in a path makes none of it."""
    asked: list[str] = []

    def answer(path: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        asked.append(path)
        return 204, "text/plain", b""

    with http_server(answer) as address:
        export(f"influx:{address.replace('http', 'HTTP')}?db=x", record(1))
    assert asked == ["/write?db=x&precision=ns"]
    for name in ("me@work.lp", "a:b.lp"):
        export(InfluxExporter(str(tmp_path / name)), record(1))
        assert (tmp_path / name).read_bytes().startswith(HEADER)


def test_the_interval_is_not_cut_to_a_whole_number() -> None:
    """The monitor's interval is a float at any length, its counters are integers."""
    base = record(1)
    assert base.monitor is not None
    for interval in (0.1, 1, 2.0):
        *_, monitor = lines(base._replace(monitor=base.monitor._replace(interval=interval)))
        fields = read(monitor).fields
        assert fields["interval"] == interval and f" interval={float(interval)!r}," in monitor
        assert f",ticks={base.monitor.ticks}i," in monitor and fields["exporter.jsonl.sent"] == 9


def test_measurements_escape_less_than_tags() -> None:
    """An equals sign stands as it is in a measurement's name, and is escaped everywhere else."""
    assert (measurement_name("a=b c,d"), escaped("a=b c,d")) == ("a=b\\ c\\,d", "a\\=b\\ c\\,d")


SLOTS = [DeviceSlot(f"gpu.{number}", number, None, DeviceIdentity("gpu", "nvidia", number, "H 100%", f"GPU-{number}")) for number in (0, 1)]
WHOLE = ["gpu.0.memoryAllocatedBytes", "gpu.1.smClock", "network.sent"]
REAL = ["gpu.0.powerWatts", "gpu.1.time", "cpu", "disk./%s.usageGB", "disk./a b.usageGB", "disk./a\n.usageGB", "disk./a\t.usageGB"]
NUMBERS = st.floats(allow_nan=False) | st.integers(-(2**70), 2**70) | st.integers(0, 9)
RECORDS = st.builds(
    Record,
    st.builds(
        Snapshot,
        st.integers(0, 10**18),
        st.sampled_from(["node.a", "node b"]),
        st.dictionaries(st.sampled_from(WHOLE + REAL), NUMBERS | st.floats(0, 1e6)),
        st.sampled_from([(), SLOTS]),
    ),
    st.dictionaries(st.sampled_from(["rank", "team=%d"]), st.text(max_size=5)),
    st.just(()) | st.just((Step(1, 7, {"loss": -0.5, "odd": float("nan")}, 3, "node.c"),)),
    st.none() | st.just(MonitorStatus(1.0)),
)


@settings(max_examples=50, deadline=None)
@example([Record(Snapshot(5, "h", {WHOLE[0]: value, "cpu": 1, "a": 2**80})) for value in (1, 2.7, -2.7, 2**63, -(2**63), 1e300)], "", "ns")
@example([Record(Snapshot(5, "h", values)) for values in ({}, {"cpu": 1}, {})], "x", "s")  # type: ignore[arg-type]
@example([Record(Snapshot(5, "h", {WHOLE[2]: value})) for value in (2, float("inf"), float("nan"), True)], "", "ns")
@given(st.lists(RECORDS, min_size=1, max_size=5), st.sampled_from(["", "lab %s,"]), st.sampled_from(["ns", "s"]))
def test_what_is_kept_is_what_would_be_made_anew(several: list[Record], prefix: str, precision: str) -> None:
    """Whatever records follow each other, their lines are, byte for byte, those of the first record of its kind."""
    points = PointWriter(prefix, precision)
    for one in several:
        assert points.text(one) == PointWriter(prefix, precision).text(unknown(one))
