"""What is typed to filter a list: ``user=ann gpu%>0 train``. All conditions must hold.

A word by itself must be part of any text of a row. A condition is a field, an operator and a value: ``=`` and ``!=`` compare texts
without regard to case, and numbers; ``~`` asks for a part of a text; ``>``, ``>=``, ``<``, ``<=`` compare numbers. A row without that
number holds no condition on it.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError

Fields = Mapping[str, str | float | None]
"""What a row has, by field."""
_CONDITION = re.compile(r"([a-z%]+)(!=|>=|<=|=|>|<|~)(.*)", re.IGNORECASE)
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)(?:%|W|C|GiB|G)?", re.IGNORECASE)
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    **{"=": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge},
    **{"<": operator.lt, "<=": operator.le},
}
DEVICE_FIELDS = ("device", "name", "vendor", "kind", "state", "note", "holder", "uuid", "util", "gpu%", "mem", "mem%", "power", "temp")
"""Of a device: the memory in GiB and in percent, the power in watts."""
PROCESS_FIELDS = ("pid", "user", "program", "command", "device", "holder", "type", "gpu%", "mem", "cpu%", "time")
"""Of a process: the memory in GiB, the time in seconds."""
NODE_FIELDS = ("node", "state", "kind", "note", "devices", "util", "power", "lost", "hot", "findings")
"""Of a node: its power in kW, and how many devices are lost and hot."""
Condition = Callable[[Fields], bool]


@lru_cache(maxsize=16)
def parse_filter(text: str, known: tuple[str, ...]) -> tuple[Condition, ...]:
    """Read what was typed.

    Args:
        text: The words.
        known: Fields that there are: ``DEVICE_FIELDS`` or ``PROCESS_FIELDS``.

    Raises:
        UnknownNameError: There is no such field.
        InvalidOptionError: A value is no number where one is compared.
    """
    return tuple(_condition(word, known) for word in text.split())


def matching(conditions: Iterable[Condition], fields: Fields) -> bool:
    """Return whether a row holds all conditions."""
    return all(condition(fields) for condition in conditions)


def _condition(word: str, known: tuple[str, ...]) -> Condition:
    found = _CONDITION.fullmatch(word)
    if found is None:
        wanted = word.casefold()
        return lambda fields: any(wanted in str(value).casefold() for value in fields.values() if value is not None)
    name, sign, value = found[1].lower(), found[2], found[3].casefold()
    if name not in known:
        raise UnknownNameError("field of a filter", name, known)
    if sign == "~":
        return lambda fields: value in str(fields.get(name) or "").casefold()
    number = _NUMBER.fullmatch(value)
    if number is None and sign not in ("=", "!="):
        raise InvalidOptionError(f"{word}: {value!r} is no number")
    compare = _COMPARE[sign]

    def holds(fields: Fields) -> bool:
        have = fields.get(name)
        if isinstance(have, str) or have is None:
            return sign in ("=", "!=") and (value in (have or "").casefold().split(",")) == (sign == "=")
        return number is not None and compare(float(have), float(number[1]))

    return holds
