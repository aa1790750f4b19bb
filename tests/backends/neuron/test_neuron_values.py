"""Every key, from a report that a real child prints."""

from __future__ import annotations

import pytest

from accelmetrics import Sampler
from accelmetrics.schemas.catalogue import expected_keys, expected_names
from accelmetrics.schemas.errors import Reason
from accelmetrics.schemas.snapshot import Snapshot
from tests.backends.neuron.machine import once
from tests.simulators.neuron import NeuronMonitorStandIn, SysfsTree, chip_errors, hardware, report, runtime

# Keys of W&B's collector for two programs: one on core 0, one on cores 0 and 1 (see the stand-in's numbers).
WANDB = {
    "trn.0.neuroncore_utilization": 42.5,
    "trn.1.neuroncore_utilization": 80.25,
    "trn.host_total_memory_usage": 15_200_020,
    "trn.neuron_device_total_memory_usage": 20_030,
    "trn.host_memory_usage.application_memory": 14_000_002,
    "trn.host_memory_usage.constants": 80_004,
    "trn.host_memory_usage.dma_buffers": 1_000_006,
    "trn.host_memory_usage.tensors": 120_008,
    "trn.0.neuroncore_memory_usage.constants": 2000,
    "trn.0.neuroncore_memory_usage.model_code": 2002,
    "trn.0.neuroncore_memory_usage.model_shared_scratchpad": 2004,
    "trn.0.neuroncore_memory_usage.runtime_memory": 2006,
    "trn.0.neuroncore_memory_usage.tensors": 2008,
    "trn.1.neuroncore_memory_usage.constants": 2000,
    "trn.1.neuroncore_memory_usage.model_code": 2001,
    "trn.1.neuroncore_memory_usage.model_shared_scratchpad": 2002,
    "trn.1.neuroncore_memory_usage.runtime_memory": 2003,
    "trn.1.neuroncore_memory_usage.tensors": 2004,
}
DOCUMENTED = {
    "trn.host_total_memory_usage.application_memory": 14_000_002,
    "trn.host_total_memory_usage.constants": 80_004,
    "trn.host_total_memory_usage.dma_buffers": 1_000_006,
    "trn.host_total_memory_usage.tensors": 120_008,
}
BESIDES = {
    "trn.0.flops": 2_000_000_000,
    "trn.1.flops": 2_000_000_000,
    "trn.neuron_device_count": 1,
    "trn.neuroncore_per_device_count": 2,
    "trn.neuron_device_memory_size": 34_359_738_368,
    "trn.neuron_runtime_count": 2,
    "trn.device.0.mem_ecc_corrected": 0,
    "trn.device.0.mem_ecc_uncorrected": 1,
    "trn.device.0.sram_ecc_uncorrected": 2,
    "trn.device.0.sram_ecc_corrected": 3,
    "trn.execution_summary.completed": 22,
    "trn.execution_summary.completed_with_err": 0,
    "trn.execution_summary.completed_with_num_err": 2,
    "trn.execution_summary.timed_out": 4,
    "trn.execution_summary.incorrect_input": 6,
    "trn.execution_summary.failed_to_queue": 8,
    "trn.error_summary.generic": 0,
    "trn.error_summary.numerical": 2,
    "trn.error_summary.transient": 4,
    "trn.error_summary.model": 6,
    "trn.error_summary.runtime": 8,
    "trn.error_summary.hardware": 10,
    "trn.total_latency.p50": 0.009,
    "trn.total_latency.p99": 0.01,
    "trn.device_latency.p50": 0.0045,
    "trn.device_latency.p99": 0.005,
}
SLOW = {"p50": 0.009, "p99": 0.01}


@pytest.fixture
def busy(tool: NeuronMonitorStandIn) -> Snapshot:
    tool.tell(report=report([runtime(11, {0: 30.0}, completed=5, latency=SLOW), runtime(12)]))
    return once()


def test_every_key_has_its_value_and_there_are_no_others(busy: Snapshot) -> None:
    assert busy.metrics == WANDB | DOCUMENTED | BESIDES
    assert busy.unavailable.keys() == {"trn.device.0.mem_ecc_repairable_uncorrected"}


def test_counts_and_bytes_are_whole_numbers(busy: Snapshot) -> None:
    fractions = {key for key, value in busy.metrics.items() if isinstance(value, float)}
    assert fractions == {key for key in busy.metrics if key.endswith("_utilization") or "latency" in key}


def test_the_stray_bracket_of_the_documentation_is_nowhere(busy: Snapshot) -> None:
    assert "trn.neuron_device_total_memory_usage" in busy.metrics
    assert not [key for key in (*busy.metrics, *busy.unavailable) if ")" in key]


def test_a_core_is_a_device_under_the_tools_number(busy: Snapshot) -> None:
    assert [(device.key, device.vendor, device.vendor_index, device.name) for device in busy.devices] == [
        ("trn.0", "aws", 0, "trainium1"),
        ("trn.1", "aws", 1, "trainium1"),
    ]
    assert busy.devices[1].metrics.neuroncore_utilization == 80.25
    (status,) = busy.backends
    assert (status.name, status.status, status.source) == ("neuron", "ok", "neuron-monitor")
    assert status.age_seconds is not None and status.age_seconds >= 0


def test_it_works_by_name_and_with_every_option_at_its_default(tool: NeuronMonitorStandIn) -> None:
    tool.tell(report=report([runtime(12)]))
    with Sampler(["neuron"]) as made:
        assert made.sample().metrics["trn.1.neuroncore_utilization"] == 80.25
    assert tool.starts[0]["told"]["period"] == "1s"


def test_many_chips(tool: NeuronMonitorStandIn) -> None:
    lit = {core: float(core) for core in (3, 31)}
    tool.tell(report=report([runtime(12, lit)], machine=hardware(16, 2), chips=[chip_errors(chip) for chip in range(16)]))
    snapshot = once()
    assert len(snapshot.devices) == 32
    assert snapshot.metrics["trn.31.neuroncore_utilization"] == 31.0
    assert snapshot.metrics["trn.device.15.sram_ecc_corrected"] == 153
    assert snapshot.unavailable["trn.30.neuroncore_utilization"].reason == Reason.NOT_IN_USE
    assert snapshot.unavailable["trn.30.neuroncore_utilization"].detail == "no program uses core 30"


@pytest.mark.parametrize("runtimes", [[], None], ids=["empty", "null"])
def test_an_idle_machine_has_no_zeros(tool: NeuronMonitorStandIn, runtimes: list[object] | None) -> None:
    tool.tell(report=report(runtimes))  # type: ignore[arg-type]
    snapshot = once()
    names = [f"trn.{core}.{name}" for core in (0, 1) for name in expected_names("neuron")]
    measured = {key for key in snapshot.metrics if not key.startswith("trn.device.")}
    assert measured == {
        "trn.neuron_device_count",
        "trn.neuroncore_per_device_count",
        "trn.neuron_device_memory_size",
        "trn.neuron_runtime_count",
    }
    for key in (*names, *set(expected_keys("neuron")) - measured):
        assert snapshot.unavailable[key] == (Reason.NOT_IN_USE, "no program uses the Neuron devices")
    assert snapshot.metrics["trn.neuron_runtime_count"] == 0
    assert snapshot.backends[0].status == "ok"


def test_nothing_executed_is_no_latency_of_zero(tool: NeuronMonitorStandIn) -> None:
    tool.tell(report=report([runtime(12, completed=0, latency=None)]))
    snapshot = once()
    assert snapshot.metrics["trn.execution_summary.completed"] == 0
    assert snapshot.unavailable["trn.total_latency.p50"].reason == Reason.NOT_IN_USE


def test_what_an_older_tool_leaves_out_is_said(tool: NeuronMonitorStandIn) -> None:
    """No breakdown, no hardware section but the counts, no rate of operations."""
    program = runtime(12)
    del program["report"]["memory_used"]["neuron_runtime_used_bytes"]["usage_breakdown"]
    for core in program["report"]["neuroncore_counters"]["neuroncores_in_use"].values():
        del core["flops"]
    machine = {"neuron_device_count": 1, "neuroncore_per_device_count": 2, "error": ""}
    tool.tell(report=report([program], machine=machine))
    snapshot = once()
    assert snapshot.metrics["trn.0.neuroncore_utilization"] == 12.5
    assert snapshot.metrics["trn.host_total_memory_usage"] == 7_600_010
    for key in (
        "trn.0.flops",
        "trn.0.neuroncore_memory_usage.tensors",
        "trn.host_memory_usage.tensors",
        "trn.host_total_memory_usage.tensors",
        "trn.neuron_device_memory_size",
    ):
        assert snapshot.unavailable[key].reason == Reason.NOT_SUPPORTED


def test_joined_cores_are_the_logical_ones(tool: NeuronMonitorStandIn) -> None:
    """trn2 with two physical cores to a logical one: what stands beside the number is no core of its own."""
    program = runtime(12, {5: 42.0})
    cores = program["report"]["neuroncore_counters"]["neuroncores_in_use"]
    cores["5"]["v3d"] = {"nc_v3.10": {"neuroncore_utilization": 21.0}, "nc_v3.11": {"neuroncore_utilization": 63.0}}
    cores["5"]["effective_flops"] = cores["5"].pop("flops")
    machine = hardware(2, 4) | {"neuron_device_type": "trainium2", "neuroncore_version": "v3d", "logical_neuroncore_config": 2}
    tool.tell(report=report([program], machine=machine))
    snapshot = once()
    assert [device.vendor_index for device in snapshot.devices] == list(range(8))
    assert snapshot.metrics["trn.5.neuroncore_utilization"] == 42.0
    assert snapshot.metrics["trn.5.flops"] == 6_000_000_000
    assert snapshot.devices[5].architecture == "v3d"


def test_the_power_that_the_tool_does_not_print_is_the_drivers(tool: NeuronMonitorStandIn, tree: SysfsTree) -> None:
    """Read beside the tool, which says which cores there are."""
    tree.add_chip(0)
    tree.power(0, 10.25, 80.5, 42)
    tool.tell(report=report([runtime(12)]))
    snapshot = once()
    assert (snapshot.metrics["trn.device.0.power_utilization.max"], snapshot.backends[0].source) == (80.5, "neuron-monitor")
    assert snapshot.metrics["trn.neuron_device_memory_size"] == 34_359_738_368
