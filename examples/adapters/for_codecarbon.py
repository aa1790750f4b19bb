"""codecarbon's energy of GPUs, from any vendor's accelerators: `import for_codecarbon` before `EmissionsTracker()`."""

from types import SimpleNamespace

from codecarbon.core import gpu
from codecarbon.core.gpu_device import GPUDevice

import accelmetrics


class Accelerator(GPUDevice):
    @property
    def now(self):
        return next(one for one in accelmetrics.sample("accelerators", max_age=0.5).devices if one.key == self.handle.key).metrics

    def _get_memory_info(self):
        used, total = self.now.memory_used_bytes, self.now.memory_total_bytes
        return SimpleNamespace(used=used, total=total, free=None if None in (used, total) else total - used)

    def _get_total_energy_consumption(self):  # in millijoules; None has codecarbon add up the power
        joules = self.now.energy_joules
        return None if joules is None else joules * 1000

    def get_gpu_utilization_lightweight(self):  # whose mean takes no None
        return {name: value for name, value in super().get_gpu_utilization_lightweight().items() if value is not None}

    def _unknown(self):
        return None

    _get_compute_mode = _get_compute_processes = _get_graphics_processes = _unknown


for call, metric in (
    ("_get_temperature", "temperature"),
    ("_get_power_usage", "power_watts"),
    ("_get_power_limit", "enforced_power_limit_watts"),
    ("_get_gpu_utilization", "utilization"),
):
    setattr(Accelerator, call, lambda self, metric=metric: getattr(self.now, metric))
for call, fact in (("_get_gpu_name", "name"), ("_get_uuid", "uuid")):
    setattr(Accelerator, call, lambda self, fact=fact: getattr(self.handle, fact))


def find(self):
    whole = [one for one in accelmetrics.devices("accelerators") if one.parent is None]
    self.devices = [Accelerator(one, place) for place, one in enumerate(whole)]  # an NPU beside a GPU has the same index
    self.device_count = len(self.devices)


gpu.AllGPUDevices.__init__ = find
gpu.is_nvidia_system = lambda: bool(accelmetrics.devices("accelerators"))
