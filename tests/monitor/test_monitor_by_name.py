"""`accelmetrics.Monitor`: exporters by name, labels of the job, and no more than one option too many."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import accelmetrics
from accelmetrics import Exporter, InvalidOptionError, Monitor, Sampler, UnknownNameError
from accelmetrics.monitor import monitor as inner
from accelmetrics.schemas.recording import read_records
from tests.monitor.watching import Recorder, gpus, no_threads
from tests.sampling.conftest import until


def test_exporters_are_named_by_strings_or_given_as_objects(tmp_path: Path) -> None:
    """A string alone is one exporter; what it writes carries the labels."""
    path, exporter = tmp_path / "run.jsonl", Recorder()
    several: list[str | Exporter] = [f"jsonl:{path}", exporter]
    for given in (several, f"jsonl:{tmp_path / 'alone.jsonl'}"):
        with Monitor(0.02, given, backends=[gpus(1)], labels={"team": "vision"}) as monitor:
            until(lambda: monitor.status.ticks >= 3)
    written = list(read_records(path))
    assert len(written) == len(exporter.records) >= 4
    assert [record.labels for record in written] == [dict(record.labels) for record in exporter.records]
    assert written[0].labels["team"] == "vision"
    assert (tmp_path / "alone.jsonl").read_text().count("\n") >= 4
    no_threads("accelmetrics-")


def test_what_is_no_exporter_is_refused_where_the_caller_sees_it() -> None:
    """With what there is."""
    with pytest.raises(UnknownNameError, match="jsonl"):
        Monitor(exporters=["jsnl:run"])
    with pytest.raises(InvalidOptionError, match="exporters is 5: it must be a list"):
        Monitor(exporters=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="labels is 'a=b'"):
        Monitor(labels="a=b")  # type: ignore[arg-type]


def test_labels_say_which_run_and_job_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's win over the job's, both over nothing; each monitor is a run of its own; all are texts."""
    monkeypatch.setenv("SLURM_JOB_ID", "4242")
    monkeypatch.setenv("RANK", "3")
    one = Monitor(labels={"rank": 5, "team": "vision"}, backends=[gpus(1)])  # type: ignore[dict-item]
    two = Monitor(backends=[gpus(1)], labels={"run_id": "mine", "hostname": "here"})
    assert one.labels["slurm.job.id"] == "4242"
    assert (one.labels["rank"], two.labels["rank"]) == ("5", "3")
    assert one.labels["hostname"]
    assert one.labels["run_id"] != Monitor(backends=[gpus(1)]).labels["run_id"]
    assert (two.labels["run_id"], two.labels["hostname"]) == ("mine", "here")
    assert all(isinstance(value, str) for value in one.labels.values())


def test_it_has_every_option_of_a_sampler_with_the_same_default() -> None:
    """What can be sampled can be monitored."""
    ours, theirs = (inspect.signature(kind.__init__).parameters for kind in (Monitor, Sampler))
    for name, parameter in theirs.items():
        assert name in ours, name
        assert ours[name].default == parameter.default, name
    assert inspect.signature(Monitor).parameters["history"].default == 300


def test_its_documentation_names_every_option() -> None:
    """And no other."""
    text = inspect.getdoc(Monitor) or ""
    arguments = text.partition("Args:")[2].partition("Raises:")[0]
    named = [line.strip().partition(":")[0] for line in arguments.splitlines() if line.startswith("    ") and not line.startswith("     ")]
    assert [name for name in inspect.signature(Monitor).parameters if name not in named] == []
    assert issubclass(Monitor, inner.Monitor)


def test_readings_are_shared_with_equal_options_given_in_other_words() -> None:
    """A list or a tuple of the same devices is the same."""
    backend = gpus(2)
    with Monitor(0.5, backends=[backend], gpus=[0]) as one, Monitor(0.5, backends=(backend,), gpus=(0,)) as two:
        until(lambda: one.latest is not None and one.latest is two.latest)
    assert one._key == two._key
    assert one._key != Monitor(0.5, backends=[backend], gpus=[1])._key


def test_the_readmes_example_works(tmp_path: Path) -> None:
    """By name, with a window and its energy."""
    with accelmetrics.Monitor(interval=0.05, exporters=[f"jsonl:{tmp_path}/run.jsonl"], backends=[gpus(1)]) as monitor:
        with monitor.window("epoch-0") as window:
            until(lambda: monitor.status.ticks >= 3)
        assert window.summary["gpu.0.powerWatts"].mean == 100.0
        energy = window.energy_joules["gpu.0"]
        assert energy.joules == pytest.approx(100.0 * energy.seconds)
        assert energy.source == "integrated"
        assert 0 < energy.seconds <= window.duration
