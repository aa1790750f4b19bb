"""Output of documents: to standard output, to a file that is replaced or appended to, or to an inherited stream.

Everything else is printed to standard error.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TextIO

from accelmetrics.schemas.errors import AccelMetricsError
from accelmetrics.schemas.text import ASCII, fitted

PLAIN_WIDTH = 80
"""Columns without a terminal."""
SHOWN = 60
"""Columns of the command in a summary."""
LINKS = 40
"""Number of links that Linux follows in a path (``MAXSYMLINKS``)."""
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors after which a later write may succeed."""


class WriteError(AccelMetricsError):
    """Output could not be written. The message names the target and the system's reason."""

    def __init__(self, what: str, error: OSError | str) -> None:
        super().__init__(f"cannot write {what}: {error if isinstance(error, str) else error.strerror or error}")
        self.errno = None if isinstance(error, str) else error.errno


def folder_for(path: str) -> None:
    """Create a folder, if it is missing, and check that files can be created in it.

    Raises:
        WriteError: The folder, or a file in it, cannot be created.
    """
    from pathlib import Path
    from tempfile import TemporaryFile

    with write_errors(path, NO_SPACE):
        Path(path).mkdir(mode=0o755, parents=True, exist_ok=True)
        TemporaryFile(dir=path).close()


def check_target(path: str, out: Stdout) -> None:
    """Check that a document can be written to a path later. Devices and pipes are not opened.

    Raises:
        WriteError: It cannot be written there.
    """
    from pathlib import Path
    from tempfile import TemporaryFile

    from accelmetrics.exporters.files import absolute, followed

    if (number := stream_number(path)) is not None:
        os.close(duplicate_stream(path, number, out))
        return
    if special(path) and not Path(path).is_dir():
        return
    with write_errors(path, NO_SPACE):
        target = followed(absolute(path))
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        TemporaryFile(dir=target.parent).close()


@contextmanager
def write_errors(what: str, passing: Collection[int] = ()) -> Iterator[None]:
    """Turn system errors in the block into a :class:`WriteError` that names the target.

    Args:
        what: Name of the target.
        passing: Error numbers that end the block without an error.

    Raises:
        BrokenPipeError: The reader of the pipe has closed it.
        WriteError: Any other system error.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno not in passing:
            raise WriteError(what, error) from error


def descriptor_of(stream: TextIO | None) -> int | None:
    """Return a stream's file descriptor; None if it is closed, or was replaced by an object without one."""
    try:
        return None if stream is None else stream.fileno()
    except (OSError, AttributeError, ValueError):
        return None


def say(text: str) -> None:
    """Print to standard error, if it is open."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)


class Stdout:
    """Standard output, reserved for documents within the block. Prints of all other code go to standard error.

    Vendor libraries print, from C too, and one line of theirs would spoil a document.

    Attributes:
        terminal: Whether it was a terminal when the block began.
    """

    def __init__(self) -> None:
        self._stream: TextIO | None = sys.stdout
        self._descriptor: int | None = None
        self.terminal = False

    def __enter__(self) -> Stdout:
        if self._stream is not None and descriptor_of(self._stream) == 1:
            with suppress(OSError):  # with standard error closed, prints cannot be moved anywhere
                self._stream.flush()
                self._descriptor = os.dup(1)
                os.dup2(2, 1)
                self.terminal = os.isatty(self._descriptor)
        sys.stdout = sys.stderr
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        sys.stdout = self._stream
        if self._descriptor is not None:
            os.dup2(self._descriptor, 1)
            os.close(self._descriptor)
            self._descriptor = None

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore standard output within the block, so that a command started there inherits it."""
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    @property
    def descriptor(self) -> int | None:
        """The file descriptor; None if it is closed or has none."""
        return descriptor_of(self._stream) if self._descriptor is None else self._descriptor

    @property
    def shows_unicode(self) -> bool:
        """Whether its encoding has all characters."""
        return self._stream is not None and self._stream.encoding.lower().replace("-", "") == "utf8"

    @property
    def width(self) -> int:
        """Columns of the terminal. The variable ``COLUMNS`` has priority."""
        wished = os.environ.get("COLUMNS", "")
        if wished.isdecimal() and int(wished):
            return int(wished)
        if self._descriptor is not None:
            with suppress(OSError):
                return os.get_terminal_size(self._descriptor).columns or PLAIN_WIDTH
        return PLAIN_WIDTH

    def write(self, text: str) -> None:
        """Write a whole document.

        Raises:
            BrokenPipeError: The reader of the pipe has closed it.
            WriteError: It cannot be written.
        """
        if self._stream is None:
            raise WriteError("to standard output", "it is closed")
        with write_errors("to standard output"):
            if self._descriptor is None:
                self._stream.write(text)
                self._stream.flush()
            elif self.terminal and not self.shows_unicode:
                write_all(self._descriptor, text.translate(ASCII).encode(self._stream.encoding, "replace"))
            else:
                write_all(self._descriptor, text.encode("utf-8", "replace"))

    def show(self, text: str) -> None:
        """Write a text for people. Like :meth:`write`, but a terminal that was closed is no error."""
        try:
            self.write(text)
        except WriteError as error:
            if not self.terminal or error.errno != errno.EIO:
                raise


def write_all(descriptor: int, data: bytes) -> None:
    """Write all data, in one system call if possible."""
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)


@contextmanager
def writing_to(path: str, out: Stdout, grows: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield a function that writes a whole document ending with a line feed.

    Args:
        path: A file, a device, a pipe, or the name of an inherited stream; empty for standard output.
        out: Standard output.
        grows: Append documents as whole lines to a file, instead of replacing it.

    Raises:
        BrokenPipeError: The path is a pipe, and its reader has closed it.
        WriteError: The path cannot be opened or written, and an existing file is unchanged; or written data does not reach the disk.
    """
    if not path:
        yield out.write
        return
    write: Callable[[bytes], object]
    close: Callable[[], None] = lambda: None  # noqa: E731
    if (number := stream_number(path)) is not None:
        descriptor = duplicate_stream(path, number, out)
        write, close = partial(write_all, descriptor), partial(os.close, descriptor)
    elif grows or special(path):
        from accelmetrics.exporters.files import LineFile, absolute, followed

        with write_errors(path):
            file = LineFile(followed(absolute(path)))
            file.open()
        write, close = lambda data: file.write(lambda head: data, 0), file.close
    else:
        write = partial(_replace, path)

    def document(text: str) -> None:
        with write_errors(path):
            write(text.encode("utf-8", "replace"))

    try:
        yield document
    finally:
        with write_errors(path):
            close()


def _replace(path: str, data: bytes) -> None:
    """Replace a file atomically, so that readers find the old or the new document. Links are followed and the mode is kept."""
    from accelmetrics.exporters.files import absolute, followed, mode_of_new, replace_file

    target = followed(absolute(path))
    try:
        mode = stat.S_IMODE(target.stat().st_mode)
    except FileNotFoundError:
        mask = os.umask(0o077)
        os.umask(mask)
        mode = mode_of_new(target.parent) & ~mask
    replace_file(target, data, mode)


def listing(head: Sequence[str], rows: Sequence[Sequence[str]], as_json: bool, width: int) -> str:
    """Return a table, or a JSON array, of names with their summaries and requirements."""
    if as_json:
        return json.dumps([dict(zip(("name", "summary", "needs"), row, strict=True)) for row in rows], indent=2, ensure_ascii=False) + "\n"
    return "\n".join(fitted([head, *rows], width)) + "\n"


def special(path: str) -> bool:
    """Return whether a path is a device, a pipe or an inherited stream, which must not be replaced by a file."""
    if stream_number(path) is not None:
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - pathlib is a part of every start of the program
    except OSError:
        return False


def first_line(path: str) -> str:
    """Return the first line of a regular file without its line end; empty for any other path."""
    if special(path):
        return ""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.readline().rstrip("\r\n")
    except OSError:
        return ""


# Inherited streams have names such as ``/dev/stdout`` and ``/dev/fd/3``. Their descriptor is duplicated, never opened by name: opening
# would write a redirected file from its beginning again, and while a command runs descriptor 1 is not the user's standard output.


def stream_number(path: str) -> int | None:
    """Return the number of the descriptor that a path names; None for any other path."""
    for _ in range(LINKS):
        folder = os.path.realpath(os.path.dirname(path) or os.curdir)  # noqa: PTH120 - pathlib forgets what stands before ".."
        name = os.path.basename(path)  # noqa: PTH119
        if name.isascii() and name.isdecimal() and re.fullmatch(rf"/dev/fd|/proc/(self|{os.getpid()})(/task/\d+)?/fd", folder):
            return int(name)
        try:
            path = os.path.join(folder, os.readlink(os.path.join(folder, name))) if name else ""  # noqa: PTH115, PTH118
        except (OSError, ValueError):  # no link, or no path at all
            return None
    return None


def duplicate_stream(path: str, number: int, out: Stdout) -> int:
    """Duplicate the descriptor of an inherited stream.

    Raises:
        WriteError: No such descriptor was inherited.
    """
    # Descriptors that Python opens are not inheritable, so an inheritable one came from outside.
    closed = {1: out.descriptor is None, 2: sys.stderr is None}.get(number)
    with write_errors(path):
        if closed if closed is not None else not os.get_inheritable(number):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return os.dup(out.descriptor if number == 1 and out.descriptor is not None else number)
