"""``ioreg``: what the GPU's driver counts, for everybody to read. Utilisation in percent, memory in bytes.

The GPU has no memory of its own: what it uses is part of the host's, which is what its share is taken of.
"""

from __future__ import annotations

import plistlib
from collections.abc import Mapping
from typing import NamedTuple

from accelmetrics.backends.apple.tools import output
from accelmetrics.backends.apple.values import Values, number, share, whole, within
from accelmetrics.backends.guard import guarded
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason, Unavailable

ARGUMENTS = ("-r", "-d1", "-c", "IOAccelerator", "-a")
TIMEOUT = 1.0
"""Seconds: it takes a thirtieth of that, and what the other sources say must not grow old beside it."""
NAMES = frozenset({"gpu", "memoryAllocatedBytes", "memoryAllocated", "memoryTotalBytes"})

NO_RAM = Unavailable(Reason.DRIVER_ERROR, "how much memory the machine has is not known")


class Accelerator(NamedTuple):
    """The GPU as its driver describes it.

    Attributes:
        statistics: What the driver counts.
        model: ``Apple M2 Pro``; empty when it does not say.
        cores: Number of GPU cores, if it says.
    """

    statistics: Mapping[str, object]
    model: str
    cores: int | None


def run() -> Accelerator:
    """Ask for the GPU.

    Raises:
        SourceError: The command is not there, was late, or printed something else.
    """
    return parse(output("ioreg", ARGUMENTS, TIMEOUT))


def parse(text: str) -> Accelerator:
    """Read the property list: a list of dictionaries, one per accelerator.

    Raises:
        SourceError: It is none, or holds no GPU.
    """
    plist = guarded(plistlib.loads, text.encode())  # the parser throws whatever comes to pass in it
    if plist.failure is not None or not isinstance(plist.value, list):
        raise SourceError(Reason.PARSE_ERROR, f"ioreg printed no property list: {' '.join(text.split())[:80]}")
    for entry in plist.value:
        statistics = entry.get("PerformanceStatistics") if isinstance(entry, Mapping) else None
        if isinstance(statistics, Mapping):
            return Accelerator(statistics, _text(entry.get("model")), _cores(entry.get("gpu-core-count")))
    raise SourceError(Reason.NOT_SUPPORTED, "ioreg lists no GPU with statistics")


def read(accelerator: Accelerator, ram: int | None) -> Values:
    """Every metric.

    Args:
        accelerator: What was printed.
        ram: Memory of the machine, in bytes.
    """
    statistics = accelerator.statistics
    used = number(statistics.get("In use system memory"), '"In use system memory"', whole)
    total = NO_RAM if ram is None else ram
    return {
        "gpu": number(statistics.get("Device Utilization %"), '"Device Utilization %"', within(0, 100)),
        "memoryAllocatedBytes": used,
        "memoryAllocated": share(used, total),
        "memoryTotalBytes": total,
    }


def _text(found: object) -> str:
    """Some releases give names as bytes that end in a zero."""
    text = found.decode("utf-8", "replace") if isinstance(found, bytes) else found if isinstance(found, str) else ""
    return text.rstrip("\0").strip()


def _cores(found: object) -> int | None:
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None
