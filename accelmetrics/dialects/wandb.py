"""``wandb``: the keys as they are. ``wandb-docs``: those that W&B's documentation lists, under exactly its spelling.

The page is W&B's "System Metrics Reference" (docs.wandb.ai, models/ref/python/experiments/system-metrics). Two things on it
are slips of the pen and not followed: a parenthesis behind ``trn.neuron_device_total_memory_usage``, and the same key for a
TPU's memory in bytes and in percent, of which the one in bytes is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from accelmetrics.dialects.contract import Dialect, Number, Point
from accelmetrics.schemas.catalogue import KeyMatch, per_key, resolve
from accelmetrics.schemas.metric import PARTITION, device_key, fill
from accelmetrics.schemas.record import Record

PROCESS_PREFIX = "gpu.process.{i}."
_PLACEHOLDER = re.compile(r"\.\{(\w+)\}")
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
"""The page's keys in its order, with our placeholders. Beside them it has ``gpu.process.{i}`` for every ``gpu.{i}``."""


class Wandb(Dialect):
    """The snapshot's keys, all of them or those that pass.

    Args:
        name: As it is chosen.
        summary: Whose names these are.
        documented_only: Whether only documented spellings pass.
    """

    def __init__(self, name: str, summary: str, documented_only: bool = False) -> None:
        self.name = name
        self.summary = summary
        self._documented_only = documented_only

    def flat(self, record: Record) -> dict[str, Number]:
        """Give the metrics, which have these names already."""
        metrics = record.snapshot.metrics
        return {key: value for key, value in metrics.items() if not self._documented_only or is_documented(key)}

    def points(self, record: Record) -> Iterator[Point]:
        """Give the same with the number of the device, or the name of the disk or CPU, as a label: ``gpu.powerWatts`` of ``gpu.0``."""
        for key, value in self.flat(record).items():
            yield _point(key)._replace(value=value)


@per_key
def _point(key: str) -> Point:
    found = resolve(key)
    if found is None:
        return Point(key, 0)
    template = _template(key, found)
    number = found.device.partition(".")[2]
    instances = iter((number, found.instance) if number and not template.startswith("torch.") else (found.instance,))
    labels = {"index" if placeholder == "i" else placeholder: next(instances) for placeholder in _PLACEHOLDER.findall(template)}
    return Point(_PLACEHOLDER.sub("", template), 0, labels, found.row.kind, found.row.unit, found.row.meaning)


def _template(key: str, found: KeyMatch) -> str:
    """Find the spelling under which a key stands, with its numbers and names left open: ``gpu.{i}.nvlink.{link}.state``."""
    parts = device_key(key)
    if parts is not None and found.row.device_part:
        named = next(name for name in found.row.names if parts.name in (name, fill(name, found.instance)))
        return f"{parts.kind}.{'process.' if parts.process else ''}{{i}}.{named}"
    filled = {_PLACEHOLDER.sub(f".{found.instance}", template): template for template in (found.row.key, *found.row.aliases)}
    return filled.get(key, key)


@per_key
def is_documented(key: str) -> bool:
    """Tell whether W&B's documentation lists a key, under this spelling. It knows no partitions of devices."""
    found = resolve(key)
    if found is None or f".{PARTITION}." in found.device:
        return False
    return _template(key, found).replace(PROCESS_PREFIX, "gpu.{i}.") in DOCUMENTED


WANDB = Wandb("wandb", "the keys of W&B's collector and documentation, and those that go beyond them")
WANDB_DOCS = Wandb("wandb-docs", "the keys that W&B's documentation lists, under exactly its spelling", documented_only=True)
