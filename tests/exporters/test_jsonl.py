"""``jsonl``: what is in a line, which files are added to, and which options are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from accelmetrics.exporters.csv import CsvExporter
from accelmetrics.exporters.files import FileExporter, JsonlExporter
from accelmetrics.exporters.registry import create
from accelmetrics.schemas.errors import DocumentError, InvalidOptionError
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.recording import read_records
from accelmetrics.schemas.snapshot import Snapshot
from tests.exporters.files_tools import exporting, numbered, skipped, written


def put(path: Path, *records: Record) -> None:
    with exporting(JsonlExporter(path)) as exporter:
        for record in records:
            exporter.export(record)


def test_a_line_is_the_records_document(tmp_path: Path) -> None:
    """Each line is JSON by itself: the record's document, which readers of snapshots read too."""
    path = tmp_path / "run.jsonl"
    records = [numbered(0), numbered(1)._replace(steps=(), labels={}, monitor=None)]
    put(path, *records)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [record.to_dict() for record in records]
    assert [Snapshot.from_json(line) for line in lines] == [record.snapshot for record in records]
    assert [record.to_dict() for record in read_records(path)] == [record.to_dict() for record in records]


def test_what_json_cannot_hold(tmp_path: Path) -> None:
    """A lone surrogate, which stands for a byte that is no text, is written as its escape; a value that is not finite is refused."""
    path = tmp_path / "run.jsonl"
    odd = numbered(0)._replace(labels={"path": "/d\udcff"})
    put(path, odd)
    assert [record.labels for record in read_records(path)] == [{"path": "/d\\udcff"}]
    bad = odd._replace(snapshot=odd.snapshot.with_metrics({"cpu": float("nan")}))
    with exporting(JsonlExporter(path)) as exporter, pytest.raises(DocumentError, match="not JSON compliant"):
        exporter.export(bad)
    assert len(path.read_bytes().splitlines()) == 1


def test_a_file_is_added_to(tmp_path: Path) -> None:
    """Opened again, by the same exporter or another, a file goes on."""
    path = tmp_path / "run.jsonl"
    exporter = create(f"jsonl:{path}")
    for number in range(3):
        exporter.open()
        exporter.export(numbered(number))
        exporter.close()
    put(path, numbered(3))
    assert written(path) == [0, 1, 2, 3]


@pytest.mark.parametrize("left", [1, 20, 3000, -2, -1])
def test_a_cut_last_line_is_mended(tmp_path: Path, left: int) -> None:
    """What is left of a cut line is removed; a line that lacks only its end is a whole record, and is ended."""
    path = tmp_path / "run.jsonl"
    put(path, numbered(0), numbered(1))
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second[:left])
    put(path, numbered(2))
    assert written(path) == ([0, 1, 2] if left == -1 else [0, 2])
    assert skipped(path) == 0
    path.write_bytes(second[:left])
    put(path, numbered(2))
    assert written(path) == ([1, 2] if left == -1 else [2])


def test_a_cut_line_of_another_writer(tmp_path: Path) -> None:
    """A line that another writer was killed in is removed before the next one, and no record is glued to it."""
    path = tmp_path / "run.jsonl"
    with exporting(JsonlExporter(path)) as exporter:
        exporter.export(numbered(0))
        with path.open("ab") as other:
            other.write((JsonlExporter(path).lines(numbered(1), b""))[:5000])
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
    with pytest.raises(DocumentError, match="notes is there already"):
        exporter.open()
    with pytest.raises(DocumentError, match="notes is there already"):
        exporter.export(numbered(0))
    exporter.close()
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("none/run.jsonl", "directory .*/none does not exist"),
        (".", "is a directory"),
        ("run.jsonl.gz", "compress=true"),
        ("run.jsonl?max_bytes=0", "max_bytes is 0: it must be more than 0"),
        ("run.jsonl?max_seconds=-1", "max_seconds is -1.0: it must be more than 0"),
        ("run.jsonl?max_seconds=nan", "max_seconds is nan: it must be more than 0"),
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
    assert [json.loads(line) for line in text.splitlines()] == [numbered(0).to_dict(), numbered(1).to_dict()]
    assert pipe.is_fifo()
