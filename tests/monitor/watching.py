"""What the monitor's tests share: exporters that remember or misbehave, a clock that is told, rows made by hand."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from typing import TypeVar

from accelmetrics.monitor.monitor import Monitor
from accelmetrics.monitor.run import REQUEST_PAUSE
from accelmetrics.monitor.window import Windows
from accelmetrics.sampling.threads import Flag
from accelmetrics.schemas.reading import Header
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.ring import Ring, Row, pack_row
from accelmetrics.testing import FakeBackend
from accelmetrics.testing.fake import FakeClock
from tests.support import waiting
from tests.support.threads import own_threads, wait_for_no_threads
from tests.support.waiting import HANG, wait_for

T = TypeVar("T")

HEADERS: dict[tuple[str, ...], Header] = {}


def row(values: Mapping[str, float], at: float, joined: bool = True) -> Row:
    """A reading made by hand; equal keys give the same header, as those of a sampler do."""
    keys = tuple(values)
    header = HEADERS.setdefault(keys, Header("", keys, (), {}, (), {}, {}))
    return pack_row(header, array("d", values.values()), at, 10**18 + int(at * 1e9), joined=joined)


def put(ring: Ring, one: Row) -> Row:
    """Append a row that was made by hand."""
    return ring.append(one.header, one.values, one.at, 10**18 + int(one.at * 1e9), (), joined=one.joined, tick=True)


class Owner(Windows):
    """Windows of a monitor that hands out what a test says, at the time that it says."""

    def __init__(self) -> None:
        self.time = 0.0
        super().__init__(Ring(0), lambda: self.time, lambda: True)

    def feed(self, one: Row) -> None:
        """Take a reading as a run does."""
        self.ring.unread = self.note(put(self.ring, one)) + 1


class HeldClock(FakeClock):
    """A clock that stands until it is told to go on. The short wait before a reading on request passes by itself.

    Attributes:
        waits: How often a ticker began to wait.
        resting: Whether a ticker waits for the clock to go on, and has done what was due.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits = 0
        self.resting = False

    def waited(self) -> None:
        """Wait until a ticker has done what was due and waits again."""
        waits = self.waits
        wait_for(lambda: self.waits > waits)

    def wait(self, woken: Flag, seconds: float) -> None:
        end = self.monotonic() + seconds
        self.waits += 1
        if seconds <= REQUEST_PAUSE + 1e-9:
            super().wait(woken, seconds)
            return
        self.resting = True
        while self.monotonic() < end - 1e-9 and not woken.is_set():
            woken.wait(0.0005)
        self.resting = False


class Recorder:
    """An exporter that keeps what it is given, and does besides what a test wants it to.

    Attributes:
        records: What was delivered.
        calls: The methods that were called, in order, each with its thread.
        on_open: Called by ``open``, likewise the others; what they raise, it raises.
    """

    def __init__(self, name: str = "recorder") -> None:
        self.name = name
        self.records: list[Record] = []
        self.calls: list[tuple[str, threading.Thread]] = []
        self.on_open: Callable[[], object] = bool
        self.on_export: Callable[[Record], object] = bool
        self.on_flush: Callable[[], object] = bool
        self.on_close: Callable[[], object] = bool

    def open(self) -> None:
        self._called("open")
        self.on_open()

    def export(self, record: Record) -> None:
        self._called("export")
        self.on_export(record)
        self.records.append(record)

    def flush(self) -> None:
        self._called("flush")
        self.on_flush()

    def close(self) -> None:
        self._called("close")
        self.on_close()

    def count(self, method: str) -> int:
        """How often a method was called."""
        return sum(name == method for name, _ in self.calls)

    def _called(self, method: str) -> None:
        self.calls.append((method, threading.current_thread()))


def gpus(count: int = 2, **values: float) -> FakeBackend:
    """Scripted GPUs of no vendor, all with the same values."""
    backend = FakeBackend(devices=count)
    for device in backend.all_devices():
        device.set(**(values or {"powerWatts": 100.0, "gpu": 50}))
    return backend


def spending(clock: FakeClock, *seconds: float, then: float = 0.0) -> Callable[[], float]:
    """A value whose reading takes so long on a clock: each of these in turn, and another for ever after."""
    left = iter(seconds)

    def value() -> float:
        clock.advance(next(left, then))
        return 1.0

    return value


Gate = waiting.Gate
threads = own_threads
no_threads = wait_for_no_threads


def ticks(monitor: Monitor, count: int) -> None:
    """Wait until a monitor has taken so many readings."""
    wait_for(lambda: monitor.status.ticks >= count)


def returned(call: Callable[[], T]) -> T:
    """Return what a call returns; fail when it waits for something that never comes."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(HANG)
    assert found, f"{call} did not return"
    return found[0]


def program(text: str, timeout: float = HANG, *options: str) -> tuple[float, int, str, str]:
    """Run a program of its own: how long it took from its line ``begin`` on, its status, output and errors."""
    preface = "import sys, time; began = time.monotonic()\n"
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, *options, "-c", preface + textwrap.dedent(text)], capture_output=True, text=True, timeout=timeout
    )
    return time.monotonic() - started, done.returncode, done.stdout, done.stderr
