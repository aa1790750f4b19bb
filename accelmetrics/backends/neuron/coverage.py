"""Which metrics NeuronCores and their machine give, and where ``neuron-monitor`` and the driver's sysfs counters have each."""

from accelmetrics.backends.contract import Coverage
from accelmetrics.schemas.catalogue.neuron import CORE_MEMORY, ECC, ERRORS, EXECUTIONS, HOST_MEMORY, LATENCIES, PERCENTILES

_SUMMED = "neuron-monitor, summed over runtimes: "
_CORE, _CHIP = "neuron_core{n}/stats", "neuron{n}/stats"


def _host_memory(category: str) -> str:
    return f"{_SUMMED}memory_used…usage_breakdown.host.{category}; sysfs: {_CHIP}/memory_usage/host_mem/{category}/total, summed over chips"


COVERAGE = Coverage(
    devices={
        "neuroncore_utilization": f"{_SUMMED}neuroncore_counters.neuroncores_in_use.{{core}}.neuroncore_utilization; "
        f"sysfs: by difference of {_CORE}/other_info/nc_time_in_use/total",
        "flops": f"{_SUMMED}neuroncore_counters.neuroncores_in_use.{{core}}.flops; "
        f"sysfs: by difference of {_CORE}/other_info/flop_count/total",
        **{
            f"neuroncore_memory_usage.{category}": f"{_SUMMED}memory_used…neuroncore_memory_usage.{{core}}.{category}; "
            f"sysfs: {_CORE}/memory_usage/device_mem/{category}/total"
            for category in CORE_MEMORY
        },
    },
    machine={
        "trn.host_total_memory_usage": f"{_SUMMED}memory_used.neuron_runtime_used_bytes.host; "
        f"sysfs: {_CHIP}/memory_usage/host_mem/total, summed over chips",
        "trn.neuron_device_total_memory_usage": f"{_SUMMED}memory_used.neuron_runtime_used_bytes.neuron_device; "
        f"sysfs: {_CORE}/memory_usage/device_mem/total, summed over cores",
        **{f"trn.host_memory_usage.{category}": _host_memory(category) for category in HOST_MEMORY},
        **{f"trn.host_total_memory_usage.{category}": _host_memory(category) for category in HOST_MEMORY},
        "trn.neuron_device_count": "neuron-monitor: neuron_hardware_info.neuron_device_count; sysfs: directories neuron{n}",
        "trn.neuroncore_per_device_count": ("neuron-monitor: neuron_hardware_info.neuroncore_per_device_count; sysfs: neuron0/core_count"),
        "trn.neuron_device_memory_size": "neuron-monitor: neuron_hardware_info.neuron_device_memory_size",
        "trn.neuron_runtime_count": "neuron-monitor: entries of neuron_runtime_data",
        **{f"trn.execution_summary.{name}": f"{_SUMMED}execution_stats.execution_summary.{name}" for name in EXECUTIONS},
        **{f"trn.error_summary.{kind}": f"{_SUMMED}execution_stats.error_summary.{kind}" for kind in ERRORS},
        **{
            f"trn.{clock}.{percentile}": f"neuron-monitor, largest over runtimes: execution_stats.latency_stats.{clock}.{percentile}"
            for clock in LATENCIES
            for percentile in PERCENTILES
        },
    },
    optional={
        f"trn.device.{{i}}.{counter}": f"neuron-monitor: neuron_hw_counters.neuron_devices[].{counter}; sysfs: {_CHIP}/hardware/{counter}"
        for counter in ECC
    },
)
