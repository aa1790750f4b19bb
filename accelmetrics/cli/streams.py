"""The streams that this process was given, under the names that the system has for them: ``/dev/stdout``, ``/dev/fd/3``.

They are written to as they are. To open such a name would be something else where the stream is a file: one that is written
from its beginning again; and while a command runs, descriptor 1 is not what the user gave as such.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from accelmetrics.cli.output import WriteError, write_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from accelmetrics.cli.output import Stdout
    from accelmetrics.exporters.files import FileExporter
    from accelmetrics.schemas.record import Exporter, Record

LINKS = 40
"""As many as the system follows."""
PASSING = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Why a file cannot be made now, and may be later."""


def number_of(path: str) -> int | None:
    """The number of the descriptor that a path leads to; None for any other path."""
    for _ in range(LINKS):
        folder = os.path.realpath(os.path.dirname(path) or os.curdir)  # noqa: PTH120 - pathlib forgets what stands before ".."
        name = os.path.basename(path)  # noqa: PTH119
        if name.isascii() and name.isdecimal() and _of_descriptors(folder):
            return int(name)
        try:
            path = str(Path(folder, Path(folder, name).readlink())) if name else ""
        except (OSError, ValueError):  # no link, or no path at all
            return None
    return None


def _of_descriptors(folder: str) -> bool:
    return folder == "/dev/fd" or re.fullmatch(rf"/proc/(self|{os.getpid()})(/task/\d+)?/fd", folder) is not None


def given(number: int, out: Stdout) -> int:
    """A descriptor of our own for the stream that this process was given under a number.

    Raises:
        OSError: It was given none.
    """
    # What Python has opened is not inheritable: only a descriptor that came from outside is.
    closed = {1: out.descriptor is None, 2: sys.stderr is None}.get(number)
    if closed if closed is not None else not os.get_inheritable(number):
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    return os.dup(out.descriptor if number == 1 and out.descriptor is not None else number)


class StreamSink:
    """Writes documents to a stream that this process was given.

    Args:
        path: Its name.
        number: Its number.
        out: Standard output.

    Raises:
        WriteError: It is closed.
    """

    def __init__(self, path: str, number: int, out: Stdout) -> None:
        self._path = path
        self._descriptor = _given(path, number, out)

    def write(self, text: str) -> None:
        """Write one document.

        Raises:
            BrokenPipeError: It is a pipe, and whoever read it has gone.
            WriteError: It cannot be written.
        """
        try:
            write_all(self._descriptor, text.encode("utf-8", "replace"))
        except BrokenPipeError:
            raise
        except OSError as error:
            raise WriteError(self._path, error) from error

    def close(self) -> None:
        """Give our descriptor back; the stream stays open."""
        os.close(self._descriptor)


class StreamExporter:
    """What an exporter to a file would write, written to a stream that this process was given.

    Args:
        lines: The exporter, which makes the lines.
        descriptor: Of the stream.
    """

    def __init__(self, lines: FileExporter, descriptor: int) -> None:
        self.name = lines.name
        self._lines = lines
        self._descriptor = descriptor
        self._head = b""
        self._record: Record | None = None
        self._rest = memoryview(b"")

    def open(self) -> None:
        """It is open."""

    def export(self, record: Record) -> None:
        """Write a record; one that is offered again goes on where it was cut.

        Raises:
            OSError: It cannot be written.
        """
        if record is not self._record:
            self._rest = memoryview(self._text(record))
            self._record = record
        while self._rest:
            self._rest = self._rest[os.write(self._descriptor, self._rest) :]

    def flush(self) -> None:
        """Everything is written at once."""

    def close(self) -> None:
        """The stream stays open: it was not opened here."""

    def _text(self, record: Record) -> bytes:
        text = self._lines.lines(record, self._head)
        if text is None:  # it needs another header
            self._head = b""
            text = self._lines.lines(record, b"") or b""
        self._head = self._head or text[: text.find(b"\n") + 1]
        return text


class UntilUnread:
    """An exporter to standard output, which is done when whoever read that has gone.

    Args:
        exporter: The exporter.
        gone: Called then.
    """

    def __init__(self, exporter: Exporter, gone: Callable[[], None]) -> None:
        self.name = exporter.name
        self._exporter = exporter
        self._gone = gone
        self._unread = False

    def open(self) -> None:
        """Open it."""
        self._exporter.open()

    def export(self, record: Record) -> None:
        """Hand a record on, while it is read."""
        if self._unread:
            return
        try:
            self._exporter.export(record)
        except BrokenPipeError:
            self._unread = True
            self._gone()

    def flush(self) -> None:
        """Flush it."""
        self._exporter.flush()

    def close(self) -> None:
        """Close it."""
        self._exporter.close()


def exporter(wanted: str, out: Stdout, gone: Callable[[], None] = lambda: None) -> Exporter:
    """An exporter from its string form, as the user of a command means it.

    Args:
        wanted: The string.
        out: Standard output, which may be its target.
        gone: Called when whoever read standard output has gone.

    Raises:
        UnknownNameError: There is none of that name.
        InvalidOptionError: It cannot be made so.
        MissingDependencyError: It needs a package that is not installed.
        WriteError: It writes to a file or a stream that cannot be written.
    """
    from accelmetrics.exporters.console import ConsoleExporter
    from accelmetrics.exporters.files import FileExporter
    from accelmetrics.exporters.registry import create

    head, mark, options = wanted.partition("?")
    name, _, target = head.partition(":")
    if target and (number := number_of(target)) is not None:
        made = create(f"{name}:{os.devnull}{mark}{options}")
        if isinstance(made, FileExporter):
            stream = StreamExporter(made, _given(target, number, out))
            return UntilUnread(stream, gone) if number == 1 else stream
    made = create(wanted)
    if isinstance(made, ConsoleExporter) and not made.stderr and out.descriptor is not None:
        made.stream = open(os.dup(out.descriptor), "w", encoding="utf-8", errors="replace")  # noqa: PTH123, SIM115 - kept until the end
        return UntilUnread(made, gone)
    if isinstance(made, FileExporter):
        _try(made)
    return made


def _given(path: str, number: int, out: Stdout) -> int:
    try:
        return given(number, out)
    except OSError as error:
        raise WriteError(path, error) from error


def _try(made: FileExporter) -> None:
    """Refuse a file that cannot be opened, before anything begins; not a pipe, which waits for its reader.

    Raises:
        WriteError: It cannot be opened.
    """
    if made.path.exists() and not made.path.is_file():
        return
    try:
        made.open()
    except OSError as error:
        if error.errno not in PASSING:
            raise WriteError(str(made.path), error) from error
    finally:
        with suppress(OSError):
            made.close()
