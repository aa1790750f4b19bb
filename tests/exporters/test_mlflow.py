"""What MLflow's own stores hold after an exporter has logged into them, read back through MLflow's client."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from accelmetrics.exporters.mlflow import MlflowExporter, clean
from accelmetrics.exporters.network import RejectedError
from accelmetrics.exporters.registry import create
from accelmetrics.schemas.record import Record, Step
from accelmetrics.schemas.snapshot import Snapshot
from tests.exporters.disks import fill, mounted
from tests.exporters.mlflow_store import environment, stored
from tests.records import LABELS, record
from tests.support.exporting import export, exporting
from tests.support.network import free_port
from tests.support.programs import Program
from tests.support.session import made_once

pytestmark = pytest.mark.peers

POWER = "gpu.0.powerWatts"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """MLflow without a network and with one try a request, in a directory of its own."""
    for name, value in environment(MLFLOW_HTTP_REQUEST_MAX_RETRIES="0").items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def new_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes seconds to make one."""
    return made_once(tmp_path_factory, "mlflow", lambda folder: stored(f"sqlite:///{folder}/ml.db")) / "ml.db"


@pytest.fixture
def database(new_database: Path, tmp_path: Path) -> str:
    return f"sqlite:///{shutil.copy(new_database, tmp_path / 'ml.db')}"


@pytest.fixture(params=["database", "files"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.getfixturevalue("database")) if request.param == "database" else f"file://{tmp_path}/mlruns"


def test_what_is_not_finite_is_kept_and_other_ranks_are_not_mixed_in(uri: str) -> None:
    """A loss that has gone stands at its step; a metric is one series."""
    exporter = create(f"mlflow:?tracking_uri={uri}&experiment=hw")
    taken = record()
    own = Step(taken.snapshot.time_ns, 8, {"loss": float("nan"), "nonFinite": 1}, 0, "node-1")
    export(exporter, taken._replace(steps=(*taken.steps, own, own._replace(values={"loss": 9.0}, rank=1))))
    (found,) = stored(uri)
    assert [(repr(value), step) for value, _, step in found.metrics["loss"]] == [("0.25", 7), ("nan", 8)]
    assert [value for value, _, _ in found.metrics["nonFinite"]] == [1.0]


def test_another_monitors_names_are_those_of_its_dialect(database: str) -> None:
    """As far as MLflow takes their letters; the monitor's own counters are there too."""
    exporter = create(f"mlflow:?tracking_uri={database}&experiment=hw&dialect=dcgm&prefix=system/node-1/")
    export(exporter, record(steps=False))
    (found,) = stored(database)
    assert found.metrics["system/node-1/DCGM_FI_DEV_POWER_USAGE_gpu__0__"][0][0] == 300.0
    assert found.metrics["system/node-1/monitor.ticks"][0][0] == 10.0
    assert not [name for name in found.metrics if name.endswith("powerWatts")]


def test_a_run_of_ours_holds_everything(tmp_path: Path, uri: str) -> None:
    """Experiment, name, labels, every metric with its time and step; the run is ended by closing."""
    exporter = create(f"mlflow:?tracking_uri={uri}&experiment=hw&run_name=node-1")
    taken = record()
    export(exporter, taken)
    (found,) = stored(uri)
    assert (found.name, found.status, found.experiment) == ("node-1", "FINISHED", "hw")
    assert {name: found.tags[f"accelmetrics.{name}"] for name in LABELS} == LABELS
    measured = {f"system/{key}": value for key, value in taken.snapshot.metrics.items()}
    assert {key: history[0][0] for key, history in found.metrics.items() if key in measured} == measured
    assert "system/gpu.1.fanSpeed" not in found.metrics, "what is missing stays absent"
    ((_, timestamp, step),) = found.metrics["system/gpu.0.powerWatts"]
    assert timestamp == taken.snapshot.time_ns // 1_000_000 and step in range(30)
    assert found.metrics["loss"] == [(0.25, timestamp, 7)]
    assert found.metrics["system/monitor.ticks"][0][0] == 10


def test_the_programs_active_run_is_joined_and_goes_on(tmp_path: Path, database: str) -> None:
    """Metrics go into the run that is active where the exporter is made; it is not ended, and its own metrics are whole."""
    text = f"""
        import threading
        import mlflow
        from accelmetrics.exporters.registry import create
        from tests.records import record
        mlflow.set_tracking_uri({database!r})
        with mlflow.start_run(run_name="theirs"):
            one, taken = create("mlflow"), record()
            def export():  # on another thread, as by a monitor
                one.open()
                one.export(taken)
                one.export(taken)
                one.close()
            thread = threading.Thread(target=export)
            thread.start()
            for step in range(3):
                mlflow.log_metric("accuracy", step / 10, step=step)
            thread.join()
            mlflow.log_metric("accuracy", 1.0, step=3)
    """
    with Program(text, env=environment(), cwd=tmp_path) as program:
        assert program.end(100) == 0, program.errors
    (found,) = stored(database)
    assert (found.name, found.status) == ("theirs", "FINISHED")
    assert [step for _, _, step in found.metrics["accuracy"]] == [0, 1, 2, 3]
    assert found.metrics["system/gpu.0.powerWatts"][0][0] == 300.0


def test_a_restart_begins_another_run_of_ours_and_joins_a_named_one_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed and opened again, the exporter has another run; a run named by `MLFLOW_RUN_ID` stays the one it is."""
    uri = f"file://{tmp_path}/mlruns"

    def twice(exporter: MlflowExporter) -> None:
        for _ in range(2):
            export(exporter, record(steps=False))

    twice(MlflowExporter(tracking_uri=uri, run_name="ours"))
    before = stored(uri)
    assert [len(one.metrics["system/gpu.0.gpu"]) for one in before] == [1, 1]
    monkeypatch.setenv("MLFLOW_RUN_ID", before[0].run_id)
    twice(MlflowExporter(tracking_uri=uri))
    lengths = {one.run_id: len(one.metrics["system/gpu.0.gpu"]) for one in stored(uri)}
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
    export(MlflowExporter(tracking_uri=database, run_name="big"), Record(Snapshot(time.time_ns(), "node-1", metrics)))
    (found,) = stored(database)
    assert len(found.metrics) == len(metrics)
    assert found.metrics["system/cpu.1099.cpu_percent"][0][0] == 1099.0
    assert {clean(f"system/{name}"): value for name, value in odd.items()}.items() <= {
        name: history[0][0] for name, history in found.metrics.items()
    }.items()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 12 MiB."""
    with mounted(tmp_path / "small", "12m") as place:
        yield place


def numbered(number: int) -> Record:
    """A record with 40 metrics that have its number for a value."""
    names = [POWER, *(f"cpu.{core}.cpu_percent" for core in range(39))]
    return Record(Snapshot(time.time_ns(), "node-1", dict.fromkeys(names, number)))


def until_full(exporter: MlflowExporter, begin: int) -> int:
    """Log until that fails, since a page may have room for some more; the number of the record that failed."""
    for number in range(begin, begin + 400):
        try:
            exporter.export(numbered(number))
        except ConnectionError as error:
            assert "disk is full" in str(error)
            return number
    raise AssertionError("the disk never filled")


def test_a_full_disk_loses_nothing_in_a_database(tmp_path: Path, small_disk: Path, new_database: Path) -> None:
    """A record that does not fit is passing, and is there once when it is offered again after there is room."""
    uri = f"sqlite:///{shutil.copy(new_database, small_disk / 'ml.db')}"
    with exporting(MlflowExporter(tracking_uri=uri, run_name="ours")) as exporter:
        for number in range(5):
            exporter.export(numbered(number))
        filler = fill(small_disk)
        failed = until_full(exporter, 5)
        with pytest.raises(ConnectionError):
            exporter.export(numbered(failed))
        filler.unlink()
        for number in range(failed, failed + 5):
            exporter.export(numbered(number))
    (found,) = stored(uri)
    assert found.status == "FINISHED"
    assert [value for value, _, _ in found.metrics[f"system/{POWER}"]] == list(range(failed + 5))
    assert {len(history) for history in found.metrics.values()} == {failed + 5}


def test_a_run_that_is_not_there_is_refused(database: str) -> None:
    """MLflow's words say which run; it is no use to try again."""
    exporter = MlflowExporter("0123456789abcdef0123456789abcdef", tracking_uri=database)
    with pytest.raises(RejectedError, match=r"MLflow: .*0123456789abcdef"):
        exporter.open()
    exporter.close()


def test_a_server_that_is_away_is_passing() -> None:
    """Nothing listens there: an OSError, with MLflow's words."""
    exporter = MlflowExporter(tracking_uri=f"http://127.0.0.1:{free_port()}", run_name="x")
    with pytest.raises(ConnectionError, match="MLflow: API request to"):
        exporter.open()
    exporter.close()


def test_mlflow_quotes_a_password_and_we_do_not() -> None:
    """It quotes the address that it was given."""
    exporter = create(f"mlflow?tracking_uri=http://ada:correct-horse@127.0.0.1:{free_port()}&run_name=x")
    with pytest.raises(ConnectionError, match=r"http://\*\*\*@127\.0\.0\.1") as error:
        exporter.open()
    exporter.close()
    assert "correct-horse" not in str(error.value)


class Refusing(BaseHTTPRequestHandler):
    """A tracking server that knows one run, takes the first batch, and refuses the next as long as it is told to."""

    batches: list[bytes]
    refuses: bool

    def do_GET(self) -> None:
        info = '{"run_id": "r1", "start_time": 1700000000000, "status": "RUNNING", "experiment_id": "0"}'
        self._answer(200, f'{{"run": {{"info": {info}, "data": {{}}}}}}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.refuses and len(self.batches) == 1:
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
    Refusing.batches, Refusing.refuses = [], False
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield listening.server_port
        listening.shutdown()
        thread.join()


def many() -> Record:
    """More than a batch takes."""
    metrics: dict[str, int | float] = {f"cpu.{number}.cpu_percent": number for number in range(1500)}
    return Record(Snapshot(time.time_ns(), "node-1", metrics), steps=(Step(time.time_ns(), None, {"loss": 1.0}),))


def test_a_record_that_broke_off_goes_on_where_it_did(server: int) -> None:
    """Of 1501 metrics the first 1000 arrive once, though the record is offered again; one offered instead of it is whole."""
    taken = many()
    with exporting(MlflowExporter("r1", tracking_uri=f"http://127.0.0.1:{server}")) as exporter:
        for follower, batches in ((taken, [1000, 501]), (many(), [1000, 1000, 501])):
            Refusing.refuses = True
            Refusing.batches.clear()
            with pytest.raises(ConnectionError, match=r"MLflow: .*503"):
                exporter.export(taken)
            Refusing.refuses = False
            exporter.export(follower)
            assert [batch.count(b'"key"') for batch in Refusing.batches] == batches


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
    with exporting(MlflowExporter(tracking_uri=uri, run_name="odd")) as exporter:
        steps = tuple(Step(time.time_ns(), number, {name: 0.5}) for number, name in ((2**70, "loss"), (-(2**70), "x\ud800" * 200)))
        exporter.export(Record(Snapshot(time.time_ns(), "node-1", {"gpu.0.temp": 1}), {"team": "caf\udce9\ud800"}, steps))
    (found,) = stored(uri)
    assert found.tags["accelmetrics.team"] == "caf\\udce9\\ud800"
    assert found.metrics["loss"][0][2] in range(30)
    assert {"loss", "system/gpu.0.temp"} < found.metrics.keys() and len(found.metrics) == 3


def test_a_value_that_the_store_fails_on_is_not_passing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str) -> None:
    """MLflow has one code for a server that is away and for what no database takes: the latter is refused, and not offered for ever."""
    monkeypatch.setattr("accelmetrics.exporters.mlflow.utf8", str)
    with exporting(MlflowExporter(tracking_uri=database, run_name="odd")) as exporter:
        with pytest.raises(RejectedError, match=r"MLflow: .*surrogates not allowed"):
            exporter.export(record(steps=False)._replace(labels={"team": "caf\udce9"}))
        exporter.export(record(steps=False))
