"""Fields: what is printed becomes a number in the catalogue's unit, or a reason, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pytest_mock import MockerFixture

from accelmetrics.backends import guard
from accelmetrics.backends.contract import Value
from accelmetrics.backends.kit import MEMORY, POWER_SHARE, PRINTED, Derived, Field, Rate, coded, difference, number, switched, total
from accelmetrics.backends.kit.fields import Counters, DeviceRecord, Row, Table, flat, make_reading, quoted, text
from accelmetrics.schemas.errors import Reason, Unavailable, UnknownNameError
from accelmetrics.schemas.identity import DeviceProcess
from accelmetrics.schemas.metric import Metric

LATE = Unavailable(Reason.TIMED_OUT, "it was late")


def reason_of(value: Value) -> str:
    assert isinstance(value, Unavailable), value
    return value.reason


# Numbers


@pytest.mark.parametrize(
    ("printed", "unit", "target", "value"),
    [
        ("17.8 C", "C", "Cel", 17.8),
        ("30C", "C", "Cel", 30),
        ("-5.5 C", "C", "Cel", -5.5),
        ("36.2 °C", "", "Cel", 36.2),
        ("41 ℃", "C", "Cel", 41),
        ("1330MHz", "MHz", "MHz", 1330),
        ("(800Mhz)", "MHz", "MHz", 800),
        ("0.00%", "%", "%", 0.0),
        (" 99.96 % ", "%", "%", 99.96),
        ("8 GT/s", "GT/s", "GT/s", 8),
        ("1.2e1W", "W", "W", 12.0),
        ("16.\tW", "W", "W", 16.0),
        ("12600 mW", "W", "W", 12.6),
        (250_500_000, "uW", "W", 250.5),
        (3, "KiB", "By", 3072),
        ("1.5 GiB", "", "By", 1.5 * 2**30),
        ("2MB", "B", "By", 2**21),
        (45_500, "mC", "Cel", 45.5),
        (4550, "0.01 C", "Cel", 45.5),
        (2005, "0.1 W", "W", 200.5),
        (0.25, "ratio", "%", 25.0),
        (1_500_000_000, "Hz", "MHz", 1500),
        (7, "", "1", 7),
        ("5 MB/s", "", "By/s", 5_000_000),
        ("7 kJ", "J", "J", 7000),
        (3, "mJ", "J", 0.003),
    ],
)
def test_values_as_printed(printed: object, unit: str, target: str, value: float) -> None:
    found = number(printed, unit, target)
    assert found == pytest.approx(value, rel=1e-15)
    assert type(found) is type(value) or found == value


@pytest.mark.parametrize(
    "printed",
    [7j, ["1 W"], True, "1 W" * 100, "1 2 W", "W", "0x10 W", "١٢ W", "--5 W", "no errors", "12 C", "3 furlongs", "12,6 W", "4°0W", "4°2 W"],
)
def test_what_is_no_number_of_the_unit_is_a_parse_error(printed: object) -> None:
    assert reason_of(number(printed, "W", "W")) == Reason.PARSE_ERROR


@pytest.mark.parametrize(
    "printed",
    [None, "", "  ", "N/A", "n/a", "NA", "[N/A]", "-", "--", "None", "unknown", "not available", "[Not Supported]", "not support", "nan"],
)
def test_absent_is_not_supported(printed: object) -> None:
    assert reason_of(number(printed, "W", "W")) == Reason.NOT_SUPPORTED


@pytest.mark.parametrize("printed", ["-inf", "Infinity W", "1e999 W", math.inf, math.nan])
def test_what_is_not_finite_is_invalid(printed: object) -> None:
    assert reason_of(number(printed, "W", "W")) == Reason.INVALID_VALUE


def test_a_unit_may_be_required() -> None:
    assert number("12.5 W", PRINTED, "W") == 12.5
    assert reason_of(number("12.5", PRINTED, "W")) == Reason.PARSE_ERROR


@given(
    st.text(max_size=200) | st.integers() | st.floats() | st.none() | st.binary(max_size=5), st.sampled_from(["W", "%", "By", "Cel", "1"])
)
def test_any_answer_is_a_finite_number_or_a_reason(printed: object, unit: str) -> None:
    found = number(printed, "", unit)
    assert isinstance(found, Unavailable) or math.isfinite(found)


@given(st.floats(min_value=-50, max_value=4000), st.sampled_from(["", " ", "  "]), st.sampled_from(["W", "C", "MHz", "%", "GT/s"]))
def test_a_number_with_its_unit_is_given_exactly(value: float, gap: str, unit: str) -> None:
    assert number(f"{value!r}{gap}{unit}", PRINTED, "Cel" if unit == "C" else unit) == value


# Tables


def read(rows: tuple[Row, ...], document: object, counters: Counters | None = None, at: float = 0.0, **more: Any) -> dict[str, Value]:
    """Every metric of a record, by all of its names."""
    table = Table("tool", more.pop("kind", "npu"), rows, more.pop("own", ()))
    found = table.read(flat(document), {} if counters is None else counters, at, **more)
    table.derive(found)
    return {name: value for metric, value in found.items() for name in table.names(metric)}


def test_a_record_is_looked_up_by_paths_in_any_case() -> None:
    document = {"Power Readings": {"Power Draw ": "120W"}, "cores": [{"util": 5}, {"util": 7}], "GPU use (%)": "9"}
    rows = (
        Field("powerWatts", "power readings.power draw"),
        Field("utilization", ("nothing", "GPU use (%)"), "%"),
        Field("memory", "cores", convert=lambda cores: sum(core["util"] for core in cores) / len(cores)),
        Field("temp", "cores.1.util", "C"),
    )
    assert read(rows, document) == {"powerWatts": 120, "utilization": 9, "memory": 6.0, "temp": 7}


def test_a_value_with_its_unit_beside_it_is_one_value() -> None:
    document = {"power": {"socket_power": {"value": 71, "unit": "mW"}, "limit": {"value": "N/A", "unit": "W"}}}
    found = read((Field("powerWatts", "power.socket_power", "W"), Field("enforcedPowerLimitWatts", "power.limit", "W")), document)
    assert found["powerWatts"] == 0.071
    assert reason_of(found["enforcedPowerLimitWatts"]) == Reason.NOT_SUPPORTED


def test_a_place_without_a_value_makes_way_and_one_with_a_wrong_value_does_not() -> None:
    rows = (Field("temp", ("edge", "junction"), "C"),)
    assert read(rows, {"edge": "N/A", "junction": "55"}) == {"temp": 55}
    assert reason_of(read(rows, {"edge": "hot", "junction": "55"})["temp"]) == Reason.PARSE_ERROR
    assert read(rows, {})["temp"] == Unavailable(Reason.NOT_SUPPORTED, 'tool does not report "edge"')


@pytest.mark.parametrize(
    ("metric", "said", "unit"),
    [("utilization", 101, "%"), ("temp", 65535, "C"), ("temp", -273, "C"), ("powerWatts", 4294.967295, "W"), ("smClock", 65535, "MHz")],
)
def test_what_is_impossible_is_invalid(metric: str, said: float, unit: str) -> None:
    assert reason_of(read((Field(metric, "x", unit),), {"x": said})[metric]) == Reason.INVALID_VALUE


def test_all_ones_are_no_count() -> None:
    rows = (Field("pcieReplays", "x"),)
    assert [reason_of(read(rows, {"x": said})["pcieReplays"]) for said in (2**32 - 1, 2**64 - 1)] == [Reason.INVALID_VALUE] * 2
    assert reason_of(read(rows, {"x": 1.5})["pcieReplays"]) == Reason.PARSE_ERROR


def test_a_zero_that_cannot_be_is_missing() -> None:
    document = {"x": 0}
    assert read((Field("powerWatts", "x", "W"),), document) == {"powerWatts": 0}
    for row in (Field("powerWatts", "x", "W", zero_is_missing=True), Field("maxSmClock", "x", "MHz"), Field("memoryTotalBytes", "x", "B")):
        (value,) = read((row,), document).values()
        assert reason_of(value) == Reason.NOT_SUPPORTED


def test_bytes_and_megahertz_are_whole() -> None:
    found = read((Field("memoryAllocatedBytes", "m", "MiB"), Field("smClock", "c", "GHz")), {"m": 1.0000001, "c": 1.7004})
    assert found == {"memoryAllocatedBytes": 1048576, "smClock": 1700}
    assert all(type(value) is int for value in found.values())


def test_every_spelling_is_given() -> None:
    assert read((Field("link speed (GT/s)", "x"),), {"x": 16}, kind="ipu") == {"link speed (GT/s)": 16, "speed (GT/s)": 16}


def test_what_only_a_running_program_has() -> None:
    row = Field("utilization", "util", "%", in_use=True)
    assert reason_of(read((row,), {}, idle=True)["utilization"]) == Reason.NOT_IN_USE
    assert reason_of(read((row,), {}, idle=False)["utilization"]) == Reason.NOT_SUPPORTED
    assert read((row,), {"util": 0}, idle=True) == {"utilization": 0}


def test_shares_and_rests() -> None:
    rows = (
        *(Field("memoryAllocatedBytes", "used", "B"), Field("memoryTotalBytes", "total", "B"), *MEMORY),
        *(Field("powerWatts", "power", "W"), Field("enforcedPowerLimitWatts", "limit", "W"), POWER_SHARE),
    )
    found = read(rows, {"used": 25, "total": 100, "power": 150, "limit": 0})
    assert (found["memoryAllocated"], found["memoryFreeBytes"]) == (25.0, 75)
    assert reason_of(found["powerPercent"]) == Reason.NOT_SUPPORTED
    beyond = read(rows, {"used": 120, "total": 100})
    assert (beyond["memoryAllocatedBytes"], beyond["memoryTotalBytes"]) == (120, 100)
    assert [reason_of(beyond[name]) for name in ("memoryAllocated", "memoryFreeBytes")] == [Reason.INVALID_VALUE] * 2


def test_a_derived_metric_may_need_what_is_not_given() -> None:
    rows = (
        *(Field("_free", "dram free", "KB"), Field("memoryTotalBytes", "dram total", "KB")),
        difference("memoryAllocatedBytes", "memoryTotalBytes", "_free"),
        *(Field("_a", "a", "mW"), Field("_b", "b", "mW"), total("powerWatts", "_a", "_b")),
        Derived("temp", ("_a",), lambda watts: 1 // (watts - 1), "odd"),
    )
    found = read(rows, {"dram free": "1024 KB", "dram total": "1 GB", "a": 1000, "b": 500})
    assert {name: value for name, value in found.items() if name != "temp"} == {
        "memoryTotalBytes": 2**30,
        "memoryAllocatedBytes": 2**30 - 2**20,
        "powerWatts": 1.5,
    }
    assert reason_of(found["temp"]) == Reason.INVALID_VALUE


def test_of_several_rows_of_a_metric_the_first_that_has_a_value_stands() -> None:
    rows = (Field("powerWatts", "board", "W"), Field("powerWatts", "chip", "W"), Rate("powerWatts", "energy", "J"))
    assert read(rows, {"board": 300, "chip": 200}) == {"powerWatts": 300}
    assert read(rows, {"board": "N/A", "chip": 200}) == {"powerWatts": 200}
    found = read(rows, {"board": 9999, "energy": 7})["powerWatts"]
    assert isinstance(found, Unavailable)
    assert found.reason == Reason.INVALID_VALUE
    assert all(words in found.detail for words in ("above 4000 W", 'not report "chip"', "a rate needs two"))
    assert Table("tool", "npu", rows).words == {"powerWatts": 'tool "board"; else tool "chip"; else tool "energy", rise per second'}


def test_a_metric_that_is_given_as_such_is_not_derived() -> None:
    rows = (
        Field("memoryAllocated", "share", "%"),
        Field("memoryAllocatedBytes", "used", "B"),
        Field("memoryTotalBytes", "total", "B"),
        *MEMORY,
    )
    assert read(rows, {"share": 31})["memoryAllocated"] == 31
    assert read(rows, {"used": 1, "total": 4})["memoryAllocated"] == 25


def test_what_another_source_has_given_is_not_read() -> None:
    table = Table("tool", "npu", (Field("powerWatts", "p", "W"), Field("temp", "t", "C")))
    assert table.read(flat({"p": 300, "t": 50}), {}, 0.0, given={"powerWatts"}) == {"temp": 50}


def test_a_metric_that_the_catalogue_does_not_have_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="wafers"):
        read((Field("wafers", "x"),), {})
    own = Metric("npu.{i}.wafers", "1", "gauge", "Wafers in the pile.", integer=True, maximum=10)
    assert read((Field("wafers", "x"),), {"x": "7"}, own=(own,)) == {"wafers": 7}
    assert reason_of(read((Field("wafers", "x"),), {"x": "70"}, own=(own,))["wafers"]) == Reason.INVALID_VALUE


def test_a_row_with_a_placeholder_is_read_of_each_instance() -> None:
    rows = (
        Field("nvlink.{link}.state", "links.{}.up", convert=lambda up: int(up == "yes")),
        Field("trn.device.{i}.mem_ecc_corrected", "chips.{}.ecc"),
    )
    links = {"links": [{"up": "yes"}, {"up": "no"}], "chips": {}}
    assert read(rows[:1], links, kind="gpu") == {"nvlink.0.state": 1, "nvlink.1.state": 0}
    assert read(rows[:1], {}, kind="gpu") == {}
    found = read(rows[1:], {"chips": {"3": {"ecc": 7}, "12": {"ecc": Unavailable(Reason.NO_PERMISSION, "root")}, "13": {"x": 1}}}, kind="")
    assert found["trn.device.3.mem_ecc_corrected"] == 7
    assert found["trn.device.12.mem_ecc_corrected"] == (Reason.NO_PERMISSION, "root")
    assert found["trn.device.13.mem_ecc_corrected"] == (Reason.NOT_SUPPORTED, 'tool does not report "chips.13.ecc"')
    table = Table("tool", "", rows[1:])
    assert table.words == {"trn.device.{i}.mem_ecc_corrected": 'tool "chips.{}.ecc"'}
    assert table.missing(Unavailable(Reason.STALE)) == {}


def test_rates_of_instances_are_apart() -> None:
    own = Metric("npu.{i}.port.{link}.sent", "By/s", "gauge", "Bytes that a port sent.")
    counters = Counters()
    for at, sent in ((0.0, (0, 0)), (1.0, (100, 300))):
        document = {"ports": [{"tx": each} for each in sent]}
        found = read((Rate("port.{link}.sent", "ports.{}.tx", "B"),), document, counters, at, own=(own,))
    assert found == {"port.0.sent": 100, "port.1.sent": 300}


def test_a_reason_in_the_record_is_the_value_s() -> None:
    why = Unavailable(Reason.NOT_IN_USE, "no program")
    assert read((Field("powerWatts", "x", "W", convert=float),), {"x": why}) == {"powerWatts": why}


def test_a_number_beyond_all_bounds_is_told_without_being_printed() -> None:
    """Python refuses to print integers of more than 4,300 digits."""
    assert number(16**5000) == (Reason.INVALID_VALUE, "a number of 20001 bits")


class Endless(DeviceRecord):
    """A record with more instances than can be counted."""

    def instances(self, place: str) -> Iterable[str]:
        return map(str, count())

    def get(self, place: str) -> object:
        return 1


LINK = Field("nvlink.{link}.state", "links.{}.up")


def test_instances_are_bounded() -> None:
    """A driver that counts 2^31 links costs no more than one that has many."""
    assert len(read((LINK,), Endless({}), kind="gpu")) == 1024


def test_instances_with_ever_new_names_end() -> None:
    table = Table("tool", "gpu", (LINK,))
    for start in range(0, 20_000, 1000):
        table.read(flat({"links": {f"{start + number}": {"up": 1} for number in range(1000)}}), {}, 0.0)
    assert len(table.read(flat({"links": {"0": {"up": 1}, "new": {"up": 0}}}), {}, 0.0)) == 1


@pytest.mark.parametrize("name", [r"\1", r"\g<9>", "{}", "\\"])
def test_an_instance_may_have_any_name(name: str) -> None:
    assert read((LINK,), {"links": {name: {"up": 1}}}, kind="gpu") == {f"nvlink.{name}.state": 1}


@pytest.mark.parametrize("name", ["\x1b[31m", "\udcff", "x" * 200])
def test_an_instance_whose_name_no_key_could_have_is_none(name: str) -> None:
    assert read((LINK,), {"links": {name: {"up": 1}}}, kind="gpu") == {}


def test_a_document_costs_no_more_than_rows_look_for() -> None:
    """Names and depths that no row has are left out; what stands beside them is read."""
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"n" * 100: deep}
    document = {"power": "7 W", "k" * 1_000_000: {"a": deep}, "deep": deep, "list": [0] * 1_000_000, "temp": 40}
    record = flat(document)
    assert read((Field("powerWatts", "power", "W"), Field("temp", "temp", "C")), record) == {"powerWatts": 7, "temp": 40}
    places = dict.fromkeys(record.instances(""))
    assert max(map(len, places), default=0) <= 120


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("NPU 1", "NPU 1"),
        (" 7 ", "7"),
        (10**5000, "a number of 16610 bits"),
        ("n" * 5000, "n" * 119 + "…"),
        ("\x1b[2Jred\udcff", "?[2Jred?"),
    ],
    ids=["name", "spaces", "digits", "long", "control"],
)
def test_a_text_has_a_sensible_length_and_can_be_shown(printed: object, expected: str) -> None:
    assert text(printed) == expected


def test_what_is_quoted_is_no_longer_than_a_sentence() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    for value in (deep, [1] * 1_000_000, {"k" * 1000: "v" * 1_000_000}, "\ud800" * 500, 10**4000):
        words = quoted(value)
        assert len(words) <= 120 and words.isprintable()


def test_a_time_that_cannot_be_is_invalid() -> None:
    assert reason_of(read((Field("x", "x", "s"),), {"x": 1e12}, own=(SECONDS,))["x"]) == Reason.INVALID_VALUE


SECONDS = Metric("npu.{i}.x", "s", "gauge", "A time.")


def test_whole_keys_are_read_of_the_machine() -> None:
    assert read((Field("cpu.powerWatts", "p", "mW"),), {"p": 1500}, kind="") == {"cpu.powerWatts": 1.5}


# Rates


def test_whether_a_counter_rose() -> None:
    row = Rate("throttle.swPowerCap", "acc", "1", rose=True)
    counters: Counters = {}
    found = [read((row,), {"acc": acc}, counters, float(at), kind="gpu")[row.metric] for at, acc in enumerate((5, 5, 9, 2))]
    assert [reason_of(found[0]), *found[1:3], reason_of(found[3])] == [Reason.NEEDS_INTERVAL, 0, 1, Reason.NEEDS_INTERVAL]


def rates(row: Rate, *readings: tuple[float, dict[str, object]]) -> list[Value]:
    counters: Counters = {}
    return [read((row,), document, counters, at)[row.metric] for at, document in readings]


def test_a_rate_needs_two_readings() -> None:
    first, second, third = rates(
        Rate("utilization", "busy", "us"), (10.0, {"busy": 0}), (12.0, {"busy": 500_000}), (13.0, {"busy": 1_500_000})
    )
    assert reason_of(first) == Reason.NEEDS_INTERVAL
    assert (second, third) == (25.0, 100)


def test_a_recording_has_no_rates(mocker: MockerFixture) -> None:
    mocker.patch.object(guard, "TAPS", [mocker.Mock(moment=5.0)])
    found = rates(Rate("utilization", "busy", "us"), (10.0, {"busy": 0}), (12.0, {"busy": 500_000}), (13.0, {"busy": 500_000}))
    assert set(map(reason_of, found)) == {Reason.NEEDS_INTERVAL}


def test_energy_gives_power() -> None:
    assert rates(Rate("powerWatts", "energy", "uJ"), (0.0, {"energy": 0}), (2.0, {"energy": 300_000_000}))[1] == 150.0


def test_a_counter_that_falls_has_wrapped_or_started_anew() -> None:
    fallen: tuple[tuple[float, dict[str, object]], ...] = ((0.0, {"c": 2**32 - 100}), (1.0, {"c": 900}), (2.0, {"c": 1900}))
    wrapped = rates(Rate("pcieTxBytes", "c", "B", bits=32), *fallen)
    assert wrapped[1:] == [1000, 1000]
    anew = rates(Rate("pcieTxBytes", "c", "B"), *fallen)
    assert reason_of(anew[1]) == Reason.NEEDS_INTERVAL
    assert anew[2] == 1000


def test_the_same_reading_gives_the_same_rate_and_a_pace_holds_it() -> None:
    row = Rate("utilization", "busy", "ms", pace=1.0)
    told = rates(row, (0.0, {"busy": 0}), (1.0, {"busy": 100}), (1.0, {"busy": 100}), (1.5, {"busy": 600}), (2.0, {"busy": 600}))
    assert told[1:] == [10.0, 10.0, 10.0, 50.0]


def test_a_counter_that_is_missing_for_a_while_begins_again() -> None:
    told = rates(Rate("utilization", "busy", "ms"), (0.0, {"busy": 0}), (1.0, {}), (2.0, {"busy": 900}), (3.0, {"busy": 1000}))
    assert [reason_of(value) for value in told[:3]] == [Reason.NEEDS_INTERVAL, Reason.NOT_SUPPORTED, Reason.NEEDS_INTERVAL]
    assert told[3] == pytest.approx(10.0)


def test_rows_of_one_metric_keep_their_counters_apart() -> None:
    """Also where the second one's counter is not there, and of rows that are read once for each link."""
    rows = (Rate("powerWatts", "board", "J"), Rate("powerWatts", "chip", "mJ"))
    counters: Counters = {}
    found = [read(rows, {"board": energy}, counters, at)["powerWatts"] for at, energy in ((0.0, 0), (1.0, 300), (2.0, 500))]
    assert found[1:] == [300, 200]
    own = Metric("npu.{i}.port.{link}.sent", "By/s", "gauge", "Sent over a port.")
    rows, counters = (Rate("port.{link}.sent", "ports.{}.frames", "KB"), Rate("port.{link}.sent", "ports.{}.tx", "B")), {}
    told = [read(rows, {"ports": [{"tx": sent}]}, counters, at, own=(own,)) for at, sent in ((0.0, 0), (1.0, 100), (2.0, 300))]
    assert told[1:] == [{"port.0.sent": 100}, {"port.0.sent": 200}]


def test_places_of_one_row_keep_their_counters_apart() -> None:
    """Both rise by 50 to 100 J a second, and stand 300 J apart."""
    row = Rate("powerWatts", ("board", "chip"), "J")
    told = rates(row, (0.0, {"board": 100}), (1.0, {"chip": 450}), (2.0, {"board": 260}), (3.0, {"chip": 590}), (4.0, {"board": 400}))
    assert list(map(reason_of, told[:2])) == [Reason.NEEDS_INTERVAL] * 2
    assert told[2:] == [80, 70, 70]


def test_a_little_more_than_the_whole_is_the_whole() -> None:
    assert rates(Rate("utilization", "busy", "ms"), (0.0, {"busy": 0}), (1.0, {"busy": 1010}))[1] == 100
    assert reason_of(rates(Rate("utilization", "busy", "ms"), (0.0, {"busy": 0}), (1.0, {"busy": 5000}))[1]) == Reason.INVALID_VALUE


# Readings


def test_a_reading_has_values_reasons_and_the_rest() -> None:
    reading = make_reading({"temp": 40, "powerWatts": LATE}, (DeviceProcess(7),), 12.5)
    (block,) = reading.blocks
    assert (block.names, tuple(block.values)) == (("temp",), (40,))
    assert dict(reading.unavailable) == {"powerWatts": LATE}
    assert (reading.processes, reading.read_at) == ((DeviceProcess(7),), 12.5)


# What values say about one another

TOGETHER = (
    Field("utilization", "use", "%"),
    Field("temp", "temp", "C"),
    Field("memoryTemp", "hbm", "C"),
    Field("powerWatts", "power", "W"),
    Field("enforcedPowerLimitWatts", "limit", "W"),
    POWER_SHARE,
)


@pytest.mark.parametrize(
    ("record", "believed"),
    [
        ({"temp": -1.85, "use": 0, "power": 12, "limit": 300}, True),
        ({"temp": -1.85}, True),
        ({"temp": 0, "use": 90}, True),
        ({"temp": -1.85, "use": 1}, False),
        ({"temp": -1.85, "power": 120, "limit": 300}, False),
        ({"temp": -1.85, "hbm": 36}, False),
        ({"temp": -41}, False),
        ({"temp": 151}, False),
    ],
)
def test_a_chip_is_cold_at_rest_alone(record: dict[str, float], believed: bool) -> None:
    found = read(TOGETHER, record)
    assert found["temp"] == record["temp"] if believed else reason_of(found["temp"]) == Reason.INVALID_VALUE
    for name, place in (("utilization", "use"), ("memoryTemp", "hbm"), ("powerWatts", "power")):
        assert place not in record or found[name] == record[place]


@pytest.mark.parametrize(("power", "limit", "share_"), [(3000, 300, 1000), (150, 300, 50), (3001, 300, None), (3999, 100, None)])
def test_power_is_believed_up_to_ten_times_its_limit(power: float, limit: float, share_: float | None) -> None:
    found = read(TOGETHER, {"power": power, "limit": limit})
    assert found["enforcedPowerLimitWatts"] == limit
    if share_ is None:
        assert {reason_of(found[name]) for name in ("powerWatts", "powerPercent")} == {Reason.INVALID_VALUE}
    else:
        assert (found["powerWatts"], found["powerPercent"]) == (power, share_)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"temp": 151}, {"temp": 152.5}),
        ({"temp": -41}, {"temp": -42.5}),
        ({"temp": -1, "use": 50}, {"temp": -2, "use": 50}),
        ({"power": 3001, "limit": 300}, {"power": 3002, "limit": 300}),
    ],
)
def test_reasons_are_the_same_whatever_the_impossible_number(one: dict[str, float], other: dict[str, float]) -> None:
    """A reason that differs at each reading would make a new header of each."""
    first, second = (
        {name: value for name, value in read(TOGETHER, record).items() if isinstance(value, Unavailable)} for record in (one, other)
    )
    assert first == second
    assert Reason.INVALID_VALUE in map(reason_of, first.values())


def test_a_limit_of_next_to_nothing_is_none() -> None:
    found = read(TOGETHER, {"power": 40, "limit": 1e-5})
    assert found["powerWatts"] == 40
    assert {reason_of(found[name]) for name in ("enforcedPowerLimitWatts", "powerPercent")} == {Reason.INVALID_VALUE}


@pytest.mark.parametrize(
    ("metric", "unit", "value", "reason"),
    [
        ("maxSmClock", "MHz", 0, Reason.NOT_SUPPORTED),
        ("maxMemoryClock", "MHz", 0, Reason.NOT_SUPPORTED),
        ("tempLimit.slowdown", "C", 0, Reason.NOT_SUPPORTED),
        ("tempLimit.shutdown", "C", 5, Reason.INVALID_VALUE),
        ("powerWatts", "mW", 4294967295, Reason.INVALID_VALUE),
        ("powerWatts", "kW", 4294967, Reason.INVALID_VALUE),
    ],
)
def test_nonsense_that_is_a_number_is_no_value(metric: str, unit: str, value: float, reason: Reason) -> None:
    assert reason_of(read((Field(metric, "it", unit),), {"it": value})[metric]) == reason
    computed = (Field("_it", "it", "1"), Derived(metric, ("_it",), lambda it: it * {"mW": 1e-3, "kW": 1e3}.get(unit, 1), "computed"))
    assert reason_of(read(computed, {"it": value})[metric]) == reason


# Where a value is read

ELSEWHERE = (
    Field("temp", ("edge", "junction"), "C"),
    Rate("powerWatts", "energy", "J"),
    Field("powerWatts", "power", "W"),
    Field("memoryAllocated", "printed", "%"),
    Field("memoryAllocatedBytes", "used", "B"),
    Field("memoryTotalBytes", "total", "B"),
    *MEMORY,
)


def test_a_value_stays_with_the_place_that_gave_it_first() -> None:
    """One N/A is a reason, and not the hotspot's temperature, another register's energy, a share of something else."""
    table, counters, chosen = Table("tool", "npu", ELSEWHERE), {}, {}  # type: ignore[var-annotated]

    def reading(at: float, **record: object) -> dict[str, Value]:
        found = table.read(flat(record), counters, at, chosen=chosen)
        table.derive(found, chosen)
        return found

    whole_: dict[str, object] = {"edge": 45, "junction": 51, "power": 9, "printed": 12, "used": 50, "total": 100}
    first = reading(1.0, **whole_, energy=100)
    assert (first["temp"], first["memoryAllocated"], reason_of(first["powerWatts"])) == (45, 12, Reason.NEEDS_INTERVAL)
    second = reading(2.0, **(whole_ | {"edge": "N/A", "printed": "N/A", "energy": "N/A"}))
    assert {reason_of(second[name]) for name in ("temp", "powerWatts", "memoryAllocated")} == {Reason.NOT_SUPPORTED}
    third = reading(3.0, **whole_, energy=300)
    fourth = reading(4.0, **whole_, energy=307)
    assert (third["temp"], third["memoryAllocated"], fourth["powerWatts"]) == (45, 12, 7)


def test_a_value_that_was_computed_first_stays_computed() -> None:
    table, chosen = Table("tool", "npu", ELSEWHERE), {}  # type: ignore[var-annotated]
    for printed, share_ in (("N/A", 50), (12, 50)):
        found = table.read(flat({"junction": 51, "edge": printed, "printed": printed, "used": 50, "total": 100}), {}, 1.0, chosen=chosen)
        table.derive(found, chosen)
        assert (found["temp"], found["memoryAllocated"]) == (51, share_)


@pytest.mark.parametrize(
    ("printed", "meant"),
    [(" Enabled", 1), ("off", 0), ("N/A", "N/A"), ("unknown", "unknown"), (["Enabled"], ["Enabled"]), (None, None), (1, 1)],
)
def test_words_for_on_and_off(printed: object, meant: object) -> None:
    assert switched(printed) == meant


def test_words_that_stand_for_numbers() -> None:
    code = coded(default=0, exclusive_process=3)
    assert [code(said) for said in ("Default", "Exclusive_Process", "exclusive process", "Shared")] == [0, 3, 3, "Shared"]
