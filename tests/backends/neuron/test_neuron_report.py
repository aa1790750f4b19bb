"""The parser, and the sums: nothing that a tool may print breaks them, or makes them invent a number."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from accelmetrics.backends.contract import ReadOptions, Value
from accelmetrics.backends.kit.fields import DeviceRecord, Table
from accelmetrics.backends.neuron import TOOL
from accelmetrics.backends.neuron.monitor import FIELDS, MACHINE as ROWS, CoreTotals, MachineTotals, Report, choose, parse
from accelmetrics.schemas.catalogue import expected_keys, expected_names, match
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable
from tests.simulators.neuron import hardware, report, runtime

EVERY_PROCESS = ReadOptions(pid=1)
CORES, MACHINE = Table(TOOL, "trn", FIELDS), Table(TOOL, "", ROWS)
NAMES, KEYS = set(expected_names("neuron")), set(expected_keys("neuron"))

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.sampled_from(["0", "error", "host"]), inner, max_size=3)
    ),
    max_leaves=8,
)
whole = report([runtime(11, {0: 30.0}), runtime(12)], machine=hardware(2, 2))


def core_of(parsed: Report, core: int) -> Mapping[str, Value]:
    return named(CORES, CoreTotals(choose(parsed.programs, EVERY_PROCESS, lambda _: True, None), core))


def machine_of(parsed: Report) -> Mapping[str, Value]:
    return named(MACHINE, MachineTotals(parsed, choose(parsed.programs, EVERY_PROCESS, lambda _: True, None)))


def named(table: Table, record: DeviceRecord) -> Mapping[str, Value]:
    """What a table reads, by every name."""
    return {name: value for metric, value in table.read(record, {}, 0.0).items() for name in table.names(metric)}


def check(line: str) -> None:
    """Each owed name has a value or a reason, and each value is one that its row allows."""
    parsed = Report(line)
    for number in (0, 1, 7):
        core = core_of(parsed, number)
        assert core.keys() == NAMES
        check_values({f"trn.{number}.{name}": value for name, value in core.items()})
    machine = machine_of(parsed)
    assert machine.keys() >= KEYS
    check_values(machine)
    if parsed.cores:
        assert len(parse(set(), line)) == len(parsed.cores) + 1


def check_values(found: Mapping[str, Value]) -> None:
    for key, value in ((key, value) for key, value in found.items() if not isinstance(value, Unavailable)):
        row = match(key)
        assert row is not None, key
        assert math.isfinite(value) and value >= 0
        assert row.maximum is None or value <= row.maximum
        assert type(value) is int or not row.integer


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a report where something stands."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


PLACES = [place for place in places(whole) if place]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(PLACES), junk, st.booleans())
def test_anything_may_stand_anywhere(place: tuple[Any, ...], value: Any, remove: bool) -> None:
    changed = json.loads(json.dumps(whole))
    node = changed
    for step in place[:-1]:
        node = node[step]
    if remove and isinstance(node, dict):
        del node[place[-1]]
    else:
        node[place[-1]] = value
    try:
        check(json.dumps(changed))
    except SourceError as error:
        assert error.reason == Reason.PARSE_ERROR
        assert place == ("neuron_runtime_data",)


@settings(deadline=None)
@given(junk.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60))
def test_any_line_is_a_report_or_an_error_in_words(line: bytes) -> None:
    try:
        check(line.decode("utf-8", "replace"))
    except SourceError as error:
        assert error.reason == Reason.PARSE_ERROR
        assert error.message.startswith("neuron-monitor printed an invalid report")


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"{}x", b'{"neuron_runtime_data": {}}', b"\xff\xfe", b'{"neuron_runtime_data": ' + b"[" * 200_000],
    ids=["empty", "open", "list", "tail", "no list", "no text", "deep"],
)
def test_what_is_no_report(line: bytes) -> None:
    with pytest.raises(SourceError) as caught:
        Report(line.decode("utf-8", "replace"))
    assert caught.value.reason == Reason.PARSE_ERROR


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.integers(0, 9), st.floats(0, 10), max_size=4), max_size=4))
def test_sums_are_over_the_programs_that_use_a_core(programs: list[dict[int, float]]) -> None:
    line = report([runtime(100 + place, cores) for place, cores in enumerate(programs)], machine=hardware(5, 2))
    parsed = Report(json.dumps(line))
    for core in range(10):
        shares = [cores[core] for cores in programs if core in cores]
        found = core_of(parsed, core)
        if shares:
            assert found["neuroncore_utilization"] == pytest.approx(sum(shares))
            assert found["neuroncore_memory_usage.constants"] == len(shares) * 1000 * (core + 1)
        else:
            assert all(isinstance(why, Unavailable) and why.reason == Reason.NOT_IN_USE for why in found.values())
    host = machine_of(parsed)["trn.host_total_memory_usage"]
    assert host == 7_600_010 * len(programs) if programs else isinstance(host, Unavailable)


def test_a_monstrous_machine_is_not_believed() -> None:
    parsed = Report(json.dumps(report(machine=hardware(2**40, 2**40))))
    assert parsed.cores == set()


def test_a_chip_s_number_that_repeats_names_no_chip() -> None:
    chips = [{"neuron_device_index": index, "mem_ecc_corrected": 5 + index} for index in (0, 1, 1)]
    report = Report(json.dumps({"neuron_runtime_data": [], "system_data": {"neuron_hw_counters": {"neuron_devices": chips}}}))
    assert report.ecc == {0: chips[0]}
