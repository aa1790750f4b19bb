"""What a monitor's history weighs: a program that runs one without a history, and then one with.

Arguments: devices, keys of each, readings in the history.
"""

from __future__ import annotations

import json
import sys
import time

import psutil

from accelmetrics.monitor.monitor import Monitor
from accelmetrics.schemas.ring import History
from accelmetrics.testing import FakeBackend
from accelmetrics.testing.fake import FakeClock


def main() -> None:
    """Prints by how many bytes the process grew, and what is remembered."""
    devices, keys, readings = map(int, sys.argv[1:])
    backend = FakeBackend(devices=devices)
    for device in backend.all_devices():
        device.set(**{f"key{number}": 100.0 + number for number in range(keys)})
    for _ in range(2):  # what a run needs besides is there before it is weighed
        watch(backend, readings, history=0)
    before = psutil.Process().memory_info().rss
    history = watch(backend, readings, history=readings)
    after = psutil.Process().memory_info().rss
    result = {
        "bytes": after - before,
        "keys": len(history.keys()),
        "readings": len(history),
        "seconds": history.times[-1] - history.times[0],
    }
    sys.stdout.write(json.dumps(result) + "\n")


def watch(backend: FakeBackend, ticks: int, history: int) -> History:
    """One reading a second, back to back on an injected clock."""
    with Monitor(1.0, backends=[backend], clock=FakeClock(), history=history) as monitor:
        while monitor.status.ticks < ticks:
            time.sleep(0.005)
    return monitor.history


if __name__ == "__main__":
    main()
