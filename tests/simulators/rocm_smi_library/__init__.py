"""A stand-in for ROCm's ``librocm_smi64.so``, which W&B's collector reads: one card, the same as ``amdgpu.machines.rx_7900``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.missing import MissingHere
from tests.support.waiting import HANG

SOURCE = Path(__file__).with_name("rocm_smi64.c")


def build(directory: Path) -> Path:
    """Compile it into a directory, for ``LD_LIBRARY_PATH``.

    Raises:
        MissingHere: There is no compiler.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        raise MissingHere("cc is not installed")
    directory.mkdir()
    flags = ("-shared", "-fPIC", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-stringop-truncation")
    subprocess.run([compiler, *flags, "-o", str(directory / "librocm_smi64.so"), str(SOURCE)], check=True, timeout=4 * HANG)
    return directory
