"""What it costs exporters to put a record into their form, and what the same costs without them, by turns in one process.

Arguments: how many records per turn, how many turns.
"""

from __future__ import annotations

import io
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from csv import writer

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from accelmetrics import Sampler
from accelmetrics.exporters.csv import CsvExporter
from accelmetrics.exporters.influx import PointWriter
from accelmetrics.exporters.otlp import RequestBuilder
from accelmetrics.exporters.scrape_cache import ScrapeCache
from accelmetrics.exporters.statsd import packets_of
from accelmetrics.schemas.lines import LineWriter
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.selection import STANDARD
from accelmetrics.schemas.snapshot import Snapshot

MOVING = (
    *("gpu", "memory", "encoderUtilization", "decoderUtilization", "memoryAllocated", "memoryAllocatedBytes", "memoryFreeBytes"),
    *("temp", "memoryTemp", "powerWatts", "powerPercent", "energyJoules", "smClock", "graphicsClock", "memoryClock"),
)
"""What is another number in every reading of a busy GPU, beside the bytes that it has moved. The simulator's stand still."""


class Given:
    """A collector of `prometheus_client` that has its metrics already."""

    def __init__(self, text: bytes) -> None:
        self._metrics = list(text_string_to_metric_families(text.decode()))

    def collect(self) -> object:
        """Give them."""
        return self._metrics


def main() -> None:
    """Print for either exporter the median seconds of a record, and of the same without it."""
    count, turns = int(sys.argv[1]), int(sys.argv[2])
    with Sampler(backends=["nvidia"]) as sampler:
        sampler.sample()
        records = [Record(moved(sampler.sample()), {"run_id": "a"}) for _ in range(count)]
    standard = [record._replace(snapshot=record.snapshot.selected(STANDARD)) for record in records]
    result = {
        "prometheus": prometheus(records, turns),
        "otlp": otlp(records, turns),
        "jsonl": jsonl(standard, turns),
        "csv": csv(standard, turns),
        "statsd": statsd(records, turns),
        "influx": influx(records, turns),
        "keys": {name: len(these[0].snapshot.metrics) for name, these in (("all", records), ("standard", standard))},
    }
    sys.stdout.write(json.dumps(result) + "\n")


def moved(snapshot: Snapshot) -> Snapshot:
    """The same reading with other numbers where a busy GPU has them, as precise as they were."""
    numbers = {}
    for key, value in snapshot.metrics.items():
        name = key.split(".", 2)[-1]
        if name in MOVING or name.endswith("BytesTotal"):
            numbers[key] = value + random.randrange(1, 10) if isinstance(value, int) else round(value * random.uniform(0.9, 1.1), 3)
    return snapshot.with_metrics(numbers)


def prometheus(records: Sequence[Record], turns: int) -> tuple[float, float]:
    """The text of a scrape, and `generate_latest` of the same points."""
    cache = ScrapeCache("prometheus", max_age=3600)
    registry = CollectorRegistry()

    def write(record: Record) -> bytes:
        cache.take(record)
        return cache.metrics()

    registry.register(Given(write(records[0])))  # type: ignore[arg-type]  # by its one method
    return by_turns(records, turns, write, lambda _: generate_latest(registry))


def otlp(records: Sequence[Record], turns: int) -> tuple[float, float]:
    """A request, and one whose every part is made anew."""
    builder = RequestBuilder()
    return by_turns(
        records,
        turns,
        lambda record: builder.build(record).SerializeToString(),
        lambda record: RequestBuilder().build(record).SerializeToString(),
    )


def jsonl(records: Sequence[Record], turns: int) -> tuple[float, float]:
    """The line of a record below a header that is written, and `json.dumps` of its metrics."""
    writer = LineWriter()

    def write(record: Record, fresh: bool = False) -> bytes:
        line = writer.lines(record, fresh).encode("ascii")
        writer.wrote()
        return line

    write(records[0], fresh=True)
    flat = {record.snapshot.time_ns: record.snapshot.flat() for record in records}
    return by_turns(records, turns, write, lambda record: json.dumps(flat[record.snapshot.time_ns]))


def csv(records: Sequence[Record], turns: int) -> tuple[float, float]:
    """A row of a file, and what the standard library's writer makes of the same numbers."""
    exporter = CsvExporter("/dev/null")
    head = (exporter.lines(records[0], b"", fresh=True) or b"").partition(b"\n")[0] + b"\n"

    def plain(record: Record) -> str:
        text = io.StringIO()
        writer(text).writerow(record.snapshot.metrics.values())
        return text.getvalue()

    return by_turns(records, turns, lambda record: exporter.lines(record, head, fresh=False), plain)


def statsd(records: Sequence[Record], turns: int) -> tuple[float, float]:
    """Packets with tags, and a line for each metric without any."""
    return by_turns(
        records,
        turns,
        lambda record: list(packets_of(record, "accelmetrics", tagged=True)),
        lambda record: "\n".join([f"accelmetrics.{key}:{value}|g" for key, value in record.snapshot.metrics.items()]).encode(),
    )


def influx(records: Sequence[Record], turns: int) -> tuple[float, float]:
    """Points, and one line with a field for each metric."""
    return by_turns(
        records,
        turns,
        PointWriter().text,
        lambda record: "accelerator " + ",".join([f"{key}={value}" for key, value in record.snapshot.metrics.items()]),
    )


def by_turns(
    records: Sequence[Record], turns: int, ours: Callable[[Record], object], theirs: Callable[[Record], object]
) -> tuple[float, float]:
    """The median seconds of either for one record; the first turn warms up."""
    spent: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 1):
        for work, times in zip((ours, theirs), spent, strict=True):
            anew = [record._replace(snapshot=record.snapshot.with_metrics({})) for record in records]  # of which nothing is known yet
            started = time.perf_counter()
            for record in anew:
                work(record)
            if turn:
                times.append((time.perf_counter() - started) / len(records))
    return statistics.median(spent[0]), statistics.median(spent[1])


if __name__ == "__main__":
    main()
