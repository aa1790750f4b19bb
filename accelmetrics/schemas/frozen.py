"""A read-only dict, for data that several receivers share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict that raises on writing, because several receivers share it. Copies and pickles of it are plain dicts."""

    __slots__ = ()

    if not TYPE_CHECKING:  # for a type checker it is a plain dict

        def _refuse(self, *_: object, **__: object) -> NoReturn:
            raise TypeError("this dict is shared and cannot be changed: copy it with dict(...)")

        __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    # A copy or a pickle belongs to one receiver, which may change it.
    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def frozen(given: Mapping[K, V] | None) -> FrozenDict[K, V]:
    """Return a mapping as a ``FrozenDict``: the mapping itself if it is one already."""
    return given if isinstance(given, FrozenDict) else FrozenDict(given or {})
