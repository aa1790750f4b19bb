"""Ask libtpu's SDK and print its answers, a line of JSON for each metric. Run as a program of its own, never imported.

libtpu is Google's library of two hundred megabytes, whose initialisation ends the process where it does not like the
machine. Whatever it does here, it does to this process alone, and the lines printed until then are not lost.

Usage: ``sdk_script.py NAME...``. A line is ``{"name": …, "description": …, "data": [strings]}`` or ``{"name": …, "error": …}``;
the last one is ``{"done": true}``, ``{"missing": …}`` where there is no SDK, or ``{"broken": …}`` where it does not load.
"""

import json
import sys
from typing import Any

MAX_VALUES = 4096
LONGEST = 1000
ERRORS = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""What the SDK has been seen to raise is a RuntimeError or ValueError; anything beyond these ends this process, as a crash does."""


def say(**line: object) -> None:
    """Print one line at once: the next call may be the last."""
    sys.stdout.write("\n" + json.dumps(line) + "\n")
    sys.stdout.flush()


def given(what: Any) -> Any:
    """Return a part of a metric; parts are methods in some releases, attributes in others."""
    return what() if callable(what) else what


def ask(monitoring: Any, name: str) -> None:
    """Print one metric."""
    try:
        metric = monitoring.get_metric(name)
        description = str(given(getattr(metric, "description", "")))[:LONGEST]
        data = [str(value)[:LONGEST] for value in list(given(metric.data) or ())[:MAX_VALUES]]
    except ERRORS as error:
        say(name=name, error=f"{type(error).__name__}: {error}"[:LONGEST])
    else:
        say(name=name, description=description, data=data)


def main(names: list[str]) -> int:
    """Print everything; returns the exit status."""
    try:
        from libtpu import sdk

        monitoring = sdk.tpumonitoring
    except (ModuleNotFoundError, AttributeError) as error:
        say(missing=str(error)[:LONGEST])
        return 0
    except (ImportError, OSError) as error:  # it is there, and something that it needs is not
        say(broken=str(error)[:LONGEST])
        return 0
    for name in names:
        ask(monitoring, name)
    say(done=True)
    return 0


if __name__ == "__main__":
    del sys.path[0]  # this file's folder, whose modules are named for another program
    sys.exit(main(sys.argv[1:]))
