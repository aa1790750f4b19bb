"""Every key, with the value that was put in."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from accelmetrics.schemas.catalogue import CATALOGUE
from accelmetrics.schemas.catalogue.tpu import FAMILIES
from tests.backends.tpu.reading import Consumer
from tests.simulators.tpu import (
    DUTY_CYCLE,
    HBM_UTILIZATION,
    IDLE,
    QUEUE,
    TOTAL,
    USAGE,
    About,
    Explicit,
    Exponential,
    Histogram,
    LibtpuStandIn,
    Linear,
    Quantiles,
    RefusalError,
    TpuMachine,
    TpuRuntime,
    entry,
    response,
)

GIB = 2**30
EXECUTION = "hlo.execution.timing.distribution.microseconds"
ROUND_TRIP = "megascale.grpc_tcp_min_rtt.microsecond.cumulative.distribution"
Start = Callable[[], TpuRuntime]
# A hundred values between 0 and 10, spread evenly over ten buckets of one: every percentile is a tenth of its number.
EVEN = Histogram(100, 5.0, Linear(10, 1.0, 0.0), [0, *([10] * 10), 0])
EVEN_STATISTICS = {"mean": 5.0, "p50": 5.0, "p90": 9.0, "p95": 9.5, "p99": 9.9, "p999": 9.99}


def close(values: dict[str, float]) -> object:
    return pytest.approx(values)


def test_every_metric_of_a_device(v5e: TpuRuntime) -> None:
    found = Consumer()
    assert found.device(2).values == {
        "dutyCycle": 12.5,
        "tensorcoreIdleDuration": 2.25,
        "hbmCapacityTotal": 16 * GIB,
        "hbmCapacityUsage": 3 * GIB,
        "hbmMemoryUsage": 18.75,
        "memoryUsage": 18.75,
        "memoryUsageBytes": 3 * GIB,
        "runtimeHbmUtilization": 22.5,
    }
    assert set(v5e.requests) >= {DUTY_CYCLE, IDLE, TOTAL, USAGE, HBM_UTILIZATION}


def test_every_metric_that_only_the_sdk_has(v5e: TpuRuntime, libtpu: LibtpuStandIn) -> None:
    libtpu.metric("tensorcore_util", ["75.5", "80.25", "0", "100.0"])
    libtpu.metric("tpu_throttle_score", ["0", "1", "2", "10"])
    libtpu.metric(
        "ici_link_health", [f"tray1.chip{chip}.ici{link}.int: {chip if link == 1 else 0}" for chip in (3, 1, 2, 4) for link in (0, 1)]
    )
    found = Consumer()
    names = ("tensorcoreUtilization", "throttleScore", "iciLinkHealth")
    assert [tuple(found.device(number).values[name] for name in names) for number in range(4)] == [
        (75.5, 0, 1),
        (80.25, 1, 2),
        (0, 2, 3),
        (100.0, 10, 4),
    ]


@pytest.mark.parametrize(
    ("said", "scores"),
    [
        (["0-0", "1-1", "2-0", "3-10"], [0, 1, 0, 10]),
        (["3-10", "1-1", "0-0", "2-0"], [0, 1, 0, 10]),
        (["0-0", "0-1", "2-0", "3-10"], [None] * 4),
        (["0-0", "1-11", "2-none", "3-4"], [0, None, None, 4]),
        (["0-0", "1-1"], [None] * 4),
    ],
)
def test_scores_of_throttling_stand_behind_the_number_of_their_device(
    v5e: TpuRuntime, libtpu: LibtpuStandIn, said: list[str], scores: list[int | None]
) -> None:
    """As libtpu 0.0.51 describes it: the device, a hyphen, the score."""
    libtpu.metric("tpu_throttle_score", said)
    del v5e
    found = Consumer()
    assert [found.device(number).values.get("throttleScore") for number in range(4)] == scores


def test_what_the_sdk_has_beside_a_runtime_that_does_not_serve_it(v5e: TpuRuntime, libtpu: LibtpuStandIn) -> None:
    """Names of libtpu 0.0.51, which are those of no older release."""
    del v5e.answers[HBM_UTILIZATION], v5e.answers[IDLE]
    libtpu.metric("runtime_hbm_utilization", ["1.5", "2.5", "3.5", "4.5"])
    libtpu.metric("idle_duration", ["0", "10.5", "0", "0"])
    libtpu.metric("hbm_util", ["0.00", "20.00", "0.00", "101.00"])
    found = Consumer()
    values = found.device(1).values
    assert (values["runtimeHbmUtilization"], values["tensorcoreIdleDuration"], values["dramActive"]) == (2.5, 10.5, 20)
    assert found.device(3).reason("dramActive") == "invalid_value"


@pytest.mark.parametrize(
    ("said", "shares"),
    [
        (["10", "30", "0", "1"], [20, 0.5]),
        (["10", "30"], [10, 30]),
        (["10", "x", "0", "1"], [None, 0.5]),
        (["10", "30", "0"], [None, None]),
    ],
)
def test_a_device_of_two_cores_has_their_mean(
    machine: TpuMachine, start: Start, libtpu: LibtpuStandIn, said: list[str], shares: list[float | None]
) -> None:
    """TPU v5p: the SDK describes a share of each core, and a runtime that joins cores has one of each device."""
    for node in machine.chips("v5p", 2):
        machine.process(9, node)
    start().devices(0, 1)
    libtpu.metric("tensorcore_util", said)
    found = Consumer()
    assert [found.device(number).values.get("tensorcoreUtilization") for number in range(2)] == shares


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.key)
def test_every_distribution(v5e: TpuRuntime, family: object) -> None:
    name, key, labelled = family.grpc, family.key, family.labelled  # type: ignore[attr-defined]
    v5e.labelled(name, {"8MB+": EVEN})
    part = "8mb_plus." if labelled else ""
    values = Consumer().machine().values
    expected = {f"{key}.{part}{statistic}{family.suffix}": value for statistic, value in EVEN_STATISTICS.items()}  # type: ignore[attr-defined]
    assert values == close(expected)


def test_the_length_of_each_queue(v5e: TpuRuntime) -> None:
    cores: dict[tuple[str, int | str], int] = {("tensor_core", 0): 5, ("tensor_core", "1"): 12}
    entries = [entry(About("", (("core_type", kind), ("device_ordinal", n))), length) for (kind, n), length in cores.items()]
    v5e.answers[QUEUE] = response(QUEUE, *entries)
    assert Consumer().machine().values == {"tpu.hloQueueSize.tensor_core_0": 5, "tpu.hloQueueSize.tensor_core_1": 12}


def test_every_key_of_the_catalogue_comes_out(v5e: TpuRuntime, libtpu: LibtpuStandIn) -> None:
    for name in ("tensorcore_util", "tpu_throttle_score", "ici_link_health", "hbm_util"):
        libtpu.metric(name, ["1", "2", "3", "4"])
    for family in FAMILIES:
        v5e.labelled(family.grpc, {"small": EVEN})
    v5e.labelled(QUEUE, {"small": 3})
    found = Consumer()
    device, machine = found.device(0), found.machine()
    assert device.reasons == machine.reasons == {}
    owed = {name for row in CATALOGUE if row.key.startswith("tpu.") for name in row.names} | {"dramActive"}
    assert {key.replace(".small", ".{label}") for key in machine.values} | device.values.keys() == owed


# Distributions

BUCKETS: dict[str, Exponential | Explicit] = {"exponential": Exponential(4, 2.0, 1.0), "explicit": Explicit([1.0, 2.0, 4.0, 8.0, 16.0])}


@pytest.mark.parametrize("kind", BUCKETS)
def test_percentiles_are_interpolated_between_the_bounds_of_their_bucket(v5e: TpuRuntime, kind: str) -> None:
    """Below 1, 1 to 2, 2 to 4, 4 to 8, 8 to 16, and above."""
    v5e.labelled(ROUND_TRIP, {"x": Histogram(100, 3.0, BUCKETS[kind], [10, 40, 40, 5, 5, 0])})
    values = Consumer().machine().values
    assert values["tpu.grpcTcpMinRtt.p50Us"] == pytest.approx(2.0)
    assert values["tpu.grpcTcpMinRtt.p90Us"] == pytest.approx(4.0)
    assert values["tpu.grpcTcpMinRtt.p95Us"] == pytest.approx(8.0)
    assert values["tpu.grpcTcpMinRtt.p99Us"] == pytest.approx(8 + 8 * 4 / 5)


def test_a_percentile_beyond_the_last_bound_needs_the_largest_value(v5e: TpuRuntime) -> None:
    buckets = Exponential(2, 2.0, 1.0)
    v5e.labelled(ROUND_TRIP, {"x": Histogram(10, 3.0, buckets, [0, 5, 0, 5])})
    found = Consumer()
    seen = found.machine()
    assert seen.values == {"tpu.grpcTcpMinRtt.meanUs": 3.0, "tpu.grpcTcpMinRtt.p50Us": 2.0}
    assert seen.reason("tpu.grpcTcpMinRtt.p90Us") == "not_supported"
    v5e.labelled(ROUND_TRIP, {"x": Histogram(10, 3.0, buckets, [0, 5, 0, 5], maximum=14.0)})
    assert found.machine().values["tpu.grpcTcpMinRtt.p90Us"] == pytest.approx(4 + 10 * 4 / 5)


def test_no_percentile_lies_above_the_largest_value(v5e: TpuRuntime) -> None:
    """In a wide bucket the interpolation runs on to the bucket's bound."""
    v5e.labelled(EXECUTION, {"main": Histogram(100, 3.0, Linear(2, 100.0, 0.0), [0, 100], maximum=42.0)})
    values = Consumer().machine().values
    assert values["tpu.hloExecTiming.main.p50Us"] == pytest.approx(42.0)
    assert values["tpu.hloExecTiming.main.p999Us"] == pytest.approx(42.0)


def test_the_largest_value_is_only_known_where_every_program_tells_it(v5e: TpuRuntime, start: Start) -> None:
    other = start()
    other.devices(4)
    buckets = Linear(1, 10.0, 0.0)
    v5e.labelled(EXECUTION, {"main": Histogram(10, 15.0, buckets, [0, 0, 10], maximum=20.0)})
    other.labelled(EXECUTION, {"main": Histogram(10, 15.0, buckets, [0, 0, 10])})
    assert Consumer().machine().values == {"tpu.hloExecTiming.main.meanUs": 15.0}


def test_a_summary_gives_the_quantiles_it_has(v5e: TpuRuntime) -> None:
    v5e.labelled(EXECUTION, {"main": Quantiles(4, 10.0, {0.5: 2.0, 0.99: 9.0, 0.75: 3.0})})
    assert Consumer().machine().values == {
        "tpu.hloExecTiming.main.meanUs": 2.5,
        "tpu.hloExecTiming.main.p50Us": 2.0,
        "tpu.hloExecTiming.main.p99Us": 9.0,
    }


def test_distributions_of_one_label_are_added_up_bucket_by_bucket(v5e: TpuRuntime, start: Start) -> None:
    """Two programs: one with ninety short transfers, one with ten long ones."""
    other = start()
    other.devices(4)
    name = "megascale.dcn_transfer_latencies.microsecond.cumulative.distribution"
    buckets = Linear(2, 10.0, 0.0)
    v5e.labelled(name, {"1MB": Histogram(90, 5.0, buckets, [0, 90, 0, 0])})
    other.labelled(name, {"1MB": Histogram(10, 15.0, buckets, [0, 0, 10, 0])})
    values = Consumer().machine().values
    assert values["tpu.bufferTransferLatency.1mb.meanUs"] == pytest.approx(6.0)
    assert values["tpu.bufferTransferLatency.1mb.p90Us"] == pytest.approx(10.0)
    assert values["tpu.bufferTransferLatency.1mb.p95Us"] == pytest.approx(15.0)
    other.labelled(name, {"1MB": Histogram(10, 15.0, Linear(2, 20.0, 0.0), [0, 10, 0, 0])})
    values = Consumer().machine().values
    assert {key: value for key, value in values.items() if "1mb" in key} == {"tpu.bufferTransferLatency.1mb.meanUs": pytest.approx(6.0)}


def test_what_was_not_measured_yet_is_no_zero(v5e: TpuRuntime) -> None:
    v5e.labelled(ROUND_TRIP, {"x": Histogram(0, 0.0)})
    v5e.labelled(EXECUTION, {"x": Histogram(0, 0.0)})
    seen = Consumer().machine()
    assert seen.values == {}
    assert seen.reason("tpu.grpcTcpMinRtt.meanUs") == "not_in_use"


@pytest.mark.parametrize(
    ("written", "key"),
    [("8MB+", "8mb_plus"), ("  GPU+Memory 100% ", "gpu_plus_memory_100pct"), ("!!!", "unknown"), ("64-128 KiB", "64_128_kib"), ("é1", "1")],
)
def test_labels_are_spelled_as_w_and_b_spells_them(v5e: TpuRuntime, written: str, key: str) -> None:
    v5e.labelled(QUEUE, {written: 1})
    assert Consumer().machine().values == {f"tpu.hloQueueSize.{key}": 1}


def test_an_entry_without_a_label_has_its_place_for_one(v5e: TpuRuntime) -> None:
    v5e.answers[QUEUE] = response(QUEUE, entry(None, 4), entry(About("", "x"), 5))
    assert Consumer().machine().values == {"tpu.hloQueueSize.item_0": 4, "tpu.hloQueueSize.x": 5}


# The SDK as the second source


def test_the_sdk_fills_in_what_the_runtime_does_not_say_and_no_more(v5e: TpuRuntime, libtpu: LibtpuStandIn) -> None:
    v5e.answers[DUTY_CYCLE] = RefusalError("UNIMPLEMENTED")
    libtpu.metric("duty_cycle_pct", ["1.5", "2.5", "3.5", "4.5"])
    libtpu.metric("hbm_capacity_total", ["1", "1", "1", "1"])
    values = Consumer().device(1).values
    assert (values["dutyCycle"], values["hbmCapacityTotal"]) == (2.5, 16 * GIB)


def test_the_sdk_does_not_stand_in_for_a_reading_that_the_runtime_leaves_out(v5e: TpuRuntime, libtpu: LibtpuStandIn) -> None:
    """Where the runtime gave a value first, its N/A is a reason; where the SDK did, it stays the SDK's."""
    libtpu.metric("duty_cycle_pct", ["1.5", "2.5", "3.5", "4.5"])
    libtpu.metric("hlo_exec_timing", ["program_main, 1, 2, 3, 4, 5"], "mean, p50, p90, p95, p999")
    timing = next(family.grpc for family in FAMILIES if "hlo_exec_timing" in family.sdk)
    cycles = v5e.answers[DUTY_CYCLE]
    v5e.labelled(timing, {"program_main": EVEN})
    found = Consumer()
    key = "tpu.hloExecTiming.program_main.meanUs"
    assert (found.device(1).values["dutyCycle"], found.machine().values[key]) == (11.5, 5.0)
    v5e.answers[DUTY_CYCLE] = v5e.answers[timing] = RefusalError("UNAVAILABLE")
    assert "dutyCycle" in found.device(1).reasons
    assert key not in found.machine().values
    again = Consumer()
    assert again.device(1).values["dutyCycle"] == 2.5
    v5e.answers[DUTY_CYCLE] = cycles
    assert again.device(1).values["dutyCycle"] == 2.5


def test_a_device_that_is_reported_twice_has_no_value_of_it(v5e: TpuRuntime) -> None:
    v5e.answers[DUTY_CYCLE] = response(
        DUTY_CYCLE, *(entry(About("device-id", number), said) for number, said in ((0, 5.0), (1, 6.0), (1, 7.0)))
    )
    found = Consumer()
    assert (found.device(0).values["dutyCycle"], found.device(1).reason("dutyCycle")) == (5.0, "parse_error")


@pytest.mark.parametrize(
    ("data", "description", "expected"),
    [
        (["10, 20, 30, 40, 50"], "mean, p50, p90, p95, p999", ("mean", "p50", "p90", "p95", "p999")),
        (["10, 20, 30, 40, 50"], "mean, p50, p90, p99, p999", ("mean", "p50", "p90", "p99", "p999")),
        (["10", "20", "30", "40"], "percentiles", ("p50", "p90", "p95", "p999")),
        (["[10, '20', 30]"], "", ("stat0", "stat1", "stat2")),
    ],
)
def test_flat_distributions_of_the_sdk(
    v5e: TpuRuntime, libtpu: LibtpuStandIn, data: list[str], description: str, expected: tuple[str, ...]
) -> None:
    libtpu.metric("grpc_tcp_delivery_rates", data, description)
    values = Consumer().machine().values
    assert values == {f"tpu.grpcTcpDeliveryRate.{name}Mbps": 10 * (place + 1) for place, name in enumerate(expected)}


def test_labelled_distributions_and_queues_of_the_sdk(v5e: TpuRuntime, libtpu: LibtpuStandIn) -> None:
    libtpu.metric("hlo_exec_timing", ["program_main, 100.0, 50.0, nan, 95.0, 999.0", "lonely"], "mean, p50, p90, p95, p999")
    libtpu.metric("hlo_queue_size", ["tensor_core-0: 5", "tensor_core-1: 12", "tensor_core-2: soon", "7"])
    seen = Consumer().machine()
    assert seen.values == {
        "tpu.hloExecTiming.program_main.meanUs": 100.0,
        "tpu.hloExecTiming.program_main.p50Us": 50.0,
        "tpu.hloExecTiming.program_main.p95Us": 95.0,
        "tpu.hloExecTiming.program_main.p999Us": 999.0,
        "tpu.hloQueueSize.tensor_core_0": 5,
        "tpu.hloQueueSize.tensor_core_1": 12,
        "tpu.hloQueueSize.item_3": 7,
    }
    assert seen.reason("tpu.hloExecTiming.program_main.p90Us") == "invalid_value"


def test_a_name_that_gives_nothing_is_passed_over_for_an_older_one(v5e: TpuRuntime, libtpu: LibtpuStandIn) -> None:
    libtpu.metric("tensorcore_util", [])
    libtpu.metric("tensorcore_utilization", ["1", "2", "3", "4"])
    assert Consumer().device(3).values["tensorcoreUtilization"] == 4


def test_a_chip_is_as_sound_as_its_worst_link_and_both_its_devices_are(machine: TpuMachine, start: Start, libtpu: LibtpuStandIn) -> None:
    for node in machine.chips("7x", 2):
        machine.process(9, node)
    start().devices(0, 1, 2, 3)
    libtpu.metric("ici_link_health", ["tray1.chip10.ici0.int: 7", "tray1.chip9.ici0.int: 0", "tray1.chip9.ici1.ext: 2"])
    found = Consumer()
    assert [found.device(number).values["iciLinkHealth"] for number in range(4)] == [2, 2, 7, 7]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (["tray1.chip1.ici0.int: 0"], "parse_error"),
        ([f"tray1.chip{chip}.ici0.int: 0" for chip in range(3)] + ["nonsense"], "parse_error"),
        ([f"tray1.chip{chip}.ici0.int: 11" for chip in range(4)], "invalid_value"),
        ([f"tray1.chip{chip}.ici0.int: bad" for chip in range(4)], "parse_error"),
        (["0", "0"], "parse_error"),
        (["0", "0", "nan", "0"], ""),
        ([], "not_supported"),
    ],
)
def test_links_that_are_not_understood(v5e: TpuRuntime, libtpu: LibtpuStandIn, data: list[str], reason: str) -> None:
    libtpu.metric("ici_link_health", data)
    seen = Consumer().device(0)
    assert (seen.reason("iciLinkHealth") if reason else seen.values["iciLinkHealth"]) == (reason or 0)


# Numbers that cannot be true


@pytest.mark.parametrize("said", [math.nan, math.inf, -math.inf, -1.0, 100.5])
def test_an_impossible_share_is_dropped(v5e: TpuRuntime, said: float) -> None:
    v5e.gauge(DUTY_CYCLE, {0: said, 1: 50.0})
    found = Consumer()
    assert found.device(0).reason("dutyCycle") == "invalid_value"
    assert found.device(1).values["dutyCycle"] == 50.0


def test_a_rounding_beyond_a_hundred_is_a_hundred(v5e: TpuRuntime) -> None:
    v5e.gauge(DUTY_CYCLE, {0: 100.00000001})
    assert Consumer().device(0).values["dutyCycle"] == 100


@pytest.mark.parametrize("said", [-1, 2**63 - 1, 1.5])
def test_impossible_bytes_are_dropped(v5e: TpuRuntime, said: float) -> None:
    v5e.gauge(USAGE, {0: said})
    seen = Consumer().device(0)
    assert {seen.reason(name) for name in ("hbmCapacityUsage", "memoryUsageBytes", "hbmMemoryUsage", "memoryUsage")} == {"invalid_value"}


@pytest.mark.parametrize(("used", "total"), [(5, 0), (6, 5)])
def test_a_share_of_nothing_or_more_than_all_is_none(v5e: TpuRuntime, used: int, total: int) -> None:
    v5e.gauge(USAGE, {0: used})
    v5e.gauge(TOTAL, {0: total})
    seen = Consumer().device(0)
    assert seen.reason("hbmMemoryUsage") == seen.reason("memoryUsage") == "invalid_value"
    assert seen.values["hbmCapacityUsage"] == used


@pytest.mark.parametrize("said", [None, "42", True, EVEN])
def test_what_is_no_number_is_none(v5e: TpuRuntime, said: object) -> None:
    v5e.gauge(DUTY_CYCLE, {0: said})  # type: ignore[dict-item]
    assert Consumer().device(0).reason("dutyCycle") == "parse_error"


@pytest.mark.parametrize("histogram", [Histogram(5, math.nan), Histogram(5, -1.0), Histogram(5, math.inf)])
def test_an_impossible_mean_is_dropped(v5e: TpuRuntime, histogram: Histogram) -> None:
    v5e.labelled(ROUND_TRIP, {"x": histogram})
    seen = Consumer().machine()
    assert seen.values == {}
    assert seen.reason("tpu.grpcTcpMinRtt.meanUs") == "invalid_value"
