"""A stand-in for any of a Mac's commands: does what the file beside it says, and notes how it was called.

The script is copied to ``DIRECTORY/<name>`` behind a first line that names an interpreter, so it uses nothing but the standard
library. ``DIRECTORY/<name>.json`` is read at every call and before every line of a pipe.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NAME = Path(__file__).name


def behaviour() -> dict[str, Any]:
    """What to do now."""
    read: dict[str, Any] = json.loads((HERE / f"{NAME}.json").read_text(encoding="utf-8"))
    return read


def misbehave(what: dict[str, Any]) -> None:
    """The ways of not answering."""
    if what["mode"] == "hang":
        time.sleep(120)
    if what["mode"] == "die":
        sys.stderr.write(what["errors"])
        sys.exit(7)


def pipe() -> None:
    """Print line after line, for as long as they are read."""
    while True:
        what = behaviour()
        misbehave(what)
        if what["mode"] != "silent":
            sys.stdout.write(what["output"] + "\n")
            sys.stdout.flush()
        time.sleep(what["period"])


def main() -> None:
    what = behaviour()
    arguments = sys.argv[1:]
    with (HERE / f"{NAME}.calls").open("a", encoding="utf-8") as log:
        log.write(json.dumps({"arguments": arguments, "pid": os.getpid()}) + "\n")
    if what["mode"] == "server":
        sys.stdout.write("INFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)\n")
        sys.stdout.flush()
        time.sleep(120)
    if NAME == "macmon":
        if arguments != ["--version"]:
            pipe()
        sys.stdout.write(what["version"])
        return
    misbehave(what)
    if not what["refused"] or what["refused"] not in arguments:
        sys.stdout.write(what["output"])
    sys.stderr.write(what["errors"])
    sys.exit(what["status"])


main()
