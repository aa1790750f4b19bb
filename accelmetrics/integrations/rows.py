"""What a row for a trainer's own logger has: which metrics, which statistics of them, and under which names."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice

from accelmetrics.backends.guard import guarded
from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.energy import COUNTER
from accelmetrics.schemas.selection import MetricChoice, MetricSelection
from accelmetrics.schemas.statistics import WindowAggregator
from accelmetrics.schemas.vitals import MEMORY_PERCENT, POWER, TEMPERATURE, UTILIZATION

BRIEF = "brief"
"""Of each device utilisation, share of memory, power, temperature and energy; of the job its throughput and work per joule."""
BRIEF_NAMES = (UTILIZATION, MEMORY_PERCENT, POWER, TEMPERATURE)
BRIEF_SELECTION = MetricSelection([*chain(*BRIEF_NAMES), COUNTER])
READINGS = "readings"
"""The name in a row that says how many readings it is made of."""
STATISTICS = ("mean", "min", "max", "last", "p50", "p95", "p99")
DEFAULT_PREFIX = "system/"

_REFUSED = re.compile(r"[^/\w.\- :]", re.ASCII)
"""What trackers do not take in a name."""


class RowChoice:
    """Reads what rows are asked for. What cannot be used is told, and replaced by the default.

    Args:
        tell: Called with a mark of what is wrong and with words for it, each time.
    """

    def __init__(self, tell: Callable[[str, str], object]) -> None:
        self._tell = tell
        self._selections: dict[object, MetricSelection] = {}

    def selection(self, keys: MetricChoice) -> MetricSelection:
        """Return what a row has; the brief one also where there is no such selection."""
        if isinstance(keys, str) and keys == BRIEF:
            return BRIEF_SELECTION
        choice = tuple(keys) if isinstance(keys, Iterable) and not isinstance(keys, str) else keys
        if choice not in self._selections:
            outcome = guarded(MetricSelection, choice)
            if outcome.failure is not None:
                self._tell(f"keys {choice}", f"row: {outcome.failure.detail}: it has the brief keys instead")
            self._selections[choice] = outcome.value or BRIEF_SELECTION
        return self._selections[choice]

    def statistics(self, stats: Iterable[str]) -> list[str]:
        """Return the statistics that there are; the mean where there is none of them."""
        asked = [stats] if isinstance(stats, str) else list(stats)
        wrong = [stat for stat in asked if stat not in STATISTICS]
        if wrong:
            self._tell(f"stats {wrong}", f"row: there is no statistic {wrong[0]!r}: there are {', '.join(STATISTICS)}")
        return [stat for stat in asked if stat in STATISTICS] or ["mean"]


def measured(
    taken: WindowAggregator, devices: Iterable[str], last: Mapping[str, float], selection: MetricSelection, stats: Sequence[str]
) -> dict[str, float]:
    """Return the statistics of what was read, of what was not read anew the last reading, energy, and the number of readings.

    Args:
        taken: The readings.
        devices: The devices' keys.
        last: The last reading.
        selection: What is wanted.
        stats: Which statistics.
    """
    read = taken.metrics
    found: dict[str, float] = {}
    for key in _brief(read.keys() | last.keys(), devices) if selection is BRIEF_SELECTION else filter(selection.wants, {**last, **read}):
        if key.endswith(f".{COUNTER}"):
            continue
        if _counts(key):
            found[key] = read[key].last if key in read else last[key]
            continue
        summary = read[key].summary() if key in read else None
        found.update(
            (key if stat == "mean" else f"{key}.{stat}", last[key] if summary is None else getattr(summary, stat)) for stat in stats
        )
    for device, used in taken.energy_joules().items():
        if selection.wants(f"{device}.{COUNTER}"):
            found[f"{device}.{COUNTER}"] = used.joules
    return {**found, READINGS: taken.readings}


def headed(prefix: str) -> str:
    """Return what names begin with: one without a slash gets one, since trackers group by it."""
    return prefix if "/" in prefix else f"{prefix or DEFAULT_PREFIX.rstrip('/')}/"


def named(found: Mapping[str, float], head: str) -> dict[str, float]:
    """Return numbers under names that trackers take."""
    return {_REFUSED.sub("_", head + name): value for name, value in found.items()}


def _brief(known: Collection[str], devices: Iterable[str]) -> Iterator[str]:
    """Yield the brief keys: of each device the first of each measure's names that it has."""
    for device in devices:
        for names in BRIEF_NAMES:
            yield from islice((key for name in names if (key := f"{device}.{name}") in known), 1)


@lru_cache(maxsize=16384)
def _counts(key: str) -> bool:
    """Return whether a metric only rises, so that its mean says nothing."""
    row = match(key)
    return row is not None and row.kind == "counter"
