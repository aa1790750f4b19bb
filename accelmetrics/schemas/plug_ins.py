"""Plug-ins: objects that this package has built in, and objects that other packages register under an entry-point group.

Built-in objects are listed by name as ``module:attribute``. So using one does not require a scan of every installed package.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING

from accelmetrics.schemas.errors import AccelMetricsError, InvalidOptionError, UnknownNameError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PACKAGE = "accelmetrics"
UNFIT = (ImportError, AttributeError, NameError, SyntaxError, TypeError, ValueError, LookupError, RuntimeError, OSError)
"""Exceptions of a plug-in that is incomplete, or was made for another release."""


@lru_cache
def registered(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points that other packages register under a group, by name in sorted order. Cached."""
    if not mentioned(group):
        return {}
    from importlib.metadata import entry_points

    points = sorted(entry_points(group=group), key=lambda point: point.name)
    return {point.name: point for point in points if point.dist is None or point.dist.name != PACKAGE}


def mentioned(group: str) -> bool:
    """Return whether another installed package may register something under a group.

    This searches the packages' ``entry_points.txt`` files for the group's name. Anything but a plain directory counts as a yes.
    """
    # The usual answer is no. Then ``importlib.metadata`` is not loaded: importing it takes longer than everything else of a first reading.
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return True
    group_bytes = group.encode()
    # Programs also put bytes, paths and even other objects into sys.path. Importing ignores them; importlib.metadata does not.
    known: Iterable[object] = dict.fromkeys(sys.path)
    folders = [os.fsdecode(folder) for folder in known if isinstance(folder, (str, bytes, os.PathLike))]
    return any(_is_mentioned(group_bytes, folder or os.curdir) for folder in folders)


def _is_mentioned(group_bytes: bytes, folder: str) -> bool:
    try:
        entries = os.listdir(folder)  # noqa: PTH208 - pathlib would be a part of every first reading
    except FileNotFoundError:
        return False
    except OSError:  # usually an archive
        return True
    if folder.lower().endswith(".egg"):
        return True
    for entry in entries:
        package, end = os.path.splitext(entry)  # noqa: PTH122
        if end.lower() in (".dist-info", ".egg-info") and package.partition("-")[0] != PACKAGE:
            with suppress(OSError), open(f"{folder}/{entry}/entry_points.txt", "rb") as file:  # noqa: PTH123
                if group_bytes in file.read():
                    return True
    return False


def names(group: str, built_in: Mapping[str, object]) -> tuple[str, ...]:
    """Return the built-in names, then the names that other packages register, each once.

    Args:
        group: The entry-point group.
        built_in: The built-in objects, by name.
    """
    return tuple(dict.fromkeys((*built_in, *registered(group))))


def load(what: str, group: str, built_in: Mapping[str, str], name: str) -> object:
    """Import the object of a name. A built-in object takes precedence.

    Args:
        what: The word for it in messages: ``exporter``.
        group: The entry-point group.
        built_in: The built-in objects, by name, as ``module:attribute``.
        name: The name.

    Raises:
        UnknownNameError: The name is unknown.
        Exception: Any error of the module's import; an :class:`ImportError` or :class:`AttributeError` if there is no such module or
            attribute.
    """
    if name in built_in:
        module, _, attribute = built_in[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    if name not in registered(group):
        raise UnknownNameError(what, name, names(group, built_in))
    return registered(group)[name].load()


def package(group: str, name: str) -> str:
    """Return the package that registers a name, in words."""
    dist = registered(group)[name].dist
    return f"package {dist.name}" if dist is not None else "package of unknown name"


@contextmanager
def load_errors(what: str, group: str, wanted: object) -> Iterator[None]:
    """Turn errors of a plug-in in the block into an error that names its module, and the package that registers it.

    Args:
        what: The word for it in messages: ``exporter``.
        group: The entry-point group.
        wanted: Its name, or an object.

    Raises:
        InvalidOptionError: It cannot be imported or created.
    """
    try:
        yield
    except AccelMetricsError:
        raise
    except UNFIT as error:
        entry = registered(group).get(wanted) if isinstance(wanted, str) else None
        named = f"{wanted!r} ({entry.value})" if entry else repr(wanted)
        advice = f": fix or uninstall the {package(group, entry.name)}, which registers it" if entry else ""
        raise InvalidOptionError(f"the {what} {named} could not be loaded: {type(error).__name__}: {error}{advice}") from error
