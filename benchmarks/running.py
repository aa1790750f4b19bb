"""The rows about running for long: CPU per tick against W&B's processes, windows, ranks, exporters, memory."""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import psutil

from accelmetrics.monitor.window import PENDING
from benchmarks.environments import REPOSITORY, torch_python, wandb_python
from benchmarks.programs import environment, finish, run, side_by_side, started, wait_for_line
from benchmarks.rows import Row, Scale, ratio, seconds, spread
from benchmarks.workers.stepping import STEPS_PER_ROW
from tests.simulators.nvml import NvmlSimulator

RATE = 10
STEP = 0.01
"""Seconds that a step of a training computes."""
WARM_UP = 2.0
SURVIVORS = 3
DRIVER_LATENCY = 50
HISTORY_GPUS, HISTORY_KEYS = 8, 40
WEIGHED_GPUS = 6
PAGES = 50
COLLECTORS = ("wandb-core", "wandb-symon")


class Cost(NamedTuple):
    """What W&B's collector costs: CPU seconds and calls into NVML per tick and GPU, resident bytes of its processes."""

    cpu: float
    calls: float
    resident: int


def cpu_per_tick(scale: Scale) -> Iterator[Row]:
    """Readings ten times a second, GPUs and host: this process against W&B's two."""
    rounds = [(own_cost(scale), wandb_cost(scale), own_cost(scale, windows=1)) for _ in range(scale.rounds)]
    what = f"CPU per tick at {RATE} Hz, {scale.gpus} simulated GPUs and host metrics, against W&B's own collector processes"
    yield ratio(what, [(ours, theirs.cpu) for ours, theirs, _ in rounds], (0.35, 0.25), show=milliseconds)
    what = f"the same with `Monitor(interval={1 / RATE})`, its history and an open window"
    yield ratio(what, [(watching, theirs.cpu) for _, theirs, watching in rounds], show=milliseconds)
    last = rounds[-1][1]
    note = f"{last.cpu * 1e3:.2f} ms of CPU a sample, {last.resident / 2**20:.0f} MiB resident"
    yield Row("wandb 0.31, offline: NVML calls per GPU per tick", last.calls, "", note=note)


def milliseconds(seconds: float) -> str:
    """CPU time of a tick."""
    return f"{seconds * 1e3:.2f} ms"


def own_cost(scale: Scale, windows: int = 0) -> float:
    """CPU seconds per tick of a Sampler, or of a Monitor with so many open windows."""
    with NvmlSimulator(scale.gpus) as simulator:
        return float(run(simulator, "ticking", RATE, scale.seconds, windows)["cpu"])


def windows(scale: Scale) -> Iterator[Row]:
    """What more windows cost a Monitor, over whole blocks of the rows that windows fold together."""
    blocks = scale._replace(seconds=math.ceil(scale.seconds * RATE / PENDING) * PENDING / RATE)
    costs = [(own_cost(blocks, 10), own_cost(blocks, 1)) for _ in range(scale.rounds)]
    what = f"CPU per tick of a Monitor at {RATE} Hz, {scale.gpus} GPUs and host metrics: ten open windows against one"
    yield ratio(what, costs, (1.5, None), show=milliseconds)
    with NvmlSimulator(scale.gpus) as simulator:
        folded = [run(simulator, "folding", 5 * RATE, scale.turns) for _ in range(scale.rounds)]
    what = f"all results of a window of 5 s at {RATE} Hz, folded at its end: CPU"
    yield spread(what, [one["seconds"] * 1e3 for one in folded], " ms", (8, None), f"{folded[0]['keys']} keys")


def ranks(scale: Scale) -> Iterator[Row]:
    """A node on which each rank of a job runs a Monitor, by itself or sharing one reading."""
    with tempfile.TemporaryDirectory() as directory:
        where = Path(directory)
        rounds = [(own_cost(scale, windows=1), _shared(scale, where, "rest"), _shared(scale, where, "work")) for _ in range(scale.rounds)]
        least = [_least(scale) for _ in range(scale.rounds)]
        alone = _node_cost(scale, None)
        dear = [_node_cost(scale, directory, latency=DRIVER_LATENCY) for directory in (where, None)]
        gaps = takeover_gaps(scale, where)
    one = statistics.median(own for own, *_ in rounds)
    what = f"CPU per tick of a node with {scale.ranks} ranks, a Monitor each, against one Monitor"
    yield ratio(what, [(alone, one)], show=milliseconds)
    resting = [(sum(rank["cpu"] for rank in found), own) for own, found, _ in rounds]
    yield ratio('the same with `share="node"`, seven that nobody looks at', resting, (1.2, 1.1), show=milliseconds)
    working = [(sum(rank["cpu"] for rank in found), own) for own, _, found in rounds]
    what = "the same, all log a step every 100 ms and look at `latest` once a second, one writes a JSON line a second"
    yield ratio(what, working, (1.8, 1.4), show=milliseconds)
    what = f"one Monitor and {scale.ranks} processes without one that wake up, write a step and read a row as often, against one Monitor"
    yield ratio(what, [(own + rest, own) for (own, *_), rest in zip(rounds, least, strict=True)], show=milliseconds)
    what = f'{scale.ranks} ranks with `share="node"` against the same without, each call taking {DRIVER_LATENCY} µs of CPU in the driver'
    yield ratio(what, [(dear[0], dear[1])], show=milliseconds)
    followers = [[rank for rank in found if rank["role"] == "client"] for _, _, found in rounds]
    steps = [statistics.median(rank["step"] for rank in found) for found in followers]
    yield spread("`Monitor.log` with four numbers in a rank that shares", steps, " µs", (30.0, 18.0), "")
    memory = [statistics.median(rank["memory"] for rank in found) for found in followers]
    yield spread("memory of a rank that shares, above an empty interpreter", memory, " MiB", (22.0, None), "")
    what = f"longest time between two readings of a rank, at {RATE} Hz, when the process that reads is killed"
    yield Row(
        what,
        max(gaps),
        " s",
        0.15,
        0.12,
        note=f"{SURVIVORS} ranks that go on; longest of each run {', '.join(f'{gap:.2f} s' for gap in gaps)}",
    )


def _shared(scale: Scale, directory: Path, what: str) -> list[dict[str, Any]]:
    """What the ranks of a job that shares say of themselves."""
    with NvmlSimulator(scale.gpus) as simulator, ExitStack() as stack:
        found = [what] * (scale.ranks - 1) + [f"{what}+file" if what == "work" else what]
        programs = [stack.enter_context(started(simulator, "ranking", RATE, scale.seconds, directory, one)) for one in found]
        for program in programs:
            wait_for_line(program)
        return [finish(program) for program in programs]


def _least(scale: Scale) -> float:
    """CPU seconds per tick of as many processes that do the least of what working ranks do."""
    with ExitStack() as stack:
        programs = [stack.enter_context(started(None, "least", scale.seconds)) for _ in range(scale.ranks)]
        return sum(float(finish(program)["cpu"]) for program in programs) / RATE


def _node_cost(scale: Scale, directory: Path | None, latency: int = 0) -> float:
    """CPU seconds per tick of the ranks of a node together, each with a Monitor."""
    shared = [] if directory is None else [directory]
    with NvmlSimulator(scale.gpus) as simulator, ExitStack() as stack:
        simulator.set(latency_us=latency, latency_spin=1)
        programs = [stack.enter_context(started(simulator, "ticking", RATE, scale.seconds, 1, *shared)) for _ in range(scale.ranks)]
        return sum(float(finish(program)["cpu"]) for program in programs)


def takeover_gaps(scale: Scale, directory: Path) -> list[float]:
    """For each kill of the process that reads, the longest gap in any rank's readings, in seconds."""
    gaps = []
    with NvmlSimulator(scale.gpus) as simulator, ExitStack() as stack:
        for _ in range(scale.rounds):
            programs = [stack.enter_context(started(simulator, "surviving", RATE, directory)) for _ in range(SURVIVORS + 1)]
            roles = [wait_for_line(program) for program in programs]
            holder = programs.pop(roles.index("holder"))
            holder.kill()
            time.sleep(WARM_UP)
            gaps.append(max(float(finish(program)["gap"]) for program in programs))
    return gaps


def own_facts(scale: Scale) -> Iterator[Row]:
    """What each of the processes that share a reading pays to look at itself."""
    results = [run(None, "own_facts", max(1, round(scale.seconds))) for _ in range(scale.rounds)]
    look, files = (statistics.median(result[name] for result in results) for name in ("look", "files"))
    note = f"{results[0]['keys']} keys, {seconds(look)}; its files alone {seconds(files)}"
    what = "a process's own facts a look (`cpu`, `proc.*`, memory) beside a shared reading, a look a second, CPU time"
    yield spread(what, [result["look"] * 1e3 for result in results], " ms", (0.25, 0.20), note)


def steps(scale: Scale) -> Iterator[Row]:
    """What a training run costs the training's own thread."""
    with NvmlSimulator(scale.gpus) as simulator:
        results = [run(simulator, "stepping", max(STEPS_PER_ROW, round(scale.seconds / STEP / 2)), STEP) for _ in range(scale.processes)]
    ours, control, row = (statistics.median(result[name] for result in results) for name in ("ours", "control", "row"))
    what = f"`run.step()` with four numbers beside a step of {STEP * 1e3:.0f} ms, median, over a method that does nothing"
    note = f"{seconds(ours)}, {seconds(control)}; `run.row()` every second {seconds(row)}"
    yield spread(what, [(result["ours"] - result["control"]) * 1e6 for result in results], " µs", (50, None), note)


def models(scale: Scale) -> Iterator[Row]:
    """What `run.watch(model)` adds to a step that it measures."""
    python = torch_python()
    results = [run(None, "modelling", 2 * max(10, scale.readings // 10), python=python) for _ in range(scale.rounds)]
    measured, plain = (statistics.median(result[name] for result in results) for name in ("measured", "plain"))
    what = "a training step of a transformer on one CPU core that `run.watch(model)` measures, over one that it does not, CPU time"
    note = f"{seconds(measured)}, {seconds(plain)}, {results[0]['numbers']} numbers; one in 100 is measured unless told otherwise"
    yield spread(what, [result["measured"] / result["plain"] for result in results], "×", (1.25, 1.1), note)


def findings(scale: Scale) -> Iterator[Row]:
    """What judging a reading costs the monitor's thread."""
    with NvmlSimulator(scale.gpus) as simulator:
        results = [run(simulator, "judging", scale.readings) for _ in range(scale.processes)]
    what = f"judging a reading by all rules, {scale.gpus} GPUs, median; once a second at most"
    note = f"{results[0]['rules']} rules, {results[0]['keys']:,} keys, a logged step with each"
    yield spread(what, [result["seconds"] * 1e3 for result in results], " ms", (0.3, None), note)


def page(scale: Scale) -> Iterator[Row]:
    """What the page of ``serve --ui`` costs, without a browser and with any number of them."""
    with NvmlSimulator(scale.gpus) as simulator:
        results = [run(simulator, "serving", scale.readings) for _ in range(scale.processes)]
    making = statistics.median(result["making"] for result in results)
    what = f"what `serve --ui` adds to a reading of {scale.gpus} GPUs that no browser asks for, against the reading"
    note = f" for {results[0]['keys']:,} keys; asked for, {seconds(making)} for all browsers together"
    yield ratio(what, [(result["taking"], result["reading"]) for result in results], (0.2, None), note)
    found = [served(scale) for _ in range(scale.rounds)]
    alone, sent = (statistics.median(result[place] for result in found) for place in (1, 2))
    what = f"CPU of `accelmetrics serve --ui` at 1 Hz, {scale.gpus} GPUs and host, followed by {PAGES} open pages, of one core"
    note = f"{alone:.2f} % without a page; {sent / 1024:.1f} KiB a reading and page"
    yield spread(what, [result[0] for result in found], " %", (2.0, None), note)


def served(scale: Scale) -> tuple[float, float, float]:
    """Return the share of a core that the page costs with many browsers and with none, in percent, and the bytes of a reading."""
    command = [sys.executable, "-m", "accelmetrics", "serve", "--ui", "--listen", "127.0.0.1:0", "--interval", "1"]
    with (
        NvmlSimulator(scale.gpus) as simulator,
        subprocess.Popen(command, stderr=subprocess.PIPE, env=environment(simulator), text=True, cwd=REPOSITORY) as program,
    ):
        try:
            line = cast(IO[str], program.stderr).readline()
            port = line.rpartition("127.0.0.1:")[2].split("/")[0]
            server = psutil.Process(program.pid)
            time.sleep(WARM_UP)
            alone = busy(simulator, scale, server)
            with started(None, "following", port, PAGES, max(2, scale.seconds) + 2 * WARM_UP) as pages:
                time.sleep(WARM_UP)  # each page has everything that graphs show
                share = busy(simulator, scale, server)
                got = finish(pages)
        finally:
            program.kill()
    if got["readings"] < PAGES * max(2, scale.seconds):
        raise RuntimeError(f"{PAGES} pages got only {got['readings']} readings")
    return share, alone, got["bytes"] / got["readings"]


def busy(simulator: NvmlSimulator, scale: Scale, server: psutil.Process) -> float:
    """Let every number of every reading be another one, and return the share of a core that it costs, in percent."""
    before, began = _cpu([server]), time.monotonic()
    for turn in range(max(2, round(scale.seconds))):
        for gpu in range(scale.gpus):
            simulator.gpu[gpu].set(gpu_util=(37 * turn + gpu) % 100, power_mw=300_000 + 7000 * (turn % 40), temperature=50 + turn % 30)
        time.sleep(1.0)
    return 100 * (_cpu([server]) - before) / (time.monotonic() - began)


def exporters(scale: Scale) -> Iterator[Row]:
    """What it costs to put a record into an exporter's form."""
    with NvmlSimulator(scale.gpus) as simulator:
        results = [run(simulator, "writing", scale.records, scale.turns) for _ in range(scale.rounds)]
    for name, keys, what, reach, stretch in (
        ("prometheus", "all", "Prometheus text of a record against `generate_latest` of the same points", 0.2, 0.12),
        ("otlp", "all", "an OTLP request against building it anew", 0.2, None),
        ("jsonl", "standard", "a JSON line of a record in `standard`, against `json.dumps` of the flat dict alone", 1.3, 1.0),
        ("csv", "standard", "a CSV row of a record in `standard` against `csv.writer` with the same numbers", None, None),
        ("statsd", "all", "StatsD's packets of a record, with tags, against an f-string a metric", None, None),
        ("influx", "all", "line protocol of a record against an f-string a field", None, None),
    ):
        note = f" for {results[0]['keys'][keys]} keys"
        yield ratio(what, [(ours, theirs) for ours, theirs in (result[name] for result in results)], (reach, stretch), note)


def reports(scale: Scale) -> Iterator[Row]:
    """What a report of a recording costs."""
    lines = scale.ticks // 5
    for preset, number, reach in (("core", lines, 3.5), ("standard", lines // 5, None)):
        results = [run(None, "reporting", scale.gpus, number, preset) for _ in range(scale.rounds)]
        series = statistics.median(result["series"] for result in results) / number
        text = statistics.median(result["text"] for result in results) / number
        what = f"a report of a recording of {scale.gpus} GPUs, preset `{preset}`, against `json.loads` of every line"
        note = f" a line; {results[0]['keys']} keys; 10⁶ lines: {text * 1e6:.0f} s, with series for plots {series * 1e6:.0f} s"
        yield ratio(what, [(result["text"] / number, result["json"] / number) for result in results], (reach, None), note)


def wandb_cost(scale: Scale) -> Cost:
    """Runs W&B's collector at the same pace and looks at what its processes used."""
    python = wandb_python()
    with (
        tempfile.TemporaryDirectory() as directory,
        NvmlSimulator(scale.gpus) as simulator,
        started(simulator, "wandb_run", directory, 1 / RATE, python=python) as program,
    ):
        wait_for_line(program)
        simulator.wait_for("nvmlDeviceGetPowerUsage", 0, count=3)
        time.sleep(min(WARM_UP, scale.seconds))
        processes = [child for child in psutil.Process(program.pid).children(recursive=True) if child.name() in COLLECTORS]
        if {process.name() for process in processes} != set(COLLECTORS):
            raise RuntimeError(f"W&B's collector is not what it was: {processes}")
        before, calls = _cpu(processes), simulator.calls()
        time.sleep(scale.seconds)
        spent, made = _cpu(processes) - before, _difference(simulator.calls(), calls)
        resident = sum(process.memory_info().rss for process in processes)
        program.communicate(timeout=60)
    ticks = made["nvmlDeviceGetPowerUsage"] / scale.gpus
    return Cost(spent / ticks, sum(made.values()) / ticks / scale.gpus, resident)


def _cpu(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(float(one.user + one.system) for one in times)


def _difference(after: dict[tuple[str, int | None], int], before: dict[tuple[str, int | None], int]) -> dict[str, int]:
    made: dict[str, int] = {}
    for key, number in after.items():
        if key[1] is not None:
            made[key[0]] = made.get(key[0], 0) + number - before.get(key, 0)
    return made


def memory(scale: Scale) -> Iterator[Row]:
    """What a monitor's history weighs, and whether readings leave something behind."""
    yield from history(scale)
    yield from whole(scale)
    few, many = scale.ticks // 100, scale.ticks
    with NvmlSimulator(scale.gpus) as simulator:
        soaks = max(1, scale.rounds - 1)  # each takes minutes
        results = side_by_side(soaks, lambda: run(simulator, "watching", few, many, 1 / RATE, min(300, few // 2)))
    failed = max(result["failed"] for result in results)
    if failed:
        raise RuntimeError(f"the monitor's exporter failed {failed} times")
    what = f"resident memory after {many:,} ticks against after {few:,}"
    note = f"; a Monitor with history, windows, steps and an exporter, {results[0]['keys']} keys"
    yield ratio(what, [(result["late"], result["early"]) for result in results], (1.01, None), note, mebibytes)
    few, many = scale.ticks // 100, scale.ticks // 5
    with NvmlSimulator(scale.gpus) as simulator:
        results = side_by_side(scale.rounds, lambda: run(simulator, "resident", few, many, 1.2 * scale.seconds))
    what = f"resident memory after {many:,} readings against after {few:,}, a Sampler, GPUs and host"
    yield ratio(what, [(result["late"], result["early"]) for result in results], show=mebibytes)


def history(scale: Scale) -> Iterator[Row]:
    """An hour in memory."""
    results = side_by_side(scale.rounds, lambda: run(None, "remembering", HISTORY_GPUS, HISTORY_KEYS, scale.history))
    first = results[0]
    plain = first["readings"] * first["keys"] * 8
    note = f"{first['readings']:,} readings over {first['seconds']:.0f} s, {plain / 2**20:.1f} MiB as bare numbers"
    what = f"memory of Monitor's history of one hour at 1 Hz, {HISTORY_GPUS} GPUs × {HISTORY_KEYS} keys"
    yield spread(what, [result["bytes"] / 2**20 for result in results], " MiB", (9.5, None), note)


def whole(scale: Scale) -> Iterator[Row]:
    """A Monitor with an hour in memory and all that it has loaded."""
    with NvmlSimulator(WEIGHED_GPUS) as simulator:
        monitors, bindings = (side_by_side(scale.rounds, partial(run, simulator, "weighing", size)) for size in (scale.history, 0))
    what = f"resident memory, Monitor with an hour of {monitors[0]['keys']} keys, over bare Python with pynvml"
    bare = statistics.median(result["resident"] for result in bindings)
    note = f"{mebibytes(statistics.median(result['resident'] for result in monitors))}, {mebibytes(bare)}"
    yield spread(what, [(result["resident"] - bare) / 2**20 for result in monitors], " MiB", (36, 30), note)


def mebibytes(size: float) -> str:
    """Resident memory."""
    return f"{size / 2**20:.1f} MiB"
