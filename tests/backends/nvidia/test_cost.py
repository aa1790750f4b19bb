"""What a reading costs: functions of ours that it passes, and its time as a ratio to a bare pynvml loop in the same run."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from accelmetrics.backends import nvidia
from tests.backends.nvidia.machine import Consume, Simulate

pynvml: Any = pytest.importorskip("pynvml")

GPUS = 8
ROOM = str(Path(nvidia.__file__).parent)
LIMIT = 0.9
"""Generous: 0.55 is usual on an idle machine, and other work comes in between."""


def bare_loop() -> None:
    """W&B's calls on every GPU."""
    for index in range(GPUS):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
        pynvml.nvmlDeviceGetUtilizationRates(handle)
        pynvml.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)
        pynvml.nvmlDeviceGetTemperature(handle, 0)
        pynvml.nvmlDeviceGetPowerUsage(handle)
        pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)
        pynvml.nvmlDeviceGetClockInfo(handle, 1)
        pynvml.nvmlDeviceGetClockInfo(handle, 2)
        pynvml.nvmlDeviceGetMemoryErrorCounter(handle, 0, 0, 2)
        pynvml.nvmlDeviceGetMemoryErrorCounter(handle, 1, 0, 2)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)


def median(call: Callable[[], object]) -> float:
    """The median duration, in seconds."""
    durations = []
    for _ in range(300):
        started = time.perf_counter()
        call()
        durations.append(time.perf_counter() - started)
    return statistics.median(durations)


def test_a_reading_costs_less_than_the_bare_calls(simulate: Simulate, consume: Consume) -> None:
    """The fast values of eight GPUs, from call to reading."""
    simulate(gpus=GPUS)
    reader = consume().reader
    pynvml.nvmlInit()

    def reading() -> None:
        for unit in range(GPUS):
            reader.read(unit, [])

    reading()
    ratio = min(median(reading) / median(bare_loop) for _ in range(5))
    pynvml.nvmlShutdown()
    assert ratio < LIMIT


def test_a_warm_reading_passes_few_functions(simulate: Simulate, consume: Consume) -> None:
    """The consumer's reader, the device's, its fast values, and their conversion: four, and GPM's where a sample is due."""
    simulate(gpus=1)
    consumer = consume()
    for _ in range(2):
        consumer.later(0.2)
    for seconds, most in ((0.01, 4), (0.2, 7)):
        passed: list[str] = []
        consumer.clock.now += seconds

        def profile(frame: FrameType, event: str, _: object, passed: list[str] = passed) -> None:
            if event == "call" and frame.f_code.co_filename.startswith(ROOM):
                passed.append(frame.f_code.co_name)

        sys.setprofile(profile)
        try:
            consumer.reader.read(0, [])
        finally:
            sys.setprofile(None)
        assert len(passed) <= most, passed
