"""The builder that is kept from reading to reading gives what a new one gives."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings, strategies as st

from accelmetrics import Unavailable
from accelmetrics.backends.contract import Block, Reading
from accelmetrics.sampling.snapshot_builder import Entry, KeyMapper, SnapshotBuilder
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.metric_rows import MetricParts
from accelmetrics.schemas.selection import ALL_METRICS, MetricSelection
from accelmetrics.schemas.snapshot import Snapshot

NAMES = ("temp", "powerWatts", "fanSpeed", "memory")
KEYS = ("gpu.0", "gpu.1", "")
VALUES = st.one_of(st.integers(-5, 5), st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([None, "12", 10**400]))


@st.composite
def readings(draw: st.DrawFn) -> Reading:
    """A reading of any form that the contract allows, and a few that it does not."""
    blocks = []
    for _ in range(draw(st.integers(0, 2))):
        names = tuple(draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3)))
        values: list[Any] = [draw(VALUES) for _ in range(max(0, len(names) - draw(st.integers(0, 1))))]
        blocks.append(Block(names, values, process=draw(st.booleans())))
    missing = {
        name: Unavailable(draw(st.sampled_from(["not_supported", "no_permission"]))) for name in draw(st.sets(st.sampled_from(NAMES)))
    }
    processes = draw(st.sampled_from([None, (), (DeviceProcess(1),), Unavailable("no_permission")]))
    return Reading(blocks, missing, processes)


def mappers(metrics: MetricSelection = ALL_METRICS) -> list[KeyMapper]:
    return [KeyMapper(key, NAMES[:2] if key else (), metrics) for key in KEYS]


def entries(into: list[KeyMapper], read: list[Reading]) -> list[Entry]:
    return list(zip(into, read, strict=False))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.lists(readings(), min_size=1, max_size=3), st.integers(1, 3)), min_size=1, max_size=5))
def test_a_kept_builder_agrees_with_a_new_one(rounds: list[tuple[list[Reading], int]]) -> None:
    """Readings come as the same objects and as new ones, with other blocks, other names, other reasons, and values of every kind."""
    kept, known = SnapshotBuilder(), mappers()
    for read, times in rounds:
        for _ in range(times):
            metrics, *rest = kept.build(entries(known, read))
            expected = SnapshotBuilder().build(entries(mappers(), read))
            # A duplicate name in two blocks: the last block's value stands, in both.
            assert (metrics, *map(dict, rest)) == (expected[0], *map(dict, expected[1:]))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.lists(readings(), min_size=1, max_size=3), st.lists(st.booleans(), min_size=1, max_size=4)), max_size=5))
def test_metrics_in_parts_come_to_the_dict_of_a_new_builder(rounds: list[tuple[list[Reading], list[bool]]]) -> None:
    """Readings in parts and as dicts by turns, in any order; a snapshot makes the same dict of the parts, in the same order."""
    kept, known = SnapshotBuilder(), mappers()
    for read, turns in rounds:
        for in_parts in turns:
            metrics, *rest = kept.build_parts(entries(known, read)) if in_parts else kept.build(entries(known, read))
            expected = SnapshotBuilder().build(entries(mappers(), read))
            assert list(Snapshot(0, "node", metrics).metrics.items()) == list(expected[0].items())
            assert [*map(dict, rest)] == [*map(dict, expected[1:])]


def test_parts_are_the_same_objects_while_nothing_in_them_changes() -> None:
    """And new ones where a value has changed, in a list that its backend writes into as well."""
    builder, known, powers = SnapshotBuilder(), mappers()[:1], [100.0]
    static = Block(("fanSpeed",), (1,))

    def read() -> MetricParts:
        blocks = [Block(("temp",), (40,)), static, Block(("powerWatts",), powers)]
        metrics, *_ = builder.build_parts(entries(known, [Reading(blocks)]))
        return metrics if isinstance(metrics, MetricParts) else read()

    first = read()
    powers[0] = 200.0
    second = read()
    assert (first.keys, first.parts[1], first.lengths) == (second.keys, (1,), (1, 1, 1))
    assert (first.keys is second.keys, first.parts[1] is second.parts[1], first.lengths is second.lengths) == (True, True, True)
    assert (first.parts[2], second.parts[2]) == ((100.0,), (200.0,))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(readings(), min_size=1, max_size=3), min_size=1, max_size=5),
    st.sampled_from(["core", "temp", "gpu.1.*,fanSpeed", "-gpu.0.temp", "process.temp", "cpu"]),
)
def test_what_is_not_wanted_is_dropped_and_nothing_else_changes(rounds: list[list[Reading]], items: str) -> None:
    """Readings of every kind: what a mapper leaves out is what the selection leaves out of everything."""
    metrics = MetricSelection(items)
    kept, known = SnapshotBuilder(), mappers(metrics)
    for read in rounds:
        found = kept.build(entries(known, read))
        everything = SnapshotBuilder().build(entries(mappers(), read))
        assert [*map(dict, found[:2])] == [{key: value for key, value in part.items() if metrics.wants(key)} for part in everything[:2]]
        assert found[2] == everything[2]


def test_the_metrics_of_a_snapshot_are_its_own() -> None:
    builder, known = SnapshotBuilder(), mappers()[:1]
    first, *_ = builder.build(entries(known, [Reading.of({"temp": 1})]))
    second, *_ = builder.build(entries(known, [Reading.of({"temp": 2})]))
    first["gpu.0.temp"] = 100
    assert second["gpu.0.temp"] == 2
    assert builder.build(entries(known, [Reading.of({"temp": 3})]))[0] == {"gpu.0.temp": 3}
