"""The rows about starting: a cold `dump`, `import accelmetrics`, the first typed view, and the detection of hardware."""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from benchmarks.environments import REPOSITORY
from benchmarks.programs import LONGEST, environment, run
from benchmarks.rows import Row, Scale, ratio, spread
from tests.simulators.nvml import NvmlSimulator

DUMP = ("-m", "accelmetrics", "dump", "--json", "--backends", "nvidia", "--settle", "0")
DEPENDENCIES = ("-c", "import pydantic, psutil, pynvml")
SAMPLE = ("-c", "import accelmetrics; accelmetrics.sample(['nvidia'])")
IMPORT = ("-c", "import accelmetrics")
NOTHING = ("-c", "pass")


def starting(scale: Scale) -> Iterator[Row]:
    """Processes that are started by turns; the first of either warms the disk's cache up."""
    with NvmlSimulator(scale.gpus) as simulator:
        visible = environment(simulator)
        dumps = _by_turns((DUMP, DEPENDENCIES), scale.starts, visible)
        samples = _by_turns((SAMPLE, DUMP), scale.starts, visible)
        imports = _by_turns((IMPORT, NOTHING), 2 * scale.starts, visible)
        looks = [tuple(run(simulator, "looking", what) for what in ("view", "model")) for _ in range(scale.processes + 1)][1:]
    what = '`accelmetrics dump --json --backends nvidia --settle 0` cold, against `python -c "import pydantic, psutil, pynvml"`'
    yield ratio(what, dumps, (0.8, 0.65))
    yield ratio(f'`python -c "{SAMPLE[1]}"`, whole, against that dump', samples)
    imported, nothing = (statistics.median(pair[side] for pair in imports) for side in (0, 1))
    note = f"{imported * 1e3:.1f} ms, {nothing * 1e3:.1f} ms"
    over = [(imported - nothing) * 1e3 for imported, nothing in imports]
    yield spread("`import accelmetrics` over a bare interpreter", over, " ms", (2, None), note)
    views, models = (statistics.median(pair[side]["resident"] for pair in looks) / 2**20 for side in (0, 1))
    what = "CPU of the first look at a device's typed view, against a first model of pydantic's with one field, each after a reading"
    note = f"; {views:.1f} MiB, {models:.1f} MiB: what is ours of it is {views - models:.1f} MiB"
    yield ratio(what, [(view["cpu"], model["cpu"]) for view, model in looks], (1.25, None), note)
    yield _detection(scale)


def _detection(scale: Scale) -> Row:
    """CPU of looking for every accelerator, as the first reading of a process does it."""
    looks = [run(None, "detecting") for _ in range(scale.processes)]
    again = statistics.median(look["again"] for look in looks)
    note = f"{looks[0]['backends']} backends, their modules imported meanwhile; once more {again * 1e3:.1f} ms"
    first = [look["first"] * 1e3 for look in looks]
    return spread("detection of all built-in accelerators on a machine that has none", first, " ms", (10, None), note)


def _by_turns(programs: tuple[Sequence[str], Sequence[str]], count: int, visible: dict[str, str]) -> list[tuple[float, float]]:
    """The seconds of each, turn by turn without the first."""
    first, second = programs
    return [(_start(first, visible), _start(second, visible)) for _ in range(count + 1)][1:]


def _start(program: Sequence[str], visible: dict[str, str]) -> float:
    """The seconds of one, waited for without a time-out: with one, Python looks again after pauses that grow to 50 ms."""
    started = time.perf_counter()
    with subprocess.Popen([sys.executable, *program], env=visible, cwd=REPOSITORY, stdout=subprocess.DEVNULL) as running:
        guard = threading.Timer(LONGEST, running.kill)
        guard.start()
        status = running.wait()
        spent = time.perf_counter() - started
        guard.cancel()
    if status:
        raise subprocess.CalledProcessError(status, program)
    return spent
