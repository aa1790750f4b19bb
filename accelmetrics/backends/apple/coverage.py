"""Where each metric is read: macmon, else ioreg, else powermetrics."""

from accelmetrics.backends.contract import Coverage

COVERAGE = Coverage(
    devices={
        "gpu": 'macmon gpu_active_ratio (0.8); else ioreg "Device Utilization %"; else powermetrics "GPU HW active residency"',
        "memoryAllocated": "memoryAllocatedBytes / memoryTotalBytes",
        "memoryAllocatedBytes": 'ioreg IOAccelerator "In use system memory", a part of the host\'s',
        "memoryTotalBytes": "the host's memory: macmon memory.ram_total, else sysctl hw.memsize",
        "temp": "macmon temp.gpu_temp_avg",
        "powerWatts": 'macmon gpu_power, the GPU alone; else powermetrics "GPU Power"',
        "powerPercent": "none: no power limit is published",
        "scaledUtilization": "macmon gpu_scaled_ratio; up to 0.7 gpu_usage[1]",
        "freq": 'macmon gpu_freq_mhz, up to 0.7 gpu_usage[0]; powermetrics "GPU HW active frequency"',
    },
    machine={
        "cpu.avg_temp": "macmon temp.cpu_temp_avg, the mean over the cores",
        "cpu.powerWatts": 'macmon cpu_power; powermetrics "CPU Power"',
        "cpu.ecpu_percent": "macmon ecpu_scaled_ratio; up to 0.7 ecpu_usage[1]",
        "cpu.ecpu_freq": 'macmon ecpu_freq_mhz, up to 0.7 ecpu_usage[0]; powermetrics "E-Cluster HW active frequency"',
        "cpu.pcpu_percent": "macmon pcpu_scaled_ratio; up to 0.7 pcpu_usage[1]",
        "cpu.pcpu_freq": 'macmon pcpu_freq_mhz, up to 0.7 pcpu_usage[0]; powermetrics "P-Cluster HW active frequency"',
        "ane.power": 'macmon ane_power; powermetrics "ANE Power"',
        "system.powerWatts": "macmon sys_power",
        "soc.powerWatts": 'macmon all_power; powermetrics "Combined Power"',
        "memory.used": "macmon memory.ram_usage",
        "memory.used_percent": "macmon memory.ram_usage / ram_total",
        "swap.used": "macmon memory.swap_usage",
    },
)
