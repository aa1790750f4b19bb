"""A shared library whose constructor never returns, in place of any vendor's; only for programs in processes of their own."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.missing import MissingHere

SOURCE = Path(__file__).with_name("library.c")
CACHE = Path(__file__).resolve().parents[3] / ".cache" / "hanging"
FLAGS = ("-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")


@functools.cache
def library(returns: bool = False) -> Path:
    """Return the library, compiled once; or one whose constructor returns, with a function ``answer`` that says 42."""
    if sys.platform != "linux":
        raise MissingHere(f"platform: the library is built on Linux, this is {sys.platform}")
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise MissingHere("no C compiler (cc, gcc or clang) on PATH")
    kind = "returns" if returns else "hangs"
    target = CACHE / f"{kind}-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as draft:
            made = Path(draft, "library.so")
            subprocess.run([compiler, *FLAGS, *["-DRETURNS"] * returns, str(SOURCE), "-o", str(made)], check=True)
            made.rename(target)
    return target


def install(directory: Path, name: str) -> Path:
    """Put the library into a directory under a vendor's name. Returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).symlink_to(library())
    return directory
