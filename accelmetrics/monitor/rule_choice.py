"""How some rules are chosen and set: by name, by object, by what is left out.

A third-party package registers a :class:`~accelmetrics.monitor.rule.Rule` under the entry-point group ``accelmetrics.rules``; it is
asked for by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from accelmetrics.monitor.rule import Rule, checked
from accelmetrics.monitor.rules import RULES
from accelmetrics.schemas import plug_ins
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError

GROUP = "accelmetrics.rules"
DEFAULT, NONE = "default", "none"
_SETTING = re.compile(r"(?P<rule>[\w-]+)\.(?P<setting>\w+)=(?P<number>\S+)")
BUILT_IN: Mapping[str, Rule] = {rule.name: rule for rule in RULES}

RuleChoice = str | Sequence["str | Rule | Mapping[str, Any]"] | Mapping[str, Any]
"""What rules are chosen with: see :func:`rules_of`."""


def names() -> tuple[str, ...]:
    """Return the names of all rules, those of other packages last."""
    return plug_ins.names(GROUP, BUILT_IN)


def rule_of(name: str) -> Rule:
    """Return the rule of a name.

    Raises:
        UnknownNameError: There is none; the message suggests the nearest.
        InvalidOptionError: It is another package's, and cannot be used.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    with plug_ins.telling("rule", GROUP, name):
        found = plug_ins.load("rule", GROUP, {}, name) if name in plug_ins.registered(GROUP) else None
        if found is None:
            raise UnknownNameError("rule", name, (DEFAULT, NONE, *names()))
        if not isinstance(found, Rule):
            raise InvalidOptionError(f"the rule {name!r} is {found!r}: register an accelmetrics.Rule")
    return checked(found)


def rules_of(choice: RuleChoice) -> tuple[Rule, ...]:
    """Return the rules that are chosen.

    Args:
        choice: A text with items by comma, or the items one by one: ``default`` (all built-in rules), ``none``, a rule's name, ``-`` and a
            name to leave it out, ``hot.above=75`` to set a number of one, a :class:`Rule`, or a mapping of names to their settings (or to
            None to leave them out). With nothing but settings and exclusions the others are the default ones.

    Raises:
        UnknownNameError: There is no such rule or setting; the message suggests the nearest.
        InvalidOptionError: A choice or a value cannot be used.
    """
    items = list(_items(choice))
    chosen = {name: given for name, given in items if isinstance(given, Rule)}
    if not chosen and NONE not in dict(items):
        chosen = dict(BUILT_IN)
    for name, given in items:
        if isinstance(given, Mapping) and name != NONE:
            chosen[name] = (chosen.get(name) or rule_of(name)).with_settings(given)
    for name, given in items:
        if given is None and name not in chosen:
            rule_of(name)  # says so where there is none
        elif given is None:
            del chosen[name]
    return tuple(chosen.values())


def _items(choice: RuleChoice) -> Iterator[tuple[str, Rule | Mapping[str, Any] | None]]:
    """Yield by name what is said of rules: the rule where it is chosen, its settings, None where it is left out."""
    listed: object = choice.split(",") if isinstance(choice, str) else [choice] if isinstance(choice, Mapping) else choice
    for item in listed if isinstance(listed, Iterable) else [listed]:
        word = item.strip() if isinstance(item, str) else None
        if isinstance(item, Rule):
            yield item.name, checked(item)
        elif isinstance(item, Mapping):
            for name, settings in item.items():
                if settings is not None and not isinstance(settings, Mapping):
                    raise InvalidOptionError(f"rules[{name!r}] is {settings!r}: it must be a mapping such as {{'above': 75}}, or None")
                yield name, settings
        elif word is None:
            raise InvalidOptionError(
                f"rules has {item!r}: it takes 'default', 'none', names of rules, Rule objects and mappings of settings"
            )
        elif word == DEFAULT:
            yield from BUILT_IN.items()
        elif word == NONE:
            yield NONE, {}
        elif word.startswith("-"):
            yield word[1:].strip(), None
        elif match := _SETTING.fullmatch(word):
            try:
                yield match["rule"], {match["setting"]: float(match["number"])}
            except ValueError:
                raise InvalidOptionError(f"rules has {word!r}: {match['number']!r} is no number") from None
        else:
            yield word, rule_of(word)
