"""GPUs: the profiling metrics of NVIDIA's GPM (Hopper and later), each taken between two consecutive readings.

A MIG instance has the shares, which are then of its GPU instance's own parts; what goes over PCIe and NVLink is the board's.
"""

from __future__ import annotations

from accelmetrics.schemas.metric import Metric

PERCENT = 0.01


def _share(name: str, prometheus: str, otel: str, meaning: str) -> Metric:
    return Metric(
        f"gpu.{{i}}.{name}",
        "%",
        "gauge",
        meaning,
        maximum=100,
        prometheus=prometheus,
        otel=otel,
        factor=PERCENT,
    )


def _pipe(name: str, pipe: str, meaning: str) -> Metric:
    return _share(name, f'accel_pipe_active_ratio{{pipe="{pipe}"}}', f'accel.pipe.active{{pipe="{pipe}"}}', meaning)


def _rate(name: str, prometheus: str, otel: str, meaning: str) -> Metric:
    return Metric(
        f"gpu.{{i}}.{name}",
        "By/s",
        "gauge",
        meaning,
        prometheus=prometheus,
        otel=otel,
    )


PROFILING = (
    _share(
        "smActive",
        "accel_sm_active_ratio",
        "accel.sm.active",
        "Share of the time during which a streaming multiprocessor had work, averaged over all of them.",
    ),
    _share(
        "smOccupancy",
        "accel_sm_occupancy_ratio",
        "accel.sm.occupancy",
        "Resident warps in percent of the most that the multiprocessors can hold.",
    ),
    _share(
        "dramActive",
        "accel_dram_active_ratio",
        "accel.dram.active",
        "Memory bandwidth used, in percent of the peak.",
    ),
    _share(
        "pipeTensorActive",
        "accel_tensor_active_ratio",
        "accel.tensor.active",
        "Share of the time during which any tensor pipe was active.",
    ),
    _pipe(
        "pipeTensorHmmaActive",
        "tensor_hmma",
        "Share of the time during which the tensor pipe for half precision was active.",
    ),
    _pipe("pipeFp64Active", "fp64", "Share of the time during which the double-precision pipe was active."),
    _pipe("pipeFp32Active", "fp32", "Share of the time during which the single-precision pipe was active."),
    _pipe("pipeFp16Active", "fp16", "Share of the time during which the half-precision pipe was active."),
    _rate(
        "pcieTxBytes",
        'accel_pcie_bytes_per_second{direction="tx"}',
        'accel.pcie.throughput{network.io.direction="transmit"}',
        "Bytes per second sent over PCIe.",
    ),
    _rate(
        "pcieRxBytes",
        'accel_pcie_bytes_per_second{direction="rx"}',
        'accel.pcie.throughput{network.io.direction="receive"}',
        "Bytes per second received over PCIe.",
    ),
    _rate(
        "nvlinkTxBytes",
        'accel_link_bytes_per_second{link_type="nvlink",direction="tx"}',
        'accel.link.throughput{link_type="nvlink",network.io.direction="transmit"}',
        "Bytes per second sent over all NVLinks.",
    ),
    _rate(
        "nvlinkRxBytes",
        'accel_link_bytes_per_second{link_type="nvlink",direction="rx"}',
        'accel.link.throughput{link_type="nvlink",network.io.direction="receive"}',
        "Bytes per second received over all NVLinks.",
    ),
)
