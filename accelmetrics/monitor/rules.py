"""The rules that runs are judged by, one row each, and how some of them are chosen and set.

A row says what is measured, beyond which limit and for how long it must be so, and what to do. The engine in
:mod:`accelmetrics.monitor.findings` does the rest, alike for all rows.

A third-party package registers a :class:`Rule` under the entry-point group ``accelmetrics.rules``; it is asked for by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from accelmetrics.monitor.measures import (
    SLOWED,
    CounterRate,
    Growth,
    IdleHeld,
    Latest,
    LinksDown,
    Margin,
    Measure,
    MissingDevices,
    Names,
    Recent,
    RecentXids,
    RelativeClock,
    ThrottledShare,
    Unmoved,
)
from accelmetrics.schemas import plug_ins
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.schemas.finding import SEVERITIES, Severity
from accelmetrics.schemas.vitals import MEMORY_PERCENT, MEMORY_USED, POWER, TEMPERATURE, UTILIZATION

GROUP = "accelmetrics.rules"
DEFAULT, NONE = "default", "none"
_SETTING = re.compile(r"(?P<rule>[\w-]+)\.(?P<setting>\w+)=(?P<number>\S+)")


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
    unfit = [name for name, value in numbers.items() if value is not None and not _is_number(value)]
    wrong = ""
    measure: object = rule.measure
    if not callable(measure):
        wrong = f"its measure {measure!r} cannot be called"
    elif rule.severity not in SEVERITIES:
        wrong = f"severity is {rule.severity!r}: it must be one of {', '.join(SEVERITIES)}"
    elif (rule.above is None) == (rule.below is None):
        wrong = "it needs a limit: above or below, and not both"
    elif unfit:
        wrong = f"{unfit[0]} is {numbers[unfit[0]]!r}: it must be a number"
    elif min(rule.seconds, rule.clear_seconds) < 0:
        wrong = "seconds and clear_seconds must not be below 0"
    elif rule.clear is not None and (rule.clear > rule.limit if rule.below is None else rule.clear < rule.limit):
        wrong = f"clear is {rule.clear:g}, which is beyond the limit {rule.limit:g}: no finding would end"
    if wrong:
        raise InvalidOptionError(f"the rule {rule.name!r} cannot be used: {wrong}")
    return rule


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


_TO_DRAIN = "Drain the node, reset the GPU, and have it replaced if the error returns."
_COOL = "Check fans, air flow and inlet temperature, and what the devices beside it draw."

RULES: tuple[Rule, ...] = (
    Rule(
        "hot",
        "warning",
        "core above {limit:g} °C",
        Latest,
        "core at {value:.0f} °C, above {limit:g} °C for {seconds:g} s",
        _COOL,
        above=80,
        clear=77,
        seconds=300,
        clear_seconds=120,
        needs=(TEMPERATURE,),
        options={"metric": TEMPERATURE},
    ),
    Rule(
        "overheating",
        "critical",
        "core above {limit:g} °C",
        Latest,
        "core at {value:.0f} °C, above {limit:g} °C for {seconds:g} s",
        "Take load off the device before it slows down or shuts itself off. " + _COOL,
        above=85,
        clear=82,
        seconds=60,
        clear_seconds=120,
        needs=(TEMPERATURE,),
        options={"metric": TEMPERATURE},
    ),
    Rule(
        "near_slowdown",
        "warning",
        "core less than {limit:g} K below the temperature at which it slows itself down",
        Margin,
        "core {value:.0f} K below the temperature at which it slows itself down, for {seconds:g} s",
        _COOL,
        below=5,
        clear=8,
        seconds=120,
        clear_seconds=120,
        needs=(TEMPERATURE, ("tempLimit.slowdown",)),
    ),
    Rule(
        "memory_full",
        "info",
        "more than {limit:g} % of its memory in use",
        Latest,
        "{value:.0f} % of its memory in use, above {limit:g} % for {seconds:g} s",
        "Fine for programs that reserve all of it; else lower the batch size before an allocation fails.",
        above=90,
        clear=85,
        seconds=600,
        clear_seconds=60,
        needs=(MEMORY_PERCENT,),
        options={"metric": MEMORY_PERCENT},
    ),
    Rule(
        "throttled",
        "warning",
        "heat or the power supply held its clocks down for more than {limit:g} % of the last {span:g} s, at a utilisation above {load:g} %",
        ThrottledShare,
        "clocks held down by heat or the power supply for {value:.0f} % of {span:g} s under load",
        f"See the reasons under throttle.…; {_COOL[0].lower()}{_COOL[1:]} For a power brake, the rack's supply.",
        above=60,
        clear=30,
        needs=(UTILIZATION, SLOWED),
        options={"span": 300.0, "load": 50.0},
    ),
    Rule(
        "ecc_uncorrected",
        "critical",
        "memory errors that could not be corrected, within the last {span:g} s or at the first reading",
        Recent,
        "{value:.0f} memory errors that could not be corrected",
        "Results since then may be wrong: go back to a checkpoint. " + _TO_DRAIN,
        above=0,
        needs=(("uncorrectedMemoryErrors",),),
        options={"counters": ("uncorrectedMemoryErrors",), "span": 3600.0, "standing": True},
    ),
    Rule(
        "remap_pending",
        "warning",
        "memory rows wait for a reset to be replaced by spare ones",
        Latest,
        "memory rows wait to be replaced by spare ones",
        "Reset the GPU when its job has ended.",
        above=0,
        needs=(("rowRemapPending",),),
        options={"metric": ("rowRemapPending",)},
    ),
    Rule(
        "remap_failed",
        "critical",
        "a memory row could not be replaced by a spare one",
        Latest,
        "a memory row could not be replaced by a spare one",
        "Drain the node and have the GPU replaced.",
        above=0,
        needs=(("rowRemapFailure",),),
        options={"metric": ("rowRemapFailure",)},
    ),
    Rule(
        "xid_hardware",
        "critical",
        "Xid errors that speak against the hardware, within the last {span:g} s: {codes}",
        RecentXids,
        "Xid {words}",
        _TO_DRAIN,
        above=0,
        needs=(("xidErrors",),),
        vendor="nvidia",
        options={"codes": (48, 62, 64, 74, 79, 95, 119, 120), "others": False, "span": 3600.0},
    ),
    Rule(
        "xid_program",
        "info",
        "Xid errors that programs cause, within the last {span:g} s: {codes}",
        RecentXids,
        "Xid {words}",
        "Most often an error of the program: run it under compute-sanitizer. The same on many programs speaks against the GPU.",
        above=0,
        needs=(("xidErrors",),),
        vendor="nvidia",
        options={"codes": (13, 31, 43, 45), "others": False, "span": 3600.0},
    ),
    Rule(
        "xid",
        "warning",
        "any other Xid error within the last {span:g} s, but those for corrected errors",
        RecentXids,
        "Xid {words}",
        "Look the code up in NVIDIA's catalogue of Xid errors; look at the kernel's log for what came with it.",
        above=0,
        needs=(("xidErrors",),),
        vendor="nvidia",
        options={"codes": (48, 62, 64, 74, 79, 95, 119, 120, 13, 31, 43, 45, 63, 92), "others": True, "span": 3600.0},
    ),
    Rule(
        "nvlink_down",
        "critical",
        "an NVLink is down that was up before, or that is up on another device of the same product",
        LinksDown,
        "{value:.0f} NVLinks down",
        "Collective operations are slow or fail: drain the node, reset the GPUs and the fabric manager.",
        above=0,
        seconds=120,
        clear_seconds=60,
        needs=(("nvlink.{link}.state",),),
        vendor="nvidia",
    ),
    Rule(
        "nvlink_errors",
        "warning",
        "NVLink transmissions were repeated or links set up again within the last {span:g} s",
        Recent,
        "{value:.0f} NVLink transmissions repeated or links set up again within {span:g} s",
        "A link is failing: reseat the board or its bridge, and drain the node where they go on.",
        above=0,
        needs=(("nvlinkReplayErrors",), ("nvlinkRecoveryErrors",)),
        vendor="nvidia",
        options={"counters": ("nvlinkReplayErrors", "nvlinkRecoveryErrors"), "span": 600.0, "standing": False},
    ),
    Rule(
        "nvlink_crc",
        "warning",
        "more than {limit:g} NVLink checksum errors a second",
        CounterRate,
        "{value:.0f} NVLink checksum errors a second, above {limit:g} for {seconds:g} s",
        "A link is failing: reseat the board or its bridge, and drain the node where they go on.",
        above=100,
        clear=10,
        seconds=60,
        clear_seconds=120,
        needs=(("nvlinkCrcErrors",),),
        vendor="nvidia",
        options={"counter": "nvlinkCrcErrors"},
    ),
    Rule(
        "device_missing",
        "critical",
        "it is listed, or was, and gives nothing; or a source whose hardware is there is silent",
        MissingDevices,
        "gives nothing for {seconds:g} s ({words})",
        "`accelmetrics doctor` says what the driver lacks; a device that fell off the bus needs a reset or a reboot.",
        above=0,
        seconds=120,
        clear_seconds=60,
    ),
    Rule(
        "idle_held",
        "info",
        "utilisation below {limit:g} %, while the run's job or pod sees it or {held_bytes:.0f} bytes of its memory are in use",
        IdleHeld,
        "utilisation below {limit:g} % for {seconds:g} s while it is held",
        "End what holds the device, or find what the program waits for.",
        below=2,
        clear=5,
        seconds=3600,
        clear_seconds=60,
        needs=(UTILIZATION, MEMORY_USED),
        options={"held_bytes": 1e9},
    ),
    Rule(
        "straggler",
        "warning",
        "clock below {limit:g} % of the median of at least {least:g} devices of its product and power limit, each busier than {load:g} %",
        RelativeClock,
        "clock at {value:.0f} % of its peers' median, below {limit:g} % for {seconds:g} s",
        "It slows the whole job down: compare its temperature, power limit and throttle reasons with the others'.",
        below=90,
        clear=95,
        seconds=300,
        clear_seconds=300,
        needs=(UTILIZATION, ("smClock",)),
        options={"load": 90.0, "least": 3},
    ),
    Rule(
        "stuck_counter",
        "warning",
        "its energy counter stands still for {readings:g} readings and {limit:g} s, while it draws more than {watts:g} W",
        Unmoved,
        "energy counter stands still for {value:.0f} s while power is drawn",
        "Energy of this device is wrong from here on; reload the driver, and report it to the vendor.",
        above=10,
        clear=0,
        needs=(("energyJoules",), POWER),
        options={"watts": 10.0, "readings": 3},
    ),
    Rule(
        "leak",
        "warning",
        "memory in use grows by more than {limit:g} % of it an hour, over {span:g} s and without pause, and would be full in {hours:g} h",
        Growth,
        "memory in use grows by {value:.1f} % of it an hour: full within {hours:g} h",
        "Look for what the program keeps from step to step: losses with their graphs, lists of tensors, growing caches.",
        above=1,
        clear=0.2,
        needs=(MEMORY_PERCENT,),
        options={"span": 3600.0, "parts": 6, "hours": 24.0},
    ),
)
"""The built-in rules: what ``"default"`` stands for."""
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
            raise InvalidOptionError(f"the rule {name!r} is {found!r}: register an accelmetrics.monitor.rules.Rule")
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
        if isinstance(item, Rule):
            yield item.name, checked(item)
        elif isinstance(item, Mapping):
            for name, settings in item.items():
                if settings is not None and not isinstance(settings, Mapping):
                    raise InvalidOptionError(f"rules[{name!r}] is {settings!r}: it must be a mapping such as {{'above': 75}}, or None")
                yield name, settings
        elif isinstance(item, str):
            yield from _word(item.strip())
        else:
            raise InvalidOptionError(
                f"rules has {item!r}: it takes 'default', 'none', names of rules, Rule objects and mappings of settings"
            )


def _word(word: str) -> Iterator[tuple[str, Rule | Mapping[str, Any] | None]]:
    """Yield what one item of a text says."""
    if word == DEFAULT:
        yield from BUILT_IN.items()
    elif word == NONE:
        yield NONE, {}
    elif word.startswith("-"):
        yield word[1:].strip(), None
    elif match := _SETTING.fullmatch(word):
        outcome = match["number"]
        try:
            yield match["rule"], {match["setting"]: float(outcome)}
        except ValueError:
            raise InvalidOptionError(f"rules has {word!r}: {outcome!r} is no number") from None
    else:
        yield word, rule_of(word)
