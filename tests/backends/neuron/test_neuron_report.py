"""The parser, and the sums: nothing that a tool may print breaks them, or makes them invent a number."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.neuron.report import Report, Value, parse
from accelmetrics.backends.neuron.totals import Totals, choose
from accelmetrics.schemas.catalogue import expected_keys, expected_names, match
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason, Unavailable
from tests.simulators.neuron import hardware, report, runtime

EVERYBODY = ReadOptions(pid=1)
NAMES, KEYS = set(expected_names("neuron")), set(expected_keys("neuron"))

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6) | st.sampled_from(["0", "error", "host"]), inner, max_size=3)
    ),
    max_leaves=8,
)
whole = report([runtime(11, {0: 30.0}), runtime(12)], machine=hardware(2, 2))


def totals(parsed: Report) -> Totals:
    return Totals(parsed, *choose(parsed.runtimes, EVERYBODY, None))


def check(parsed: Report) -> None:
    """Each owed name has a value or a reason, and each value is one that its row allows."""
    made = totals(parsed)
    for number in (0, 1, 7):
        core = made.core(number)
        assert core.keys() == NAMES
        check_values({f"trn.{number}.{name}": value for name, value in core.items()})
    machine = made.machine()
    assert machine.keys() >= KEYS
    check_values(machine)


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
        parsed = parse(json.dumps(changed).encode())
    except SourceError as error:
        assert error.reason == Reason.PARSE_ERROR
        assert place == ("neuron_runtime_data",)
        return
    check(parsed)


@settings(deadline=None)
@given(junk.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60))
def test_any_line_is_a_report_or_an_error_in_words(line: bytes) -> None:
    try:
        parsed = parse(line)
    except SourceError as error:
        assert error.reason == Reason.PARSE_ERROR
        assert error.message.startswith("neuron-monitor's line is not understood")
    else:
        check(parsed)


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"{}x", b'{"neuron_runtime_data": {}}', b"\xff\xfe", b'{"neuron_runtime_data": ' + b"[" * 200_000],
    ids=["empty", "open", "list", "tail", "no list", "no text", "deep"],
)
def test_what_is_no_report(line: bytes) -> None:
    with pytest.raises(SourceError) as caught:
        parse(line)
    assert caught.value.reason == Reason.PARSE_ERROR


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.integers(0, 9), st.floats(0, 10), max_size=4), max_size=4))
def test_sums_are_over_the_programs_that_use_a_core(programs: list[dict[int, float]]) -> None:
    line = report([runtime(100 + place, cores) for place, cores in enumerate(programs)], machine=hardware(5, 2))
    made = totals(parse(json.dumps(line).encode()))
    for core in range(10):
        shares = [cores[core] for cores in programs if core in cores]
        found = made.core(core)
        if shares:
            assert found["neuroncore_utilization"] == pytest.approx(sum(shares))
            assert found["neuroncore_memory_usage.constants"] == len(shares) * 1000 * (core + 1)
        else:
            assert all(isinstance(why, Unavailable) and why.reason == Reason.NOT_IN_USE for why in found.values())
    machine = made.machine()
    host = machine["trn.host_total_memory_usage"]
    assert host == 7_600_010 * len(programs) if programs else isinstance(host, Unavailable)


def test_a_monstrous_machine_is_not_believed() -> None:
    parsed = parse(json.dumps(report(machine=hardware(2**40, 2**40))).encode())
    assert parsed.cores == set()
