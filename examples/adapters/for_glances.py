"""The GPUs of glances, from any vendor's accelerators: `python -c "import for_glances, glances; glances.main()"`."""

from glances.plugins import gpu

import accelmetrics


class Accelerators:
    def get_device_stats(self):
        names = {"proc": "utilization", "mem": "memory_percent", "temperature": "temperature", "fan_speed": "fan_speed"}
        devices = [one for one in accelmetrics.sample("accelerators", max_age=0.5).devices if one.parent is None]
        return [
            {"key": "gpu_id", "gpu_id": f"{one.vendor}{place}", "name": one.name}
            | {field: getattr(one.metrics, metric, None) for field, metric in names.items()}
            for place, one in enumerate(devices)  # an NPU beside a GPU has the same index
        ]

    def exit(self):
        pass


gpu.NvidiaGPU = Accelerators
gpu.AmdGPU = None  # its readings are among these; Intel's and ARM's stay glances' own
