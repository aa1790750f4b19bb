"""A small file system of its own, and what fills it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def mounted(place: Path, size: str) -> Iterator[Path]:
    """A file system of this size, such as ``4m``, while it lasts."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mount"):
        pytest.skip("platform: mount() is Linux's")
    place.mkdir()
    if libc.mount(b"tmpfs", str(place).encode(), b"tmpfs", 0, f"size={size}".encode()) != 0:
        pytest.skip(f"platform: this user may not mount: {os.strerror(ctypes.get_errno())}")
    try:
        yield place
    finally:
        assert libc.umount2(str(place).encode(), 2) == 0


def fill(place: Path) -> Path:
    """Leave no room at all; the file that has taken it."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler
