"""What the pages about dialects list beside the tables: metrics outside of them, and metrics that are left out, each with the reason."""

from __future__ import annotations

from accelmetrics.dialects.amd import COUNT as AMD_COUNT
from accelmetrics.dialects.nvidia_smi import APPS, INDEX, INFO, MIG_INFO, SUCCESS, XID_ERRORS, XID_TIME
from accelmetrics.dialects.nvitop import CPU, INFO as NVITOP_INFO

AMD_OTHERS = {
    "gpu_clock": "`gpu.{i}.smClock`, `gpu.{i}.memoryClock`, with the label `clock_type`",
    "gpu_max_clock": "`gpu.{i}.maxSmClock`, `gpu.{i}.maxMemoryClock`, with the label `clock_type`",
    AMD_COUNT: "the number of whole devices",
}
"""Metrics outside the table, each with its source."""
AMD_UNMAPPED = {
    "gpu_hbm_temperature": "only the hottest memory stack is read: see `gpu_memory_temperature`",
    "gpu_prof_…": "counters of a profiler, which no source reads",
    "pcie_bandwidth": "not read",
    "pcie_recovery_count": "not read",
    "pcie_replay_rollover_count": "not read",
    "pcie_nack_sent_count": "not read",
    "pcie_nack_received_count": "not read",
    "gpu_ecc_correct_…": "only the sum over the chip's blocks is reported",
    "gpu_xgmi_…": "no key for single links: see `xgmiTxBytesTotal`",
    "gpu_violation_…": "throttling is read, but not its duration",
}
"""Metrics of the exporter that are left out, each with the reason."""
DCGM_LABELS = {
    "DCGM_FI_DRIVER_VERSION": "the driver's version",
}
"""Fields of the default list that are labels of every series."""
_WINDOWED = "counted by dcgm-exporter itself over its own window"
_LABEL_OFF = "a label that is commented out in the list; {}"
DCGM_UNMAPPED = {
    "DCGM_EXP_CLOCK_EVENTS_COUNT": _WINDOWED,
    "DCGM_EXP_XID_ERRORS_COUNT": f"{_WINDOWED}; `xid.{{code}}.errors` counts them since the start",
    "DCGM_EXP_P2P_STATUS": "between pairs of GPUs; no key has it",
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": "not read",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": (
        "a rate in thousands of KiB per second, over DCGM's own interval, listed as a counter: "
        "see DCGM_FI_PROF_NVLINK_TX_BYTES and …RX_BYTES, or `nvlinkTxBytesTotal` and `…RxBytesTotal`"
    ),
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0": "as DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL: see `nvlink.{link}.txBytesTotal` and `…rxBytesTotal`",
    "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "about virtual GPUs of guests, which no backend reads",
    "DCGM_FI_NVML_VERSION": _LABEL_OFF.format("not read"),
    "DCGM_FI_DEV_BRAND": _LABEL_OFF.format("not read"),
    "DCGM_FI_DEV_SERIAL": _LABEL_OFF.format("`list --json` has it"),
    "DCGM_FI_DEV_OEM_INFOROM_VER": _LABEL_OFF.format("not read"),
    "DCGM_FI_DEV_ECC_INFOROM_VER": _LABEL_OFF.format("not read"),
    "DCGM_FI_DEV_POWER_INFOROM_VER": _LABEL_OFF.format("not read"),
    "DCGM_FI_DEV_INFOROM_IMAGE_VER": _LABEL_OFF.format("not read"),
    "DCGM_FI_DEV_VBIOS_VERSION": _LABEL_OFF.format("`list --json` has it"),
}
"""Fields of the default list that are left out, each with the reason."""
_NEVER_FILLED = 'DCGM has no value for it on any GPU (`DcgmCacheManager.cpp` answers "not supported"), and withdrew it: see {}'
DCGM_OLDER = {
    "DCGM_FI_DEV_PCIE_TX_THROUGHPUT": _NEVER_FILLED.format("DCGM_FI_PROF_PCIE_TX_BYTES, or `pcieTxBytesTotal`"),
    "DCGM_FI_DEV_PCIE_RX_THROUGHPUT": _NEVER_FILLED.format("DCGM_FI_PROF_PCIE_RX_BYTES, or `pcieRxBytesTotal`"),
}
"""Fields of the default lists up to 3.3 that dashboards of that time query, each with the reason why it is left out."""
DCGM_NOT_WATCHED = {
    "PMU": "no key has it",
    "MCU": "no key has it",
    "SM": "no key has it",
    "INFOROM": "checking it would read the board's flash memory",
}
"""Health watches of DCGM that are not reported, each with the reason."""
NVIDIA_SMI_OTHERS = {
    INFO: "the device's identity, in the labels `name`, `index`, `driver_version`, `cuda_version`, `vbios_version`, `pci_bus_id`, `serial`",
    INDEX: "the device's index",
    XID_ERRORS: "`gpu.{i}.xid.{code}.errors`, the code as label `xid`",
    XID_TIME: "time of the first reading with the latest error of the code",
    APPS: "the number of compute processes on the device",
    SUCCESS: "1 while every source that has or should have devices can be read",
    MIG_INFO: "the instance's identity, in the labels `mig_uuid`, `gpu_instance_id`, `profile`",
}
"""Metrics outside the tables, each with its source."""
NVIDIA_SMI_UNMAPPED = {
    "compute_app_info": "process series exist only in accelmetrics' own names, with `processes=`",
    "compute_app_used_memory_bytes": "as `compute_app_info`",
    "compute_apps_last_collect_success": "as `compute_app_info`",
}
"""Metrics in the exporter's dashboards that are left out, without their prefix, each with the reason."""
NVITOP_OTHERS = {
    CPU: "the mean of `cpu.{i}.cpu_percent`",
    NVITOP_INFO: "the number of whole devices, and their driver in the labels `device_count`, `driver_version`, `cuda_driver_version`",
}
"""Metrics outside the tables, each with its source."""
NVITOP_UNMAPPED = {
    "host_uptime_Second": "not read",
    "gpu_nvlink_tx_throughput_MiBps": "only totals of single links are read: see `nvlink.{link}.txBytesTotal`",
    "gpu_nvlink_mean_tx_throughput_MiBps": "as above",
    "process_…": "process series exist only in accelmetrics' own names, with `processes=`",
}
"""Metrics of the exporter that are left out, each with the reason."""
