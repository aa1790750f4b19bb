"""Which of our own Python functions a warm reading passes, in whichever thread. Comprehensions are a part of their function.

Arguments: how many readings.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

import accelmetrics
from accelmetrics import Sampler

PACKAGE = str(Path(accelmetrics.__file__).parent)
INNER = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}
WARM_UP = 5


def main() -> None:
    """Print how many functions, how many calls of them a reading, and in how many files they stand."""
    readings = int(sys.argv[1])
    passed: Counter[CodeType] = Counter()
    counting = False

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if counting and event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name not in INNER:
            passed[code] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    with Sampler(backends=["nvidia"]) as sampler:
        for _ in range(WARM_UP):
            sampler.sample()
        counting = True
        for _ in range(readings):
            sampler.sample()
        counting = False
    sys.setprofile(None)
    usual = {code: count for code, count in passed.items() if count >= readings}
    files = {code.co_filename for code in usual}
    sys.stdout.write(json.dumps({"functions": len(usual), "calls": sum(usual.values()) / readings, "files": len(files)}) + "\n")


if __name__ == "__main__":
    main()
