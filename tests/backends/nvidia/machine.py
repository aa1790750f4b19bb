"""A simulated machine and the backend on it, for the tests of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.contract import Number, Reading, ReadOptions
from accelmetrics.backends.nvidia import NVIDIA
from accelmetrics.backends.nvidia.driver import NvidiaDriver, NvidiaReader
from accelmetrics.backends.nvidia.gpu import open_driver
from accelmetrics.schemas.catalogue import expected_names
from accelmetrics.schemas.errors import SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess
from accelmetrics.schemas.selection import MetricSelection
from accelmetrics.testing import FakeClock as SampledClock
from tests.simulators.nvml import NvmlSimulator
from tests.support.waiting import HANG

LISTENING, MEASURING = "nvmlEventSetWait_v2", "nvmlDeviceGetPcieThroughput"
"""Called by threads of their own, at their own pace."""
OWED = frozenset(expected_names("nvidia"))
"""Every name that a reading of a device must have a value or a reason for."""
OWED_BY_PARTITIONS = frozenset(expected_names("nvidia", True))


OLDER = {
    "nvmlDeviceGetMemoryInfo_v2": ["nvmlDeviceGetMemoryInfo"],
    "nvmlDeviceGetCurrentClocksEventReasons": ["nvmlDeviceGetCurrentClocksThrottleReasons"],
    "nvmlDeviceGetPciInfo_v3": ["nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"],
    "nvmlDeviceGetHandleByIndex_v2": ["nvmlDeviceGetHandleByIndex"],
    "nvmlDeviceGetCount_v2": ["nvmlDeviceGetCount"],
    "nvmlSystemGetCudaDriverVersion_v2": ["nvmlSystemGetCudaDriverVersion"],
    **{
        f"nvmlDeviceGet{kind}RunningProcesses_v3": [f"nvmlDeviceGet{kind}RunningProcesses{form}" for form in ("_v2", "")]
        for kind in ("Compute", "Graphics", "MPSCompute")
    },
}
"""The older forms of a call, which stand in for a newer one that fails."""


def fail(simulator: NvmlSimulator, function: str, gpu: int | None, code: int) -> None:
    """Have a function fail in all its forms."""
    for form in (function, *OLDER.get(function, ())):
        simulator.rule(form, gpu, error=code)


class FakeClock:
    """Time that passes only when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)


class Seen(NamedTuple):
    """A reading, taken apart."""

    metrics: dict[str, Number]
    reasons: dict[str, Unavailable]
    share: dict[str, Number]
    processes: tuple[DeviceProcess, ...] | None
    unlisted: Unavailable | None
    reading: Reading

    def reason(self, name: str) -> str:
        return str(self.reasons[name].reason)


def is_conditional(name: str) -> bool:
    """Whether a name exists only while what it is about does."""
    return name.startswith(("nvlink.", "xid.")) or name in {"lastXid", "moduleEnergyJoules"}


def take_apart(reading: Reading, owed: frozenset[str] = OWED) -> Seen:
    """The values by name, after checking what holds for every reading: no name twice, none both there and missing."""
    metrics = {name: value for block in reading.blocks if not block.process for name, value in zip(block.names, block.values, strict=True)}
    share = {name: value for block in reading.blocks if block.process for name, value in zip(block.names, block.values, strict=True)}
    assert sum(len(block.names) for block in reading.blocks) == len(metrics) + len(share)
    assert not metrics.keys() & reading.unavailable.keys()
    assert {name for name in (*metrics, *reading.unavailable) if not is_conditional(name)} == owed
    processes, unlisted = (None, reading.processes) if isinstance(reading.processes, Unavailable) else (reading.processes, None)
    return Seen(metrics, dict(reading.unavailable), share, processes, unlisted, reading)


class Consumer:
    """An open driver and one reader of it, on a clock of its own."""

    def __init__(self, clock: FakeClock | None = None, pid: int | None = None, metrics: str = "all") -> None:
        self.clock = clock or FakeClock()
        opened = open_driver(self.clock, NVIDIA)
        assert isinstance(opened, NvidiaDriver)
        self.driver = opened
        self.reader: NvidiaReader = self.driver.reader(ReadOptions(pid or os.getpid(), metrics=MetricSelection(metrics)))

    def read(self, unit: int = 0, steps: list[Any] | None = None) -> Seen:
        partition = bool(self.driver.devices[unit].parent)
        return take_apart(self.reader.read(unit, [] if steps is None else steps), OWED_BY_PARTITIONS if partition else OWED)

    def identities(self) -> tuple[DeviceIdentity, ...]:
        """Everything about the devices, most of which the first reading of each finds out."""
        for unit in range(len(self.driver.devices)):
            with suppress(SourceError):
                self.reader.read(unit, [])
        return self.driver.devices

    def later(self, seconds: float, unit: int = 0) -> Seen:
        self.clock.now += seconds
        return self.read(unit)

    def given(self, seconds: float = 0.0, unit: int = 0) -> Reading:
        """A reading some time later, of which nothing is checked."""
        self.clock.now += seconds
        return self.reader.read(unit, [])

    def error(self, seconds: float = 0.0, unit: int = 0) -> SourceError:
        """Why a reading some time later fails."""
        with pytest.raises(SourceError) as raised:
            self.later(seconds, unit)
        return raised.value

    def another(self, pid: int | None = None, metrics: str = "all") -> Consumer:
        """A second consumer of the same driver."""
        other = object.__new__(Consumer)
        other.clock, other.driver = self.clock, self.driver
        other.reader = self.driver.reader(ReadOptions(pid or os.getpid(), metrics=MetricSelection(metrics)))
        return other


def write_tree(root: Path, files: dict[str, str]) -> None:
    """Files below a directory, with the directories they need."""
    for path, text in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def called(before: dict[Any, int], after: dict[Any, int], functions: Iterable[str] = ()) -> dict[Any, int]:
    """What was called between two counts of calls, of some functions or of all; what is called apart from readings is left out."""
    wanted = set(functions)
    risen = {key: count - before.get(key, 0) for key, count in after.items() if count > before.get(key, 0)}
    return {key: count for key, count in risen.items() if key[0] not in (LISTENING, MEASURING) and (not wanted or key[0] in wanted)}


Simulate = Callable[..., NvmlSimulator]
"""Makes machines: the fixture ``simulate``."""
Consume = Callable[..., Consumer]
"""Makes consumers: the fixture ``consume``."""
Sample = Callable[..., tuple[Sampler, SampledClock]]
"""Makes samplers, each with its clock: the fixture ``sample``."""


def run_program(simulator: NvmlSimulator, program: str) -> tuple[int, str]:
    """Run a program of its own on the machine. Returns: its exit status, and what it printed."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, env=os.environ | simulator.environment(), capture_output=True, text=True, timeout=2 * HANG)
    return done.returncode, done.stdout + done.stderr
