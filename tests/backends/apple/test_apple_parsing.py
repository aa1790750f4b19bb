"""Whatever the commands print, what comes of it is finite numbers within bounds, and reasons."""

import json
import math
import plistlib
from typing import Any

import pytest
from hypothesis import given, strategies as st

from accelmetrics.backends.apple import sources
from accelmetrics.backends.kit import text, whole
from accelmetrics.schemas.errors import Reason, SourceError
from tests.backends.apple.reading import Read, tabled
from tests.simulators.apple import POWERMETRICS_TEXT, macmon_0_7, macmon_0_8, powermetrics as powermetrics_output

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10)
anything = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3))
listable = (
    st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=10)
)
PERCENTAGES = {"gpu", "scaledUtilization", "memoryAllocated", "memory.used_percent", "cpu.ecpu_percent", "cpu.pcpu_percent"}


def of_macmon(line: str) -> Read:
    return tabled(sources.parse_macmon(line), sources.MACMON_GPU, sources.MACMON_CHIP)


def of_powermetrics(printed: str) -> Read:
    return tabled(sources.parse_powermetrics(printed), sources.GPU_POWER, sources.CHIP_POWER)


def check(read: Read) -> None:
    """Each value is a finite number, a share one from 0 to 100; what has none has a reason."""
    assert read.values or read.reasons
    assert not read.values.keys() & read.reasons.keys()
    assert all(type(value) in (int, float) and math.isfinite(value) for value in read.values.values())
    assert all(0 <= read.values[name] <= 100 for name in PERCENTAGES & read.values.keys())


@given(st.sampled_from([macmon_0_7, macmon_0_8]), st.data())
def test_any_value_at_any_place_of_a_line(make: Any, data: st.DataObject) -> None:
    document = make()
    for name in data.draw(st.sets(st.sampled_from(sorted(document)), max_size=4)):
        document[name] = data.draw(anything)
    check(of_macmon(json.dumps(document)))


@given(st.text(max_size=60) | anything.map(json.dumps))
def test_any_other_line_is_none_of_macmon_s(line: str) -> None:
    with pytest.raises(SourceError) as caught:
        of_macmon(line)
    assert caught.value.reason == Reason.PARSE_ERROR


@pytest.mark.parametrize(
    "line",
    ["[" * 100_000, '{"gpu_power": 1}', '{"gpu_usage": [1, 0.5]}', "9" * 5000, '{"gpu_power": NaN'],
    ids=["deep", "no usage", "no power", "long", "cut"],
)
def test_odd_lines_are_none_either(line: str) -> None:
    with pytest.raises(SourceError):
        of_macmon(line)


@given(st.dictionaries(st.sampled_from(["Device Utilization %", "In use system memory", "other"]), listable), listable, listable)
def test_any_statistics_of_the_driver(statistics: dict[str, Any], model: Any, cores: Any) -> None:
    printed = plistlib.dumps([{"PerformanceStatistics": statistics, "model": model, "gpu-core-count": cores}]).decode()
    check(tabled(sources.parse_ioreg(printed), sources.IOREG_FIELDS))


def test_a_number_that_python_refuses_to_print() -> None:
    """A property list may have it in hexadecimal."""
    printed = plistlib.dumps([{"PerformanceStatistics": {"In use system memory": 7777}}]).decode().replace("7777", f"0x{16**5000:x}")
    read = tabled(sources.parse_ioreg(printed), sources.IOREG_FIELDS)
    assert read.reasons["memoryAllocatedBytes"].reason == Reason.INVALID_VALUE


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
def test_any_text_is_statistics_or_refused(printed: str) -> None:
    with pytest.raises(SourceError) as caught:
        sources.parse_ioreg(printed)
    assert caught.value.reason in (Reason.PARSE_ERROR, Reason.NOT_SUPPORTED)


@given(plists)
def test_any_text_of_powermetrics(printed: str) -> None:
    with pytest.raises(SourceError) as caught:
        of_powermetrics(printed)
    assert caught.value.reason == Reason.PARSE_ERROR


@given(st.data())
def test_lines_of_powermetrics_may_be_missing(data: st.DataObject) -> None:
    lines = POWERMETRICS_TEXT.splitlines()
    kept = data.draw(st.sets(st.integers(0, len(lines) - 1)))
    try:
        read = of_powermetrics("\n".join(line for place, line in enumerate(lines) if place in kept))
    except SourceError as error:
        assert error.reason == Reason.PARSE_ERROR
    else:
        check(read)


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
    check(of_powermetrics(sample))


@given(anything)
def test_any_profile_is_a_name_and_a_count(document: Any) -> None:
    for whole_document in (document, {"SPDisplaysDataType": document}, {"SPDisplaysDataType": [document]}):
        found = sources.parse_profile(json.dumps(whole_document))
        assert isinstance(text(found.get("name")), str)
        cores = whole(found.get("cores"))
        assert cores is None or cores >= 0
