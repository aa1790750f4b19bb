from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from accelmetrics.schemas.errors import DocumentError, Reason, Unavailable
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity
from accelmetrics.schemas.identity_models import UnavailableEntry
from accelmetrics.schemas.snapshot import Snapshot, rfc3339
from accelmetrics.schemas.view_model import parse_timestamp
from tests.schemas.samples import complete

Change = Callable[[dict[str, Any]], Any]


def changed(change: Change) -> dict[str, Any]:
    document = complete().to_dict()
    change(document)
    return document


BAD: list[tuple[str, Change, str]] = [
    ("no version", lambda d: d.pop("schema_version"), r"schema_version: Field required"),
    ("other version", lambda d: d.update(schema_version="2.0"), r"schema_version: String should match pattern '\^1"),
    ("version as number", lambda d: d.update(schema_version=1.0), r"schema_version: Input should be a valid string"),
    ("no metrics", lambda d: d.pop("metrics"), r"metrics: Field required"),
    ("metrics as list", lambda d: d.update(metrics=[]), r"metrics: Input should be"),
    ("text for a number", lambda d: d["metrics"].update({"gpu.0.temp": "40"}), r"metrics\['gpu\.0\.temp'\]: '40' is not a number"),
    ("null for a number", lambda d: d["metrics"].update(cpu=None), r"metrics\.cpu: None is not a number"),
    ("truth for a number", lambda d: d["metrics"].update(cpu=True), r"metrics\.cpu: True is not a number"),
    ("nested metrics", lambda d: d["metrics"].update(cpu={"value": 1}), r"metrics\.cpu: .* is not a number"),
    ("NaN", lambda d: d["metrics"].update(cpu=float("nan")), r"metrics\.cpu: the value is not finite"),
    ("Infinity", lambda d: d["metrics"].update(cpu=float("-inf")), r"metrics\.cpu: the value is not finite"),
    ("empty key", lambda d: d["metrics"].update({"": 1}), r"metrics\[''\].*at least 1 character"),
    (
        "NaN elsewhere",
        lambda d: d["backends"][0].update(duration_seconds=float("nan")),
        r"backends\[0\]\.duration_seconds: .*finite number",
    ),
    ("index in quotes", lambda d: d["devices"][0].update(index="0"), r"devices\[0\]\.index: Input should be a valid integer"),
    ("negative index", lambda d: d["devices"][1].update(index=-1), r"devices\[1\]\.index: .*greater than or equal to 0"),
    ("kind of two words", lambda d: d["devices"][0].update(kind="my gpu"), r"devices\[0\]\.kind: String should match pattern"),
    ("no device key", lambda d: d["devices"][0].pop("key"), r"devices\[0\]\.key: Field required"),
    ("a device twice", lambda d: d["devices"].append(d["devices"][0]), r"devices has gpu\.0 more than once"),
    ("no reason", lambda d: d["unavailable"]["gpu.0.fanSpeed"].pop("reason"), r"unavailable\['gpu\.0\.fanSpeed'\]\.reason: Field required"),
    ("empty reason", lambda d: d["unavailable"]["gpu.0.fanSpeed"].update(reason=""), r"reason: .*at least 1 character"),
    ("both", lambda d: d["metrics"].update({"gpu.0.fanSpeed": 0}), r"gpu\.0\.fanSpeed is in both metrics and unavailable"),
    ("unknown status", lambda d: d["backends"][0].update(status="fine"), r"backends\[0\]\.status: Input should be 'ok'"),
    ("no process id", lambda d: d["processes"]["gpu.0"][0].pop("pid"), r"processes\['gpu\.0'\]\[0\]\.pid: Field required"),
    ("time without zone", lambda d: d.update(timestamp="2026-09-21T13:33:20"), r"timestamp: '2026-09-21T13:33:20' is not an RFC 3339"),
    ("time as number", lambda d: d.update(timestamp=1790000000), r"timestamp: 1790000000 is not an RFC 3339 timestamp"),
    ("no such day", lambda d: d.update(timestamp="2026-02-30T00:00:00Z"), r"timestamp: day"),
]
bad = pytest.mark.parametrize(("change", "words"), [(change, words) for _, change, words in BAD], ids=[name for name, _, _ in BAD])


@bad
def test_a_bad_document_is_refused_with_the_place(change: Change, words: str) -> None:
    with pytest.raises(DocumentError, match=words):
        Snapshot.from_dict(changed(change))
    with pytest.raises(DocumentError, match=words):
        Snapshot.from_json(json.dumps(changed(change)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Invalid JSON"),
        ("{", "Invalid JSON"),
        ("null", "should be an object"),
        ("[]", "should be an object"),
        ('"text"', "should be an object"),
        (b"\xff\xfe", "Invalid JSON"),
        ("nvidia-smi: command not found", "Invalid JSON"),
    ],
)
def test_text_that_is_no_document_is_refused(text: str | bytes, words: str) -> None:
    with pytest.raises(DocumentError, match=f"not an accelmetrics document: .*{words}"):
        Snapshot.from_json(text)


@pytest.mark.parametrize("document", [None, [], 3, "text"])
def test_an_object_that_is_no_document_is_refused(document: Any) -> None:
    with pytest.raises(DocumentError, match="not an accelmetrics document"):
        Snapshot.from_dict(document)


def test_every_cut_of_a_document_is_refused() -> None:
    text = complete().to_json()
    for end in range(0, len(text), 97):
        with pytest.raises(DocumentError):
            Snapshot.from_json(text[:end])


def test_a_document_of_another_kind_is_not_told_fault_by_fault() -> None:
    with pytest.raises(DocumentError) as caught:
        Snapshot.from_dict({"schema_version": "1.0", "metrics": dict.fromkeys(map(str, range(100)), "x")})
    assert "and 100 more" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_reasons_that_are_not_known_are_kept() -> None:
    document = changed(lambda d: d["unavailable"].update({"gpu.0.new": {"reason": "on_strike", "detail": "since noon"}}))
    snapshot = Snapshot.from_dict(document)
    assert snapshot.unavailable["gpu.0.new"] == Unavailable("on_strike", "since noon")
    assert isinstance(snapshot.unavailable["gpu.0.fanSpeed"].reason, Reason)
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


def test_fields_that_are_not_known_are_passed_over() -> None:
    def add(document: dict[str, Any]) -> None:
        document["cluster"] = "north"
        for part in (*document["devices"], *document["backends"], *document["unavailable"].values()):
            part["later"] = {"a": [1]}

    assert Snapshot.from_dict(changed(add)) == complete()


def test_a_later_minor_version_is_read() -> None:
    assert Snapshot.from_dict(changed(lambda d: d.update(schema_version="1.17"))) == complete()


def test_what_has_a_default_may_be_left_out() -> None:
    def strip(document: dict[str, Any]) -> None:
        del document["processes"]
        document["devices"] = [{"key": "gpu.0", "kind": "gpu", "vendor": "acme", "index": 0, "vendor_index": 0}]
        document["backends"] = [{"name": "acme", "status": "ok"}]

    snapshot = Snapshot.from_dict(changed(strip))
    assert snapshot.devices[0].identity == DeviceIdentity("gpu", "acme", 0)
    assert snapshot.backends == (BackendStatus("acme", "ok"),)
    assert snapshot.processes == {}


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("2026-09-21T13:33:20Z", "2026-09-21T13:33:20.000000Z"),
        ("2026-09-21t13:33:20.5z", "2026-09-21T13:33:20.500000Z"),
        ("2026-09-21T13:33:20.123456789Z", "2026-09-21T13:33:20.123456Z"),
        ("2026-09-21T13:33:20+02:00", "2026-09-21T11:33:20.000000Z"),
        ("2026-09-21T13:33:20.25-03:30", "2026-09-21T17:03:20.250000Z"),
    ],
)
def test_timestamps_of_other_writers_are_read(text: str, same: str) -> None:
    assert Snapshot.from_dict(changed(lambda d: d.update(timestamp=text))).timestamp == same


def test_a_moment_outside_the_calendar_is_no_timestamp() -> None:
    with pytest.raises(DocumentError, match="outside the calendar"):
        Snapshot.from_dict(changed(lambda d: d.update(timestamp="9999-12-31T23:59:59-23:59")))


@given(st.integers(0, 253_402_300_799_999_999).map(lambda microseconds: microseconds * 1000))
def test_timestamps_read_back_exactly(time_ns: int) -> None:
    assert parse_timestamp(rfc3339(time_ns)) == time_ns


def test_a_reason_has_the_fields_of_its_record() -> None:
    """The light record is what a snapshot holds; a field that only one of the two has would be lost on the way."""
    assert tuple(UnavailableEntry.model_fields) == Unavailable._fields
