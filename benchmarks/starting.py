"""The rows about starting: a cold `dump`, and `import accelmetrics`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from benchmarks.environments import REPOSITORY
from benchmarks.programs import LONGEST, environment
from benchmarks.rows import Row, Scale
from tests.simulators.nvml import NvmlSimulator

DUMP = ("-m", "accelmetrics", "dump", "--json", "--backends", "nvidia", "--settle", "0")
DEPENDENCIES = ("-c", "import pydantic, psutil, pynvml")
IMPORT = ("-c", "import accelmetrics")
NOTHING = ("-c", "pass")


def starting(scale: Scale) -> Iterator[Row]:
    """Processes that are started by turns; the first of either warms the disk's cache up."""
    with NvmlSimulator(scale.gpus) as simulator:
        visible = environment(simulator)
        dump, dependencies = _by_turns((DUMP, DEPENDENCIES), scale.starts, visible)
        imported, nothing = _by_turns((IMPORT, NOTHING), 2 * scale.starts, visible)
    what = '`accelmetrics dump --json --backends nvidia --settle 0` cold, against `python -c "import pydantic, psutil, pynvml"`'
    yield Row(what, dump / dependencies, "×", 0.8, 0.65, f"{dump * 1e3:.0f} ms, {dependencies * 1e3:.0f} ms")
    note = f"{imported * 1e3:.1f} ms, {nothing * 1e3:.1f} ms"
    yield Row("`import accelmetrics` over a bare interpreter", (imported - nothing) * 1e3, " ms", 2, None, note)


def _by_turns(programs: Sequence[Sequence[str]], count: int, visible: dict[str, str]) -> list[float]:
    """The median seconds of each."""
    spent: list[list[float]] = [[] for _ in programs]
    for turn in range(count + 1):
        for program, times in zip(programs, spent, strict=True):
            seconds = _start(program, visible)
            if turn:
                times.append(seconds)
    return [statistics.median(times) for times in spent]


def _start(program: Sequence[str], visible: dict[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *program], env=visible, cwd=REPOSITORY, stdout=subprocess.DEVNULL, timeout=LONGEST, check=True)
    return time.perf_counter() - started
