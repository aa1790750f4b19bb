"""Real exporters through a real monitor, and their peers killed, filled, cut off and slowed.

Nothing that ``docs/exporters.md`` promises is lost, and readings go on: a recording exporter beside the one in trouble has
every record. W&B and MLflow have tests of their own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import psutil
import pytest

from accelmetrics.exporters.console import ConsoleExporter
from accelmetrics.exporters.prometheus import PrometheusExporter
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.recording import recordings
from tests.exporters.disks import fill, mounted
from tests.exporters.files_tools import rows
from tests.exporters.receivers import DAEMON, Collector, get, grpc_collector, http_collector, statsd, victoria_metrics
from tests.exporters.through_monitor import Harm, Trouble, Wire, endure
from tests.support.waiting import HANG, wait_for


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    with mounted(tmp_path / "small", "256k") as place:
        yield place


def times(records: list[Record]) -> list[int]:
    return [record.snapshot.time_ns for record in records]


# Files


def in_jsonl(place: Path) -> list[str]:
    return [record.snapshot.timestamp for one in recordings(place / "run.jsonl") for record in one]


def in_csv(place: Path) -> list[str]:
    return [row["timestamp"] for row in rows(place / "run.csv")]


def in_influx(place: Path) -> list[int]:
    lines = (place / "run.lp").read_text().splitlines()
    assert not lines or lines[0].startswith("#")
    return [int(line.rpartition(" ")[2]) for line in lines if line.startswith("gpu,accelerator=gpu.7,")]


def in_training_files(place: Path) -> list[str]:
    lines = [json.loads(line) for file in place.glob("gpu_metrics_*.jsonl") for line in file.read_text().splitlines()]
    assert set(Counter(line["timestamp"] for line in lines).values()) <= {8}
    return [line["timestamp"] for line in lines if line["gpu_index"] == 7]


def in_tensorboard(place: Path) -> list[float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(place / "system"), size_guidance={"scalars": 0}).Reload()
    return [event.wall_time for event in read.Scalars("gpu.7/powerWatts")]


class Kind(NamedTuple):
    """An exporter to files: its string, what of it lies in a directory, and the same of a record."""

    target: str
    found: Callable[[Path], list[int]] | Callable[[Path], list[str]] | Callable[[Path], list[float]]
    expected: Callable[[Record], int | str | float]


FILES = {
    "jsonl": Kind("jsonl:{}/run.jsonl", in_jsonl, lambda record: record.snapshot.timestamp),
    "csv": Kind("csv:{}/run.csv", in_csv, lambda record: record.snapshot.timestamp),
    "influx": Kind("influx:{}/run.lp", in_influx, lambda record: record.snapshot.time_ns),
    "training-files": Kind("training-files:{}", in_training_files, lambda record: record.snapshot.timestamp),
    "tensorboard": Kind("tensorboard:{}", in_tensorboard, lambda record: record.snapshot.time_ns / 1e9),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_full_disk_loses_nothing(kind: str, small_disk: Path) -> None:
    """Records wait while a disk is really full; once there is room the files have each of them, once, and no half line."""
    case, filler = FILES[kind], small_disk / "filler"

    def arrived(records: list[Record]) -> None:
        assert case.found(small_disk) == [case.expected(record) for record in records]

    trouble = Trouble(case.target.format(small_disk), lambda: fill(small_disk), filler.unlink, arrived)
    endure(trouble._replace(gpus=2 if kind == "jsonl" else 8))  # its lines are long, those of others short


@pytest.mark.parametrize("kind", FILES)
def test_a_directory_that_is_moved_away_loses_nothing(kind: str, tmp_path: Path) -> None:
    """Of the old directory and the new one together each record is in exactly one file; where the new one is not made, they wait."""
    case, place, away = FILES[kind], tmp_path / "logs", tmp_path / "away"
    place.mkdir()

    def arrived(records: list[Record]) -> None:
        assert case.found(away) + case.found(place) == [case.expected(record) for record in records]

    trouble = Trouble(case.target.format(place), lambda: place.rename(away), lambda: place.mkdir(exist_ok=True), arrived)
    endure(trouble._replace(waits=kind != "tensorboard"))  # TensorBoard's is made


@pytest.mark.parametrize("kind", ["jsonl", "csv", "influx", "tensorboard"])
def test_a_deleted_file_is_begun_anew(kind: str, tmp_path: Path) -> None:
    """Records from the next one on are in a new file; those before were in the old one, each of which is kept by a link."""
    case, place, kept = FILES[kind], tmp_path / "logs", tmp_path / "kept"
    place.mkdir()

    def delete() -> None:
        for file in [path for path in place.rglob("*") if path.is_file()]:
            link = kept / file.relative_to(place)
            link.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, link)
            file.unlink()

    def arrived(records: list[Record]) -> None:
        before, after = case.found(kept), case.found(place)
        assert before + after == [case.expected(record) for record in records]
        assert after

    endure(Trouble(case.target.format(place), delete, bool, arrived, waits=False))


def ticks_in(text: str) -> int:
    """Of an exposition, how many readings the monitor had taken."""
    found = re.search(r"^accelmetrics_ticks_total (\S+)$", text, re.MULTILINE)
    return 0 if found is None else int(float(found[1]))


def test_textfile_keeps_the_last_file_on_a_full_disk(small_disk: Path) -> None:
    """What the collector reads stays whole while the disk is full, and is fresh again once there is room."""
    file, filler = small_disk / "accel.prom", small_disk / "filler"

    def alive(ticks: int) -> None:
        wait_for(lambda: ticks_in(file.read_text()) >= ticks)

    def room() -> None:
        assert ticks_in(file.read_text()) > 0
        filler.unlink()

    endure(Trouble(f"textfile:{file}", lambda: fill(small_disk), room, lambda _: None, alive))
    assert list(small_disk.iterdir()) == []


# Readers that stand still


def drained(descriptor: int) -> Callable[[], bytes]:
    """Begin to read a pipe to its end; what gives all that was read."""
    found: list[bytes] = []

    def read() -> None:
        while data := os.read(descriptor, 1 << 16):
            found.append(data)

    reader = threading.Thread(target=read)
    reader.start()

    def everything() -> bytes:
        reader.join(HANG)
        assert not reader.is_alive()
        return b"".join(found)

    return everything


def filled(descriptor: int) -> int:
    """Fill a pipe; with how many bytes."""
    os.set_blocking(descriptor, False)
    count = 0
    with suppress(BlockingIOError):
        while True:
            count += os.write(descriptor, b".")
    os.set_blocking(descriptor, True)
    return count


def test_a_terminal_that_stands_still() -> None:
    """While what is printed is not read, lines wait; then each is printed."""
    end, begin = os.pipe()
    count = filled(begin)
    stream = os.fdopen(begin, "w")
    everything: list[Callable[[], bytes]] = []

    def arrived(records: list[Record]) -> None:
        stream.close()
        lines = everything[0]()[count:].decode().splitlines()
        assert len(lines) == len(records) and all(line.startswith("GPU %: 0:86/1 ") for line in lines)

    exporter = ConsoleExporter(stream=stream)
    endure(Trouble(exporter, bool, lambda: everything.append(drained(end)), arrived, healthy=False))
    os.close(end)


def test_a_pipe_that_is_not_read(tmp_path: Path) -> None:
    """A named pipe that is not read yet: every line is there once it is."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    everything: list[Callable[[], bytes]] = []

    def arrived(records: list[Record]) -> None:
        _, *lines = everything[0]().splitlines()
        stamps = [json.loads(line)["timestamp"] for line in lines]
        assert stamps == [record.snapshot.timestamp for record in records]

    def begin_to_read() -> None:
        everything.append(drained(os.open(pipe, os.O_RDONLY)))

    endure(Trouble(f"jsonl:{pipe}", bool, begin_to_read, arrived, healthy=False))


# Servers


@pytest.fixture(scope="module")
def victoria(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with victoria_metrics(tmp_path_factory.mktemp("victoria")) as address:
        yield address


@contextmanager
def otlp(protocol: str) -> Iterator[tuple[Wire, str, Callable[[], list[int]]]]:
    """An OTLP receiver behind a wire: how to reach it, and the times of what it has."""
    start: Callable[[int], object] = grpc_collector if protocol == "grpc" else http_collector
    with ExitStack() as stack:
        collector: Collector = stack.enter_context(start(0))  # type: ignore[arg-type]
        wire = Wire(int(collector.endpoint.rpartition(":")[2]))
        stack.callback(wire.close)

        def found() -> list[int]:
            return [collector.named("hw.power", index)[0].time_ns for index in range(len(collector.requests))]

        yield wire, f"otlp:http://127.0.0.1:{wire.port}?protocol={protocol}&timeout=0.5", found


@pytest.mark.parametrize("harm", ["kill", "cut request", "cut answer", "hold"])
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_collector_gets_every_record(protocol: str, harm: Harm) -> None:
    """Killed and back, cut off within a request or an answer, or silent: each record arrives, and twice only if its answer was lost."""
    with otlp(protocol) as (wire, exporter, found):

        def arrived(records: list[Record]) -> None:
            assert set(found()) == set(times(records))
            if harm == "cut request":
                assert len(found()) <= len(records) + 1  # one may have been under way when it was cut

        endure(Trouble(exporter, lambda: wire.begin(harm), wire.end, arrived))


@pytest.mark.servers
@pytest.mark.parametrize("harm", ["kill", "cut request", "cut answer", "hold"])
def test_a_database_gets_every_record(victoria: str, harm: Harm) -> None:
    """The same of a real server of line protocol, which holds a point once however often it was written."""
    wire = Wire(int(victoria.rpartition(":")[2]))
    prefix = f"{harm.replace(' ', '_')}_"

    def stamps() -> set[int]:
        get(f"{victoria}/internal/force_flush")
        # Asked in ever another way, since what a question found is remembered.
        which = f'{{__name__="{prefix}gpu_powerWatts",accelerator="gpu.7",not!="{time.monotonic_ns()}"}}'
        text = get(f"{victoria}/api/v1/export?match[]={quote(which)}")
        return {stamp for line in text.splitlines() for stamp in json.loads(line)["timestamps"]}

    def arrived(records: list[Record]) -> None:
        wanted = {time_ns // 1_000_000 for time_ns in times(records)}
        wait_for(lambda: stamps() == wanted, what=lambda: stamps() ^ wanted)

    target = f"influx:http://127.0.0.1:{wire.port}?prefix={prefix}&timeout=0.5"
    try:
        endure(Trouble(target, lambda: wire.begin(harm), wire.end, arrived))
    finally:
        wire.close()


@pytest.mark.servers
@pytest.mark.parametrize("harm", ["kill", "stop"])
def test_statsd_is_told_again(harm: str, tmp_path: Path) -> None:
    """The daemon, killed and begun again or stopped for a while, then shows a reading taken after that, and has seen no bad line."""
    with ExitStack() as stack:
        daemon = stack.enter_context(statsd(tmp_path))
        (process,) = [child for child in psutil.Process().children() if "statsd" in " ".join(child.cmdline())]

        def begin() -> None:
            if harm == "stop":
                process.suspend()
            else:
                process.kill()
                process.wait(HANG)

        def end() -> None:
            if harm == "stop":
                process.resume()
                return
            node = shutil.which("node")
            assert node is not None
            again = subprocess.Popen([node, str(DAEMON), str(tmp_path / "statsd.js")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(again.wait)
            stack.callback(again.kill)

        def alive(ticks: int) -> None:
            def fresh() -> bool:
                with suppress(ConnectionError):
                    return daemon.gauges().get("accelmetrics.monitor.ticks", 0) > ticks
                return False

            wait_for(fresh)
            assert daemon.gauges()["accelmetrics.gpu.0.powerWatts"] == 300.0
            assert daemon.counter("statsd.bad_lines_seen") == 0

        target = f"statsd:127.0.0.1:{daemon.port}"
        endure(Trouble(target, begin, end, lambda _: None, alive, waits=harm == "kill"))


def test_clients_that_are_slow_or_cut_off_keep_no_client_from_scraping() -> None:
    """Beside sixty clients that say half a request, read nothing or vanish, scrapes are answered, with the latest reading."""
    exporter = PrometheusExporter("127.0.0.1:0")
    clients: list[socket.socket] = []

    def scraped() -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{exporter.address.port}/metrics", timeout=HANG) as answer:
            text = answer.read().decode()
        assert 'accel_power_watts{accelerator="gpu.7"' in text
        return ticks_in(text)

    def begin() -> None:
        before = scraped()
        for number in range(60):
            client = socket.create_connection((exporter.address.host, exporter.address.port), HANG)
            clients.append(client)
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: a\r\n" + (b"\r\n" * (number % 3 > 0) + b"GET /metrics HTTP/1.1\r\n") * 3)
            if number % 3 == 2:
                client.close()  # with an answer on its way
        wait_for(lambda: scraped() > before)

    def end() -> None:
        for client in clients:
            client.close()

    def alive(ticks: int) -> None:
        wait_for(lambda: scraped() >= ticks)

    endure(Trouble(exporter, begin, end, lambda _: None, alive, waits=False))
