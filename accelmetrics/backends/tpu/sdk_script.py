"""Ask libtpu's SDK and print its answers, one line of JSON per metric. Run as a separate program, never imported.

libtpu is a library of two hundred megabytes. Its initialisation ends the process on a machine that it does not support. In this program a
crash ends only this process, and the lines printed before it are kept.

Usage: ``sdk_script.py NAME...``. A line is ``{"name": …, "description": …, "data": [strings]}`` or ``{"name": …, "error": …}``. The last
line is ``{"done": true}``, ``{"missing": …}`` if the SDK is not installed, or ``{"broken": …}`` if it does not load.
"""

import json
import sys
from typing import Any

MAX_VALUES = 4096
LONGEST = 1000
ERRORS = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""The SDK is known to raise RuntimeError and ValueError. Any other exception ends this process, as a crash does."""


def say(**line: object) -> None:
    """Print a line and flush it."""
    # Flushed at once, since the next call may crash. The leading newline ends a partial line that libtpu may have
    # printed.
    sys.stdout.write("\n" + json.dumps(line) + "\n")
    sys.stdout.flush()


def given(what: Any) -> Any:
    """Return a part of a metric. In some releases the parts are methods, in others attributes."""
    return what() if callable(what) else what


def ask(monitoring: Any, name: str) -> None:
    """Print the answer for one metric."""
    try:
        metric = monitoring.get_metric(name)
        description = str(given(getattr(metric, "description", "")))[:LONGEST]
        data = [str(value)[:LONGEST] for value in list(given(metric.data) or ())[:MAX_VALUES]]
    except ERRORS as error:
        say(name=name, error=f"{type(error).__name__}: {error}"[:LONGEST])
    else:
        say(name=name, description=description, data=data)


def main(names: list[str]) -> int:
    """Print the answers for all names. Return the exit status."""
    try:
        from libtpu import sdk

        monitoring = sdk.tpumonitoring
    except (ModuleNotFoundError, AttributeError) as error:
        say(missing=str(error)[:LONGEST])
        return 0
    except (ImportError, OSError) as error:  # installed, but one of its dependencies is missing
        say(broken=str(error)[:LONGEST])
        return 0
    for name in names:
        ask(monitoring, name)
    say(done=True)
    return 0


if __name__ == "__main__":
    del sys.path[0]  # this file's folder: its modules would hide modules of the same name
    sys.exit(main(sys.argv[1:]))
