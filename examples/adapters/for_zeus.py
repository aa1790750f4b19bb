"""Zeus' power and energy, from any vendor's accelerators: `import for_zeus` before `ZeusMonitor()`. It reads alone, and sets no limit."""

import zeus.device.gpu as theirs
from zeus.device.gpu.common import GPU, GPUs, ZeusGPUNotSupportedError

import accelmetrics


def read(place):  # an NPU beside a GPU has the same index
    return [one for one in accelmetrics.sample("accelerators", max_age=0.02).devices if one.parent is None][place]


class Accelerator(GPU):
    def _now(self, metric, scale=1):
        device = read(self.gpu_index)
        if (value := getattr(device.metrics, metric)) is None:
            raise ZeusGPUNotSupportedError(f"{device.key}: {device.unavailable}")
        return round(value * scale)

    def supports_get_total_energy_consumption(self):
        return read(self.gpu_index).metrics.energy_joules is not None

    def get_name(self):
        return read(self.gpu_index).name

    def get_total_energy_consumption(self):
        return self._now("energy_joules", 1000)

    def get_instant_power_usage(self):
        return self._now("power_watts", 1000)

    def get_power_management_limit(self):
        return self._now("enforced_power_limit_watts", 1000)

    def get_gpu_temperature(self):
        return self._now("temperature")


class Accelerators(GPUs):
    def __init__(self):
        self._gpus = [Accelerator(place) for place in range(sum(one.parent is None for one in accelmetrics.devices("accelerators")))]

    gpus = property(lambda self: self._gpus)


def refuse(self, *given, **named):
    raise ZeusGPUNotSupportedError("accelmetrics does not read it, and sets nothing")


for call in Accelerator.__abstractmethods__:
    setattr(Accelerator, call, refuse)
Accelerator.__abstractmethods__ = Accelerators.__abstractmethods__ = frozenset()
theirs._gpus = Accelerators()
