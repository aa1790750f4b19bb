"""Numbers that the documentation states of a machine with eight H100s come from a reading of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelmetrics import MetricSelection, Reason, Sampler, Snapshot
from accelmetrics.exporters.scrape_cache import ScrapeCache
from accelmetrics.schemas.record import Record
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import HANG, wait_for

DOCS = Path(__file__).parents[1] / "docs"
INTERVAL = 15


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    """Eight simulated H100s, rates among their values."""
    with NvmlSimulator(gpus=8, profile="h100") as simulator:
        simulator.load()
        with Sampler(["nvidia"], timeout=HANG) as sampler:
            found = wait_for(lambda: _settled(sampler.sample()))
            assert found is not None
            return found


def _settled(snapshot: Snapshot) -> Snapshot | None:
    """A snapshot in which no rate waits for another reading."""
    return None if any(why.reason == Reason.NEEDS_INTERVAL for why in snapshot.unavailable.values()) else snapshot


def series(snapshot: Snapshot, preset: str) -> int:
    """How many series of devices a scrape has; those of the host depend on the machine."""
    cache = ScrapeCache("prometheus", max_age=60)
    cache.take(Record(snapshot.selected(MetricSelection(preset))))
    return sum(line.startswith("accel_") for line in cache.metrics().decode().splitlines())


def test_the_series_of_eight_gpus(snapshot: Snapshot) -> None:
    """By preset, and what a thousand such machines come to."""
    text = " ".join((DOCS / "exporters.md").read_text("utf-8").split())
    everything, core = series(snapshot, "all"), series(snapshot, "core")
    assert f"8 H100s have {everything} series, {core} with `metrics=core`" in text
    assert f"are {everything:,},000 series, {everything * 1000 / INTERVAL:,.0f} samples a second at 15 s" in text


def test_the_keys_of_eight_gpus(snapshot: Snapshot) -> None:
    text = " ".join((DOCS / "why.md").read_text("utf-8").split())
    assert f"{len(snapshot.metrics)} numbers of eight H100s" in text
