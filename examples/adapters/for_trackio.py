"""trackio's system metrics, from any vendor's accelerators: `import for_trackio` before `trackio.init()`."""

import trackio
import trackio.gpu

import accelmetrics


def read(device=None, all_gpus=False):
    found = {}
    devices = accelmetrics.sample("accelerators", max_age=0.5, visible=not all_gpus and "renumber").devices
    listed = {one.key for one in devices}  # a program that has a MIG instance sees that, and not its GPU
    for place, one in enumerate(one for one in devices if one.parent not in listed):  # an NPU beside a GPU has the same index
        if device in (None, place):
            now, used, total = one.metrics, one.metrics.memory_used_bytes, one.metrics.memory_total_bytes
            values = {"utilization": now.utilization, "power": now.power_watts, "temp": now.temperature}
            values |= {"allocated_memory": used and used / 2**30, "total_memory": total and total / 2**30}
            values["memory_usage"] = None if now.memory_percent is None else now.memory_percent / 100
            found |= {f"gpu/{place}/{name}": value for name, value in values.items() if value is not None}
    return found


def count():
    places = range(sum(device.parent is None for device in accelmetrics.devices("accelerators")))
    return len(places), [*places]


trackio.gpu.collect_gpu_metrics = read
trackio.gpu.get_all_gpu_count = trackio.gpu.get_gpu_count = count
trackio.gpu_available = trackio.gpu.gpu_available = lambda: count()[0] > 0
