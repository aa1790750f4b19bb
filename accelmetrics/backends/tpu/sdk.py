"""libtpu's SDK, asked in a process of its own and at a pace of its own.

It is the only source for some metrics, and the second one for others. Loading it takes seconds and may crash, so it is
loaded only where a TPU is in use, only in a child, and only every ten seconds, beside the readings and never within one:
they take what it said last. Where it fails it is asked ever more rarely; where it is not installed, not again.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from accelmetrics.backends.clock import Clock
from accelmetrics.backends.kit import commands
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason, Unavailable

SCRIPT = Path(__file__).with_name("sdk_script.py")
INTERVAL = 10.0
LONGEST_INTERVAL = 600.0
TIMEOUT = 8.0
MAX_OUTPUT = 1024 * 1024
INTEREST = 60.0
"""It is not asked any more so many seconds after somebody last wanted to know."""
FIRST_WAIT = 3.0
"""For so many seconds the first answer may hold up the opening of the source."""

NOT_YET = Unavailable(Reason.TIMED_OUT, "libtpu's SDK has not answered yet")
NOT_THERE = "libtpu's SDK is not installed beside this Python: pip install libtpu"


class Series(NamedTuple):
    """One metric as the SDK tells it: what it is, in words, and a list of strings."""

    description: str
    data: tuple[str, ...]


class SdkReading:
    """What one run came to.

    Args:
        taken: When, on the monotonic clock.
        metrics: By the SDK's name, what it said, or why not.
        otherwise: Why there is nothing under other names.
        missing: Whether there is no SDK at all.
    """

    def __init__(self, taken: float, metrics: Mapping[str, Series | Unavailable], otherwise: Unavailable, missing: bool = False) -> None:
        self.taken = taken
        self.missing = missing
        self._metrics = metrics
        self._otherwise = otherwise

    @property
    def failed(self) -> bool:
        """Whether it came to nothing."""
        return not any(isinstance(found, Series) for found in self._metrics.values())

    def first(self, names: Sequence[str]) -> Series | Unavailable:
        """The first of these names that holds values: some releases know a name and give nothing under it."""
        found = [self._metrics.get(name, self._otherwise) for name in names]
        full = [one for one in found if isinstance(one, Series) and one.data]
        if full:
            return full[0]
        if any(isinstance(one, Series) for one in found):
            return Unavailable(Reason.NOT_SUPPORTED, "libtpu's SDK has no values of it")
        return next((one for one in found if isinstance(one, Unavailable)), self._otherwise)


class Sdk:
    """Asks it now and then, on a thread of its own.

    Args:
        names: What to ask for.
        clock: What ages are measured on.
        interval: Seconds between two runs.
        timeout: Seconds that one run may take.
    """

    def __init__(self, names: Sequence[str], clock: Clock, interval: float = INTERVAL, timeout: float = TIMEOUT) -> None:
        self._names = tuple(names)
        self._clock = clock
        self._interval = interval
        self._timeout = timeout
        self._wanted = 0.0
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._answered = threading.Event()
        self._last = SdkReading(clock.monotonic(), {}, NOT_YET)

    def want(self, wait: float = 0.0) -> None:
        """Say that somebody wants to know, and wait for the first answer if need be."""
        self._wanted = self._clock.monotonic()
        if self._thread is None and not self._closing.is_set():
            self._thread = threading.Thread(target=self._run, name="accelmetrics-tpu-sdk", daemon=True)
            self._thread.start()
        self._answered.wait(wait)

    def latest(self) -> SdkReading:
        """What it said last, unless that is too old."""
        last = self._last
        age = self._clock.monotonic() - last.taken
        if last.missing or last.failed or age <= 2 * self._interval + self._timeout:
            return last
        return SdkReading(last.taken, {}, Unavailable(Reason.STALE, f"libtpu's SDK last answered {age:.0f} s ago"))

    def close(self) -> None:
        """Ask no more. A run in progress ends by itself, at its timeout if not before."""
        self._closing.set()

    def _run(self) -> None:
        pause = self._interval
        while not self._closing.is_set() and not self._last.missing:
            if self._clock.monotonic() - self._wanted < INTEREST:
                self._last = ask(self._names, self._clock, self._timeout)
                self._answered.set()
                pause = min(2 * pause, LONGEST_INTERVAL) if self._last.failed else self._interval
            if not self._last.missing:
                self._closing.wait(pause)


def ask(names: Sequence[str], clock: Clock, timeout: float = TIMEOUT) -> SdkReading:
    """Ask it once, in a child."""
    if not sys.executable:
        return SdkReading(clock.monotonic(), {}, Unavailable(Reason.NOT_SUPPORTED, "there is no Python to run libtpu's SDK with"), True)
    try:
        completed = commands.run((sys.executable, str(SCRIPT), *names), timeout=timeout, max_output=MAX_OUTPUT)
    except SourceError as error:
        return SdkReading(clock.monotonic(), {}, Unavailable(error.reason, f"libtpu's SDK: {error.message}"))
    return understood(completed.stdout, completed.returncode, clock.monotonic())


def understood(printed: str, status: int, taken: float) -> SdkReading:
    """What the child printed, between whatever libtpu may have printed itself."""
    metrics: dict[str, Series | Unavailable] = {}
    otherwise = Unavailable(Reason.DRIVER_ERROR, f"libtpu's SDK ended its process ({_ending(status)})")
    for line in filter(None, map(_line, printed.splitlines())):
        if "missing" in line:
            return SdkReading(taken, {}, Unavailable(Reason.NOT_SUPPORTED, f"{NOT_THERE} ({line['missing']})"), missing=True)
        if "done" in line:
            otherwise = Unavailable(Reason.NOT_SUPPORTED, "libtpu's SDK does not have it")
        elif isinstance(line.get("name"), str):
            metrics[line["name"]] = _series(line)
    return SdkReading(taken, metrics, otherwise)


def _series(line: Mapping[str, Any]) -> Series | Unavailable:
    data = line.get("data")
    if isinstance(data, list):
        return Series(str(line.get("description", "")), tuple(map(str, data)))
    return Unavailable(Reason.NOT_SUPPORTED, f"libtpu's SDK: {line.get('error', 'no data')}")


def _line(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _ending(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"
