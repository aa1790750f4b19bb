"""MIG devices of a simulated GPU: which profiles, ids and UUIDs they have, and what can be set of one."""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ._control import Control
from ._names import Ret, gpm_id

_PROFILE = re.compile(r"(?:(?P<compute>\d)c\.)?(?P<slices>\d)g\.(?P<gigabytes>\d+)gb")
_FIRST_ID = {7: 0, 4: 1, 3: 1, 2: 3, 1: 7}
"""The GPU instance ids begin here, by slices, as the driver gives them out."""
_GIB = 1 << 30
_GPM_PERCENT = range(1, 14)


class Layout(NamedTuple):
    """One MIG device, before it is made: its profile and ids."""

    profile: str
    gpu_instance: int
    compute_instance: int
    memory: int


def lay_out(profiles: Iterable[str]) -> Iterator[Layout]:
    """Ids for some profiles (`3g.40gb`; `1c.3g.40gb` shares the GPU instance of the one before it, if that is alike)."""
    made: Counter[int] = Counter()
    shared, room = "", 0
    for profile in profiles:
        found = _PROFILE.fullmatch(profile)
        if found is None:
            raise ValueError(f"{profile!r} is no MIG profile")
        slices = int(found["slices"])
        if not found["compute"] or profile != shared or not room:
            made[slices] += 1
            room = slices // int(found["compute"] or slices)
        compute = slices // int(found["compute"] or slices) - room
        shared, room = profile, room - 1
        yield Layout(profile, _FIRST_ID[slices] + made[slices] - 1, compute, int(found["gigabytes"]) * _GIB)


class Instance:
    """One MIG device of a simulated GPU. Its UUID follows from the GPU's and its ids, as a driver's does."""

    def __init__(self, control: Control, gpu: int, slot: int, layout: Layout, parent: tuple[str, str]) -> None:
        name, parent_uuid = parent
        self._control = control
        self.gpu = gpu
        self.slot = slot
        self.gpu_instance, self.compute_instance = layout.gpu_instance, layout.compute_instance
        self.memory_total = layout.memory
        self.name = f"{name} MIG {layout.profile}"
        self.uuid = f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{parent_uuid}/{layout.gpu_instance}/{layout.compute_instance}')}"
        control.fill_slot(gpu, slot, self.uuid, self.name, (layout.gpu_instance, layout.compute_instance), layout.memory)
        self.set(memory_used=(slot + 1) << 20, gpm={metric: metric * 5.0 + slot for metric in _GPM_PERCENT})

    def claim(self, gpu_instance: int) -> None:
        """Makes the driver answer another id of the GPU instance, such as one that cannot be."""
        ids = (gpu_instance, self.compute_instance)
        self._control.fill_slot(self.gpu, self.slot, self.uuid, self.name, ids, self.memory_total)

    def set(self, *, memory_used: int | None = None, gpm: Mapping[int | str, float] | Ret | None = None) -> None:
        """Bytes in use, and GPM metrics as for a GPU; a `Ret` makes taking a sample answer that."""
        if memory_used is not None:
            self._control.set_instance_memory(self.gpu, self.slot, memory_used)
        if isinstance(gpm, Ret):
            self._control.set_instance_gpm(self.gpu, self.slot, 0, 0.0, int(gpm))
        elif gpm is not None:
            for metric, value in gpm.items():
                self._control.set_instance_gpm(self.gpu, self.slot, gpm_id(metric), value, 0)
