"""What was used last of things that are costly to make, such as what texts have in common while keys stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
KEPT = 2
"""Shapes of which something is kept: at ten readings a second some keys come with every second one alone."""


def most_recent(kept: list[_T], fits: Callable[[_T], bool], make: Callable[[], _T]) -> _T:
    """Return what fits of the things that were used last, or make another one; so many are kept, in the order of their use."""
    found = next(filter(fits, kept), None) or make()
    kept[:] = [found, *(one for one in kept if one is not found)][:KEPT]
    return found
