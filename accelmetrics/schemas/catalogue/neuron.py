"""Metrics of AWS Trainium and Inferentia.

A device of kind ``trn`` is a NeuronCore under the tool's number (a logical core if cores are joined). Host memory, and counts over
all cores, belong to the machine; memory errors belong to a chip, ``trn.device.{i}``. The numbers are about programs: while no program
uses a core, the reason of its keys is ``not_in_use``.
"""

from __future__ import annotations

from accelmetrics.schemas.metric import Metric, Preset

CORE_MEMORY = {
    "constants": "constants (training) or weights (inference)",
    "model_code": "the executable code of models",
    "model_shared_scratchpad": "the scratchpad that models share",
    "runtime_memory": "the Neuron runtime itself",
    "tensors": "tensors",
}
HOST_MEMORY = {
    "application_memory": "everything that is none of the other three",
    "constants": "constants (training) or weights (inference)",
    "dma_buffers": "transfers between host and device",
    "tensors": "tensors",
}
ECC = {
    "mem_ecc_corrected": "Memory errors of the chip's DRAM that were corrected.",
    "mem_ecc_uncorrected": "Memory errors of the chip's DRAM that could not be corrected.",
    "mem_ecc_repairable_uncorrected": "Memory errors of the chip's DRAM that were not corrected and can be repaired.",
    "sram_ecc_corrected": "Errors of the chip's SRAM that were corrected.",
    "sram_ecc_uncorrected": "Errors of the chip's SRAM that could not be corrected.",
}
POWER = {"min": "Lowest", "max": "Highest", "avg": "Mean"}
EXECUTIONS = {
    "completed": "succeeded",
    "completed_with_err": "ended in an error that is not a numerical one",
    "completed_with_num_err": "ended in a numerical error",
    "timed_out": "took longer than the runtime allows",
    "incorrect_input": "were not started because their input was wrong",
    "failed_to_queue": "were rejected because the queue was full",
}
ERRORS = ("generic", "numerical", "transient", "model", "runtime", "hardware")
LATENCIES = {"total_latency": "as the runtime measures it", "device_latency": "on the device alone"}
PERCENTILES = ("p50", "p99")


def _whole(key: str, meaning: str, prometheus: str, preset: Preset = "standard") -> Metric:
    of_bytes = prometheus.endswith("_bytes")
    otel = prometheus.removeprefix("accel_neuron_").removesuffix("_bytes").replace("_", ".")
    return Metric(
        f"trn.{key}", "By" if of_bytes else "1", "gauge", meaning, prometheus, f"accel.neuron.{otel}", integer=True, preset=preset
    )


def _ecc(counter: str, meaning: str) -> Metric:
    memory, _, severity = counter.partition("_ecc_")
    return Metric(
        f"trn.device.{{i}}.{counter}",
        "1",
        "counter",
        meaning,
        f'accel_neuron_ecc_errors_total{{device="{{i}}",memory="{memory}",severity="{severity}"}}',
        f'accel.neuron.ecc.errors{{accelmetrics.neuron_device="{{i}}",accelmetrics.memory="{memory}",accelmetrics.severity="{severity}"}}',
        integer=True,
    )


def _execution(group: str, name: str, meaning: str) -> Metric:
    series = "executions" if group == "execution_summary" else "errors"
    return Metric(
        f"trn.{group}.{name}",
        "1",
        "gauge",
        meaning,
        f'accel_neuron_recent_{series}{{outcome="{name}"}}',
        f'accel.neuron.recent.{series}{{accelmetrics.outcome="{name}"}}',
        integer=True,
    )


def _latency(clock: str, how: str, percentile: str) -> Metric:
    which = clock.partition("_")[0]
    return Metric(
        f"trn.{clock}.{percentile}",
        "s",
        "gauge",
        f"Time an execution took in the tool's last period, {how}: the {percentile[1:]}th percentile of the slowest program.",
        f'accel_neuron_latency_seconds{{clock="{which}",percentile="{percentile}"}}',
        f'accel.neuron.latency{{accelmetrics.clock="{which}",accelmetrics.percentile="{percentile}"}}',
    )


CORES = (
    Metric(
        "trn.{i}.neuroncore_utilization",
        "%",
        "gauge",
        "Share of the time during which the NeuronCore was executing, over the programs that use it.",
        "accel_neuroncore_utilization_ratio",
        "accel.neuroncore.utilization",
        maximum=100,
        preset="core",
    ),
    Metric(
        "trn.{i}.flops",
        "1",
        "gauge",
        "Floating-point operations per second that programs performed on the NeuronCore.",
        "accel_neuroncore_flops",
        "accel.neuroncore.flops",
    ),
    *(
        Metric(
            f"trn.{{i}}.neuroncore_memory_usage.{category}",
            "By",
            "gauge",
            f"Device memory that programs use on the core for {use}.",
            f'accel_neuroncore_memory_used_bytes{{category="{category}"}}',
            f'accel.neuroncore.memory.usage{{accelmetrics.category="{category}"}}',
            integer=True,
        )
        for category, use in CORE_MEMORY.items()
    ),
)

MEMORY = (
    _whole("host_total_memory_usage", "Host memory that programs with NeuronCores use.", "accel_neuron_host_memory_bytes"),
    _whole(
        "neuron_device_total_memory_usage", "Device memory that programs use, over all chips.", "accel_neuron_device_memory_bytes", "core"
    ),
    *(
        Metric(
            f"trn.host_memory_usage.{category}",
            "By",
            "gauge",
            f"Host memory that programs with NeuronCores use for {use}.",
            f'accel_neuron_host_memory_used_bytes{{category="{category}"}}',
            f'accel.neuron.host.memory.usage{{accelmetrics.category="{category}"}}',
            (f"trn.host_total_memory_usage.{category}",),
            integer=True,
        )
        for category, use in HOST_MEMORY.items()
    ),
)

MACHINE = (
    _whole("neuron_device_count", "Chips that the driver sees.", "accel_neuron_devices"),
    _whole("neuroncore_per_device_count", "NeuronCores of each chip.", "accel_neuron_cores_per_device"),
    _whole("neuron_device_memory_size", "Memory of each chip.", "accel_neuron_device_memory_size_bytes", "core"),
    _whole("neuron_runtime_count", "Programs that use NeuronCores.", "accel_neuron_runtimes"),
    *(_ecc(counter, meaning) for counter, meaning in ECC.items()),
    *(
        Metric(
            f"trn.device.{{i}}.power_utilization.{statistic}",
            "%",
            "gauge",
            f"{word} power of the chip in the last minute that the driver has, in percent of the chip's highest.",
            f'accel_neuron_power_ratio{{device="{{i}}",statistic="{statistic}"}}',
            f'accel.neuron.power.utilization{{accelmetrics.neuron_device="{{i}}",accelmetrics.statistic="{statistic}"}}',
            maximum=100,
        )
        for statistic, word in POWER.items()
    ),
)

EXECUTION = (
    *(_execution("execution_summary", name, f"Executions in the tool's last period that {how}.") for name, how in EXECUTIONS.items()),
    *(
        _execution("error_summary", kind, f"Errors of the kind `{kind}` in the tool's last period, according to AWS's documentation.")
        for kind in ERRORS
    ),
    *(_latency(clock, how, percentile) for clock, how in LATENCIES.items() for percentile in PERCENTILES),
)
