"""What PyTorch's allocator holds on each GPU, where the program itself uses PyTorch.

The package is never imported and CUDA never started: only a program that has done both has such numbers. They are the
program's own view of memory, and are told apart from the driver's by their keys: ``torch.{i}.memoryAllocatedBytes`` is what
tensors use, ``torch.{i}.memoryReservedBytes`` what the allocator holds, and ``{i}`` is the number of ``gpu.{i}``. One call of the
allocator gives all of a device's, on CUDA and ROCm alike.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from accelmetrics.schemas.selection import ALL_METRICS, MetricSelection
from accelmetrics.schemas.snapshot import Snapshot

BYTES = {
    "memoryAllocatedBytes": "allocated_bytes.all.current",
    "memoryReservedBytes": "reserved_bytes.all.current",
    "memoryPeakBytes": "allocated_bytes.all.peak",
}
"""By name, what ``torch.cuda.memory_stats`` calls it."""
FRAGMENTATION = "memoryFragmentation"


class TorchMemory:
    """Reads the allocator. Which of PyTorch's devices is which of ours is found out once for each set of devices.

    A process sees one partition of a device at most; its numbers stand under the device's.

    Args:
        metrics: Which of its keys are given.
    """

    def __init__(self, metrics: MetricSelection = ALL_METRICS) -> None:
        self._metrics = metrics
        self._identities: object = None
        self._keys: dict[int, str] = {}

    def __call__(self, snapshot: Snapshot) -> Mapping[str, int | float]:
        """Return bytes by key; nothing where the program does not use PyTorch on a GPU."""
        # While another thread is still importing torch, parts may be missing.
        cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
        if not getattr(cuda, "is_initialized", bool)():
            return {}
        if snapshot.identities is not self._identities:
            self._identities, self._keys = snapshot.identities, _matches(cuda, snapshot)
        found: dict[str, int | float] = {}
        for number, index in self._keys.items():
            stats = cuda.memory_stats(number)
            held = {name: int(stats.get(statistic, 0)) for name, statistic in BYTES.items()}
            found.update((f"torch.{index}.{name}", value) for name, value in held.items())
            if reserved := held["memoryReservedBytes"]:
                found[f"torch.{index}.{FRAGMENTATION}"] = 100.0 * (reserved - held["memoryAllocatedBytes"]) / reserved
        return {key: value for key, value in found.items() if self._metrics.wants(key)}


def _matches(cuda: Any, snapshot: Snapshot) -> dict[int, str]:
    """Return, by PyTorch's number, the number in our key; a device that cannot be told for certain is left out.

    PyTorch gives a UUID without the driver's ``GPU-``, and without ``MIG-`` of a partition. HIP has the sixteen digits of AMD's unique id
    in the place of a UUID's sixteen bytes, which PyTorch then writes as a UUID. Releases without UUIDs number the devices that the
    vendor's ``*_VISIBLE_DEVICES`` leaves, which is only certain on machines of one vendor.
    """
    by_uuid = {(slot.identity.uuid or "").lower(): slot for slot in reversed(snapshot.identities)}
    gpus = [slot for slot in snapshot.identities if slot.identity.kind == "gpu" and slot.visible_index is not None]
    one_vendor = len({slot.identity.vendor for slot in gpus}) == 1
    by_position = {slot.visible_index: slot for slot in reversed(gpus)} if one_vendor else {}
    found = {}
    for number in range(cuda.device_count()):
        uuid = str(getattr(cuda.get_device_properties(number), "uuid", "") or "").lower()
        names = [uuid, f"gpu-{uuid}", f"mig-{uuid}"]
        with suppress(ValueError):
            names.append(f"0x{bytes.fromhex(uuid.replace('-', '')).decode('ascii').lower()}")
        slot = next((by_uuid[name] for name in names if name in by_uuid), None) if uuid else by_position.get(number)
        if slot is not None:
            found[number] = slot.key.split(".")[1]
    return found
