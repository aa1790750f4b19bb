"""Closing files by size and by time, compressing them, keeping the newest; and several writers of one file."""

from __future__ import annotations

import errno
import gzip
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from accelmetrics.exporters.csv import CsvExporter
from accelmetrics.exporters.files import FileExporter, JsonlExporter, compress
from accelmetrics.schemas.lines import closed_files, files_of
from accelmetrics.schemas.recording import recordings
from tests.exporters.files_tools import child_of, end_of, failing, numbered, numbers_in, written
from tests.support.exporting import exporting

HEADER, LINE = (len(line) + 1 for line in JsonlExporter("/dev/null").lines(numbered(0), b"", True).splitlines())


refuse = failing(errno.EBUSY)
"""As a file that is mounted by itself answers when it is renamed."""


def fill(exporter: FileExporter, begin: int, end: int) -> None:
    for number in range(begin, end):
        exporter.export(numbered(number))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_by_size(tmp_path: Path) -> None:
    """No file grows beyond the limit, unless by its only record; closed ones bear the time of their first record."""
    path = tmp_path / "run.jsonl"
    with exporting(f"jsonl:{path}?max_bytes={HEADER + 3 * LINE + 100}") as exporter:
        fill(exporter, 0, 7)
    assert names(tmp_path) == ["run.20260921T141320.000000Z.jsonl", "run.20260921T141323.000000Z.jsonl", "run.jsonl"]
    assert [len(list(recording)) for recording in recordings(path)] == [3, 3, 1]
    assert written(path) == list(range(7))
    tiny = tmp_path / "tiny.jsonl"
    with exporting(JsonlExporter(tiny, max_bytes=1)) as exporter:
        fill(exporter, 0, 3)
    assert written(tiny) == [0, 1, 2]
    assert len(files_of(tiny)) == 3


def test_by_time(tmp_path: Path) -> None:
    """A file holds less than so much time, counted from its first record, also by a writer that is started again and again."""
    path = tmp_path / "run.jsonl"
    for number in range(10):
        with exporting(JsonlExporter(path, max_seconds=4.0)) as exporter:
            exporter.export(numbered(number))
    assert [len(list(recording)) for recording in recordings(path)] == [4, 4, 2]
    assert written(path) == list(range(10))


def test_compressed_and_kept(tmp_path: Path) -> None:
    """Closed files are compressed; the oldest go, and no other file of the directory does."""
    others = ["run-b.20260101T000000.000000Z.jsonl", "run.20260101.jsonl", "run.20260101T000000.000000Z.csv", "other.jsonl"]
    for name in others:
        (tmp_path / name).write_text("mine\n")
    path = tmp_path / "run.jsonl"
    with exporting(f"jsonl:{path}?max_seconds=2&compress=yes&keep=2") as exporter:
        fill(exporter, 0, 9)
    ours = ["run.20260921T141324.000000Z.jsonl.gz", "run.20260921T141326.000000Z.jsonl.gz", "run.jsonl"]
    assert names(tmp_path) == sorted([*others, *ours])
    assert written(path) == [4, 5, 6, 7, 8]
    assert gzip.decompress((tmp_path / ours[0]).read_bytes()).count(b"\n") == 3


def test_none_kept(tmp_path: Path) -> None:
    """Keeping none leaves the growing file alone."""
    path = tmp_path / "run.jsonl"
    with exporting(JsonlExporter(path, max_seconds=2.0, keep=0)) as exporter:
        fill(exporter, 0, 5)
    assert names(tmp_path) == ["run.jsonl"]
    assert written(path) == [4]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """A name that is taken is left to who has it, and the order of closing stays that of the names, whatever the clock does."""
    path = tmp_path / "run.jsonl"
    taken = tmp_path / "run.20260921T141320.000000Z.jsonl"
    taken.write_bytes(JsonlExporter(path).lines(numbered(100), b"", True))
    with exporting(JsonlExporter(path, max_bytes=1, compress=True)) as exporter:
        for number in (0, 0, 7, 3, 5):
            exporter.export(numbered(number))
    assert written(path) == [100, 0, 0, 7, 3, 5]
    assert [closed.stem.partition("Z")[2] for closed in closed_files(path)] == ["", "-1", "-2", "", "-1"]


def test_a_compression_that_was_cut_off(tmp_path: Path) -> None:
    """What a killed compression left is overwritten, and a file that is there in both forms is read once, then removed once."""
    path = tmp_path / "run.jsonl"
    with exporting(JsonlExporter(path, max_seconds=2.0)) as exporter:
        fill(exporter, 0, 5)
    first, second = closed_files(path)
    (tmp_path / f".{first.name}.gz.tmp").write_bytes(gzip.compress(bytes(100_000))[:50])
    kept = second.read_bytes()
    compress(second)
    second.write_bytes(kept)
    assert written(path) == [0, 1, 2, 3, 4]
    with exporting(JsonlExporter(path, compress=True)) as exporter:
        fill(exporter, 5, 7)
    assert written(path) == list(range(7))
    assert names(tmp_path) == [f"{first.name}.gz", f"{second.name}.gz", "run.jsonl"]


def test_modes_are_kept(tmp_path: Path) -> None:
    """Compressing a file changes nothing about the users that may read it."""
    path = tmp_path / "run.jsonl"
    with exporting(JsonlExporter(path, max_bytes=1, compress=True)) as exporter:
        for number, mode in enumerate((0o600, 0o664)):
            exporter.export(numbered(number))
            path.chmod(mode)
        exporter.export(numbered(2))
    assert [part.stat().st_mode & 0o777 for part in files_of(path)[:2]] == [0o600, 0o664]


def test_moved_away(tmp_path: Path) -> None:
    """A file that is moved or deleted is begun anew: nothing goes to a file that no longer bears the name."""
    path = tmp_path / "run.jsonl"
    with exporting(JsonlExporter(path)) as exporter:
        fill(exporter, 0, 2)
        path.rename(tmp_path / "elsewhere")
        fill(exporter, 2, 4)
        assert written(path) == [2, 3]
        assert written(tmp_path / "elsewhere") == [0, 1]
        path.unlink()
        fill(exporter, 4, 5)
    assert written(path) == [4]


@pytest.mark.parametrize("more", [0, 1, 20])
def test_cut_short_beside_another_writer(tmp_path: Path, more: int) -> None:
    """As ``copytruncate`` does it: each writer begins with a header again, also one that finds the file as long as it was, or longer."""
    path = tmp_path / "run.jsonl"
    with exporting(JsonlExporter(path)) as first, exporting(JsonlExporter(path)) as second:
        fill(first, 0, 3)
        fill(second, 3, 6)
        path.write_bytes(b"")
        fill(first, 6, 6 + more)
        fill(second, 50, 52)
        fill(first, 60, 62)
    assert written(path) == [*range(6, 6 + more), 50, 51, 60, 61]


@pytest.mark.parametrize(("make", "read", "limit"), [(JsonlExporter, written, 20), (CsvExporter, numbers_in, 3)])
def test_several_writers(tmp_path: Path, make: type[FileExporter], read: Callable[[Path], list[int]], limit: int) -> None:
    """What several processes write to one file, closing and compressing it beside each other, is all there, whole and in order."""
    path = tmp_path / "run.txt"
    each, writers = 150, 3

    def work(begin: int) -> Callable[[], None]:
        def write() -> None:
            with exporting(make(path, max_bytes=limit * LINE, compress=make is JsonlExporter, fsync_every=0)) as exporter:
                fill(exporter, begin, begin + each)

        return write

    children = [child_of(work(number * each)) for number in range(writers)]
    assert list(map(end_of, children)) == [0] * writers
    found = read(path)
    assert sorted(found) == list(range(each * writers))
    for begin in range(0, each * writers, each):
        assert [number for number in found if begin <= number < begin + each] == list(range(begin, begin + each))
    assert len(files_of(path)) > 2


def test_a_file_that_cannot_be_renamed_grows_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Records go on beyond its limits, which is said once, and nothing is left of the tries; once it can be, it is closed."""
    path = tmp_path / "run.jsonl"
    monkeypatch.setattr("accelmetrics.exporters.files.RENAMING_SECONDS", 0.0)
    with exporting(JsonlExporter(path, max_seconds=2.0)) as exporter, caplog.at_level(logging.WARNING):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", refuse)
            fill(exporter, 0, 5)
        assert names(tmp_path) == ["run.jsonl"]
        assert [one.getMessage() for one in caplog.records] == [
            f"{path} grows beyond its limits: it cannot be renamed: Device or resource busy"
        ]
        fill(exporter, 5, 6)
        assert len(names(tmp_path)) == 2
    assert written(path) == list(range(6))


def test_a_file_that_cannot_be_renamed_is_left_alone_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every record tries again."""
    tries: list[Path] = []

    def counted(path: Path, target: Path) -> None:
        tries.append(path)
        refuse()

    with exporting(JsonlExporter(tmp_path / "run.jsonl", max_bytes=1)) as exporter, monkeypatch.context() as patch:
        patch.setattr(Path, "replace", counted)
        fill(exporter, 0, 5)
    assert len(tries) == 1
