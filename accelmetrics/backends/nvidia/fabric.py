"""The fabric of NVLink switches: whether the GPU has joined it, and which part of it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from accelmetrics.backends.contract import Block, Number
from accelmetrics.backends.nvidia.errors import FUNCTION_NOT_FOUND, check_device, impossible, meaning, unavailable
from accelmetrics.backends.nvidia.library import Library
from accelmetrics.backends.nvidia.paced import Pace
from accelmetrics.schemas.reasons import Reason, Unavailable

NAME = "fabricState"
FUNCTION = "nvmlDeviceGetGpuFabricInfoV"
VERSION = 0x02000024
"""``nvmlGpuFabricInfo_v2``: the structure's size and its version."""
SAFE_FROM = 550
"""The first driver whose function can be called: on older ones it crashes the process."""
INTERVAL = 10.0
NO_FABRIC, COMPLETED = 0, 3
WORDS = {1: "NVLink fabric: not joined", 2: "NVLink fabric: joining", 3: "NVLink fabric: joined"}
TOO_OLD = Unavailable(Reason.NOT_SUPPORTED, f"drivers before {SAFE_FROM} crash when they are asked for it")
WHO_KNOWS = Unavailable(
    Reason.NOT_SUPPORTED, f"the driver does not say which version it is, and is not asked: those before {SAFE_FROM} crash when they are"
)
WITHOUT = Unavailable(Reason.NOT_SUPPORTED, "the GPU belongs to no NVLink fabric")


class FabricInfo(ctypes.Structure):
    """``nvmlGpuFabricInfo_v2_t``; the state is one byte, with room behind it."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
        ("health", ctypes.c_uint),
    )


class Fabric:
    """One GPU's registration, read every ten seconds.

    Args:
        library: The open library.
        handle: The GPU's handle.
        driver_version: Decides whether the question may be asked at all.
        announce: Is told how the GPU stands in the fabric, in words.

    Attributes:
        block: The state.
        unavailable: Why it is missing.
        due: When ``read`` is wanted next.
    """

    def __init__(self, library: Library, handle: Any, driver_version: str, announce: Callable[[str], None]) -> None:
        self._refused = _refused(driver_version)
        self._function = None if self._refused else library.function(FUNCTION)
        self._handle = handle
        self._announce = announce
        self._info = FabricInfo(version=VERSION)
        self.block = Block((), ())
        self.unavailable: Mapping[str, Unavailable] = {}
        self._pace = Pace(INTERVAL)

    @property
    def due(self) -> float:
        return self._pace.due

    def read(self, now: float, steps: list[Any]) -> bool:
        """Read what is due now; says whether anything is different from before."""
        if now < self.due:
            return False
        if self._function is None:
            self._pace.end()
            return self._set(self._refused or unavailable(FUNCTION_NOT_FOUND))
        status = self._function(self._handle, ctypes.byref(self._info))
        steps.append(status)
        check_device(status, FUNCTION)
        self._pace.note(now, status)
        return self._set(unavailable(status) if status else self._answer())

    def _answer(self) -> int | Unavailable:
        state = self._info.state
        if state == NO_FABRIC:
            self._announce("")
            return WITHOUT
        if state not in WORDS:
            return impossible(FUNCTION)
        self._announce(self._words())
        return int(state)

    def _words(self) -> str:
        info = self._info
        failed = info.state == COMPLETED and info.status
        words = f"NVLink fabric: joining failed ({meaning(info.status).symbol})" if failed else WORDS[info.state]
        return f"{words}, clique {info.clique} of cluster {bytes(info.cluster).hex()}" if any(info.cluster) else words

    def _set(self, answer: int | Unavailable) -> bool:
        metrics: dict[str, Number] = {NAME: answer} if not isinstance(answer, Unavailable) else {}
        reasons = {NAME: answer} if isinstance(answer, Unavailable) else {}
        if tuple(metrics.values()) == self.block.values and reasons == self.unavailable:
            return False
        self.block, self.unavailable = Block(tuple(metrics), tuple(metrics.values())), reasons
        return True


def _refused(version: str) -> Unavailable | None:
    """Why a driver of this version is not asked; None where it may be."""
    branch = version.partition(".")[0]
    if not (branch.isascii() and branch.isdecimal()):
        return WHO_KNOWS
    return TOO_OLD if int(branch) < SAFE_FROM else None
