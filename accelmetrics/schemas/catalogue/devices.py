"""Metrics of devices of every kind and vendor, one row each, and of the watched process on a device.

A row has the same meaning on a ``gpu``, an ``npu`` and an ``hpu``. Metrics of a single kind are in that kind's file. So is the metric
that W&B calls ``gpu``; on every other kind of device it is ``utilization``.
"""

from __future__ import annotations

from accelmetrics.schemas.metric import ABSOLUTE_ZERO, Metric, Preset, Unit, field_of

ACTIVITY = (
    Metric(
        "{kind}.{i}.utilization",
        "%",
        "gauge",
        "Share of the time during which the device computed.",
        'accel_utilization_ratio{engine="compute"}',
        'accel.utilization{accelmetrics.engine="compute"}',
        maximum=100,
        preset="core",
    ),
    Metric(
        "{kind}.{i}.coresAllocated",
        "1",
        "gauge",
        "Cores of the device that programs hold, whether they compute or not.",
        "accel_cores_allocated",
        "accel.cores.allocated",
        integer=True,
    ),
    Metric(
        "{kind}.{i}.memory",
        "%",
        "gauge",
        "Share of the time during which the memory controller was busy; says nothing about how full the memory is.",
        "accel_memory_bandwidth_ratio",
        "accel.memory.bandwidth.utilization",
        maximum=100,
    ),
    Metric(
        "{kind}.{i}.dramActive",
        "%",
        "gauge",
        "Memory bandwidth used, in percent of the peak.",
        "accel_dram_active_ratio",
        "accel.dram.active",
        maximum=100,
        preset="all",
    ),
    *(
        Metric(
            f"{{kind}}.{{i}}.{engine}Utilization",
            "%",
            "gauge",
            f"Share of the time during which the video {engine} was busy.",
            f'accel_utilization_ratio{{engine="{engine}"}}',
            f'hw.gpu.utilization{{hw.gpu.task="{engine}"}}',
            maximum=100,
        )
        for engine in ("encoder", "decoder")
    ),
    *(
        Metric(
            f"{{kind}}.{{i}}.{engine}Utilization",
            "%",
            "gauge",
            f"Share of the time during which the {unit} was busy.",
            f'accel_utilization_ratio{{engine="{engine}"}}',
            f'hw.gpu.utilization{{hw.gpu.task="{engine}"}}',
            maximum=100,
            preset="all",
        )
        for engine, unit in (("jpeg", "JPEG engine"), ("ofa", "optical-flow accelerator"))
    ),
)

MEMORY = (
    Metric(
        "{kind}.{i}.memoryAllocated",
        "%",
        "gauge",
        "Share of the device's memory that is allocated.",
        otel="hw.gpu.memory.utilization",
        maximum=100,
        preset="core",
    ),
    Metric(
        "{kind}.{i}.memoryAllocatedBytes",
        "By",
        "gauge",
        "Memory that is allocated on the device, without the driver's own reserve.",
        "accel_memory_used_bytes",
        "hw.gpu.memory.usage",
        integer=True,
        preset="core",
    ),
    Metric(
        "{kind}.{i}.memoryTotalBytes",
        "By",
        "gauge",
        "Memory that the device has.",
        "accel_memory_total_bytes",
        "hw.gpu.memory.limit",
        integer=True,
        preset="core",
    ),
    Metric(
        "{kind}.{i}.memoryFreeBytes",
        "By",
        "gauge",
        "Memory that can still be allocated: total less what is used and what the driver reserves.",
        "accel_memory_free_bytes",
        "accel.memory.free",
        integer=True,
    ),
    Metric(
        "{kind}.{i}.bar1UsedBytes",
        "By",
        "gauge",
        "Used part of the window through which the processor and other devices reach the device's memory.",
        "accel_bar1_used_bytes",
        "accel.bar1.used",
        integer=True,
    ),
)


def _sensor(name: str, sensor: str, meaning: str, preset: Preset = "standard") -> Metric:
    return Metric(
        f"{{kind}}.{{i}}.{name}",
        "Cel",
        "gauge",
        meaning,
        f'accel_temperature_celsius{{sensor="{sensor}"}}',
        f'hw.temperature{{hw.sensor_location="{sensor}"}}',
        minimum=ABSOLUTE_ZERO,
        preset=preset,
    )


def _limit(limit: str, otel: str, meaning: str, name: str = "", sensor: str = "core", preset: Preset = "standard") -> Metric:
    return Metric(
        f"{{kind}}.{{i}}.{name or f'tempLimit.{limit}'}",
        "Cel",
        "gauge",
        meaning,
        f'accel_temperature_limit_celsius{{limit="{limit}"}}',
        f'hw.temperature.limit{{hw.sensor_location="{sensor}",hw.limit_type="{otel}"}}',
        minimum=ABSOLUTE_ZERO,
        preset=preset,
    )


TEMPERATURE = (
    _sensor("temp", "core", "Temperature of the chip's core.", "core"),
    _sensor("memoryTemp", "memory", "Temperature of the device's memory."),
    _sensor("hotspotTemp", "hotspot", "Temperature of the hottest point of the chip."),
    _limit("slowdown", "throttled", "Core temperature at which the device starts to slow itself down."),
    _limit("shutdown", "high.critical", "Core temperature at which the device switches itself off."),
    _limit("operating", "high.degraded", "Highest core temperature at which the device keeps its clocks.", "maxOpTemp", preset="all"),
    _limit(
        "memory_operating",
        "high.degraded",
        "Highest memory temperature at which the device keeps its clocks.",
        "memoryMaxOpTemp",
        "memory",
        "all",
    ),
    Metric(
        "{kind}.{i}.tempMargin",
        "Cel",
        "gauge",
        "Degrees below the temperature at which the device slows itself down, as reported by its driver; negative above it.",
        "accel_temperature_margin_celsius",
        "accel.temperature.margin",
        minimum=ABSOLUTE_ZERO,
    ),
    Metric(
        "{kind}.{i}.fanSpeed",
        "%",
        "gauge",
        "Intended speed of the first fan, in percent of its nominal maximum, which it may exceed.",
        "accel_fan_ratio",
        'hw.fan.speed_ratio{hw.sensor_location="{kind}"}',
    ),
    Metric(
        "{kind}.{i}.fanSpeedRpm",
        "rpm",
        "gauge",
        "Measured speed of the first fan.",
        "accel_fan_rpm",
        'hw.fan.speed{hw.sensor_location="{kind}"}',
        integer=True,
    ),
)

POWER = (
    Metric(
        "{kind}.{i}.powerWatts",
        "W",
        "gauge",
        "Power that the board draws, as the vendor's own tool shows it.",
        "accel_power_watts",
        'hw.power{hw.type="{kind}"}',
        preset="core",
    ),
    Metric(
        "{kind}.{i}.railPowerWatts",
        "W",
        "gauge",
        "Power on the supply rail of the device's cores, including other parts of the chip on that rail.",
        "accel_rail_power_watts",
        "accel.rail.power",
    ),
    Metric(
        "{kind}.{i}.enforcedPowerLimitWatts",
        "W",
        "gauge",
        "Power limit in force: the lowest of all limits that are set.",
        "accel_power_limit_watts",
        "accel.power.limit",
        preset="core",
    ),
    Metric(
        "{kind}.{i}.powerPercent",
        "%",
        "gauge",
        "Power drawn in percent of the limit in force; short peaks exceed 100.",
        otel="accel.power.utilization",
    ),
    Metric(
        "{kind}.{i}.energyJoules",
        "J",
        "counter",
        "Energy used since the driver was loaded.",
        "accel_energy_joules_total",
        'hw.energy{hw.type="{kind}"}',
        preset="core",
    ),
    Metric(
        "{kind}.{i}.moduleEnergyJoules",
        "J",
        "counter",
        "Energy that a module of CPU, GPU and memory used since the driver was loaded, if the driver counts it.",
        "accel_module_energy_joules_total",
        "accel.module.energy",
    ),
    Metric(
        "{kind}.{i}.boardPowerWatts",
        "W",
        "gauge",
        "Power that a card with several devices draws, if reported in addition to each device's power; the card's first device has it.",
        "accel_board_power_watts",
        "accel.board.power",
    ),
    Metric(
        "{kind}.{i}.powerInstantWatts",
        "W",
        "gauge",
        "Power that the board draws at this moment, where `powerWatts` is a mean.",
        "accel_power_instant_watts",
        "accel.power.instant",
        preset="all",
    ),
    *(
        Metric(
            f"{{kind}}.{{i}}.{bound}PowerLimitWatts",
            "W",
            "gauge",
            meaning,
            f'accel_power_limit_bound_watts{{bound="{bound}"}}',
            f'accel.power.limit.bound{{accelmetrics.bound="{bound}"}}',
            preset="all",
        )
        for bound, meaning in (
            ("min", "Lowest power limit that can be set."),
            ("max", "Highest power limit that can be set."),
            ("default", "Power limit that the device starts with."),
        )
    ),
)


def _clock(name: str, domain: str, meaning: str, highest: bool = False, preset: Preset = "standard") -> Metric:
    return Metric(
        f"{{kind}}.{{i}}.{name}",
        "MHz",
        "gauge",
        meaning,
        f'accel_clock{"_max" if highest else ""}_hertz{{domain="{domain}"}}',
        f'accel.clock.{"limit" if highest else "frequency"}{{accelmetrics.domain="{domain}"}}',
        integer=True,
        preset=preset,
    )


CLOCKS = (
    _clock("smClock", "sm", "Clock of the compute units.", preset="core"),
    _clock("memoryClock", "memory", "Clock of the memory."),
    _clock("graphicsClock", "graphics", "Clock of the graphics units."),
    _clock("maxSmClock", "sm", "Highest clock that the compute units can run at.", highest=True),
    _clock("maxMemoryClock", "memory", "Highest clock that the memory can run at.", highest=True),
    _clock("videoClock", "video", "Clock of the video engines.", preset="all"),
    _clock("maxVideoClock", "video", "Highest clock that the video engines can run at.", highest=True, preset="all"),
    Metric(
        "{kind}.{i}.performanceState",
        "1",
        "gauge",
        "Performance state, from 0 (fastest) to 15 (slowest).",
        "accel_performance_state",
        "accel.performance.state",
        integer=True,
        maximum=15,
    ),
)

_THROTTLE_REASONS = {
    "gpuIdle": "nothing runs",
    "applicationsClocksSetting": "of the application clocks that are set",
    "swPowerCap": "the power limit is reached",
    "hwSlowdown": "the hardware slows down for heat, a power brake or a fast trigger",
    "syncBoost": "another device of its boost group is slower",
    "swThermalSlowdown": "the driver keeps the temperature below its limit",
    "hwThermalSlowdown": "the hardware slows down for heat",
    "hwPowerBrakeSlowdown": "the power supply asks it to",
    "displayClockSetting": "of the clocks that a display needs",
    "currentLimit": "a limit of electric current is reached",
}
NOT_THROTTLING = ("gpuIdle", "applicationsClocksSetting", "displayClockSetting")
"""Reasons for low clocks that are normal states: nothing runs, or the clocks were set."""
_VIOLATIONS = {
    "power": "its power limit was reached",
    "thermal": "its temperature limit was reached",
    "syncBoost": "another device of its boost group was slower",
    "boardLimit": "a limit of the board was reached",
    "lowUtilization": "there was too little work",
    "reliability": "a reliability limit of the chip was reached",
}
THROTTLING = (
    Metric(
        "{kind}.{i}.throttled",
        "1",
        "gauge",
        "1 while the clocks are held down for any reason except an idle device or configured clocks, else 0.",
        "accel_throttled",
        "accel.throttled",
        integer=True,
        maximum=1,
        preset="core",
    ),
    *(
        Metric(
            f"{{kind}}.{{i}}.throttle.{name}",
            "1",
            "gauge",
            f"1 while the clocks are held down because {meaning}, else 0.",
            f'accel_throttle_active{{reason="{field_of(name)}"}}',
            f'accel.throttle.active{{accelmetrics.reason="{field_of(name)}"}}',
            integer=True,
            maximum=1,
        )
        for name, meaning in _THROTTLE_REASONS.items()
    ),
    *(
        Metric(
            f"{{kind}}.{{i}}.violationSeconds.{name}",
            "s",
            "counter",
            f"For how long the device ran below its clocks because {meaning}, since the driver was loaded.",
            f'accel_violation_seconds_total{{reason="{field_of(name)}"}}',
            f'accel.violation.duration{{accelmetrics.reason="{field_of(name)}"}}',
        )
        for name, meaning in _VIOLATIONS.items()
    ),
)


def _pcie_link(name: str, series: str, otel: str, meaning: str, maximum: float | None = None) -> Metric:
    return Metric(
        f"{{kind}}.{{i}}.{name}",
        "1",
        "gauge",
        meaning,
        f"accel_pcie_link_{series}",
        f"accel.pcie.link.{otel}",
        integer=True,
        minimum=1,
        maximum=maximum,
    )


PCIE = (
    _pcie_link("pcieLinkGen", "generation", "generation", "PCIe generation that the link runs at now; it falls while the device is idle."),
    _pcie_link("pcieLinkWidth", "width", "width", "PCIe lanes that the link uses now.", 32),
    _pcie_link("maxPcieLinkGen", "max_generation", "generation.limit", "Highest PCIe generation that this device can reach in this slot."),
    _pcie_link("maxPcieLinkWidth", "max_width", "width.limit", "Most PCIe lanes that this device can use in this slot.", 32),
    Metric(
        "{kind}.{i}.pcieLinkSpeed",
        "By/s",
        "gauge",
        "Speed of the PCIe link; W&B's collector has the key and leaves it switched off, and no backend gives it.",
        "accel_pcie_link_bytes_per_second",
        "accel.pcie.link.speed",
        integer=True,
    ),
    Metric(
        "{kind}.{i}.pcieReplays",
        "1",
        "counter",
        "PCIe packets that had to be sent again.",
        "accel_pcie_replays_total",
        "accel.pcie.replays",
        integer=True,
    ),
    *(
        Metric(
            f"{{kind}}.{{i}}.pcie{direction.capitalize()}BytesTotal",
            "By",
            "counter",
            f"Bytes {moved} over PCIe since the driver was loaded.",
            f'accel_pcie_bytes_total{{direction="{direction}"}}',
            f'hw.gpu.io{{network.io.direction="{word}"}}',
            integer=True,
        )
        for direction, word, moved in (("tx", "transmit", "sent"), ("rx", "receive", "received"))
    ),
    *(
        Metric(
            f"{{kind}}.{{i}}.pcie{direction.capitalize()}Bytes",
            "By/s",
            "gauge",
            f"Bytes per second {moved} over PCIe.",
            f'accel_pcie_bytes_per_second{{direction="{direction}"}}',
            f'accel.pcie.throughput{{network.io.direction="{word}"}}',
            preset="all",
        )
        for direction, word, moved in (("tx", "transmit", "sent"), ("rx", "receive", "received"))
    ),
)


def _process(name: str, unit: Unit, meaning: str, *, integer: bool = False, maximum: float | None = None) -> Metric:
    return Metric(f"{{kind}}.process.{{i}}.{name}", unit, "gauge", meaning, integer=integer, maximum=maximum)


def _board(name: str, unit: Unit, minimum: float = 0.0) -> Metric:
    meaning = f"The board's `{name}`, while the watched process uses the device."
    return Metric(f"{{kind}}.process.{{i}}.{name}", unit, "gauge", meaning, minimum=minimum)


# Only for devices that the watched process, or a watched descendant, uses. Memory and utilisation are summed over these processes; the
# others repeat the board's values, as W&B's charts expect. Prometheus and OpenTelemetry have no series for these.
PROCESS = (
    _process(
        "utilization",
        "%",
        "Share of the time during which the device computed for the watched process and its descendants.",
        maximum=100,
    ),
    _process(
        "memory",
        "%",
        "Share of the time during which the watched process and its descendants kept the memory controller busy.",
        maximum=100,
    ),
    _process(
        "memoryAllocated",
        "%",
        "Share of the device's memory that the watched process and its descendants hold.",
        maximum=100,
    ),
    _process("memoryAllocatedBytes", "By", "Device memory that the watched process and its descendants hold.", integer=True),
    _board("temp", "Cel", ABSOLUTE_ZERO),
    _board("powerWatts", "W"),
    _board("enforcedPowerLimitWatts", "W"),
    _board("powerPercent", "%"),
)
