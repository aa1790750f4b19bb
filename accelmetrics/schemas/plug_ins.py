"""What other packages register under an entry-point group, beside what is built in.

What is built in is kept by name in a table of ``module:attribute``, so that naming it does not pay for a scan of every installed package.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from accelmetrics.schemas.errors import UnknownNameError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@lru_cache
def registered(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group by name, in the order of their names; looked for once."""
    from importlib.metadata import entry_points

    return {point.name: point for point in sorted(entry_points(group=group), key=lambda point: point.name)}


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
