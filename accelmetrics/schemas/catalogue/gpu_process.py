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
        integer=integer,
        maximum=maximum,
        minimum=minimum,
        conditional=True,
    )


def _board(name: str, unit: Unit, minimum: float = 0.0) -> Metric:
    return _row(name, unit, f"The board's `{name}`, while the watched process uses the device.", minimum=minimum)


PROCESS = (
    _row(
        "gpu",
        "%",
        "Share of the time during which kernels of the watched process and its descendants were running.",
        maximum=100,
    ),
    _row(
        "memory",
        "%",
        "Share of the time during which the watched process and its descendants kept the memory controller busy.",
        maximum=100,
    ),
    _row(
        "memoryAllocated",
        "%",
        "Share of the device's memory that the watched process and its descendants hold.",
        maximum=100,
    ),
    _row(
        "memoryAllocatedBytes",
        "By",
        "Device memory that the watched process and its descendants hold.",
        integer=True,
    ),
    _board("temp", "Cel", minimum=-273.15),
    _board("powerWatts", "W"),
    _board("enforcedPowerLimitWatts", "W"),
    _board("powerPercent", "%"),
)
