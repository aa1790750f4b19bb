"""The benchmark's measurements work; what they measure is `make bench`'s business."""

from __future__ import annotations

import pytest

from benchmarks import rows
from benchmarks.__main__ import MEASURES
from benchmarks.rows import SMOKE, Row

NEED_PEERS = {"cpu", "peers"}


PLAUSIBLE = [
    ("bare", 0.001, 10_000),
    ("functions", 5, 200),
    ("growth", 0.01, 10_000),
    ("busy", 0, 10_000),
    ("calls", 5, 20),
    ("windows", 0.01, 1000),
    ("ranks", 0.01, 1000),
    ("exporters", 0.001, 1000),
    ("steps", -1000, 100_000),
    ("findings", 0.001, 1000),
    ("page", 0.0001, 1000),
    ("reports", 0.1, 1000),
    ("watch", 0.01, 200),
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
