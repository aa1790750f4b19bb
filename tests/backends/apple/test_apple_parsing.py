"""Whatever the commands print, what comes of it is finite numbers within bounds, and reasons."""

import json
import math
import plistlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accelmetrics.backends.apple import ioreg, macmon, powermetrics, static
from accelmetrics.backends.apple.sheet import NOBODY, Sheet, merge
from accelmetrics.backends.apple.values import Values, look_up, number, percent_of_ratio, share, whole
from accelmetrics.schemas.catalogue import expected_keys, expected_names
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason, Unavailable
from tests.simulators.apple import RAM, macmon_0_7, macmon_0_8
from tests.simulators.apple import ioreg as ioreg_output
from tests.simulators.apple import powermetrics as powermetrics_output

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10)
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3))
listable = (
    st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=10)
)
PERCENTAGES = {"gpu", "scaledUtilization", "memoryAllocated", "memory.used_percent", "cpu.ecpu_percent", "cpu.pcpu_percent"}


def sound(values: Values) -> bool:
    numbers = {name: value for name, value in values.items() if not isinstance(value, Unavailable)}
    return all(type(value) in (int, float) and math.isfinite(value) for value in numbers.values()) and all(
        0 <= numbers[name] <= 100 for name in PERCENTAGES & numbers.keys()
    )


def test_the_sources_know_every_metric_that_is_promised_and_no_other() -> None:
    promised = {*expected_names("apple"), *expected_keys("apple")}
    assert promised - {"powerPercent"} == macmon.NAMES | ioreg.NAMES | powermetrics.NAMES


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (macmon.read(macmon_0_8()), macmon.NAMES),
        (macmon.read(macmon_0_7()), macmon.NAMES),
        (macmon.read({}), macmon.NAMES),
        (ioreg.read(ioreg.parse(ioreg_output()), RAM), ioreg.NAMES),
        (powermetrics.parse(powermetrics_output()), powermetrics.NAMES),
        (powermetrics.parse("GPU Power: 3 mW"), powermetrics.NAMES),
    ],
)
def test_a_source_says_something_of_each_metric_it_gives(values: Values, names: frozenset[str]) -> None:
    assert set(values) == names


@given(st.sampled_from([macmon_0_7, macmon_0_8]), st.data())
def test_any_value_at_any_place_of_a_line(make: Any, data: st.DataObject) -> None:
    document = make()
    for name in data.draw(st.sets(st.sampled_from(sorted(document)), max_size=4)):
        document[name] = data.draw(anything)
    values = macmon.parse(json.dumps(document).encode())
    assert values is not None
    assert sound(values)


@given(st.binary(max_size=60) | anything.map(lambda value: json.dumps(value).encode()))
def test_any_other_line_is_none_of_macmon_s(line: bytes) -> None:
    assert macmon.parse(line) is None


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"gpu_power": 1}', b'{"gpu_usage": [1, 0.5]}', b"9" * 5000, b'{"gpu_power": NaN'])
def test_odd_lines_are_none_either(line: bytes) -> None:
    assert macmon.parse(line) is None


@given(
    st.dictionaries(st.sampled_from(["Device Utilization %", "In use system memory", "other"]), listable), st.none() | st.integers(1, 2**50)
)
def test_any_statistics_of_the_driver(statistics: dict[str, Any], ram: int | None) -> None:
    text = plistlib.dumps([{"PerformanceStatistics": statistics}]).decode()
    assert sound(ioreg.read(ioreg.parse(text), ram))


PLIST_PARTS = [
    "<plist>",
    "</plist>",
    "<array>",
    "</array>",
    "<dict>",
    "</dict>",
    "<key>",
    "</key>",
    "<date>x</date>",
    "<integer/>",
    "<data>!",
    "a",
]
plists = st.text(max_size=80) | st.lists(st.sampled_from(PLIST_PARTS), max_size=12).map(
    lambda parts: '<?xml version="1.0"?>' + "".join(parts)
)


@given(plists)
def test_any_text_is_statistics_or_refused(text: str) -> None:
    with pytest.raises(SourceError) as caught:
        ioreg.parse(text)
    assert caught.value.reason in (Reason.PARSE_ERROR, Reason.NOT_SUPPORTED)


@given(plists)
def test_any_text_of_powermetrics(text: str) -> None:
    assert sound(powermetrics.parse(text) or {})


@given(st.lists(listable, min_size=6, max_size=6), st.booleans())
def test_any_sample_of_powermetrics(found: list[Any], energies: bool) -> None:
    clock, idle, power, elapsed, cluster, name = found
    suffix = "energy" if energies else "power"
    processor = {f"{part}_{suffix}": power for part in ("cpu", "gpu", "ane", "combined")}
    sample = powermetrics_output(
        elapsed_ns=elapsed,
        gpu={"freq_hz": clock, "idle_ratio": idle},
        processor=processor | {"clusters": [cluster, {"name": "E-Cluster", "freq_hz": clock}, {"name": name, "freq_hz": cluster}]},
    )
    values = powermetrics.parse(sample)
    assert values is not None
    assert sound(values)


@given(anything)
def test_any_profile_is_a_name_and_a_count(document: Any) -> None:
    for whole_document in (document, {"SPDisplaysDataType": document}, {"SPDisplaysDataType": [document]}):
        name, cores = static.parse(json.dumps(whole_document))
        assert isinstance(name, str)
        assert cores is None or cores > 0


@given(anything)
def test_any_number_is_one_or_a_reason(found: object) -> None:
    assert sound({"x": number(found, "it", whole), "gpu": number(found, "it", percent_of_ratio)})


def test_a_number_beyond_all_bounds_is_told_without_being_printed() -> None:
    """Python refuses to print integers of more than 4,300 digits."""
    value = number(16**5000, "it", whole)
    assert isinstance(value, Unavailable)
    assert value.reason == Reason.INVALID_VALUE


def test_looking_up_goes_by_the_first_place_that_has_something() -> None:
    document = {"a": {"b": [1, 2]}, "c": 3}
    assert look_up(document, (("a", "x"), ("a", "b", 1), ("c",))) == 2
    assert look_up(document, (("a", "b", 5), ("c", "d"), ("c", 0))) is None


@pytest.mark.parametrize(("part", "of", "percent"), [(1, 4, 25.0), (0, 4, 0.0), (4, 4, 100.0)])
def test_shares(part: int, of: int, percent: float) -> None:
    assert share(part, of) == percent


@pytest.mark.parametrize(("part", "of"), [(5, 4), (0, 0), (-1, 4)])
def test_impossible_shares(part: int, of: int) -> None:
    found = share(part, of)
    assert isinstance(found, Unavailable)
    assert found.reason == Reason.INVALID_VALUE


# Several sources made into one

LATE = Unavailable(Reason.TIMED_OUT, "late")
ABSENT = Unavailable(Reason.DRIVER_UNAVAILABLE, "not installed")
FORBIDDEN = Unavailable(Reason.NO_PERMISSION, "for root alone")
BOTH = frozenset({"a", "b"})


def test_each_metric_is_the_first_source_s_that_has_it() -> None:
    first = Sheet("first", BOTH, {"a": 1, "b": LATE}, read_at=20.0)
    second = Sheet("second", BOTH, {"a": 2, "b": 3}, read_at=10.0)
    assert merge(["a", "b"], [first, second]) == ({"a": 1, "b": 3}, {}, 10.0)
    assert merge(["a"], [first, second]).read_at == 20.0


def test_a_source_that_is_there_says_more_than_one_that_is_not() -> None:
    sheets = [Sheet.missing("first", BOTH, ABSENT), Sheet.missing("second", frozenset("a"), FORBIDDEN)]
    assert merge(["a", "b", "c"], sheets) == (
        {},
        {"a": Unavailable(Reason.NO_PERMISSION, "not installed; for root alone"), "b": ABSENT, "c": NOBODY},
        None,
    )
