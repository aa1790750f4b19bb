"""Lanes: every unit by one thread at a time, several units side by side."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

from accelmetrics.backends.contract import ReadOptions
from tests.backends.nvidia.machine import Consumer, take_apart
from tests.simulators.nvml import NvmlSimulator, Process

READINGS = 200


def test_units_side_by_side(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Three lanes, two consumers each: every reading is its own unit's, and the pool of samples lends nothing twice."""
    start = threading.Barrier(3)
    for unit in range(3):
        simulator.gpu[unit].set(temperature=30 + unit, gpm={"SM_UTIL": 10.0 + unit})
        simulator.processes(unit, [Process(pid=os.getpid(), used=1000 + unit)])
    readers = [consumer.driver.reader(ReadOptions(os.getpid())) for _ in range(2)]

    def lane(unit: int) -> set[tuple[float, float | None, float]]:
        start.wait()
        seen = set()
        for number in range(READINGS):
            consumer.clock.now += 0.11
            reading = take_apart(readers[number % 2].read(unit, []))
            seen.add((reading.metrics["temp"], reading.metrics.get("smActive"), reading.share["memoryAllocatedBytes"]))
        return seen

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lane, range(3)))
    assert results == [{(30 + unit, None, 1000 + unit), (30 + unit, 10.0 + unit, 1000 + unit)} for unit in range(3)]
    assert simulator.count("nvmlGpmSampleAlloc") == 12


def test_a_hung_unit_costs_only_itself(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """A lane that is stuck shows no further progress; others read on, and it goes on when the call returns."""
    consumer.read(1)
    steps: list[object] = []
    consumer.clock.now += 0.2
    simulator.reset_calls()
    simulator.rule("nvmlDeviceGetTemperature", 1, hang=True)
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(consumer.read, 1, steps)
        simulator.wait_for("nvmlDeviceGetTemperature", 1)
        assert len(steps) == 2
        assert consumer.read(0).metrics["temp"] == simulator.gpu[0].get("temperature")
        assert not stuck.done()
        simulator.release("nvmlDeviceGetTemperature", 1)
        assert stuck.result(10).metrics["powerWatts"] == simulator.gpu[1].get("power_mw") / 1000
