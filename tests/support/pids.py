"""Process numbers that the system can give and that no process has."""

from __future__ import annotations

from pathlib import Path

_LARGEST = Path("/proc/sys/kernel/pid_max")
STRANGER = (int(_LARGEST.read_text()) if _LARGEST.exists() else 2**22) - 1000
"""The first of a thousand numbers that the kernel gives out last."""
