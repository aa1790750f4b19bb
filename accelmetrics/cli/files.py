"""Files that documents go to: one that is replaced whole, one that grows by whole lines."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from accelmetrics.cli.output import WriteError, write_all
from accelmetrics.cli.streams import StreamSink, number_of

if TYPE_CHECKING:
    from accelmetrics.cli.output import Stdout


def sink_of(path: str, out: Stdout, grows: bool = False) -> WholeFile | GrowingFile | StreamSink:
    """What writes documents under a path.

    Args:
        path: A file, a device, a pipe, or a name of a stream that this process was given.
        out: Standard output.
        grows: Whether documents are added to a file instead of replacing it.

    Raises:
        WriteError: It cannot be opened.
    """
    if (number := number_of(path)) is not None:
        return StreamSink(path, number, out)
    return GrowingFile(path) if grows or special(path) else WholeFile(path)


def special(path: str) -> bool:
    """Whether the path is there and no file of its own: a device, a pipe, a stream. Those are written to and never replaced."""
    if number_of(path) is not None:
        return True
    try:
        return not stat.S_ISREG(Path(path).stat().st_mode)
    except OSError:
        return False


class WholeFile:
    """A file that holds one document: replaced at once, so that readers find the old one or the new one, and never half."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, text: str) -> None:
        """Put the document there, or leave what was there.

        Raises:
            WriteError: It cannot be written.
        """
        target = Path(os.path.realpath(self._path))  # a link is followed, not replaced
        beside = target.with_name(f".accelmetrics-{os.urandom(4).hex()}.tmp")
        try:
            _write_new(beside, target, text.encode("utf-8", "replace"))
        except OSError as error:
            raise WriteError(self._path, error) from error

    def close(self) -> None:
        """Nothing is held open."""


def _write_new(beside: Path, target: Path, data: bytes) -> None:
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with suppress(OSError):  # there is none yet, or it is somebody else's
            os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
        write_all(descriptor, data)
        os.fsync(descriptor)
        beside.replace(target)
    finally:
        os.close(descriptor)
        beside.unlink(missing_ok=True)


class GrowingFile:
    """A file, device or pipe that documents are appended to: complete lines at every moment.

    A line that does not fit on the disk is taken back, and a half line that somebody else left is ended first.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        except OSError as error:
            raise WriteError(path, error) from error
        self._regular = not special(path)
        if self._regular and _ends_in_half_a_line(path):
            self.write("\n")

    def write(self, text: str) -> None:
        """Append one document.

        Raises:
            BrokenPipeError: It is a pipe, and whoever read it has gone.
            WriteError: It cannot be written.
        """
        before = os.fstat(self._descriptor).st_size
        try:
            write_all(self._descriptor, text.encode("utf-8", "replace"))
        except BrokenPipeError:
            raise
        except OSError as error:
            if self._regular:
                with suppress(OSError):
                    os.ftruncate(self._descriptor, before)
            raise WriteError(self._path, error) from error

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._descriptor)


def _ends_in_half_a_line(path: str) -> bool:
    try:
        with Path(path).open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:  # empty, or not ours to read
        return False


def first_line(path: str) -> str:
    """The first line of a file that is there, without its end; empty for anything else."""
    if special(path):
        return ""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return file.readline().rstrip("\r\n")
    except OSError:
        return ""
