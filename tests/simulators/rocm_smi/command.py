"""A stand-in for the command ``rocm-smi``: does what the file beside it says, and notes how it was called.

The script is copied to ``DIRECTORY/rocm-smi`` behind a first line that names an interpreter, so it uses nothing but the
standard library. ``DIRECTORY/behaviour.json`` is read at every call, ``DIRECTORY/calls.jsonl`` grows by a line.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SLEEPER = "import time; time.sleep(120)"


def note(**what: object) -> None:
    """Append a line to the log."""
    with (HERE / "calls.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps(what) + "\n")


def leave_child(*, apart: bool = False) -> None:
    """Start a child that outlives this process and holds its output open."""
    child = subprocess.Popen([sys.executable, "-IS", "-c", SLEEPER], start_new_session=apart)
    note(child=child.pid)


def refuse(behaviour: dict[str, Any], flags: list[str]) -> None:
    """Answer unknown flags as argparse does."""
    unknown = [flag for flag in flags if flag in behaviour["unknown_flags"]]
    if unknown:
        sys.stderr.write("usage: rocm-smi [-h] [-a] [--json]\n")
        sys.stderr.write(f"rocm-smi: error: unrecognized arguments: {' '.join(unknown)}\n")
        sys.exit(2)


def crash(behaviour: dict[str, Any], flags: list[str]) -> None:
    """Abort on some flags, before anything is printed."""
    if any(flag in behaviour["crashing_flags"] for flag in flags):
        sys.stderr.write("terminate called after throwing an instance of 'amd::smi::rsmi_exception'\n")
        sys.stderr.flush()
        os.abort()


def misbehave(mode: str) -> None:
    """The ways of not ending."""
    if mode == "hang":
        leave_child()
        leave_child(apart=True)
        time.sleep(120)
    if mode == "endless":
        while True:
            sys.stdout.write('{"card0": ' * 1000)


def main() -> None:
    behaviour = json.loads((HERE / "behaviour.json").read_text(encoding="utf-8"))
    flags = sys.argv[1:]
    note(flags=flags, pid=os.getpid(), cwd=str(Path.cwd()), environment=dict(os.environ), stdin=sys.stdin.read())
    time.sleep(behaviour["delay"])
    refuse(behaviour, flags)
    crash(behaviour, flags)
    misbehave(behaviour["mode"])
    sys.stderr.write(behaviour["errors"])
    sys.stdout.write(behaviour["all_output"] if "-a" in flags and behaviour["all_output"] is not None else behaviour["output"])
    sys.stdout.flush()
    if behaviour["mode"] == "held":
        leave_child()
    sys.exit(behaviour["status"])


main()
