"""Points with their numbers apart: while the rest stays as it is, it need be neither made nor written again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import NamedTuple

from accelmetrics.dialects.contract import Number, Point
from accelmetrics.dialects.prometheus import SeriesTemplate
from accelmetrics.schemas.catalogue import edition
from accelmetrics.schemas.reading import Header
from accelmetrics.schemas.snapshot import Snapshot

Described = Callable[[Header], Iterator[tuple[str, SeriesTemplate, Mapping[str, str]]]]
"""Gives, for each key of a header that becomes a series, what it becomes and the labels of its device."""


class PointColumns(NamedTuple):
    """Points, and their numbers.

    Attributes:
        shape: All but the numbers: equal for points that differ in numbers alone. Most are the same object from record to record,
            which makes comparing cheap.
        points: Points of that shape, with numbers of whichever record.
        numbers: One of each point; of a distribution those of its buckets, how many were observed, and their sum.
    """

    shape: tuple[object, ...]
    points: Sequence[Point]
    numbers: Sequence[Number]


def columns(points: Iterable[Point]) -> PointColumns:
    """Sort points into columns."""
    found = tuple(points)
    if not found:
        return PointColumns((), (), ())
    names, values, labels, kinds, units, meanings, distributions = zip(*found, strict=True)
    if not any(distributions):
        return PointColumns((names, labels, kinds, units, meanings), found, values)
    bounds = tuple(whole and tuple(bound for bound, _ in whole.buckets) for whole in distributions)
    numbers: list[Number] = []
    for value, whole in zip(values, distributions, strict=True):
        numbers += (value,) if whole is None else (*(up_to for _, up_to in whole.buckets), whole.observations, whole.total)
    return PointColumns((names, labels, kinds, units, meanings, bounds), found, numbers)


def numbered(points: Iterable[Point]) -> Iterator[Point]:
    """Give points that have, in place of each number, its place in the column of numbers."""
    place = 0
    for point in points:
        whole = point.distribution
        if whole is None:
            yield point._replace(value=place)
            place += 1
        else:
            last = place + len(whole.buckets)
            buckets = tuple((bound, place + number) for number, (bound, _) in enumerate(whole.buckets))
            yield point._replace(distribution=whole._replace(observations=last, total=last + 1, buckets=buckets))
            place = last + 2


def metric_columns(snapshot: Snapshot, described: Described, of_one_type: bool = False, left_out: tuple[str, ...] = ()) -> PointColumns:
    """Return the columns of a reading's metrics. All but the numbers is made once for each header.

    Args:
        snapshot: The reading.
        described: Gives what the keys become.
        of_one_type: Whether a series is to have ints or floats throughout, as :meth:`SeriesTemplate.point` has it.
        left_out: What the names of series begin with that are left out.
    """
    header = snapshot.header

    def convert() -> tuple[list[bool], list[tuple[int, SeriesTemplate]], list[Callable[[Number], Number]], PointColumns]:
        found = {key: (series, labels) for key, series, labels in described(header) if not series.name.startswith(left_out)}
        templates = [series for series, _ in found.values()]
        return (
            [key in found for key in header.keys],
            [(place, one) for place, one in enumerate(templates) if (one.times, one.over) != (1, 1)],
            [round if one.whole else float for one in templates],
            columns(series.point(0, labels) for series, labels in found.values()),
        )

    has_series, scaled, types, found = header.kept(("series", described, left_out, edition()), convert)
    numbers = list(compress(snapshot.numbers, has_series))
    for place, one in scaled:
        numbers[place] = numbers[place] * one.times / one.over if one.over != 1 else numbers[place] * one.times
    if of_one_type:
        numbers = [kind(number) for kind, number in zip(types, numbers, strict=True)]
    return found._replace(numbers=numbers)
