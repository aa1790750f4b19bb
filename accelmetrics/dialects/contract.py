"""What a dialect is: other names, and other units, for what a record holds already. It never reads a device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from accelmetrics.schemas.metric import Kind
from accelmetrics.schemas.record import Record

Number = int | float


class Point(NamedTuple):
    """One number as a system that keeps labelled series wants it.

    Attributes:
        name: The metric's name in the dialect.
        value: The number in the dialect's unit, always finite.
        labels: What tells this series from others of the same name.
        kind: ``gauge``, or ``counter`` for a number that only rises.
        unit: UCUM-style unit of the value (``W``, ``By``, ``1``).
        meaning: One sentence.
    """

    name: str
    value: Number
    labels: Mapping[str, str]
    kind: Kind = "gauge"
    unit: str = ""
    meaning: str = ""


class Dialect(Protocol):
    """One other monitor's names."""

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
