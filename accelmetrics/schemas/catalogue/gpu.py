"""GPUs: what NVIDIA's library and AMD's kernel driver and tools can say about a whole device.

AMD's sources name the file below ``/sys/bus/pci/devices/ADDRESS`` first (``hwmon:`` one below ``hwmon/hwmonN``,
``gpu_metrics:`` a field of that binary table), then the key that ``rocm-smi`` prints.

Pace, where it is not every reading: *1 s* and *10 s* after a source mean that the value is read anew at most that often, *once*
that it is read a single time while the driver is open.
"""

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
        {
            "nvidia": "nvmlDeviceGetUtilizationRates().gpu",
            "amd": 'gpu_busy_percent; "GPU use (%)"',
            "apple": 'macmon gpu_active_ratio (0.8); else ioreg "Device Utilization %"; else powermetrics "GPU HW active residency"',
        },
        maximum=100,
        prometheus='accel_utilization_ratio{engine="compute"}',
        otel='hw.gpu.utilization{hw.gpu.task="general"}',
        factor=PERCENT,
        partitions=("amd",),
    ),
    Metric(
        "gpu.{i}.memory",
        "%",
        "gauge",
        "Share of the time during which the memory controller was busy; says nothing about how full the memory is.",
        {
            "nvidia": "nvmlDeviceGetUtilizationRates().memory",
            "amd": 'mem_busy_percent; "GPU Memory Read/Write Activity (%)", ROCm up to 6.1.1: "GPU memory use (%)"',
        },
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
        {"amd": "as `memory`"},
        maximum=100,
        factor=PERCENT,
    ),
    Metric(
        "gpu.{i}.encoderUtilization",
        "%",
        "gauge",
        "Share of the time during which the video encoder was busy.",
        {"nvidia": "nvmlDeviceGetEncoderUtilization, 1 s"},
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
        {"nvidia": "nvmlDeviceGetDecoderUtilization, 1 s"},
        maximum=100,
        prometheus='accel_utilization_ratio{engine="decoder"}',
        otel='hw.gpu.utilization{hw.gpu.task="decoder"}',
        factor=PERCENT,
    ),
)

_MEMORY = "nvmlDeviceGetMemoryInfo_v2()"
_UNIFIED = "unified memory: /proc/meminfo"

MEMORY = (
    Metric(
        "gpu.{i}.memoryAllocated",
        "%",
        "gauge",
        "Share of the device's memory that is allocated.",
        {
            "nvidia": "memoryAllocatedBytes / memoryTotalBytes",
            "amd": 'memoryAllocatedBytes / memoryTotalBytes; where no bytes are printed, "GPU Memory Allocated (VRAM%)"',
            "apple": "memoryAllocatedBytes / memoryTotalBytes",
        },
        maximum=100,
        otel="hw.gpu.memory.utilization",
        factor=PERCENT,
        partitions=("nvidia", "amd"),
    ),
    Metric(
        "gpu.{i}.memoryAllocatedBytes",
        "By",
        "gauge",
        "Memory that is allocated on the device, without the driver's own reserve.",
        {
            "nvidia": f"{_MEMORY}.used; {_UNIFIED}",
            "amd": (
                'mem_info_vram_used (a partition: used_memory of its compute node); "VRAM Total Used Memory (B)"; '
                'an APU: with mem_info_gtt_used; "GTT Total Used Memory (B)"'
            ),
            "apple": 'ioreg IOAccelerator "In use system memory", a part of the host\'s',
        },
        integer=True,
        prometheus="accel_memory_used_bytes",
        otel="hw.gpu.memory.usage",
        partitions=("nvidia", "amd"),
    ),
    Metric(
        "gpu.{i}.memoryTotalBytes",
        "By",
        "gauge",
        "Memory that the device has.",
        {
            "nvidia": f"{_MEMORY}.total; {_UNIFIED}",
            "amd": 'mem_info_vram_total; "VRAM Total Memory (B)"; an APU: with mem_info_gtt_total; "GTT Total Memory (B)"',
            "apple": "the host's memory: macmon memory.ram_total, else sysctl hw.memsize",
        },
        integer=True,
        prometheus="accel_memory_total_bytes",
        otel="hw.gpu.memory.limit",
        partitions=("nvidia", "amd"),
    ),
    Metric(
        "gpu.{i}.memoryFreeBytes",
        "By",
        "gauge",
        "Memory that can still be allocated: total less what is used and what the driver reserves.",
        {"nvidia": f"{_MEMORY}.free; {_UNIFIED}", "amd": "memoryTotalBytes - memoryAllocatedBytes"},
        integer=True,
        prometheus="accel_memory_free_bytes",
        otel="accel.memory.free",
        partitions=("nvidia", "amd"),
    ),
    Metric(
        "gpu.{i}.bar1UsedBytes",
        "By",
        "gauge",
        "Used part of the window through which the processor and other devices reach the device's memory.",
        {"nvidia": "nvmlDeviceGetBAR1MemoryInfo().bar1Used, 10 s"},
        integer=True,
        prometheus="accel_bar1_used_bytes",
        otel="accel.bar1.used",
    ),
    Metric(
        "gpu.{i}.memoryOverDrive",
        "%",
        "gauge",
        "By how much the memory clock is raised above its default limit.",
        {"amd": 'pp_mclk_od, 10 s; "GPU Memory OverDrive value (%)"'},
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
        {
            "nvidia": "nvmlDeviceGetTemperature(NVML_TEMPERATURE_GPU)",
            "amd": 'hwmon: temp*_input labelled edge; "Temperature (Sensor edge) (C)"; where there is no edge sensor, junction',
            "apple": "macmon temp.gpu_temp_avg",
        },
        minimum=ABSOLUTE_ZERO,
        prometheus='accel_temperature_celsius{sensor="core"}',
        otel='hw.temperature{hw.sensor_location="core"}',
    ),
    Metric(
        "gpu.{i}.memoryTemp",
        "Cel",
        "gauge",
        "Temperature of the device's memory.",
        {
            "nvidia": "NVML_FI_DEV_MEMORY_TEMP (82)",
            "amd": 'hwmon: temp*_input labelled mem, else the hottest HBM_n; "Temperature (Sensor memory) (C)"',
        },
        minimum=ABSOLUTE_ZERO,
        prometheus='accel_temperature_celsius{sensor="memory"}',
        otel='hw.temperature{hw.sensor_location="memory"}',
    ),
    Metric(
        "gpu.{i}.hotspotTemp",
        "Cel",
        "gauge",
        "Temperature of the hottest point of the chip.",
        {"amd": 'hwmon: temp*_input labelled junction; "Temperature (Sensor junction) (C)"'},
        minimum=ABSOLUTE_ZERO,
        prometheus='accel_temperature_celsius{sensor="hotspot"}',
        otel='hw.temperature{hw.sensor_location="hotspot"}',
    ),
    Metric(
        "gpu.{i}.tempLimit.slowdown",
        "Cel",
        "gauge",
        "Core temperature at which the device starts to slow itself down.",
        {
            "nvidia": "nvmlDeviceGetTemperatureThreshold(NVML_TEMPERATURE_THRESHOLD_SLOWDOWN), once",
            "amd": "hwmon: temp*_crit of `temp`'s sensor, 10 s",
        },
        minimum=ABSOLUTE_ZERO,
        prometheus='accel_temperature_limit_celsius{limit="slowdown"}',
        otel='hw.temperature.limit{hw.sensor_location="core",hw.limit_type="throttled"}',
    ),
    Metric(
        "gpu.{i}.tempLimit.shutdown",
        "Cel",
        "gauge",
        "Core temperature at which the device switches itself off.",
        {
            "nvidia": "nvmlDeviceGetTemperatureThreshold(NVML_TEMPERATURE_THRESHOLD_SHUTDOWN), once",
            "amd": "hwmon: temp*_emergency of `temp`'s sensor, 10 s",
        },
        minimum=ABSOLUTE_ZERO,
        prometheus='accel_temperature_limit_celsius{limit="shutdown"}',
        otel='hw.temperature.limit{hw.sensor_location="core",hw.limit_type="high.critical"}',
    ),
    Metric(
        "gpu.{i}.fanSpeed",
        "%",
        "gauge",
        "Intended speed of the first fan, in percent of its nominal maximum, which it may exceed.",
        {"nvidia": "nvmlDeviceGetFanSpeed, 1 s", "amd": 'hwmon: pwm1 / 255; "Fan speed (%)"'},
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
        {
            "nvidia": "nvmlDeviceGetPowerUsage / 1000",
            "amd": 'hwmon: power1_average, else power1_input; "Average Graphics Package Power (W)", else "Current Socket …"',
            "apple": 'macmon gpu_power, the GPU alone; else powermetrics "GPU Power"',
        },
        prometheus="accel_power_watts",
        otel='hw.power{hw.type="gpu"}',
    ),
    Metric(
        "gpu.{i}.enforcedPowerLimitWatts",
        "W",
        "gauge",
        "Power limit in force: the lowest of all limits that are set.",
        {"nvidia": "nvmlDeviceGetEnforcedPowerLimit / 1000, 10 s", "amd": 'hwmon: power1_cap, 10 s; "Max Graphics Package Power (W)"'},
        prometheus="accel_power_limit_watts",
        otel="accel.power.limit",
    ),
    Metric(
        "gpu.{i}.powerPercent",
        "%",
        "gauge",
        "Power drawn in percent of the limit in force; short peaks exceed 100.",
        {
            "nvidia": "powerWatts / enforcedPowerLimitWatts",
            "amd": "powerWatts / enforcedPowerLimitWatts",
            "apple": "none: nobody publishes a limit",
        },
        otel="accel.power.utilization",
        factor=PERCENT,
    ),
    Metric(
        "gpu.{i}.energyJoules",
        "J",
        "counter",
        "Energy used since the driver was loaded.",
        {
            "nvidia": "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION (83) / 1000",
            "amd": 'hwmon: energy1_input, else gpu_metrics: energy_accumulator / 65536; "Accumulated Energy (uJ)"',
        },
        prometheus="accel_energy_joules_total",
        otel='hw.energy{hw.type="gpu"}',
    ),
)


def _clock(name: str, domain: str, meaning: str, sources: dict[str, str], top: bool = False) -> Metric:
    return Metric(
        f"gpu.{{i}}.{name}",
        "MHz",
        "gauge",
        meaning,
        sources,
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
        {
            "nvidia": "nvmlDeviceGetClockInfo(NVML_CLOCK_SM)",
            "amd": 'hwmon: freq1_input (sclk), else the * in pp_dpm_sclk; "sclk clock speed:"',
        },
    ),
    _clock(
        "memoryClock",
        "memory",
        "Clock of the memory.",
        {
            "nvidia": "nvmlDeviceGetClockInfo(NVML_CLOCK_MEM)",
            "amd": 'hwmon: freq2_input (mclk), else the * in pp_dpm_mclk; "mclk clock speed:"',
        },
    ),
    _clock("graphicsClock", "graphics", "Clock of the graphics units.", {"nvidia": "nvmlDeviceGetClockInfo(NVML_CLOCK_GRAPHICS)"}),
    _clock(
        "maxSmClock",
        "sm",
        "Highest clock that the compute units can run at.",
        {"nvidia": "nvmlDeviceGetMaxClockInfo(NVML_CLOCK_SM), once", "amd": "highest level of pp_dpm_sclk, 10 s"},
        top=True,
    ),
    _clock(
        "maxMemoryClock",
        "memory",
        "Highest clock that the memory can run at.",
        {"nvidia": "nvmlDeviceGetMaxClockInfo(NVML_CLOCK_MEM), once", "amd": "highest level of pp_dpm_mclk, 10 s"},
        top=True,
    ),
    Metric(
        "gpu.{i}.performanceState",
        "1",
        "gauge",
        "Performance state, from 0 (fastest) to 15 (slowest).",
        {"nvidia": "nvmlDeviceGetPerformanceState"},
        integer=True,
        maximum=15,
        prometheus="accel_performance_state",
        otel="accel.performance.state",
    ),
)

# Name, bit as NVML spells it, label, meaning.
_REASONS = (
    ("gpuIdle", "GpuIdle (0x1)", "gpu_idle", "nothing runs"),
    (
        "applicationsClocksSetting",
        "ApplicationsClocksSetting (0x2)",
        "applications_clocks_setting",
        "of the application clocks that are set",
    ),
    ("swPowerCap", "SwPowerCap (0x4)", "sw_power_cap", "the power limit is reached"),
    ("hwSlowdown", "HwSlowdown (0x8)", "hw_slowdown", "the hardware slows down for heat, a power brake or a fast trigger"),
    ("syncBoost", "SyncBoost (0x10)", "sync_boost", "another device of its boost group is slower"),
    ("swThermalSlowdown", "SwThermalSlowdown (0x20)", "sw_thermal_slowdown", "the driver keeps the temperature below its limit"),
    ("hwThermalSlowdown", "HwThermalSlowdown (0x40)", "hw_thermal_slowdown", "the hardware slows down for heat"),
    ("hwPowerBrakeSlowdown", "HwPowerBrakeSlowdown (0x80)", "hw_power_brake_slowdown", "the power supply asks it to"),
    ("displayClockSetting", "DisplayClockSetting (0x100)", "display_clock_setting", "of the clocks that a display needs"),
)

_RESIDENCY = "gpu_metrics: {} rose since the last reading (MI300), else indep_throttle_status, bits {}"
_AMD_REASONS = {
    "swPowerCap": _RESIDENCY.format("ppt_residency_acc", "0 to 7"),
    "swThermalSlowdown": _RESIDENCY.format("socket_thm_ or hbm_thm_residency_acc", "32 to 43"),
    "hwThermalSlowdown": _RESIDENCY.format("prochot_ or vr_thm_residency_acc", "44 to 47"),
}


def _throttle(name: str, label: str, meaning: str, sources: dict[str, str]) -> Metric:
    return Metric(
        f"gpu.{{i}}.throttle.{name}",
        "1",
        "gauge",
        f"1 while the clocks are held down because {meaning}, else 0.",
        sources,
        integer=True,
        maximum=1,
        prometheus=f'accel_throttle_active{{reason="{label}"}}',
        otel=f'accel.throttle.active{{reason="{label}"}}',
    )


THROTTLING = (
    *(
        _throttle(
            name,
            label,
            meaning,
            {"nvidia": f"nvmlDeviceGetCurrentClocksEventReasons, bit nvmlClocksEventReason{bit}"}
            | ({"amd": _AMD_REASONS[name]} if name in _AMD_REASONS else {}),
        )
        for name, bit, label, meaning in _REASONS
    ),
    _throttle(
        "currentLimit",
        "current_limit",
        "a limit of electric current is reached",
        {"amd": "gpu_metrics: indep_throttle_status, bits 16 to 23"},
    ),
)
