"""AMD GPUs. Hygon's cards have the same design, and their backend reads their files with the code of this folder.

There are four sources, best first. The first source that opens is used, unless one is pinned:

=========  ===============================================================================  =========
sysfs      the kernel driver's files, merged with the module ``amdsmi`` if one matches      on demand
amdsmi     the module alone                                                                 on demand
amd-smi    the command ``amd-smi``                                                          every 2 s
rocm-smi   the command ``rocm-smi``                                                         every 2 s
=========  ===============================================================================  =========

All sources give the same metrics under the same names. :mod:`~accelmetrics.backends.amd.cards` finds the hardware for all of them. The
module of a source is imported when the source is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from accelmetrics.backends.amd.cards import detect
from accelmetrics.backends.contract import Clock, Coverage, Driver
from accelmetrics.backends.kit.sources import Open, SourcesBackend

BACKEND = "amd"


def _in_process(clock: Clock, sources: tuple[str, ...] = ("sysfs", "amdsmi")) -> Driver:
    from accelmetrics.backends.amd.in_process import InProcessDriver

    return InProcessDriver(clock, sources)


def _amd_smi(clock: Clock) -> Driver:
    from accelmetrics.backends.amd import amd_smi

    return amd_smi.backend(clock).open()


def _rocm_smi(clock: Clock) -> Driver:
    from accelmetrics.backends.amd import rocm_smi

    return rocm_smi.backend(clock).open()


SOURCES: Mapping[str, Open] = {
    **{name: partial(_in_process, sources=(name,)) for name in ("sysfs", "amdsmi")},
    **{"amd-smi": _amd_smi, "rocm-smi": _rocm_smi},
}
"""Sources that can be pinned, by name."""
DEFAULT: tuple[Open, ...] = (_in_process, _amd_smi, _rocm_smi)
"""Sources that are tried in order if none is pinned."""


PROCESSES = {
    "gpu": "drm-engine-gfx and drm-engine-compute in /proc/*/fdinfo, 1 s",
    "memoryAllocated": "drm-memory-vram in /proc/*/fdinfo (an APU: as of the device), 1 s / total",
    "memoryAllocatedBytes": "drm-memory-vram in /proc/*/fdinfo (an APU: as of the device), 1 s",
    **{name: f"as `gpu.{{i}}.{name}`" for name in ("temp", "powerWatts", "enforcedPowerLimitWatts", "powerPercent")},
}
"""Metrics of the watched process, and where they are read."""


def _coverage() -> Coverage:
    from accelmetrics.backends.amd import amd_smi, amdsmi, in_process, rocm_smi
    from accelmetrics.backends.kit.fields import joined_words

    commands = (source.backend().coverage().devices for source in (amd_smi, rocm_smi))
    sources = (in_process.CARDS.words, amdsmi.TABLE.words, *commands)
    return Coverage(
        joined_words(pair for words in sources for pair in words.items()),
        in_process.PARTITIONS.words,
        processes=PROCESSES,
    )


backend = SourcesBackend(BACKEND, "gpu", SOURCES, default=DEFAULT, detect=detect, coverage=_coverage)
