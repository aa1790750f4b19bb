"""Counts of one case that no machine's speed changes: calls into the driver, bytes written; a trace adds the system calls.

Argument: the case. Times are those of an injected clock, files of the host those of a tree, devices simulated in this process.
"""

from __future__ import annotations

import gc
import http.client
import json
import os
import socket
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import accelmetrics
from accelmetrics import Monitor, Sampler
from accelmetrics.backends.contract import Backend, Driver
from accelmetrics.backends.host import HostBackend
from accelmetrics.backends.host.drivers import linux_driver
from accelmetrics.backends.kit.system import VARIABLE
from accelmetrics.backends.nvidia import NvidiaBackend
from accelmetrics.testing import FakeBackend, FakeClock
from benchmarks.workers.reading import SteppingClock
from tests.backends.host.tree import PID, HostTree
from tests.simulators.nvml import NvmlSimulator, Process

BEGIN, END = "/counts/begin", "/counts/end"
"""Files that are asked for where counting begins and ends: a trace of system calls shows it."""
GPUS, MANY, CROWD = 8, 64, 200
PERIOD = 10
"""Seconds after which everything has been read that is read seldom."""
RECORDS = 10
SCRAPES = 10
STEPS = 50
HOUR = 3600
HISTORY = "history"
HISTORY_GPUS, HISTORY_KEYS = 8, 40
PATIENCE = 60.0
"""Seconds that a reading may take: beside busy processes it comes later, and is the same."""
FIRST_PID = 100_000


def nothing() -> None:
    """Do nothing."""


class Case(NamedTuple):
    """What is counted.

    Attributes:
        work: Does it once.
        times: How often it is done while it is counted.
        warm_up: How often before that.
        between: What has to happen before each time and is not counted.
        calls: Calls into the driver so far.
        written: Bytes written or sent so far.
    """

    work: Callable[[], object]
    times: int
    warm_up: int
    between: Callable[[], object] = nothing
    calls: Callable[[], int] = int
    written: Callable[[], int] = int


class TreeHost(HostBackend):
    """The host of a tree of files, by the case's clock."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def open(self) -> Driver:
        return linux_driver(self._clock.monotonic)


class Machine:
    """Simulated GPUs whose numbers change at each reading, the files of a host, a clock. A context manager."""

    def __init__(self, gpus: int = GPUS, clock: FakeClock | None = None) -> None:
        self._stack = ExitStack()
        self.clock = clock or FakeClock()
        self.simulator = self._stack.enter_context(NvmlSimulator(gpus))
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._turn = 0

    def __enter__(self) -> Machine:
        self.simulator.load()
        os.environ[VARIABLE] = str(HostTree(self.folder / "root").root)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def sampler(self, *names: str) -> Sampler:
        """A sampler of these backends."""
        backends: dict[str, Backend] = {"nvidia": NvidiaBackend(self.clock), "host": TreeHost(self.clock)}
        return Sampler([backends[name] for name in names], clock=self.clock, pid=PID, timeout=PATIENCE)

    def calls(self) -> int:
        """Calls into the driver so far."""
        return sum(self.simulator.calls().values())

    def go_on(self, seconds: float = 0.0) -> None:
        """Let seconds pass, and the numbers that any busy GPU changes."""
        self.clock.advance(seconds)
        self._turn += 1
        for number, gpu in enumerate(self.simulator.gpu):
            turn = self._turn + number
            gpu.set(gpu_util=50 + turn % 50, power_mw=300_000 + 7 * turn, temperature=50 + turn % 30)
        time.sleep(0.0003)  # NVML, simulated or not, wants two GPM samples to differ in time


@contextmanager
def sampling(seconds: float, gpus: int, *names: str) -> Iterator[Case]:
    """Warm readings."""
    with Machine(gpus) as machine, machine.sampler(*names) as sampler:
        ticks = round(PERIOD / seconds)
        yield Case(sampler.sample, ticks, ticks, partial(machine.go_on, seconds), machine.calls)


@contextmanager
def crowded() -> Iterator[Case]:
    """Readings a second apart of GPUs that many processes are on, whose memory and share change at each."""
    with Machine() as machine, machine.sampler("nvidia") as sampler:
        turn = 0

        def between() -> None:
            nonlocal turn
            machine.go_on(1.0)
            turn += 1
            for gpu in range(GPUS):
                pids = range(FIRST_PID + gpu * CROWD, FIRST_PID + (gpu + 1) * CROWD)
                machine.simulator.processes(gpu, [Process(pid, used=pid + turn << 20, sm=1 + (pid + turn) % 9) for pid in pids])

        yield Case(sampler.sample, PERIOD, PERIOD, between, machine.calls)


@contextmanager
def monitoring(seconds: float) -> Iterator[Case]:
    """A Monitor's ticks, GPUs and host, with its history and a window that is open all the time."""
    clock = SteppingClock()
    with Machine(GPUS, clock) as machine, ExitStack() as stack:
        backends: list[str | Backend] = [NvidiaBackend(clock), TreeHost(clock)]
        monitor = stack.enter_context(Monitor(seconds, backends=backends, clock=clock, pid=PID, timeout=PATIENCE))
        stack.enter_context(monitor.window("window"))
        ticks = round(PERIOD / seconds)
        yield Case(lambda: clock.run(1), ticks, ticks, machine.go_on, machine.calls)
        clock.left = sys.maxsize
        clock.go.set()


@contextmanager
def exporting(
    make: Callable[[ExitStack, Path], tuple[Callable[[accelmetrics.Record], object], Callable[[], int]]],
) -> Iterator[Case]:
    """Records of the same keys, one after the other."""
    with Machine() as machine, ExitStack() as stack:
        sampler = stack.enter_context(machine.sampler("nvidia", "host"))
        records = []
        for _ in range(3 * RECORDS):
            machine.go_on(1.0)
            records.append(accelmetrics.Record(sampler.sample(), {"run_id": "a"}))
        following = iter(records)
        write, written = make(stack, machine.folder)
        yield Case(lambda: write(next(following)), RECORDS, RECORDS, written=written)


def prometheus(stack: ExitStack, folder: Path) -> tuple[Callable[[accelmetrics.Record], object], Callable[[], int]]:
    """The text of a scrape, written anew for each record."""
    from accelmetrics.exporters.scrape_cache import ScrapeCache

    cache = ScrapeCache("prometheus", max_age=1e9)

    def write(record: accelmetrics.Record) -> int:
        cache.take(record)
        return len(cache.metrics())

    return summed(write)


def otlp(stack: ExitStack, folder: Path) -> tuple[Callable[[accelmetrics.Record], object], Callable[[], int]]:
    """A request, serialised."""
    from accelmetrics.exporters.otlp import RequestBuilder

    builder = RequestBuilder()
    return summed(lambda record: len(builder.build(record).SerializeToString()))


def summed(write: Callable[[accelmetrics.Record], int]) -> tuple[Callable[[accelmetrics.Record], object], Callable[[], int]]:
    """A writer that says how long each text is, and the length of all so far."""
    lengths: list[int] = []
    return lambda record: lengths.append(write(record)), lambda: sum(lengths)


def to_file(text: str, stack: ExitStack, folder: Path) -> tuple[Callable[[accelmetrics.Record], object], Callable[[], int]]:
    """An exporter, by the string that stands for it, that writes to a file."""
    from accelmetrics.exporters.registry import create

    path = folder / "out"
    exporter = create(text.format(path=path))
    exporter.open()
    stack.callback(exporter.close)
    return exporter.export, lambda: path.stat().st_size


def statsd(stack: ExitStack, folder: Path) -> tuple[Callable[[accelmetrics.Record], object], Callable[[], int]]:
    """Packets to a socket of this process: those for which it has no room are lost there, and none is looked at while it is counted."""
    from accelmetrics.exporters.statsd import StatsdExporter

    server = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    server.bind(("127.0.0.1", 0))
    exporter = StatsdExporter(f"127.0.0.1:{server.getsockname()[1]}")
    exporter.open()
    stack.callback(exporter.close)
    return exporter.export, lambda: 0


@contextmanager
def scraping() -> Iterator[Case]:
    """Scrapes of one record, over a connection that stays: server and client together."""
    from accelmetrics.exporters.prometheus import PrometheusExporter

    with Machine() as machine, machine.sampler("nvidia", "host") as sampler, ExitStack() as stack:
        machine.go_on(1.0)
        exporter = PrometheusExporter("127.0.0.1:0", max_age=1e9)
        exporter.open()
        stack.callback(exporter.close)
        exporter.export(accelmetrics.Record(sampler.sample(), {"run_id": "a"}))
        host, _, port = str(exporter.address).rpartition(":")
        client = http.client.HTTPConnection(host, int(port))
        stack.callback(client.close)
        received = 0

        def scrape() -> None:
            nonlocal received
            client.request("GET", "/metrics")
            received += len(client.getresponse().read())

        yield Case(scrape, SCRAPES, SCRAPES, written=lambda: received)


@contextmanager
def stepping() -> Iterator[Case]:
    """Steps that a training run logs, without a reading among them."""
    clock = SteppingClock()
    with Machine(GPUS, clock), accelmetrics.training(1.0, share=None, backends=[NvidiaBackend(clock)], clock=clock, visible=False) as run:
        clock.run(1)
        steps = iter(range(10**6))
        yield Case(lambda: run.step(next(steps), loss=0.5, grad_norm=1.25, lr=1e-4, tokens=4096), STEPS, STEPS)
        clock.left = sys.maxsize
        clock.go.set()


CASES: Mapping[str, Callable[[], AbstractContextManager[Case]]] = {
    "warm sample() of 8 GPUs, 10 Hz": partial(sampling, 0.1, GPUS, "nvidia"),
    "warm sample() of 8 GPUs, 1 Hz": partial(sampling, 1.0, GPUS, "nvidia"),
    "warm sample() of 64 GPUs, 1 Hz": partial(sampling, 1.0, MANY, "nvidia"),
    "warm sample() of the host, 10 Hz": partial(sampling, 0.1, 1, "host"),
    "warm sample() of the host, 1 Hz": partial(sampling, 1.0, 1, "host"),
    "warm sample() of 8 GPUs with 200 processes each": crowded,
    "tick of a Monitor, one window, 10 Hz": partial(monitoring, 0.1),
    "tick of a Monitor, one window, 1 Hz": partial(monitoring, 1.0),
    "Prometheus text of a record": partial(exporting, prometheus),
    "OTLP request of a record": partial(exporting, otlp),
    "JSON line of a record": partial(exporting, partial(to_file, "jsonl:{path}")),
    "InfluxDB lines of a record": partial(exporting, partial(to_file, "influx:{path}")),
    "StatsD packets of a record": partial(exporting, statsd),
    "scrape of a record that was scraped before": scraping,
    "run.step()": stepping,
}


def history() -> dict[str, float]:
    """The bytes of an hour's readings."""
    backend = FakeBackend(devices=HISTORY_GPUS)
    for device in backend.all_devices():
        device.set(**{f"key{number}": 100.0 + number for number in range(HISTORY_KEYS)})
    clock = SteppingClock()
    with Monitor(1.0, backends=[backend], clock=clock, history=HOUR) as monitor:
        clock.run(2)
        tracemalloc.start()
        clock.run(HOUR)
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        assert len(monitor.history) == HOUR
        clock.left = sys.maxsize
        clock.go.set()
    return {"bytes": held}


def main() -> None:
    """Print what one time comes to."""
    name = sys.argv[1]
    if name == HISTORY:
        sys.stdout.write(json.dumps(history()) + "\n")
        return
    with CASES[name]() as case:
        for _ in range(case.warm_up):
            case.between()
            case.work()
        calls, written = case.calls(), case.written()
        os.access(BEGIN, os.F_OK)
        for _ in range(case.times):
            case.between()
            case.work()
        os.access(END, os.F_OK)
        made = {"calls": case.calls() - calls, "bytes": case.written() - written}
        each = {kind: number / case.times for kind, number in made.items() if number}
        sys.stdout.write(json.dumps({"times": case.times, **each}) + "\n")


if __name__ == "__main__":
    main()
