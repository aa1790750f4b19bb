"""A stand-in for ``neuron-monitor``: streams reports as the file beside it says, and notes how it was started.

The script is copied to ``DIRECTORY/neuron-monitor`` behind a first line that names an interpreter, so it uses nothing but
the standard library. ``DIRECTORY/behaviour.json`` is read again before every line, ``DIRECTORY/calls.jsonl`` grows by a
line per start. Like the real tool it refuses a configuration that it does not understand.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GROUPS = {"neuroncore_counters", "memory_used", "execution_stats", "neuron_runtime_vcpu_usage"}
SYSTEM_GROUPS = {"neuron_hw_counters", "vcpu_usage", "memory_info"}
SLEEPER = "import time; time.sleep(120)"


def note(**what: object) -> None:
    """Append a line to the log."""
    with (HERE / "calls.jsonl").open("a", encoding="utf-8") as log:
        log.write(json.dumps(what) + "\n")


def refuse(words: str) -> None:
    """End as the tool does on a configuration that it does not understand."""
    sys.stderr.write(f"neuron-monitor: config error: {words}\n")
    sys.exit(1)


def seconds(text: str) -> float:
    """A duration as Go writes it, of one unit."""
    units = {"ms": 0.001, "s": 1.0, "m": 60.0}
    unit = next(unit for unit in ("ms", "s", "m") if text.endswith(unit))
    return float(text.removesuffix(unit)) * units[unit]


def configuration(flags: list[str]) -> dict[str, Any]:
    """The file behind ``-c``, checked."""
    if len(flags) != 2 or flags[0] not in {"-c", "--config-file"}:
        refuse(f"flags {flags}")
    path = Path(flags[1])
    private = path.stat().st_uid == os.getuid() and not path.resolve().parent.stat().st_mode & 0o077
    try:
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        seconds(told["period"])
        types = {metric["type"] for runtime in told["neuron_runtimes"] for metric in runtime["metrics"]}
        system = {metric["type"] for metric in told["system_metrics"]}
    except (ValueError, KeyError, TypeError) as error:
        refuse(repr(error))
    if not types <= GROUPS or not system <= SYSTEM_GROUPS:
        refuse(f"unknown metric groups {types - GROUPS | system - SYSTEM_GROUPS}")
    note(flags=flags, pid=os.getpid(), group=os.getpgrp(), cwd=str(Path.cwd()), private=private, told=told, path=str(path.resolve()),
         environment=dict(os.environ), stdin=sys.stdin.read())  # fmt: skip
    return told


def behaviour() -> dict[str, Any]:
    """What to do now."""
    told: dict[str, Any] = json.loads((HERE / "behaviour.json").read_text(encoding="utf-8"))
    return told


def leave_child(*, apart: bool) -> None:
    """Start a child that outlives this process."""
    child = subprocess.Popen([sys.executable, "-IS", "-c", SLEEPER], start_new_session=apart)
    note(child=child.pid)


def say(text: str) -> None:
    """Print, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def misbehave(now: dict[str, Any]) -> None:
    """The ways of not printing a report."""
    mode = now["mode"]
    if mode == "hang":
        time.sleep(0.05)
    elif mode == "die":
        sys.exit(now["status"])
    elif mode == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif mode == "partial":
        say(json.dumps(now["report"])[:40])
        sys.exit(now["status"])
    elif mode == "garbage":
        say("neuron-monitor: something unexpected\n")
    elif mode == "malformed":
        say('{"neuron_runtime_data": [' + "\n")


def main() -> None:
    first = behaviour()
    if first["children"]:
        leave_child(apart=False)
        leave_child(apart=True)
    if first["stubborn"]:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    period = seconds(configuration(sys.argv[1:])["period"])
    sys.stderr.write(first["errors"])
    sys.stderr.flush()
    time.sleep(first["delay"])
    while True:
        now = behaviour()
        if now["mode"]:
            misbehave(now)
        else:
            say(json.dumps(now["report"]) + " " * now["padding"] + "\n")
        time.sleep(period)


main()
