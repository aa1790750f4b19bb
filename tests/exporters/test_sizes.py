"""What a selection comes to on disk: lines of eight simulated H100s."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.exporters.files import JsonlExporter
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.schemas.snapshot import Snapshot
from tests.exporters.files_tools import exporting
from tests.records import LABELS, STATUS
from tests.simulators.nvml import NvmlSimulator, SimulatorUnavailable, build
from tests.support.waiting import HANG


@pytest.fixture(scope="module")
def readings() -> list[Snapshot]:
    """Three of a machine with eight H100s, rates among them."""
    try:
        build()
    except SimulatorUnavailable as unavailable:
        pytest.skip(str(unavailable))
    with NvmlSimulator(gpus=8) as simulator:
        simulator.load()
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
