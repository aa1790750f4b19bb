"""ClearML's resource monitoring, from any vendor's accelerators: `import for_clearml` before `Task.init()`."""

from clearml.utilities.resource_monitor import ResourceMonitor

import accelmetrics


def read(self):
    stats = {}
    devices = [one for one in accelmetrics.sample("accelerators", max_age=0.5).devices if one.parent is None]
    for place, device in enumerate(devices):  # an NPU beside a GPU has the same index
        now, name = device.metrics, f"gpu_{place}"
        used, total = now.memory_used_bytes, now.memory_total_bytes
        stats |= {f"{name}_utilization": now.utilization, f"{name}_temperature": now.temperature, f"{name}_power_draw": now.power_watts}
        stats |= {f"{name}_mem_usage": now.memory_percent, f"{name}_mem_used_gb": used and used / 2**30}
        stats[f"{name}_mem_free_gb"] = None if used is None or total is None else (total - used) / 2**30
    return {name: value for name, value in stats.items() if value is not None}


ResourceMonitor._get_gpu_stats = read
