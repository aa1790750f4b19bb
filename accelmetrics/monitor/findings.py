"""Evaluation of rules: findings begin, last and end, with windows and hysteresis, in bounded memory.

It runs on the monitor's thread, at most once per second, on the row of values that the ring keeps. Each rule is called under the guard. A
rule that fails or is slow affects only itself, and is reported as unable to judge.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite, isnan
from time import monotonic

from accelmetrics.backends.guard import guarded
from accelmetrics.monitor.measures import Measure, RuleInput
from accelmetrics.monitor.rules import DEFAULT, Rule, rules_of
from accelmetrics.monitor.step_measures import ANY
from accelmetrics.schemas.errors import IN_ORDER, Unavailable
from accelmetrics.schemas.log import log
from accelmetrics.schemas.record import NO_FINDINGS, NOT_LOGGED, SEVERITIES, CannotTell, Finding, Findings, HoldersOf, Step, plain_name
from accelmetrics.schemas.ring import Row, row_of
from accelmetrics.schemas.snapshot import Snapshot

findings_log = log.getChild("findings")
EVERY = 1.0
"""Minimum number of seconds between two evaluations. Rules have windows of up to hours and need no more."""
COVERED = 0.8
"""Share of a rule's window that readings must cover. A longer gap restarts the window."""
GAP = 3.0
"""Gaps up to this many intervals of the monitor are ignored."""
FORGOTTEN = 600.0
"""Seconds without a value after which a state is deleted and its finding ends, unless the device is silent without a normal reason."""
PATIENCE = 10.0
"""Seconds for which a metric must be missing before a rule is reported as unable to judge. A rule that fails is reported at once."""
MOST = 1024
"""Maximum number of states of a rule."""
ENDED = 64
"""Number of findings that are kept after their end."""
SLOW, SLOW_TIMES = 0.25, 5
"""A rule that takes longer than ``SLOW`` seconds ``SLOW_TIMES`` times in a row is no longer called."""


class _State:
    """The state of a rule for one device or process."""

    # The finding, if there is one; since when the condition does not hold; time of the last value; since when the condition holds.
    __slots__ = ("finding", "off", "seen", "since")

    def __init__(self, at: float) -> None:
        self.since = self.seen = at
        self.off: float | None = None
        self.finding: Finding | None = None


class _Judge:
    """A rule and its states.

    Attributes:
        rule: The rule.
        failure: Why the rule cannot be called or failed last; None if it works.
        findings: Current findings by key.
        of_steps: Whether the rule reads only logged numbers. Its state then stays until something is logged again.
    """

    def __init__(self, rule: Rule, longest_gap: float) -> None:
        self.rule = rule
        self.findings: dict[str, Finding] = {}
        # With a lower limit, numbers and limits change their sign, so that "above" is the only case.
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
        """Continue a finding of an earlier run. It ends like a finding of this run."""
        state = self._states[finding.key] = _State(at)
        state.finding = self.findings[finding.key] = finding

    def judge(self, inputs: RuleInput, changed: list[Finding]) -> None:
        """Evaluate the rule on one reading. Findings that begin or end are added to ``changed``."""
        if self._measure is None:
            return
        outcome = guarded(self._evaluate, self._measure, inputs, changed)
        self._slow = self._slow + 1 if outcome.seconds > SLOW else 0
        if outcome.failure is not None and self.failure is None:
            log.warning("rule %s failed: %s", self.rule.name, outcome.failure.detail)
        self.failure = outcome.failure
        if self._slow >= SLOW_TIMES:
            self.failure = Unavailable("rule_failed", f"it took longer than {SLOW:g} s {SLOW_TIMES} times in a row and is no longer called")
            self._measure = None
            log.warning("rule %s: %s", self.rule.name, self.failure.detail)

    def _evaluate(self, measure: Measure, inputs: RuleInput, changed: list[Finding]) -> None:
        rule, states, at = self.rule, self._states, inputs.at
        inputs.words = self._words
        found = measure(inputs)
        for key, value in found.items():
            number = self._sign * value
            state = states.get(key)
            if number > self._limit:
                if state is None:
                    if len(states) >= MOST:
                        continue
                    state = states[key] = _State(at)
                elif state.finding is None and (not inputs.joined or at - state.seen > self._gap):
                    state.since = at
                state.seen, state.off = at, None
                if state.finding is None and at - state.since >= rule.seconds and isfinite(value):
                    parts = {"value": value, "limit": rule.limit, "seconds": rule.seconds, "words": self._words.get(key, key)}
                    message, since = rule.says.format_map({**rule.options, **parts}), _time_ns(inputs, state.since)
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
                    self._end(key, state.off, inputs, changed)
        if states and not self.of_steps:
            # A finding without values for a long time ends. If its device has fallen silent with a fault, the finding remains.
            longest = max(FORGOTTEN, self._gap)
            for key, state in list(states.items()):
                if at - state.seen > longest and key not in found and inputs.silent.get(key, IN_ORDER) <= IN_ORDER:
                    self._end(key, state.seen, inputs, changed)

    def _end(self, key: str, at: float, inputs: RuleInput, changed: list[Finding]) -> None:
        finding = self._states.pop(key).finding
        if finding is not None:
            self.findings.pop(key, None)
            changed.append(finding._replace(until_ns=_time_ns(inputs, at)))


def _time_ns(inputs: RuleInput, at: float) -> int:
    """Convert a time of the monotonic clock to nanoseconds since 1970, relative to the reading's time."""
    return inputs.snapshot.time_ns - int((inputs.at - at) * 1e9)


class FindingEngine:
    """Evaluates rules on readings and logged steps.

    Only the monitor's thread calls ``judge``; any thread may read ``findings``.

    Args:
        rules: The rules.
        interval: Seconds between two readings.
        labels: Labels of the run.
        attribution: Function that returns the holders of a reading's devices.

    Attributes:
        findings: Findings up to the last reading.
    """

    def __init__(self, rules: Sequence[Rule], interval: float, labels: Mapping[str, str], attribution: HoldersOf | None = None) -> None:
        self.findings: Findings = NO_FINDINGS
        self._judges = [_Judge(rule, GAP * max(interval, EVERY)) for rule in rules]
        self._inputs = RuleInput(labels, attribution)
        self._steps: list[Step] = []
        self._joined = True
        self.due = float("-inf")
        self._ended: deque[Finding] = deque(maxlen=ENDED)
        self._restored: Sequence[tuple[str, Finding]] = ()
        self._missing_inputs: tuple[object, ...] = ()  # inputs of the last search for missing metrics; it is repeated when they change
        self._logged: set[str] = set()
        self._missing: dict[tuple[object, ...], tuple[CannotTell, float]] = {}  # each with the time since when

    def restore(self, found: Sequence[tuple[str, Finding]]) -> None:
        """Continue findings of an earlier run from the next reading on. Findings that still hold keep their start times.

        Args:
            found: Findings, each with the unique id of its device, whose key may have changed; empty for a finding without a device.
        """
        self._restored = found

    def judge(self, snapshot: Snapshot, row: Row, steps: Iterable[Step], joined: bool, last: bool = False) -> Findings:
        """Evaluate all rules on a reading, at most once per second.

        Args:
            snapshot: The reading.
            row: Its values.
            steps: Steps logged since the previous reading.
            joined: Whether no pause or start lies between the previous reading and this one.
            last: Whether this may be the last reading. It is evaluated however soon it comes.

        Returns:
            All findings up to this reading.
        """
        if not self._judges:
            return self.findings
        self._steps.extend(steps)
        self._joined = self._joined and joined
        # A tick may be a little early or late. The tolerance keeps an interval of a second from being judged every other time.
        if joined and not last and row.at < self.due:
            return self.findings
        self.due = row.at + EVERY - min(0.05, EVERY / 2)
        inputs = self._inputs
        inputs.take(snapshot, row, self._steps, self._joined)
        self._steps, self._joined = [], True
        changed: list[Finding] = []
        restored, self._restored = self._restored, ()
        keys = {slot.unique_id: slot.key for slot in snapshot.identities}
        for judge in self._judges:
            for device, finding in restored:
                if finding.rule == judge.rule.name and (not device or device in keys):
                    judge.restore(finding._replace(key=keys.get(device, finding.key)), row.at)
            judge.judge(inputs, changed)
        for step in inputs.steps:
            if len(self._logged) < MOST:
                self._logged.update(map(plain_name, step.values))
        marks = (inputs.layout, snapshot.unavailable, snapshot.identities, len(self._logged), [judge.failure for judge in self._judges])
        if marks != self._missing_inputs:
            self._missing_inputs, before = marks, self._missing
            # The detail of a reason may change, for example count seconds, and is no part of its identity. For logged numbers it is.
            found = ((one if one.reason == NOT_LOGGED else one[:-1], one) for one in self._find_missing())
            self._missing = {mark: before.get(mark, (one, inputs.at)) for mark, one in found}
        missing = tuple(one for one, since in self._missing.values() if one.reason == "rule_failed" or inputs.at - since >= PATIENCE)
        if changed or restored or missing != self.findings.cannot_tell:
            self._publish(changed, missing)
        return self.findings

    def judge_steps(self, steps: Iterable[Step]) -> Findings:
        """Evaluate the rules about logged numbers on the steps since the last reading. Call it when no further reading will come.

        Returns:
            All findings up to now.
        """
        self._steps.extend(steps)
        if self._steps and self._inputs.snapshot.time_ns:
            self._inputs.steps, self._steps = self._steps, []
            changed: list[Finding] = []
            for judge in self._judges:
                if judge.of_steps:
                    judge.judge(self._inputs, changed)
            if changed:
                self._publish(changed, self.findings.cannot_tell)
        return self.findings

    def _publish(self, changed: Sequence[Finding], missing: tuple[CannotTell, ...]) -> None:
        for finding in changed:
            if finding.until_ns is None:
                findings_log.info("%s (%s)", finding, finding.advice)
            else:
                self._ended.append(finding)
                findings_log.info("over: %s", finding)
        current = [finding for judge in self._judges for finding in judge.findings.values()]
        current.sort(key=lambda finding: SEVERITIES.index(finding.severity))
        self.findings = Findings(tuple(current), tuple(self._ended), missing)

    def _find_missing(self) -> Iterator[CannotTell]:
        """Yield the missing metrics of each rule. Devices with the same reason are combined."""
        inputs = self._inputs
        for judge in self._judges:
            rule = judge.rule
            if judge.failure is not None:
                yield CannotTell(rule.name, (), "", "rule_failed", judge.failure.detail)
            elif rule.logged and not self._logged:
                yield CannotTell(rule.name, (), rule.logged[0], NOT_LOGGED, "a rule about a training run: no program logs here")
                continue  # metrics that devices lack as well are irrelevant
            elif rule.logged and rule.logged != ANY and self._logged.isdisjoint(rule.logged):
                yield CannotTell(rule.name, (), rule.logged[0], NOT_LOGGED, f"the program logs no {rule.logged[0]}")
                continue
            missing: dict[tuple[str, str], tuple[str, list[str]]] = {}
            for slot in inputs.snapshot.identities:
                if slot.identity.parent or (rule.vendor and slot.identity.vendor != rule.vendor):
                    continue
                names = next((names for names in rule.needs if not inputs.has(slot.key, names)), None)
                if names is not None:
                    found = (inputs.snapshot.unavailable.get(f"{slot.key}.{name}") for name in names)
                    why = next((why for why in found if why is not None), None)
                    why = why or Unavailable("not_read", "the metric is not selected, or its source does not report it")
                    missing.setdefault((names[0], str(why.reason)), (why.detail, []))[1].append(slot.key)
            for (metric, reason), (detail, keys) in missing.items():
                yield CannotTell(rule.name, tuple(keys), metric, reason, detail)


def of_one_reading(snapshot: Snapshot) -> Findings:
    """Return the findings of the default rules on a single reading. Rules that need a condition to last find nothing."""
    return FindingEngine(rules_of(DEFAULT), 1.0, {}).judge(snapshot, row_of(snapshot, monotonic()), (), joined=True)
