"""Apple silicon: what its GPU says beside what all GPUs do, and what the chip says that no host backend gives.

Read on stand-ins for the commands only, never yet on a real Mac.
"""

from __future__ import annotations

from accelmetrics.schemas.metric import Metric, Unit

PERCENT = 0.01
HERTZ_PER_MHZ = 1e6

GPU = (
    Metric(
        "gpu.{i}.scaledUtilization",
        "%",
        "gauge",
        "Share of the GPU's capacity that was used: the time it was active, weighted by its clock relative to the highest.",
        maximum=100,
        prometheus='accel_utilization_ratio{engine="scaled"}',
        otel="accel.gpu.utilization.scaled",
        factor=PERCENT,
    ),
    Metric(
        "gpu.{i}.freq",
        "MHz",
        "gauge",
        "Clock of the GPU, averaged over the time it was active.",
        prometheus='accel_clock_hertz{domain="gpu"}',
        otel='accel.clock.frequency{domain="gpu"}',
        factor=HERTZ_PER_MHZ,
    ),
)


def _row(  # noqa: PLR0913 one row of a table
    key: str,
    unit: Unit,
    meaning: str,
    prometheus: str,
    otel: str,
    *,
    integer: bool = False,
    maximum: float | None = None,
    minimum: float = 0.0,
    factor: float = 1.0,
) -> Metric:
    return Metric(
        key,
        unit,
        "gauge",
        meaning,
        integer=integer,
        maximum=maximum,
        minimum=minimum,
        prometheus=prometheus,
        otel=otel,
        factor=factor,
    )


def _cluster(letter: str, name: str) -> tuple[Metric, Metric]:
    return (
        _row(
            f"cpu.{letter}cpu_percent",
            "%",
            f"Share of the {name} cores' capacity that was used: the time they were active, weighted by their clock.",
            f'accel_soc_cpu_ratio{{cluster="{name}"}}',
            f'accel.soc.cpu.utilization{{cluster="{name}"}}',
            maximum=100,
            factor=PERCENT,
        ),
        _row(
            f"cpu.{letter}cpu_freq",
            "MHz",
            f"Clock of the {name} cores, averaged over them.",
            f'accel_soc_cpu_clock_hertz{{cluster="{name}"}}',
            f'accel.soc.cpu.frequency{{cluster="{name}"}}',
            factor=HERTZ_PER_MHZ,
        ),
    )


# What macmon says of the processor's temperature and power stands below ``soc.``: ``cpu.avg_temp`` and ``cpu.powerWatts``
# are the host backend's names on every system, and a key has one owner.
MACHINE = (
    *_cluster("e", "efficiency"),
    *_cluster("p", "performance"),
    _row(
        "ane.power",
        "W",
        "Power that the Neural Engine draws.",
        "accel_soc_ane_power_watts",
        'hw.power{hw.type="ane"}',
    ),
    _row(
        "system.powerWatts",
        "W",
        "Power that the whole machine draws.",
        "accel_system_power_watts",
        'hw.power{hw.type="system"}',
    ),
    _row(
        "soc.powerWatts",
        "W",
        "Power that the processor, the GPU and the Neural Engine draw together.",
        "accel_soc_power_watts",
        'hw.power{hw.type="soc"}',
    ),
    _row(
        "memory.used",
        "By",
        "Memory of the machine that is in use, which its GPU shares.",
        "accel_soc_memory_used_bytes",
        "accel.soc.memory.usage",
        integer=True,
    ),
    _row(
        "memory.used_percent",
        "%",
        "Memory of the machine that is in use, in percent of what it has.",
        "accel_soc_memory_used_ratio",
        "accel.soc.memory.utilization",
        maximum=100,
        factor=PERCENT,
    ),
    _row(
        "swap.used",
        "By",
        "Swap space in use; missing on a machine without swap.",
        "accel_soc_swap_used_bytes",
        "accel.soc.swap.usage",
        integer=True,
    ),
)
