"""One rank of a job whose processes share one reading: CPU time, and memory above an empty interpreter.

Arguments: readings a second, seconds, the directory of the job, and what it does: `rest`, `work` (a step every 100 ms, a look a second),
or `work+file` (a JSON line a second too). It says when the CPU time is known, and goes on when it is told to: one that ended would
have another one take over, which is no part of what the others cost.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from accelmetrics import Monitor
from benchmarks.workers.job import join
from benchmarks.workers.ticking import BACKENDS, WARM_UP

STEP, LOOK, STEPS = 0.1, 10, 1000
"""Seconds between two steps, steps between two looks, and steps of which the cost is taken."""


def main() -> None:
    """Print the CPU seconds of this process per reading that was due meanwhile, what a step costs in µs, and its memory in MiB."""
    rate, seconds, what = float(sys.argv[1]), float(sys.argv[2]), sys.argv[4]
    with tempfile.TemporaryDirectory() as directory:
        line = [f"jsonl:{directory}/run.jsonl"] if what == "work+file" else []
        with Monitor(1.0 if line else 1 / rate, line, backends=BACKENDS, share=join(sys.argv[3])) as monitor:
            while monitor.latest is None:
                time.sleep(0.01)
            began, spent, steps = time.monotonic() + WARM_UP, 0.0, 0
            while (now := time.monotonic()) < began + seconds:
                if not spent and now >= began:
                    spent, steps = time.process_time(), 0
                if what != "rest":
                    monitor.log(steps, loss=0.5, learning_rate=1e-3, grad_norm=2.0, tokens=4096)
                    steps += 1
                    if steps % LOOK == 0:
                        latest = monitor.latest
                        assert latest is not None
                        latest.metrics.get("cpu")
                time.sleep(
                    max(0.0, STEP - (time.monotonic() - now)) if what != "rest" else (began if now < began else began + seconds) - now
                )
            spent = time.process_time() - spent
            memory, role = resident(), monitor.channel.role
            sys.stdout.write("measured\n")
            sys.stdout.flush()
            sys.stdin.readline()
            before = time.thread_time()
            for step in range(STEPS):
                monitor.log(step, loss=0.5, learning_rate=1e-3, grad_norm=2.0, tokens=4096)
            found = {"cpu": spent / (seconds * rate), "role": role, "step": 1e6 * (time.thread_time() - before) / STEPS, "memory": memory}
    sys.stdout.write(json.dumps(found) + "\n")


def resident() -> float:
    """The memory that this process alone has, in MiB."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("RssAnon")).split()[1]) / 1024


if __name__ == "__main__":
    main()
