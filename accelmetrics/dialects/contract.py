"""What a dialect is: other names, and other units, for what a record holds already. It never reads a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

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
    labels: Mapping[str, str]
    kind: PointKind = "gauge"
    unit: str = ""
    meaning: str = ""
    distribution: Distribution | None = None


class Dialect(Protocol):
    """One other monitor's names.

    Every exporter has it from :func:`~accelmetrics.dialects.registry.dialect`, which gives an object of its own to each where
    a dialect counts over a run: see :class:`Counting`.
    """

    name: str
    """As it is chosen: ``--keys verl``."""
    summary: str
    """Whose names these are, in a few words."""

    def flat(self, record: Record) -> dict[str, Number | None]:
        """The record as flat names and numbers. Missing is absent, or None where the dialect's files write ``null``."""
        ...

    def points(self, record: Record) -> Iterable[Point]:
        """The record as labelled series."""
        ...


@runtime_checkable
class Counting(Protocol):
    """A dialect that counts over the records it is shown, in their order; showing it one twice in a row changes nothing.

    ``flat`` and ``points`` count the record that they are given. An exporter that does not ask for every record's names (an
    endpoint that is asked only now and then) shows it each record all the same.
    """

    def observe(self, record: Record) -> None:
        """Count a record. May be called while another thread asks for names."""
        ...


@runtime_checkable
class Tabular(Protocol):
    """A dialect whose own tool prints a table with a row per device."""

    def rows(self, record: Record) -> Sequence[Mapping[str, str]]:
        """A row per device, each with the same columns in the same order, in the words of that tool."""
        ...
