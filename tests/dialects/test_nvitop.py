"""``nvitop``: the metrics of nvitop-exporter."""

from __future__ import annotations

import pytest

from accelmetrics.dialects.contract import series
from accelmetrics.dialects.nvitop import DEVICE, HOST, INSTANCES
from accelmetrics.dialects.registry import dialect
from tests.dialects.listed import NVITOP_OTHERS
from tests.dialects.scenes import GPU_0, H100, HOST as MACHINE, instance, nvidia, record

SERVED = frozenset(
    """
host_cpu_percent_Percentage host_virtual_memory_total_MiB host_virtual_memory_used_MiB host_virtual_memory_percent_Percentage
host_swap_memory_used_MiB host_swap_memory_percent_Percentage host_load_average_1m_Percentage host_load_average_5m_Percentage
host_load_average_15m_Percentage host_net_io_tx_data_MiB host_net_io_rx_data_MiB host_disk_io_read_data_MiB host_disk_io_write_data_MiB
host_disk_usage_used_MiB host_disk_usage_percent_Percentage gpu_utilization_Percentage gpu_memory_utilization_Percentage
gpu_encoder_utilization_Percentage gpu_decoder_utilization_Percentage gpu_memory_total_MiB gpu_memory_used_MiB gpu_memory_free_MiB
gpu_memory_percent_Percentage gpu_clock_sm_MHz gpu_clock_memory_MHz gpu_clock_graphics_MHz gpu_clock_video_MHz gpu_power_usage_W
gpu_power_limit_W gpu_temperature_C gpu_fan_speed_Percentage gpu_pcie_tx_throughput_MiBps gpu_pcie_rx_throughput_MiBps
gpu_nvlink_total_tx_throughput_MiBps gpu_nvlink_total_rx_throughput_MiBps nvitop_info
""".split()  # noqa: SIM905 a column of names reads better
)
"""Of what the exporter serves."""


def test_names_are_the_exporter_s() -> None:
    names = {row.name for row in DEVICE} | {name for name, *_ in (*HOST.values(), *INSTANCES.values())} | set(NVITOP_OTHERS)
    assert names == SERVED


def test_a_device_has_the_exporter_s_units_and_labels() -> None:
    """MiB, MiB a second, percent, watts; a MIG instance is numbered after its GPU."""
    board = nvidia(0)
    points = list(dialect("nvitop").points(record({board: GPU_0, instance(board, 1): {"memoryTotalBytes": 2**30}})))
    found = {point.name: point for point in points if point.labels.get("index") == "0"}
    values = {name: point.value for name, point in found.items()}
    assert values["gpu_memory_total_MiB"] == 81920
    assert values["gpu_memory_used_MiB"] == 20480.5
    assert values["gpu_pcie_tx_throughput_MiBps"] == pytest.approx(1_000_000 / 2**20)
    assert (values["gpu_utilization_Percentage"], values["gpu_power_limit_W"], values["gpu_clock_sm_MHz"]) == (85.5, 700, 1980)
    assert found["gpu_temperature_C"].labels == {
        "hostname": "node-1",
        "index": "0",
        "devicename": H100,
        "uuid": "GPU-18ef0d6a-0000-0000-0000-000000000000",
    }
    assert [point.value for point in points if point.labels.get("index") == "0:1"] == [1024]


def test_the_machine_is_told_with_its_disks_and_file_systems() -> None:
    """Its processors as one share, memory, load and traffic in the exporter's units; what it does not say is left out."""
    host = {**MACHINE, "memory.totalBytes": 2**30, "memory.usedBytes": 2**28, "load.1m": 1.5, "network.recv": 3 * 2**20}
    found = {series(point.name, point.labels): point.value for point in dialect("nvitop").points(record({}, host))}
    node = 'hostname="node-1"'
    assert found == {
        f"host_cpu_percent_Percentage{{{node}}}": 40.0,
        f"host_virtual_memory_percent_Percentage{{{node}}}": 25.0,
        f"host_virtual_memory_total_MiB{{{node}}}": 1024,
        f"host_virtual_memory_used_MiB{{{node}}}": 256,
        f"host_load_average_1m_Percentage{{{node}}}": 1.5,
        f"host_net_io_tx_data_MiB{{{node}}}": 1 / 1024,
        f"host_net_io_rx_data_MiB{{{node}}}": 3,
        f'host_disk_usage_used_MiB{{{node},mountpoint="/data"}}': 10.5 * 1024,
        f'host_disk_io_read_data_MiB{{{node},partition="nvme0n1"}}': 1.0,
    }


def test_the_driver_is_told_once() -> None:
    """Of the whole devices alone."""
    board = nvidia(0)
    points = dialect("nvitop").points(record({board: {"temp": 40}, instance(board, 1): {"smActive": 5}, nvidia(1): {"temp": 41}}))
    (info,) = (point for point in points if point.name == "nvitop_info")
    assert info.labels == {"hostname": "node-1", "device_count": "2", "driver_version": "570.124.06"}
