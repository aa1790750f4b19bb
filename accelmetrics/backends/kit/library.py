"""Shared libraries of vendors, loaded so that one whose constructor never returns costs only the thread that loads it.

``ctypes.CDLL`` holds the interpreter's lock while the system's loader works. Here libc's own functions do the work, which are called
without that lock. What needs the loader after that waits (:mod:`~accelmetrics.backends.loading`), so whatever this package imports
later is imported before.
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

from accelmetrics.backends.guard import waiting_for
from accelmetrics.backends.kit.tap import through
from accelmetrics.backends.loading import import_modules, loading
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable

LATER = (
    *("json", "_socket", "_csv", "array", "binascii", "_datetime", "math", "select", "unicodedata", "zlib", "_bz2", "_lzma"),
    *("_bisect", "_random", "_sha2" if sys.version_info >= (3, 12) else "_sha512"),  # of temporary files
    "_opcode",  # of inspect
    *(("fcntl", "_posixsubprocess") if os.name == "posix" else ()),
)
"""Modules of Python's that need the loader, and that a reading, the document made of it or another sampler imports where it needs them.

Where a caller of ours would import them beside a library that hangs, the program would stand still. Of whole packages of Python's (for
one ``importlib.metadata``, which finds plug-ins) only the part is named that is a shared library.
"""


class SharedLibrary(ctypes.CDLL):
    """A loaded library. Its functions are looked up by the system's loader too, so without the interpreter's lock."""

    def __getitem__(self, name: Any) -> Any:
        address = _LIBC.dlsym(self._handle, name.encode())
        if address is None:
            raise AttributeError(f"{self._name} has no {name}")
        return self._FuncPtr(address)


@through
def load_library(name: str) -> ctypes.CDLL:
    """Load a shared library by its path, or by a name that the system's loader finds.

    Raises:
        OSError: It is not there, or cannot be loaded.
        SourceError: Another one hangs while it is loaded (``timed_out``).
    """
    import_modules(LATER)
    with loading, waiting_for(name):
        if _LIBC is None:
            return ctypes.CDLL(name)
        handle = _LIBC.dlopen(os.fsencode(name), os.RTLD_NOW | os.RTLD_LOCAL)
        if handle is None:
            raise OSError(os.fsdecode(_LIBC.dlerror() or b"the loader does not say why"))
        return SharedLibrary(name, handle=handle)


def loading_failure(name: str, error: OSError | ImportError, *, seen: bool = False) -> Unavailable | None:
    """Say in the loader's words why a library that is there does not load; None where it is not there.

    A library that another one needs and that is missing is told apart by its name: the loader says which file it did not find.

    Args:
        name: What was loaded.
        error: What :func:`load_library` or :func:`import_library` raised.
        seen: The file is known to be there; of a path this is found out.
    """
    said = str(error)
    missing = any(words in said for words in (os.strerror(errno.ENOENT), "(no such file)"))  # macOS lists where it looked
    if isinstance(error, (FileNotFoundError, ModuleNotFoundError)) or (missing and name in said and "needed by" not in said):
        if not (seen or os.path.isfile(name)):  # noqa: PTH113 - a module's name is no path
            return None
        # glibc passes such a file over, and then says that it found none.
        said += " (so the loader says, too, of a file for another architecture)"
    refused = os.strerror(errno.EACCES) in said
    return Unavailable(Reason.NO_PERMISSION if refused else Reason.DRIVER_UNAVAILABLE, f"{name} is there and does not load: {said}")


def load_first(name: str, places: Sequence[str], install: str, broken: str = "") -> ctypes.CDLL:
    """Load a library from the first of several places where it is.

    Args:
        name: What it is called.
        places: As for :func:`load_library`.
        install: What to do where none is there.
        broken: What to do where one is there and does not load.

    Raises:
        SourceError: None is there, or one is and does not load (``driver_unavailable``, ``no_permission``); another one hangs while it is
            loaded (``timed_out``).
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
    """Import a vendor's Python module; one that is a shared library itself is loaded as such first.

    Raises:
        ImportError: It is not installed, or cannot be imported.
        OSError: It cannot be loaded.
        SourceError: A library hangs while it is loaded (``timed_out``).
    """
    with loading:
        found = find_spec(name) if name not in sys.modules else None
        if found is not None and found.origin is not None and found.origin.endswith(tuple(EXTENSION_SUFFIXES)):
            load_library(found.origin)
        return importlib.import_module(name)


def _bound_libc() -> Any:
    """Bind the loader's functions of this process; None where it has none of that form (Windows)."""
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
    """Have libc end the process before it comes to its loader, which would wait for that."""
    if not loading.is_free():
        on_exit(exit_now, None)


_LIBC = _bound_libc()
