"""AMD GPUs, and Hygon's, which are built on the same design.

Where the numbers come from is a table of sources, the best first; the first that opens is used, unless one is pinned:

=========  ===============================================================================  =========
sysfs      the kernel driver's files, merged with the module ``amdsmi`` where one matches    when asked
amdsmi     the module alone                                                                  when asked
amd-smi    the command ``amd-smi``                                                           every 2 s
rocm-smi   the command ``rocm-smi``                                                          every 2 s
=========  ===============================================================================  =========

They give the same metrics under the same names; whether the hardware is here is not their question but
:mod:`~accelmetrics.backends.amd.cards`'s. A source's module is imported when it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import ClassVar

from accelmetrics.backends.amd.cards import detect
from accelmetrics.backends.clock import SYSTEM_CLOCK, Clock
from accelmetrics.backends.contract import Coverage, Detection, Driver
from accelmetrics.schemas.errors import SourceError, UnknownNameError
from accelmetrics.schemas.identity import DeviceKind
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.reasons import Reason

BACKEND = "amd"
Opener = Callable[[Clock], Driver]


def _merged(clock: Clock) -> Driver:
    from accelmetrics.backends.amd.in_process import InProcessDriver

    return InProcessDriver(clock)


def _sysfs(clock: Clock) -> Driver:
    from accelmetrics.backends.amd.in_process import SYSFS, InProcessDriver

    return InProcessDriver(clock, (SYSFS,))


def _amdsmi(clock: Clock) -> Driver:
    from accelmetrics.backends.amd.in_process import AMDSMI, InProcessDriver

    return InProcessDriver(clock, (AMDSMI,))


def _amd_smi(clock: Clock) -> Driver:
    from accelmetrics.backends.amd import amd_smi

    return amd_smi.backend(clock).open()


def _rocm_smi(clock: Clock) -> Driver:
    from accelmetrics.backends.amd import rocm_smi

    return rocm_smi.backend(clock).open()


SOURCES: Mapping[str, Opener] = {"sysfs": _sysfs, "amdsmi": _amdsmi, "amd-smi": _amd_smi, "rocm-smi": _rocm_smi}
"""What can be pinned, by name."""
DEFAULT: tuple[Opener, ...] = (_merged, _amd_smi, _rocm_smi)
"""What is tried where nothing is pinned, in order."""


class AmdBackend:
    """AMD GPUs, through the best source that opens.

    Args:
        clock: Where intervals are taken from.
        pin: The one source to use; empty for the best.

    Attributes:
        pin: The same.
    """

    name = BACKEND
    kind: ClassVar[DeviceKind | None] = "gpu"
    interval = 0.0

    def __init__(self, clock: Clock = SYSTEM_CLOCK, pin: str = "") -> None:
        self._clock = clock
        self.pin = pin

    def detect(self) -> Detection:
        return detect()

    def open(self) -> Driver:
        failures: list[SourceError] = []
        for source in (SOURCES[self.pin],) if self.pin else DEFAULT:
            try:
                return source(self._clock)
            except SourceError as error:
                failures.append(error)
        raise self._explained(failures)

    def coverage(self) -> Coverage:
        from accelmetrics.backends.amd import amd_smi, amdsmi_worker, rocm_smi, sysfs
        from accelmetrics.backends.kit.fields import joined_words

        commands = (source.backend().coverage().devices for source in (amd_smi, rocm_smi))
        sources = (sysfs.CARDS.words, amdsmi_worker.TABLE.words, *commands)
        return Coverage(
            joined_words(pair for words in sources for pair in words.items()),
            sysfs.PARTITIONS.words,
            processes={
                "gpu": "drm-engine-gfx and drm-engine-compute in /proc/*/fdinfo, 1 s",
                "memoryAllocated": "drm-memory-vram in /proc/*/fdinfo (an APU: with drm-memory-gtt), 1 s / total",
                "memoryAllocatedBytes": "drm-memory-vram in /proc/*/fdinfo (an APU: with drm-memory-gtt), 1 s",
                **{name: f"as `gpu.{{i}}.{name}`" for name in ("temp", "powerWatts", "enforcedPowerLimitWatts", "powerPercent")},
            },
        )

    def own_metrics(self) -> tuple[Metric, ...]:
        return ()

    def pinned(self, source: str) -> AmdBackend:
        """This backend with one source: the same object for the same name, so that its users share it.

        Raises:
            UnknownNameError: There is no such source; the message lists those there are.
        """
        if source not in SOURCES:
            raise UnknownNameError("source of the backend amd", source, SOURCES)
        return _pinned(source)

    def __reduce__(self) -> tuple[object, ...]:
        """In another process it is that process's own."""
        return (_pinned, (self.pin,)) if self.pin else (_unpinned, ())

    def _explained(self, failures: list[SourceError]) -> SourceError:
        """The failure of the best source that is there, with what the kernel shows to be wrong first among the advice."""
        first = next((error for error in failures if error.reason != Reason.DRIVER_UNAVAILABLE), failures[0])
        message = "; ".join(dict.fromkeys(error.message for error in (first, *failures)))
        advice = dict.fromkeys(words for words in (detect().advice, *(error.advice for error in failures)) if words)
        return type(first)(first.reason, message, backend=self.name, advice="; ".join(advice))


@lru_cache(maxsize=len(SOURCES))
def _pinned(source: str) -> AmdBackend:
    return AmdBackend(pin=source)


def _unpinned() -> AmdBackend:
    return backend


backend = AmdBackend()
