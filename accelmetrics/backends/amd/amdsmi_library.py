"""The Python module ``amdsmi``: found, held against the library that is installed, and loaded.

The module is a description of the library's structures, which change from release to release; one that does not match reads
garbage, or writes beyond what it allocated. So no module is loaded before its version was compared with the library's:

1. the library is looked for where ROCm puts it; without one no module is imported (that would print and raise ``KeyError``);
2. the module that ROCm brought along (``share/amd_smi``) is preferred, then one on Python's path;
3. a module's version is read from its text. It must be the library's own (``26.0.2``), or that of the ROCm release that the
   library belongs to (``7.0.2``), which is how the modules on PyPI are numbered. Of a module that ROCm brought along the first two
   numbers count: ROCm 6.0 ships 23.4.2 with a library that calls itself 23.4.0;
4. once loaded, it must have loaded the very library that it was compared with.

The library's file name bears the first two numbers (``libamd_smi.so.24.7.60300``). The library itself tells its version only after
``amdsmi_init`` (32, NOT_INIT, before), which wakes cards: it is asked where the name does not decide, and never while a card sleeps
(:func:`~accelmetrics.backends.amd.amdsmi_worker.open_cards` sees to that).

The module is loaded under a name of its own, so that a program's own ``import amdsmi`` is not touched, and what it prints
goes to standard error. The library does not count its users, so it is never shut down: another user may be in this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

from accelmetrics.backends.guard import guarded
from accelmetrics.backends.kit.library import load_library, loading_failure
from accelmetrics.backends.loading import loading
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable

LIBRARY = "libamd_smi.so"
DEFAULT_ROOT = "/opt/rocm"
PRIVATE_NAME = "_accelmetrics_amdsmi"
ROOM = 8192
"""Bytes for an answer whose size depends on the release."""
INSTALL = "install the Python module of the installed ROCm release: it is in /opt/rocm/share/amd_smi, or amdsmi of that version on PyPI"
REINSTALL = "install ROCm's package amd-smi-lib again: `ldd` on the library says what it lacks"

GPUS = 2
"""``amdsmi_init``'s argument: all but GPUs is left alone."""
YEAR = 23
"""The library is numbered by the year since 2023. The file of ROCm 5.7 may bear a placeholder, ``libamd_smi.so.1.0.50700``."""

_VERSION = re.compile(r"^(?:__)?version(?:__)?\s*=\s*[\"'](\d+\.\d+\.\d+)", re.MULTILINE)
_FILE = re.compile(r"libamd_smi\.so\.(\d+\.\d+)(?:\.\d+)*", re.ASCII)
_RELEASE = re.compile(r"\A\s*(\d+\.\d+\.\d+)", re.ASCII)

Version = tuple[int, ...]


def load() -> Any:
    """Import the module that matches the installed library, and make sure that it loaded the same library.

    Raises:
        SourceError: There is no library, no module, or none that matches.
    """
    with loading:  # the module loads the library again
        library, known, release = find_library()
        mismatched = []
        for package in packages(library):
            is_shipped = package == _shipped(library)
            version = _written(package / "_version.py", _VERSION)
            if not version and is_shipped:  # before ROCm 6.1 it stands in the file beside the package alone
                version = _written(package.parent / "pyproject.toml", _VERSION)
            numbers = 2 if is_shipped else 3
            if version and version != release and len(known) < numbers and version[:2] == (known or version[:2]):
                known = _ask(library)
            if version and (version == release or version[:numbers] == known[:numbers]):
                break
            mismatched.append(f"{package} is of version {_dotted(version) or 'unknown'}")
        else:
            if not mismatched:
                raise _refused(f"no Python module amdsmi was found for {library}")
            raise _refused(f"{'; '.join(mismatched)}, which does not match {_words(library, known, release)}: it is not used")
        module = _import(package)
        loaded = module.amdsmi_interface.amdsmi_wrapper._libraries[LIBRARY]
        # Functions of one loaded library have one address, whatever name it was loaded by.
        first, second = (ctypes.cast(each.amdsmi_init, ctypes.c_void_p).value for each in (loaded, _opened(library)))
        if first != second:
            other = f"another library ({loaded._name}) than {_words(library, known, release)}"
            raise _refused(f"the module amdsmi loaded {other}: it is not used")
        return module


def find_library() -> tuple[Path, Version, Version]:
    """Find the library of the installed ROCm.

    Returns:
        Its path; the first two numbers of its version, as its file's name has them, empty where it has none; the ROCm release that it
        belongs to, empty where that is not written down.

    Raises:
        SourceError: There is none, or it cannot be loaded.
    """
    named = os.environ.get("ROCM_HOME", os.environ.get("ROCM_PATH", ""))
    roots = [Path(root) for root in dict.fromkeys([named, DEFAULT_ROOT]) if root.startswith("/")]  # in the module's own order
    for root in roots:
        path = root / "lib" / LIBRARY
        if path.exists():
            _opened(path)
            numbered = _FILE.fullmatch(path.resolve().name)
            version = tuple(map(int, numbered[1].split("."))) if numbered else ()
            return path, version if version >= (YEAR,) else (), _written(root / ".info" / "version", _RELEASE)
    raise _refused(f"{LIBRARY} was found in none of {', '.join(str(root / 'lib') for root in roots)}")


def _words(library: Path, version: Version, release: Version) -> str:
    """Describe the library for messages."""
    return f"{library} (version {_dotted(version) or 'unknown'}{f', of ROCm {_dotted(release)}' if release else ''})"


def packages(library: Path) -> list[Path]:
    """List the directories of the module ``amdsmi``, the best first."""
    elsewhere = (Path(directory or ".") / "amdsmi" for directory in sys.path)
    return [package for package in dict.fromkeys([_shipped(library), *elsewhere]) if (package / "__init__.py").is_file()]


def _shipped(library: Path) -> Path:
    """Return where the module is that ROCm brings along."""
    return library.parent.parent / "share" / "amd_smi" / "amdsmi"


def _opened(path: Path) -> ctypes.CDLL:
    try:
        return load_library(str(path))
    except OSError as error:
        why = loading_failure(str(path), error) or Unavailable(Reason.DRIVER_UNAVAILABLE, str(error))
        raise SourceError(*why, backend="amd", advice=REINSTALL) from error


def _ask(path: Path) -> Version:
    """Initialise a library and ask it for its version: in every release so far the first three numbers of the answer."""
    library, answer = _opened(path), (ctypes.c_uint32 * (ROOM // 4))()
    try:
        status = library.amdsmi_init(ctypes.c_uint64(GPUS)) or library.amdsmi_get_lib_version(ctypes.byref(answer))
    except AttributeError as error:
        raise _refused(f"{path} cannot be loaded: {error}") from error
    if status:
        raise _refused(f"{path} does not start: amdsmi_init answers {status}")
    return tuple(answer[:3])


def _written(path: Path, form: re.Pattern[str]) -> Version:
    """Read the version that stands in a file; empty when it does not say."""
    try:
        found = form.search(path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ()
    return tuple(map(int, found[1].split("."))) if found else ()


def _import(package: Path) -> Any:
    spec = importlib.util.spec_from_file_location(PRIVATE_NAME, package / "__init__.py", submodule_search_locations=[str(package)])
    assert spec is not None and spec.loader is not None  # a file that is there has both
    module = importlib.util.module_from_spec(spec)
    _forget()
    sys.modules[PRIVATE_NAME] = module
    with contextlib.redirect_stdout(sys.stderr):
        outcome = guarded(spec.loader.exec_module, module)
    if outcome.failure is not None:
        _forget()
        raise _refused(f"{package} cannot be imported: {outcome.failure.detail}") from outcome.error
    return module


def _forget() -> None:
    for name in [name for name in sys.modules if name == PRIVATE_NAME or name.startswith(f"{PRIVATE_NAME}.")]:
        del sys.modules[name]


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _refused(message: str) -> SourceError:
    return SourceError(Reason.DRIVER_UNAVAILABLE, message, backend="amd", advice=INSTALL)
