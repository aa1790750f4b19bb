"""``NamedTuple`` as :mod:`typing` has it, made without looking at what the annotations say.

``typing`` compiles each annotation that is text, as all of this package are. For some fifty named tuples that is an eighth of the time
that a first reading takes. The classes are those of :func:`collections.namedtuple` in both cases, and annotations remain to be asked for.

A module that makes one begins with ``from __future__ import annotations``: Python 3.14 keeps no others in the namespace of a class.
"""

from __future__ import annotations

from collections import namedtuple

__all__ = ["NamedTuple"]
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NamedTuple
else:

    class _Maker(type):
        """Makes a class that is written with ``NamedTuple`` as its base."""

        def __new__(cls, name, bases, namespace):
            fields = namespace.pop("__annotations__", {})
            defaults = [namespace.pop(field) for field in fields if field in namespace]
            made = namedtuple(name, fields, defaults=defaults, module=namespace.pop("__module__"))
            made.__annotations__ = made.__new__.__annotations__ = fields
            for attribute, value in namespace.items():
                setattr(made, attribute, value)
            return made

    NamedTuple = type.__new__(_Maker, "NamedTuple", (), {})
