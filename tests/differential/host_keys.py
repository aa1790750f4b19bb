"""Whether the host's keys agree, whose values move on between two readings.

A gauge of W&B's is compared with the range of ours around the same moment. A counter of W&B's began to count at another
moment than ours, so that the two differ by something that stays the same: every reading of W&B's, with ours just before
and just after it, says between which bounds that lies, and all these bounds have to have a common part.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence

from accelmetrics.backends.host.collector import SLOW_PACE
from tests.differential.streams import Record, Streams

AROUND = 0.4
"""Seconds: values of ours that were read so near to one of W&B's are taken for the same moment."""
SLACK = 0.15
"""Seconds by which a record's time may be off the moment of the reading."""
OURS_MAY_BE = SLACK + SLOW_PACE
"""Seconds by which a value of ours may be older than its record: the host is read at a pace of its own."""
COUNTERS = re.compile(r"disk\..+\.(in|out)|network\.\w+")
COUNTER_ROUNDING = 1e-6

# Relative to the value. Resident memory is exact only where the kernel adds up the parts that its CPUs keep for themselves.
TOLERANCE = {
    "disk./.usageGB": 0.002,
    "disk./.usagePercent": 0.002,
    "memory_percent": 0.10,
    "proc.cpu.threads": 0.0,
    "proc.cpu.throttledPercent": 0.10,
    "proc.memory.availableMB": 0.02,
    "proc.memory.oomKills": 0.0,
    "proc.memory.percent": 0.03,
    "proc.memory.rssMB": 0.03,
    "swap.used_percent": 0.05,
}


def disagreement(key: str, streams: Streams) -> str:
    """What is wrong about a key that both have; empty if nothing."""
    if COUNTERS.fullmatch(key):
        return _counters_apart(key, streams)
    if key not in TOLERANCE:
        return "no tolerance is set for it"
    distances = list(_distances(key, streams))
    if not distances:
        return "never read at the same time"
    distance = statistics.median(distances)
    return "" if distance <= TOLERANCE[key] else f"apart by {distance:.2%} of the value"


def _distances(key: str, streams: Streams) -> Iterator[float]:
    """How far each value of W&B's is from the range of ours around it, in shares of the value."""
    for record in streams.wandb:
        near = [other.metrics[key] for other in _near(record, streams.ours) if key in other.metrics]
        if near and key in record.metrics:
            value = record.metrics[key]
            yield max(0.0, min(near) - value, value - max(near)) / max(abs(value), 1e-9)


def _near(record: Record, others: Sequence[Record]) -> Iterator[Record]:
    return (other for other in others if -AROUND <= other.time - record.time <= AROUND + SLOW_PACE)


def _counters_apart(key: str, streams: Streams) -> str:
    bounds = list(_bounds(key, streams))
    if not bounds:
        return "never read before and after the same moment"
    lowest, highest = max(low for low, _ in bounds), min(high for _, high in bounds)
    return "" if lowest <= highest + COUNTER_ROUNDING else f"the counters drift apart by {lowest - highest}"


def _bounds(key: str, streams: Streams) -> Iterator[tuple[float, float]]:
    """Between which two numbers the difference of the counters lies, by each of W&B's readings."""
    ours = [record for record in streams.ours if key in record.metrics]
    for record in streams.wandb:
        before = [other.metrics[key] for other in ours if other.time < record.time - SLACK]
        after = [other.metrics[key] for other in ours if other.time > record.time + OURS_MAY_BE]
        if key in record.metrics and before and after:
            yield record.metrics[key] - after[0], record.metrics[key] - before[-1]
