"""Writers that are killed in the middle: what they had written is there, once, in whole lines."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accelmetrics.exporters.csv import CsvExporter
from accelmetrics.exporters.files import FileExporter, JsonlExporter
from accelmetrics.schemas.record import Record
from tests.exporters.files_tools import child_of, die, end_of, numbered, numbers_in, written
from tests.support.exporting import exporting

Make = Callable[[Path], FileExporter]
PLENTY = 10_000


def endlessly(make: Make, path: Path, begin: int, told: int) -> Callable[[], None]:
    """Write records, and say of each through a pipe that it is written."""

    def work() -> None:
        with exporting(make(path)) as exporter:
            for number in range(begin, PLENTY):
                exporter.export(numbered(number, gpus=4))
                os.write(told, b".")

    return work


def killed_after(records: int, turns: int, work: Callable[[int], Callable[[], None]]) -> int:
    """Kill a writer so many turns of an empty loop after so many records; how many it had said to be written."""
    reader, writer = os.pipe()
    child = child_of(work(writer))
    os.close(writer)
    said = 0
    while chunk := os.read(reader, 4096):
        said += len(chunk)
        if said >= records:
            for _ in range(turns):
                pass
            os.kill(child, signal.SIGKILL)
            records = PLENTY
    os.close(reader)
    assert end_of(child) == -signal.SIGKILL
    return said


@pytest.mark.parametrize("rotating", [False, True])
def test_kill_in_mid_write(tmp_path: Path, rotating: bool) -> None:
    """Killed again and again, a writer loses no record that it had written, doubles none, and cuts at most the last."""
    path = tmp_path / "run.jsonl"
    limit = 30_000 if rotating else None
    chance = random.Random(4)
    said = 0
    for _ in range(8):
        begin = len(written(path))
        said = begin + killed_after(
            chance.randrange(1, 25),
            chance.randrange(60_000),
            lambda told, begin=begin: endlessly(  # type: ignore[misc]
                lambda target: JsonlExporter(target, max_bytes=limit, compress=True, fsync_every=0), path, begin, told
            ),
        )
        found = written(path)
        assert found == list(range(len(found)))
        assert said <= len(found) <= said + 1
    assert said > 20
    assert rotating == (len(list(tmp_path.glob("*.gz"))) > 1)


def short(number: int) -> Record:
    """A record with little in it."""
    return numbered(number, gpus=0)


def jsonl(path: Path) -> FileExporter:
    header, line = JsonlExporter("/dev/null").lines(short(0), b"", True).splitlines()
    return JsonlExporter(path, max_bytes=len(header) + 2 * len(line) + 100, compress=True, fsync_every=1)


def table(path: Path) -> FileExporter:
    head_and_row = CsvExporter("/dev/null").lines(short(0), b"", True)
    assert head_and_row is not None
    return CsvExporter(path, max_bytes=len(head_and_row) * 3 // 2, fsync_every=1)


def dying_at(call: int, make: Make, path: Path) -> Callable[[], None]:
    """Write a few records, and die before the so-manieth call to the system."""

    def work() -> None:
        left = [call]

        def count() -> None:
            left[0] -= 1
            if left[0] < 0:
                die()

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            del arguments
            if event in ("open", "os.rename", "os.remove", "os.truncate", "fcntl.flock"):
                count()

        exporter = make(path)
        sys.addaudithook(hook)
        for name in ("write", "fsync", "close"):
            setattr(os, name, counted(getattr(os, name), count))
        with exporting(exporter):
            for number in range(5):
                exporter.export(short(number))

    return work


def counted(function: Callable[..., Any], count: Callable[[], None]) -> Callable[..., Any]:
    def called(*arguments: Any) -> Any:
        count()
        return function(*arguments)

    return called


@pytest.mark.parametrize(("make", "read"), [(jsonl, written), (table, numbers_in)])
def test_kill_before_any_step(tmp_path: Path, make: Make, read: Callable[[Path], list[int]]) -> None:
    """Whichever call to the system a writer is killed at, what was written is there once, also after another goes on."""
    ends = []
    for call in range(1000):
        path = tmp_path / f"{call}" / "run.txt"
        path.parent.mkdir()
        ends.append(end_of(child_of(dying_at(call, make, path))))
        found = read(path)
        assert found == list(range(len(found))), call
        with exporting(make(path)) as exporter:
            for number in range(len(found), 7):
                exporter.export(short(number))
            assert read(path) == list(range(7)), call
        if ends[-1] == 0:
            break
    assert set(ends[:-1]) == {-signal.SIGKILL}
    assert len(ends) >= 40
    assert len(list(path.parent.iterdir())) >= 3
    assert not list(tmp_path.glob("*/.*"))
