"""Count our own Python functions that most warm readings pass, in any thread. Comprehensions are a part of their function.

What is done once in many readings (a rule that is judged once a second, what is derived from a header) is not counted.

Arguments: "sampler" for `Sampler.sample()` or "monitor" for a tick of a Monitor with one window, and the number of readings.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from types import CodeType, FrameType

import accelmetrics
from accelmetrics import Monitor, Sampler

PACKAGE = str(Path(accelmetrics.__file__).parent)
INNER = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}
SAMPLE = Sampler.sample.__code__
WARM_UP = 5
INTERVAL = 0.05


def main() -> None:
    """Print the number of functions, of calls of them a reading, and of files that they stand in."""
    who, readings = sys.argv[1], int(sys.argv[2])
    passed: Counter[CodeType] = Counter()
    readings_of: defaultdict[CodeType, set[int]] = defaultdict(set)
    counting = threading.Event()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name not in INNER and counting.is_set():
            passed[code] += 1
            readings_of[code].add(passed[SAMPLE])

    threading.setprofile(note)
    sys.setprofile(note)
    take = sampled if who == "sampler" else ticked
    count = take(readings, counting)
    sys.setprofile(None)
    usual = {code: times for code, times in passed.items() if len(readings_of[code]) > count / 2}
    files = {code.co_filename for code in usual}
    sys.stdout.write(json.dumps({"functions": len(usual), "calls": sum(usual.values()) / count, "files": len(files)}) + "\n")


def sampled(readings: int, counting: threading.Event) -> int:
    """Take readings with a Sampler. Return how many were counted."""
    with Sampler(backends=["nvidia"]) as sampler:
        for _ in range(WARM_UP):
            sampler.sample()
        counting.set()
        for _ in range(readings):
            sampler.sample()
        counting.clear()
    return readings


def ticked(readings: int, counting: threading.Event) -> int:
    """Let a Monitor tick with one open window. Return how many ticks were counted."""
    with Monitor(INTERVAL, backends=["nvidia", "host"]) as monitor, monitor.window("all"):
        while monitor.status.ticks < WARM_UP:
            time.sleep(INTERVAL)
        counting.set()
        before = monitor.status.ticks
        time.sleep(readings * INTERVAL)
        counting.clear()
        return monitor.status.ticks - before


if __name__ == "__main__":
    main()
