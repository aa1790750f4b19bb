"""Reports in the shape that the tool prints, with numbers of our own."""

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]
HOST = {"application_memory": 7_000_001, "constants": 40_002, "dma_buffers": 500_003, "tensors": 60_004}
LATENCY = {"p0": 0.001, "p1": 0.0011, "p25": 0.0015, "p50": 0.002, "p75": 0.0025, "p99": 0.004, "p100": 0.005}


def core_memory(core: int) -> dict[str, int]:
    """Five numbers that differ for every core."""
    names = ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")
    return {name: (core + 1) * 1000 + place for place, name in enumerate(names)}


def runtime(
    pid: int = 4321,
    utilization: Mapping[int, float] | None = None,
    *,
    errors: Mapping[str, str] | None = None,
    error: str = "",
    completed: int = 17,
    latency: Json | None = LATENCY,
) -> Json:
    """One program.

    Args:
        pid: Its number.
        utilization: By core, percent; its cores.
        errors: By section, the section's error.
        error: The program's own error.
        completed: Executions that ended well.
        latency: Percentiles; None as when nothing was executed.
    """
    cores = {0: 12.5, 1: 80.25} if utilization is None else utilization
    said = {"neuroncore_counters": "", "memory_used": "", "execution_stats": "", **(errors or {})}
    breakdown = {"host": dict(HOST), "neuroncore_memory_usage": {str(core): core_memory(core) for core in cores}}
    used = {
        "host": sum(HOST.values()),
        "neuron_device": sum(sum(core_memory(core).values()) for core in cores),
        "usage_breakdown": breakdown,
    }
    outcomes = ("completed_with_err", "completed_with_num_err", "timed_out", "incorrect_input", "failed_to_queue")
    sections: dict[str, Json] = {
        "execution_stats": {
            "error_summary": {
                name: place for place, name in enumerate(("generic", "numerical", "transient", "model", "runtime", "hardware"))
            },
            "execution_summary": {"completed": completed, **{name: place for place, name in enumerate(outcomes)}},
            "latency_stats": {"total_latency": latency, "device_latency": latency and {name: value / 2 for name, value in latency.items()}},
        },
        "memory_used": {"neuron_runtime_used_bytes": used, "loaded_models": []},
        "neuroncore_counters": {
            "neuroncores_in_use": {
                str(core): {"neuroncore_utilization": share, "flops": (core + 1) * 10**9} for core, share in cores.items()
            }
        },
    }
    report = {name: {"period": 1.0003, **section, "error": said[name]} for name, section in sections.items()}
    return {"pid": pid, "neuron_runtime_tag": str(pid), "error": error, "report": report}


def hardware(chips: int = 1, cores: int = 2, *, error: str = "") -> Json:
    """What is fixed about the machine, as a tool of 2025 says it."""
    return {
        "neuron_device_type": "trainium1",
        "neuroncore_version": "v2",
        "neuron_device_count": chips,
        "neuron_device_memory_size": 34_359_738_368,
        "neuroncore_per_device_count": cores,
        "error": error,
    }


def chip_errors(chip: int = 0) -> Json:
    """Error counters that differ for every chip."""
    names = ("mem_ecc_corrected", "mem_ecc_uncorrected", "sram_ecc_uncorrected", "sram_ecc_corrected")
    return {"neuron_device_index": chip, **{name: 10 * chip + place for place, name in enumerate(names)}}


def report(
    runtimes: Sequence[Json] | None = (), *, machine: Json | None = None, chips: Sequence[Json] | None = None, ecc_error: str = ""
) -> Json:
    """A whole line.

    Args:
        runtimes: The programs; none on an idle machine.
        machine: What is fixed.
        chips: The error counters of each chip.
        ecc_error: The error of that section.
    """
    devices = [chip_errors()] if chips is None else list(chips)
    return {
        "neuron_runtime_data": None if runtimes is None else list(runtimes),
        "system_data": {"neuron_hw_counters": {"period": 1.0002, "neuron_devices": devices, "error": ecc_error}},
        "instance_info": {"instance_type": "trn1.2xlarge", "error": ""},
        "neuron_hardware_info": hardware() if machine is None else machine,
    }
