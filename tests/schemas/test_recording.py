"""Recordings read back: equal to what was written, whatever is cut or damaged."""

from __future__ import annotations

import gzip
import json
from contextlib import closing
from functools import cache
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, example, given, settings, strategies as st

from accelmetrics.schemas import recording as module
from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.recording import RecordFile, RecordingIndex, RecordReader, read_records, recordings
from accelmetrics.schemas.snapshot import Snapshot, rfc3339
from accelmetrics.schemas.view_model import parse_timestamp
from tests.records import record
from tests.schemas.samples import complete


@cache
def records() -> tuple[Record, ...]:
    """Three records that differ in everything that may differ from one line to the next."""
    first = record(2)
    reasons = dict(list(first.snapshot.unavailable.items())[:-1])
    second = Snapshot(first.snapshot.time_ns + 10**9, "vm", {"cpu": 1.5, "gpu.0.temp": 40}, first.snapshot.identities, reasons)
    return first, Record(second), first._replace(labels={}, steps=first.steps * 2)


def lines_of(*these: Record) -> list[bytes]:
    return [json.dumps(one.to_dict()).encode() + b"\n" for one in these]


def read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """What is read, as documents, and how many lines were unreadable."""
    recording = RecordFile(path)
    return [one.to_dict() for one in recording], recording.skipped


@pytest.mark.parametrize("zipped", [False, True])
def test_what_is_read_is_what_was_written(tmp_path: Path, zipped: bool) -> None:
    """Metrics, devices, reasons, labels, steps and the monitor's numbers come back, as often as one reads."""
    path = tmp_path / "run.jsonl"
    data = b"".join(lines_of(*records(), *records()))
    path.write_bytes(gzip.compress(data[:9000]) + gzip.compress(data[9000:]) if zipped else data)
    for _ in range(2):
        assert read(path) == ([one.to_dict() for one in (*records(), *records())], 0)
    back = next(read_records(path))
    assert back.snapshot == records()[0].snapshot
    assert back.labels == records()[0].labels
    assert back.steps[0].values == records()[0].steps[0].values
    assert back.monitor is not None
    assert records()[0].monitor is not None
    assert back.monitor._replace(interval=1.0) == records()[0].monitor


def test_every_field_comes_back(tmp_path: Path) -> None:
    """A snapshot with everything that one may hold comes back equal, whether a line is like the one before or not."""
    path = tmp_path / "run.jsonl"
    snapshot = complete()
    path.write_text((snapshot.to_json() + "\n") * 3)
    assert [one.snapshot for one in read_records(path)] == [snapshot] * 3


def test_a_device_that_changes(tmp_path: Path) -> None:
    """What is the same from line to line is not taken for granted: another name is another name, and ``true`` is no number."""
    path = tmp_path / "run.jsonl"
    documents = [records()[0].to_dict() for _ in range(3)]
    documents[1]["devices"][0]["name"] = "another"
    documents[2]["devices"][1]["index"] = True
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    assert read(path) == (documents[:2], 1)


def test_plain_documents_and_later_fields(tmp_path: Path) -> None:
    """Lines of ``dump --interval`` are records without more, line ends may be those of Windows, unknown fields are passed over."""
    path = tmp_path / "dump.jsonl"
    snapshot = records()[0].snapshot
    later = {**snapshot.to_dict(), "schema_version": "1.9", "later": 1}
    path.write_bytes(f"{snapshot.to_json()}\r\n\r\n{json.dumps(later)}\n".encode())
    found = list(read_records(path))
    assert [one.snapshot for one in found] == [snapshot, snapshot]
    assert {(len(one.labels), one.steps, one.monitor) for one in found} == {(0, (), None)}


def test_unreadable_lines_are_counted(tmp_path: Path) -> None:
    """Each line that cannot be read is passed over and counted; the first is told with its file, its number and what is wrong."""
    path = tmp_path / "run.jsonl"
    first, second, third = lines_of(*records())
    path.write_bytes(first + b"{}\n" + second + b"\xff\n" + third[:-40])
    recording = RecordFile(path)
    assert [one.to_dict() for one in recording] == [one.to_dict() for one in records()[:2]]
    assert recording.skipped == 3
    assert recording.complaint.startswith(f"{path}, line 2: not a record: schema_version: Field required")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("labels", {"a": 1}),
        ("labels", None),
        ("training", [{"timestamp": "yesterday", "values": {}}]),
        ("training", [{"timestamp": "2026-01-01T00:00:00Z", "values": {"loss": "low"}}]),
        ("monitor", {"monitor.ticks": 1.5}),
        ("timestamp", "9999-12-31T23:59:59-23:59"),
        ("timestamp", 5),
        ("metrics", {"cpu": True}),
        ("metrics", {"cpu": None}),
        ("metrics", {"": 1}),
        ("metrics", {"gpu.1.fanSpeed": 1}),
        ("metrics", [1]),
        ("backends", [{"name": "nvidia"}]),
        ("processes", {"gpu.0": [{"pid": "1"}]}),
        ("schema_version", "2.0"),
        ("hostname", 5),
        ("devices", [{"key": "gpu.0", "kind": "gpu", "vendor": "nvidia", "index": True, "vendor_index": 0}]),
        ("unavailable", {"gpu.0.temp": "why"}),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_wrong_field_makes_a_line_unreadable(tmp_path: Path, field: str, value: object, place: int) -> None:
    """Every field is checked on every line: on the first, and on one that is like the line before in all else."""
    path = tmp_path / "run.jsonl"
    document = {**records()[0].to_dict(), field: value}
    lines = lines_of(records()[0], records()[0])
    lines.insert(place, json.dumps(document).encode() + b"\n")
    path.write_bytes(b"".join(lines))
    assert read(path) == ([records()[0].to_dict()] * 2, 1)


def test_a_number_too_large_is_no_number(tmp_path: Path) -> None:
    """``1e999`` is not finite, though JSON has no word for that."""
    path = tmp_path / "run.jsonl"
    first = lines_of(records()[1])[0]
    path.write_bytes(first + first.replace(b"1.5", b"1e999"))
    assert read(path) == ([records()[1].to_dict()], 1)


@pytest.mark.parametrize(
    "text",
    [b"hello\n", b"[1]\n", b"\x00" * 5000, b'{"a": 1}\n{"b": 1}\n', b"[" * 9000, gzip.compress(b"x\n"), b"\x1f\x8bx" * 9],
    ids=["text", "a list", "zeros", "other objects", "brackets", "gzipped text", "no gzip"],
)
def test_a_file_of_another_kind(tmp_path: Path, text: bytes) -> None:
    """A file in which no line is a record is an error that names it and its first line."""
    path = tmp_path / "notes.txt"
    path.write_bytes(text)
    with pytest.raises(DocumentError, match=r"notes\.txt, (after )?line [01]: "):
        list(read_records(path))


def test_a_recording_just_begun(tmp_path: Path) -> None:
    """No record yet, or only the beginning of the first one, is a recording; a file that does not exist is the system's error."""
    path = tmp_path / "run.jsonl"
    path.write_bytes(b"")
    assert read(path) == ([], 0)
    for length in (1, 10, 5000):
        path.write_bytes(lines_of(records()[0])[0][:length])
        assert read(path) == ([], 1)
    with pytest.raises(FileNotFoundError):
        list(read_records(tmp_path / "none"))
    with pytest.raises(FileNotFoundError):
        list(recordings(tmp_path / "none")[0])


def test_a_line_without_end_is_not_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line longer than any record is one unreadable line, and the next one is read."""
    monkeypatch.setattr(module, "LONGEST_LINE", 50_000)
    path = tmp_path / "run.jsonl"
    line = lines_of(records()[0])[0]
    path.write_bytes(line + b'{"schema_version": "' + b"x" * 500_000 + b"\n" + line)
    assert read(path) == ([records()[0].to_dict()] * 2, 1)
    with closing(RecordReader([path], grows=False)) as reader:
        assert max(map(len, iter(reader.line, b""))) <= 50_000


def refused(path: Path, words: str) -> None:
    """Each way of reading a file refuses it: as a whole, record by record, and gone through for its places."""
    with closing(RecordReader([path])) as reader, closing(RecordingIndex(path)) as index:
        for read_all in (lambda: list(RecordFile(path)), lambda: list(iter(reader.record, None)), lambda: index.extend(inf)):
            with pytest.raises(DocumentError, match=rf"run.jsonl.*{words}"):
                read_all()


def test_what_no_writer_makes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices by the hundred thousand, blank or unreadable lines without end, and a line without one: each in a sentence."""
    path = tmp_path / "run.jsonl"
    line = lines_of(records()[0])[0]
    for many in ({"schema_version": "2.0", "stream": "a"}, json.loads(line)):
        path.write_bytes(json.dumps({**many, "devices": [{}] * 100_000}).encode() + b"\n" + line)
        refused(path, "it has 100,000 devices, more than the limit of 8,192")
    keys = ",".join(f'"gpu.{number}.temp":1' for number in range(9_000))
    path.write_text('{"timestamp":"2026-01-01T00:00:00.000000Z","stream":"a","metrics":{' + keys + "}}\n")
    with pytest.raises(DocumentError, match="line 1: it has 9,000 devices"):
        list(RecordFile(path))
    with closing(RecordReader([path])) as reader, pytest.raises(DocumentError, match=r"run.jsonl, line 1: it has 9,000 devices"):
        reader.record()
    for junk in (b"\n", b"x\n"):
        with gzip.open(path, "wb", 1) as file:
            file.write(line)
            for _ in range(64):
                file.write(junk * (1 << 20))
        refused(path, "more than 200,000 ")
    monkeypatch.setattr(module, "LONGEST_PASSED_OVER", 1 << 27)
    with path.open("wb") as file:
        file.truncate(1 << 32)
    refused(path, "has a line of more than 128 MiB")


def test_a_series_in_order(tmp_path: Path) -> None:
    """Closed files come first, oldest first, each once, then the growing one; other files are none of it."""
    (line,) = lines_of(records()[1])
    names = ["run.20260101T000000.000000Z.jsonl", "run.20260101T000000.000000Z-2.jsonl", "run.20260101T000000.000000Z-10.jsonl.gz"]
    names += ["run.20260102T000000.000000Z.jsonl.gz", "run.jsonl"]
    for name in [*names, "run.20260102T000000.000000Z.jsonl", "run-x.20260101T000000.000000Z.jsonl", "run.old.jsonl"]:
        (tmp_path / name).write_bytes(gzip.compress(line) if name.endswith(".gz") else line)
    assert [recording.path.name for recording in recordings(tmp_path / "run.jsonl")] == names
    (tmp_path / "run.jsonl").unlink()
    assert [recording.path.name for recording in recordings(tmp_path / "run.jsonl")] == names[:-1]
    assert sum(1 for recording in recordings(tmp_path / "run.jsonl") for _ in recording) == 4


def test_compressed_since_it_was_listed(tmp_path: Path) -> None:
    """A closed file that has been compressed meanwhile is found under its new name."""
    (line,) = lines_of(records()[1])
    (tmp_path / "run.jsonl.gz").write_bytes(gzip.compress(line))
    assert read(tmp_path / "run.jsonl") == ([records()[1].to_dict()], 0)


@pytest.mark.parametrize("cut", [0.2, 0.9, 0.999])
def test_a_cut_compressed_file(tmp_path: Path, cut: float) -> None:
    """What comes before the cut is read, and the cut is told."""
    path = tmp_path / "run.jsonl.gz"
    originals = [Record(complete(time_ns=10**18 + number * 10**9)) for number in range(200)]
    data = gzip.compress(b"".join(lines_of(*originals)))
    path.write_bytes(data[: int(len(data) * cut)])
    found, unreadable = read(path)
    assert found
    assert found == [one.to_dict() for one in originals[: len(found)]]
    assert unreadable == 1


def test_a_damaged_compressed_file_is_told(tmp_path: Path) -> None:
    """A checksum that does not fit is counted and told, like a line that cannot be read."""
    path = tmp_path / "run.jsonl.gz"
    data = bytearray(gzip.compress(b"".join(lines_of(*records()))))
    data[-6] ^= 1
    path.write_bytes(data)
    recording = RecordFile(path)
    assert [one.to_dict() for one in recording] == [one.to_dict() for one in records()]
    assert recording.skipped == 1
    assert "the compressed file is damaged" in recording.complaint


DAMAGE = st.lists(
    st.tuples(st.floats(0, 1), st.integers(0, 30), st.binary(max_size=6) | st.sampled_from([b"1", b"true", b'"', b"\n", b"9e999"])),
    max_size=4,
)


def damaged(data: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    for place, removed, put in changes:
        begin = int(place * len(data))
        data = data[:begin] + put + data[begin + removed :]
    return data


@settings(max_examples=150, deadline=None)
@example(cut=0.0004, zipped=True)
@given(cut=st.floats(0, 1), zipped=st.booleans())
def test_any_cut(cut: float, zipped: bool) -> None:
    """Wherever a file is cut, the records before the cut are read, as they were, and no other."""
    lines = lines_of(*records())
    data = gzip.compress(b"".join(lines), 1) if zipped else b"".join(lines)
    with TemporaryDirectory() as directory:
        path = Path(directory) / "run.jsonl"
        path.write_bytes(data[: int(cut * len(data))])
        found, unreadable = read(path)
        assert found == [one.to_dict() for one in records()[: len(found)]]
        assert unreadable <= 1
        if not zipped:
            assert len(found) >= sum(1 for number in range(1, 4) if len(b"".join(lines[:number])) <= int(cut * len(data)))


def strictly(line: bytes) -> dict[str, Any] | None:
    """What the whole schema makes of a line, with what stands beside the snapshot as it stands there, but for how times are written.

    Damage may leave a field twice. The last one counts, as for every reader of JSON; pydantic before 2.11 takes the first one of a text.
    """
    try:
        Snapshot.from_json(line)
        document = json.loads(line)
        snapshot = Snapshot.from_dict(document)
        for step in document.get("training", ()):
            step["timestamp"] = rfc3339(parse_timestamp(step["timestamp"]))
    except (DocumentError, KeyError, TypeError, ValueError):
        return None
    return {**snapshot.to_dict(), **{part: document[part] for part in ("labels", "training") if document.get(part)}}


def test_a_field_that_stands_twice(tmp_path: Path) -> None:
    """The last one counts, whatever pydantic is installed."""
    (line,) = lines_of(records()[0])[-1:]
    path = tmp_path / "run.jsonl"
    path.write_bytes(line.replace(b'"hostname": ', b'"hostname": "first", "hostname": ', 1))
    assert b'"first"' in path.read_bytes()
    found, unreadable = read(path)
    assert (found, unreadable) == ([records()[0].to_dict()], 0)
    whole = strictly(path.read_bytes())
    assert whole is not None and whole["hostname"] == "vm"


@settings(max_examples=300, deadline=None)
@given(changes=DAMAGE)
def test_any_damage(changes: list[tuple[float, int, bytes]]) -> None:
    """Whatever was done to a file's bytes, each record that is read is what its line says by the whole schema; none is invented."""
    lines = lines_of(records()[1], *records(), records()[1])
    data, originals = damaged(b"".join(lines), changes), {line.rstrip() for line in lines}
    assume(not data.startswith(b"\x1f\x8b"))  # that is a compressed file, and another test
    with TemporaryDirectory() as directory:
        path = Path(directory) / "run.jsonl"
        path.write_bytes(data)
        recording = RecordFile(path)
        try:
            found = list(recording)
        except DocumentError:
            found = []
        whole = [line for line in data.split(b"\n") if line and not line.isspace()]
        assert len(found) + recording.skipped == len(whole)
        assert len(found) >= sum(line in originals for line in whole)
        expected = iter(filter(None, map(strictly, whole)))
        for one in found:
            assert one._replace(monitor=None).to_dict() in expected


@settings(max_examples=150, deadline=None)
@given(changes=DAMAGE, level=st.sampled_from([0, 6]))
def test_any_damage_to_a_compressed_file(changes: list[tuple[float, int, bytes]], level: int) -> None:
    """Damage to a compressed file is no error but the one that says so."""
    data = damaged(gzip.compress(b"".join(lines_of(*records())), level), changes)
    with TemporaryDirectory() as directory:
        path = Path(directory) / "run.jsonl.gz"
        path.write_bytes(data)
        try:
            found, unreadable = read(path)
        except DocumentError:
            return
        assert unreadable or found == [one.to_dict() for one in records()] or not data
