"""What does not change about a Mac, asked once when the source is opened: the GPU's name and cores, the memory."""

from __future__ import annotations

import json
from collections.abc import Mapping

from accelmetrics.backends.apple.detection import BACKEND
from accelmetrics.backends.apple.ioreg import Accelerator
from accelmetrics.backends.apple.tools import output
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.identity import DeviceIdentity

PROFILER = ("SPDisplaysDataType", "-json")
PROFILER_TIMEOUT = 4.0
"""It takes a second or so on an idle Mac."""
SYSCTL = ("-n", "hw.memsize")
SYSCTL_TIMEOUT = 1.0


Profile = tuple[str, int | None]
"""The GPU's name, empty when it is not said, and the number of its cores."""


def memory() -> int | None:
    """Memory of the machine in bytes; None when it is not said."""
    try:
        printed = output("sysctl", SYSCTL, SYSCTL_TIMEOUT).strip()
    except SourceError:
        return None
    return int(printed) if printed.isascii() and printed.isdecimal() and len(printed) < 20 and int(printed) > 0 else None


def identify(profile: Profile, accelerator: Accelerator | None, ram: int | None) -> DeviceIdentity:
    """Who the GPU is: as ``system_profiler`` says, else as its driver does.

    Args:
        profile: What ``system_profiler`` says.
        accelerator: The driver's words, if it gave any.
        ram: Memory of the machine, in bytes.
    """
    name, cores = profile
    if accelerator is not None:
        name, cores = name or accelerator.model, cores or accelerator.cores
    return DeviceIdentity(
        kind="gpu",
        vendor=BACKEND,
        vendor_index=0,
        name=name or "Apple GPU",
        cores=cores,
        memory_total_bytes=ram,
        unified=True,
    )


def profile() -> Profile:
    """The GPU's name and number of cores from ``system_profiler``; empty and None where it does not say."""
    try:
        return parse(output("system_profiler", PROFILER, PROFILER_TIMEOUT))
    except SourceError:
        return "", None


def parse(text: str) -> Profile:
    """The first of Apple's GPUs in what it prints."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return "", None
    listed = document.get("SPDisplaysDataType") if isinstance(document, Mapping) else None
    for card in listed if isinstance(listed, list) else ():
        if isinstance(card, Mapping) and "apple" in str(card.get("spdisplays_vendor", "")).lower():
            cores = str(card.get("sppci_cores", ""))
            known = cores.isascii() and cores.isdecimal() and len(cores) < 6
            return str(card.get("sppci_model") or card.get("_name") or ""), int(cores) or None if known else None
    return "", None
