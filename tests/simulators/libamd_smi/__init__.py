"""A stand-in for ROCm's ``libamd_smi.so``, compiled here, so that the real modules ``amdsmi`` from PyPI run against it.

A module is installed into a directory of its own below ``.cache/amdsmi``; it is a part of no environment that tests run in.
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
from typing import NamedTuple

from tests.support.locking import locked
from tests.support.missing import MissingHere


class Release(NamedTuple):
    """A release of ROCm.

    Attributes:
        form: Whose structures the library has, as ``FORM`` of its source.
        library: The version that the library tells, and the module that comes with it.
        file: What the library's file is called after.
    """

    form: int
    library: str
    file: str


RELEASES = {
    "5.7.0": Release(5, "23.2.0", "1.0.50700"),
    "6.2.4": Release(6, "24.6.3", "24.6.60204"),
    "7.0.2": Release(7, "26.0.2", "26.0.70002"),
}
"""By the number of the module on PyPI, which is the release's."""
MODULE = "7.0.2"
"""The release where a test asks for none."""
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
def module(release: str = MODULE) -> Path:
    """The directory that holds the package ``amdsmi`` of a release."""
    target = CACHE / f"module-{release}"
    with locked(CACHE / "module.lock"):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=CACHE) as draft:
                _install(draft, release)
                Path(draft, "amdsmi").rename(_made(Path(draft, "module")) / "amdsmi")
                Path(draft, "module").rename(target)
    return target


def _install(target: str, release: str) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, f"amdsmi=={release}"]
    try:
        done = subprocess.run(pip, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise StandInUnavailable(f"amdsmi {release} could not be installed in {INSTALL_SECONDS} s") from error
    if done.returncode:
        raise StandInUnavailable(f"amdsmi {release} cannot be installed here: {done.stderr.strip().splitlines()[-1:]}")


@functools.cache
def library(release: str = MODULE) -> Path:
    """The compiled library of a release, or the one that was compiled before from the same sources."""
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise StandInUnavailable("no C compiler: the stand-in for libamd_smi.so cannot be built")
    code = SOURCE.read_text(encoding="utf-8")
    used = set(_USED.findall((module(release) / "amdsmi" / "amdsmi_wrapper.py").read_text(encoding="utf-8")))
    stubs = "\n".join(f"int {name}(void) {{ return NOT_SUPPORTED; }}" for name in sorted(used - set(_IMPLEMENTED.findall(code))))
    whole = f"#define FORM {RELEASES[release].form}\n{code}\n{stubs}\n"
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
        version: Whose library and module it has: one of :data:`RELEASES`.
        file: What the library's file is called after, where that is not as the release has it; nothing when empty.
    """

    def __init__(self, root: Path, release: str = f"{MODULE}-56", version: str = MODULE, file: str | None = None) -> None:
        self.root = root
        self.state = root / "state"
        self.starts = root / "starts"
        self.version = version
        name = RELEASES[version].file if file is None else file
        real = _made(root / "lib") / (f"{LIBRARY}.{name}" if name else LIBRARY)
        shutil.copy(library(version), real)
        if name:
            (root / "lib" / LIBRARY).symlink_to(real.name)
        if release:
            (_made(root / ".info") / "version").write_text(f"{release}\n", encoding="utf-8")
        self.behave({})

    def ship(self, version: str = "") -> None:
        """Bring the module along, as ROCm does: with the library's version, or another one.

        Where the version is written depends on the release: before ROCm 6.1 beside the package, and nowhere in it.
        """
        package = self.root / "share" / "amd_smi" / "amdsmi"
        shutil.copytree(module(self.version) / "amdsmi", package, ignore=shutil.ignore_patterns("__pycache__"))
        version = version or f"{RELEASES[self.version].library}+39589fda"
        written = package / "_version.py"
        if written.exists():
            written.write_text(f'__version__ = "{version}"\n', encoding="utf-8")
        else:
            (package.parent / "pyproject.toml").write_text(f'[project]\nname = "amdsmi"\nversion = "{version}"\n', encoding="utf-8")

    @property
    def initialised(self) -> int:
        """How often ``amdsmi_init`` was called, where ``AMDSMI_STAND_IN_STARTS`` names :attr:`starts`."""
        return len(self.starts.read_text(encoding="utf-8").splitlines()) if self.starts.exists() else 0

    def behave(self, answers: Mapping[str, float]) -> None:
        """Change what the library answers from its next call on."""
        self.state.write_text("".join(f"{key} {value!r}\n" for key, value in answers.items()), encoding="utf-8")


def bdf(address: str) -> int:
    """A PCI address as the library packs it."""
    domain, bus, rest = address.split(":")
    device, _, function = rest.partition(".")
    return int(domain, 16) << 16 | int(bus, 16) << 8 | int(device, 16) << 3 | int(function, 16)
