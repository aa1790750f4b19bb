"""What users rely on stays: the list in `tests/promises.txt`, the policy in `docs/stability.md`."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelmetrics.schemas.lines import LINES_VERSION
from accelmetrics.schemas.snapshot import SCHEMA_VERSION
from scripts import generate_promises

ROOT = Path(__file__).parents[1]


def test_nothing_that_was_promised_has_gone() -> None:
    """A line that has to go is taken from the list by hand, with an entry in CHANGELOG.md."""
    assert sorted(generate_promises.listed() - generate_promises.current()) == []


def test_a_line_stays_on_the_list_when_what_it_names_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The generator adds what is new, and removes nothing."""
    gone = "command dump --gone"
    monkeypatch.setattr(generate_promises, "FILE", tmp_path / "promises.txt")
    generate_promises.FILE.write_text(f"# old\n{gone}\n")
    text = generate_promises.render()
    assert f"\n{gone}\n" in text
    assert "\ncommand dump --json\n" in text


@pytest.mark.parametrize(
    "line",
    [
        "name accelmetrics.Snapshot.metrics",
        "option accelmetrics.sample(timeout=)",
        "option accelmetrics.Monitor(interval=)",
        "name accelmetrics.Reason.STALE",
        "key {kind}.{i}.powerWatts: float gauge, W",
        "reason not_supported",
        "field of document: metrics (always)",
        "field of document DeviceEntry: uuid",
        "field of line ReadingLine: timestamp",
        "command dump --json",
        "backend nvidia",
        "exporter jsonl?path=",
        "dialect dcgm",
        "name accelmetrics.backends.kit.PolledBackend",
        "option accelmetrics.backends.kit.Field(metric=)",
        "name accelmetrics.backends.contract.Backend.open",
        "name accelmetrics.dialects.contract.Dialect.points",
        "name accelmetrics.monitor.measures.RuleInput",
        "option accelmetrics.Rule(name=)",
    ],
)
def test_every_sort_of_promise_is_on_the_list(line: str) -> None:
    assert {line, f"{line} (always)"} & generate_promises.listed()


def test_the_policy_names_the_versions_that_hold() -> None:
    text = (ROOT / "docs" / "stability.md").read_text("utf-8")
    assert f"`{SCHEMA_VERSION}`" in text
    assert f"`{LINES_VERSION}`" in text
