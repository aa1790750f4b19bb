"""gpustat, from any vendor's accelerators: `python -c "import for_gpustat, gpustat.cli; gpustat.cli.main()"`."""

import psutil
from gpustat import core

import accelmetrics

MB = 2**20


def gpu(place, device):
    if not device.values:
        return core.InvalidGPU(place, f"(({device.name}: no value))", None)
    now, processes = device.metrics, []
    for one in device.processes or ():
        try:
            process = psutil.Process(one.pid)
            words = process.cmdline() or ["?"]
            facts = {"username": process.username(), "command": words[0], "full_command": words}
            facts |= {"cpu_percent": process.cpu_percent(), "cpu_memory_usage": process.memory_info().rss}
        except psutil.Error:
            continue
        processes.append({"pid": one.pid, "gpu_memory_usage": one.memory_bytes and one.memory_bytes // MB, **facts})
    entry = {"index": place, "uuid": device.uuid, "name": device.name, "processes": processes}
    entry |= {"utilization.gpu": now.utilization, "utilization.enc": now.encoder_utilization, "utilization.dec": now.decoder_utilization}
    entry |= {"temperature.gpu": now.temperature, "fan.speed": now.fan_speed, "power.draw": now.power_watts and int(now.power_watts)}
    entry |= {"enforced.power.limit": now.enforced_power_limit_watts and int(now.enforced_power_limit_watts)}
    entry |= {"memory.used": now.memory_used_bytes and now.memory_used_bytes // MB}
    return core.GPUStat(entry | {"memory.total": now.memory_total_bytes and now.memory_total_bytes // MB})


def new_query(debug=False, id=None):
    wanted = None if id is None else {int(one) for one in (id.split(",") if isinstance(id, str) else id)}
    devices = [one for one in accelmetrics.sample("accelerators").devices if one.parent is None]
    chosen = [gpu(place, one) for place, one in enumerate(devices) if wanted is None or place in wanted]  # an NPU has a GPU's index
    return core.GPUStatCollection(chosen, devices[0].driver_version if devices else None)


core.GPUStatCollection.new_query = staticmethod(new_query)
