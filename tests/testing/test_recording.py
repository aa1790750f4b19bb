"""Recording and replay: what was read once is said again, word for word."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from accelmetrics import Reason, Sampler
from accelmetrics.exporters.files import JsonlExporter
from accelmetrics.schemas.errors import DocumentError, InvalidOptionError
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.recording import read_records
from accelmetrics.testing import FakeBackend, Recorder, Recording
from tests.support.exporting import exporting


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Three snapshots of two GPUs, a TPU and a host."""
    gpus, tpu, host = FakeBackend("alpha", devices=2), FakeBackend("beta", "tpu"), FakeBackend("gamma", None)
    ticks = iter(range(100, 200))
    gpus.device(0).set(powerWatts=lambda: next(ticks), temp=40).miss("fanSpeed", Reason.NOT_SUPPORTED, "no fan")
    gpus.device(1).set(powerWatts=7.5).run(DeviceProcess(4711, "compute", 1 << 20))
    tpu.device(0).set(dutyCycle=99.5)
    host.device(0).set(memory_percent=12.5).miss("swap.used_percent", Reason.NOT_SUPPORTED, "no swap")
    path = tmp_path / "node.jsonl"
    with Sampler([gpus, tpu, host]) as sampler, Recorder(path, sampler) as recorder:
        recorder.take(samples=3)
    return path


def test_a_replay_says_what_was_recorded(recorded: Path) -> None:
    recording = Recording.load(recorded)
    with Sampler(recording.backends()) as sampler:
        for before in recording.snapshots:
            again = sampler.sample()
            assert again.metrics == before.metrics
            assert dict(again.unavailable) == dict(before.unavailable)
            assert [device.identity for device in again.devices] == [device.identity for device in before.devices]
            assert again.processes == before.processes


def test_the_end_of_a_recording_is_stale_unless_it_begins_again(recorded: Path) -> None:
    recording = Recording.load(recorded)
    with Sampler(recording.backends()) as sampler, Sampler(recording.backends(loop=True)) as looping:
        for _ in range(3):
            sampler.sample()
            looping.sample()
        over = sampler.sample()
        assert not over.metrics
        assert {why.reason for why in over.unavailable.values()} == {Reason.STALE}
        assert looping.sample().metrics == recording.snapshots[0].metrics


def test_a_cut_last_line_is_passed_over_and_any_other_is_named(recorded: Path) -> None:
    whole = recorded.read_text()
    recorded.write_text(whole[:-20])
    assert len(Recording.load(recorded).snapshots) == 2
    recorded.write_text("{}\n" + whole)
    with pytest.raises(DocumentError, match="line 1"):
        Recording.load(recorded)


def test_an_empty_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    with pytest.raises(InvalidOptionError, match="at least one snapshot"):
        Recording.load(tmp_path / "empty")


def test_this_machine_can_be_recorded(tmp_path: Path) -> None:
    path = tmp_path / "host.jsonl"
    with Sampler(["host"]) as sampler, Recorder(path, sampler) as recorder:
        taken = recorder.take(samples=2, interval=0.05)
    assert Recording.load(path).snapshots == tuple(taken)
    assert "memory_percent" in taken[1].metrics


def test_what_an_exporter_recorded_can_be_replayed_too(recorded: Path, tmp_path: Path) -> None:
    """Compressed too, and of releases whose lines were whole documents with labels beside the snapshots."""
    records = list(read_records(recorded))
    lines = [json.dumps(record._replace(labels={"run": "7"}).to_dict()) for record in records]
    packed = tmp_path / "old.jsonl.gz"
    packed.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    assert Recording.load(packed).snapshots == Recording.load(recorded).snapshots
    path = tmp_path / "run.jsonl"
    with exporting(JsonlExporter(path)) as exporter:
        for record in records:
            exporter.export(record)
    with Sampler(Recording.load(path).backends()) as sampler, Sampler(Recording.load(recorded).backends()) as other:
        for _ in records:
            again, expected = sampler.sample(), other.sample()
            assert (again.metrics, again.processes) == (expected.metrics, expected.processes)
            assert (again.unavailable, again.identities) == (expected.unavailable, expected.identities)
