"""Memory of PyTorch's allocator on each GPU, if the program itself uses PyTorch.

This module never imports PyTorch and never initialises CUDA: only a program that has done both has these metrics. They show the
program's view of memory, and their keys distinguish them from the driver's: ``torch.{i}.memoryAllocatedBytes`` is used by tensors,
``torch.{i}.memoryReservedBytes`` is held by the allocator, and ``{i}`` is the number of ``gpu.{i}``. One call of the allocator returns all
values of a device, on CUDA and ROCm.
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
"""Name in ``torch.cuda.memory_stats`` by metric."""
FRAGMENTATION = "memoryFragmentation"


class TorchMemory:
    """Reads the memory of PyTorch's allocator.

    A process sees at most one partition of a device; its values have the key of the whole device.

    Args:
        metrics: Keys to return.
    """

    def __init__(self, metrics: MetricSelection = ALL_METRICS) -> None:
        self._metrics = metrics
        self._identities: object = None
        self._keys: dict[int, str] = {}

    def __call__(self, snapshot: Snapshot) -> Mapping[str, int | float]:
        """Return the values by key; empty if the program does not use PyTorch on a GPU."""
        # Parts of the package may be missing while another thread is still importing it.
        cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
        if not getattr(cuda, "is_initialized", bool)():
            return {}
        # PyTorch's devices are matched to ours once for each set of devices.
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
    """Return the number in our key by PyTorch's device number. A device that cannot be identified with certainty is left out."""
    by_uuid = {(slot.identity.uuid or "").lower(): slot for slot in reversed(snapshot.identities)}
    gpus = [slot for slot in snapshot.identities if slot.identity.kind == "gpu" and slot.visible_index is not None]
    # Releases of PyTorch without UUIDs number the devices that *_VISIBLE_DEVICES leaves. This is certain only with a single vendor.
    one_vendor = len({slot.identity.vendor for slot in gpus}) == 1
    by_position = {slot.visible_index: slot for slot in reversed(gpus)} if one_vendor else {}
    found = {}
    for number in range(cuda.device_count()):
        uuid = str(getattr(cuda.get_device_properties(number), "uuid", "") or "").lower()
        # PyTorch's UUID lacks the driver's GPU-, or MIG- of a partition. HIP puts the sixteen digits of AMD's unique id in place of the
        # sixteen bytes of a UUID, which PyTorch then formats as a UUID.
        names = [uuid, f"gpu-{uuid}", f"mig-{uuid}"]
        with suppress(ValueError):
            names.append(f"0x{bytes.fromhex(uuid.replace('-', '')).decode('ascii').lower()}")
        slot = next((by_uuid[name] for name in names if name in by_uuid), None) if uuid else by_position.get(number)
        if slot is not None:
            found[number] = slot.key.split(".")[1]
    return found
