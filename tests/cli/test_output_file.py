"""``--output``: one document replaces a file whole or leaves it; a stream adds complete lines."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from accelmetrics.cli.main import main
from accelmetrics.cli.output import Stdout, WriteError, writing_to
from tests.cli.machines import Rig
from tests.cli.shell import call, document, documents, one_line, run

ONE = ["dump", "--json", "--backends", "rig"]
STREAM = [*ONE, "--interval", "0.01", "--count", "3"]
HOST = ["dump", "--json", "--backends", "host", "--settle", "0"]
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="platform: /dev/full is Linux's")


def at_most(size: int) -> Callable[[], None]:
    """Let a process write no file larger than this, as a disk does that is nearly full."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def test_one_document(rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is the document, nothing else is printed, nothing is left beside it."""
    del rig
    target = tmp_path / "now.json"
    assert main([*ONE, "--output", str(target)]) == 0
    assert document(target.read_text()).metrics["gpu.0.temp"] == 40
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == [target]


def test_a_new_file_has_the_users_mode_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    """Replacing a file does not open it to others, nor close it to them."""
    target = tmp_path / "now.json"
    before = os.umask(0o027)
    try:
        with writing_to(str(target), Stdout()) as write:
            write("1\n")
        assert target.stat().st_mode & 0o777 == 0o640
        target.chmod(0o604)
        with writing_to(str(target), Stdout()) as write:
            write("2\n")
    finally:
        os.umask(before)
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("2\n", 0o604)


def test_a_link_is_followed(tmp_path: Path) -> None:
    """What it points to is replaced, not the link."""
    (tmp_path / "real.json").write_text("old\n")
    link = tmp_path / "link.json"
    link.symlink_to("real.json")
    with writing_to(str(link), Stdout()) as write:
        write("new\n")
    assert link.is_symlink()
    assert (tmp_path / "real.json").read_text() == "new\n"


def test_a_device_is_written_to_and_never_replaced(rig: Rig, tmp_path: Path) -> None:
    """A named pipe stands for /dev/null, which a test must not risk."""
    del rig
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert main([*ONE, "--output", str(pipe)]) == 0
        document(os.read(reader, 1 << 20).decode())
        assert pipe.is_fifo()
    finally:
        os.close(reader)


def test_a_pipe_is_not_read_for_its_columns(rig: Rig, tmp_path: Path) -> None:
    """A table's rows go to a named pipe below a header of their own: to read from it would wait for another writer."""
    del rig
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        done = call("dump", "--backends", "host", "--format", "csv", "--interval", "0.05", "--count", "2", "--output", str(pipe))
        head, *rows = os.read(reader, 1 << 16).decode().splitlines()
    finally:
        os.close(reader)
    assert (done.returncode, head[:19], len(rows)) == (0, "timestamp,hostname,", 2)


def test_a_stream_adds_lines(rig: Rig, tmp_path: Path) -> None:
    """What was there stays; the half line of a writer that was killed is ended first."""
    del rig
    target = tmp_path / "run.jsonl"
    target.write_text('{"half')
    assert main([*STREAM, "--output", str(target)]) == 0
    assert main([*STREAM, "--output", str(target)]) == 0
    half, _, rest = target.read_text().partition("\n")
    assert half == '{"half'
    assert len(documents(rest)) == 6


def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file holds complete lines after the failure too."""
    target = tmp_path / "run.jsonl"
    whole = os.write

    def torn(descriptor: int, data: bytes) -> int:
        if len(data) > 3:
            return whole(descriptor, bytes(data[:3]))
        raise OSError(28, "No space left on device")

    with writing_to(str(target), Stdout(), grows=True) as write:
        write("whole\n")
        monkeypatch.setattr(os, "write", torn)
        with pytest.raises(WriteError, match="No space left on device"):
            write("second\n")
        monkeypatch.undo()
    assert target.read_text() == "whole\n"


@pytest.mark.usefixtures("rig")
@pytest.mark.parametrize(
    ("command", "name", "why"),
    [
        (ONE, "nowhere/x.json", "No such file or directory"),
        (STREAM, "nowhere/x.json", "the directory does not exist"),
        (ONE, "", "Is a directory"),
        (STREAM, "", "Is a directory"),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], name: str, why: str) -> None:
    """The file's name and the system's reason, exit status 1."""
    target = tmp_path / name
    assert main([*command, "--output", str(target)]) == 1
    out, err = capsys.readouterr()
    assert (out, one_line(err)) == ("", f"accelmetrics dump: cannot write {target}: {why}")


@needs_full
@pytest.mark.parametrize("more", [[], ["--interval", "0.05"]], ids=["one", "stream"])
def test_a_full_disk_in_clear_words(more: list[str]) -> None:
    """As a file and as standard output."""
    arguments = [*HOST, *more] if not more else ["dump", "--backends", "host", *more]
    filed = run(*arguments, "--output", "/dev/full")
    assert (filed.returncode, filed.stdout) == (1, "")
    assert one_line(filed.stderr) == "accelmetrics dump: cannot write /dev/full: No space left on device"
    with Path("/dev/full").open("w") as full:
        printed = run(*arguments, stdout=full)
    assert printed.returncode == 1
    assert one_line(printed.stderr) == "accelmetrics dump: cannot write to standard output: No space left on device"


def test_a_disk_that_fills_up_leaves_the_old_document(tmp_path: Path) -> None:
    """Whole or not at all: the old one is still there, and no half one beside it."""
    target = tmp_path / "now.json"
    target.write_text("old\n")
    done = run(*HOST, "--output", str(target), before=at_most(200))
    assert done.returncode == 1
    assert one_line(done.stderr) == f"accelmetrics dump: cannot write {target}: File too large"
    assert target.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [target]


def test_a_disk_that_fills_up_leaves_complete_lines(tmp_path: Path) -> None:
    """A stream ends with its last whole line."""
    target = tmp_path / "run.jsonl"
    done = run("dump", "--backends", "host", "--interval", "0.02", "--output", str(target), before=at_most(20_000))
    assert done.returncode == 1
    assert one_line(done.stderr) == f"accelmetrics dump: cannot write {target}: File too large"
    assert len(documents(target.read_text())) > 1
