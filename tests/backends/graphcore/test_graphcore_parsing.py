"""Text to numbers: what is printed is given exactly, and nothing else is ever given."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelmetrics.backends.graphcore.attributes import ATTRIBUTES, NAMES, parse, read_attributes
from accelmetrics.backends.graphcore.library import listing
from accelmetrics.schemas.catalogue import expected_names
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason, Unavailable
from tests.simulators.graphcore import c600, m2000

units = st.sampled_from([row.unit for row in ATTRIBUTES])


def test_the_table_has_every_name_that_the_catalogue_promises() -> None:
    assert sorted(NAMES) == sorted(expected_names("graphcore"))


@pytest.mark.parametrize("device", [c600(0), m2000(1), {}])
def test_every_name_has_a_value_or_a_reason(device: dict[str, str]) -> None:
    assert sorted(read_attributes(device)) == sorted(NAMES)


@pytest.mark.parametrize(
    ("printed", "unit", "value"),
    [
        ("17.8 C", "C", 17.8),
        ("30C", "C", 30),
        ("-5.5 C", "C", -5.5),
        ("36.2 °C", "C", 36.2),
        ("1330MHz", "MHz", 1330),
        ("0.00%", "%", 0.0),
        (" 99.96 % ", "%", 99.96),
        ("8 GT/s", "GT/s", 8),
        ("1.2e1W", "W", 12.0),
        ("16.\tW", "W", 16.0),
    ],
)
def test_values_as_printed(printed: str, unit: str, value: float) -> None:
    found = parse(printed, unit, -50, 10_000)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("printed", [None, 7, 7.5, ["1 W"], "1 W" * 100, "1 2 W", "W", "0x10 W", "١٢ W", "1 w", "--5 W", "no errors"])
def test_what_is_no_number_of_the_unit_is_a_parse_error(printed: object) -> None:
    found = parse(printed, "W", 0, 100)
    assert isinstance(found, Unavailable)
    assert found.reason == Reason.PARSE_ERROR


@pytest.mark.parametrize("printed", ["N/A", "n/a", "NA", "-", "None", "unknown", "not available", "  "])
def test_absent_is_not_supported(printed: str) -> None:
    found = parse(printed, "W", 0, 100)
    assert isinstance(found, Unavailable)
    assert found.reason == Reason.NOT_SUPPORTED


@pytest.mark.parametrize("printed", ["nan", "NaN W", "-inf", "Infinity W", "1e999 W", "100.5 W", "-0.5 W"])
def test_impossible_is_invalid(printed: str) -> None:
    found = parse(printed, "W", 0, 100)
    assert isinstance(found, Unavailable)
    assert found.reason == Reason.INVALID_VALUE


@given(st.text(max_size=200) | st.integers() | st.none() | st.binary(max_size=5), units)
def test_any_answer_is_a_number_within_bounds_or_a_reason(printed: object, unit: str) -> None:
    found = parse(printed, unit, -50, 4000)
    assert isinstance(found, Unavailable) or (math.isfinite(found) and -50 <= found <= 4000)


@given(st.floats(min_value=-50, max_value=4000), st.sampled_from(["", " ", "  "]), units)
def test_a_number_with_its_unit_is_given_exactly(value: float, gap: str, unit: str) -> None:
    assert parse(f"{value!r}{gap}{unit}", unit, -50, 4000) == value


@given(st.lists(st.dictionaries(st.text(max_size=8) | st.just("id"), st.text(max_size=8), max_size=4), max_size=6))
def test_any_listing_is_told_apart_or_refused(devices: list[dict[str, str]]) -> None:
    try:
        found = listing(devices)
    except SourceError as error:
        assert error.reason == Reason.PARSE_ERROR
        assert len(devices) > 1
        return
    assert sorted(map(id, found.values())) == sorted(map(id, devices))


@pytest.mark.parametrize("answer", [None, "error: 7", 3, {"id": "0"}, [None], ["id"], [c600(0), 1], [c600(0), c600(0)]])
def test_what_is_no_listing_is_refused(answer: object) -> None:
    with pytest.raises(SourceError) as caught:
        listing(answer)
    assert caught.value.reason == Reason.PARSE_ERROR


def test_an_ipu_without_an_id_counts_by_its_place() -> None:
    first, second = c600(0), c600(1)
    del second["id"]
    assert listing([first, second]) == {0: first, 1: second}
