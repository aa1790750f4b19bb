"""The comparison itself: it sees what differs, and lets pass what only moved on between two readings."""

from __future__ import annotations

import pytest

from tests.differential import differences, host_keys, machine
from tests.differential.differences import Found, Phase, Row
from tests.differential.streams import Record, Streams

TABLE = """
| Key | Difference | Seen | Why |
|---|---|---|---|
| `gpu.{i}.a`, `gpu.{i}.b` | only accelmetrics | always | a reason that is long enough |
| `disk.{path}.usageGB` | value | some machines | another reason that is long enough |
"""


def phase(number: int, wandb: dict[str, float], ours: dict[str, float]) -> Phase:
    return Phase(number, wandb, Record(0.0, ours, {"gpu.1.x": "driver_error"}))


def kinds(number: int, wandb: dict[str, float], ours: dict[str, float], before: dict[str, float] | None = None) -> dict[str, str]:
    return {one.key: one.kind for one in differences.differences(phase(number, wandb, ours), before or {})}


def test_each_kind_of_difference_is_seen() -> None:
    """A key on one side, a value that is off by more than rounding; equal values are no difference."""
    wandb = {"gpu.0.same": 6429343743.999999, "gpu.0.off": 1.0, "gpu.0.theirs": 1, "cpu": 3.0}
    ours = {"gpu.0.same": 6429343744.0, "gpu.0.off": 1.000001, "gpu.0.ours": 1, "cpu": 4.0}
    expected = {"gpu.0.off": differences.VALUE, "gpu.0.theirs": differences.ONLY_WANDB, "gpu.0.ours": differences.ONLY_OURS}
    assert kinds(machine.HEALTHY, wandb, ours) == expected


def test_an_error_explains_only_what_came_after_it_on_that_gpu() -> None:
    """Before the errors, on a GPU without any, or for a key that W&B never had, a missing key is a plain difference."""
    ours = {"gpu.0.x": 1.0, "gpu.1.x": 1.0, "gpu.1.new": 1.0}
    before = {"gpu.0.x": 1.0, "gpu.1.x": 1.0}
    found = kinds(machine.RECOVERED, {}, ours, before)
    assert found == {"gpu.0.x": differences.ONLY_OURS, "gpu.1.x": differences.AFTER_ERROR, "gpu.1.new": differences.ONLY_OURS}
    assert set(kinds(machine.BUSY, {}, ours, before).values()) == {differences.ONLY_OURS}


def test_tables_are_read_and_placeholders_match_one_word() -> None:
    """Only a path may hold dots."""
    rows = differences.documented(TABLE)
    assert [row.key for row in rows] == ["gpu.{i}.a", "gpu.{i}.b", "disk.{path}.usageGB"]
    assert rows[0].names("gpu.12.a")
    assert not rows[0].names("gpu.process.1.a")
    assert rows[2].names("disk./mnt/v1.2.usageGB")


def test_unlisted_differences_and_unseen_rows_are_told() -> None:
    """What no row explains, and the rows that nothing needs."""
    rows = differences.documented(TABLE)
    known, strange = Found("gpu.0.a", differences.ONLY_OURS, ""), Found("gpu.0.c", differences.ONLY_OURS, "")
    assert differences.unlisted([known, strange], rows) == [strange]
    assert differences.unseen([known], rows) == [Row("gpu.{i}.b", "only accelmetrics", "always", "a reason that is long enough")]


def test_a_phase_that_nobody_read_is_an_error() -> None:
    """Comparing nothing is no agreement."""
    with pytest.raises(AssertionError, match="W&B gave nothing in phase 0"):
        differences.phase_of(Streams([], []), machine.HEALTHY)


def streams(key: str, wandb: list[float], ours: list[float]) -> Streams:
    """Readings four times a second, W&B's between ours."""
    theirs = [Record(0.25 * index + 0.125, {key: value}, {}) for index, value in enumerate(wandb)]
    own = [Record(0.25 * index, {key: value}, {}) for index, value in enumerate(ours)]
    return Streams(theirs, own)


def test_counters_may_differ_by_a_constant_only() -> None:
    """Each side counts from its own start; one that counts something else drifts away."""
    key = "disk.sda.out"
    rising = [2.0 * step for step in range(12)]
    assert host_keys.disagreement(key, streams(key, [value + 101.0 for value in rising], rising)) == ""
    assert "drift" in host_keys.disagreement(key, streams(key, [3 * value for value in rising], rising))


def test_gauges_must_lie_within_what_we_saw_around() -> None:
    """A value that moves is met by the range around it; one that is wrong is not."""
    key = "memory_percent"
    moving = [50.0, 60.0, 50.0, 60.0, 50.0, 60.0]
    assert host_keys.disagreement(key, streams(key, [55.0] * 6, moving)) == ""
    assert "apart" in host_keys.disagreement(key, streams(key, [80.0] * 6, moving))
    assert host_keys.disagreement("new.key", streams("new.key", [1.0], [1.0])) == "no tolerance is set for it"
