"""Where each metric is read: ``neuron-monitor``, else the driver's files."""

from accelmetrics.backends.contract import Coverage

COVERAGE = Coverage(
    devices={
        "neuroncore_utilization": (
            "neuron-monitor, summed over runtimes: neuroncore_counters.neuroncores_in_use.{core}.neuroncore_utilization; "
            "sysfs: by difference of neuron_core{n}/stats/other_info/nc_time_in_use/total"
        ),
        "flops": (
            "neuron-monitor, summed over runtimes: neuroncore_counters.neuroncores_in_use.{core}.flops; sysfs: by "
            "difference of neuron_core{n}/stats/other_info/flop_count/total"
        ),
        "neuroncore_memory_usage.constants": (
            "neuron-monitor, summed over runtimes: memory_used…neuroncore_memory_usage.{core}.constants; sysfs: "
            "neuron_core{n}/stats/memory_usage/device_mem/constants/total"
        ),
        "neuroncore_memory_usage.model_code": (
            "neuron-monitor, summed over runtimes: memory_used…neuroncore_memory_usage.{core}.model_code; sysfs: "
            "neuron_core{n}/stats/memory_usage/device_mem/model_code/total"
        ),
        "neuroncore_memory_usage.model_shared_scratchpad": (
            "neuron-monitor, summed over runtimes: memory_used…neuroncore_memory_usage.{core}.model_shared_scratchpad; "
            "sysfs: neuron_core{n}/stats/memory_usage/device_mem/model_shared_scratchpad/total"
        ),
        "neuroncore_memory_usage.runtime_memory": (
            "neuron-monitor, summed over runtimes: memory_used…neuroncore_memory_usage.{core}.runtime_memory; sysfs: "
            "neuron_core{n}/stats/memory_usage/device_mem/runtime_memory/total"
        ),
        "neuroncore_memory_usage.tensors": (
            "neuron-monitor, summed over runtimes: memory_used…neuroncore_memory_usage.{core}.tensors; sysfs: "
            "neuron_core{n}/stats/memory_usage/device_mem/tensors/total"
        ),
    },
    machine={
        "trn.host_total_memory_usage": (
            "neuron-monitor, summed over runtimes: memory_used.neuron_runtime_used_bytes.host; sysfs: "
            "neuron{n}/stats/memory_usage/host_mem/total, summed over chips"
        ),
        "trn.neuron_device_total_memory_usage": (
            "neuron-monitor, summed over runtimes: memory_used.neuron_runtime_used_bytes.neuron_device; sysfs: "
            "neuron_core{n}/stats/memory_usage/device_mem/total, summed over cores"
        ),
        "trn.host_memory_usage.application_memory": (
            "neuron-monitor, summed over runtimes: memory_used…usage_breakdown.host.application_memory; sysfs: "
            "neuron{n}/stats/memory_usage/host_mem/application_memory/total, summed over chips"
        ),
        "trn.host_total_memory_usage.application_memory": (
            "neuron-monitor, summed over runtimes: memory_used…usage_breakdown.host.application_memory; sysfs: "
            "neuron{n}/stats/memory_usage/host_mem/application_memory/total, summed over chips"
        ),
        "trn.host_memory_usage.constants": (
            "neuron-monitor, summed over runtimes: memory_used…usage_breakdown.host.constants; sysfs: "
            "neuron{n}/stats/memory_usage/host_mem/constants/total, summed over chips"
        ),
        "trn.host_total_memory_usage.constants": (
            "neuron-monitor, summed over runtimes: memory_used…usage_breakdown.host.constants; sysfs: "
            "neuron{n}/stats/memory_usage/host_mem/constants/total, summed over chips"
        ),
        "trn.host_memory_usage.dma_buffers": (
            "neuron-monitor, summed over runtimes: memory_used…usage_breakdown.host.dma_buffers; sysfs: "
            "neuron{n}/stats/memory_usage/host_mem/dma_buffers/total, summed over chips"
        ),
        "trn.host_total_memory_usage.dma_buffers": (
            "neuron-monitor, summed over runtimes: memory_used…usage_breakdown.host.dma_buffers; sysfs: "
            "neuron{n}/stats/memory_usage/host_mem/dma_buffers/total, summed over chips"
        ),
        "trn.host_memory_usage.tensors": (
            "neuron-monitor, summed over runtimes: memory_used…usage_breakdown.host.tensors; sysfs: "
            "neuron{n}/stats/memory_usage/host_mem/tensors/total, summed over chips"
        ),
        "trn.host_total_memory_usage.tensors": (
            "neuron-monitor, summed over runtimes: memory_used…usage_breakdown.host.tensors; sysfs: "
            "neuron{n}/stats/memory_usage/host_mem/tensors/total, summed over chips"
        ),
        "trn.neuron_device_count": "neuron-monitor: neuron_hardware_info.neuron_device_count; sysfs: directories neuron{n}",
        "trn.neuroncore_per_device_count": "neuron-monitor: neuron_hardware_info.neuroncore_per_device_count; sysfs: neuron0/core_count",
        "trn.neuron_device_memory_size": "neuron-monitor: neuron_hardware_info.neuron_device_memory_size",
        "trn.neuron_runtime_count": "neuron-monitor: entries of neuron_runtime_data",
        "trn.execution_summary.completed": "neuron-monitor, summed over runtimes: execution_stats.execution_summary.completed",
        "trn.execution_summary.completed_with_err": (
            "neuron-monitor, summed over runtimes: execution_stats.execution_summary.completed_with_err"
        ),
        "trn.execution_summary.completed_with_num_err": (
            "neuron-monitor, summed over runtimes: execution_stats.execution_summary.completed_with_num_err"
        ),
        "trn.execution_summary.timed_out": "neuron-monitor, summed over runtimes: execution_stats.execution_summary.timed_out",
        "trn.execution_summary.incorrect_input": (
            "neuron-monitor, summed over runtimes: execution_stats.execution_summary.incorrect_input"
        ),
        "trn.execution_summary.failed_to_queue": (
            "neuron-monitor, summed over runtimes: execution_stats.execution_summary.failed_to_queue"
        ),
        "trn.error_summary.generic": "neuron-monitor, summed over runtimes: execution_stats.error_summary.generic",
        "trn.error_summary.numerical": "neuron-monitor, summed over runtimes: execution_stats.error_summary.numerical",
        "trn.error_summary.transient": "neuron-monitor, summed over runtimes: execution_stats.error_summary.transient",
        "trn.error_summary.model": "neuron-monitor, summed over runtimes: execution_stats.error_summary.model",
        "trn.error_summary.runtime": "neuron-monitor, summed over runtimes: execution_stats.error_summary.runtime",
        "trn.error_summary.hardware": "neuron-monitor, summed over runtimes: execution_stats.error_summary.hardware",
        "trn.total_latency.p50": "neuron-monitor, largest over runtimes: execution_stats.latency_stats.total_latency.p50",
        "trn.total_latency.p99": "neuron-monitor, largest over runtimes: execution_stats.latency_stats.total_latency.p99",
        "trn.device_latency.p50": "neuron-monitor, largest over runtimes: execution_stats.latency_stats.device_latency.p50",
        "trn.device_latency.p99": "neuron-monitor, largest over runtimes: execution_stats.latency_stats.device_latency.p99",
    },
    optional={
        "trn.device.{i}.mem_ecc_corrected": (
            "neuron-monitor: neuron_hw_counters.neuron_devices[].mem_ecc_corrected; sysfs: neuron{n}/stats/hardware/mem_ecc_corrected"
        ),
        "trn.device.{i}.mem_ecc_uncorrected": (
            "neuron-monitor: neuron_hw_counters.neuron_devices[].mem_ecc_uncorrected; sysfs: neuron{n}/stats/hardware/mem_ecc_uncorrected"
        ),
        "trn.device.{i}.mem_ecc_repairable_uncorrected": (
            "neuron-monitor: neuron_hw_counters.neuron_devices[].mem_ecc_repairable_uncorrected; sysfs: "
            "neuron{n}/stats/hardware/mem_ecc_repairable_uncorrected"
        ),
        "trn.device.{i}.sram_ecc_corrected": (
            "neuron-monitor: neuron_hw_counters.neuron_devices[].sram_ecc_corrected; sysfs: neuron{n}/stats/hardware/sram_ecc_corrected"
        ),
        "trn.device.{i}.sram_ecc_uncorrected": (
            "neuron-monitor: neuron_hw_counters.neuron_devices[].sram_ecc_uncorrected; sysfs: neuron{n}/stats/hardware/sram_ecc_uncorrected"
        ),
    },
)
