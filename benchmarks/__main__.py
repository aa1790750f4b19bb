"""`python -m benchmarks [--quick] [--write]`: what readings, monitors and exporters cost, against controls and peers.

Exit status 1 when something could not be measured. Whether a number reaches its target stands in the table.

`python -m benchmarks --compare [--write]`: counts that do not depend on the machine, against those committed in `counts.json`.
Exit status 1 when one got worse.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import counts, reading, rows, running, screen, starting
from benchmarks.rows import FULL, QUICK, Row, Scale
from tests.support.missing import MissingHere

Measure = Callable[[Scale], Iterator[Row]]

MEASURES: dict[str, Measure] = {
    "bare": reading.against_bare,
    "functions": reading.functions,
    "growth": reading.growth,
    "vendors": reading.vendors,
    "busy": reading.beside_busy_thread,
    "calls": reading.calls,
    "cpu": running.cpu_per_tick,
    "windows": running.windows,
    "ranks": running.ranks,
    "own": running.own_facts,
    "steps": running.steps,
    "models": running.models,
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
    parser.add_argument("--compare", action="store_true", help=f"compare counts with {counts.FILE.name}; with --write, renew that file")
    chosen = parser.parse_args()
    if chosen.compare:
        if chosen.quick or len(chosen.only) < len(MEASURES):
            parser.error("--compare counts everything: leave --quick and --only out")
        return compare(chosen.write)
    if chosen.write and len(chosen.only) < len(MEASURES):
        parser.error("--write needs all measurements: leave --only out")
    measured, failures = measure(chosen.only, QUICK if chosen.quick else FULL)
    sys.stdout.write("\n".join([*rows.table(measured), *failures, ""]))
    if chosen.write and not failures:
        rows.write(measured)
        sys.stderr.write("".join(f"{rows.README.name}, {rows.REASONS}: {line}\n" for line in rows.unexplained(rows.README.read_text())))
    return int(bool(failures))


def compare(renew: bool, file: Path = counts.FILE) -> int:
    """Compare what is counted with what is committed, or put it in its place."""
    try:
        committed = None if renew else counts.read(file)
        counted = counts.count_all(committed, lambda words: sys.stderr.write(f"{words}\n"))
    except (MissingHere, counts.UnreadableCountsError) as error:
        sys.stdout.write(f"counts: not compared: {error}\n")
        return 1
    if committed is None:
        file.write_text(counts.text(counted), "utf-8")
        return 0
    failures, notes = counts.compare(committed, counted)
    sys.stdout.write("".join(f"{line}\n" for line in (*notes, *failures)))
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
