"""``NamedTuple`` like the one of :mod:`typing`, created without evaluating annotations.

``typing`` compiles each annotation that is text, and all annotations of this package are. For about fifty named tuples that takes an
eighth of the time of a first reading. Both make classes of :func:`collections.namedtuple` and keep the annotations.

A module that uses it begins with ``from __future__ import annotations``, since Python 3.14 keeps no other annotations in the
namespace of a class.
"""

from __future__ import annotations

from collections import namedtuple

__all__ = ["NamedTuple"]
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NamedTuple
else:

    class _Maker(type):
        """The metaclass that turns a class statement with ``NamedTuple`` as its base into a named tuple."""

        def __new__(cls, name, bases, namespace):
            fields = namespace.pop("__annotations__", {})
            defaults = [namespace.pop(field) for field in fields if field in namespace]
            made = namedtuple(name, fields, defaults=defaults, module=namespace.pop("__module__"))
            made.__annotations__ = made.__new__.__annotations__ = fields
            for attribute, value in namespace.items():
                setattr(made, attribute, value)
            return made

    NamedTuple = type.__new__(_Maker, "NamedTuple", (), {})
