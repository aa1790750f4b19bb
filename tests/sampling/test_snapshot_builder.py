"""The builder that is kept from reading to reading gives what a new one gives."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from accelmetrics import Unavailable
from accelmetrics.backends.contract import Block, Reading
from accelmetrics.sampling.snapshot_builder import Entry, KeyMapper, SnapshotBuilder
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.selection import ALL_METRICS, MetricSelection, asked_of
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
        values: list[Any] = [draw(VALUES) for _ in range(max(0, len(names) + draw(st.integers(-1, 1))))]
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


def built(builder: SnapshotBuilder, given_entries: list[Entry]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The metrics, and the reasons, the processes and why they are not known."""
    made = builder.build(0, given_entries, (), ())
    return made.metrics, [dict(made.unavailable), dict(made.processes), dict(made.unlisted)]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.lists(readings(), min_size=1, max_size=3), st.integers(1, 3)), min_size=1, max_size=5))
def test_a_kept_builder_agrees_with_a_new_one(rounds: list[tuple[list[Reading], int]]) -> None:
    """Readings come as the same objects and as new ones, with other blocks, other names, other reasons, and values of every kind.

    A new one writes all of them into a dict, one after the other: of a name that stands in two blocks the last one's value.
    """
    kept, known = SnapshotBuilder("node"), mappers()
    for read, times in rounds:
        for _ in range(times):
            metrics, rest = built(kept, entries(known, read))
            expected, expected_rest = built(SnapshotBuilder("node"), entries(mappers(), read))
            assert list(metrics.items()) == list(expected.items())
            assert rest == expected_rest
            plain: dict[str, Any] = {}
            for mapper, what in entries(mappers(), read):
                mapper.put(what, plain)
            assert list(metrics.items()) == list(plain.items())


def test_the_header_is_the_same_object_while_only_numbers_change() -> None:
    """In a list, too, that its backend writes into; and again when a key that went has come back."""
    builder, known, powers = SnapshotBuilder("node"), mappers()[:1], [100.0]
    static = Block(("fanSpeed",), (1,))

    def read(*more: Block) -> Snapshot:
        blocks = [Block(("temp",), (40,)), static, Block(("powerWatts",), powers), *more]
        return builder.build(0, entries(known, [Reading(blocks)]), (), ())

    first = read()
    powers[0] = 200.0
    second, third, fourth = read(), read(Block(("memory",), (5,))), read()
    assert first.header is second.header is fourth.header is not third.header
    assert (first.numbers, second.numbers) == ((40, 1, 100.0), (40, 1, 200.0))


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(readings(), min_size=1, max_size=3), min_size=1, max_size=5),
    st.sampled_from(["core", "temp", "gpu.1.*,fanSpeed", "-gpu.0.temp", "process.temp", "cpu"]),
)
def test_what_is_not_wanted_is_dropped_and_nothing_else_changes(rounds: list[list[Reading]], items: str) -> None:
    """Readings of every kind: what a mapper leaves out is what the selection leaves out of everything.

    And what is asked for by name has a value or a reason, on every device that was read.
    """
    metrics = MetricSelection(items)
    asked = {f"{key}.{names[0]}" for key in filter(None, KEYS) for names in asked_of(metrics, key)}
    kept, known = SnapshotBuilder("node"), mappers(metrics)
    for read in rounds:
        found, rest = built(kept, entries(known, read))
        everything, whole_rest = built(SnapshotBuilder("node"), entries(mappers(), read))
        wanted = [{key: value for key, value in part.items() if metrics.wants(key)} for part in (everything, whole_rest[0])]
        assert found == wanted[0]
        assert {key: why for key, why in rest[0].items() if key not in asked or key in wanted[1]} == wanted[1]
        assert {key for key in asked if key.rpartition(".")[0] in {mapper.key for mapper, _ in entries(known, read)}} <= {*found, *rest[0]}
        assert rest[1] == whole_rest[1]


class Interrupted(tuple[int, ...]):
    """Values in the middle of which Ctrl-C comes."""

    def __iter__(self) -> Any:
        raise KeyboardInterrupt


def test_an_interrupted_reading_leaves_nothing_to_the_next_one() -> None:
    """Of a block that comes again as the same object, such as that of the usual flags, the values count that it has."""
    builder, known, usual = SnapshotBuilder("node"), mappers()[:1], Block(("temp",), (40,))
    reading, interrupted = (
        Reading([usual, Block(("fanSpeed",), (1,))]),
        Reading([Block(("temp",), (90,)), Block(("fanSpeed",), Interrupted((2,)))]),
    )
    expected = built(builder, entries(known, [reading]))
    with pytest.raises(KeyboardInterrupt):
        built(builder, entries(known, [interrupted]))
    assert built(builder, entries(known, [reading])) == expected


def test_the_metrics_of_a_snapshot_stay_as_they_were() -> None:
    """And cannot be written to."""
    builder, known = SnapshotBuilder("node"), mappers()[:1]
    first, _ = built(builder, entries(known, [Reading.of({"temp": 1})]))
    second, _ = built(builder, entries(known, [Reading.of({"temp": 2})]))
    with pytest.raises(TypeError, match="cannot be changed"):
        first["gpu.0.temp"] = 100
    assert (first["gpu.0.temp"], second["gpu.0.temp"]) == (1, 2)
    assert built(builder, entries(known, [Reading.of({"temp": 3})]))[0] == {"gpu.0.temp": 3}
