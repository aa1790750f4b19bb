"""What a rule is: what is measured, beyond which limit and for how long it must be so, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from accelmetrics.monitor.measures import Measure, Names
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.schemas.finding import SEVERITIES, Severity
from accelmetrics.schemas.named_tuple import NamedTuple


class Rule(NamedTuple):
    """One rule.

    Attributes:
        name: Its name.
        severity: How grave it is when it holds.
        when: When it holds, in words; ``{limit}`` and the options stand for what they are.
        measure: Called with the options when a monitor is made; what it gives is called with a
            :class:`~accelmetrics.monitor.measures.RuleInput` at every reading that is judged, once a second at most, and gives numbers by
            what they are about: a device's key, ``rank 2``, or an empty text.
        says: A finding's message; ``{value}``, ``{limit}``, ``{seconds}``, ``{words}`` and the options stand for what they are.
        advice: What to do.
        above: The limit above which it holds.
        below: The limit below which it holds; one of both is given.
        clear: It is over when the number is not beyond this one; the limit when left out.
        seconds: For how long it must hold before there is a finding.
        clear_seconds: For how long it must not, before the finding is over.
        needs: What it reads of each device: for each number, the metrics of which the first is taken.
        logged: What it needs the program to log: names of which one is enough, ``*`` for any; none for rules about devices.
        vendor: The only vendor whose devices it is about; empty for all.
        options: What the measure is called with.
    """

    name: str
    severity: Severity
    when: str
    measure: Callable[..., Measure]
    says: str
    advice: str
    above: float | None = None
    below: float | None = None
    clear: float | None = None
    seconds: float = 0.0
    clear_seconds: float = 0.0
    needs: tuple[Names, ...] = ()
    logged: Names = ()
    vendor: str = ""
    options: Mapping[str, Any] = {}

    @property
    def limit(self) -> float:
        """The limit, on whichever side it holds."""
        limit = self.below if self.above is None else self.above
        return 0.0 if limit is None else limit

    @property
    def settings(self) -> tuple[str, ...]:
        """What may be set of it."""
        limit = "below" if self.above is None else "above"
        return ("severity", limit, "clear", "seconds", "clear_seconds", *self.options)

    def with_settings(self, settings: Mapping[str, Any]) -> Rule:
        """Return it with other limits, times or options; where only the limit moves, ``clear`` moves with it.

        Raises:
            UnknownNameError: It has no such setting; the message suggests the nearest.
            InvalidOptionError: A value cannot be used.
        """
        rule = self
        for name, value in settings.items():
            if name not in self.settings:
                raise UnknownNameError(f"setting of the rule {self.name}", name, self.settings)
            if name != "severity" and not isinstance(self.options.get(name), tuple) and not _is_number(value):
                raise InvalidOptionError(f"the rule {self.name!r} cannot be used: {name} is {value!r}: it must be a number")
            more = {"options": {**rule.options, name: value}} if name in self.options else {name: value}
            rule = rule._replace(**more)
        if "clear" not in settings and self.clear is not None:
            rule = rule._replace(clear=rule.limit + self.clear - self.limit)
        return checked(rule)


def checked(rule: Rule) -> Rule:
    """Return a rule that can be judged by.

    Raises:
        InvalidOptionError: It cannot; the message says what is wrong with it.
    """
    numbers = {name: getattr(rule, name) for name in ("above", "below", "clear", "seconds", "clear_seconds")}
    unfit = {name: value for name, value in numbers.items() if value is not None and not _is_number(value)}
    measure: object = rule.measure
    complaints = {
        f"its measure {measure!r} cannot be called": not callable(measure),
        "needs is a list of lists of metrics, and logged a list of names: needs=[['powerWatts']], logged=['loss']": not all(
            isinstance(names, (tuple, list)) for names in (rule.needs, *rule.needs, rule.logged)
        ),
        f"severity is {rule.severity!r}: it must be one of {', '.join(SEVERITIES)}": rule.severity not in SEVERITIES,
        "it needs a limit: above or below, and not both": (rule.above is None) == (rule.below is None),
        **{f"{name} is {value!r}: it must be a number": True for name, value in unfit.items()},
    }
    wrong = next((words for words, applies in complaints.items() if applies), "")
    if not wrong and min(rule.seconds, rule.clear_seconds) < 0:
        wrong = "seconds and clear_seconds must not be below 0"
    elif not wrong and rule.clear is not None and (rule.clear > rule.limit if rule.below is None else rule.clear < rule.limit):
        wrong = f"clear is {rule.clear:g}, which is beyond the limit {rule.limit:g}: no finding would end"
    if wrong:
        raise InvalidOptionError(f"the rule {rule.name!r} cannot be used: {wrong}")
    return rule


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)
