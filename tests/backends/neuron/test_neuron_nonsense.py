"""A tool and files that answer nonsense: what they count is bounded, and no answer costs more than its own metric."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from accelmetrics.backends import neuron
from accelmetrics.backends.neuron.monitor import Report, parse
from accelmetrics.schemas.errors import Reason, SourceError
from tests.backends.neuron.machine import once
from tests.backends.neuron.test_neuron_report import check, core_of, machine_of, places, whole
from tests.simulators.neuron import SysfsTree, hardware, report, runtime

LARGE = [2**31, 2**63, 10**300, 10**4000]
EXTREMES: dict[str, Any] = {
    **{"minus one": -1, "minus 2^63": -(2**63), "2^31": 2**31, "4,000 digits": 10**4000, "a large float": 1.7e308, "yes": True},
    **{"not UTF-8": "\udcff", "a long text": "9" * 100_000, "nested": [[[[]]] * 50], "infinity": math.inf, "a pattern": r"\g<9>"},
}


@pytest.mark.parametrize("extreme", EXTREMES.values(), ids=EXTREMES)
def test_whatever_stands_in_a_report(extreme: Any) -> None:
    for path in (path for path in places(whole) if path):
        document = json.loads(json.dumps(whole))
        inner = document
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = extreme
        try:
            check(json.dumps(document))
        except SourceError as error:
            assert error.reason == Reason.PARSE_ERROR
            assert len(error.message) < 500


@pytest.mark.parametrize("number", LARGE)
def test_numbers_that_no_core_and_no_process_has(number: int) -> None:
    line = json.dumps(report([runtime(number, {number: 30.0}), runtime(11, {1: 30.0})], machine=hardware(number, number)))
    parsed = Report(line)
    assert parsed.cores == {1}
    assert [program.pid for program in parsed.programs] == [-1, 11]
    assert machine_of(parsed)["trn.neuron_runtime_count"] == 2
    assert core_of(parsed, 1)["neuroncore_utilization"] == 30.0


def test_more_cores_than_can_be() -> None:
    line = json.dumps(report([], machine=hardware(1000, 1000)))
    assert max(Report(line).cores) < 1024


@pytest.mark.parametrize("count", [1025, 50_000])
def test_more_programs_than_can_be(count: int) -> None:
    with pytest.raises(SourceError, match=f"{count} programs: more than 1024 are implausible") as raised:
        parse(set(), json.dumps({"neuron_runtime_data": [{"pid": number} for number in range(count)]}))
    assert raised.value.reason == Reason.INVALID_VALUE


def test_an_error_of_any_length_is_quoted_in_a_sentence() -> None:
    entry = runtime(11, {0: 1.0})
    entry["error"] = "x" * 10_000_000
    (why,) = {value.detail for value in core_of(Report(json.dumps(report([entry]))), 0).values() if isinstance(value, tuple)}
    assert len(why) < 200


@pytest.mark.parametrize("printed", ["9" * 5000, "-1", "\u0663", "2147483648", "many"])
def test_a_chip_that_says_how_many_cores_it_has(tree: SysfsTree, printed: str) -> None:
    """What cannot be is passed over: the cores that are there count."""
    tree.add_chip(0)
    tree.add_chip(1)
    tree.write("neuron0/core_count", printed)
    tree.write("neuron99999999999/core_count", 2)
    assert neuron.backend.detect().devices == len(once().devices)
