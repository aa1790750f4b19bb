"""Judges a run by rules: what begins, lasts and ends, with windows and hysteresis, in bounded memory.

It works on the monitor's thread, at most once a second, on the row of values that the ring keeps. Each rule is called under the
guard: one that fails or is slow costs itself alone, and is told as one that cannot judge.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite, isnan

from accelmetrics.backends.guard import guarded
from accelmetrics.monitor.measures import Measure, RuleInput
from accelmetrics.monitor.rules import Rule
from accelmetrics.monitor.step_measures import ANY
from accelmetrics.schemas.errors import IN_ORDER, Unavailable
from accelmetrics.schemas.log import log
from accelmetrics.schemas.record import NO_FINDINGS, NOT_LOGGED, SEVERITIES, CannotTell, Finding, Findings, HoldersOf, Step, plain_name
from accelmetrics.schemas.ring import Row
from accelmetrics.schemas.snapshot import Snapshot

findings_log = log.getChild("findings")
EVERY = 1.0
"""Seconds between two readings that are judged, at least: a rule over an hour needs no more."""
COVERED = 0.8
"""Of a rule's window: a gap in its readings longer than the rest begins the window anew."""
GAP = 3.0
"""In intervals of the monitor: a shorter gap is none."""
FORGOTTEN = 600.0
"""Seconds after which what has not been read any more has no state: its finding is over, unless its device gives nothing and should."""
PATIENCE = 10.0
"""Seconds for which something must be missing before a rule is told to be unable to judge; one that fails is told at once."""
MOST = 1024
"""Things that one rule keeps track of."""
ENDED = 64
"""Findings that are kept after they are over."""
SLOW, SLOW_TIMES = 0.25, 5
"""A rule that takes longer than so many seconds so many times in a row is not called any more."""


class _State:
    """Where a rule stands with one thing: since when its condition holds, when it was read last, since when it does not hold."""

    __slots__ = ("finding", "off", "seen", "since")

    def __init__(self, at: float) -> None:
        self.since = self.seen = at
        self.off: float | None = None
        self.finding: Finding | None = None


class _Judge:
    """One rule at work.

    Attributes:
        rule: The rule.
        failure: Why it cannot be called, or failed last; None while it does not.
        findings: What lasts, by what it is about.
        of_steps: Whether it judges logged numbers alone: what was logged last holds until something is logged anew.
    """

    def __init__(self, rule: Rule, longest_gap: float) -> None:
        self.rule = rule
        self.findings: dict[str, Finding] = {}
        self._sign = 1.0 if rule.below is None else -1.0
        self._limit = self._sign * rule.limit
        self._clear = self._limit if rule.clear is None else self._sign * rule.clear
        self._gap = max(longest_gap, (1 - COVERED) * rule.seconds)
        self.of_steps = bool(rule.logged) and not rule.needs
        self._states: dict[str, _State] = {}
        self._words: dict[str, str] = {}
        self._slow = 0
        made = guarded(rule.measure, **rule.options)
        self._measure: Measure | None = made.value
        self.failure: Unavailable | None = made.failure

    def restore(self, finding: Finding, at: float) -> None:
        """Go on with a finding that was there before: it ends like one of this run."""
        state = self._states[finding.key] = _State(at)
        state.finding = self.findings[finding.key] = finding

    def judge(self, given: RuleInput, changed: list[Finding]) -> None:
        """Judge one reading; what begins and ends is added to ``changed``."""
        if self._measure is None:
            return
        outcome = guarded(self._judged, self._measure, given, changed)
        self._slow = self._slow + 1 if outcome.seconds > SLOW else 0
        if outcome.failure is not None and self.failure is None:
            log.warning("rule %s failed and judges nothing: %s", self.rule.name, outcome.failure.detail)
        self.failure = outcome.failure
        if self._slow >= SLOW_TIMES:
            self.failure = Unavailable(
                "rule_failed", f"it took longer than {SLOW:g} s {SLOW_TIMES} times in a row, and is not called any more"
            )
            self._measure = None
            log.warning("rule %s: %s", self.rule.name, self.failure.detail)

    def _judged(self, measure: Measure, given: RuleInput, changed: list[Finding]) -> None:
        rule, states, at = self.rule, self._states, given.at
        given.words = self._words
        found = measure(given)
        for key, value in found.items():
            number = self._sign * value
            state = states.get(key)
            if number > self._limit:
                if state is None:
                    if len(states) >= MOST:
                        continue
                    state = states[key] = _State(at)
                elif state.finding is None and (not given.joined or at - state.seen > self._gap):
                    state.since = at
                state.seen, state.off = at, None
                if state.finding is None and at - state.since >= rule.seconds and isfinite(value):
                    said = {"value": value, "limit": rule.limit, "seconds": rule.seconds, "words": self._words.get(key, key)}
                    message, since = rule.says.format_map({**rule.options, **said}), _time_ns(given, state.since)
                    state.finding = Finding(rule.name, rule.severity, key, message, float(value), rule.limit, since, None, rule.advice)
                    self.findings[key] = state.finding
                    changed.append(state.finding)
            elif state is None or isnan(number):
                continue
            elif state.finding is None:
                del states[key]
            else:
                state.seen = at
                state.off = None if number > self._clear else at if state.off is None else state.off
                if state.off is not None and at - state.off >= rule.clear_seconds:
                    self._end(key, state.off, given, changed)
        if states and not self.of_steps:
            # What has not been read for long is over; of a device that fell silent, what was found last stands.
            longest = max(FORGOTTEN, self._gap)
            for key, state in list(states.items()):
                if at - state.seen > longest and key not in found and given.silent.get(key, IN_ORDER) <= IN_ORDER:
                    self._end(key, state.seen, given, changed)

    def _end(self, key: str, at: float, given: RuleInput, changed: list[Finding]) -> None:
        finding = self._states.pop(key).finding
        if finding is not None:
            self.findings.pop(key, None)
            changed.append(finding._replace(until_ns=_time_ns(given, at)))


def _time_ns(given: RuleInput, at: float) -> int:
    """Return a moment of the monotonic clock on the wall clock, as the reading has it."""
    return given.snapshot.time_ns - int((given.at - at) * 1e9)


class FindingEngine:
    """Judges readings by rules.

    Only the monitor's thread calls ``judge``; ``findings`` may be read from any thread.

    Args:
        rules: The rules.
        interval: Seconds between two readings.
        labels: Those of the run.
        attribution: Tells who holds the devices of a reading.

    Attributes:
        findings: What was found until the last reading.
    """

    def __init__(self, rules: Sequence[Rule], interval: float, labels: Mapping[str, str], attribution: HoldersOf | None = None) -> None:
        self.findings: Findings = NO_FINDINGS
        self._judges = [_Judge(rule, GAP * max(interval, EVERY)) for rule in rules]
        self._given = RuleInput(labels, attribution)
        self._steps: list[Step] = []
        self._joined = True
        self.due = float("-inf")
        self._ended: deque[Finding] = deque(maxlen=ENDED)
        self._restored: Sequence[tuple[str, Finding]] = ()
        self._marks: tuple[object, ...] = ()  # what the lacks of rules were found with
        self._logged: set[str] = set()
        self._lacks: dict[tuple[object, ...], tuple[CannotTell, float]] = {}  # with since when

    def restore(self, found: Sequence[tuple[str, Finding]]) -> None:
        """Go on with findings of an earlier run from the next reading on: those that still hold keep their beginnings.

        Args:
            found: Each with the identity of the device that it is about, which may have another key now; empty for other things.
        """
        self._restored = found

    def judge(self, snapshot: Snapshot, row: Row, steps: Iterable[Step], joined: bool, last: bool = False) -> Findings:
        """Judge a reading.

        Args:
            snapshot: The reading.
            row: Its values.
            steps: What was logged since the one before.
            joined: Whether nothing was left out since then (a pause, a start).
            last: Whether none may follow: it is judged however soon it comes.

        Returns:
            All findings until then.
        """
        if not self._judges:
            return self.findings
        self._steps.extend(steps)
        self._joined = self._joined and joined
        # A tick comes a little early or late: half of the shortest interval more or less is the same pace.
        if joined and not last and row.at < self.due:
            return self.findings
        self.due = row.at + EVERY - min(0.05, EVERY / 2)
        given = self._given
        given.take(snapshot, row, self._steps, self._joined)
        self._steps, self._joined = [], True
        changed: list[Finding] = []
        restored, self._restored = self._restored, ()
        keys = {slot.unique_id: slot.key for slot in snapshot.identities}
        for judge in self._judges:
            for device, finding in restored:
                if finding.rule == judge.rule.name and (not device or device in keys):
                    judge.restore(finding._replace(key=keys.get(device, finding.key)), row.at)
            judge.judge(given, changed)
        for step in given.steps:
            if len(self._logged) < MOST:
                self._logged.update(map(plain_name, step.values))
        marks = (given.layout, snapshot.unavailable, snapshot.identities, len(self._logged), [judge.failure for judge in self._judges])
        if marks != self._marks:
            self._marks, before = marks, self._lacks
            # Words about a device may count seconds; those about the program change when it logs more.
            found = ((one if one.reason == NOT_LOGGED else one[:-1], one) for one in self._cannot_tell())
            self._lacks = {mark: before.get(mark, (one, given.at)) for mark, one in found}
        lacks = tuple(one for one, since in self._lacks.values() if one.reason == "rule_failed" or given.at - since >= PATIENCE)
        if changed or restored or lacks != self.findings.cannot_tell:
            self._publish(changed, lacks)
        return self.findings

    def judge_steps(self, steps: Iterable[Step]) -> Findings:
        """Judge what was logged since the last reading, by the rules that need nothing else: no reading will come.

        Returns:
            All findings until then.
        """
        self._steps.extend(steps)
        if self._steps and self._given.snapshot.time_ns:
            self._given.steps, self._steps = self._steps, []
            changed: list[Finding] = []
            for judge in self._judges:
                if judge.of_steps:
                    judge.judge(self._given, changed)
            if changed:
                self._publish(changed, self.findings.cannot_tell)
        return self.findings

    def _publish(self, changed: Sequence[Finding], lacks: tuple[CannotTell, ...]) -> None:
        for finding in changed:
            if finding.until_ns is None:
                findings_log.info("%s (%s)", finding, finding.advice)
            else:
                self._ended.append(finding)
                findings_log.info("over: %s", finding)
        current = [finding for judge in self._judges for finding in judge.findings.values()]
        current.sort(key=lambda finding: SEVERITIES.index(finding.severity))
        self.findings = Findings(tuple(current), tuple(self._ended), lacks)

    def _cannot_tell(self) -> Iterator[CannotTell]:
        """Yield what each rule lacks, devices with the same reason together."""
        given = self._given
        for judge in self._judges:
            rule = judge.rule
            if judge.failure is not None:
                yield CannotTell(rule.name, (), "", "rule_failed", judge.failure.detail)
            elif rule.logged and not self._logged:
                yield CannotTell(rule.name, (), rule.logged[0], NOT_LOGGED, "a rule about a training run: no program logs here")
                continue  # what it lacks of devices as well is of no interest
            elif rule.logged and rule.logged != ANY and self._logged.isdisjoint(rule.logged):
                yield CannotTell(rule.name, (), rule.logged[0], NOT_LOGGED, f"the program logs no {rule.logged[0]}")
                continue
            lacks: dict[tuple[str, str], tuple[str, list[str]]] = {}
            for slot in given.snapshot.identities:
                if slot.identity.parent or (rule.vendor and slot.identity.vendor != rule.vendor):
                    continue
                names = next((names for names in rule.needs if not given.has(slot.key, names)), None)
                if names is not None:
                    found = (given.snapshot.unavailable.get(f"{slot.key}.{name}") for name in names)
                    why = next((why for why in found if why is not None), None)
                    why = why or Unavailable("not_read", "it is not among the metrics that are read, or its source does not give it")
                    lacks.setdefault((names[0], str(why.reason)), (why.detail, []))[1].append(slot.key)
            for (metric, reason), (detail, keys) in lacks.items():
                yield CannotTell(rule.name, tuple(keys), metric, reason, detail)
