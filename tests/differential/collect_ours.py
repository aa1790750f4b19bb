"""Samples until its standard input is closed and prints one JSON object per sample.

Arguments: the process to watch, the interval in seconds.
"""

from __future__ import annotations

import json
import sys
import threading

from accelmetrics import Sampler


def main() -> None:
    """Samples the NVIDIA and host backends."""
    pid, interval = int(sys.argv[1]), float(sys.argv[2])
    stop = threading.Event()
    threading.Thread(target=_wait_for_the_end, args=(stop,), daemon=True).start()
    with Sampler(backends=["nvidia", "host"], pid=pid) as sampler:
        while not stop.is_set():
            snapshot = sampler.sample()
            reasons = {key: str(why.reason) for key, why in snapshot.unavailable.items()}
            line = {"time": snapshot.time_ns / 1e9, "metrics": snapshot.metrics, "reasons": reasons}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            stop.wait(interval)


def _wait_for_the_end(stop: threading.Event) -> None:
    sys.stdin.read()
    stop.set()


if __name__ == "__main__":
    main()
