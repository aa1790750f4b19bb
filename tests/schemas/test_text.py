"""Numbers, units and lengths of time in words: one rounding, one unit for a value and its limit."""

from __future__ import annotations

import pytest

from accelmetrics.schemas import text
from accelmetrics.schemas.text import GIB

ROWS: tuple[tuple[str, tuple[float | str | None, ...], str], ...] = (
    ("percent", (12.5,), "13 %"),
    ("percent", (13.5,), "14 %"),
    ("percent", (99.49,), "99 %"),
    ("percent", (0,), "0 %"),
    ("celsius", (64,), "64 °C"),
    ("celsius", (-0.4,), "0 °C"),
    ("celsius", (-2.5,), "-3 °C"),
    ("fixed", (0.25, 1), "0.3"),
    ("fixed", (1.005, 2), "1.00"),  # the nearest double is below the tie
    ("fixed", (1e20, 0), "100000000000000000000"),
    ("memory", (61.0 * GIB, 79.6 * GIB), "61.0/79.6 GiB"),
    ("memory", (0.5 * GIB, 80.0 * GIB), "0.5/80.0 GiB"),
    ("memory", (409.6 * 2**20, None), "409.6 MiB"),
    ("memory", (512, None), "512 B"),
    ("memory", (1.5 * 1024 * GIB, None), "1.5 TiB"),
    ("watts", (611.5, 700), "612/700 W"),
    ("watts", (300.4, None), "300 W"),
    ("watts", (9450, 43_900), "9.45/43.9 kW"),
    ("watts", (0, 43_900), "0.00/43.9 kW"),
    ("watts", (120_400, None), "120 kW"),
    ("quantity", (909, "By/s"), "909 B/s"),
    ("quantity", (61 * GIB, "By"), "61.0 GiB"),
    ("quantity", (300.25, "W"), "300.25 W"),
    ("quantity", (0.125, "%"), "0.13 %"),
    ("quantity", (0.0512, "%"), "0.051 %"),
    ("quantity", (7, "1"), "7"),
    ("energy", (312.5,), "313 J"),
    ("energy", (99_999,), "99999 J"),
    ("energy", (3.6e6,), "1.000 kWh"),
    ("duration", (52.9,), "52 s"),
    ("duration", (-1,), "0 s"),
    ("duration", (60,), "1 min"),
    ("duration", (3599,), "59 min"),
    ("duration", (7200,), "2 h"),
    ("duration", (8040,), "2.2 h"),
    ("duration", (302_400,), "3.5 d"),
)
"""The function, its arguments and what it gives; the page's functions of the same names give it too."""


@pytest.mark.parametrize(("name", "arguments", "words"), ROWS)
def test_a_number_in_words(name: str, arguments: tuple[float | str | None, ...], words: str) -> None:
    assert getattr(text, name)(*arguments) == words


def test_a_table_that_is_too_wide_goes_on_below_within_words() -> None:
    rows = [("NAME", "WHAT", "NEEDS"), ("one", "a long sentence about it", "nothing"), ("two", "short", "this-is-one-long-word")]
    assert text.fitted(rows, 40) == [
        "NAME  WHAT      NEEDS",
        "one   a long    nothing",
        "      sentence",
        "      about it",
        "two   short     this-is-one-long-word",
    ]
    assert text.fitted(rows, 200) == text.aligned(rows)
    assert max(map(len, text.fitted(rows, 10))) == 37
