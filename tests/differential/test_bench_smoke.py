"""The benchmark's measurements work; what they measure is `make bench`'s business."""

from __future__ import annotations

import pytest

from benchmarks import readings, starting, steady, table
from benchmarks.__main__ import MEASURES, Measure
from benchmarks.rows import SMOKE, Row
from tests.simulators.nvml import NvmlSimulator, SimulatorUnavailable

NEED_PEERS = {"cpu", "peers"}


@pytest.fixture(scope="module", autouse=True)
def simulator() -> None:
    try:
        NvmlSimulator(1).close()
    except SimulatorUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("measure", "least", "most"),
    [
        (readings.against_bare, 0.05, 50),
        (readings.beside_busy_thread, 0, 10_000),
        (readings.calls, 5, 20),
        (starting.starting, -2000, 5000),
        (steady.memory, -1, 32),
    ],
)
def test_measures_something_plausible(measure: Measure, least: float, most: float) -> None:
    """Each measurement gives numbers of the right size, from very few readings."""
    rows = list(measure(SMOKE))
    assert rows
    assert [row for row in rows if not least <= row.measured <= most] == []


def test_every_measurement_is_known_by_name() -> None:
    """What is not tested above needs other projects, and is the rest."""
    assert len(MEASURES) == 5 + len(NEED_PEERS)
    assert set(MEASURES) >= NEED_PEERS


@pytest.mark.parametrize(
    ("measured", "verdict"), [(1.0, "stretch"), (1.4, "stretch"), (1.41, "reached"), (2.0, "reached"), (2.01, "**missed**")]
)
def test_verdicts(measured: float, verdict: str) -> None:
    """Targets are met by equality."""
    assert Row("what", measured, "×", 2.0, 1.4).verdict == verdict


def test_the_table_goes_between_its_marks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing twice leaves one table, and the words around it as they are."""
    page = tmp_path_factory.mktemp("bench") / "README.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    monkeypatch.setattr(table, "README", page)
    for measured in (3.0, 1.5):
        table.write([Row("a reading", measured, "×", 2.0, 1.4, "1 µs")])
    text = page.read_text()
    assert text.startswith(f"before\n{table.BEGIN}\n")
    assert text.endswith(f"{table.END}\nafter\n")
    assert "| a reading | 1.50× | ≤ 2.00× | ≤ 1.40× | reached | 1 µs |" in text
    assert "3.00×" not in text
    assert "simulated" in text
