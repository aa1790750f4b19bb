"""Metrics of TPUs: of each device from Google's runtime, and of the transfers and programs of a machine's devices together.

``{i}`` is the runtime's device id. The runtime is asked over gRPC first, then libtpu's SDK for the rest. Tested on simulators only,
never on a real TPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from accelmetrics.schemas.metric import Metric, Unit
from accelmetrics.schemas.named_tuple import NamedTuple

STATISTICS = {
    "mean": "Mean",
    "p50": "Median",
    "p90": "The 90th percentile",
    "p95": "The 95th percentile",
    "p99": "The 99th percentile",
    "p999": "The 99.9th percentile",
}
"""Statistics of a distribution, by their word in the keys. The SDK gives ``p95`` or ``p99``, not both."""


class Family(NamedTuple):
    """A distribution, and the keys of its statistics.

    Attributes:
        key: The prefix of the keys: ``tpu.hloExecTiming``.
        grpc: The runtime's name for it.
        sdk: The SDK's names for it, newer releases first.
        subject: The measured quantity, in words.
        series: The Prometheus name. Its labels are derived from the key.
        operation: A label that distinguishes families with the same Prometheus name, if any.
        unit: The unit of the values.
        suffix: The unit at the end of the keys.
        labelled: Whether the keys contain an instance: a size of buffers, a core.
    """

    key: str
    grpc: str
    sdk: tuple[str, ...]
    subject: str
    series: str
    operation: str = ""
    unit: Unit = "us"
    suffix: str = "Us"
    labelled: bool = True

    def name(self, statistic: str, label: str = "{label}") -> str:
        """Return the complete key of a statistic."""
        part = f"{label}." if self.labelled else ""
        return f"{self.key}.{part}{statistic}{self.suffix}"


def _latency(key: str, grpc: str, sdk: tuple[str, ...], operation: str, subject: str) -> Family:
    return Family(key, f"megascale.{grpc}.microsecond.cumulative.distribution", sdk, subject, "accel_operation_latency_seconds", operation)


TRANSFER_FAMILIES = (
    _latency(
        "tpu.bufferTransferLatency",
        "dcn_transfer_latencies",
        ("buffer_transfer_latency",),
        "buffer_transfer",
        "the time that sending a buffer to another slice takes",
    ),
    _latency(
        "tpu.inboundBufferTransferLatency",
        "dcn_inbound_transfer_latencies",
        ("inbound_buffer_transfer_latency",),
        "inbound_buffer_transfer",
        "the time that receiving a buffer from another slice takes",
    ),
    _latency(
        "tpu.hostToDeviceTransferLatency",
        "host_to_device_transfer_latencies",
        ("host_to_device_transfer_latency",),
        "host_to_device_transfer",
        "the time that a transfer from the host to a device takes",
    ),
    _latency(
        "tpu.deviceToHostTransferLatency",
        "device_to_host_transfer_latencies",
        ("device_to_host_transfer_latency",),
        "device_to_host_transfer",
        "the time that a transfer from a device to the host takes",
    ),
    _latency(
        "tpu.collectiveE2ELatency",
        "collective_end_to_end_latencies",
        ("collective_e2e_latency",),
        "collective",
        "the time that a collective operation between slices takes from end to end",
    ),
    _latency(
        "tpu.hostComputeLatency",
        "mxla_compute_latencies",
        ("host_compute_latency",),
        "host_compute",
        "the time that the host computes for collective operations",
    ),
)
NETWORK_FAMILIES = (
    Family(
        "tpu.grpcTcpMinRtt",
        "megascale.grpc_tcp_min_rtt.microsecond.cumulative.distribution",
        ("tcp_min_rtt", "grpc_tcp_min_rtt", "grpc_tcp_min_round_trip_times"),
        "the shortest round trip over TCP between slices",
        "accel_network_round_trip_seconds",
        labelled=False,
    ),
    Family(
        "tpu.grpcTcpDeliveryRate",
        "megascale.grpc_tcp_delivery_rate.Mbps.cumulative.distribution",
        ("tcp_delivery_rate", "grpc_tcp_delivery_rate", "grpc_tcp_delivery_rates"),
        "the rate at which TCP delivers between slices",
        "accel_network_delivery_bytes_per_second",
        unit="Mbit/s",
        suffix="Mbps",
        labelled=False,
    ),
)
PROGRAM_FAMILIES = (
    Family(
        "tpu.hloExecTiming",
        "hlo.execution.timing.distribution.microseconds",
        ("hlo_execution_timing", "hlo_exec_timing"),
        "the time that executing a compiled program on a core takes",
        "accel_program_execution_seconds",
    ),
)
FAMILIES = (*TRANSFER_FAMILIES, *NETWORK_FAMILIES, *PROGRAM_FAMILIES)

QUEUE_KEY = "tpu.hloQueueSize"
QUEUE_GRPC = "hlo.queue.size.gauge"
QUEUE_SDK = ("hlo_queue_size",)


def _rows(family: Family) -> Iterator[Metric]:
    # OpenTelemetry keeps the unit in a separate field, so it is removed from the name.
    otel = family.series.removesuffix("_bytes_per_second").removesuffix("_seconds").replace("_", ".")
    for statistic, words in STATISTICS.items():
        labels = {"operation": family.operation, "label": "{label}" if family.labelled else "", "statistic": statistic}
        given = {name: value for name, value in labels.items() if value}
        yield Metric(
            family.name(statistic),
            family.unit,
            "gauge",
            f"{words} of {family.subject}.",
            f"{family.series}{{{_written(given)}}}",
            f"{otel}{{{_written({f'accelmetrics.{name}': value for name, value in given.items()})}}}",
        )


def _written(labels: dict[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


ACTIVITY = (
    Metric(
        "tpu.{i}.dutyCycle",
        "%",
        "gauge",
        "Share of the time during which the device was computing; TPU v2 and v3 report one value per chip, for both of its devices.",
        'accel_utilization_ratio{engine="compute"}',
        'accel.utilization{accelmetrics.engine="compute"}',
        maximum=100,
        preset="core",
    ),
    Metric(
        "tpu.{i}.tensorcoreUtilization",
        "%",
        "gauge",
        "Share of the TensorCore's capacity that was used.",
        'accel_utilization_ratio{engine="tensorcore"}',
        'accel.utilization{accelmetrics.engine="tensorcore"}',
        maximum=100,
    ),
    Metric(
        "tpu.{i}.tensorcoreIdleDuration",
        "s",
        "gauge",
        "For how long the TensorCore has been idle.",
        "accel_idle_seconds",
        "accel.idle.duration",
    ),
)

MEMORY = (
    Metric(
        "tpu.{i}.hbmCapacityTotal",
        "By",
        "gauge",
        "Memory of the device that programs can use.",
        "accel_memory_total_bytes",
        "accel.memory.limit",
        integer=True,
        preset="core",
    ),
    Metric(
        "tpu.{i}.hbmCapacityUsage",
        "By",
        "gauge",
        "Memory of the device that is in use.",
        "accel_memory_used_bytes",
        "accel.memory.usage",
        aliases=("tpu.{i}.memoryUsageBytes",),
        integer=True,
        preset="core",
    ),
    Metric(
        "tpu.{i}.hbmMemoryUsage",
        "%",
        "gauge",
        "Share of the device's memory that is in use.",
        otel="accel.memory.utilization",
        aliases=("tpu.{i}.memoryUsage",),
        maximum=100,
        preset="core",
    ),
    Metric(
        "tpu.{i}.runtimeHbmUtilization",
        "%",
        "gauge",
        "Share of the memory's bandwidth that was used, as estimated by the runtime.",
        "accel_memory_bandwidth_ratio",
        "accel.memory.bandwidth.utilization",
        maximum=100,
    ),
)

HEALTH = (
    Metric(
        "tpu.{i}.iciLinkHealth",
        "1",
        "gauge",
        "Score of the worst of the device's links to other chips, from 0 (sound) to 10 (unusable).",
        "accel_link_health_score",
        "accel.link.health",
        maximum=10,
    ),
    Metric(
        "tpu.{i}.throttleScore",
        "1",
        "gauge",
        "How much the device is throttled, from 0 (not at all) to 10.",
        "accel_throttle_score",
        "accel.throttle.score",
        maximum=10,
        preset="core",
    ),
)
TRANSFERS = tuple(row for family in TRANSFER_FAMILIES for row in _rows(family))
NETWORK = tuple(row for family in NETWORK_FAMILIES for row in _rows(family))
PROGRAMS = (
    *(row for family in PROGRAM_FAMILIES for row in _rows(family)),
    Metric(
        f"{QUEUE_KEY}.{{label}}",
        "1",
        "gauge",
        "Compiled programs that wait to be executed on a core.",
        'accel_program_queue_length{label="{label}"}',
        'accel.program.queue.length{accelmetrics.label="{label}"}',
    ),
)
