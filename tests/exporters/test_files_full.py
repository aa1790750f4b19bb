"""Disks that are full or refuse: nothing is half-written, nothing is lost, and all goes on when there is room."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accelmetrics.exporters.csv import CsvExporter
from accelmetrics.exporters.files import FileExporter, JsonlExporter
from tests.exporters.disks import mounted
from tests.exporters.files_tools import failing, largest_file, numbered, numbers_in, written
from tests.support.exporting import exporting


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    with mounted(tmp_path / "small", "256k") as place:
        yield place


def until_full(exporter: FileExporter, begin: int = 0) -> int:
    """Write until that fails; the number of the record that failed."""
    for number in range(begin, begin + 10_000):
        try:
            exporter.export(numbered(number))
        except OSError as error:
            assert error.errno in (errno.ENOSPC, errno.EFBIG)
            return number
    raise AssertionError("the disk never filled")


@pytest.mark.parametrize("make", [JsonlExporter, CsvExporter])
def test_full_disk(small_disk: Path, make: Callable[[Path], FileExporter]) -> None:
    """On a full disk the file ends in a whole line; the record is taken when it is offered again after there is room."""
    filler = small_disk / "filler"
    filler.write_bytes(bytes(120_000))
    path = small_disk / "run.txt"
    with exporting(make(path)) as exporter:
        failed = until_full(exporter)
        assert failed > 5
        for _ in range(3):
            assert path.read_bytes().endswith(b"\n")
            with pytest.raises(OSError, match="No space left"):
                exporter.export(numbered(failed))
        filler.unlink()
        for number in range(failed, failed + 5):
            exporter.export(numbered(number))
        found = (written if make is JsonlExporter else numbers_in)(path)
        assert found == list(range(failed + 5))


def test_full_disk_and_compression(small_disk: Path) -> None:
    """A closed file that cannot be compressed for want of room stays as it is, costs no record, and is compressed later."""
    path, filler = small_disk / "run.jsonl", small_disk / "filler"
    with exporting(JsonlExporter(path, max_seconds=8.0, compress=True)) as exporter:
        for number in range(8):
            exporter.export(numbered(number))
        disk = os.statvfs(small_disk)
        filler.write_bytes(bytes(disk.f_bavail * disk.f_frsize))
        assert until_full(exporter, 8) == 8
        assert sorted(part.suffix for part in small_disk.iterdir()) == ["", ".jsonl", ".jsonl"]
        filler.unlink()
        for number in (8, 9):
            exporter.export(numbered(number))
        assert written(path) == list(range(10))
    with exporting(JsonlExporter(path, max_seconds=8.0, compress=True)) as exporter:
        exporter.export(numbered(10))
    assert sorted(part.suffix for part in small_disk.iterdir()) == [".gz", ".jsonl"]
    assert written(path) == list(range(11))


@pytest.mark.parametrize("rotating", [False, True])
def test_a_part_of_a_line_fits(tmp_path: Path, rotating: bool) -> None:
    """What was written of a line that does not fit is taken back at once."""
    path = tmp_path / "run.jsonl"
    with exporting(JsonlExporter(path, max_seconds=8.0 if rotating else None)) as exporter:
        for number in range(10):
            exporter.export(numbered(number))
        before = path.stat().st_size
        with largest_file(before + 100), pytest.raises(OSError, match="File too large"):
            exporter.export(numbered(10))
        assert path.stat().st_size == before
        exporter.export(numbered(10))
    assert written(path) == list(range(11))


def test_what_cannot_be_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not even that works, the half line is removed before the next one is written."""
    path = tmp_path / "run.jsonl"
    with exporting(JsonlExporter(path)) as exporter:
        exporter.export(numbered(0))
        before = path.stat().st_size

        with monkeypatch.context() as patch, largest_file(before + 100):
            patch.setattr(os, "ftruncate", failing(errno.EIO))
            with pytest.raises(OSError, match="File too large"):
                exporter.export(numbered(1))
        assert path.stat().st_size == before + 100
        exporter.export(numbered(1))
    assert written(path) == [0, 1]
    assert path.read_bytes().count(b"\n") == 3


def test_fsync_is_called_as_often_as_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third record reaches the disk with those before it, and the rest on flush; 0 asks for none before that."""
    calls: list[int] = []
    monkeypatch.setattr(os, "fsync", calls.append)
    for every, expected in ((3, 2), (1, 8), (0, 0)):
        with exporting(JsonlExporter(tmp_path / f"{every}.jsonl", fsync_every=every)) as exporter:
            calls.clear()
            for number in range(8):
                exporter.export(numbered(number))
            assert len(calls) == expected
            exporter.flush()
            assert len(calls) == expected + (every != 1)


def test_a_disk_that_fails_late_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed fsync is told before the next record is taken, so that offering it again does not write one twice."""
    path = tmp_path / "run.jsonl"
    real = os.fsync

    with exporting(JsonlExporter(path, fsync_every=2)) as exporter:
        exporter.export(numbered(0))
        monkeypatch.setattr(os, "fsync", failing(errno.EIO))
        exporter.export(numbered(1))
        with pytest.raises(OSError, match="Input/output error"):
            exporter.export(numbered(2))
        monkeypatch.setattr(os, "fsync", real)
        exporter.export(numbered(2))
    assert written(path) == [0, 1, 2]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="platform: /dev/full is Linux's")
def test_devices_are_written_to() -> None:
    """A device is neither mended nor renamed, and its refusal is the system's error."""
    with exporting("jsonl:/dev/full?max_bytes=1") as exporter:
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                exporter.export(numbered(0))
        exporter.flush()
    assert Path("/dev/full").is_char_device()
