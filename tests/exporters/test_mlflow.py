"""What MLflow's own stores hold after an exporter has logged into them, read back through MLflow's client."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from accelmetrics.exporters.mlflow import MlflowExporter, clean
from accelmetrics.exporters.registry import create
from accelmetrics.exporters.rejected import RejectedError
from accelmetrics.schemas.record import Record, Step
from accelmetrics.schemas.snapshot import Snapshot
from tests.exporters.mlflow_full import nothing_is_lost, quiet, small_disk
from tests.exporters.mlflow_store import run, stored
from tests.records import LABELS, record

__all__ = ["quiet", "small_disk"]


@pytest.fixture(scope="module")
def new_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes seconds to make one."""
    directory = tmp_path_factory.mktemp("database")
    stored(directory, f"sqlite:///{directory}/ml.db")
    return directory / "ml.db"


@pytest.fixture
def database(new_database: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(new_database, tmp_path / 'ml.db')}"


@pytest.fixture(params=["database", "files"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.getfixturevalue("database")) if request.param == "database" else f"file://{tmp_path}/mlruns"


def test_a_run_of_ours_holds_everything(tmp_path: Path, uri: str) -> None:
    """Experiment, name, labels, every metric with its time and step; the run is ended by closing."""
    exporter = create(f"mlflow:?tracking_uri={uri}&experiment=hw&run_name=node-1")
    taken = record()
    exporter.open()
    exporter.export(taken)
    exporter.flush()
    exporter.close()
    (found,) = stored(tmp_path, uri)
    assert (found.name, found.status, found.experiment) == ("node-1", "FINISHED", "hw")
    assert {name: found.tags[f"accelmetrics.{name}"] for name in LABELS} == LABELS
    measured = {f"system/{key}": value for key, value in taken.snapshot.metrics.items()}
    assert {key: history[0][0] for key, history in found.metrics.items() if key in measured} == measured
    assert "system/gpu.1.fanSpeed" not in found.metrics, "what is missing stays absent"
    ((_, timestamp, step),) = found.metrics["system/gpu.0.powerWatts"]
    assert timestamp == taken.snapshot.time_ns // 1_000_000 and step in range(30)
    assert found.metrics["loss"] == [[0.25, timestamp, 7]]
    assert found.metrics["system/monitor.ticks"][0][0] == 10


def test_the_programs_active_run_is_joined_and_goes_on(tmp_path: Path, database: str) -> None:
    """Metrics go into the run that is active where the exporter is made; it is not ended, and its own metrics are whole."""
    run(tmp_path, "beside", database)
    (found,) = stored(tmp_path, database)
    assert (found.name, found.status) == ("theirs", "FINISHED")
    assert [step for _, _, step in found.metrics["accuracy"]] == [0, 1, 2, 3]
    assert found.metrics["system/gpu.0.powerWatts"][0][0] == 300.0


def test_a_restart_begins_another_run_of_ours_and_joins_a_named_one_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed and opened again, the exporter has another run; a run named by `MLFLOW_RUN_ID` stays the one it is."""
    uri = f"file://{tmp_path}/mlruns"

    def twice(exporter: MlflowExporter) -> None:
        for _ in range(2):
            exporter.open()
            exporter.export(record(steps=False))
            exporter.close()

    twice(MlflowExporter(tracking_uri=uri, run_name="ours"))
    before = stored(tmp_path, uri)
    assert [len(one.metrics["system/gpu.0.gpu"]) for one in before] == [1, 1]
    monkeypatch.setenv("MLFLOW_RUN_ID", before[0].run_id)
    twice(MlflowExporter(tracking_uri=uri))
    lengths = {one.run_id: len(one.metrics["system/gpu.0.gpu"]) for one in stored(tmp_path, uri)}
    assert lengths == {before[0].run_id: 3, before[1].run_id: 1}


def test_more_metrics_than_a_batch_takes_arrive(tmp_path: Path, database: str) -> None:
    """MLflow takes 1000 at once; a record may have more, under names that MLflow does not take as they are."""
    odd = {
        "disk./mnt/a b:c.usageGB": 1.0,
        "disk./.usageGB": 2.0,
        "disk.//x/../y.usageGB": 3.0,
        "disk./dätä,(1).usageGB": 4.0,
        "x" * 300: 5.0,
    }
    metrics: dict[str, int | float] = {**odd, **{f"cpu.{number}.cpu_percent": float(number) for number in range(1100)}}
    exporter = MlflowExporter(tracking_uri=database, run_name="big")
    exporter.open()
    exporter.export(Record(Snapshot(time.time_ns(), "node-1", metrics)))
    exporter.close()
    (found,) = stored(tmp_path, database)
    assert len(found.metrics) == len(metrics)
    assert found.metrics["system/cpu.1099.cpu_percent"][0][0] == 1099.0
    assert {clean(f"system/{name}"): value for name, value in odd.items()}.items() <= {
        name: history[0][0] for name, history in found.metrics.items()
    }.items()


def test_a_full_disk_loses_nothing_in_a_database(tmp_path: Path, small_disk: Path, new_database: Path) -> None:
    """A record that does not fit is kept, and is there once when it is offered again after there is room."""
    uri = f"sqlite:///{shutil.copy(new_database, small_disk / 'ml.db')}"
    nothing_is_lost(tmp_path, small_disk, MlflowExporter(tracking_uri=uri, run_name="ours"), uri)


def test_a_killed_process_goes_on_with_the_same_run(tmp_path: Path) -> None:
    """The record that met it is passing, and delivered by the next process into the run that is ours already."""
    uri = f"file://{tmp_path}/mlruns"
    exporter = MlflowExporter(tracking_uri=uri, run_name="ours")
    exporter.open()
    exporter.export(record(steps=False))
    process = exporter._tracker._process
    assert process is not None
    process.kill()
    process.wait()
    with pytest.raises(ConnectionError, match="the process that speaks to MLflow ended"):
        exporter.export(record(steps=False))
    exporter.export(record(steps=False))
    exporter.close()
    (found,) = stored(tmp_path, uri)
    assert len(found.metrics["system/gpu.0.powerWatts"]) == 2 and found.status == "FINISHED"


def test_a_run_that_is_not_there_is_refused(database: str) -> None:
    """MLflow's words say which run; it is no use to try again."""
    exporter = MlflowExporter("0123456789abcdef0123456789abcdef", tracking_uri=database)
    with pytest.raises(RejectedError, match=r"MLflow: .*0123456789abcdef"):
        exporter.open()
    exporter.close()


def test_a_server_that_is_away_is_passing() -> None:
    """Nobody listens: an OSError, within seconds, though the client by itself would try for minutes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    exporter = MlflowExporter(tracking_uri=f"http://127.0.0.1:{port}", run_name="x")
    began = time.monotonic()
    with pytest.raises(ConnectionError, match="MLflow: API request to"):
        exporter.open()
    exporter.close()
    assert time.monotonic() - began < 15


class Stalling(BaseHTTPRequestHandler):
    """A tracking server that knows one run, takes the first batch, and refuses, then stalls, before it takes more."""

    batches: list[bytes]
    ill: str

    def do_GET(self) -> None:
        info = '{"run_id": "r1", "start_time": 1700000000000, "status": "RUNNING", "experiment_id": "0"}'
        self._answer(200, f'{{"run": {{"info": {info}, "data": {{}}}}}}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.ill == "stalled":
            time.sleep(1)
            return
        if self.ill == "refusing" and len(self.batches) == 1:
            self._answer(503, '{"error_code": "TEMPORARILY_UNAVAILABLE", "message": "later"}')
            return
        self.batches.append(body)
        self._answer(200, "{}")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[int]:
    """The port of one."""
    Stalling.batches, Stalling.ill = [], ""
    with ThreadingHTTPServer(("127.0.0.1", 0), Stalling) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield listening.server_port
        listening.shutdown()
        thread.join()


def many() -> Record:
    """More than a batch takes."""
    metrics: dict[str, int | float] = {f"cpu.{number}.cpu_percent": number for number in range(1500)}
    return Record(Snapshot(time.time_ns(), "node-1", metrics), steps=(Step(time.time_ns(), None, {"loss": 1.0}),))


def test_a_record_that_broke_off_goes_on_where_it_did(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1501 metrics the first 1000 arrive once, though the record is offered again; one offered instead of it is whole."""
    taken = many()
    exporter = MlflowExporter("r1", tracking_uri=f"http://127.0.0.1:{server}")
    exporter.open()
    for follower, batches in ((taken, [1000, 501]), (many(), [1000, 1000, 501])):
        Stalling.ill = "refusing"
        Stalling.batches.clear()
        with pytest.raises(ConnectionError, match=r"MLflow: .*too many 503 error responses"):
            exporter.export(taken)
        Stalling.ill = ""
        exporter.export(follower)
        assert [batch.count(b'"key"') for batch in Stalling.batches] == batches
    Stalling.ill = "stalled"
    monkeypatch.setattr("accelmetrics.exporters.mlflow.LOG_SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.5 s"):
        exporter.export(taken)
    exporter.close()
    assert time.monotonic() - began < 2.5


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("system/gpu.0.powerWatts", "system/gpu.0.powerWatts"),
        ("system/disk./mnt/a:b c-d.usageGB", "system/disk./mnt/a:b c-d.usageGB"),
        ("/leading//double/./dot/../up", "leading/double/up"),
        ("..", "__"),
        ("tokens/s (mean)%", "tokens/s _mean__"),
    ],
)
def test_names_are_made_what_mlflow_takes(name: str, cleaned: str) -> None:
    """MLflow's own rule takes every name that is made, and those that it takes already stay."""
    assert clean(name) == cleaned


def test_what_no_store_can_hold_is_written_all_the_same(tmp_path: Path, uri: str) -> None:
    """Text that is no UTF-8 with its escape, long names too; a step beyond 64 bits as one without a number."""
    exporter = MlflowExporter(tracking_uri=uri, run_name="odd")
    exporter.open()
    steps = tuple(Step(time.time_ns(), number, {name: 0.5}) for number, name in ((2**70, "loss"), (-(2**70), "x\ud800" * 200)))
    exporter.export(Record(Snapshot(time.time_ns(), "node-1", {"gpu.0.temp": 1}), {"team": "caf\udce9\ud800"}, steps))
    exporter.close()
    (found,) = stored(tmp_path, uri)
    assert found.tags["accelmetrics.team"] == "caf\\udce9\\ud800"
    assert found.metrics["loss"][0][2] in range(30)
    assert {"loss", "system/gpu.0.temp"} < found.metrics.keys() and len(found.metrics) == 3


def test_a_value_that_the_store_fails_on_is_not_passing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str) -> None:
    """MLflow has one code for a server that is away and for what no database takes: the latter is refused, and not offered for ever."""
    monkeypatch.setattr("accelmetrics.exporters.mlflow.written", str)
    exporter = MlflowExporter(tracking_uri=database, run_name="odd")
    exporter.open()
    with pytest.raises(RejectedError, match=r"MLflow: .*surrogates not allowed"):
        exporter.export(record(steps=False)._replace(labels={"team": "caf\udce9"}))
    exporter.export(record(steps=False))
    exporter.close()
