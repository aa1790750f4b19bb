"""The simulated machine that both collectors watch: eight H100s whose values change in phases, some of them failing.

A phase is told by the SM clock of GPU 0, which never fails. While values are being changed it is `BETWEEN`, and a phase
is announced only when both have read its values anew, those that accelmetrics reads at a slower pace among them.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.simulators.nvml import Gpu, Location, NvmlSimulator, Process, Ret
from tests.support.waiting import wait_for

GPUS = 8
BETWEEN = 500
FIRST = 1000
MARKER = "gpu.0.smClock"

INTERVAL = 0.25
"""Seconds between two readings of either collector. W&B takes GPM samples at least 0.2 s apart."""
SETTLE = 1.3
"""What is read once a second has been read anew by the first reading after so many seconds."""
SETTLE_LIMITS = 10.5
"""The same for power limits and ECC counters, which are read every 10 s: they change in phase LIMITED alone."""
HOLD = 5
"""Readings of either collector in a phase. W&B gives GPM in some of them only."""

HEALTHY, BUSY, FAILING, RECOVERED, LIMITED = range(5)

LOST = 5
"""The GPU that falls off the bus in phase FAILING."""
FAULTY = (1, 2, 3, 4, 6, 7)
"""The GPUs on which some calls fail in phase FAILING."""
NO_ENERGY, NO_ECC = 6, 7
"""GPUs that lack a counter from the beginning."""

GPM = ("SM_UTIL", "SM_OCCUPANCY", "ANY_TENSOR_UTIL", "HMMA_TENSOR_UTIL", "DRAM_BW_UTIL", "FP64_UTIL", "FP32_UTIL", "FP16_UTIL")
RATES = ("PCIE_TX_PER_SEC", "PCIE_RX_PER_SEC", "NVLINK_TOTAL_TX_PER_SEC", "NVLINK_TOTAL_RX_PER_SEC")


def prepare(simulator: NvmlSimulator, child: int) -> None:
    """What holds in all phases: two counters that are missing, the watched program's child on GPUs 1 and 2."""
    simulator.gpu[NO_ENERGY].set(energy_mj=None)
    simulator.gpu[NO_ECC].set(ecc_corrected_volatile=None, ecc_uncorrected_volatile=None)
    for gpu in (1, 2):
        simulator.processes(gpu, [Process(child, used=3 << 30, sm=11 + gpu, mem=5 + gpu)])
    announce(simulator, BETWEEN)


def announce(simulator: NvmlSimulator, marker: int) -> None:
    """Sets the marker."""
    simulator.gpu[0].set(clock_sm=marker)


class Collectors:
    """How far both have come: W&B by a call that it alone makes at each reading, accelmetrics by the lines of its output."""

    def __init__(self, simulator: NvmlSimulator, ours: Path) -> None:
        self._simulator = simulator
        self._file = ours
        self._read = 0
        self._lines: list[str] = [""]

    def wait_for_readings(self, count: int, after: float = 0.0) -> None:
        """Wait until both have made so many readings from now on, and accelmetrics one after a time on the wall clock."""
        wandb, ours = self._wandb(), self._ours()
        wait_for(lambda: self._wandb() >= wandb + count and self._ours() >= ours + count, 120)
        wait_for(lambda: self._ours() and json.loads(self._lines[-2])["time"] > after, 120)

    def _wandb(self) -> int:
        return self._simulator.calls().get(("nvmlDeviceGetHandleByIndex_v2", 0), 0)

    def _ours(self) -> int:
        """The complete lines of the output so far."""
        with self._file.open() as file:
            file.seek(self._read)
            first, *others = file.read().split("\n")
            self._read = file.tell()
        self._lines[-1] += first
        self._lines += others
        return len(self._lines) - 1


def play(simulator: NvmlSimulator, collectors: Collectors) -> None:
    """Goes through the phases. Two readings are over when two more have begun."""
    for phase in (HEALTHY, BUSY, FAILING, RECOVERED, LIMITED):
        announce(simulator, BETWEEN)
        collectors.wait_for_readings(2)
        _change(simulator, phase)
        if phase == FAILING:
            fail(simulator)
        collectors.wait_for_readings(2, time.time() + (SETTLE_LIMITS if phase == LIMITED else SETTLE))
        announce(simulator, FIRST + phase)
        collectors.wait_for_readings(HOLD)
    announce(simulator, BETWEEN)


def fail(simulator: NvmlSimulator) -> None:
    """A different call fails on each of some GPUs, one GPU is lost."""
    simulator.rule("nvmlDeviceGetUtilizationRates", 1, error=Ret.UNKNOWN)
    simulator.rule("nvmlDeviceGetMemoryInfo_v2", 2, error=Ret.TIMEOUT)
    simulator.gpu[2].set(temperature=Ret.NO_PERMISSION)
    simulator.gpu[3].set(power_mw=Ret.UNKNOWN, energy_mj=Ret.UNKNOWN)
    simulator.gpu[4].set(clock_mem=Ret.NOT_READY)
    simulator.rule("nvmlGpmSampleGet", 6, error=Ret.UNKNOWN)
    simulator.gpu[7].set(gpm={"SM_UTIL": Ret.NO_DATA})
    simulator.lose(LOST)


def _change(simulator: NvmlSimulator, phase: int) -> None:
    """Sets every value that a shared key is read from, different on every GPU and in every phase; takes faults back."""
    simulator.clear_rules()
    simulator.recover(LOST)
    for index, gpu in enumerate(simulator.gpu):
        seed = 7 * phase + index
        gpu.set(
            gpu_util=(13 * seed) % 101,
            memory_util=(17 * seed) % 101,
            memory_used=5_345_050_624 + seed * 1_234_567_168,
            temperature=30 + seed % 50,
            power_mw=90_001 + 12_347 * seed,
            clock_mem=1500 + 3 * seed,
            gpm={name: (37 * seed + 11 * n) % 64 / 0.64 for n, name in enumerate(GPM)},
        )
        gpu.set(gpm={name: 17.25 * seed + 100.0 * n for n, name in enumerate(RATES)})
        if index != 0:
            gpu.set(clock_sm=1200 + 5 * seed)
        if index != NO_ENERGY:
            gpu.set(energy_mj=5_000_000_000 + 987_654_321 * seed)
        if phase == LIMITED:
            _change_slow_values(gpu)


def _change_slow_values(gpu: Gpu) -> None:
    gpu.set(power_limit_enforced_mw=650_000 - 11_000 * gpu.index)
    if gpu.index != NO_ECC:
        gpu.set(ecc_corrected_volatile={Location.DRAM: 900 + gpu.index}, ecc_uncorrected_volatile={Location.DRAM: 90 + gpu.index})
