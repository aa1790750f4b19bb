"""W&B's keys: the keys that its documentation lists, and the keys that its collector emits.

The documentation is W&B's "System Metrics Reference" (docs.wandb.ai, models/ref/python/experiments/system-metrics). Two errors on
that page are not copied: a parenthesis after ``trn.neuron_device_total_memory_usage``, and the same key for a TPU's memory in bytes
and in percent; here it is the one in bytes.
"""

from __future__ import annotations

import re

from accelmetrics.schemas.catalogue import KeyMatch, per_key, resolve, tpu
from accelmetrics.schemas.metric import ANY_KIND, PARTITION, Metric, device_key, fill

_PLACEHOLDER = re.compile(r"\.\{\w+\}")
_GPU = (
    "memory",
    "memoryAllocated",
    "memoryAllocatedBytes",
    "gpu",
    "temp",
    "powerWatts",
    "powerPercent",
    "smClock",
    "memoryClock",
    "graphicsClock",
    "correctedMemoryErrors",
    "unCorrectedMemoryErrors",
    "encoderUtilization",
)
_IPU = (
    "average board temp (C)",
    "average die temp (C)",
    "clock (MHz)",
    "ipu power (W)",
    "ipu utilisation (%)",
    "ipu utilisation (session) (%)",
    "speed (GT/s)",
)
_HOST_MEMORY = ("application_memory", "constants", "dma_buffers", "tensors")
_CORE_MEMORY = ("constants", "model_code", "model_shared_scratchpad", "runtime_memory", "tensors")

DOCUMENTED = (
    "cpu",
    "proc.cpu.threads",
    "disk.{path}.usagePercent",
    "disk.{path}.usageGB",
    "disk.in",
    "disk.out",
    "proc.memory.rssMB",
    "proc.memory.percent",
    "memory_percent",
    "proc.memory.availableMB",
    "network.sent",
    "network.recv",
    *(f"gpu.{{i}}.{name}" for name in _GPU),
    *(f"ipu.{{i}}.{name}" for name in _IPU),
    "tpu.{i}.memoryUsageBytes",
    "tpu.{i}.dutyCycle",
    "trn.{i}.neuroncore_utilization",
    "trn.host_total_memory_usage",
    "trn.neuron_device_total_memory_usage",
    *(f"trn.host_total_memory_usage.{name}" for name in _HOST_MEMORY),
    *(f"trn.{{i}}.neuroncore_memory_usage.{name}" for name in _CORE_MEMORY),
)
"""The keys of W&B's page in its order, with our placeholders. The page also has ``gpu.process.{i}`` for every ``gpu.{i}``."""

_EMITTED_GPU = (
    "gpu",
    "memory",
    "memoryAllocated",
    "memoryAllocatedBytes",
    "temp",
    "powerWatts",
    "enforcedPowerLimitWatts",
    "powerPercent",
    "energyJoules",
    "smClock",
    "memoryClock",
    "correctedMemoryErrors",
    "uncorrectedMemoryErrors",
    "fanSpeed",
    # profiling
    "smActive",
    "smOccupancy",
    "dramActive",
    "pipeTensorActive",
    "pipeTensorHmmaActive",
    "pipeFp64Active",
    "pipeFp32Active",
    "pipeFp16Active",
    "pcieTxBytes",
    "pcieRxBytes",
    "nvlinkTxBytes",
    "nvlinkRxBytes",
    # AMD
    "memoryReadWriteActivity",
    "memoryOverDrive",
    # Apple
    "freq",
)
EMITTED = (
    "cpu",
    "proc.cpu.threads",
    "proc.cpu.throttledPercent",
    "proc.memory.rssMB",
    "proc.memory.percent",
    "proc.memory.availableMB",
    "proc.memory.oomKills",
    "wandb.memory.rssMB",
    "memory_percent",
    "swap.used_percent",
    "disk.{path}.usagePercent",
    "disk.{path}.usageGB",
    "disk.{device}.in",
    "disk.{device}.out",
    "network.sent",
    "network.recv",
    "network.tcpRetransmits",
    *(f"gpu.{{i}}.{name}" for name in _EMITTED_GPU),
    "cpu.ecpu_percent",
    "cpu.ecpu_freq",
    "cpu.pcpu_percent",
    "cpu.pcpu_freq",
    "cpu.avg_temp",
    "cpu.powerWatts",
    "ane.power",
    "system.powerWatts",
    "memory.used",
    "memory.used_percent",
    "swap.used",
    *(row.key for row in (*tpu.ACTIVITY, *tpu.MEMORY, *tpu.HEALTH, *tpu.TRANSFERS, *tpu.NETWORK, *tpu.PROGRAMS)),
    "trn.{i}.neuroncore_utilization",
    "trn.host_total_memory_usage",
    "trn.neuron_device_total_memory_usage",
    *(f"trn.host_memory_usage.{name}" for name in _HOST_MEMORY),
    *(f"trn.{{i}}.neuroncore_memory_usage.{name}" for name in _CORE_MEMORY),
)
"""The keys of W&B's collector, release 0.31.0, with our placeholders. ``cpu.{i}.cpu_percent`` is in its binary, not in its records."""

_DOCUMENTED = frozenset(DOCUMENTED)
_KNOWN = frozenset((*DOCUMENTED, *EMITTED))


def spelling(key: str, found: KeyMatch) -> str:
    """Return the spelling of a key, with placeholders for numbers and names: ``gpu.{i}.nvlink.{link}.state``."""
    parts = device_key(key)
    if parts is not None and found.row.device_part:
        named = next(name for name in found.row.names if parts.name in (name, fill(name, found.instance)))
        return f"{parts.kind}.{'process.' if parts.process else ''}{{i}}.{named}"
    filled = {_PLACEHOLDER.sub(lambda _: f".{found.instance}", template): template for template in (found.row.key, *found.row.aliases)}
    return filled.get(key, key)


@per_key
def is_documented(key: str) -> bool:
    """Return whether W&B's documentation lists a key under this spelling. It has no partitions of devices."""
    return _general(key) in _DOCUMENTED


def is_known(key: str) -> bool:
    """Return whether W&B's documentation lists a key under this spelling, or its collector emits it."""
    return _general(key) in _KNOWN


def has(row: Metric) -> bool:
    """Return whether W&B has a metric under any of its spellings."""
    return any(_of_device(spelling.replace(ANY_KIND, "gpu")) in _KNOWN for spelling in (row.key, *row.aliases))


def _general(key: str) -> str:
    """Return the spelling that the tables use for a key; empty if there is none."""
    found = resolve(key)
    return "" if found is None or f".{PARTITION}." in found.device else _of_device(spelling(key, found))


def _of_device(template: str) -> str:
    return template.replace("gpu.process.{i}.", "gpu.{i}.")
