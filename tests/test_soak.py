"""A hundred thousand ticks, back to back: whatever a monitor does all the time leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

EARLY, LATE = 30_000, 100_000
"""Ticks of a second. Rules remember hours: after the first of them they are full."""
GROWTH = 1.02
LEAST_OBJECT = 16
"""Bytes that no object of Python's is smaller than: less for each tick is what allocators differ by, and no object that was left behind."""

PROGRAM = """
import ctypes, gc, json, os, sys, threading, time
import psutil
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.testing import FakeBackend
from accelmetrics.testing.fake import FakeClock

gpus = FakeBackend(devices=2)
noise = iter(lambda: os.urandom(1)[0], None)
for number in range(2):
    gpus.device(number).set(powerWatts=lambda: 100.0 + next(noise), gpu=50, memoryAllocatedBytes=lambda: next(noise) << 20)
process = psutil.Process()


class Program:
    "Works as a program does beside its readings: windows open and close, numbers are logged, results are looked at."

    name = "program"

    def __init__(self):
        self.count = 0
        self.whole = None

    def open(self):
        self.whole = monitor.window("whole").begin()

    def export(self, record):
        self.count += 1
        if self.count % 25 == 0:
            with monitor.window("outer"), monitor.window("inner") as inner:
                monitor.log(step=self.count, tokens=1000, loss=1.0 / self.count)
            assert not inner.duration < 0
            self.whole.summary
        for _ in range(1 if self.count > 1000 else 2):
            monitor.log(step=self.count, loss=0.5)

    def flush(self):
        pass

    def close(self):
        self.whole.end()


def look(after):
    while monitor.status.ticks < after:
        time.sleep(0.002)
    monitor.pause()
    assert monitor.flush(30)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was free again after a moment in which much waited for an exporter
    found = {
        "ticks": monitor.status.ticks,
        "resident": process.memory_info().rss,
        "threads": process.num_threads(),
        "files": process.num_fds(),
        "objects": len(gc.get_objects()),
        "history": len(monitor.history),
        "windows": len(monitor.windows),
        "steps": len(monitor.steps),
    }
    monitor.resume()
    return found


heard = []
monitor = Monitor(1.0, [Program()], backends=[gpus], clock=FakeClock(), history=300)
monitor.subscribe(lambda snapshot: heard.__setitem__(slice(0, None), [snapshot]))
with monitor:
    early = look(int(sys.argv[1]))
    late = look(int(sys.argv[2]))
print(json.dumps({"early": early, "late": late, "status": monitor.status.flat(), "error": monitor.error}))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(sys.platform != "linux", reason="platform: resident memory and open files as Linux counts them")
def test_a_hundred_thousand_ticks_leave_nothing_behind() -> None:
    """With windows, logged steps, an exporter, a callback and a history: memory, threads, open files and objects stay."""
    environment = {name: value for name, value in os.environ.items() if name != "ACCELMETRICS_VALIDATE"}
    environment["MALLOC_ARENA_MAX"] = "1"  # the arenas of several threads grow by chance, which says nothing
    command = [sys.executable, "-c", PROGRAM, str(EARLY), str(LATE)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    early, late = found["early"], found["late"]
    assert early["ticks"] < 2 * EARLY
    assert late["ticks"] >= LATE
    assert (late["history"], late["windows"], late["steps"]) == (early["history"], early["windows"], early["steps"]) == (300, 32, 100)
    assert late["threads"] <= early["threads"]
    assert late["files"] <= early["files"]
    assert late["objects"] <= GROWTH * early["objects"]
    assert late["resident"] - early["resident"] < LEAST_OBJECT * (late["ticks"] - early["ticks"]), found
    assert found["error"] == ""
    assert found["status"]["monitor.missedTicks"] == 0
    assert found["status"]["monitor.exporter.program.failed"] == found["status"]["monitor.exporter.callback.failed"] == 0
