"""The generated conversion of what is read at every reading gives exactly what decoding row by row gives."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from accelmetrics.backends.nvidia.calls import BufferLayout, structure_of
from accelmetrics.backends.nvidia.conversion import convert_called, convert_gpu, convert_memory
from accelmetrics.backends.nvidia.metrics import CALLED_ROWS, FAST_ROWS, MEMORY_ROWS, SHARES, NvmlField, NvmlMetric, fast_names
from tests.backends.nvidia.machine import Consume
from tests.simulators.nvml import NvmlSimulator

LIMIT = 5000.0


def numbers(rows: tuple[NvmlMetric, ...], of: Callable[[NvmlMetric], int]) -> tuple[int, ...]:
    """What would be unpacked, if each row had this number."""
    layout = BufferLayout(rows)
    count = len(structure_of(layout.calls, (3,) * len(layout.calls[-1].fields)).unpack(bytes(layout.offsets[-1])))
    raw = [3] * count
    for row, _, place in layout.places:
        raw[place] = of(row)
    return tuple(raw)


def largest(row: NvmlMetric) -> int:
    """The largest number that the driver can answer."""
    return 2**64 - 1 if isinstance(row.source, NvmlField) or "Q" in row.source.layout else 2**32 - 1


def expected(rows: tuple[NvmlMetric, ...], raw: dict[str, int]) -> list[float] | None:
    """By the rows alone: each value in its unit, None when one is out of its bounds."""
    if any(not row.minimum <= raw[row.name] <= row.maximum for row in rows):
        return None
    if raw["memoryAllocatedBytes"] > raw["memoryTotalBytes"] or raw["memoryFreeBytes"] > raw["memoryTotalBytes"]:
        return None
    values: dict[str, float] = {}
    for row in rows:
        number = raw[row.name]
        values[row.name] = number / row.divisor if row.divisor != 1 else number * row.factor
    for share, (part, whole) in SHARES.items():
        if part in values:
            values[share] = values[part] / values.get(whole, LIMIT) * 100
    return [values[name] for name in fast_names(rows)]


@pytest.mark.parametrize(
    ("rows", "convert"),
    [(FAST_ROWS, convert_gpu), (CALLED_ROWS, convert_called), (MEMORY_ROWS, convert_memory)],
    ids=["gpu", "called", "instance"],
)
def test_values_and_bounds(rows: tuple[NvmlMetric, ...], convert: Callable[..., tuple[float, ...] | None]) -> None:
    """On random numbers, most of them possible, and on each row's bounds and beyond them."""
    chance = random.Random(4711)
    cases = [{row.name: chance.randint(max(0, row.minimum), min(row.maximum, 2**40)) for row in rows} for _ in range(300)]
    for case in cases[:200]:
        case["memoryTotalBytes"] = max(case["memoryAllocatedBytes"], case["memoryFreeBytes"], 1)
    possible = cases[0]
    for row in rows:
        bounds = (row.minimum - 1, row.minimum, row.maximum, row.maximum + 1, largest(row))
        cases += [{**possible, row.name: number} for number in bounds if number >= 0 or isinstance(row.source, NvmlField)]
    found = [(convert(numbers(rows, lambda row: case[row.name]), LIMIT), expected(rows, case)) for case in cases]  # noqa: B023
    for converted, wanted in found:
        assert (None if converted is None else list(converted)) == wanted
    assert [converted is None for converted, _ in found].count(False) > 200
    types = {name: type(value) for name, value in zip(fast_names(rows), found[0][0] or (), strict=True)}
    assert {types[row.name] for row in rows if row.divisor == 1 and not row.flags} == {int}


def test_both_ways_through_the_driver(simulator: NvmlSimulator, consume: Consume) -> None:
    """The first reading of a driver decodes row by row, later ones convert at once."""
    chance = random.Random(42)
    consumer = consume()
    consumer.read(0)
    for _ in range(30):
        simulator.gpu[0].set(
            gpu_util=chance.randrange(101),
            memory_used=chance.randrange(2**36),
            power_mw=chance.randrange(2**20),
            energy_mj=chance.randrange(2**50),
            nvlink_data_tx_kib=dict.fromkeys(range(18), chance.randrange(2**40)),
            clocks_event_reasons=chance.randrange(512),
        )
        fast = consumer.read(0).reading.blocks[:2]
        rows = consume(consumer.clock).read(0).reading.blocks[:2]
        assert [(block.names, tuple(block.values)) for block in fast] == [(block.names, tuple(block.values)) for block in rows]
