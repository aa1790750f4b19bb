"""What one reading gave."""

from __future__ import annotations

from typing import Any

from accelmetrics import Sampler, Snapshot
from accelmetrics.backends.contract import SYSTEM_CLOCK, Clock, Reading


def values(reading: Reading, process: bool | None = None) -> dict[str, Any]:
    """Values by name.

    Args:
        reading: The reading.
        process: Whether those of the watched process are wanted, or those of the device; both when left out.
    """
    blocks = [block for block in reading.blocks if process in (None, block.process)]
    return {name: value for block in blocks for name, value in zip(block.names, block.values, strict=True)}


def of(snapshot: Snapshot, device: int | str = 0) -> dict[str, Any]:
    """What is read of one device, given by its number (on a machine with one kind of them) or its key, or of ``gpu.process.0``."""
    key = f"{snapshot.devices[0].kind}.{device}." if isinstance(device, int) else f"{device}."
    return {name.removeprefix(key): value for name, value in snapshot.metrics.items() if name.startswith(key)}


def read(backend: str, clock: Clock | None = None, pid: int | None = None) -> Snapshot:
    """One reading of a sampler with a numbering of its own."""
    with Sampler([backend], clock=clock or SYSTEM_CLOCK, pid=pid) as sampler:
        return sampler.sample()
