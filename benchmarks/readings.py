"""The rows about single readings: how long, how many calls, what a busy interpreter does to them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.programs import Result, finish, run, started, wait_for_line
from benchmarks.rows import Row, Scale
from tests.simulators.nvml import NvmlSimulator

LATENCY = 200
BUSY_LATENCY = 5
WARM_UP = 40

EXTRA = frozenset(
    {
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetPerformanceState",
        "nvmlDeviceGetEncoderUtilization",
        "nvmlDeviceGetDecoderUtilization",
        "nvmlDeviceGetFanSpeed",
        "nvmlDeviceGetBAR1MemoryInfo",
        "nvmlDeviceGetCurrPcieLinkGeneration",
        "nvmlDeviceGetCurrPcieLinkWidth",
        "nvmlDeviceGetMPSComputeRunningProcesses_v3",
        "nvmlDeviceGetProcessUtilization",
    }
)
"""Calls that no key of W&B's is read from. The graphics clock, which W&B documents, and the aggregate ECC counters are read
by functions that its keys need too, and count."""


def against_bare(scale: Scale) -> Iterator[Row]:
    """`Sampler.sample()` against the bare loop, without and with latency in the driver."""
    what = f"`Sampler.sample()`, {scale.gpus} simulated GPUs, all keys, host off, against a bare pynvml loop of W&B's 13 calls a GPU"
    # Which core the worker thread lands on is drawn anew in each process, so this takes more of them than the rest does.
    yield _ratio(what, scale._replace(processes=3 * scale.processes), Case(), (2.0, 1.4))
    yield _ratio(f"the same, each call taking {LATENCY} µs of CPU in the driver", scale, Case(LATENCY, spin=True), (1.10, 0.60))
    yield _ratio(f"the same, each call sleeping {LATENCY} µs in the driver", scale, Case(LATENCY))
    yield _ratio("the same without latency, caller and worker thread on one core", scale, Case(placement="together"))
    if len(os.sched_getaffinity(0)) > 1:
        yield _ratio("the same without latency, caller and worker thread on two cores", scale, Case(placement="apart"))
    what = "the same without latency, at one reading a second: with GPM and what is read every second or ten"
    yield _ratio(what, scale, Case(step=1.0))


class Case(NamedTuple):
    """How one comparison with the bare loop is set up.

    Attributes:
        latency: Microseconds that each call takes in the driver.
        spin: Whether it computes meanwhile, or sleeps.
        step: Seconds by which the sampler's clock goes forward at each reading; 0 for the system's clock.
        placement: Where the threads run: `free`, `together`, `apart`.
    """

    latency: int = 0
    spin: bool = False
    step: float = 0.0
    placement: str = "free"


def _ratio(what: str, scale: Scale, case: Case, targets: tuple[float, float] | None = None) -> Row:
    readings, turns = (max(2, scale.readings // 25), max(1, scale.turns // 2)) if case.latency else (scale.readings, scale.turns)
    results = []
    for _ in range(scale.processes):
        with NvmlSimulator(scale.gpus) as simulator:
            simulator.set(latency_us=case.latency, latency_spin=int(case.spin))
            results.append(run(simulator, "reading", readings, turns, case.step, case.placement))
    ours, bare = (statistics.median(result[name] for result in results) for name in ("sampler", "bare"))
    ratios = [result["ratio"] for result in results]
    spread = f"{min(ratios):.2f}–{max(ratios):.2f}× over {len(ratios)} processes"
    note = f"{_time(ours)} for {results[0]['keys']} keys, {_time(bare)} for {13 * scale.gpus}; {spread}"
    reach, stretch = targets or (None, None)
    return Row(what, statistics.median(ratios), "×", reach, stretch, note)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.1f} ms"


def beside_busy_thread(scale: Scale) -> Iterator[Row]:
    """A pure-Python thread that computes without a pause, in the same interpreter."""
    sleeping, spinning = (_busy(scale, "thread", spin) for spin in (False, True))
    what = f"beside a busy pure-Python thread, {BUSY_LATENCY} µs a call: false `timed_out` in {scale.busy} samples"
    note = f"{_busy_note(sleeping)}; with calls that compute {_busy_note(spinning)}"
    yield Row(what, max(sleeping["timed_out"], spinning["timed_out"]), "", 0, 0, note)
    apart = _busy(scale, "process", False)
    what = 'the same with `isolation="process"`: median time from asking to having a snapshot'
    yield Row(what, apart["median"] * 1e3, " ms", 50, 15, f"{_busy_note(apart)}; {apart['timed_out']} `timed_out`")


def _busy(scale: Scale, isolation: str, spin: bool) -> Result:
    with NvmlSimulator(scale.gpus) as simulator:
        simulator.set(latency_us=BUSY_LATENCY, latency_spin=int(spin))
        return run(simulator, "busy", isolation, scale.busy)


def _busy_note(result: Result) -> str:
    return f"median {result['median'] * 1e3:.1f} ms, longest {result['longest'] * 1e3:.0f} ms"


def calls(scale: Scale) -> Iterator[Row]:
    """How many calls into NVML a reading makes in a steady state, by the simulator's counters."""
    every_second, all_keys, keys = _calls(scale, 1.0)
    tenth, _, _ = _calls(scale, 0.1)
    what = "NVML calls per GPU per tick for W&B's key set, GPM included, one reading a second (W&B: 13, and 3 more with GPM)"
    note = f"{all_keys:.1f} for all {keys // scale.gpus} keys of a GPU; at 10 readings a second {tenth:.1f} for W&B's"
    yield Row(what, every_second, "", 13, 9, note)


def _calls(scale: Scale, interval: float) -> tuple[float, float, int]:
    """Calls per GPU and reading for W&B's keys and for all, and how many keys there are."""
    count = 20 * scale.readings // 10 or 20
    with NvmlSimulator(scale.gpus) as simulator, started(simulator, "calling", interval, WARM_UP, count) as program:
        wait_for_line(program)
        before = simulator.calls()
        result = finish(program)
        after = simulator.calls()
    made = {key: number - before.get(key, 0) for key, number in after.items() if key[1] is not None}
    share = (count + 1) * scale.gpus
    return _total(made, EXTRA) / share, _total(made, frozenset()) / share, result["keys"]


def _total(made: dict[tuple[str, int | None], int], without: frozenset[str]) -> int:
    return sum(number for (name, _), number in made.items() if name not in without)
