"""What other packages register under an entry-point group, beside what is built in.

What is built in is kept by name in a table of ``module:attribute``, so that naming it does not pay for a scan of every installed package.
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
"""What a plug-in raises that is incomplete, or was made for another release."""


@lru_cache
def registered(group: str) -> Mapping[str, EntryPoint]:
    """Find what other packages register under a group, by name and in the order of names; looked for once."""
    if not mentioned(group):
        return {}
    from importlib.metadata import entry_points

    points = [point for point in entry_points(group=group) if point.dist is None or point.dist.name != PACKAGE]
    return {point.name: point for point in sorted(points, key=lambda point: point.name)}


def mentioned(group: str) -> bool:
    """Return whether another installed package may register something under a group.

    It looks for the group's name in files, where packages are in folders; anything else may. Most often none does, and then
    ``importlib.metadata`` is not loaded, which with what it loads itself takes longer than all else of a first reading.
    """
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return True
    sought = group.encode()
    # Programs put paths that are no texts there too, which importing passes over and importlib.metadata does not; and what is no path.
    known: Iterable[object] = dict.fromkeys(sys.path)
    folders = [os.fsdecode(folder) for folder in known if isinstance(folder, (str, bytes, os.PathLike))]
    return any(_is_mentioned(sought, folder or os.curdir) for folder in folders)


def _is_mentioned(sought: bytes, folder: str) -> bool:
    try:
        entries = os.listdir(folder)  # noqa: PTH208 - pathlib would be a part of every first reading
    except FileNotFoundError:
        return False
    except OSError:  # an archive, as a rule
        return True
    if folder.lower().endswith(".egg"):
        return True
    for entry in entries:
        package, end = os.path.splitext(entry)  # noqa: PTH122
        if end.lower() in (".dist-info", ".egg-info") and package.partition("-")[0] != PACKAGE:
            with suppress(OSError), open(f"{folder}/{entry}/entry_points.txt", "rb") as file:  # noqa: PTH123
                if sought in file.read():
                    return True
    return False


def names(group: str, built_in: Mapping[str, object]) -> tuple[str, ...]:
    """List what is built in, then what other packages register, each name once.

    Args:
        group: The entry-point group.
        built_in: What is built in, by name.
    """
    return tuple(dict.fromkeys((*built_in, *registered(group))))


def load(what: str, group: str, built_in: Mapping[str, str], name: str) -> object:
    """Import what is registered under a name; what is built in comes first.

    Args:
        what: What messages call it: ``exporter``.
        group: The entry-point group.
        built_in: ``module:attribute`` of what is built in, by name.
        name: The name.

    Raises:
        UnknownNameError: Nothing is registered under the name.
        Exception: Whatever the module raises while it is imported; an :class:`ImportError` or :class:`AttributeError` where there is
            no such module or attribute.
    """
    if name in built_in:
        module, _, attribute = built_in[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    if name not in registered(group):
        raise UnknownNameError(what, name, names(group, built_in))
    return registered(group)[name].load()


def package(group: str, name: str) -> str:
    """Return which package registers a name, in words."""
    dist = registered(group)[name].dist
    return f"package {dist.name}" if dist is not None else "package of unknown name"


@contextmanager
def telling(what: str, group: str, wanted: object) -> Iterator[None]:
    """Raise what a plug-in raises in the block as an error that names its module, and the package that registers it.

    Args:
        what: What messages call it: ``exporter``.
        group: The entry-point group.
        wanted: Its name, or an object.

    Raises:
        InvalidOptionError: It cannot be imported or made.
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
