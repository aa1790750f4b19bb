"""GPUs: what the watched process and, where asked for, its descendants use of a device.

These keys exist only for devices that the family uses. Memory and utilisation are summed over the family; the others repeat
the board's values, as W&B's charts expect. Prometheus and OpenTelemetry carry processes with their own labels, not these.
"""

from __future__ import annotations

from accelmetrics.schemas.metric import Metric, Unit


def _row(
    name: str,
    unit: Unit,
    meaning: str,
    source: str,
    amd: str = "",
    *,
    integer: bool = False,
    maximum: float | None = None,
    minimum: float = 0.0,
) -> Metric:
    return Metric(
        f"gpu.process.{{i}}.{name}",
        unit,
        "gauge",
        meaning,
        {"nvidia": source} | ({"amd": amd} if amd else {}),
        integer=integer,
        maximum=maximum,
        minimum=minimum,
        conditional=True,
    )


def _board(name: str, unit: Unit, minimum: float = 0.0) -> Metric:
    source = f"as `gpu.{{i}}.{name}`"
    return _row(name, unit, f"The board's `{name}`, while the watched process uses the device.", source, source, minimum=minimum)


_FDINFO = "drm-memory-vram in /proc/*/fdinfo (an APU: with drm-memory-gtt), 1 s"
_USED = "usedGpuMemory of nvmlDeviceGetComputeRunningProcesses and …GraphicsRunningProcesses, 1 s"

PROCESS = (
    _row(
        "gpu",
        "%",
        "Share of the time during which kernels of the watched process and its descendants were running.",
        "nvmlDeviceGetProcessUtilization().smUtil, 1 s",
        "drm-engine-gfx and drm-engine-compute in /proc/*/fdinfo, 1 s",
        maximum=100,
    ),
    _row(
        "memory",
        "%",
        "Share of the time during which the watched process and its descendants kept the memory controller busy.",
        "nvmlDeviceGetProcessUtilization().memUtil, 1 s",
        maximum=100,
    ),
    _row(
        "memoryAllocated",
        "%",
        "Share of the device's memory that the watched process and its descendants hold.",
        f"{_USED} / total",
        f"{_FDINFO} / total",
        maximum=100,
    ),
    _row(
        "memoryAllocatedBytes",
        "By",
        "Device memory that the watched process and its descendants hold.",
        _USED,
        _FDINFO,
        integer=True,
    ),
    _board("temp", "Cel", minimum=-273.15),
    _board("powerWatts", "W"),
    _board("enforcedPowerLimitWatts", "W"),
    _board("powerPercent", "%"),
)
