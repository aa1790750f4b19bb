"""What a selection comes to on disk: lines of eight simulated H100s."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from accelmetrics import Monitor, Sampler
from accelmetrics.exporters.files import JsonlExporter
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.recording import read_records
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.schemas.snapshot import Snapshot
from tests.records import LABELS, STATUS
from tests.simulators.nvml import NvmlSimulator
from tests.support.exporting import exporting
from tests.support.waiting import HANG, wait_for


@pytest.fixture(scope="module")
def machine() -> Iterator[NvmlSimulator]:
    """Eight H100s, which this process sees."""
    with NvmlSimulator(gpus=8) as simulator:
        simulator.load()
        yield simulator


@pytest.fixture(scope="module")
def readings(machine: NvmlSimulator) -> list[Snapshot]:
    """Three of them, with rates."""
    with Sampler(["nvidia"], timeout=HANG) as sampler:
        return [sampler.sample() for _ in range(3)]


@pytest.mark.parametrize(("preset", "most"), [("core", 3_200), ("standard", 18_000)])
def test_a_line_of_eight_gpus(readings: list[Snapshot], tmp_path: Path, preset: str, most: int) -> None:
    """A reading below its header is no longer than so many bytes, and a fraction of the document of all."""
    path = tmp_path / "run.jsonl"
    records = [Record(snapshot.selected(MetricSelection(preset)), LABELS, (), STATUS) for snapshot in readings]
    with exporting(JsonlExporter(path)) as exporter:
        for record in records:
            exporter.export(record)
    last = path.read_bytes().splitlines()[-1]
    assert last.startswith(b'{"timestamp"')
    assert len(last) <= most
    assert len(last) < 0.5 * len(Record(readings[-1], LABELS, (), STATUS).to_json())


def test_each_exporter_of_a_monitor_gets_what_it_wants(machine: NvmlSimulator, tmp_path: Path) -> None:
    """A file has nothing of single links unless it is told to, and a reading that all of them share is still whole."""
    plain, whole = tmp_path / "plain.jsonl", tmp_path / "whole.jsonl"
    exporters = [f"jsonl:{plain}", f"jsonl:{whole}?metrics=all"]
    with Monitor(0.05, exporters, backends=["nvidia"], timeout=HANG) as monitor:
        wait_for(lambda: monitor.status.ticks >= 3)
    link = "gpu.0.nvlink.0.state"
    for chosen, everything in zip(read_records(plain), read_records(whole), strict=True):
        assert link not in chosen.snapshot.metrics
        assert link in everything.snapshot.metrics
        assert chosen.snapshot.metrics.items() < everything.snapshot.metrics.items()
    assert monitor.latest is not None
    assert link in monitor.latest.metrics
