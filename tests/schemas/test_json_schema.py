from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from jsonschema import Draft202012Validator

from accelmetrics.schemas.catalogue import CATALOGUE
from accelmetrics.schemas.document import json_schema, pattern
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.snapshot import Snapshot
from tests.schemas.samples import complete, snapshots
from tests.schemas.test_document import BAD, Change, changed

VALIDATOR = Draft202012Validator(json_schema(), format_checker=Draft202012Validator.FORMAT_CHECKER)
# Rules between fields, and numbers that JSON does not have.
BEYOND_A_SCHEMA = {"both", "a device twice", "no such day", "time without zone", "NaN", "Infinity", "NaN elsewhere"}


def test_the_schema_is_a_schema_of_the_dialect_it_names() -> None:
    schema = json_schema()
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == "urn:accelmetrics:dump:1.0"
    assert schema["title"]


def test_a_complete_document_is_valid() -> None:
    VALIDATOR.validate(json.loads(complete().to_json()))


@given(snapshots())
@settings(max_examples=60, deadline=None)
def test_every_document_that_can_be_written_is_valid(snapshot: Snapshot) -> None:
    VALIDATOR.validate(json.loads(snapshot.to_json()))


@pytest.mark.parametrize("change", [change for name, change, _ in BAD if name not in BEYOND_A_SCHEMA])
def test_what_the_reader_refuses_the_schema_refuses(change: Change) -> None:
    assert not VALIDATOR.is_valid(changed(change))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gpu.0.gpu", 100.5),
        ("gpu.0.gpu", -1),
        ("gpu.0.smClock", 1980.5),
        ("gpu.0.temp", -300),
        ("gpu.0.throttle.gpuIdle", 2),
        ("gpu.0.unCorrectedMemoryErrors", 0.5),
        ("gpu.process.0.memoryAllocatedBytes", -1),
        ("disk./mnt/x.usagePercent", 101),
        ("cpu.12.cpu_percent", 101),
        ("npu.0.powerWatts", -1),
        ("npu.process.0.memoryAllocatedBytes", -1),
        ("acme.0.own", "12"),
    ],
)
def test_values_beyond_their_bounds_are_refused(key: str, value: Any) -> None:
    assert not VALIDATOR.is_valid(changed(lambda d: d["metrics"].update({key: value})))


def test_keys_from_elsewhere_may_carry_any_number() -> None:
    VALIDATOR.validate(changed(lambda d: d["metrics"].update({"acme.0.own": -1e30, "gpu.0.own": 3})))


def test_a_document_with_fields_from_later_is_valid() -> None:
    VALIDATOR.validate(changed(lambda d: d.update(cluster="north")))


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.key)
def test_a_row_s_pattern_meets_its_own_keys_alone(row: Metric) -> None:
    for spelling in (row.key, *row.aliases):
        key = (
            spelling.replace("{i}", "12")
            .replace("{path}", "/mnt/a.b")
            .replace("{device}", "sda")
            .replace("{port}", "mlx5_0.1")
            .replace("{label}", "64mb")
            .replace("{link}", "7")
            .replace("{code}", "79")
        )
        for kind in ("gpu", "npu", "x9") if "{kind}" in key else ("",):
            concrete = key.replace("{kind}", kind)
            met = [other.key for other in CATALOGUE for text in (other.key, *other.aliases) if re.search(pattern(text), concrete)]
            assert met == [row.key]


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.key)
def test_a_value_is_described(row: Metric) -> None:
    value = json_schema()["properties"]["metrics"]["patternProperties"][pattern(row.key)]
    assert (value["x-unit"], value["x-kind"], value["description"]) == (row.unit, row.kind, row.meaning)
    assert value["type"] == ("integer" if row.integer else "number")
    assert (value.get("minimum"), value.get("maximum")) == (row.minimum, row.maximum)


def _with_metrics(metrics: dict[str, float], document: dict[str, Any]) -> None:
    document["metrics"].update(metrics)


def test_partitions_are_held_to_the_rows_that_they_have() -> None:
    VALIDATOR.validate(changed(lambda d: d["metrics"].update({"gpu.0.mig.1.memoryAllocatedBytes": 5})))
    for wrong in (-1.0, 0.5):
        assert not VALIDATOR.is_valid(changed(partial(_with_metrics, {"gpu.0.mig.1.memoryAllocatedBytes": wrong})))
    assert not VALIDATOR.is_valid(changed(lambda d: d["metrics"].update({"gpu.0.nvlink.17.state": 2})))
