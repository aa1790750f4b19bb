"""The rows about single readings: how long, how many functions and calls, how that grows, and other tools' readings."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.environments import peers_python
from benchmarks.programs import Result, finish, run, started, wait_for_line
from benchmarks.rows import NONE, Row, Scale, Targets, ratio, seconds, spread
from tests.simulators.nvml import NvmlSimulator, Process
from tests.support.machines import VENDORS, many_vendors

LATENCY = 200
BUSY_LATENCY = 5
WARM_UP = 40
CROWD = 200
"""Processes on each GPU of a crowded machine."""
FIRST_PID = 100_000
NATIVE = [vendor for vendor in VENDORS if vendor != "graphcore"]
"""Vendors whose stand-in costs a reading nothing of its own: that of Graphcore's module is Python, which reads a file at each call."""

NOT_COLLECTED = frozenset({"nvmlDeviceGetEncoderUtilization"})
"""Calls for keys that W&B documents and its collector never asks for."""


class Case(NamedTuple):
    """How one comparison with the bare loop is set up.

    Attributes:
        who: What reads: `sampler`, `monitor` for a Monitor's own readings, or `tick` for its whole ticks.
        latency: Microseconds that each call takes in the driver.
        spin: Whether it computes meanwhile, or sleeps.
        step: Seconds by which the sampler's clock goes forward at each reading; 0 for the system's clock.
        placement: Where the threads run: `free`, `together`, `apart`.
    """

    who: str = "sampler"
    latency: int = 0
    spin: bool = False
    step: float = 0.0
    placement: str = "free"


def against_bare(scale: Scale) -> Iterator[Row]:
    """`Sampler.sample()` and a Monitor's readings against the bare loop, without and with latency in the driver."""
    what = f"`Sampler.sample()`, {scale.gpus} simulated GPUs, all keys, host off, against a bare pynvml loop of W&B's 13 calls a GPU"
    yield _ratio(f"{what}: caller and worker on one core", scale, Case(placement="together"), (1.3, 1.15))
    if len(os.sched_getaffinity(0)) > 1:
        yield _ratio("the same on two cores", scale, Case(placement="apart"), (1.7, 1.4))
    yield _ratio("a Monitor's reading in its own thread, against the same", scale, Case("monitor"))
    yield _ratio("its whole tick, likewise: with a row of doubles, energy and the schedule", scale, Case("tick"))
    yield _ratio(f"`sample()`, each call taking {LATENCY} µs of CPU in the driver", scale, Case(latency=LATENCY, spin=True), (0.40, 0.30))
    # Which core the worker thread lands on is drawn anew in each process, so this takes more of them than the rest does.
    free = scale._replace(processes=3 * scale.processes)
    yield _ratio("`sample()` without latency, threads where the scheduler puts them", free, Case())
    yield _ratio(f"the same, each call sleeping {LATENCY} µs in the driver", scale, Case(latency=LATENCY))
    yield _ratio("the same at one reading a second: with GPM and what is read every second or ten", scale, Case(step=1.0))


def _ratio(what: str, scale: Scale, case: Case, targets: Targets = NONE) -> Row:
    readings, turns = (max(2, scale.readings // 25), max(1, scale.turns // 2)) if case.latency else (scale.readings, scale.turns)
    results = []
    for _ in range(scale.processes):
        with NvmlSimulator(scale.gpus) as simulator:
            simulator.set(latency_us=case.latency, latency_spin=int(case.spin))
            results.append(run(simulator, "reading", case.who, readings, turns, case.step, case.placement))
    ours, bare = (statistics.median(result[name] for result in results) for name in ("ours", "bare"))
    note = f"{seconds(ours)} for {results[0]['keys']} keys, {seconds(bare)} for {13 * scale.gpus}"
    return spread(what, [result["ratio"] for result in results], "×", targets, note)


def functions(scale: Scale) -> Iterator[Row]:
    """How many of our own Python functions a warm reading and a tick pass."""
    for who, what, targets in (
        ("sampler", f"our own functions that a warm `sample()` of {scale.gpus} GPUs passes", (35, 25)),
        ("monitor", "our own functions that a tick of a Monitor passes, GPUs and host, one window", (100, 70)),
    ):
        with NvmlSimulator(scale.gpus) as simulator:
            results = [run(simulator, "passing", who, scale.readings) for _ in range(scale.rounds)]
        note = f"{results[0]['calls']:.0f} calls of them, in {results[0]['files']} files"
        yield spread(what, [result["functions"] for result in results], "", targets, note)


def growth(scale: Scale) -> Iterator[Row]:
    """What more GPUs and more processes on them cost a reading."""
    few, many = scale.gpus, scale.many
    spent = [[_sample(scale, gpus) for gpus in (many, few, 1)] for _ in range(scale.processes)]
    one = statistics.median(alone for *_, alone in spent)
    yield ratio(
        f"warm `sample()` of {many} GPUs against {few}",
        [(of_many, of_few) for of_many, of_few, _ in spent],
        (8.5, 8),
        f", 1: {seconds(one)}",
    )
    what = f"{CROWD} processes a GPU against none, a reading a second, {few} GPUs"
    yield ratio(what, [(_sample(scale, few, CROWD, step=1.0), _sample(scale, few, step=1.0)) for _ in range(scale.processes)], (2, None))


def _sample(scale: Scale, gpus: int, processes: int = 0, step: float = 0.0) -> float:
    """The median seconds of a sample, in one process."""
    with NvmlSimulator(gpus) as simulator:
        for gpu in range(gpus):
            simulator.processes(gpu, [Process(FIRST_PID + number, used=1 << 20) for number in range(processes)])
        return float(run(simulator, "reading", "sampler", max(40, scale.readings // 4), max(4, scale.turns // 4), step, "free")["ours"])


def vendors(scale: Scale) -> Iterator[Row]:
    """What a reading costs where many vendors have one accelerator each."""
    with TemporaryDirectory() as directory, many_vendors(Path(directory), NATIVE) as machine:
        found = [run(machine, "crowding", max(10, scale.readings)) for _ in range(scale.processes)]
    what = f"accelerators of {found[0]['vendors']} vendors at once, warm `sample()`, CPU of the process, commands polled beside it"
    yield spread(what, [one["reading"] * 1e3 for one in found], " ms", (2, None), f"{found[0]['devices']} devices")


def beside_busy_thread(scale: Scale) -> Iterator[Row]:
    """A pure-Python thread that computes without a pause, in the same interpreter."""
    both = [(_busy(scale, "thread", False), _busy(scale, "thread", True)) for _ in range(scale.rounds)]
    what = f"beside a busy pure-Python thread, {BUSY_LATENCY} µs a call: false `timed_out` in {scale.busy} samples"
    note = f"{_busy_note([one for one, _ in both])}; with calls that compute {_busy_note([other for _, other in both])}"
    yield spread(what, [max(one["timed_out"], other["timed_out"]) for one, other in both], "", (0, 0), note)
    apart = [_busy(scale, "process", False) for _ in range(scale.rounds)]
    what = 'the same with `isolation="process"`: median time from asking to having a snapshot'
    note = f"{_busy_note(apart)}; {max(result['timed_out'] for result in apart)} `timed_out`"
    yield spread(what, [result["median"] * 1e3 for result in apart], " ms", (12, 8), note)


def _busy(scale: Scale, isolation: str, spin: bool) -> Result:
    with NvmlSimulator(scale.gpus) as simulator:
        simulator.set(latency_us=BUSY_LATENCY, latency_spin=int(spin))
        return run(simulator, "busy", isolation, scale.busy)


def _busy_note(results: Sequence[Result]) -> str:
    median = statistics.median(result["median"] for result in results)
    return f"median {median * 1e3:.1f} ms, longest {max(result['longest'] for result in results) * 1e3:.0f} ms"


def calls(scale: Scale) -> Iterator[Row]:
    """How many calls into NVML a reading makes in a steady state, by the simulator's counters."""
    found = [_calls(scale, 1.0, "wandb", NOT_COLLECTED) for _ in range(scale.rounds)]
    tenth, _ = _calls(scale, 0.1, "wandb", NOT_COLLECTED)
    every, keys = _calls(scale, 1.0, "all")
    what = "NVML calls per GPU per tick for W&B's key set, GPM included, one reading a second (W&B: 13, and 3 more with GPM)"
    note = f"{every:.1f} for all {keys // scale.gpus} keys of a GPU; at 10 readings a second {tenth:.1f} for W&B's"
    yield spread(what, [of_wandb for of_wandb, _ in found], "", (11, 9), note)


def _calls(scale: Scale, interval: float, metrics: str, without: frozenset[str] = frozenset()) -> tuple[float, int]:
    """Calls per GPU and reading for a selection of metrics, and how many keys there are."""
    count = 20 * scale.readings // 10 or 20
    with NvmlSimulator(scale.gpus) as simulator, started(simulator, "calling", interval, WARM_UP, count, metrics) as program:
        wait_for_line(program)
        before = simulator.calls()
        result = finish(program)
        after = simulator.calls()
    made = [number - before.get(key, 0) for key, number in after.items() if key[1] is not None and key[0] not in without]
    return sum(made) / (count + 1) / scale.gpus, result["keys"]


def peers(scale: Scale) -> Iterator[Row]:
    """What nvitop and gpustat need for one sample of the same machine; these rows only inform."""
    python = peers_python()
    for tool, sample in (("nvitop 1.7", "`Device.as_snapshot()` of each GPU"), ("gpustat 1.1", "`GPUStatCollection.new_query()`")):
        with NvmlSimulator(scale.gpus) as simulator, started(simulator, "peer", tool.split()[0], scale.peers, python=python) as program:
            wait_for_line(program)
            before = sum(simulator.calls().values())
            result = finish(program)
            made = sum(simulator.calls().values()) - before
        share = made / result["readings"] / scale.gpus
        yield Row(f"{tool}, {sample}: NVML calls per GPU per sample", share, "", note=f"{result['median'] * 1e3:.1f} ms a sample")
