"""What an OpenTelemetry collector gets, read back from an OTLP receiver over gRPC and over HTTP."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from accelmetrics._version import __version__
from accelmetrics.exporters.otlp import OtlpExporter, RequestBuilder
from accelmetrics.exporters.registry import create
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.record import Exporter, Finding, Findings, Record, Step
from accelmetrics.schemas.snapshot import Snapshot
from tests.cli.shell import COMMAND, environment
from tests.exporters.receivers import Collector, Row, grpc_collector, http_collector
from tests.records import record
from tests.support.exporting import exporting
from tests.support.waiting import HANG

SECOND = 1_000_000_000


class Pair(NamedTuple):
    """A collector and an exporter to it."""

    collector: Collector
    exporter: Exporter


@pytest.fixture(params=["grpc", "http"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with (grpc_collector if request.param == "grpc" else http_collector)() as collector:
        exporter = create(f"otlp:{collector.endpoint}?protocol={request.param}")
        exporter.open()
        yield Pair(collector, exporter)
        exporter.close()


def one(rows: list[Row]) -> Row:
    """The only one."""
    assert len(rows) == 1
    return rows[0]


def at(base: Record, seconds: float, **metrics: float) -> Record:
    """The same machine later, with other numbers of ``gpu.0`` and nothing else."""
    taken = base.snapshot
    numbers: dict[str, int | float] = {f"gpu.0.{name}": value for name, value in metrics.items()}
    return Record(Snapshot(taken.time_ns + int(seconds * SECOND), taken.hostname, numbers, taken.identities))


def test_values_arrive_in_base_units_with_their_attributes(pair: Pair) -> None:
    """A collector gets each number in the conventions' unit, with who it belongs to and when it was taken."""
    sent = record(1)
    pair.exporter.export(sent)
    power = one(pair.collector.named("hw.power"))
    uuid = sent.snapshot.identities[0].identity.uuid
    assert (power.value, power.unit, power.form, power.time_ns) == (300.0, "W", "gauge", sent.snapshot.time_ns)
    assert power.attributes == {
        "hw.id": uuid,
        "hw.name": "gpu.0",
        "hw.vendor": "acme",
        "hw.model": "Scripted GPU",
        "accelmetrics.device": "gpu.0",
        "hw.type": "gpu",
    }
    assert one(pair.collector.named("hw.gpu.utilization")).value == 0.855
    assert one(pair.collector.named("system.memory.utilization")).attributes == {"system.memory.state": "used"}
    clocks = {row.attributes["accelmetrics.domain"]: row.value for row in pair.collector.named("accel.clock.frequency")}
    assert clocks == {"sm": 1_980_000_000, "memory": 2_619_000_000, "graphics": 1_980_000_000}


def test_eight_gpus_are_eight_series(pair: Pair) -> None:
    """No GPU overwrites another's series: each has an id of its own, and so have the series of one GPU among themselves."""
    pair.exporter.export(record(8))
    assert [row.value for row in pair.collector.named("hw.power")] == [300.0, 70.0] + [300.0] * 6
    assert len({row.attributes["hw.id"] for row in pair.collector.named("hw.power")}) == 8
    series = [(row.name, *sorted(row.attributes.items())) for row in pair.collector.rows()]
    assert len(series) == len(set(series)) > 8 * 12


def test_each_instrument_has_its_form(pair: Pair) -> None:
    """Counters are monotonic sums, what adds up over devices is a sum that may fall, the rest are gauges."""
    pair.exporter.export(record(1))
    forms = {row.name: row.form for row in pair.collector.rows()}
    assert forms["hw.energy"] == forms["system.network.io"] == forms["accelmetrics.exporter.sent"] == "counter"
    assert forms["hw.gpu.memory.usage"] == forms["hw.gpu.memory.limit"] == forms["hw.status"] == "updowncounter"
    assert forms["hw.temperature"] == forms["accel.training.loss"] == forms["accel.power.limit"] == "gauge"
    assert isinstance(one(pair.collector.named("hw.gpu.memory.usage")).value, int)


def test_a_counter_says_since_when_it_counts(pair: Pair) -> None:
    """A counter starts at its first point and keeps that start, also when a record is offered again, until the driver is reset."""
    base = record(1)
    start = base.snapshot.time_ns
    told = []
    for later, joules in ((0, 1000.0), (1, 1300.0), (1, 1300.0), (2, 20.0), (3, 320.0)):
        pair.exporter.export(at(base, later, energyJoules=joules))
        energy = one(pair.collector.named("hw.energy"))
        told.append(((energy.start_ns - start) / SECOND, (energy.time_ns - start) / SECOND, energy.value))
    assert told == [(0, 0, 1000.0), (0, 1, 1300.0), (0, 1, 1300.0), (2, 2, 20.0), (2, 3, 320.0)]


def test_the_resource_says_who_sends(pair: Pair) -> None:
    """The record's labels are resource attributes as they are, beside the service and the host; nothing that is new at each start."""
    labels = {"slurm.job.id": "4711", "k8s.pod.name": "train-0", "service.name": "my-run"}
    pair.exporter.export(record(1)._replace(labels=labels))
    resource = pair.collector.resource
    host = record(1).snapshot.hostname
    assert labels.items() <= resource.items()
    assert resource["host.name"] == host and resource["service.version"] == __version__
    assert str(resource["service.instance.id"]).startswith(f"{host}:") and str(resource["service.instance.id"]).endswith(":job-4711")
    sent = pair.collector.requests[-1].resource_metrics[0]
    assert sent.schema_url == sent.scope_metrics[0].schema_url == "https://opentelemetry.io/schemas/1.44.0"
    assert "accelmetrics" in pair.collector.headers[-1]["user-agent"]


def test_a_restart_goes_on_with_the_same_series(tmp_path: Path) -> None:
    """Two starts of one command have one resource; another program, and another rank of it, have an instance of their own."""
    script = """
        import sys
        from accelmetrics import Monitor

        with Monitor(60, backends=["host"], exporters=[f"otlp:{sys.argv[1]}"]) as monitor:
            monitor.log(1, loss=0.5)
    """
    with grpc_collector() as collector:

        def resource(start: list[str], **variables: str) -> dict[str, str | int]:
            done = subprocess.run(start, env=environment(**variables), capture_output=True, text=True, timeout=2 * HANG)
            assert done.returncode == 0, done.stderr
            return collector.resource

        record = [*COMMAND, "record", "--duration", "0.2", "--backends", "host", "--exporter", f"otlp:{collector.endpoint}"]
        (tmp_path / "train.py").write_text(textwrap.dedent(script))
        program = [sys.executable, str(tmp_path / "train.py"), collector.endpoint]
        first, again = resource(record), resource(record)
        assert first == again
        assert str(first["service.instance.id"]).endswith(":accelmetrics")
        ranks = [resource(program, RANK=rank, WORLD_SIZE="2") for rank in "01"]
        logged = [row for number in range(len(collector.requests)) for row in collector.named("accel.training.loss", number)]
        assert len({row.attributes["accelmetrics.run_id"] for row in logged}) == 2, "what is logged is of a run"
    found = [str(one["service.instance.id"]) for one in (first, *ranks)]
    assert len(set(found)) == 3
    assert found[2].endswith(":train:rank-1")


@pytest.mark.parametrize(("options", "there"), [("", False), ("?per_link=true", True)])
def test_single_links_are_sent_where_asked_for(options: str, there: bool) -> None:
    """Their sum always is."""
    sent = record(1)
    numbers = {"gpu.0.nvlinkTxBytesTotal": 5.0, "gpu.0.nvlink.3.txBytesTotal": 2.0, "gpu.0.nvlink.3.state": 1}
    with grpc_collector() as collector, exporting(create(f"otlp:{collector.endpoint}{options}")) as exporter:
        for _ in range(2):
            exporter.export(Record(Snapshot(sent.snapshot.time_ns, "node-1", numbers, sent.snapshot.identities)))
            assert one(collector.named("accel.link.io")).value == 5
            ports = {row.name: row.value for row in collector.rows() if row.name.startswith("accel.link.port.")}
            assert ports == ({"accel.link.port.io": 2, "accel.link.port.up": 1} if there else {})


def test_every_logged_step_keeps_its_time(pair: Pair) -> None:
    """Two steps between two ticks are two points of one series, each at its own moment."""
    base = record(1)
    steps = tuple(Step(base.snapshot.time_ns - age, 8 - age, {"loss": age / 4, "train/ppl": 2}) for age in (2, 1))
    pair.exporter.export(base._replace(steps=steps))
    loss = pair.collector.named("accel.training.loss")
    assert [(row.value, row.time_ns - base.snapshot.time_ns) for row in loss] == [(0.5, -2), (0.25, -1)]
    assert [row.value for row in pair.collector.named("accel.training.step")] == [6, 7]
    assert pair.collector.named("accel.training.train/ppl")[0].value == 2.0


def test_what_is_missing_is_absent(pair: Pair) -> None:
    """A value that a device cannot give has no point, not a zero; a zero that was measured has one."""
    pair.exporter.export(record(2))
    assert [row.attributes["hw.name"] for row in pair.collector.named("hw.fan.speed_ratio")] == ["gpu.0"]
    assert [row.value for row in pair.collector.named("hw.gpu.utilization")] == [0.855, 0.0]


def test_odd_text_and_large_numbers_arrive(pair: Pair) -> None:
    """A mount point that is not UTF-8 and a number beyond 64 bits cost no record."""
    base = record(1)
    odd: dict[str, int | float] = {"disk./d\udcff.usageGB": 1.0, "gpu.0.pcieReplays": 2**64 - 1, "cpu.12.cpu_percent": 50.0}
    pair.exporter.export(base._replace(snapshot=base.snapshot.with_metrics(odd)))
    mounts = [row.attributes["system.filesystem.mountpoint"] for row in pair.collector.named("system.filesystem.usage")]
    assert mounts == ["/", "/d\\udcff"]
    assert one(pair.collector.named("accel.pcie.replays")).value == 2.0**64
    assert one(pair.collector.named("system.cpu.utilization")).attributes == {"cpu.logical_number": 12}


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("compression", ["gzip", "none"])
def test_headers_reach_the_collector_alone(protocol: str, compression: str, tmp_path: Path) -> None:
    """Headers come from an option or from a file that may be exchanged while running; no message and no ``repr`` shows them."""
    secret = tmp_path / "headers"
    secret.write_text("authorization=Bearer s3cr3t\n")
    with (grpc_collector if protocol == "grpc" else http_collector)() as collector:
        query = f"protocol={protocol}&compression={compression}&headers=X-Team=a%20b+c%2520d,x-two%3D2&headers_file={secret}"
        with exporting(f"otlp:{collector.endpoint}?{query}") as exporter:
            exporter.export(record(1))
            secret.write_text("authorization=Bearer other\n")
            exporter.export(record(1))
    first, second = collector.headers
    assert (first["x-team"], first["x-two"], first["authorization"]) == ("a b+c%20d", "2", "Bearer s3cr3t")
    assert second["authorization"] == "Bearer other"
    assert (first.get("content-encoding") == "gzip") == (protocol == "http" and compression == "gzip")
    assert "s3cr3t" not in repr(exporter)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"endpoint": "ftp://h:1"}, "http:// or https://"),
        ({"endpoint": "https://h:1", "insecure": True}, "contradicts"),
        ({"endpoint": "http://h:1", "insecure": False}, "contradicts"),
        ({"timeout": 0.0}, "finite number above 0"),
        ({"timeout": float("nan")}, "finite number above 0"),
        ({"timeout": float("inf"), "protocol": "http"}, "finite"),
        ({"endpoint": "http://user:s3cr3t@h:4317"}, "cannot contain a name and password"),
        ({"endpoint": "user:s3cr3t@h:4317"}, "cannot contain a name and password"),
        ({"endpoint": "http://h:4317/v1/metrics"}, "cannot contain a path"),
        ({"endpoint": "http://u:s3cr3t/@h:4317", "protocol": "http"}, "address is invalid"),
        ({"headers": "s3cr3t"}, "name=value"),
        ({"headers": "x=a\ns3cr3t"}, "'x' must be printable"),
        ({"endpoint": "http://h:x", "protocol": "http"}, "address"),
    ],
)
def test_options_that_cannot_be_used_are_said_at_once(options: dict[str, object], says: str) -> None:
    """A wrong option is an error when the exporter is made, and the message does not repeat a secret."""
    with pytest.raises(InvalidOptionError, match=says) as caught:
        OtlpExporter(**options)  # type: ignore[arg-type]
    assert "s3cr3t" not in str(caught.value)


def test_findings_are_points_while_they_last() -> None:
    """With the device's attributes, the rule and how grave it is."""
    taken = record(2)
    finding = Finding("hot", "warning", "gpu.1", "core at 83 °C", 83.0, 80.0, 1, None, "")
    request = RequestBuilder().build(taken._replace(findings=Findings((finding, finding._replace(rule="goodput", key="")), (finding,))))
    (metric,) = [one for one in request.resource_metrics[0].scope_metrics[0].metrics if one.name == "accel.finding"]
    found = [{one.key: one.value.string_value for one in point.attributes} for point in metric.gauge.data_points]
    assert [(one["accelmetrics.rule"], one["accelmetrics.severity"], one.get("accelmetrics.device")) for one in found] == [
        ("hot", "warning", "gpu.1"),
        ("goodput", "warning", None),
    ]
