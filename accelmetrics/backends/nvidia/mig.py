"""The MIG instances of one GPU: found when the driver is opened, and looked for again every ten seconds.

An instance is known by its UUID, which the driver derives from the GPU's and the instance's ids: one that is made again is the
same device. Its number below the GPU is NVML's index, which another instance may have after a reconfiguration.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from accelmetrics.backends.nvidia.errors import (
    FUNCTION_NOT_FOUND,
    GONE,
    GPU_IS_LOST,
    INVALID_ARGUMENT,
    NOT_FOUND,
    NOT_SUPPORTED,
    source_error,
)
from accelmetrics.backends.nvidia.instance import InstancePlace, Parent
from accelmetrics.backends.nvidia.library import Library
from accelmetrics.backends.nvidia.paced import EARLY
from accelmetrics.backends.nvidia.roster import Roster

INTERVAL = 10.0
_ENABLED = 1


class Seen(NamedTuple):
    """One instance as the driver lists it."""

    number: int
    handle: Any
    uuid: str


class Partitions:
    """The instances of one GPU.

    Attributes:
        enabled: Whether the GPU is in MIG mode; it may be without having instances.
        due: When ``look`` is wanted next.
    """

    def __init__(self, library: Library, roster: Roster) -> None:
        self.enabled = False
        self.due = -math.inf
        self._library = library
        self._roster = roster
        self._known: dict[str, InstancePlace] = {}

    def look(self, now: float, parent: Parent, steps: list[Any]) -> bool:
        """Find the instances that there are now; says whether the mode is another than before."""
        before = self.enabled
        self.due = now + INTERVAL * EARLY
        mode = self._mode(parent.handle, steps)
        if mode is None:
            return False
        self.enabled = mode
        seen = self._seen(parent.handle, steps) if mode else []
        for instance in seen or ():
            self._meet(instance, parent, steps)
        if seen is not None:
            present = {instance.uuid for instance in seen}
            for uuid, place in self._known.items():
                if uuid not in present:
                    place.lose(now)
        return self.enabled != before

    def _mode(self, handle: Any, steps: list[Any]) -> bool | None:
        """Whether MIG mode is on, None where the question failed."""
        answer = self._ask("nvmlDeviceGetMigMode", steps, handle)
        if answer in (NOT_SUPPORTED, FUNCTION_NOT_FOUND):
            self.due = math.inf
            return False
        return None if isinstance(answer, int) else bool(answer[0] == _ENABLED)

    def _seen(self, handle: Any, steps: list[Any]) -> list[Seen] | None:
        """The instances, None where not all questions about them were answered: then nobody is said to be gone."""
        most = self._most(handle, steps)
        found: list[Seen] = []
        for number in range(most):
            instance = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", steps, handle, number)
            if instance in (NOT_FOUND, INVALID_ARGUMENT, NOT_SUPPORTED):
                continue
            uuid = instance if isinstance(instance, int) else self._ask("nvmlDeviceGetUUID", steps, instance)
            if isinstance(uuid, int):
                return None
            found.append(Seen(number, instance, str(uuid)))
        return found

    def _most(self, handle: Any, steps: list[Any]) -> int:
        """How many instances there can be; seven is the most that any GPU has had so far."""
        most = self._ask_number("nvmlDeviceGetMaxMigDeviceCount", steps, handle)
        return 7 if most is None else most

    def _meet(self, seen: Seen, parent: Parent, steps: list[Any]) -> None:
        known = self._known.get(seen.uuid)
        if known is not None:
            known.bind(seen.handle)
            return
        gpu_instance = self._ask_number("nvmlDeviceGetGpuInstanceId", steps, seen.handle)
        name = self._ask("nvmlDeviceGetName", steps, seen.handle)
        place = InstancePlace(self._library, parent, seen.number, seen.uuid, gpu_instance, self._roster.note)
        place.bind(seen.handle, "" if isinstance(name, int) else str(name))
        self._known[seen.uuid] = place
        self._roster.add(place)

    def _ask_number(self, name: str, steps: list[Any], handle: Any) -> int | None:
        try:
            return int(self._library.ask(name, handle))
        except self._library.nvml.NVMLError as error:
            self._note(error.value, name)
            return None
        finally:
            steps.append(name)

    def _ask(self, name: str, steps: list[Any], *arguments: Any) -> Any | int:
        """An answer that is no number, or the return code of the call's failure."""
        try:
            return self._library.ask(name, *arguments)
        except self._library.nvml.NVMLError as error:
            self._note(error.value, name)
            return int(error.value)
        finally:
            steps.append(name)

    def _note(self, code: int, name: str) -> None:
        if code in GONE or code == GPU_IS_LOST:
            raise source_error(code, name)
