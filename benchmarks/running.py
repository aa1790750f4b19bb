"""The rows about running for long: CPU per tick against W&B's processes, windows, ranks, exporters, memory."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.environments import wandb_python
from benchmarks.programs import Result, finish, run, started, wait_for_line
from benchmarks.rows import Row, Scale, seconds
from benchmarks.workers.stepping import STEPS_PER_ROW
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import wait_for

RATE = 10
STEP = 0.01
"""Seconds that a step of a training computes."""
WARM_UP = 2.0
SURVIVORS = 3
DRIVER_LATENCY = 50
HISTORY_GPUS, HISTORY_KEYS = 8, 40
COLLECTORS = ("wandb-core", "wandb-symon")


class Cost(NamedTuple):
    """What W&B's collector costs: CPU seconds and calls into NVML per tick and GPU, resident bytes of its processes."""

    cpu: float
    calls: float
    resident: int


def cpu_per_tick(scale: Scale) -> Iterator[Row]:
    """Readings ten times a second, GPUs and host: this process against W&B's two."""
    ours, theirs = [], []
    for _ in range(scale.rounds):
        theirs.append(wandb_cost(scale))
        ours.append(own_cost(scale))
    own, other = statistics.median(ours), statistics.median(cost.cpu for cost in theirs)
    what = f"CPU per tick at {RATE} Hz, {scale.gpus} simulated GPUs and host metrics, against W&B's own collector processes"
    yield Row(what, own / other, "×", 0.25, 0.15, f"{own * 1e3:.2f} ms, W&B {other * 1e3:.2f} ms")
    watching = own_cost(scale, windows=1)
    what = f"the same with `Monitor(interval={1 / RATE})`, its history and an open window"
    yield Row(what, watching / other, "×", note=f"{watching * 1e3:.2f} ms")
    last = theirs[-1]
    note = f"{last.cpu * 1e3:.2f} ms of CPU a sample, {last.resident / 2**20:.0f} MiB resident"
    yield Row("wandb 0.31, offline: NVML calls per GPU per tick", last.calls, "", note=note)


def own_cost(scale: Scale, windows: int = 0) -> float:
    """CPU seconds per tick of a Sampler, or of a Monitor with so many open windows."""
    with NvmlSimulator(scale.gpus) as simulator:
        return float(run(simulator, "ticking", RATE, scale.seconds, windows)["cpu"])


def windows(scale: Scale) -> Iterator[Row]:
    """What more windows cost a Monitor."""
    one, ten = (statistics.median(own_cost(scale, count) for _ in range(scale.rounds)) for count in (1, 10))
    what = f"CPU per tick of a Monitor at {RATE} Hz, {scale.gpus} GPUs and host metrics: ten open windows against one"
    yield Row(what, ten / one, "×", note=f"{ten * 1e3:.2f} ms, {one * 1e3:.2f} ms")


def ranks(scale: Scale) -> Iterator[Row]:
    """A node on which each rank of a job runs a Monitor, by itself or sharing one reading."""
    one = own_cost(scale, windows=1)
    alone = _node_cost(scale, None)
    what = f"CPU per tick of a node with {scale.ranks} ranks, a Monitor each, against one Monitor"
    yield Row(what, alone / one, "×", note=f"{alone * 1e3:.1f} ms, {one * 1e3:.2f} ms")
    with tempfile.TemporaryDirectory() as directory:
        shared = _node_cost(scale, Path(directory))
        idle = _node_cost(scale, Path(directory), scale.ranks)
        dear = [_node_cost(scale, where, latency=DRIVER_LATENCY) for where in (Path(directory), None)]
        gap = takeover_gap(scale, directory)
    yield Row('the same with `share="node"`', shared / one, "×", 1.5, 1.2, f"{shared * 1e3:.1f} ms, {one * 1e3:.2f} ms")
    what = f"the same {scale.ranks} ranks that share, against one Monitor and {scale.ranks} processes that take its readings and drop them"
    yield Row(what, shared / idle, "×", 1.5, note=f"{shared * 1e3:.1f} ms, {idle * 1e3:.1f} ms")
    what = f'{scale.ranks} ranks with `share="node"` against the same without, each call taking {DRIVER_LATENCY} µs of CPU in the driver'
    yield Row(what, dear[0] / dear[1], "×", note=f"{dear[0] * 1e3:.1f} ms, {dear[1] * 1e3:.1f} ms")
    what = f"longest time between two readings of a rank, at {RATE} Hz, when the process that reads is killed"
    yield Row(what, gap, " s", 1.0, note=f"{SURVIVORS} ranks that go on, {scale.rounds} times")


def _node_cost(scale: Scale, directory: Path | None, idle: int = 0, latency: int = 0) -> float:
    """CPU seconds per tick of the ranks of a node together, each with a Monitor; or of one, and so many that only take part."""
    # The Monitor that reads for others goes on for as long as they are there.
    longer = scale.seconds + (2 * WARM_UP if idle else 0.0)
    shared = [] if directory is None else [directory]
    with NvmlSimulator(scale.gpus) as simulator, ExitStack() as stack:
        simulator.set(latency_us=latency, latency_spin=1)

        def start(worker: str, seconds: float, *more: object) -> subprocess.Popen[str]:
            return stack.enter_context(started(simulator, worker, RATE, seconds, *more, *shared))

        programs = [start("ticking", longer, 1) for _ in range(1 if idle else scale.ranks)]
        if directory is not None and idle:
            wait_for(lambda: list(directory.glob("*/*.sock")))
        programs += [start("idling", scale.seconds) for _ in range(idle)]
        return sum(float(finish(program)["cpu"]) for program in programs)


def takeover_gap(scale: Scale, directory: str) -> float:
    """The longest gap in any rank's readings over several kills of the process that reads, in seconds."""
    gaps = []
    with NvmlSimulator(scale.gpus) as simulator, ExitStack() as stack:
        for _ in range(scale.rounds):
            programs = [stack.enter_context(started(simulator, "surviving", RATE, directory)) for _ in range(SURVIVORS + 1)]
            roles = [wait_for_line(program) for program in programs]
            holder = programs.pop(roles.index("holder"))
            holder.kill()
            time.sleep(WARM_UP)
            gaps += [float(finish(program)["gap"]) for program in programs]
    return max(gaps)


def steps(scale: Scale) -> Iterator[Row]:
    """What a training run costs the training's own thread."""
    with NvmlSimulator(scale.gpus) as simulator:
        results = [run(simulator, "stepping", max(STEPS_PER_ROW, round(scale.seconds / STEP / 2)), STEP) for _ in range(scale.processes)]
    ours, control, row = (statistics.median(result[name] for result in results) for name in ("ours", "control", "row"))
    what = f"`run.step()` with four numbers beside a step of {STEP * 1e3:.0f} ms, median, over a method that does nothing"
    yield Row(
        what, (ours - control) * 1e6, " µs", 50, None, f"{seconds(ours)}, {seconds(control)}; `run.row()` every second {seconds(row)}"
    )


def findings(scale: Scale) -> Iterator[Row]:
    """What judging a reading costs the monitor's thread."""
    with NvmlSimulator(scale.gpus) as simulator:
        results = [run(simulator, "judging", scale.readings) for _ in range(scale.processes)]
    duration = statistics.median(result["seconds"] for result in results)
    what = f"judging a reading by all rules, {scale.gpus} GPUs, median; once a second at most"
    yield Row(what, duration * 1e3, " ms", 0.3, None, f"{results[0]['rules']} rules, {results[0]['keys']:,} keys, a logged step with each")


def page(scale: Scale) -> Iterator[Row]:
    """What the page of ``serve --ui`` costs, without a browser and with any number of them."""
    with NvmlSimulator(scale.gpus) as simulator:
        results = [run(simulator, "serving", scale.readings) for _ in range(scale.processes)]
    reading, taking, making = (statistics.median(result[name] for result in results) for name in ("reading", "taking", "making"))
    what = f"what `serve --ui` adds to a reading of {scale.gpus} GPUs that no browser asks for, against the reading"
    note = f"{seconds(taking)}, {seconds(reading)} for {results[0]['keys']:,} keys; asked for, {seconds(making)} for all browsers together"
    yield Row(what, taking / reading, "×", 0.2, None, note)


def exporters(scale: Scale) -> Iterator[Row]:
    """What it costs to put a record into an exporter's form."""
    with NvmlSimulator(scale.gpus) as simulator:
        results = [run(simulator, "writing", scale.records, scale.turns) for _ in range(max(1, scale.processes // 2))]
    for name, keys, what, reach, stretch in (
        ("prometheus", "all", "Prometheus text of a record against `generate_latest` of the same points", 0.15, 0.08),
        ("otlp", "all", "an OTLP request against building it anew", 0.2, 0.1),
        ("jsonl", "standard", "a JSON line of a record in `standard`, against `json.dumps` of the flat dict alone", 1.3, 1.0),
    ):
        ours, theirs = (statistics.median(result[name][side] for result in results) for side in (0, 1))
        yield Row(what, ours / theirs, "×", reach, stretch, f"{seconds(ours)}, {seconds(theirs)} for {results[0]['keys'][keys]} keys")


def reports(scale: Scale) -> Iterator[Row]:
    """What a report of a recording costs."""
    lines = scale.ticks // 5
    for preset, number, reach in (("core", lines, 3.5), ("standard", lines // 5, None)):
        results = [run(None, "reporting", scale.gpus, number, preset) for _ in range(scale.rounds)]
        alone, text, series = (statistics.median(result[name] for result in results) / number for name in ("json", "text", "series"))
        what = f"a report of a recording of {scale.gpus} GPUs, preset `{preset}`, against `json.loads` of every line"
        million = f"10⁶ lines: {text * 1e6:.0f} s, with series for plots {series * 1e6:.0f} s"
        yield Row(what, text / alone, "×", reach, None, f"{seconds(text)} a line, {seconds(alone)}; {results[0]['keys']} keys; {million}")


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
    few, many = scale.ticks // 100, scale.ticks
    with NvmlSimulator(scale.gpus) as simulator:
        result = run(simulator, "watching", few, many, 1 / RATE, min(300, few // 2))
    if result["failed"]:
        raise RuntimeError(f"the monitor's exporter failed {result['failed']} times")
    note = f"{_sizes(result)}; a Monitor with history, windows, steps and an exporter, {result['keys']} keys"
    yield Row(f"resident memory after {many:,} ticks against after {few:,}", result["late"] / result["early"], "×", 1.0, None, note)
    few, many = scale.ticks // 100, scale.ticks // 5
    with NvmlSimulator(scale.gpus) as simulator:
        result = run(simulator, "resident", few, many, 1.2 * scale.seconds)
    what = f"resident memory after {many:,} readings against after {few:,}, a Sampler, GPUs and host"
    yield Row(what, result["late"] / result["early"], "×", note=_sizes(result))


def history(scale: Scale) -> Iterator[Row]:
    """An hour in memory."""
    result = run(None, "remembering", HISTORY_GPUS, HISTORY_KEYS, scale.history)
    plain = result["readings"] * result["keys"] * 8
    note = f"{result['readings']:,} readings over {result['seconds']:.0f} s, {plain / 2**20:.1f} MiB as bare numbers"
    what = f"memory of Monitor's history of one hour at 1 Hz, {HISTORY_GPUS} GPUs × {HISTORY_KEYS} keys"
    yield Row(what, result["bytes"] / 2**20, " MiB", 9.5, None, note)


def _sizes(result: Result) -> str:
    return f"{result['early'] / 2**20:.1f} MiB, then {result['late'] / 2**20:.1f} MiB"
