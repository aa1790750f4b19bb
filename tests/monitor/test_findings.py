"""Findings of a monitor: chosen rules, rules that fail, callbacks, what cannot be judged, restarts."""

from __future__ import annotations

import itertools
import logging
import queue
from collections.abc import Mapping
from typing import Any
from unittest.mock import Mock, patch

import pytest

from accelmetrics import InvalidOptionError, UnknownNameError
from accelmetrics.monitor import findings as engine, rules
from accelmetrics.monitor.measures import Latest, Measure, RuleInput
from accelmetrics.monitor.monitor import Monitor
from accelmetrics.monitor.rules import BUILT_IN, RULES, Rule, RuleChoice, checked, rules_of
from accelmetrics.schemas import plug_ins
from accelmetrics.schemas.record import NO_FINDINGS, CannotTell, Finding
from accelmetrics.testing.fake import FakeClock
from tests.monitor.judged_run import JudgedRun, healthy_gpus
from tests.monitor.watching import Recorder, gpus
from tests.support.waiting import HANG, wait_for

pytestmark = pytest.mark.usefixtures("nothing_stays")

DRAWING = Rule(
    "drawing", "info", "", Latest, "{value:.0f} W", "Nothing.", above=50, options={"metric": ("powerWatts",)}, needs=(("powerWatts",),)
)


# The choice


def test_every_rule_of_the_table_can_be_used_and_says_what_to_do() -> None:
    """Names are unique; each has a message and an advice."""
    assert len(BUILT_IN) == len(RULES)
    for rule in RULES:
        assert checked(rule) is rule
        assert rule.when.format_map({**rule.options, "limit": rule.limit})
        assert rule.says
        assert rule.advice.endswith(".")


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        ("default", list(BUILT_IN)),
        ("none", []),
        ([], list(BUILT_IN)),
        ({}, list(BUILT_IN)),
        ("hot, leak", ["hot", "leak"]),
        (["default", DRAWING], [*BUILT_IN, "drawing"]),
        (["none", DRAWING], ["drawing"]),
        ("-hot", [name for name in BUILT_IN if name != "hot"]),
        ({"hot": None}, [name for name in BUILT_IN if name != "hot"]),
        ({"hot": {"above": 70}}, list(BUILT_IN)),
        (["hot", {"leak": {"above": 2}}], ["hot", "leak"]),
        (["hot", "-leak"], ["hot"]),
    ],
)
def test_rules_are_chosen_by_name_by_object_and_by_what_is_left_out(choice: RuleChoice, chosen: list[str]) -> None:
    """Settings and exclusions alone are of the default ones."""
    assert [rule.name for rule in rules_of(choice)] == chosen


@pytest.mark.parametrize("choice", [{"hot": {"above": 75}}, "hot.above=75", ["default", {"hot": {"above": 75}}], "default,hot.above=75"])
def test_a_limit_is_set_and_the_one_at_which_it_is_over_moves_with_it(choice: RuleChoice) -> None:
    """Everything else stays."""
    found = {rule.name: rule for rule in rules_of(choice)}
    assert found["hot"] == BUILT_IN["hot"]._replace(above=75, clear=72)


def test_options_of_a_measure_are_settings_too() -> None:
    """A share of another window."""
    (rule,) = rules_of(["throttled", {"throttled": {"span": 60.0, "clear": 10}}])
    assert (rule.options["span"], rule.clear) == (60.0, 10)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("hott", "'hott'.*hot"),
        ("-hott", "'hott'.*hot"),
        ({"hott": {"above": 1}}, "'hott'.*hot"),
        ({"hott": None}, "'hott'.*hot"),
        ({"hot": {"abov": 1}}, "setting of the rule hot 'abov'.*above"),
        ({"near_slowdown": {"above": 1}}, "setting of the rule near_slowdown 'above'"),
    ],
)
def test_a_name_that_does_not_exist_is_an_error_that_says_the_nearest(choice: RuleChoice, message: str) -> None:
    """Of a rule, and of a setting."""
    with pytest.raises(UnknownNameError, match=message):
        rules_of(choice)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (5, "rules has 5"),
        ([5], "rules has 5"),
        ({"hot": 75}, r"rules\['hot'\] is 75"),
        ({"hot": {"above": "75"}}, "above is '75': it must be a number"),
        ({"hot": {"above": float("nan")}}, "above is nan"),
        ({"hot": {"clear": 90}}, "clear is 90, which is beyond the limit 80"),
        ({"near_slowdown": {"clear": 1}}, "clear is 1, which is beyond the limit 5"),
        ({"hot": {"seconds": -1}}, "must not be below 0"),
        ({"throttled": {"span": "long"}}, "span is 'long': it must be a number"),
        ({"hot": {"severity": "bad"}}, "severity is 'bad'"),
        ("hot.above=warm", "'warm' is not a number"),
        ([DRAWING._replace(above=None)], "it needs one limit"),
        ([DRAWING._replace(below=3)], "it needs one limit"),
        ([DRAWING._replace(measure=3)], "its measure 3 is not callable"),  # type: ignore[arg-type]
        ([DRAWING._replace(needs=("powerWatts",))], "needs is a list of lists"),  # type: ignore[arg-type]
        ([DRAWING._replace(needs="powerWatts")], "needs is a list of lists"),  # type: ignore[arg-type]
        ([DRAWING._replace(logged="loss")], "logged a list of names"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_used_is_an_error_where_the_monitor_is_made(choice: Any, message: str) -> None:
    """And not at the first reading."""
    with pytest.raises(InvalidOptionError, match=message):
        Monitor(backends=[gpus(1)], rules=choice)


class _EntryPoint:
    """What an installed package registers."""

    name, value, dist = "drawing", "acme.rules:DRAWING", None

    def __init__(self, found: object) -> None:
        self._found = found

    def load(self) -> object:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


@pytest.mark.parametrize(("found", "message"), [(DRAWING, ""), (5, "register an accelmetrics.Rule"), (ImportError("no acme"), "no acme")])
def test_another_packages_rule_is_asked_for_by_name(found: object, message: str) -> None:
    """And is in no default: what is installed judges nothing unasked."""
    with patch.object(plug_ins, "registered", lambda group: {"drawing": _EntryPoint(found)} if group == rules.GROUP else {}):
        assert "drawing" in rules.names()
        assert "drawing" not in [rule.name for rule in rules_of("default")]
        if message:
            with pytest.raises(InvalidOptionError, match=message):
                rules_of("drawing")
        else:
            assert rules_of("drawing") == (DRAWING,)


# A monitor


def test_a_monitor_tells_its_findings_to_records_a_callback_and_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each once when it begins, and once when it is over; also over a restart."""
    clock, told, exporter = FakeClock(), queue.Queue[Finding](), Recorder()
    backend = gpus(2, powerWatts=40.0)
    monitor = Monitor(1.0, [exporter], backends=[backend], rules=[DRAWING], on_finding=told.put, clock=clock)
    with monitor, caplog.at_level(logging.INFO, "accelmetrics"):
        wait_for(lambda: monitor.status.ticks > 3)
        assert (tuple(monitor.findings), len(monitor.findings)) == ((), 0)
        backend.device(1).set(powerWatts=60.0)
        begun = told.get(timeout=HANG)
        assert (begun.rule, begun.key, begun.severity, begun.message, begun.until_ns) == ("drawing", "gpu.1", "info", "60 W", None)
        assert monitor.findings.current == (begun,)
        assert list(monitor.findings) == [begun]
    with monitor:
        wait_for(lambda: monitor.status.ticks > 3)
        assert monitor.findings.current == (begun,)
        backend.device(1).set(powerWatts=40.0)
        ended = told.get(timeout=HANG)
        assert ended == begun._replace(until_ns=ended.until_ns)
        assert ended.until_ns is not None
        assert ended.until_ns > begun.since_ns
        wait_for(lambda: monitor.findings.ended == (ended,))
    assert told.empty()
    assert begun in {finding for record in exporter.records for finding in record.findings}
    assert [record.message for record in caplog.records if "drawing" in record.message] == [
        "info drawing: gpu.1: 60 W (Nothing.)",
    ]


def test_a_callback_that_fails_costs_itself_alone() -> None:
    """It is counted as an exporter that fails."""
    clock, backend = FakeClock(), gpus(1)

    def fail(finding: Finding) -> None:
        raise RuntimeError("the callback is broken")

    with Monitor(1.0, backends=[backend], rules=[DRAWING], on_finding=fail, clock=clock) as monitor:
        wait_for(lambda: any(one.failed for one in monitor.status.exporters))
        wait_for(lambda: monitor.status.ticks > 10)
        assert monitor.findings.current


def test_what_cannot_be_called_is_no_callback() -> None:
    """Said where the monitor is made."""
    with pytest.raises(InvalidOptionError, match="'print' is not callable"):
        Monitor(backends=[gpus(1)], on_finding="print")  # type: ignore[arg-type]


def test_no_rules_judge_nothing() -> None:
    """Nothing is found, and nothing is missed."""
    clock, backend = FakeClock(), gpus(1)
    backend.device(0).set(temp=99)
    with Monitor(1.0, backends=[backend], rules="none", clock=clock) as monitor:
        wait_for(lambda: monitor.status.ticks > 500)
        assert monitor.findings == NO_FINDINGS


# Rules that fail


def noting(name: str, noted: list[Any], what: str) -> Rule:
    """A rule that finds nothing, and notes something of each reading."""

    def measure(given: RuleInput) -> Mapping[str, float]:
        noted.append(getattr(given, what))
        return {}

    return Rule(name, "info", "", lambda: measure, "", "", above=0)


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3), KeyboardInterrupt(), StopIteration(), RecursionError("deep")])
def test_a_rule_that_raises_costs_itself_alone(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """It is told once, as one that cannot judge; the others go on. What it had found stays."""
    works = itertools.chain([{"gpu.0": 1.0}] * 5, itertools.repeat(error))
    broken = Rule("broken", "info", "", lambda: Mock(side_effect=works), "works", "Mend it.", above=0)
    clock, backend = FakeClock(), healthy_gpus(2, FakeClock())
    backend.device(1).set(temp=90)
    with Monitor(1.0, backends=[backend], rules=["overheating", broken], clock=clock) as monitor:
        wait_for(lambda: monitor.status.ticks > 200)
        found = monitor.findings
        assert monitor.error == ""
    assert {(finding.rule, finding.key) for finding in found} == {("broken", "gpu.0"), ("overheating", "gpu.1")}
    (lack,) = found.cannot_tell
    assert (lack.rule, lack.reason) == ("broken", "rule_failed")
    assert type(error).__name__ in lack.detail
    assert sum("rule broken failed" in record.message for record in caplog.records) == 1


def test_a_rule_that_cannot_be_made_is_told_too() -> None:
    """Its factory raises: at the first reading."""

    def never() -> Measure:
        raise OSError("no file")

    with JudgedRun(["hot", Rule("never", "info", "", never, "", "", above=0)]) as run:
        run.go(1)  # a single reading
        assert [(lack.rule, lack.reason) for lack in run.findings.cannot_tell] == [("never", "rule_failed")]


def test_a_slow_rule_is_not_called_any_more() -> None:
    """After it was slow several times in a row."""
    calls: list[float] = []
    with patch.object(engine, "SLOW", -1.0), JudgedRun([noting("slow", calls, "at")]) as run:
        run.go(200)
        assert len(calls) == engine.SLOW_TIMES
        (lack,) = run.findings.cannot_tell
        assert "no longer called" in lack.detail


def test_a_rule_about_ever_new_things_keeps_a_bounded_number() -> None:
    """Of findings too."""
    endless = Rule("endless", "info", "", lambda: lambda given: {f"thing {given.at}": 1.0}, "new", "", above=0, clear_seconds=1)
    with patch.object(engine, "MOST", 20), JudgedRun([endless], devices=1) as run:
        run.go(3600)
        assert len(run.findings.current) <= 20
        assert len(run.findings.ended) <= engine.ENDED


def test_a_number_that_is_none_changes_nothing() -> None:
    """NaN is neither beyond the limit nor below it."""
    values = iter([1.0, 1.0, *[float("nan")] * 5, 0.0])
    rule = Rule("odd", "info", "", lambda: lambda given: {"": next(values)}, "odd", "", above=0)
    with JudgedRun([rule], devices=1) as run:
        run.go(70)
        assert run.names() == [("odd", "")]
        run.go(10)
        assert run.names() == []


# What cannot be judged


def test_a_rule_that_lacks_its_metric_says_why() -> None:
    """With the source's own reason, devices with the same one together; and it says so no more when it has it."""
    with JudgedRun("hot,near_slowdown,leak") as run:
        run.gpu(0).miss("tempLimit.slowdown", "not_supported", "NVML_ERROR_NOT_SUPPORTED")
        run.gpu(2).miss("tempLimit.slowdown", "not_supported", "NVML_ERROR_NOT_SUPPORTED")
        run.go(run.interval)
        assert run.findings.cannot_tell == ()
        run.go(60)
        why = ("not_supported", "NVML_ERROR_NOT_SUPPORTED")
        assert list(run.findings.cannot_tell) == [CannotTell("near_slowdown", ("gpu.0", "gpu.2"), "tempLimit.slowdown", *why)]
        assert run.findings.current == ()
        run.gpu(0).set(**{"tempLimit.slowdown": 90})
        run.gpu(2).set(**{"tempLimit.slowdown": 90})
        run.go(60)
        assert run.findings.cannot_tell == ()


def test_reasons_whose_words_change_are_told_once() -> None:
    """A driver that has not answered for one second more at every reading."""
    with JudgedRun("near_slowdown") as run:
        told = []

        def wait_longer() -> None:
            for number in (0, 1):
                run.gpu(number).miss("tempLimit.slowdown", "timed_out", f"no answer for {run.clock.monotonic() + number:.0f} s")
            told.append(run.findings)

        run.go(600, wait_longer)
        assert all(findings is told[-1] for findings in told[5:])
        (lack,) = run.findings.cannot_tell
        assert lack.keys == ("gpu.0", "gpu.1")


def test_a_metric_that_is_not_read_cannot_be_judged_by() -> None:
    """Silence is never taken for being well."""
    clock = FakeClock()
    with Monitor(1.0, backends=[healthy_gpus(2, clock)], metrics="temp", rules="hot,leak,nvlink_down", clock=clock) as monitor:
        wait_for(lambda: monitor.findings.cannot_tell)
        found = {(lack.rule, lack.keys, lack.reason) for lack in monitor.findings.cannot_tell}
    assert found == {("leak", ("gpu.0", "gpu.1"), "not_read"), ("nvlink_down", ("gpu.0", "gpu.1"), "not_read")}


def test_rules_about_one_vendor_say_nothing_of_another() -> None:
    """An AMD GPU has no Xid."""
    with JudgedRun("xid,nvlink_down") as run:
        for device in run.backend.all_devices():
            device.identity = device.identity._replace(vendor="amd")
            device.miss("xidErrors")
        run.go(60)
        assert run.findings.cannot_tell == ()


# Pace and cost


def test_readings_are_judged_once_a_second_at_most() -> None:
    """A tenth of ten readings a second."""
    calls: list[float] = []
    with JudgedRun([noting("count", calls, "at")], devices=1, interval=0.1) as run:
        run.go(60)
        assert 55 <= len(calls) <= 66


def test_rules_are_told_of_pauses_failures_and_restarts() -> None:
    """Once for each, with the first reading after it."""
    seen: list[bool] = []
    clock = FakeClock()
    monitor = Monitor(1.0, backends=[gpus(1)], rules=[noting("joined", seen, "joined")], clock=clock)

    def goes_on(number: int) -> None:
        wait_for(lambda: len(seen) > number + 3)

    with monitor:
        goes_on(0)
        monitor.pause()
        paused = len(seen)
        clock.advance(3600)
        monitor.resume()
        goes_on(paused)
    restarted = len(seen)
    with monitor:
        goes_on(restarted)
    assert seen.count(False) == 3
    assert seen[0] is False
    assert False in seen[paused : paused + 2]
    assert False in seen[restarted : restarted + 2]
