"""`python -m benchmarks --compare`: counts of what a user pays for, which no machine's speed changes, against `counts.json`.

Each count is compared with the one in the file and what that may grow by. A case that comes out worse is counted again, since chance
(a thread that wakes late) only adds to a count. Files opened, modules and system calls also depend on Python's version: with another
version than the file's they are left out, and a note says so.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.environments import REPOSITORY
from benchmarks.programs import LONGEST, environment
from benchmarks.starting import DUMP, IMPORT, NOTHING
from benchmarks.workers.counting import BEGIN, CASES, END, HISTORY, HISTORY_GPUS, HISTORY_KEYS
from tests.simulators.nvml import NvmlSimulator
from tests.support.missing import MissingHere

FILE = Path(__file__).with_name("counts.json")
RENEW = 'make bench ARGS="--compare --write"'
ATTEMPTS = 3
"""How often a case is counted that came out worse."""
WRITTEN_OF = 2
"""How often each is counted for the file."""

CALLS, BYTES, SYSTEM_CALLS = "calls into the driver", "bytes", "system calls"
PROCESSES, OPENED, MODULES, OWN_MODULES = "processes started", "files opened", "modules", "our modules"
MAY_GROW = {
    CALLS: (0.1, 0.1),
    BYTES: (2, 0),
    SYSTEM_CALLS: (5, 3),
    PROCESSES: (0, 0),
    OPENED: (3, 2),
    MODULES: (3, 2),
    OWN_MODULES: (0, 0),
}
"""By kind, how many percent a count may grow and how much at least: how far fresh processes lie apart, beside busy ones too."""
ANY_PYTHON = frozenset({CALLS, BYTES, PROCESSES, OWN_MODULES})

WAITING = ("futex", "clock_nanosleep", "nanosleep", "sched_yield", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait")
MEMORY = ("mmap", "munmap", "mremap", "mprotect", "madvise", "brk", "rt_sigreturn", "restart_syscall")
"""System calls that are not counted: how often a thread waits, and where memory comes from, is drawn anew in each process."""

_OPENED = re.compile(r"\b(open|openat)\(.* = \d")
_STARTED = re.compile(r"\bexecve\(.* = 0")

Counts = dict[str, float]
"""By kind, what one time comes to."""


class Allowed(NamedTuple):
    """A count of the file: what it was, and by how much it may grow."""

    number: float
    may_grow: float

    @property
    def least(self) -> float:
        """What is so much better that it is told."""
        return self.number - self.may_grow - 1e-6

    @property
    def most(self) -> float:
        """What it may come to."""
        return self.number + self.may_grow + 1e-6


class Committed(NamedTuple):
    """The file: the version of Python it was made with, and by case and kind what is allowed."""

    python: str
    cases: Mapping[str, Mapping[str, Allowed]]


class Comparison(NamedTuple):
    """What came of it, in sentences: what fails, and what is only told."""

    failures: Sequence[str]
    notes: Sequence[str]


class UnreadableCountsError(Exception):
    """The file is not what it has to be; the message says why and what to do."""


def read(file: Path) -> Committed:
    """Read committed counts.

    Raises:
        UnreadableCountsError: There is no such file, or it has another form.
    """
    try:
        content = json.loads(file.read_text("utf-8"))
        cases = {
            case: {kind: Allowed(float(entry["count"]), float(entry["may_grow"])) for kind, entry in kinds.items()}
            for case, kinds in content["cases"].items()
        }
        return Committed(str(content["python"]), cases)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UnreadableCountsError(f"{file.name} cannot be read ({why}): restore it, or write it anew by {RENEW}") from None


def text(counted: Mapping[str, Counts]) -> str:
    """What the file is to hold: a line a count."""
    cases = []
    for case, counts in counted.items():
        entries = []
        for kind, count in counts.items():
            percent, least = MAY_GROW[kind]
            entries.append(f'{json.dumps(kind)}: {{"count": {_number(count)}, "may_grow": {_number(max(count * percent / 100, least))}}}')
        cases.append(f"    {json.dumps(case)}: {{\n      " + ",\n      ".join(entries) + "\n    }")
    return f'{{\n  "python": {json.dumps(_version())},\n  "cases": {{\n' + ",\n".join(cases) + "\n  }\n}\n"


def compare(committed: Committed, counted: Mapping[str, Counts], version: str = "") -> Comparison:
    """Hold what was counted to what is committed; ``version`` is Python's, of the counts."""
    failures, notes, other = [], [], 0
    ours = version or _version()
    for case, allowed in committed.cases.items():
        for kind, before in allowed.items():
            now = counted.get(case, {}).get(kind)
            change = "" if now is None else f"{_number(before.number)} before, {_number(now)} now ({_change(before.number, now)}"
            if ours != committed.python and kind not in ANY_PYTHON:
                other += 1
            elif now is None:
                advice = f"mend the case, or renew the file by {RENEW}"
                failures.append(f"{case}: {kind}: {_number(before.number)} before, not counted now: {advice}")
            elif now > before.most:
                advice = f"mend it, or renew the file by {RENEW} and say why in the commit"
                failures.append(f"{case}: {kind}: {change}; {_number(before.may_grow)} more are allowed): {advice}")
            elif now < before.least:
                notes.append(f"{case}: {kind}: better: {change}): {RENEW}")
    for case, found in counted.items():
        new = [kind for kind in found if kind not in committed.cases.get(case, {})]
        failures += [f"{case}: {kind}: not in {FILE.name} yet: add it by {RENEW}" for kind in new]
    if other:
        notes.append(f"{other} counts that differ by Python's version are of {committed.python} and were not compared: this is {ours}")
    return Comparison(failures, notes)


def _change(before: float, now: float) -> str:
    return f"{100 * (now - before) / before:+.1f} %" if before else f"{now - before:+g}"


def _number(count: float) -> str:
    return f"{round(count, 2):.10g}"


def _version() -> str:
    return ".".join(platform.python_version_tuple()[:2])


# Counting


def count_all(committed: Committed | None, tell: Callable[[str], object]) -> dict[str, Counts]:
    """Count every case, those that came out worse than the file allows again.

    Raises:
        MissingHere: A tool is not there.
    """
    if shutil.which("strace") is None:
        raise MissingHere("strace, which counts system calls, is not there: apt-get install strace")
    return least(cases(), committed.cases if committed else None, tell)


def cases() -> dict[str, Callable[[], Counts]]:
    """Return the function that counts each case."""
    return {name: partial(_case, name) for name in CASES} | {
        f"history of an hour at 1 Hz, {HISTORY_GPUS} GPUs x {HISTORY_KEYS} keys": _history,
        "cold dump --json": partial(_start, DUMP),
        "import accelmetrics": partial(_start, IMPORT),
    }


def least(
    cases: Mapping[str, Callable[[], Counts]], committed: Mapping[str, Mapping[str, Allowed]] | None, tell: Callable[[str], object] = id
) -> dict[str, Counts]:
    """Count the cases, as many side by side as there are cores, and again what is worse than is committed, or all: the least of each."""
    counted: dict[str, Counts] = {}
    again = list(cases)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        for _ in range(WRITTEN_OF if committed is None else ATTEMPTS):
            for name, counts in zip(again, threads.map(lambda name: cases[name](), again), strict=True):
                before = counted.get(name, counts)
                counted[name] = {kind: min(count, before.get(kind, count)) for kind, count in counts.items()}
            if committed is not None:
                again = [name for name in cases if _is_worse(committed.get(name, {}), counted[name])]
                tell(f"counts: {len(cases) - len(again)} of {len(cases)} cases are no worse than is allowed")
            if not again:
                break
    return counted


def _is_worse(allowed: Mapping[str, Allowed], counts: Counts) -> bool:
    return any(count > allowed[kind].most for kind, count in counts.items() if kind in allowed)


def _case(name: str) -> Counts:
    with tempfile.TemporaryDirectory() as folder:
        trace = Trace(Path(folder, "trace"))
        found = _worker(name, before=trace.command)
        system = len(trace.made(BEGIN, END)) / found["times"]
    return {SYSTEM_CALLS: system} | {kind: found[short] for kind, short in ((CALLS, "calls"), (BYTES, "bytes")) if short in found}


def _history() -> Counts:
    return {BYTES: _worker(HISTORY)["bytes"]}


def _start(program: Sequence[str]) -> Counts:
    """Start a program: what it does over an interpreter that does nothing."""
    with NvmlSimulator() as simulator, tempfile.TemporaryDirectory() as folder:
        counts = []
        for number, one in enumerate((program, NOTHING)):
            trace = Trace(Path(folder, str(number)))
            told = _run([sys.executable, "-X", "importtime", *one], simulator).stderr.splitlines()  # which also compiles what is not
            _run([*trace.command, sys.executable, *one], simulator)
            modules = [line.rpartition("|")[2].strip() for line in told if line.startswith("import time:")]
            made = trace.made()
            opened = sum(1 for line in made if _OPENED.search(line))
            own = sum(1 for module in modules if module.partition(".")[0] == "accelmetrics")
            started = sum(1 for line in made if _STARTED.search(line))
            counts.append({MODULES: len(modules), OWN_MODULES: own, OPENED: opened, SYSTEM_CALLS: len(made), PROCESSES: started})
        return {kind: float(count - counts[1][kind]) for kind, count in counts[0].items()}


class Trace:
    """System calls of a program and its threads, without those that are left out.

    Attributes:
        command: What comes before the program's own.
    """

    def __init__(self, file: Path) -> None:
        left_out = ",".join(f"?{name}" for name in (*WAITING, *MEMORY))
        self.command = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", f"trace=!{left_out}", "-e", "signal=none", "-o", str(file)]
        self._file = file

    def made(self, begin: str = "", end: str = "") -> list[str]:
        """The lines of all calls, or of those between two others."""
        lines = self._file.read_text("utf-8", "replace").splitlines()
        if begin:
            first, last = (next(number for number, line in enumerate(lines) if mark in line) for mark in (begin, end))
            lines = lines[first + 1 : last]
        return [line for line in lines if " resumed>" not in line and "+++" not in line]


def _worker(name: str, before: Sequence[str] = ()) -> dict[str, float]:
    done = _run([*before, sys.executable, "-m", "benchmarks.workers.counting", name], None)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def _run(command: Sequence[str], simulator: NvmlSimulator | None) -> subprocess.CompletedProcess[str]:
    visible = environment(simulator) | {"PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=visible, cwd=REPOSITORY, capture_output=True, text=True, timeout=LONGEST, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done
