"""A stand-in for ROCm's ``libamd_smi.so``, compiled here, so that the real module ``amdsmi`` from PyPI runs against it.

The module is installed into a directory of its own below ``.cache/amdsmi``; it is a part of no environment that tests run in.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.locking import locked
from tests.support.missing import MissingHere

MODULE = "7.0.2"
"""The release of the module; the stand-in has its structures."""
SOURCE = Path(__file__).with_name("amd_smi.c")
CACHE = Path(__file__).resolve().parents[3] / ".cache" / "amdsmi"
LIBRARY = "libamd_smi.so"
FLAGS = ("-shared", "-fPIC", "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror")
INSTALL_SECONDS = 50

_USED = re.compile(r"_libraries\['libamd_smi\.so'\]\.(\w+)")
_IMPLEMENTED = re.compile(r"^int (amdsmi_\w+)\(", re.MULTILINE)


class StandInUnavailable(MissingHere):
    """The module cannot be installed, or the library not be built; the message says why."""


@functools.cache
def module() -> Path:
    """The directory that holds the package ``amdsmi``."""
    target = CACHE / f"module-{MODULE}"
    with locked(CACHE / "module.lock"):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=CACHE) as draft:
                _install(draft)
                Path(draft, "amdsmi").rename(_made(Path(draft, "module")) / "amdsmi")
                Path(draft, "module").rename(target)
    return target


def _install(target: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, f"amdsmi=={MODULE}"]
    try:
        done = subprocess.run(pip, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise StandInUnavailable(f"amdsmi {MODULE} could not be installed in {INSTALL_SECONDS} s") from error
    if done.returncode:
        raise StandInUnavailable(f"amdsmi {MODULE} cannot be installed here: {done.stderr.strip().splitlines()[-1:]}")


@functools.cache
def library() -> Path:
    """The compiled library, or the one that was compiled before from the same sources."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise StandInUnavailable("no C compiler: the stand-in for libamd_smi.so cannot be built")
    code = SOURCE.read_text(encoding="utf-8")
    used = set(_USED.findall((module() / "amdsmi" / "amdsmi_wrapper.py").read_text(encoding="utf-8")))
    stubs = "\n".join(f"int {name}(void) {{ return NOT_SUPPORTED; }}" for name in sorted(used - set(_IMPLEMENTED.findall(code))))
    whole = f"{code}\n{stubs}\n"
    target = CACHE / f"library-{hashlib.sha256(whole.encode()).hexdigest()[:16]}" / LIBRARY
    if not target.exists():
        _compile(compiler, whole, target)
    return target


def _compile(compiler: str, code: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=_made(CACHE)) as draft:
        Path(draft, "amd_smi.c").write_text(code, encoding="utf-8")
        done = subprocess.run([compiler, *FLAGS, "amd_smi.c", "-o", LIBRARY], cwd=draft, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StandInUnavailable(f"the stand-in for libamd_smi.so does not compile:\n{done.stderr}")
        os.replace(Path(draft, LIBRARY), _made(target.parent) / LIBRARY)  # noqa: PTH105  one call: a reader sees all or nothing


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


class Rocm:
    """An installed ROCm: a directory for ``ROCM_PATH``.

    Args:
        root: Where to put it.
        release: What ``.info/version`` says; none when empty.
    """

    def __init__(self, root: Path, release: str = f"{MODULE}-56") -> None:
        self.root = root
        self.state = root / "state"
        (_made(root / "lib") / LIBRARY).symlink_to(library())
        if release:
            (_made(root / ".info") / "version").write_text(f"{release}\n", encoding="utf-8")
        self.behave({})

    def ship(self, version: str = "") -> None:
        """Bring the module along, as ROCm does, under another version where one is given."""
        package = self.root / "share" / "amd_smi" / "amdsmi"
        shutil.copytree(module() / "amdsmi", package, ignore=shutil.ignore_patterns("__pycache__"))
        if version:
            (package / "_version.py").write_text(f'__version__ = "{version}"\n', encoding="utf-8")

    def behave(self, answers: Mapping[str, float]) -> None:
        """Change what the library answers from its next call on."""
        self.state.write_text("".join(f"{key} {value!r}\n" for key, value in answers.items()), encoding="utf-8")


def bdf(address: str) -> int:
    """A PCI address as the library packs it."""
    domain, bus, rest = address.split(":")
    device, _, function = rest.partition(".")
    return int(domain, 16) << 16 | int(bus, 16) << 8 | int(device, 16) << 3 | int(function, 16)
