"""What cannot be is missing, with the reason invalid_value; what goes with it is missing too."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.nvidia.machine import Consume, Consumer
from tests.simulators.nvml import ALL_LINKS, Gpu, NvmlSimulator, Ret, ValueType

U32 = 2**32 - 1
U64 = 2**64 - 1
MEMORY = {"memoryAllocated", "memoryAllocatedBytes", "memoryTotalBytes", "memoryFreeBytes"}
THROTTLE = 9 + 1
"""The reasons, and whether there is any."""
READ_ONCE = {"tempLimit.shutdown", "tempLimit.slowdown", "maxSmClock", "maxMemoryClock", "maxPcieLinkGen", "maxPcieLinkWidth"}

POWER, LIMIT = {"powerWatts", "powerPercent"}, {"enforcedPowerLimitWatts", "powerPercent"}
ALONE: list[tuple[str, str, tuple[object, ...]]] = [
    ("gpu_util", "gpu", (101, U32)),
    ("memory_util", "memory", (4000,)),
    ("temperature", "temp", (U32, 255, 0)),
    ("memory_temp", "memoryTemp", (255, 0, -2)),
    ("clock_sm", "smClock", (U32, U32 - 1)),
    ("clock_mem", "memoryClock", (60_000, U32)),
    ("clock_graphics", "graphicsClock", (U32,)),
    ("pstate", "performanceState", (32,)),
    ("energy_mj", "energyJoules", (-1, 2**60)),
    ("pcie_tx_bytes", "pcieTxBytesTotal", (-1,)),
    ("pcie_rx_bytes", "pcieRxBytesTotal", (-1,)),
    ("encoder_util", "encoderUtilization", (101,)),
    ("decoder_util", "decoderUtilization", (U32,)),
    ("ecc_corrected_volatile", "correctedMemoryErrors", ({2: -1},)),
    ("ecc_corrected_aggregate", "correctedMemoryErrorsAggregate", ({2: -1},)),
    ("ecc_corrected_volatile", "correctedEccErrors", ({1: -5},)),
    ("ecc_corrected_aggregate", "correctedEccErrorsAggregate", ({1: -30},)),
    ("remapped_pending", "rowRemapPending", (2,)),
    ("remapped_failure", "rowRemapFailure", (U32,)),
    ("recovery_action", "recoveryAction", (256,)),
    ("violation_ns", "violationSeconds.power", ([-1],)),
    ("remapped_correctable", "remappedRowsCorrected", (U32,)),
    ("remapped_uncorrectable", "remappedRowsUncorrected", (U32,)),
    ("pcie_gen", "pcieLinkGen", (0,)),
    ("pcie_width", "pcieLinkWidth", (33,)),
    ("pcie_gen_max", "maxPcieLinkGen", (U32,)),
    ("pcie_width_max", "maxPcieLinkWidth", (0,)),
    ("bar1_used", "bar1UsedBytes", (-1,)),
    ("max_clock_sm", "maxSmClock", (U32, 0)),
    ("max_clock_mem", "maxMemoryClock", (U32, 0)),
    ("temp_threshold", "tempLimit.shutdown", ({0: U32}, {0: 0})),
    ("temp_threshold", "tempLimit.slowdown", ({1: 255}, {1: 0})),
]
"""What concerns one metric alone."""
CASES: list[tuple[dict[str, Any], set[str]]] = [
    *(({source: value}, {name}) for source, name, values in ALONE for value in values),
    *(({"power_mw": value}, POWER) for value in (U32, U32 - 1)),
    *(({"power_limit_enforced_mw": value}, LIMIT) for value in (0, 1, U32 - 1, U32)),
    *(({name: -1}, MEMORY) for name in ("memory_total", "memory_used")),
    ({"memory_total": 0, "memory_used": 0, "memory_reserved": 0, "memory_free": 0}, MEMORY),
    ({"memory_total": 100, "memory_used": 101, "memory_free": 0}, MEMORY),
    ({"memory_total": 100, "memory_used": 10, "memory_free": 101}, {"memoryFreeBytes"}),
    ({"memory_total": 2**48, "memory_used": 0, "memory_free": 0}, MEMORY),
    ({"fan_speed": [U32], "num_fans": 1}, {"fanSpeed"}),
    ({"ecc_uncorrected_volatile": {2: -1}}, {"uncorrectedMemoryErrors", "unCorrectedMemoryErrors", "uncorrectedEccErrors"}),
    ({"ecc_uncorrected_aggregate": {2: -1}}, {"uncorrectedMemoryErrorsAggregate", "uncorrectedEccErrorsAggregate"}),
]


def as_set(gpu: Gpu, name: str, value: object) -> object:
    """What a value, or the members of a family, are now, in the form in which they are set."""
    if isinstance(value, (dict, list)):
        return {index: as_set(gpu, f"{name}[{index}]", 0) for index in range(3)}
    now = gpu.get(name)
    return None if isinstance(now, Ret) else now


@pytest.mark.parametrize(("values", "missing"), CASES, ids=[f"{next(iter(values))}-{i}" for i, (values, _) in enumerate(CASES)])
def test_an_impossible_value_is_missing(simulator: NvmlSimulator, consume: Consume, values: dict[str, Any], missing: set[str]) -> None:
    """It is missing at once, nothing else is, and it is back once the driver is itself again."""
    gpu, consumer = simulator.gpu[1], consume()
    gpu.set(num_fans=1, fan_speed=[40])
    healthy = consumer.read(1)
    before = {name: as_set(gpu, name, value) for name, value in values.items()}
    gpu.set(**values)
    seen = consumer.later(11, 1)
    if missing & READ_ONCE:
        consumer = consume(consumer.clock)
        seen = consumer.read(1)
    assert {name for name in seen.reasons if seen.reason(name) == "invalid_value"} == missing
    assert all("returned an impossible value" in seen.reasons[name].detail for name in missing)
    gpu.set(**before)  # type: ignore[arg-type]
    again = consumer.later(0.2, 1)
    assert {name for name in again.reasons if again.reason(name) == "invalid_value"} == set()
    assert {name: again.metrics.get(name) for name in missing} == {name: healthy.metrics.get(name) for name in missing}


def test_all_ones_clocks_event_reasons(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """A mask of all ones is a sentinel, not nine reasons at once."""
    simulator.gpu[0].set(clocks_event_reasons=-1)
    seen = consumer.read(0)
    invalid = {name for name in seen.reasons if seen.reason(name) == "invalid_value"}
    assert len(invalid) == THROTTLE
    assert all(name.startswith("throttle") for name in invalid)
    simulator.gpu[0].set(clocks_event_reasons=0)
    assert consumer.read(0).metrics["throttle.gpuIdle"] == 0


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (ValueType.UNSIGNED_INT, U32),
        (ValueType.UNSIGNED_SHORT, 2**16 - 1),
        (ValueType.UNSIGNED_LONG_LONG, -1),
        (ValueType.UNSIGNED_LONG, -1),
        (ValueType.SIGNED_INT, -1),
        (ValueType.SIGNED_LONG_LONG, -1),
        (ValueType.DOUBLE, float("nan")),
        (ValueType.DOUBLE, float("inf")),
        (ValueType.DOUBLE, -1.0),
    ],
)
def test_all_ones_of_a_narrow_field(simulator: NvmlSimulator, consumer: Consumer, kind: ValueType, value: float) -> None:
    """What a sentinel is depends on the field's type."""
    gpu = simulator.gpu[0]
    for field in ("TOTAL_ENERGY_CONSUMPTION", "PCIE_COUNT_TX_BYTES", "PCIE_REPLAY_COUNTER"):
        gpu.set_field(field, value, kind=kind)
    gpu.set_field("NVLINK_THROUGHPUT_DATA_RX", value, ALL_LINKS, kind=kind)
    seen = consumer.read(0)
    invalid = {name for name in seen.reasons if seen.reason(name) == "invalid_value"}
    assert invalid == {"energyJoules", "pcieTxBytesTotal", "nvlinkRxBytesTotal", "pcieReplays"}


@pytest.mark.parametrize("kind", [ValueType.UNSIGNED_INT, ValueType.UNSIGNED_SHORT])
def test_a_large_value_of_a_narrow_field(simulator: NvmlSimulator, consumer: Consumer, kind: ValueType) -> None:
    """One below all-ones is a value."""
    largest = (2**32 if kind == ValueType.UNSIGNED_INT else 2**16) - 2
    simulator.gpu[0].set_field("PCIE_COUNT_TX_BYTES", largest, kind=kind)
    assert consumer.read(0).metrics["pcieTxBytesTotal"] == largest


def test_zeros_are_values(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """An idle GPU and its young counters are 0, which NVML documents nowhere as unsupported."""
    simulator.gpu[0].set(gpu_util=0, memory_util=0, power_mw=0, energy_mj=0, pcie_tx_bytes=0, clock_sm=0, memory_used=0)
    metrics = consumer.read(0).metrics
    assert [metrics[name] for name in ("gpu", "memory", "powerWatts", "energyJoules", "smClock", "memoryAllocatedBytes")] == [0] * 6


def test_neighbours_of_an_impossible_value(simulator: NvmlSimulator, consume: Consume) -> None:
    """Another GPU with the same pattern of answers keeps all of its values."""
    simulator.gpu[0].set(gpu_util=101)
    consumer = consume()
    assert "gpu" in consumer.read(0).reasons
    assert "gpu" in consumer.read(1).metrics


def test_ten_times_the_limit(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Peaks are believed up to there, and without a known limit up to what any board takes."""
    simulator.gpu[0].set(power_mw=1_000_000, power_limit_enforced_mw=100_000)
    metrics = consumer.read(0).metrics
    assert (metrics["powerWatts"], metrics["powerPercent"]) == (1000.0, 1000.0)
    assert consumer.later(0.2).metrics["powerPercent"] == 1000.0
    simulator.gpu[0].set(power_mw=1_000_001)
    for _ in range(2):
        seen = consumer.later(0.2)
        assert {name for name in seen.reasons if seen.reason(name) == "invalid_value"} == {"powerWatts", "powerPercent"}
    simulator.gpu[0].set(power_mw=99_000)
    assert consumer.later(0.2).metrics["powerPercent"] == 99.0
    simulator.gpu[1].set(power_mw=1_000_001, power_limit_enforced_mw=None)
    assert consumer.read(1).metrics["powerWatts"] == 1000.001
