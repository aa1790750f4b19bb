"""`python -m benchmarks [--quick] [--write]`: every number of the design that is about speed, and its peers'."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks import peers, readings, starting, steady, table
from benchmarks.environments import EnvironmentUnavailable
from benchmarks.rows import FULL, QUICK, Row, Scale
from tests.simulators.nvml import SimulatorUnavailable

Measure = Callable[[Scale], Iterator[Row]]

MEASURES: dict[str, Measure] = {
    "bare": readings.against_bare,
    "busy": readings.beside_busy_thread,
    "cpu": steady.cpu_per_tick,
    "calls": readings.calls,
    "start": starting.starting,
    "memory": steady.memory,
    "peers": peers.peers,
}


def main() -> int:
    """Measures and prints. Exit status 1 when a number is not reached or could not be taken."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="measure less of everything, for a first impression")
    parser.add_argument("--write", action="store_true", help=f"write the table to {table.README.name}; needs all measurements")
    parser.add_argument("--only", choices=MEASURES, nargs="+", default=list(MEASURES), help="take these measurements alone")
    chosen = parser.parse_args()
    if chosen.write and len(chosen.only) < len(MEASURES):
        parser.error("--write needs all measurements: leave --only out")
    rows, failures = measure(chosen.only, QUICK if chosen.quick else FULL)
    informative = [row for row in rows if not row.verdict]
    ordered = [row for row in rows if row.verdict] + informative
    sys.stdout.write("\n".join([*table.machine(), "", *table.lines(ordered), *failures, ""]))
    if chosen.write and not failures:
        table.write(ordered)
    return int(bool(failures) or any("missed" in row.verdict for row in rows))


def measure(names: list[str], scale: Scale) -> tuple[list[Row], list[str]]:
    """The rows, and in words what could not be measured."""
    rows: list[Row] = []
    failures: list[str] = []
    for name in names:
        started = time.perf_counter()
        try:
            rows += MEASURES[name](scale)
        except (EnvironmentUnavailable, SimulatorUnavailable) as error:
            failures.append(f"{name}: not measured: {error}")
        sys.stderr.write(f"{name}: {time.perf_counter() - started:.0f} s\n")
    return rows, failures


if __name__ == "__main__":
    sys.exit(main())
