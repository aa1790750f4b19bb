"""SwanLab's hardware charts, from any vendor's accelerators: `import for_swanlab` before `swanlab.init()`."""

from swanlab.sdk.internal.probe_python.hardware_vendor.accelerator import ACCELERATOR_REGISTRY
from swanlab.sdk.internal.probe_python.protocol import AcceleratorProtocol
from swanlab.sdk.internal.probe_python.typings import AcceleratorSnapshot, DeviceSnapshot, SystemScalar

import accelmetrics

CHARTS = {
    "pct": ("GPU Utilization (%)", "utilization"),
    "mem.pct": ("GPU Memory Allocated (%)", "memory_percent"),
    "temp": ("GPU Temperature (°C)", "temperature"),
    "power": ("GPU Power Usage (W)", "power_watts"),
}


class Accelerators(AcceleratorProtocol):
    def collect(self):
        devices = [one for one in accelmetrics.sample("accelerators", max_age=0.5).devices if one.parent is None]
        charts = [(place, one, key, metric) for place, one in enumerate(devices) for key, (_, metric) in CHARTS.items()]
        read = [(f"gpu.{place}.{key}", getattr(one.metrics, metric)) for place, one, key, metric in charts]
        return [(key, value) for key, value in read if value is not None]

    @classmethod
    def new(cls, shim):
        indices = next(config for config in shim.accelerators if config.vendor == "nvidia").device_indices
        charts = [(index, key, chart) for index in indices for key, (chart, _) in CHARTS.items()]
        return cls(shim), [SystemScalar(key=f"gpu.{index}.{key}", name=f"GPU {index}", chart_name=chart) for index, key, chart in charts]

    @staticmethod
    def get():
        found = [one for one in accelmetrics.devices("accelerators") if one.parent is None]
        return AcceleratorSnapshot(vendor="nvidia", devices=[DeviceSnapshot(index=place, name=one.name) for place, one in enumerate(found)])


ACCELERATOR_REGISTRY.clear()
ACCELERATOR_REGISTRY["nvidia"] = Accelerators  # SwanLab knows no vendor that it has not listed
