"""Process numbers: those that the system can give and that no process has, and those of processes that have ended."""

from __future__ import annotations

from pathlib import Path

import psutil

_LARGEST = Path("/proc/sys/kernel/pid_max")
STRANGER = (int(_LARGEST.read_text()) if _LARGEST.exists() else 2**22) - 1000
"""The first of a thousand numbers that the kernel gives out last."""


def gone(pid: int) -> bool:
    """Whether a process has ended, reaped or not: who reaps an orphan is not ours to say."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
