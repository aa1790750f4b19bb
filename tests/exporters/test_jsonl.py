"""``jsonl``: what is in a line, which files are added to, and which options are refused."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from accelmetrics.exporters.csv import CsvExporter
from accelmetrics.exporters.files import FileExporter, JsonlExporter
from accelmetrics.exporters.registry import create
from accelmetrics.schemas.errors import DocumentError, InvalidOptionError
from accelmetrics.schemas.lines import files_of
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.recording import read_records, recordings
from accelmetrics.schemas.snapshot import Snapshot
from tests.exporters.files_tools import largest_file, numbered, skipped, written
from tests.records import LABELS, STATUS
from tests.support.exporting import export, exporting


def put(path: Path, *records: Record) -> None:
    with exporting(JsonlExporter(path)) as exporter:
        for record in records:
            exporter.export(record)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_header_and_a_line_a_reading(tmp_path: Path) -> None:
    """What does not change is said once, above the first reading; each reading has its values under ``metrics``."""
    path = tmp_path / "run.jsonl"
    first, second = numbered(0), numbered(1)._replace(steps=())
    put(path, first, second)
    header, *readings = lines(path)
    document = first.to_dict()
    assert {part: header[part] for part in ("hostname", "labels", "devices", "unavailable")} == {
        part: document[part] for part in ("hostname", "labels", "devices", "unavailable")
    }
    assert header["schema_version"] == "2.0"
    assert [set(source) for source in header["backends"]] == [{"name", "status", "detail", "source", "devices"}] * 2
    assert {reading["stream"] for reading in readings} == {header["stream"]}
    assert re.fullmatch("[0-9a-f]{8}", header["stream"])
    assert list(readings[0]) == ["timestamp", "stream", "step", "metrics", "training", "sources", "monitor"]
    assert list(readings[1]) == ["timestamp", "stream", "metrics", "sources"]
    assert [reading["metrics"] for reading in readings] == [one.snapshot.metrics for one in (first, second)]
    assert (readings[0]["step"], readings[0]["training"], readings[0]["monitor"]) == (7, document["training"], document["monitor"])
    assert set(readings[0]["sources"]["nvidia"]) == {"sequence", "age_seconds", "duration_seconds"}


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    """The records come back, but that the monitor is said to fare as it does only where that has changed."""
    path = tmp_path / "run.jsonl"
    records = [numbered(0), numbered(1)._replace(steps=()), numbered(2)._replace(labels={})]
    put(path, *records)
    found = list(read_records(path))
    assert [one.monitor is None for one in found] == [False, True, False]
    for one, record in zip(found, records, strict=True):
        assert plain(one._replace(monitor=record.monitor)) == plain(record)


def plain(record: Record) -> dict[str, Any]:
    """A record's document, with seconds to the microsecond."""
    document = record.to_dict()
    for source in document["backends"]:
        source.update({name: round(source[name], 6) for name in ("duration_seconds", "age_seconds")}, read_at="")
    return document


CHANGES: dict[str, Callable[[Record], Record]] = {
    "labels": lambda record: record._replace(labels={"team": "another"}),
    "a reason": lambda record: without(record, "unavailable"),
    "devices": lambda record: without(record, "identities"),
    "how a source stands": lambda record: without(record, "backends"),
}


def without(record: Record, part: str) -> Record:
    """The same record, of whose part one entry is gone."""
    taken = record.snapshot
    parts: dict[str, Any] = {"unavailable": taken.unavailable, "identities": taken.identities, "backends": taken.backends}
    left = parts[part]
    parts[part] = dict(list(left.items())[1:]) if isinstance(left, Mapping) else left[1:]
    return record._replace(snapshot=Snapshot(taken.time_ns, taken.hostname, taken.metrics, processes=taken.processes, **parts))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_header_when_something_changes(tmp_path: Path, change: Callable[[Record], Record]) -> None:
    """There is another header above the reading from which on it holds, and none while nothing changes."""
    path = tmp_path / "run.jsonl"
    put(path, numbered(0), numbered(1), change(numbered(2)), change(numbered(3)), numbered(4))
    assert ["schema_version" in line for line in lines(path)] == [True, False, False, True, False, False, True, False]
    assert [one.snapshot.unavailable for one in read_records(path)] == [
        one.snapshot.unavailable for one in (numbered(0), numbered(1), change(numbered(2)), change(numbered(3)), numbered(4))
    ]


def test_how_the_monitor_fares_is_said_when_it_changes(tmp_path: Path) -> None:
    """Ticks, and records that are sent and wait, change at every reading and are not told for themselves."""
    path = tmp_path / "run.jsonl"
    (exporter,) = STATUS.exporters
    told = [
        STATUS,
        STATUS._replace(ticks=11, exporters=(exporter._replace(sent=10, queued=1),)),
        STATUS._replace(ticks=12, missed_ticks=2),
        STATUS._replace(ticks=13, missed_ticks=2),
        STATUS._replace(ticks=14, missed_ticks=2, exporters=(exporter._replace(dropped=2),)),
    ]
    put(path, *(numbered(number)._replace(monitor=status) for number, status in enumerate(told)))
    found = [one.monitor.ticks if one.monitor else None for one in read_records(path)]
    assert found == [10, None, 12, None, 14]


def test_every_file_and_every_start_has_a_header(tmp_path: Path) -> None:
    """A closed file is read by itself, and so is what a writer adds that was started again, or whose file was emptied."""
    path = tmp_path / "run.jsonl"
    for number in (0, 2):
        with exporting(JsonlExporter(path, max_bytes=5000)) as exporter:
            exporter.export(numbered(number))
            exporter.export(numbered(number + 1))
    streams = {line["stream"] for part in files_of(path) for line in lines(part)}
    assert len(streams) == 2
    with exporting(JsonlExporter(path)) as exporter:
        exporter.export(numbered(4))
        path.write_text("")
        exporter.export(numbered(5))
    assert written(path) == [0, 1, 2, 5]


def test_writers_that_share_a_file(tmp_path: Path) -> None:
    """Each reading has the labels of its own writer, also in a file that another of them has begun."""
    path = tmp_path / "run.jsonl"
    with exporting(JsonlExporter(path, max_bytes=20_000)) as one, exporting(JsonlExporter(path, max_bytes=20_000)) as other:
        for number in range(60):
            exporter, name = ((one, "one"), (other, "other"))[number % 2]
            exporter.export(numbered(number)._replace(labels={"writer": name}))
    assert len(files_of(path)) > 2
    assert written(path) == list(range(60))
    found = [record.labels["writer"] for recording in recordings(path) for record in recording]
    assert found == ["one", "other"] * 30


def test_a_header_that_was_not_written_is_offered_again(tmp_path: Path) -> None:
    """Where a disk is full, the change is not taken for told."""
    path = tmp_path / "run.jsonl"
    with exporting(JsonlExporter(path)) as exporter:
        exporter.export(numbered(0))
        with largest_file(path.stat().st_size + 10), pytest.raises(OSError, match="File too large"):
            exporter.export(numbered(1)._replace(labels={"team": "another"}))
        exporter.export(numbered(2)._replace(labels={"team": "another"}))
    assert [one.labels for one in read_records(path)] == [LABELS, {"team": "another"}]


def test_a_file_of_an_earlier_release_goes_on(tmp_path: Path) -> None:
    """Lines that are whole documents stay, and those below them have a header."""
    path = tmp_path / "run.jsonl"
    path.write_text("".join(numbered(number).to_json() + "\n" for number in range(2)))
    with exporting(JsonlExporter(path, max_seconds=3.0)) as exporter:
        for number in range(2, 5):
            exporter.export(numbered(number))
    assert written(path) == list(range(5))
    assert [len(list(recording)) for recording in recordings(path)] == [3, 2]


def test_what_json_cannot_hold(tmp_path: Path) -> None:
    """A lone surrogate, which stands for a byte that is no text, is written as its escape; a value that is not finite is refused."""
    path = tmp_path / "run.jsonl"
    odd = numbered(0)._replace(labels={"path": "/d\udcff"})
    put(path, odd)
    assert [record.labels for record in read_records(path)] == [{"path": "/d\\udcff"}]
    bad = odd._replace(snapshot=odd.snapshot.with_metrics({"cpu": float("nan")}))
    with exporting(JsonlExporter(path)) as exporter, pytest.raises(DocumentError, match="not JSON compliant"):
        exporter.export(bad)
    assert written(path) == [0]


def test_a_file_is_added_to(tmp_path: Path) -> None:
    """Opened again, by the same exporter or another, a file goes on."""
    path = tmp_path / "run.jsonl"
    exporter = create(f"jsonl:{path}")
    for number in range(3):
        export(exporter, numbered(number))
    put(path, numbered(3))
    assert written(path) == [0, 1, 2, 3]


@pytest.mark.parametrize("left", [1, 20, 300, -2, -1])
def test_a_cut_last_line_is_mended(tmp_path: Path, left: int) -> None:
    """What is left of a cut line is removed; a line that lacks only its end is a whole one, and is ended."""
    path = tmp_path / "run.jsonl"
    put(path, numbered(0), numbered(1))
    header, first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(header + first + second[:left])
    put(path, numbered(2))
    assert written(path) == ([0, 1, 2] if left == -1 else [0, 2])
    assert skipped(path) == 0
    path.write_bytes(header[:left])
    put(path, numbered(2))
    assert written(path) == [2]


def test_a_cut_line_of_another_writer(tmp_path: Path) -> None:
    """A line that another writer was killed in is removed before the next one, and no record is glued to it."""
    path = tmp_path / "run.jsonl"
    with exporting(JsonlExporter(path)) as exporter:
        exporter.export(numbered(0))
        with path.open("ab") as other:
            other.write(JsonlExporter(path).lines(numbered(1), b"", True)[:-50])
        exporter.export(numbered(2))
    assert written(path) == [0, 2]
    assert skipped(path) == 0


@pytest.mark.parametrize("make", [JsonlExporter, CsvExporter])
@pytest.mark.parametrize("text", ["notes of mine", "a,b\n1,2", '{"a": 1}\n', "\n"])
def test_another_kind_of_file_is_left_alone(tmp_path: Path, make: type[FileExporter], text: str) -> None:
    """A file that something else wrote is refused by name, and not changed."""
    path = tmp_path / "notes"
    path.write_text(text, encoding="utf-8")
    exporter = make(path)
    with pytest.raises(DocumentError, match="notes exists"):
        exporter.open()
    with pytest.raises(DocumentError, match="notes exists"):
        exporter.export(numbered(0))
    exporter.close()
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("none/run.jsonl", "directory .*/none does not exist"),
        (".", "is a directory"),
        ("run.jsonl.gz", "compress=true"),
        ("run.jsonl?max_bytes=0", "max_bytes is 0: it must be at least 1"),
        ("run.jsonl?max_seconds=-1", "max_seconds is -1.0: it must be above 0"),
        ("run.jsonl?max_seconds=nan", "max_seconds is nan: it must be above 0"),
        ("run.jsonl?keep=-1", "keep is -1: it must be at least 0"),
        ("run.jsonl?fsync_every=-1", "fsync_every is -1: it must be at least 0"),
    ],
)
def test_what_cannot_be_used_is_said_at_once(tmp_path: Path, words: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that does not exist, or an option without sense, is an error when the exporter is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidOptionError, match=message):
        create(f"jsonl:{words}")
    assert not list(tmp_path.iterdir())


def test_the_directory_goes_later(tmp_path: Path) -> None:
    """A directory that is gone when the file is opened is an error that names it, and that passes when it is back."""
    directory = tmp_path / "disk"
    directory.mkdir()
    exporter = JsonlExporter(directory / "run.jsonl")
    directory.rmdir()
    with pytest.raises(FileNotFoundError, match=r"the directory does not exist: .*/disk'"):
        exporter.open()
    exporter.close()
    directory.mkdir()
    with exporting(exporter):
        exporter.export(numbered(0))
    assert written(directory / "run.jsonl") == [0]


def test_links_and_other_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is where it was when the exporter was made, and closed files lie beside it, not beside a link to it."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "real" / "run.jsonl")
    monkeypatch.chdir(tmp_path)
    exporter = JsonlExporter("link.jsonl", max_bytes=1)
    monkeypatch.chdir("/")
    with exporting(exporter):
        exporter.export(numbered(0))
        exporter.export(numbered(1))
    assert written(tmp_path / "link.jsonl") == [0, 1]
    assert [path.name for path in tmp_path.iterdir() if path.is_symlink()] == ["link.jsonl"]
    assert len(list((tmp_path / "real").iterdir())) == 2


def test_a_pipe(tmp_path: Path) -> None:
    """A pipe gets whole lines."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with exporting(JsonlExporter(pipe, max_bytes=1)) as exporter:
            exporter.export(numbered(0))
            exporter.export(numbered(1))
            exporter.flush()
        text = os.read(reader, 1 << 20)
    finally:
        os.close(reader)
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(text)
    assert written(copy) == [0, 1]
    assert pipe.is_fifo()
