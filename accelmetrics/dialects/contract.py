"""The contract of dialects: a dialect renames and converts the values of a record. It never reads a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from accelmetrics.schemas.metric import Kind
from accelmetrics.schemas.record import Record

Number = int | float
PointKind = Kind | Literal["histogram", "summary"]
NO_LABELS: Mapping[str, str] = {}


class Distribution(NamedTuple):
    """The value of a histogram or a summary: all observations since the dialect object was created.

    Attributes:
        observations: Number of observations, above 0.
        total: Sum of the observations.
        buckets: Ascending upper bounds, each with the cumulative number of observations. The bucket of infinity is left out, because it
            equals ``observations``. Empty for a summary.
    """

    observations: int
    total: float
    buckets: tuple[tuple[float, int], ...] = ()

    @property
    def mean(self) -> float:
        """The mean observation."""
        return self.total / self.observations


class Point(NamedTuple):
    """A sample of a labelled series, for systems like Prometheus and OpenTelemetry.

    Attributes:
        name: The metric's name in the dialect.
        value: The number in the dialect's unit, always finite; the mean of a distribution.
        labels: Labels that distinguish this series from others of the same name.
        kind: ``gauge``, or ``counter`` for a number that only rises; ``histogram`` and ``summary`` have a distribution.
        unit: UCUM-style unit of the value (``W``, ``By``, ``1``).
        meaning: A sentence of help text.
        distribution: The full histogram or summary; None for a plain number.
    """

    name: str
    value: Number
    labels: Mapping[str, str] = NO_LABELS
    kind: PointKind = "gauge"
    unit: str = ""
    meaning: str = ""
    distribution: Distribution | None = None


class Dialect(Protocol):
    """The metric names of another monitor. A subclass has to define only ``points``.

    Attributes:
        name: The name that selects it: ``--keys verl``.
        summary: The monitor or tool that these names come from, in a few words.
        counting: Whether it accumulates over records. Each exporter then creates a separate object and calls ``points`` once per record,
            in order, even if it needs no points. Passing the last record again counts nothing.
        tabular: Whether its tool prints a table with a row per device, which :meth:`rows` returns.
    """

    name: str
    summary: str
    counting: bool = False
    tabular: bool = False

    def points(self, record: Record) -> Iterable[Point]:
        """Return the record as labelled series. A missing value has no series."""
        ...

    def flat(self, record: Record) -> dict[str, Number]:
        """Return the record as flat names and numbers.

        By default, names are labelled series in PromQL's spelling. A distribution becomes its count and its sum.
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
        """Return a row per device with the tool's column names and values. All rows have the same columns in the same order."""
        del record
        return ()


def series(name: str, labels: Mapping[str, str]) -> str:
    """Format a series as PromQL does: ``gpu_utilization_percent{gpu_index="0"}``."""
    escaped = {label: value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for label, value in labels.items()}
    written = ",".join(f'{label}="{value}"' for label, value in escaped.items())
    return f"{name}{{{written}}}" if written else name
