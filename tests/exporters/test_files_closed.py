"""Files whose descriptors the program closed: they are opened again, and what got their numbers is left alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from accelmetrics.exporters.registry import create
from accelmetrics.schemas.recording import read_records
from tests.exporters.files_tools import numbered
from tests.support.programs import Program

DESCRIPTORS = Path("/proc/self/fd")
needs_proc = pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="platform: descriptors are found in /proc")
EXPORTERS = {"jsonl": "run.jsonl", "csv": "run.csv", "training-files": "files", "textfile": "run.prom", "tensorboard": "events"}


def open_below(folder: Path) -> list[int]:
    """The descriptors of files in a folder."""
    links = [(int(one.name), os.path.realpath(one)) for one in DESCRIPTORS.iterdir()]
    return [number for number, path in links if Path(path).is_relative_to(folder)]


@contextmanager
def taken(numbers: list[int], path: Path, flags: int) -> Iterator[None]:
    """Close descriptors, and have another file get their numbers."""
    other = os.open(path, flags, 0o600)
    for number in numbers:
        os.dup2(other, number)
    yield
    for number in {other, *numbers}:
        os.close(number)  # it fails where one was closed in our place


def lines(folder: Path) -> int:
    """How many lines all files have together."""
    return sum(len(file.read_bytes().splitlines()) for file in folder.rglob("*") if file.is_file())


@needs_proc
@pytest.mark.parametrize("name", EXPORTERS)
def test_a_file_that_was_closed_is_opened_again(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    exporter = create(f"{name}:{folder / EXPORTERS[name]}")
    exporter.open()
    exporter.export(numbered(1))
    before = lines(folder)
    for number in open_below(folder):
        os.close(number)
    exporter.export(numbered(2))
    assert lines(folder) > before or name == "textfile"
    exporter.flush()
    for number in open_below(folder):
        os.close(number)
    exporter.flush()
    exporter.close()
    assert open_below(folder) == []


@needs_proc
@pytest.mark.parametrize("name", EXPORTERS)
def test_a_file_that_got_the_number_is_left_alone(name: str, tmp_path: Path) -> None:
    """It is neither written to nor cut, and stays open, also where the exporter is closed at once."""
    folder, other = tmp_path / "out", tmp_path / "other"
    folder.mkdir()
    other.write_text("mine\n")
    exporter = create(f"{name}:{folder / EXPORTERS[name]}")
    for more in (True, False):
        exporter.open()
        exporter.export(numbered(1))
        before = lines(folder)
        with taken(open_below(folder), other, os.O_RDWR):
            if more:
                exporter.export(numbered(2))
                assert lines(folder) > before or name == "textfile"
            exporter.flush()
            exporter.close()
            assert open_below(folder) == []
    assert other.read_text() == "mine\n"


@needs_proc
def test_the_same_file_opened_for_reading_is_told_apart(tmp_path: Path) -> None:
    """A program that looks at its own recording."""
    path = tmp_path / "run.jsonl"
    exporter = create(f"jsonl:{path}")
    exporter.open()
    exporter.export(numbered(1))
    with taken(open_below(tmp_path), path, os.O_RDONLY):
        exporter.export(numbered(2))
        exporter.close()
    assert len(list(read_records(path))) == 2


def test_a_run_goes_on_where_all_descriptors_were_closed(tmp_path: Path) -> None:
    """As libraries do that make daemons; the files that are opened next get the numbers."""
    text = """
        import os, sys
        from threading import Event
        from accelmetrics import Monitor
        from accelmetrics.testing import FakeBackend

        folder = sys.argv[1]
        backend = FakeBackend(devices=1)
        device = backend.device(0)
        device.set(powerWatts=100.0)
        read, hold, held, go_on = device.read, Event(), Event(), Event()
        def reading(progress):
            if hold.is_set():
                held.set()
                go_on.wait()
            return read(progress)
        device.read = reading
        exporters = [f"jsonl:{folder}/run.jsonl", f"csv:{folder}/run.csv", f"training-files:{folder}/files"]
        with Monitor(0.01, exporters, backends=[backend], timeout=60) as monitor:
            def delivered(count):
                while any(one.sent < count for one in monitor.status.exporters):
                    pass
            delivered(3)
            hold.set()  # nothing is being written while the descriptors are closed
            held.wait()
            delivered(monitor.status.ticks)
            os.closerange(3, 1000)
            others = [os.open(f"{folder}/other", os.O_RDWR | os.O_CREAT) for _ in range(100)]
            hold.clear()
            go_on.set()
            delivered(monitor.status.ticks + 3)
        for other in others:
            os.fstat(other)
        print(os.fstat(others[0]).st_size, [one.error for one in monitor.status.exporters])
    """
    with Program(text, str(tmp_path)) as program:
        assert (program.end(), program.output, program.errors) == (0, "0 ['', '', '']\n", "")
    assert len(list(read_records(tmp_path / "run.jsonl"))) >= 6
