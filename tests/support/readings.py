"""What one reading of a driver gave."""

from __future__ import annotations

from typing import Any

from accelmetrics.backends.contract import Reading


def values(reading: Reading, process: bool | None = None) -> dict[str, Any]:
    """Values by name.

    Args:
        reading: The reading.
        process: Whether those of the watched process are wanted, or those of the device; both when left out.
    """
    blocks = [block for block in reading.blocks if process in (None, block.process)]
    return {name: value for block in blocks for name, value in zip(block.names, block.values, strict=True)}
