"""A run of ours: begun offline, read back from its file; refused in one line without a login."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest

from accelmetrics.dialects.registry import dialect
from accelmetrics.exporters.network import RejectedError
from accelmetrics.exporters.registry import create
from accelmetrics.exporters.wandb import SETTINGS, WandbExporter
from accelmetrics.schemas.errors import InvalidOptionError, MissingDependencyError
from accelmetrics.schemas.record import Step
from tests.exporters.wandb_file import environment, read, runs_by_file
from tests.records import LABELS, record
from tests.support.exporting import export, exporting
from tests.support.programs import Program
from tests.support.waiting import wait_for

pytestmark = pytest.mark.peers

POWER = "system/gpu.0.powerWatts"


@pytest.fixture(autouse=True)
def logged_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No account, no network, no home but the test's directory; W&B's service process ends with the test."""
    import wandb

    own = environment(tmp_path)
    for name in set(os.environ) | set(own) | {"WANDB_SERVICE"}:
        value = own.get(name)
        monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    hooks = sys.exit, sys.excepthook
    yield
    wandb.teardown()
    sys.exit, sys.excepthook = hooks


def test_what_is_not_finite_is_kept_and_other_ranks_are_not_mixed_in(tmp_path: Path) -> None:
    """A loss that has gone stands in the row of its step; a name is one series."""
    exporter = create("wandb:?project=hw&mode=offline&directory=runs")
    taken = record()
    taken = taken._replace(snapshot=taken.snapshot.with_values({}, {}), labels={"rank": "0", "hostname": taken.snapshot.hostname})
    own = Step(taken.snapshot.time_ns, 8, {"loss": float("nan"), "nonFinite": 1}, 0, taken.snapshot.hostname)
    export(exporter, taken._replace(steps=(own, own._replace(values={"loss": 9.0}, rank=1))))
    (written,) = read(tmp_path / "runs")
    (row,) = [row for row in written.history if "training/loss" in row]
    assert (repr(float(row["training/loss"])), row["training/nonFinite"]) == ("nan", 1)


def test_every_reading_is_a_row_of_a_run_of_ours(tmp_path: Path) -> None:
    """Project, labels and prefix arrive; steps and readings are rows; closing finishes the run."""
    exporter = create("wandb:?project=team/hw&name=node-1&group=night&mode=offline&directory=runs&prefix=hw/")
    taken = record()
    with exporting(exporter):
        for _ in range(3):
            exporter.export(taken)
        exporter.flush()
    (written,) = read(tmp_path / "runs")
    readings = [row for row in written.history if "hw/gpu.0.powerWatts" in row]
    assert [row["_step"] for row in readings] == [1, 3, 5]
    for row in readings:
        expected = {f"hw/{key}": value for key, value in taken.snapshot.metrics.items()}
        assert {key: value for key, value in row.items() if key in expected} == expected
    assert [row["training/loss"] for row in written.history if "training/loss" in row] == [0.25] * 3
    assert {key: written.config[key] for key in LABELS} == LABELS
    assert written.finished and not written.stats


def test_a_run_of_ours_is_never_the_programs(tmp_path: Path) -> None:
    """Begun before the program's run and ended after it, it is not what `wandb.init` gives back, nor are its id and name the program's."""
    code = (
        "import wandb; from accelmetrics.exporters.registry import create; from tests.records import record\n"
        "one = create('wandb:?project=ours&mode=offline'); one.open(); one.export(record()); assert wandb.run is None\n"
        "run = wandb.init(mode='offline', project='theirs', settings=wandb.Settings(silent=True, x_disable_stats=True))\n"
        "assert (run.project, run.id, run.name) == ('theirs', 'theirs-1', 'their name')\n"
        "run.log({'loss': 1}); one.export(record()); run.finish(); one.export(record()); one.close()\n"
    )
    own = environment(tmp_path, WANDB_RUN_ID="theirs-1", WANDB_NAME="their name")
    shown = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=own, capture_output=True, text=True, timeout=100)
    assert (shown.returncode, shown.stdout, shown.stderr) == (0, "", "")
    runs = runs_by_file(tmp_path)
    rows = {file.stem: [sorted(row) for row in run.history] for file, run in runs.items()}
    assert [keys for keys in rows.pop("run-theirs-1") if "loss" in keys or POWER in keys] == [["_runtime", "_step", "_timestamp", "loss"]]
    assert [sum(POWER in keys for keys in found) for found in rows.values()] == [3]
    assert all(run.finished for run in runs.values())


def test_the_system_stream_has_each_reading_at_its_own_time(tmp_path: Path) -> None:
    """Its names are those of the dialect, without a prefix; what the program logged stays in the history."""
    exporter = create("wandb:?project=hw&mode=offline&directory=runs&stream=system&dialect=verl")
    taken = record()
    export(exporter, taken)
    (written,) = read(tmp_path / "runs")
    assert taken.monitor is not None
    expected = {**dialect("verl").flat(taken), **taken.monitor.flat()}
    assert written.stats == [{"_time_ns": taken.snapshot.time_ns, **expected}] and expected["gpu_0_power_usage_w"] == 300.0
    assert [row["training/loss"] for row in written.history] == [0.25]


def test_a_wandb_without_that_interface_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the exporter is made, not when it is opened."""
    from wandb.sdk.interface.interface_shared import InterfaceShared

    monkeypatch.delattr(InterfaceShared, "_publish")
    with pytest.raises(InvalidOptionError, match=r"^wandb \d[\d.]* cannot publish system metrics: [^.]*0\.31 or later$"):
        create("wandb:?stream=system")
    with pytest.raises(InvalidOptionError, match="it must be one of history, system"):
        WandbExporter(stream="charts")  # type: ignore[arg-type]


def test_the_system_stream_of_a_run_that_is_finished_or_switched_off(tmp_path: Path) -> None:
    """Nothing can be published: the one is refused as in the history, the other takes nothing, as W&B has it."""
    import wandb

    settings = wandb.Settings(silent=True, x_disable_stats=True, console="off")
    for mode in ("disabled", "offline"):
        run = wandb.init(mode=mode, project="theirs", settings=settings)
        exporter = WandbExporter(run, stream="system")
        with exporting(exporter):
            exporter.export(record(steps=False))
            run.finish()
            if mode == "offline":
                with pytest.raises(RejectedError, match="the run is finished"):
                    exporter.export(record(steps=False))
    (written,) = read(tmp_path)
    assert len(written.stats) == 1


def test_closed_and_opened_again_it_begins_another_run(tmp_path: Path) -> None:
    """A restart of the monitor is a run of its own."""
    exporter, taken = WandbExporter(project="hw", mode="offline"), record(steps=False)
    for _ in range(2):
        export(exporter, taken)
    assert [len([row for row in run.history if POWER in row]) for run in read(tmp_path)] == [1, 1]


def test_at_exit_the_run_has_every_record_and_is_finished(tmp_path: Path) -> None:
    """A program that does not stop its monitor: the last reading is taken and logged before W&B ends its service process."""
    text = """
        import accelmetrics
        from accelmetrics.monitor import run
        from tests.records import host, machine
        run.EXIT_TIMEOUT = 30.0  # a loaded machine is given longer than users wait
        monitor = accelmetrics.Monitor(0.05, exporters=["wandb:?project=hw&mode=offline"], backends=[machine(), host()])
        monitor.start()
        while monitor.status.exporters[0].sent < 2:
            monitor.flush(0.1)
    """
    with Program(text, env=environment(tmp_path), cwd=tmp_path) as program:
        assert (program.end(), program.errors) == (0, "")
    (written,) = read(tmp_path)
    taken = [row["system/monitor.ticks"] for row in written.history if POWER in row]
    assert taken == list(range(1, len(taken) + 1)) and len(taken) > 2
    assert written.finished


def test_a_definition_that_failed_is_made_with_the_record_offered_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name has its axis, whatever went wrong when it was first told."""
    exporter, taken = WandbExporter(project="hw", mode="offline"), record(steps=False)
    with exporting(exporter):

        def fails(*arguments: object, **options: object) -> None:
            raise ConnectionError("the service is away")

        with monkeypatch.context() as patch, pytest.raises(ConnectionError):
            patch.setattr(exporter._run, "define_metric", fails)
            exporter.export(taken)
        exporter.export(taken)
    (written,) = read(tmp_path)
    (row,) = (row for row in written.history if POWER in row)
    defined = {name.replace("\\.", ".") for name in written.metrics}
    assert {name for name in row if not name.startswith("_")} <= defined


def test_a_killed_service_process_is_said_and_keeps_records_waiting(tmp_path: Path) -> None:
    """W&B starts no other one: the error is passing, so that records wait in the queue, and closing says it too."""
    text = """
        from accelmetrics.exporters.wandb import WandbExporter
        from tests.records import record
        exporter, taken = WandbExporter(project="hw", mode="offline"), record(steps=False)
        exporter.open()
        exporter.export(taken)
        tell("open")
        wait_to_go_on()
        def fails(call):
            try:
                call()
            except ConnectionError as error:
                tell(str(error))
                return True
        while not fails(lambda: exporter.export(taken)):
            pass  # W&B takes records until it has seen that its service is gone
        fails(lambda: exporter.export(taken))
        fails(exporter.close)
    """
    with Program(text, env=environment(tmp_path), cwd=tmp_path) as program:
        assert program.told() == ["open"]
        children = psutil.Process(program.pid).children(recursive=True)
        (service,) = [child for child in children if "wandb-core" in " ".join(child.cmdline())]
        service.kill()
        wait_for(lambda: not service.is_running() or service.status() == psutil.STATUS_ZOMBIE)
        program.go_on()
        for _ in range(3):
            (said,) = program.told()
            assert said.startswith("Weights & Biases: its service process has ended, and W&B starts no other in this program (")


def test_in_a_sweep_there_is_only_the_sweeps_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B would give a run of ours the id of the sweep's: it is refused."""
    monkeypatch.setenv("WANDB_SWEEP_ID", "s1")
    exporter = WandbExporter(project="hw", mode="offline")
    with pytest.raises(RejectedError, match="in a sweep, every run is the sweep's"):
        exporter.open()
    exporter.close()


def test_not_logged_in_is_one_clear_line() -> None:
    """Without a login and without a mode the answer says what to do, in one line."""
    exporter = WandbExporter(project="hw")
    with pytest.raises(RejectedError) as caught:
        exporter.open()
    exporter.close()
    said = str(caught.value)
    assert said == "Weights & Biases: not logged in: run `wandb login`, set WANDB_API_KEY, or choose mode=offline"


def test_nothing_is_asked_on_a_terminal(tmp_path: Path) -> None:
    """At a terminal, where W&B would ask for a key, it is the same line, and nothing is written on the terminal."""
    code = (
        "from accelmetrics.exporters.wandb import WandbExporter\nfrom accelmetrics.exporters.network import RejectedError\n"
        "one = WandbExporter(project='hw')\ntry:\n one.open()\nexcept RejectedError as error:\n print('said:', error)\n"
    )
    ours, theirs = pty.openpty()
    try:
        own, command = environment(tmp_path, TERM="xterm"), [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, env=own, timeout=100, stdin=theirs, stdout=theirs, stderr=theirs)
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0
    assert shown.startswith("said: Weights & Biases: not logged in: run `wandb login`") and shown.count("\n") == 1


def test_a_server_that_is_away_is_passing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A login without a network is an OSError: the monitor tries again later."""
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setitem(SETTINGS, "init_timeout", 1.0)
    exporter = WandbExporter(project="hw", mode="online")
    with pytest.raises(ConnectionError, match="Weights & Biases: "):
        exporter.open()
    exporter.close()


@pytest.mark.parametrize("kind", ["CommError", "UsageError", "AuthenticationError"])
def test_what_wandb_says_is_told_without_its_key(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever way it fails."""
    import wandb

    failure = getattr(wandb.errors, kind)("refused " + "0123456789abcdef" * 3)
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef" * 3)
    monkeypatch.setattr(wandb, "init", Mock(side_effect=failure))
    exporter = WandbExporter(project="hw", mode="online")
    with pytest.raises((ConnectionError, RejectedError)) as error:
        exporter.open()
    exporter.close()
    assert str(error.value) == "Weights & Biases: refused ***"


def test_a_disabled_run_of_the_program_costs_nothing(tmp_path: Path) -> None:
    """`WANDB_MODE=disabled` switches W&B off for the program, and with it the exporter."""
    code = (
        "import wandb; from accelmetrics.exporters.registry import create; from tests.records import record\n"
        "run = wandb.init(project='theirs'); one = create('wandb'); one.open(); one.export(record()); one.close(); run.finish()\n"
    )
    own = environment(tmp_path, WANDB_MODE="disabled")
    shown = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=own, capture_output=True, text=True, timeout=100)
    assert shown.returncode == 0, shown.stderr
    assert not list(tmp_path.rglob("*.wandb"))


def test_options_that_cannot_be_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mode that is none, and a package that is not there; W&B's directory of the same name is not the package."""
    with pytest.raises(InvalidOptionError, match="must be 'online' or 'offline'"):
        create("wandb:?mode=cloud")
    (tmp_path / "wandb").mkdir()
    monkeypatch.delitem(sys.modules, "wandb")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(MissingDependencyError, match=r"accelmetrics\[wandb\]"):
        WandbExporter()


def test_odd_labels_and_a_directory_that_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text that is no UTF-8 arrives with its escape; a relative directory means the one of the moment when the exporter is made."""
    exporter = WandbExporter(project="hw", mode="offline", directory="runs")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    export(exporter, record(steps=False)._replace(labels={"team\udce9": "caf\udce9"}))
    (written,) = read(tmp_path / "runs")
    assert written.config["team\\udce9"] == "caf\\udce9"
