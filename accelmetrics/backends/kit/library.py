"""Loading of vendors' shared libraries. A library that hangs in its constructor blocks only the loading thread.

``ctypes.CDLL`` holds the interpreter's lock (GIL) while the system's loader works. This module calls libc's own functions instead,
without that lock. Anything that needs the loader after that waits for it (:mod:`~accelmetrics.backends.loading`), so modules that
this package imports later are imported before.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from accelmetrics.backends.guard import through, waiting_for
from accelmetrics.backends.loading import import_modules, loading
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable

LATER = (
    *("json", "_socket", "_csv", "array", "binascii", "_datetime", "math", "select", "unicodedata", "zlib", "_bz2", "_lzma"),
    *("_bisect", "_random", "_sha2" if sys.version_info >= (3, 12) else "_sha512"),  # of temporary files
    "_opcode",  # of inspect
    *(("fcntl", "_posixsubprocess") if os.name == "posix" else ()),
)
"""Python's own modules that need the loader and that a reading, its document or another sampler imports later.

If one of them were imported while a library hangs, the program would stop. Of whole packages (for example ``importlib.metadata``,
which finds plug-ins) only the part that is a shared library is listed.
"""


class SharedLibrary(ctypes.CDLL):
    """A loaded library. It looks its functions up through libc as well, so without the interpreter's lock."""

    def __getitem__(self, name: Any) -> Any:
        address = _LIBC.dlsym(self._handle, name.encode())
        if address is None:
            raise AttributeError(f"{self._name} has no {name}")
        return self._FuncPtr(address)


@through
def load_library(name: str) -> ctypes.CDLL:
    """Load a shared library by its path, or by a name that the system's loader finds.

    Raises:
        OSError: It does not exist, or cannot be loaded.
        SourceError: Another library hangs while it is loaded (``timed_out``).
    """
    # These imports need the loader, which is not free again if this library hangs.
    import_modules(LATER)
    with loading, waiting_for(name):
        if _LIBC is None:
            return ctypes.CDLL(name)
        handle = _LIBC.dlopen(os.fsencode(name), os.RTLD_NOW | os.RTLD_LOCAL)
        if handle is None:
            raise OSError(os.fsdecode(_LIBC.dlerror() or b"the loader does not say why"))
        return SharedLibrary(name, handle=handle)


def loading_failure(name: str, error: OSError | ImportError, *, seen: bool = False) -> Unavailable | None:
    """Return in the loader's words why an existing library does not load; None if it does not exist.

    The loader names the file that it did not find. That tells a missing library from one that lacks a dependency.

    Args:
        name: The name that was loaded.
        error: The error of :func:`load_library` or :func:`import_library`.
        seen: Whether the file is known to exist; checked if ``name`` is a path.
    """
    message = str(error)
    missing = any(words in message for words in (os.strerror(errno.ENOENT), "(no such file)"))  # macOS lists the places where it looked
    if isinstance(error, (FileNotFoundError, ModuleNotFoundError)) or (missing and name in message and "needed by" not in message):
        if not (seen or os.path.isfile(name)):  # noqa: PTH113 - a module's name is no path
            return None
        # glibc skips a file for another architecture, and then reports that it found none.
        message += " (the loader says the same of a file for another architecture)"
    reason = Reason.NO_PERMISSION if os.strerror(errno.EACCES) in message else Reason.DRIVER_UNAVAILABLE
    return Unavailable(reason, f"{name} exists but does not load: {message}")


def load_first(name: str, places: Sequence[str], install: str, broken: str = "") -> ctypes.CDLL:
    """Load a library from the first of several places where it exists.

    Args:
        name: Its name in messages.
        places: As for :func:`load_library`.
        install: What to do if it is nowhere.
        broken: What to do if it exists and does not load.

    Raises:
        SourceError: It is nowhere, or exists and does not load (``driver_unavailable``, ``no_permission``); or another library
            hangs while it is loaded (``timed_out``).
    """
    for place in places:
        try:
            return load_library(place)
        except OSError as error:
            if (failure := loading_failure(place, error)) is not None:
                raise SourceError(*failure, advice=broken) from error
    raise SourceError(Reason.DRIVER_UNAVAILABLE, f"{name} was not found ({', '.join(places)})", advice=install)


@through
def import_library(name: str) -> ModuleType:
    """Import a vendor's Python module. A module that is itself a shared library is loaded through libc first.

    Raises:
        ImportError: It is not installed, or cannot be imported.
        OSError: It cannot be loaded.
        SourceError: A library hangs while it is loaded (``timed_out``).
    """
    with loading:
        found = find_spec(name) if name not in sys.modules else None
        # Import holds the interpreter's lock while the loader works. After this, it only looks up what is loaded.
        if found is not None and found.origin is not None and found.origin.endswith(tuple(EXTENSION_SUFFIXES)):
            load_library(found.origin)
        return importlib.import_module(name)


def _bound_libc() -> Any:
    """Bind libc's loader functions; None on a system without them (Windows)."""
    if not hasattr(os, "RTLD_NOW"):
        return None
    libc = ctypes.CDLL(None)
    libc.dlopen.argtypes, libc.dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    libc.dlsym.argtypes, libc.dlsym.restype = (ctypes.c_void_p, ctypes.c_char_p), ctypes.c_void_p
    libc.dlerror.argtypes, libc.dlerror.restype = (), ctypes.c_char_p
    if hasattr(libc, "on_exit") and hasattr(libc, "_exit"):
        atexit.register(_exit_past_the_loader, libc.on_exit, libc._exit)
    return libc


def _exit_past_the_loader(on_exit: Any, exit_now: Any) -> None:
    """Make libc end the process before it runs its loader's exit code, which would wait for the hanging library."""
    if not loading.is_free():
        # libc runs its exit functions in reverse order: registered this late, _exit comes before the loader's.
        on_exit(exit_now, None)


_LIBC = _bound_libc()
