"""What a report of a recording costs, and reading each of its lines as JSON alone.

Arguments: GPUs, lines, a preset of metrics.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path

from accelmetrics.cli import YOUNG
from accelmetrics.schemas.catalogue import expected_names, rows
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceSlot
from accelmetrics.schemas.lines import LineWriter
from accelmetrics.schemas.record import MonitorStatus, Record
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.schemas.snapshot import Snapshot, rfc3339
from accelmetrics.views.report.making import CHARTED, Wanted, report_of_files

START = 1_767_225_600
CHANGING: dict[str, Callable[[random.Random, int], float]] = {
    "gpu": lambda chance, _: chance.randrange(60, 101),
    "powerWatts": lambda chance, _: round(chance.uniform(400, 700), 3),
    "energyJoules": lambda chance, second: round(550.0 * second + chance.random(), 3),
    "temp": lambda chance, _: chance.randrange(60, 70),
    "memoryTemp": lambda chance, _: chance.randrange(70, 80),
    "smClock": lambda chance, _: 1500 + 15 * chance.randrange(30),
    "memoryAllocatedBytes": lambda chance, _: (61_440 + chance.randrange(100)) * 2**20,
    "memoryAllocated": lambda chance, _: 75 + chance.random() / 10,
    "pcieTxBytes": lambda chance, _: chance.randrange(10**9),
    "pcieRxBytes": lambda chance, _: chance.randrange(10**9),
}
"""Metrics that differ from reading to reading while a GPU computes."""


def recorded(gpus: int, lines: int, preset: str) -> Iterator[Record]:
    """A reading a second of busy GPUs and the host."""
    wanted, chance = MetricSelection(preset), random.Random(1)
    names = [name for name in expected_names("nvidia") if "{" not in name and "process" not in name and wanted.wants(f"gpu.0.{name}")]
    host = [row.key for row in rows() if "{" not in row.key and wanted.wants(row.key)]
    identities = [DeviceIdentity("gpu", "nvidia", number, "H100", f"GPU-{number:08d}") for number in range(gpus)]
    slots = [DeviceSlot(f"gpu.{number}", number, number, identity) for number, identity in enumerate(identities)]
    for second in range(lines):
        time_ns = int((START + second + chance.random() / 1000) * 1e9)
        of_gpus = ((f"{slot.key}.{name}", CHANGING[name](chance, second) if name in CHANGING else 1) for slot in slots for name in names)
        metrics = dict(chain(of_gpus, ((key, round(chance.uniform(0, 100), 1)) for key in host)))
        sources = [BackendStatus(name, "ok", "", name, 0.001, rfc3339(time_ns), 0.001, second + 1) for name in ("nvidia", "host")]
        yield Record(Snapshot(time_ns, "node", metrics, slots, {}, sources), {"run_id": "bench"}, (), MonitorStatus(1.0, second))


def cost(work: Callable[[], object]) -> float:
    """CPU seconds."""
    before = time.process_time()
    work()
    return time.process_time() - before


def main() -> None:
    """Prints CPU seconds of the report as text, of one with series, and of the JSON alone."""
    gc.set_threshold(YOUNG)
    gpus, lines, preset = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    with tempfile.TemporaryDirectory() as folder:
        path, writer = Path(folder, "run.jsonl"), LineWriter()
        with path.open("w") as file:
            for number, record in enumerate(recorded(gpus, lines, preset)):
                file.write(writer.lines(record, fresh=number == 0))
                writer.wrote()

        few = Path(folder, "few.jsonl")
        with path.open() as file:
            few.write_text("".join(islice(file, 10)))
        report_of_files([str(few)], Wanted(series=CHARTED))  # what is loaded and built once

        def loaded() -> None:
            with path.open("rb") as file:
                for line in file:
                    json.loads(line)

        result = {
            "json": cost(loaded),
            "text": cost(lambda: report_of_files([str(path)])),
            "series": cost(lambda: report_of_files([str(path)], Wanted(series=CHARTED))),
            "keys": len(record.snapshot.metrics),
        }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
