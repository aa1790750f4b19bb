"""Measures the CPU of looking for every accelerator on a machine that has none, in a process that has looked for none yet."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

from accelmetrics.backends import registry


def main() -> None:
    """Print the CPU seconds of the first look, imports among them, and of a second."""
    with tempfile.TemporaryDirectory() as root:
        os.environ["ACCELMETRICS_SYSROOT"] = os.environ["PATH"] = root
        backends = registry.select("accelerators")
        spent = []
        for _ in range(2):
            began = time.process_time()
            found = [backend.name for backend in backends if backend.detect().present]
            spent.append(time.process_time() - began)
    if found:
        raise SystemExit(f"this machine has something for {', '.join(found)}")
    sys.stdout.write(json.dumps({"first": spent[0], "again": spent[1], "backends": len(backends)}) + "\n")


if __name__ == "__main__":
    main()
