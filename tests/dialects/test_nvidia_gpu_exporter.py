"""``nvidia_smi``: the metrics of nvidia_gpu_exporter."""

from __future__ import annotations

from accelmetrics.dialects.contract import Point
from accelmetrics.dialects.nvidia_smi import BESIDE, QUERIED
from accelmetrics.dialects.registry import dialect
from accelmetrics.schemas.identity import BackendStatus, DeviceProcess, Status
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import Snapshot
from tests.dialects.scenes import GPU_0, TIME_NS, amd, instance, nvidia, record

UUID = "18ef0d6a-0000-0000-0000-000000000000"
SERVED = frozenset(
    """
clocks_current_graphics_clock_hz clocks_current_memory_clock_hz clocks_current_sm_clock_hz clocks_event_reasons_applications_clocks_setting
clocks_event_reasons_gpu_idle clocks_event_reasons_hw_power_brake_slowdown clocks_event_reasons_hw_slowdown
clocks_event_reasons_hw_thermal_slowdown clocks_event_reasons_sw_power_cap clocks_event_reasons_sw_thermal_slowdown
clocks_event_reasons_sync_boost clocks_max_graphics_clock_hz clocks_max_memory_clock_hz clocks_max_sm_clock_hz
ecc_errors_corrected_aggregate_device_memory ecc_errors_corrected_aggregate_total ecc_errors_corrected_volatile_device_memory
ecc_errors_corrected_volatile_total ecc_errors_uncorrected_aggregate_device_memory ecc_errors_uncorrected_aggregate_total
ecc_errors_uncorrected_volatile_device_memory ecc_errors_uncorrected_volatile_total enforced_power_limit_watts fabric_state
fan_speed_ratio gpu_recovery_action memory_free_bytes memory_reserved_bytes memory_total_bytes memory_used_bytes
pcie_link_gen_current pcie_link_gen_max pcie_link_width_current pcie_link_width_max power_draw_watts power_limit_watts pstate
remapped_rows_correctable remapped_rows_failure remapped_rows_pending remapped_rows_uncorrectable temperature_gpu temperature_memory
utilization_decoder_ratio utilization_encoder_ratio utilization_gpu_ratio utilization_memory_ratio
energy_joules_total pcie_throughput_tx_bytes_per_second pcie_throughput_rx_bytes_per_second
clocks_current_video_clock_hz compute_mode mig_mode_current persistence_mode power_default_limit_watts power_draw_instant_watts
retired_pages_dbe retired_pages_sbe temperature_gpu_tlimit utilization_jpeg_ratio utilization_ofa_ratio
""".split()  # noqa: SIM905 a column of names reads better
)
"""Of what the exporter serves, without ``nvidia_smi_``."""


def told(one: Record) -> dict[str, Point]:
    """By name."""
    return {point.name: point for point in dialect("nvidia_smi").points(one)}


def test_names_are_those_that_the_exporter_makes_of_the_query() -> None:
    """Fields of the tool in base units, and what the exporter reads beside them."""
    assert {row.name.removeprefix("nvidia_smi_") for row in (*QUERIED, *BESIDE)} == SERVED


def test_values_are_in_base_units_and_exact() -> None:
    """Ratios, hertz and bytes, with the UUID as the only label; nothing is cut off, as the query does."""
    found = told(record({nvidia(0): GPU_0}))
    values = {name.removeprefix("nvidia_smi_"): point.value for name, point in found.items()}
    assert values["utilization_gpu_ratio"] == 0.855
    assert values["clocks_current_sm_clock_hz"] == 1_980_000_000
    assert values["memory_used_bytes"] == GPU_0["memoryAllocatedBytes"]
    assert values["power_draw_watts"] == 300.25
    assert (values["temperature_gpu"], values["fan_speed_ratio"], values["index"]) == (65, 0.3, 0)
    point = found["nvidia_smi_energy_joules_total"]
    assert (point.labels, point.kind, point.value) == ({"uuid": UUID}, "counter", 1234.567)
    assert found["nvidia_smi_ecc_errors_corrected_volatile_device_memory"].kind == "gauge"


def test_what_a_device_is_stands_in_one_series() -> None:
    """The others are joined with it by ``uuid``; a device without a UUID has what is unique of it."""
    info = told(record({nvidia(0): GPU_0}))["nvidia_smi_gpu_info"]
    assert info.labels == {
        "uuid": UUID,
        "name": "NVIDIA H100 80GB HBM3",
        "index": "0",
        "driver_version": "570.124.06",
        "pci_bus_id": "00000000:C0:00.0",
    }
    assert told(record({amd(1): {"temp": 40}}))["nvidia_smi_temperature_gpu"].labels == {"uuid": "0x5a"}


def test_instances_have_their_own_names_and_share_memory_once() -> None:
    """Two compute instances of one GPU instance: two of them are listed, and their memory once."""
    board = nvidia(0)
    parts = [instance(board, number, 5, f"{number}c.3g.40gb") for number in (1, 2)]
    one = record({board: {"temp": 40}, parts[0]: {"memoryTotalBytes": 7, "smActive": 50.0}, parts[1]: {"memoryTotalBytes": 7}})
    points = [point for point in dialect("nvidia_smi").points(one) if "_mig_" in point.name]
    assert [(point.name.removeprefix("nvidia_smi_mig_"), point.value, point.labels.get("profile", "")) for point in points] == [
        ("info", 1, "1c.3g.40gb"),
        ("memory_total_bytes", 7, ""),
        ("sm_activity_ratio", 0.5, ""),
        ("info", 1, "2c.3g.40gb"),
    ]
    assert {(point.labels["uuid"], point.labels["gpu_instance_id"]) for point in points} == {(UUID, "5")}


def test_an_xid_error_has_the_time_of_the_reading_that_first_held_it() -> None:
    """The time stays until the code occurs again; each exporter remembers for itself."""
    names = dialect("nvidia_smi")
    assert names is not dialect("nvidia_smi")
    times = []
    for second, count in enumerate((1, 1, 2)):
        values = {"xidErrors": count, "xid.79.errors": count}
        points = names.points(record({nvidia(0): values}, time_ns=TIME_NS + second * 10**9))
        found = {point.name: point for point in points}
        assert found["nvidia_smi_xid_errors_total"].labels == {"uuid": UUID, "xid": "79"}
        times.append(found["nvidia_smi_xid_last_timestamp_seconds"].value - TIME_NS / 1e9)
    assert times == [0.0, 0.0, 2.0]


def test_processes_are_counted_and_sources_judged() -> None:
    """Graphics alone is no computing; one source that fails is no success, one that is not there says nothing."""
    board = nvidia(0)
    processes = {board.key: (DeviceProcess(1, "compute"), DeviceProcess(2, "graphics"), DeviceProcess(3, "compute+graphics"))}

    def taken(*backends: tuple[str, Status]) -> dict[str, Point]:
        statuses = [BackendStatus(name, status) for name, status in backends]
        return told(Record(Snapshot(TIME_NS, "node-1", {"gpu.0.temp": 40}, (board,), {}, statuses, processes)))

    found = taken(("nvidia", "ok"), ("amd", "absent"), ("host", "failed"))
    assert (found["nvidia_smi_compute_apps"].value, found["nvidia_smi_last_collect_success"].value) == (2, 1)
    assert taken(("nvidia", "ok"), ("amd", "failed"))["nvidia_smi_last_collect_success"].value == 0
