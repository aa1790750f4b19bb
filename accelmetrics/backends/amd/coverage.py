"""Where each metric is read: files of the kernel driver first, then the keys that ``rocm-smi`` prints.

``hwmon:`` is a file below ``hwmon/hwmonN``, ``gpu_metrics:`` a field of that binary table; a pace is that of slow files.
"""

from accelmetrics.backends.contract import Coverage

COVERAGE = Coverage(
    devices={
        "gpu": 'gpu_busy_percent; "GPU use (%)"',
        "memory": 'mem_busy_percent; "GPU Memory Read/Write Activity (%)", ROCm up to 6.1.1: "GPU memory use (%)"',
        "memoryReadWriteActivity": "as `memory`",
        "memoryAllocated": 'memoryAllocatedBytes / memoryTotalBytes; where no bytes are printed, "GPU Memory Allocated (VRAM%)"',
        "memoryAllocatedBytes": (
            'mem_info_vram_used (a partition: used_memory of its compute node); "VRAM Total Used Memory (B)"; an APU: with '
            'mem_info_gtt_used; "GTT Total Used Memory (B)"'
        ),
        "memoryTotalBytes": 'mem_info_vram_total; "VRAM Total Memory (B)"; an APU: with mem_info_gtt_total; "GTT Total Memory (B)"',
        "memoryFreeBytes": "memoryTotalBytes - memoryAllocatedBytes",
        "memoryOverDrive": 'pp_mclk_od, 10 s; "GPU Memory OverDrive value (%)"',
        "temp": 'hwmon: temp*_input labelled edge; "Temperature (Sensor edge) (C)"; where there is no edge sensor, junction',
        "memoryTemp": 'hwmon: temp*_input labelled mem, else the hottest HBM_n; "Temperature (Sensor memory) (C)"',
        "hotspotTemp": 'hwmon: temp*_input labelled junction; "Temperature (Sensor junction) (C)"',
        "tempLimit.slowdown": "hwmon: temp*_crit of `temp`'s sensor, 10 s",
        "tempLimit.shutdown": "hwmon: temp*_emergency of `temp`'s sensor, 10 s",
        "fanSpeed": 'hwmon: pwm1 / 255; "Fan speed (%)"',
        "powerWatts": 'hwmon: power1_average, else power1_input; "Average Graphics Package Power (W)", else "Current Socket …"',
        "enforcedPowerLimitWatts": 'hwmon: power1_cap, 10 s; "Max Graphics Package Power (W)"',
        "powerPercent": "powerWatts / enforcedPowerLimitWatts",
        "energyJoules": 'hwmon: energy1_input, else gpu_metrics: energy_accumulator / 65536; "Accumulated Energy (uJ)"',
        "smClock": 'hwmon: freq1_input (sclk), else the * in pp_dpm_sclk; "sclk clock speed:"',
        "memoryClock": 'hwmon: freq2_input (mclk), else the * in pp_dpm_mclk; "mclk clock speed:"',
        "maxSmClock": "highest level of pp_dpm_sclk, 10 s",
        "maxMemoryClock": "highest level of pp_dpm_mclk, 10 s",
        "throttle.swPowerCap": (
            "gpu_metrics: ppt_residency_acc rose since the last reading (MI300), else indep_throttle_status, bits 0 to 7"
        ),
        "throttle.swThermalSlowdown": (
            "gpu_metrics: socket_thm_ or hbm_thm_residency_acc rose since the last reading (MI300), else "
            "indep_throttle_status, bits 32 to 43"
        ),
        "throttle.hwThermalSlowdown": (
            "gpu_metrics: prochot_ or vr_thm_residency_acc rose since the last reading (MI300), else indep_throttle_status, bits 44 to 47"
        ),
        "throttle.currentLimit": "gpu_metrics: indep_throttle_status, bits 16 to 23",
        "correctedMemoryErrors": "ras/*_err_count: ce over all blocks, 10 s; rocm-smi: none",
        "uncorrectedMemoryErrors": "ras/*_err_count: ue over all blocks, 10 s; rocm-smi: none",
        "unCorrectedMemoryErrors": "ras/*_err_count: ue over all blocks, 10 s; rocm-smi: none",
        "pcieLinkGen": "current_link_speed of the card's link to its slot, 10 s",
        "pcieLinkWidth": "current_link_width of the card's link to its slot, 10 s",
        "maxPcieLinkGen": "max_link_speed of the card's link to its slot, 10 s",
        "maxPcieLinkWidth": "max_link_width of the card's link to its slot, 10 s",
        "pcieReplays": 'pcie_replay_count, 10 s; "PCIe Replay Count"',
        "xgmiTxBytesTotal": "gpu_metrics: xgmi_write_data_acc over all links, KiB × 1024",
        "xgmiRxBytesTotal": "gpu_metrics: xgmi_read_data_acc over all links, KiB × 1024",
    },
    partitions={
        "gpu": 'gpu_busy_percent; "GPU use (%)"',
        "memoryAllocated": 'memoryAllocatedBytes / memoryTotalBytes; where no bytes are printed, "GPU Memory Allocated (VRAM%)"',
        "memoryAllocatedBytes": (
            'mem_info_vram_used (a partition: used_memory of its compute node); "VRAM Total Used Memory (B)"; an APU: with '
            'mem_info_gtt_used; "GTT Total Used Memory (B)"'
        ),
        "memoryTotalBytes": 'mem_info_vram_total; "VRAM Total Memory (B)"; an APU: with mem_info_gtt_total; "GTT Total Memory (B)"',
        "memoryFreeBytes": "memoryTotalBytes - memoryAllocatedBytes",
    },
    processes={
        "gpu": "drm-engine-gfx and drm-engine-compute in /proc/*/fdinfo, 1 s",
        "memoryAllocated": "drm-memory-vram in /proc/*/fdinfo (an APU: with drm-memory-gtt), 1 s / total",
        "memoryAllocatedBytes": "drm-memory-vram in /proc/*/fdinfo (an APU: with drm-memory-gtt), 1 s",
        "temp": "as `gpu.{i}.temp`",
        "powerWatts": "as `gpu.{i}.powerWatts`",
        "enforcedPowerLimitWatts": "as `gpu.{i}.enforcedPowerLimitWatts`",
        "powerPercent": "as `gpu.{i}.powerPercent`",
    },
)
