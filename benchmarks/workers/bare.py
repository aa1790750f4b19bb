"""The yardstick: W&B's 13 calls per GPU, through pynvml's own functions, with nothing around them."""

from __future__ import annotations

from typing import Any

import pynvml


def open_driver() -> int:
    """Initialises NVML and says how many GPUs there are."""
    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetCount())


def read_all(count: int) -> list[dict[str, Any]]:
    """One reading of every GPU."""
    return [read(index) for index in range(count)]


def read(index: int) -> dict[str, Any]:
    """One reading of one GPU: the calls that W&B's collector makes, in its order."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
    utilization = pynvml.nvmlDeviceGetUtilizationRates(handle)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    watts = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
    limit = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
    return {
        "gpu": utilization.gpu,
        "memory": utilization.memory,
        "memoryAllocated": memory.used / memory.total * 100,
        "memoryAllocatedBytes": memory.used,
        "temp": pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        "powerWatts": watts,
        "enforcedPowerLimitWatts": limit,
        "powerPercent": watts / limit * 100,
        "smClock": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "memoryClock": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        "correctedMemoryErrors": _errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "uncorrectedMemoryErrors": _errors(handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        "energyJoules": pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
    }


def _errors(handle: Any, kind: int) -> int:
    where = pynvml.NVML_MEMORY_LOCATION_DEVICE_MEMORY
    return int(pynvml.nvmlDeviceGetMemoryErrorCounter(handle, kind, pynvml.NVML_VOLATILE_ECC, where))
