"""The fabric of NVLink switches: whether the GPU has joined it, and which part of it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from typing import Any

from accelmetrics.backends.contract import Block, Number
from accelmetrics.backends.nvidia.errors import FUNCTION_NOT_FOUND, NOT_SUPPORTED, check_device, impossible, meaning, unavailable
from accelmetrics.backends.nvidia.library import Library
from accelmetrics.backends.nvidia.paced import EARLY
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
        self._function = library.function(FUNCTION) if _major(driver_version) >= SAFE_FROM else None
        self._handle = handle
        self._announce = announce
        self._info = FabricInfo(version=VERSION)
        self.block = Block((), ())
        self.unavailable: Mapping[str, Unavailable] = {}
        self.due = -math.inf
        self._too_old = _major(driver_version) < SAFE_FROM

    def read(self, now: float, steps: list[Any]) -> bool:
        """Read what is due now; says whether anything is different from before."""
        if now < self.due:
            return False
        if self._function is None:
            self.due = math.inf
            return self._set(TOO_OLD if self._too_old else unavailable(FUNCTION_NOT_FOUND))
        status = self._function(self._handle, ctypes.byref(self._info))
        steps.append(status)
        check_device(status, FUNCTION)
        if status:
            self.due = math.inf if status == NOT_SUPPORTED else -math.inf
            return self._set(unavailable(status))
        self.due = now + INTERVAL * EARLY
        return self._set(self._answer())

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


def _major(version: str) -> int:
    """The driver's branch; 0 where the version is not known, so that nothing is risked."""
    number = version.partition(".")[0]
    return int(number) if number.isdecimal() else 0
