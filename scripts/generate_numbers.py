"""Renders the numbers that documentation states about a machine with eight H100s, from readings of simulated ones.

Each pattern finds one number, with what stands around it; the words stay as they are.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from accelmetrics import MetricSelection, Reason, Sampler, Snapshot
from accelmetrics.backends.nvidia import NvidiaBackend
from accelmetrics.exporters.files import JsonlExporter
from accelmetrics.exporters.scrape_cache import ScrapeCache
from accelmetrics.schemas.record import Record
from accelmetrics.testing import FakeClock
from tests.simulators.nvml import NvmlSimulator

DOCS = Path(__file__).parents[1] / "docs"
GPUS = 8
PRESETS = ("core", "wandb", "standard", "all")
LISTENING = "nvmlEventSetWait_v2"
SCRAPE_INTERVAL = 15
MACHINES = 1000
SETTLING, COUNTED = 20, 10
"""Readings a second apart, before calls are counted and while they are: each value is read at least every ten seconds."""
PATIENCE = 60.0


def render(name: str) -> str:
    """Return the text of a page with its numbers renewed; as it is where no driver can be simulated.

    Raises:
        ValueError: The page has no place for one of its numbers.
    """
    text = (DOCS / name).read_text("utf-8")
    if sys.platform != "linux":
        return text
    for pattern, number in _places()[name]:
        found = re.search(pattern, text)
        if found is None:
            raise ValueError(
                f"docs/{name}: nothing matches {pattern!r}, where {number} belongs: change scripts/generate_numbers.py with the text"
            )
        text = text[: found.start(1)] + number + text[found.end(1) :]
    return text


@lru_cache(maxsize=1)
def _places() -> dict[str, list[tuple[str, str]]]:
    """By page, where each number stands and what it is."""
    cost = {preset: _cost(preset) for preset in PRESETS}
    snapshot = cost["all"][0]
    everything, core = _series(snapshot, "all"), _series(snapshot, "core")
    return {
        "exporters.md": [
            (r"8 H100s have ([\d,]+)\s+series", f"{everything:,}"),
            (r"series, ([\d,]+)\s+with `metrics=core`", f"{core:,}"),
            (r"such machines are ([\d,]+)\s+series", f"{everything * MACHINES:,}"),
            (r"series, ([\d,]+)\s+samples a second at 15 s", f"{everything * MACHINES / SCRAPE_INTERVAL:,.0f}"),
            (r"at 15 s, and ([\d,]+)\s+at 1 s", f"{everything * MACHINES:,}"),
        ],
        "why.md": [(r"reads all ([\d,]+)\s+numbers", f"{len(snapshot.metrics):,}")],
        "selection.md": [(rf"\n\| `{preset}` \|[^|]*\| ([^\n]+) \|\n", row) for preset, (_, row) in cost.items()],
    }


def _cost(preset: str) -> tuple[Snapshot, str]:
    """Read once a second. Returns: the last snapshot, and the cells of the table: keys, size of a line, calls per GPU and reading."""
    clock = FakeClock()
    with NvmlSimulator(GPUS, profile="h100") as simulator:
        simulator.load()
        with Sampler([NvidiaBackend(clock)], metrics=preset, clock=clock, timeout=PATIENCE) as sampler:
            for turn in range(SETTLING + COUNTED):
                clock.advance(1.0)
                if turn == SETTLING:
                    simulator.reset_calls()
                snapshot = sampler.sample()
            # A thread of its own waits for events, for as long as the readings really take.
            calls = sum(count for (function, _), count in simulator.calls().items() if function != LISTENING) / COUNTED / GPUS
    assert not any(why.reason == Reason.NEEDS_INTERVAL for why in snapshot.unavailable.values())
    with TemporaryDirectory() as folder:
        lines = JsonlExporter(Path(folder, "lines"))
        lines.open()
        lines.export(Record(snapshot))
        lines.close()
        size = len(Path(folder, "lines").read_bytes().splitlines()[-1])
    return snapshot, f"{len(snapshot.metrics):,} | {size / 1000:.1f} kB | {calls:.1f}"


def _series(snapshot: Snapshot, preset: str) -> int:
    """Count the series of devices in a scrape; those of the host depend on the machine."""
    cache = ScrapeCache("prometheus", max_age=1e12)
    cache.take(Record(snapshot.selected(MetricSelection(preset))))
    return sum(line.startswith("accel_") for line in cache.metrics().decode().splitlines())
