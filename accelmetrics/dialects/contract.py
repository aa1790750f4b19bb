"""What a dialect is: other names, and other units, for what a record holds already. It never reads a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from accelmetrics.schemas.metric import Kind
from accelmetrics.schemas.record import Record

Number = int | float
PointKind = Kind | Literal["histogram", "summary"]
NO_LABELS: Mapping[str, str] = {}


class Distribution(NamedTuple):
    """What was observed since the dialect was made, counted together: the value of a histogram or a summary.

    Attributes:
        observations: How many, above 0.
        total: Their sum.
        buckets: Upper bounds, rising, each with the number of observations up to it; that of infinity is ``observations`` and
            left out. Empty for a summary.
    """

    observations: int
    total: float
    buckets: tuple[tuple[float, int], ...] = ()

    @property
    def mean(self) -> float:
        """The mean observation."""
        return self.total / self.observations


class Point(NamedTuple):
    """One number as a system that keeps labelled series wants it.

    Attributes:
        name: The metric's name in the dialect.
        value: The number in the dialect's unit, always finite; the mean of a distribution.
        labels: What tells this series from others of the same name.
        kind: ``gauge``, or ``counter`` for a number that only rises; ``histogram`` and ``summary`` have a distribution.
        unit: UCUM-style unit of the value (``W``, ``By``, ``1``).
        meaning: One sentence.
        distribution: All of a histogram or a summary; None for a plain number.
    """

    name: str
    value: Number
    labels: Mapping[str, str] = NO_LABELS
    kind: PointKind = "gauge"
    unit: str = ""
    meaning: str = ""
    distribution: Distribution | None = None


class Dialect(Protocol):
    """One other monitor's names. Inherit from this class, and ``points`` is all that must be written.

    Attributes:
        name: As it is chosen: ``--keys verl``.
        summary: Whose names these are, in a few words.
        counting: Whether it counts over the records that it is shown. Then an exporter has an object of its own, and asks it for
            the points of each record once, in their order, whether they are wanted or not; the last record again counts nothing.
        tabular: Whether its own tool prints a table with a row per device, which :meth:`rows` gives.
    """

    name: str
    summary: str
    counting: bool = False
    tabular: bool = False

    def points(self, record: Record) -> Iterable[Point]:
        """Give the record as labelled series. What is missing has none."""
        ...

    def flat(self, record: Record) -> dict[str, Number]:
        """Give the record as flat names and numbers.

        The default spells labelled series as PromQL does, and gives the number and the sum of the observations of a distribution.
        """
        found: dict[str, Number] = {}
        for point in self.points(record):
            if point.distribution is None:
                found[series(point.name, point.labels)] = point.value
            else:
                found[series(f"{point.name}_count", point.labels)] = point.distribution.observations
                found[series(f"{point.name}_sum", point.labels)] = point.distribution.total
        return found

    def rows(self, record: Record) -> Sequence[Mapping[str, str]]:
        """Give a row per device, each with the same columns in the same order, in the words of the dialect's tool."""
        del record
        return ()


def series(name: str, labels: Mapping[str, str]) -> str:
    """Spell a series as one word: ``gpu_utilization_percent{gpu_index="0"}``."""
    escaped = {label: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for label, value in labels.items()}
    written = ",".join(f'{label}="{value}"' for label, value in escaped.items())
    return f"{name}{{{written}}}" if written else name
