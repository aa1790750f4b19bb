"""Metrics in parts: dicts are made of them in any order, by any thread, wherever another one is in the middle of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from accelmetrics.schemas.metric_rows import MetricParts, MetricShape
from accelmetrics.schemas.snapshot import Metrics, Snapshot
from tests.support.waiting import HANG

KEYS = ("gpu.0.temp", "gpu.0.fanSpeed", "cpu", "gpu.1.temp")
PARTS: list[list[tuple[float, ...]]] = [[(1, 2), (3.5, 2**70)], [(5,), (6,)], [(7,), (8.25,)]]


@given(st.lists(st.tuples(*map(st.sampled_from, PARTS)), min_size=1, max_size=6), st.randoms())
def test_dicts_are_those_of_their_parts_in_whatever_order_they_are_looked_at(
    readings: list[tuple[tuple[float, ...], ...]], random: Random
) -> None:
    """Each is its snapshot's own: one that is written to changes no other."""
    shape = MetricShape(KEYS, (2, 1, 1))
    taken = [(Snapshot(0, "node", MetricParts(shape, parts)), parts) for parts in readings]
    random.shuffle(taken)
    for snapshot, parts in taken:
        numbers = [number for part in parts for number in part]
        assert list(snapshot.metrics.items()) == list(zip(KEYS, numbers, strict=True))
        assert list(map(type, snapshot.metrics.values())) == list(map(type, numbers))
        snapshot.metrics["cpu"] = -1


def test_what_comes_in_the_middle_of_another_dict_waits_for_nothing() -> None:
    """Another thread, and a signal handler of the same one."""
    shape = MetricShape(KEYS, (2, 1, 1))
    old, new = (MetricParts(shape, tuple(part[place] for part in PARTS)) for place in (0, 1))
    old.into(Metrics)
    found: list[Metrics] = []

    class Interrupted(Metrics):
        def __init__(self, made: Any) -> None:
            found.append(old.into(Metrics))
            other = threading.Thread(target=lambda: found.append(old.into(Metrics)))
            other.start()
            other.join(HANG)
            super().__init__(made)

    made = new.into(Interrupted)
    assert list(made.values()) == [3.5, 2**70, 6, 8.25]
    assert [list(one.values()) for one in found] == [[1, 2, 5, 7]] * 2


def test_one_that_was_interrupted_leaves_no_mixture() -> None:
    """Ctrl-C between two parts: the next dict is made of all of them."""
    shape = MetricShape(KEYS, (2, 1, 1))
    old = MetricParts(shape, tuple(part[0] for part in PARTS))

    class Interrupting(tuple[int, ...]):
        def __iter__(self) -> Iterator[int]:
            raise KeyboardInterrupt

    old.into(Metrics)
    with pytest.raises(KeyboardInterrupt):
        MetricParts(shape, (PARTS[0][1], PARTS[1][1], Interrupting((0,)))).into(Metrics)
    assert list(old.into(Metrics).values()) == [1, 2, 5, 7]
