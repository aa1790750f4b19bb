"""Recordings of headers and readings: read back to what was written, and what is left of one that was cut or damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st
from jsonschema import Draft202012Validator

from accelmetrics.schemas.document import lines_schema
from accelmetrics.schemas.errors import DocumentError, Unavailable
from accelmetrics.schemas.identity import BackendStatus
from accelmetrics.schemas.lines import LineWriter, reading
from accelmetrics.schemas.record import Record, WindowSpan
from accelmetrics.schemas.recording import RecordFile, read_records
from accelmetrics.schemas.snapshot import Snapshot, to_text
from accelmetrics.schemas.view_model import parse_timestamp
from tests.records import record
from tests.schemas.samples import complete
from tests.schemas.test_recording import DAMAGE, damaged, lines_of, records

VALIDATOR = Draft202012Validator(lines_schema(), format_checker=Draft202012Validator.FORMAT_CHECKER)


def written(*these: Record, stream: str = "0123abcd") -> list[bytes]:
    """The lines of one writer."""
    writer, found = LineWriter(stream), []
    for number, one in enumerate(these):
        found += writer.lines(one, fresh=number == 0).encode().splitlines(keepends=True)
        writer.wrote()
    return found


def file_of(path: Path, *lines: bytes) -> RecordFile:
    path.write_bytes(b"".join(lines))
    return RecordFile(path)


def changed(line: bytes, **fields: object) -> bytes:
    return json.dumps({**json.loads(line), **fields}).encode() + b"\n"


def without(line: bytes, field: str) -> bytes:
    return json.dumps({name: value for name, value in json.loads(line).items() if name != field}).encode() + b"\n"


def test_every_field_comes_back(tmp_path: Path) -> None:
    """A snapshot with everything that one may hold comes back equal, but that seconds are told to the microsecond."""
    snapshot = complete()
    (back,) = file_of(tmp_path / "run.jsonl", *written(Record(snapshot, {"a": "b"})))
    assert back.labels == {"a": "b"}
    for status, original in zip(back.snapshot.backends, snapshot.backends, strict=True):
        assert status[:4] == original[:4]
        assert status.sequence == original.sequence
        assert status.age_seconds == (None if original.age_seconds is None else pytest.approx(original.age_seconds, abs=1e-6))
        assert status.duration_seconds == (
            None if original.duration_seconds is None else pytest.approx(original.duration_seconds, abs=1e-6)
        )
        assert bool(status.read_at) == (original.age_seconds is not None)
    assert with_backends(back.snapshot, ()) == with_backends(snapshot, ())


def with_backends(taken: Snapshot, backends: tuple[BackendStatus, ...]) -> Snapshot:
    return Snapshot(taken.time_ns, taken.hostname, taken.metrics, taken.identities, taken.unavailable, backends, taken.processes)


def test_when_a_source_was_read_follows_from_its_age(tmp_path: Path) -> None:
    """The time of a source's reading is that of the snapshot less its age."""
    snapshot = Snapshot(10**18, "node", {"cpu": 1}, backends=(BackendStatus("host", "ok", "", "psutil", 0.001, "", 0.25, 7),))
    (back,) = file_of(tmp_path / "run.jsonl", *written(Record(snapshot)))
    assert back.snapshot.backends == (BackendStatus("host", "ok", "", "psutil", 0.001, "2001-09-09T01:46:39.750000Z", 0.25, 7),)


@pytest.mark.parametrize("lines", [lines_of, written], ids=["documents", "lines"])
def test_what_repeats_is_held_once(tmp_path: Path, lines: Callable[..., list[bytes]]) -> None:
    """Devices and reasons are the same objects from record to record."""
    first, second, third = (one.snapshot for one in file_of(tmp_path / "run.jsonl", *lines(*[records()[0]] * 3)))
    assert first.identities is second.identities is third.identities
    assert first.unavailable is second.unavailable is third.unavailable


def test_both_forms_in_one_file(tmp_path: Path) -> None:
    """Documents, and readings below their headers, are read in the order in which they stand."""
    one, two, three = (records()[0]._replace(labels={"writer": name}) for name in ("one", "two", "three"))
    first, second = written(one, one, stream="1"), written(two, two, stream="2")
    interleaved = [*first[:2], *lines_of(three), *second[:2], first[2], *lines_of(three), second[2]]
    found = file_of(tmp_path / "run.jsonl", *interleaved)
    assert [record.labels["writer"] for record in found] == ["one", "three", "two", "one", "three", "two"]
    assert (found.skipped, found.headless) == (0, 0)


def test_two_readers_of_one_file(tmp_path: Path) -> None:
    """Iterations side by side do not take each other's headers away."""
    recording = file_of(tmp_path / "run.jsonl", *written(*[records()[0]] * 3))
    assert [(one.labels, other.labels) for one, other in zip(recording, recording, strict=True)] == [(records()[0].labels,) * 2] * 3


def test_a_reading_without_its_header(tmp_path: Path) -> None:
    """Of a file whose beginning was cut off the values are there, with devices by their keys; and it is told."""
    metrics = {"gpu.1.powerWatts": 1.5, "gpu.0.mig.2.temp": 40, "gpu.0.temp": 30, "npu.process.3.temp": 20, "cpu": 5.0}
    reasons = {"gpu.0.fanSpeed": Unavailable("not_supported", "")}
    backends = (BackendStatus("nvidia", "ok", "", "nvml", 0.1, "", 0.5, 3),)
    lines = written(*[Record(Snapshot(10**18, "node", metrics, (), reasons, backends), {"a": "b"})] * 3)
    found = file_of(tmp_path / "run.jsonl", *lines[2:])
    first, second = found
    assert (found.skipped, found.headless) == (0, 2)
    assert first.snapshot.metrics == metrics
    assert (first.snapshot.hostname, first.labels, first.snapshot.unavailable) == ("", {}, {})
    assert [slot.key for slot in first.snapshot.identities] == ["gpu.0", "gpu.1", "npu.3", "gpu.0.mig.2"]
    assert first.snapshot.device("gpu.1").metrics.power_watts == 1.5
    assert first.snapshot.identities is second.snapshot.identities
    assert [(status.name, status.sequence) for status in first.snapshot.backends] == [("nvidia", 3)]
    assert Snapshot.from_json(first.snapshot.to_json()) == first.snapshot


def test_keys_that_are_no_devices_name_none(tmp_path: Path) -> None:
    """A template among a reading's keys is a number like another."""
    (_, reading) = written(records()[0])
    found = file_of(tmp_path / "run.jsonl", changed(reading, metrics={"gpu.{i}.temp": 40, "gpu.1.temp": 30}))
    assert [[slot.key for slot in record.snapshot.identities] for record in found] == [["gpu.1"]]


def test_a_header_that_cannot_be_read(tmp_path: Path) -> None:
    """Readings below it are not taken for those of the header before it."""
    one, two = records()[0], records()[0]._replace(labels={"team": "another"})
    header, reading, *more = written(one, two, two)
    found = file_of(tmp_path / "run.jsonl", header, reading, more[0][:200] + b"\n", *more[1:])
    assert [record.labels for record in found] == [one.labels, {}, {}]
    assert (found.skipped, found.headless) == (1, 2)


def test_a_value_that_the_header_has_a_reason_for(tmp_path: Path) -> None:
    """No key is both there and missing: such a header is not the reading's."""
    header, reading = written(records()[0])
    key = next(iter(json.loads(header)["unavailable"]))
    found = file_of(tmp_path / "run.jsonl", header, changed(reading, metrics={key: 1}))
    assert [record.snapshot.metrics for record in found] == [{key: 1}]
    assert found.headless == 1


@pytest.mark.parametrize(
    ("number", "field", "value"),
    [
        (0, "schema_version", "3.0"),
        (0, "schema_version", 2.0),
        (0, "hostname", None),
        (0, "labels", {"a": 1}),
        (0, "labels", None),
        (0, "stream", 5),
        (0, "stream", ""),
        (0, "devices", [{"key": "gpu.0", "kind": "gpu", "vendor": "nvidia", "index": True, "vendor_index": 0}]),
        (0, "devices", [{"key": "gpu.0", "kind": "gpu", "vendor": "nvidia", "index": 0, "vendor_index": 0}] * 2),
        (0, "unavailable", {"gpu.0.temp": "why"}),
        (0, "backends", [{"name": "nvidia"}]),
        (1, "stream", 5),
        (1, "step", "7"),
        (1, "training", [{"timestamp": "yesterday", "values": {}}]),
        (1, "training", [{"timestamp": "2026-01-01T00:00:00Z", "values": {"loss": "low"}}]),
        (1, "monitor", {"monitor.ticks": 1.5}),
        (1, "timestamp", "9999-12-31T23:59:59-23:59"),
        (1, "timestamp", None),
        (1, "metrics", {"cpu": True}),
        (1, "metrics", {"cpu": None}),
        (1, "metrics", {"": 1}),
        (1, "metrics", [1]),
        (1, "metrics", None),
        (1, "sources", {"nvidia": {"sequence": -1}}),
        (1, "sources", {"nvidia": {"age_seconds": "1"}}),
        (1, "sources", {"nvidia": {"age_seconds": 1e17}}),
        (1, "metrics", {"cpu": 10**400}),
        (1, "processes", {"gpu.0": [{"pid": "1"}]}),
    ],
)
def test_a_wrong_field_makes_a_line_unreadable(tmp_path: Path, number: int, field: str, value: object) -> None:
    """Every field of a header and of a reading is checked; the reading below such a header has none."""
    lines = written(records()[0])
    found = file_of(tmp_path / "run.jsonl", *lines, changed(lines[number], **{field: value}), lines[1])
    assert len(list(found)) == 2
    assert (found.skipped, found.headless) == (1, 1 - number)
    assert f"line 3: not a record: {'' if number else field}" in found.complaint


def test_fields_of_later_releases(tmp_path: Path) -> None:
    """What this release does not know is passed over."""
    header, reading = written(records()[0])
    lines = changed(header, schema_version="2.9", later=1), changed(reading, later=1)
    assert [one.to_dict() for one in file_of(tmp_path / "run.jsonl", *lines)] == [
        one.to_dict() for one in file_of(tmp_path / "same.jsonl", header, reading)
    ]


def test_the_beginning_of_a_first_header(tmp_path: Path) -> None:
    """A file in which nothing but a part of a header stands, or a header alone, is a recording."""
    (header, _) = written(records()[0])
    for length in (1, 10, 1000, len(header) - 5, len(header)):
        found = file_of(tmp_path / "run.jsonl", header[:length])
        assert list(found) == []
        assert found.skipped == (length < len(header) - 1)


@settings(max_examples=100, deadline=None)
@example(cut=0.0004)
@given(cut=st.floats(0, 1))
def test_any_cut(cut: float) -> None:
    """Wherever a file ends, the records before that are read as they were, and no other."""
    lines = written(*records())
    data = b"".join(lines)
    with TemporaryDirectory() as directory:
        whole = [one.to_dict() for one in file_of(Path(directory) / "whole.jsonl", data)]
        cut_off = file_of(Path(directory) / "run.jsonl", data[: int(cut * len(data))])
        found = [one.to_dict() for one in cut_off]
    assert found == whole[: len(found)]
    assert cut_off.skipped <= 1
    assert cut_off.headless == 0
    readings = [number for number, line in enumerate(lines, 1) if b'"metrics"' in line]
    assert len(found) >= sum(len(b"".join(lines[:number])) <= int(cut * len(data)) for number in readings)


@settings(max_examples=300, deadline=None)
@given(changes=DAMAGE)
def test_any_damage(changes: list[tuple[float, int, bytes]]) -> None:
    """Whatever was done to a file's bytes, each record has its line's values, and besides them what some line says."""
    data = damaged(b"".join(written(*records(), records()[0])), changes)
    documents = list(filter(None, map(parsed, data.split(b"\n"))))
    readings = [(timed(line), line["metrics"]) for line in documents if isinstance(line.get("metrics"), dict)]
    known = [("", {}, []), *filter(None, map(header_of, documents))]
    with TemporaryDirectory() as directory:
        found = file_of(Path(directory) / "run.jsonl", data)
        try:
            read = list(found)
        except DocumentError:
            read = []
    for one in read:
        assert (one.snapshot.time_ns, one.snapshot.metrics) in readings
        document = one.to_dict()
        devices = document["devices"] if one.snapshot.hostname else []
        assert (one.snapshot.hostname, document.get("labels", {}), devices) in known


def parsed(line: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def header_of(line: dict[str, Any]) -> tuple[str, object, object] | None:
    """Host, labels and devices of a header, as far as a document with the same parts holds to the whole schema."""
    filled = {**line, "schema_version": "1.0", "timestamp": "2026-01-01T00:00:00Z", "metrics": {}, "backends": []}
    try:
        return line["hostname"], line["labels"], Snapshot.from_dict(filled).to_dict()["devices"]
    except (DocumentError, KeyError):
        return None


def timed(line: dict[str, Any]) -> int | None:
    try:
        return parse_timestamp(line.get("timestamp"))
    except ValueError:
        return None


def findings(line: bytes) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(json.loads(line))]


def test_the_schema_takes_what_is_written() -> None:
    """Headers and readings hold to the published schema of lines, which is one of the dialect that it names."""
    Draft202012Validator.check_schema(lines_schema())
    assert lines_schema()["$id"] == "urn:accelmetrics:lines:2.0"
    for line in written(*records(), Record(complete())):
        assert findings(line) == []


DEPARTURES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "header without stream": lambda header, reading: without(header, "stream"),
    "header without labels": lambda header, reading: without(header, "labels"),
    "header of another version": lambda header, reading: changed(header, schema_version="1.0"),
    "empty key": lambda header, reading: changed(header, unavailable={"": {"reason": "stale"}}),
    "reading without stream": lambda header, reading: without(reading, "stream"),
    "reading without metrics": lambda header, reading: without(reading, "metrics"),
    "value out of bounds": lambda header, reading: changed(reading, metrics={"gpu.0.gpu": 300}),
    "value in quotes": lambda header, reading: changed(reading, metrics={"cpu": "1"}),
    "time as a number": lambda header, reading: changed(reading, timestamp=5),
    "negative sequence": lambda header, reading: changed(reading, sources={"nvidia": {"sequence": -1}}),
    "whole document": lambda header, reading: lines_of(records()[0])[0],
}


@pytest.mark.parametrize("wrong", DEPARTURES.values(), ids=DEPARTURES)
def test_the_schema_refuses_what_is_none(wrong: Callable[[bytes, bytes], bytes]) -> None:
    """A part that is missing or of another kind departs from it, and so does a document of ``dump --json``."""
    assert findings(wrong(*written(records()[0])))


def test_read_records_takes_both(tmp_path: Path) -> None:
    """``read_records`` gives the records of a file of either form."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"".join([*lines_of(records()[1]), *written(records()[1])]))
    assert [one.snapshot for one in read_records(path)] == [records()[1].snapshot] * 2


def test_windows_come_back(tmp_path: Path) -> None:
    """Open ones and those that ended; to the microsecond, in lines and in whole documents."""
    spans = (WindowSpan("epoch-0", 1_000_000, 2_000_000), WindowSpan("eval", 3_000_000))
    told = record(1)._replace(windows=spans)
    (back,) = file_of(tmp_path / "run.jsonl", *written(told))
    assert back.windows == spans
    (back,) = file_of(tmp_path / "whole.jsonl", told.to_json().encode())
    assert back.windows == spans
    for line in written(told):
        VALIDATOR.validate(json.loads(line))


class Whole(int):
    """An int that shows itself otherwise, as those of NumPy do."""

    def __repr__(self) -> str:
        return "whole"


class Real(float):
    """A float that does."""

    def __repr__(self) -> str:
        return "real"


KEYS = st.text(max_size=20) | st.sampled_from(["gpu.0.temp", "disk./%s.usageGB", 'a"metrics":{}', "\udcff", "é"])
VALUES = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans()
VALUES |= st.integers(-99, 99).map(Whole) | st.floats(-1, 1).map(Real)


def plain_line(one: Record, stream: str) -> str:
    """The line of a reading, all of it by the standard library."""
    line = {**reading(one, stream, monitor=False), "metrics": one.snapshot.metrics}
    return to_text(line, None, "record", (",", ":")) + "\n"


SEVERAL = st.lists(KEYS, max_size=6, unique=True).flatmap(
    lambda keys: st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(keys, VALUES)), min_size=1, max_size=5)
)
"""Metrics of readings that follow each other: of the same keys, or of some of them."""


@settings(max_examples=100, deadline=None)
@example([{"a": 1e16, "b": 1e-7, "c": -0.0, "d": 2**63, "e": 10**400, "f": 5e-324, "g": 0.1 + 0.2}] * 2)
@example([{"disk./%s.usageGB": 1, "\udcff%": 2.5}] * 2)
@example([{"a": 1e308, "b": 1e308}, {}, {"a": 1.0, "b": 1}])
@given(SEVERAL)
def test_lines_are_what_json_writes(metrics: list[dict[str, int | float]]) -> None:
    """Whatever keys and numbers follow each other, a line is the text that ``json.dumps`` makes of the whole of it."""
    writer = LineWriter('"metrics":{}')
    for number, values in enumerate(metrics):
        one = Record(Snapshot(10**18, "node", values))
        assert writer.lines(one, fresh=number == 0).splitlines(keepends=True)[-1] == plain_line(one, writer.stream)
        writer.wrote()


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_what_is_not_finite_is_refused_after_a_line_that_was(value: float) -> None:
    """No number that JSON lacks gets into a line, whatever was written before it; what comes behind is written as ever."""
    good, bad = (Record(Snapshot(10**18, "node", {"a": 1.0, "b": number})) for number in (2, value))
    writer = LineWriter("1")
    writer.lines(good, fresh=True)
    with pytest.raises(DocumentError, match="the record cannot be written as JSON: Out of range float values"):
        writer.lines(bad, fresh=True)
    assert writer.lines(good, fresh=True).endswith(plain_line(good, "1"))
