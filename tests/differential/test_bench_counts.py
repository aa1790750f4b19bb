"""The comparison of counts fails for what got worse and tells the rest; what the counts are is the stage's business."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import __main__ as program, counts
from benchmarks.counts import BYTES, CALLS, SYSTEM_CALLS, Allowed, Committed, Counts
from benchmarks.workers.counting import BEGIN, END

CASE = "warm sample()"
BEFORE = Committed("3.11", {CASE: {CALLS: Allowed(80, 0), SYSTEM_CALLS: Allowed(600, 18)}})


def compared(now: dict[str, Counts], version: str = "3.11") -> counts.Comparison:
    return counts.compare(BEFORE, now, version)


def test_equal_counts_and_those_within_their_tolerance_pass_in_silence() -> None:
    assert compared({CASE: {CALLS: 80, SYSTEM_CALLS: 600}}) == ([], [])
    assert compared({CASE: {CALLS: 80, SYSTEM_CALLS: 618}}) == ([], [])
    assert compared({CASE: {CALLS: 80, SYSTEM_CALLS: 582}}) == ([], [])


def test_a_worse_count_fails_and_says_what_it_was_what_is_allowed_and_what_to_do() -> None:
    failures, notes = compared({CASE: {CALLS: 80.1, SYSTEM_CALLS: 660}})
    assert notes == []
    assert failures == [
        f"{CASE}: calls into the driver: 80 before, 80.1 now (+0.1 %; 0 more are allowed): mend it, or renew the file by "
        f"{counts.RENEW} and say why in the commit",
        f"{CASE}: system calls: 600 before, 660 now (+10.0 %; 18 more are allowed): mend it, or renew the file by "
        f"{counts.RENEW} and say why in the commit",
    ]


def test_a_better_count_is_told_and_passes() -> None:
    failures, notes = compared({CASE: {CALLS: 72, SYSTEM_CALLS: 600}})
    assert failures == []
    assert notes == [f"{CASE}: calls into the driver: better: 80 before, 72 now (-10.0 %): {counts.RENEW}"]


def test_what_grew_from_nothing_is_worse() -> None:
    none = Committed("3.11", {CASE: {CALLS: Allowed(0, 0.5)}})
    (failure,), _ = counts.compare(none, {CASE: {CALLS: 1}}, "3.11")
    assert "0 before, 1 now (+1; 0.5 more are allowed)" in failure


def test_a_case_or_a_kind_that_is_not_counted_any_more_fails() -> None:
    assert [failure.split(": mend")[0] for failure in compared({}).failures] == [
        f"{CASE}: calls into the driver: 80 before, not counted now",
        f"{CASE}: system calls: 600 before, not counted now",
    ]
    assert len(compared({CASE: {CALLS: 80}}).failures) == 1


def test_a_case_or_a_kind_that_is_not_in_the_file_fails() -> None:
    failures, _ = compared({CASE: {CALLS: 80, SYSTEM_CALLS: 600, BYTES: 7}, "another": {CALLS: 1}})
    assert failures == [
        f"{CASE}: bytes: not in counts.json yet: add it by {counts.RENEW}",
        f"another: calls into the driver: not in counts.json yet: add it by {counts.RENEW}",
    ]


def test_on_another_python_what_depends_on_it_is_left_out_and_that_is_told() -> None:
    failures, (note,) = compared({CASE: {CALLS: 80, SYSTEM_CALLS: 999}}, "3.13")
    assert failures == []
    assert note == "1 counts that differ by Python's version are of 3.11 and were not compared: this is 3.13"
    assert len(compared({CASE: {CALLS: 81, SYSTEM_CALLS: 600}}, "3.13").failures) == 1


def test_what_is_written_is_read_again_with_what_each_kind_may_grow(tmp_path: Path) -> None:
    """So many percent, or so much at least; a line a count."""
    file = tmp_path / "counts.json"
    file.write_text(counts.text({CASE: {CALLS: 92.96, BYTES: 7}, "another": {SYSTEM_CALLS: 1000}}))
    cases = {CASE: {CALLS: Allowed(92.96, 0.1), BYTES: Allowed(7, 0.14)}, "another": {SYSTEM_CALLS: Allowed(1000, 50)}}
    assert counts.read(file).cases == cases
    lines = file.read_text().splitlines()
    assert len([line for line in lines if "may_grow" in line]) == 3


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"python": "3.11"}', '{"python": "3.11", "cases": {"a": {"b": 3}}}'])
def test_a_file_that_cannot_be_read_fails_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    """Before anything is counted."""
    file = tmp_path / "counts.json"
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr(counts, "count_all", lambda *_: pytest.fail("counted"))
    assert program.compare(False, file) == 1
    told = capsys.readouterr().out
    assert told.startswith("counts: not compared: counts.json cannot be read (")
    assert told.endswith(f"): restore it, or write it anew by {counts.RENEW}\n")


def test_without_a_tool_nothing_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "counts.json"
    file.write_text(counts.text({CASE: {CALLS: 80}}))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert program.compare(False, file) == 1
    assert "apt-get install strace" in capsys.readouterr().out


def test_the_program_fails_where_a_count_got_worse_until_the_file_is_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its exit status is what the stage looks at; what is better is told and passes."""
    file = tmp_path / "counts.json"
    found = {CASE: {CALLS: 80.0}}
    monkeypatch.setattr(counts, "count_all", lambda *_: found)
    assert program.compare(True, file) == 0
    assert program.compare(False, file) == 0
    found[CASE][CALLS] = 79
    assert program.compare(False, file) == 0
    assert "better: 80 before, 79 now" in capsys.readouterr().out
    found[CASE][CALLS] = 81
    assert program.compare(False, file) == 1
    assert "80 before, 81 now" in capsys.readouterr().out
    assert program.compare(True, file) == 0
    assert program.compare(False, file) == 0


def test_a_case_that_came_out_worse_is_counted_again_and_the_least_holds() -> None:
    """What depends on chance only adds; what is worse each time stays so."""
    chance, worse = iter((90, 80)), iter((90, 91, 92))
    cases: dict[str, Callable[[], Counts]] = {
        "chance": lambda: {CALLS: next(chance)},
        "worse": lambda: {CALLS: next(worse)},
        "new": lambda: {CALLS: 1},
    }
    allowed = {name: {CALLS: Allowed(80, 0)} for name in ("chance", "worse", "gone")}
    assert counts.least(cases, allowed) == {"chance": {CALLS: 80}, "worse": {CALLS: 90}, "new": {CALLS: 1}}


def test_the_file_has_the_least_of_two() -> None:
    found = iter((90, 80))
    assert counts.least({"a": lambda: {CALLS: next(found)}}, None) == {"a": {CALLS: 80}}


def test_system_calls_are_those_between_the_marks(tmp_path: Path) -> None:
    """One that another thread interrupts is one call."""
    file = tmp_path / "trace"
    lines = [
        '7 access("/counts/begin", F_OK) = -1',
        '7 pread64(3, "x", 9, 0) = 1',
        "8 write(4, <unfinished ...>",
        "7 close(3) = 0",
        "8 <... write resumed>) = 1",
        '7 access("/counts/end", F_OK) = -1',
        "8 +++ exited with 0 +++",
    ]
    file.write_text("\n".join(lines))
    trace = counts.Trace(file)
    assert [line.split("(")[0] for line in trace.made(BEGIN, END)] == ["7 pread64", "8 write", "7 close"]
    assert len(trace.made()) == 5


def test_the_committed_file_has_every_case() -> None:
    """One that is added or renamed is counted and committed."""
    assert list(counts.cases()) == list(counts.read(counts.FILE).cases)
