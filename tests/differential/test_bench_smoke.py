"""The benchmark's measurements work; what they measure is `make bench`'s business."""

from __future__ import annotations

import pytest

from benchmarks import rows
from benchmarks.__main__ import MEASURES
from benchmarks.rows import SMOKE, Row

NEED_PEERS = {"cpu", "models", "peers"}


PLAUSIBLE = [
    ("bare", 0.001, 10_000),
    ("functions", 5, 200),
    ("growth", 0.01, 10_000),
    ("vendors", 0.01, 1000),
    ("busy", 0, 10_000),
    ("calls", 5, 20),
    ("windows", 0.01, 1000),
    ("ranks", 0.01, 1000),
    ("own", 0.01, 1000),
    ("exporters", 0.001, 1000),
    ("steps", -1000, 100_000),
    ("findings", 0.001, 1000),
    ("page", 0.0001, 1000),
    ("reports", 0.1, 1000),
    ("watch", 0.01, 2000),
    ("start", -2000, 5000),
    ("memory", -1, 32),
]


@pytest.mark.parametrize(("name", "least", "most"), PLAUSIBLE)
def test_measures_something_plausible(name: str, least: float, most: float) -> None:
    """Each measurement gives numbers of the right size, from very few readings."""
    measured = list(MEASURES[name](SMOKE))
    assert measured
    assert [row for row in measured if not least <= row.measured <= most] == []


def test_every_measurement_is_tested_but_those_that_need_other_projects() -> None:
    """One that is added is added above too."""
    assert {name for name, *_ in PLAUSIBLE} | NEED_PEERS == set(MEASURES)


@pytest.mark.parametrize(
    ("measured", "verdict"), [(1.0, "stretch"), (1.4, "stretch"), (1.41, "reached"), (2.0, "reached"), (2.01, "**missed**")]
)
def test_verdicts(measured: float, verdict: str) -> None:
    """Targets are met by equality; a row may have only one, or none."""
    assert Row("what", measured, "×", 2.0, 1.4).verdict == verdict
    assert Row("what", measured, "×", 2.0).verdict == verdict.replace("stretch", "reached")
    assert Row("what", measured).verdict == ""


def test_the_table_goes_between_its_marks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing twice leaves one table, and the words around it as they are."""
    page = tmp_path_factory.mktemp("bench") / "README.md"
    page.write_text(f"before\n{rows.BEGIN}\nold\n{rows.END}\nafter\n")
    monkeypatch.setattr(rows, "README", page)
    for measured in (3.0, 1.5):
        rows.write([Row("a reading", measured, "×", 2.0, 1.4, "1 µs")])
    text = page.read_text()
    assert text.startswith(f"before\n{rows.BEGIN}\n")
    assert text.endswith(f"{rows.END}\nafter\n")
    assert "| a reading | 1.50× | ≤ 2.00× | ≤ 1.40× | reached | 1 µs |" in text
    assert "3.00×" not in text
    assert "simulated" in text


def test_the_runs_of_a_row_are_told_by_their_median_and_between_what_they_lay() -> None:
    """Ratios are those of pairs, not of medians."""
    row = rows.ratio("a reading", [(3e-6, 1e-6), (4e-6, 2e-6), (2e-6, 2e-6)], (2.0, None), " for 8 keys")
    assert row == Row("a reading", 2.0, "×", 2.0, None, "3 µs, 2 µs for 8 keys; 1.00–3.00× over 3 runs")
    assert rows.spread("one", [2.5], " ms", (None, None), "8 keys").note == "8 keys"
    assert rows.spread("two", [2.5, 25.0], " ms", (None, None), "8 keys").note == "8 keys; 2.50–25.0 ms over 2 runs"


def test_each_row_that_missed_says_why() -> None:
    """In the page, below the table; a row that has reached its goal has no reason to miss it."""
    assert rows.unexplained(rows.README.read_text()) == []


def test_a_missing_reason_is_found_and_one_too_many() -> None:
    """A reason goes with the row's own words."""
    table = "\n".join(
        row.line for row in (Row("a `sample()`", 3.0, "×", 2.0), Row("a scrape", 3.0, "×", 2.0), Row("a start", 1.0, "×", 2.0))
    )
    why = "- **a scrape**: it waits.\n- **a start**: no more.\n\n## How\n- **a `sample()`**: another section.\n"
    assert rows.unexplained(f"{table}\n{rows.END}\n{rows.REASONS}\n{why}") == ["no reason: a `sample()`", "not missed: a start"]
