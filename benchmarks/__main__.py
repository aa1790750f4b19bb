"""`python -m benchmarks [--quick] [--write]`: what readings, monitors and exporters cost, against controls and peers.

Exit status 1 when something could not be measured. Whether a number reaches its target stands in the table.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks import reading, rows, running, screen, starting
from benchmarks.rows import FULL, QUICK, Row, Scale
from tests.support.missing import MissingHere

Measure = Callable[[Scale], Iterator[Row]]

MEASURES: dict[str, Measure] = {
    "bare": reading.against_bare,
    "functions": reading.functions,
    "growth": reading.growth,
    "busy": reading.beside_busy_thread,
    "calls": reading.calls,
    "cpu": running.cpu_per_tick,
    "windows": running.windows,
    "ranks": running.ranks,
    "steps": running.steps,
    "findings": running.findings,
    "page": running.page,
    "exporters": running.exporters,
    "reports": running.reports,
    "watch": screen.watching,
    "start": starting.starting,
    "memory": running.memory,
    "peers": reading.peers,
}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="measure less of everything, for a first impression")
    parser.add_argument("--write", action="store_true", help=f"write the table to {rows.README.name}; needs all measurements")
    parser.add_argument("--only", choices=MEASURES, nargs="+", default=list(MEASURES), help="take these measurements alone")
    chosen = parser.parse_args()
    if chosen.write and len(chosen.only) < len(MEASURES):
        parser.error("--write needs all measurements: leave --only out")
    measured, failures = measure(chosen.only, QUICK if chosen.quick else FULL)
    sys.stdout.write("\n".join([*rows.table(measured), *failures, ""]))
    if chosen.write and not failures:
        rows.write(measured)
    return int(bool(failures))


def measure(names: list[str], scale: Scale) -> tuple[list[Row], list[str]]:
    """The rows, and in words what could not be measured."""
    measured: list[Row] = []
    failures: list[str] = []
    for name in names:
        started = time.perf_counter()
        try:
            measured += MEASURES[name](scale)
        except MissingHere as error:
            failures.append(f"{name}: not measured: {error}")
        sys.stderr.write(f"{name}: {time.perf_counter() - started:.0f} s\n")
    return measured, failures


if __name__ == "__main__":
    sys.exit(main())
