"""The rows about `accelmetrics watch`: when its first picture is there, and what it costs to look at a machine."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import NamedTuple

import psutil

from benchmarks.environments import REPOSITORY
from benchmarks.programs import environment
from benchmarks.rows import Row, Scale, seconds, spread
from tests.simulators.nvml import NvmlSimulator, Process
from tests.support.waiting import wait_for

ROWS, COLUMNS = 40, 120
PROCESSES = 16
BEGINNING = 1 << 18
"""Bytes at the beginning that are looked at."""
FIRST_PICTURES = 8000
"""Bytes with which the first pictures are drawn, drivers being open."""
WARM_UP = 2.0
DRAWN = b"\x1b[?2026l"
"""Ends each picture."""
COMMAND = [sys.executable, "-m", "accelmetrics", "watch", "--interval", "1"]


class ScreenCost(NamedTuple):
    """What the program used while it was looked at.

    Attributes:
        share: Processor time in percent of a core.
        written: Bytes a second.
        resident: Bytes of memory.
    """

    share: float
    written: float
    resident: int


def watching(scale: Scale) -> Iterator[Row]:
    """Measure the program on a terminal: its first picture, then what drawing once a second costs with processes on the devices."""
    with NvmlSimulator(scale.gpus) as simulator:
        starts = [first_picture(simulator, scale.gpus) for _ in range(scale.starts + 1)][1:]  # the first one compiles
    note = f"from exec; the first with values of the devices {seconds(median(valued for _, valued in starts))}"
    what = f"time to the first picture of `accelmetrics watch`, {scale.gpus} GPUs, {COLUMNS}x{ROWS}"
    yield spread(what, [1000 * drawn for drawn, _ in starts], " ms", (150.0, None), note)
    found = sorted(cost(scale) for _ in range(scale.rounds))
    usual = found[len(found) // 2]
    what = f"CPU of `accelmetrics watch` at 1 Hz, {scale.gpus} GPUs with {PROCESSES} processes, {COLUMNS}x{ROWS}, of one core"
    note = f"{usual.written / 1024:.1f} KiB/s to the terminal, {usual.resident / 2**20:.0f} MiB resident; readings are part of it"
    yield spread(what, [one.share for one in found], " %", (3.0, None), note)


def cost(scale: Scale) -> ScreenCost:
    """Run it on a terminal for a while."""
    with ExitStack() as stack:
        simulator = stack.enter_context(NvmlSimulator(scale.gpus))
        sleepers = [stack.enter_context(subprocess.Popen(["sleep", "3600"])) for _ in range(PROCESSES)]
        for one in sleepers:
            stack.callback(one.kill)
        for gpu in range(scale.gpus):
            simulator.gpu[gpu].set(gpu_util=90, power_mw=600_000)
            simulator.processes(gpu, [Process(one.pid, used=1 << 30, sm=10) for one in sleepers[gpu :: scale.gpus]])
        program, screen = stack.enter_context(on_screen(simulator))
        watched = psutil.Process(program.pid)
        wait_for(lambda: screen.received > FIRST_PICTURES)
        time.sleep(WARM_UP)
        before, written, began = watched.cpu_times(), screen.received, time.monotonic()
        for turn in range(max(2, round(scale.seconds))):
            for gpu in range(scale.gpus):  # every number is another one at each reading
                simulator.gpu[gpu].set(gpu_util=(37 * turn + gpu) % 100, power_mw=300_000 + 7000 * (turn % 40), temperature=50 + turn % 30)
            time.sleep(1.0)
        after, lasted = watched.cpu_times(), time.monotonic() - began
        used = after.user + after.system - before.user - before.system
        if screen.received == written:
            raise RuntimeError("nothing was drawn")
        return ScreenCost(100 * used / lasted, (screen.received - written) / lasted, watched.memory_info().rss)


def first_picture(simulator: NvmlSimulator, gpus: int) -> tuple[float, float]:
    """Start it, and return after how many seconds the first picture was drawn, and the first with the last device on it."""
    began = time.monotonic()
    with on_screen(simulator) as (_, screen):
        wait_for(lambda: f"gpu.{gpus - 1}".encode() in screen.beginning)
        valued = time.monotonic()
        return screen.drawn - began, valued - began


@contextmanager
def on_screen(simulator: NvmlSimulator) -> Iterator[tuple[subprocess.Popen[bytes], Drain]]:
    """Start the program on a terminal; it is ended behind the block."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    given = environment(simulator) | {"TERM": "xterm-256color"}
    with (
        subprocess.Popen(COMMAND, stdin=theirs, stdout=theirs, stderr=theirs, env=given, cwd=REPOSITORY, start_new_session=True) as program,
        Drain(ours) as screen,
    ):
        try:
            yield program, screen
        finally:
            program.terminate()
            program.wait(60)
            os.close(theirs)


class Drain:
    """Takes what is written to a terminal, so that writing never waits. A context manager.

    Attributes:
        received: Bytes so far.
        beginning: The first of them, which is more than the first pictures.
        drawn: When the first picture was there, by the monotonic clock; 0 before.
    """

    def __init__(self, descriptor: int) -> None:
        self.received = 0
        self.beginning = b""
        self.drawn = 0.0
        self._descriptor = descriptor
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Drain:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        os.close(self._descriptor)

    def _run(self) -> None:
        while not self._end.is_set():
            if select.select([self._descriptor], [], [], 0.05)[0]:
                try:
                    data = os.read(self._descriptor, 1 << 16)
                except OSError:  # the program has closed it
                    return
                self.received += len(data)
                if self.received < BEGINNING:
                    self.beginning += data
                if not self.drawn and DRAWN in self.beginning:
                    self.drawn = time.monotonic()
