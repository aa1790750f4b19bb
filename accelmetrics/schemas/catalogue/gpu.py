"""GPUs, and what means the same on every accelerator: activity, memory, temperature, power, clocks, throttling."""

from __future__ import annotations

from accelmetrics.schemas.metric import Metric

HERTZ_PER_MHZ = 1e6
PERCENT = 0.01
ABSOLUTE_ZERO = -273.15

ACTIVITY = (
    Metric(
        "gpu.{i}.gpu",
        "%",
        "gauge",
        "Share of the time during which at least one kernel was running.",
        maximum=100,
        prometheus='accel_utilization_ratio{engine="compute"}',
        otel='hw.gpu.utilization{hw.gpu.task="general"}',
        factor=PERCENT,
    ),
    Metric(
        "gpu.{i}.memory",
        "%",
        "gauge",
        "Share of the time during which the memory controller was busy; says nothing about how full the memory is.",
        maximum=100,
        prometheus="accel_memory_bandwidth_ratio",
        otel="accel.memory.bandwidth.utilization",
        factor=PERCENT,
    ),
    Metric(
        "gpu.{i}.memoryReadWriteActivity",
        "%",
        "gauge",
        "The same value as `memory`, under the name that W&B gives it on AMD.",
        maximum=100,
        factor=PERCENT,
    ),
    Metric(
        "gpu.{i}.encoderUtilization",
        "%",
        "gauge",
        "Share of the time during which the video encoder was busy.",
        maximum=100,
        prometheus='accel_utilization_ratio{engine="encoder"}',
        otel='hw.gpu.utilization{hw.gpu.task="encoder"}',
        factor=PERCENT,
    ),
    Metric(
        "gpu.{i}.decoderUtilization",
        "%",
        "gauge",
        "Share of the time during which the video decoder was busy.",
        maximum=100,
        prometheus='accel_utilization_ratio{engine="decoder"}',
        otel='hw.gpu.utilization{hw.gpu.task="decoder"}',
        factor=PERCENT,
    ),
)

MEMORY = (
    Metric(
        "gpu.{i}.memoryAllocated",
        "%",
        "gauge",
        "Share of the device's memory that is allocated.",
        maximum=100,
        otel="hw.gpu.memory.utilization",
        factor=PERCENT,
    ),
    Metric(
        "gpu.{i}.memoryAllocatedBytes",
        "By",
        "gauge",
        "Memory that is allocated on the device, without the driver's own reserve.",
        integer=True,
        prometheus="accel_memory_used_bytes",
        otel="hw.gpu.memory.usage",
    ),
    Metric(
        "gpu.{i}.memoryTotalBytes",
        "By",
        "gauge",
        "Memory that the device has.",
        integer=True,
        prometheus="accel_memory_total_bytes",
        otel="hw.gpu.memory.limit",
    ),
    Metric(
        "gpu.{i}.memoryFreeBytes",
        "By",
        "gauge",
        "Memory that can still be allocated: total less what is used and what the driver reserves.",
        integer=True,
        prometheus="accel_memory_free_bytes",
        otel="accel.memory.free",
    ),
    Metric(
        "gpu.{i}.bar1UsedBytes",
        "By",
        "gauge",
        "Used part of the window through which the processor and other devices reach the device's memory.",
        integer=True,
        prometheus="accel_bar1_used_bytes",
        otel="accel.bar1.used",
    ),
    Metric(
        "gpu.{i}.memoryOverDrive",
        "%",
        "gauge",
        "By how much the memory clock is raised above its default limit.",
        prometheus="accel_memory_overdrive_ratio",
        otel="accel.memory.overdrive",
        factor=PERCENT,
    ),
)

TEMPERATURE = (
    Metric(
        "gpu.{i}.temp",
        "Cel",
        "gauge",
        "Temperature of the chip's core.",
        minimum=ABSOLUTE_ZERO,
        prometheus='accel_temperature_celsius{sensor="core"}',
        otel='hw.temperature{hw.sensor_location="core"}',
    ),
    Metric(
        "gpu.{i}.memoryTemp",
        "Cel",
        "gauge",
        "Temperature of the device's memory.",
        minimum=ABSOLUTE_ZERO,
        prometheus='accel_temperature_celsius{sensor="memory"}',
        otel='hw.temperature{hw.sensor_location="memory"}',
    ),
    Metric(
        "gpu.{i}.hotspotTemp",
        "Cel",
        "gauge",
        "Temperature of the hottest point of the chip.",
        minimum=ABSOLUTE_ZERO,
        prometheus='accel_temperature_celsius{sensor="hotspot"}',
        otel='hw.temperature{hw.sensor_location="hotspot"}',
    ),
    Metric(
        "gpu.{i}.tempLimit.slowdown",
        "Cel",
        "gauge",
        "Core temperature at which the device starts to slow itself down.",
        minimum=ABSOLUTE_ZERO,
        prometheus='accel_temperature_limit_celsius{limit="slowdown"}',
        otel='hw.temperature.limit{hw.sensor_location="core",hw.limit_type="throttled"}',
    ),
    Metric(
        "gpu.{i}.tempLimit.shutdown",
        "Cel",
        "gauge",
        "Core temperature at which the device switches itself off.",
        minimum=ABSOLUTE_ZERO,
        prometheus='accel_temperature_limit_celsius{limit="shutdown"}',
        otel='hw.temperature.limit{hw.sensor_location="core",hw.limit_type="high.critical"}',
    ),
    Metric(
        "gpu.{i}.fanSpeed",
        "%",
        "gauge",
        "Intended speed of the first fan, in percent of its nominal maximum, which it may exceed.",
        prometheus="accel_fan_ratio",
        otel='hw.fan.speed_ratio{hw.sensor_location="gpu"}',
        factor=PERCENT,
    ),
)

POWER = (
    Metric(
        "gpu.{i}.powerWatts",
        "W",
        "gauge",
        "Power that the board draws, as the vendor's own tool prints it.",
        prometheus="accel_power_watts",
        otel='hw.power{hw.type="gpu"}',
    ),
    Metric(
        "gpu.{i}.enforcedPowerLimitWatts",
        "W",
        "gauge",
        "Power limit in force: the lowest of all limits that are set.",
        prometheus="accel_power_limit_watts",
        otel="accel.power.limit",
    ),
    Metric(
        "gpu.{i}.powerPercent",
        "%",
        "gauge",
        "Power drawn in percent of the limit in force; short peaks exceed 100.",
        otel="accel.power.utilization",
        factor=PERCENT,
    ),
    Metric(
        "gpu.{i}.energyJoules",
        "J",
        "counter",
        "Energy used since the driver was loaded.",
        prometheus="accel_energy_joules_total",
        otel='hw.energy{hw.type="gpu"}',
    ),
)


def _clock(name: str, domain: str, meaning: str, top: bool = False) -> Metric:
    return Metric(
        f"gpu.{{i}}.{name}",
        "MHz",
        "gauge",
        meaning,
        integer=True,
        prometheus=f'accel_clock{"_max" if top else ""}_hertz{{domain="{domain}"}}',
        otel=f'accel.clock.{"limit" if top else "frequency"}{{domain="{domain}"}}',
        factor=HERTZ_PER_MHZ,
    )


CLOCKS = (
    _clock(
        "smClock",
        "sm",
        "Clock of the compute units.",
    ),
    _clock(
        "memoryClock",
        "memory",
        "Clock of the memory.",
    ),
    _clock("graphicsClock", "graphics", "Clock of the graphics units."),
    _clock(
        "maxSmClock",
        "sm",
        "Highest clock that the compute units can run at.",
        top=True,
    ),
    _clock(
        "maxMemoryClock",
        "memory",
        "Highest clock that the memory can run at.",
        top=True,
    ),
    Metric(
        "gpu.{i}.performanceState",
        "1",
        "gauge",
        "Performance state, from 0 (fastest) to 15 (slowest).",
        integer=True,
        maximum=15,
        prometheus="accel_performance_state",
        otel="accel.performance.state",
    ),
)

# Name, label, meaning.
_REASONS = (
    ("gpuIdle", "gpu_idle", "nothing runs"),
    ("applicationsClocksSetting", "applications_clocks_setting", "of the application clocks that are set"),
    ("swPowerCap", "sw_power_cap", "the power limit is reached"),
    ("hwSlowdown", "hw_slowdown", "the hardware slows down for heat, a power brake or a fast trigger"),
    ("syncBoost", "sync_boost", "another device of its boost group is slower"),
    ("swThermalSlowdown", "sw_thermal_slowdown", "the driver keeps the temperature below its limit"),
    ("hwThermalSlowdown", "hw_thermal_slowdown", "the hardware slows down for heat"),
    ("hwPowerBrakeSlowdown", "hw_power_brake_slowdown", "the power supply asks it to"),
    ("displayClockSetting", "display_clock_setting", "of the clocks that a display needs"),
    ("currentLimit", "current_limit", "a limit of electric current is reached"),
)


def _throttle(name: str, label: str, meaning: str) -> Metric:
    return Metric(
        f"gpu.{{i}}.throttle.{name}",
        "1",
        "gauge",
        f"1 while the clocks are held down because {meaning}, else 0.",
        integer=True,
        maximum=1,
        prometheus=f'accel_throttle_active{{reason="{label}"}}',
        otel=f'accel.throttle.active{{reason="{label}"}}',
    )


THROTTLING = tuple(_throttle(*reason) for reason in _REASONS)
