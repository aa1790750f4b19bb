"""Where documents go: standard output, a file that is replaced whole or grows by lines, a stream that this process was given.

Everything that is no document goes to standard error.
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
"""Columns where there is no terminal to say how many."""
SHOWN = 60
"""Columns of the command that the summary names."""
LINKS = 40
"""Links that the system follows."""
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Why a file cannot be made now, and may be later."""


class WriteError(AccelMetricsError):
    """Something could not be written; the message names it and gives the system's reason."""

    def __init__(self, what: str, error: OSError | str) -> None:
        super().__init__(f"cannot write {what}: {error if isinstance(error, str) else error.strerror or error}")
        self.errno = None if isinstance(error, str) else error.errno


def folder_for(path: str) -> None:
    """Make a folder where there is none, for files that come later.

    Raises:
        WriteError: It cannot be made, or no file in it.
    """
    from pathlib import Path
    from tempfile import TemporaryFile

    with telling(path, NO_SPACE):
        Path(path).mkdir(mode=0o755, parents=True, exist_ok=True)
        TemporaryFile(dir=path).close()


def check_target(path: str, out: Stdout) -> None:
    """Find out whether a document can be written there later, before work is done for it. Devices and pipes are not opened.

    Raises:
        WriteError: It cannot.
    """
    from pathlib import Path
    from tempfile import TemporaryFile

    from accelmetrics.exporters.files import absolute, followed

    if (number := stream_number(path)) is not None:
        os.close(duplicate_stream(path, number, out))
        return
    if special(path) and not Path(path).is_dir():
        return
    with telling(path, NO_SPACE):
        target = followed(absolute(path))
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        TemporaryFile(dir=target.parent).close()


@contextmanager
def telling(what: str, passing: Collection[int] = ()) -> Iterator[None]:
    """Raise what goes wrong in the block as an error that names what could not be written.

    Args:
        what: The name.
        passing: Numbers of the system's errors that end the block and are no failure.

    Raises:
        BrokenPipeError: The reader of the pipe has gone.
        WriteError: It cannot be written.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno not in passing:
            raise WriteError(what, error) from error


def descriptor_of(stream: TextIO | None) -> int | None:
    """Return a stream's file descriptor; None where it is closed, or was replaced by something that is no file."""
    try:
        return None if stream is None else stream.fileno()
    except (OSError, AttributeError, ValueError):
        return None


def say(text: str) -> None:
    """Print on standard error; where that is closed, do nothing."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)


class Stdout:
    """Standard output, kept for documents while the block runs: what any other code prints goes to standard error.

    Vendor libraries print, from C too, and a line of theirs in the middle would spoil the document.

    Attributes:
        terminal: Whether it is a terminal, or was one when the block began.
    """

    def __init__(self) -> None:
        self._stream: TextIO | None = sys.stdout
        self._descriptor: int | None = None
        self.terminal = False

    def __enter__(self) -> Stdout:
        if self._stream is not None and descriptor_of(self._stream) == 1:
            with suppress(OSError):  # standard error may be closed: then prints have nowhere else to go
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
        """Have standard output as it was while the block runs, so that a command started meanwhile inherits it."""
        self.__exit__(None, None, None)
        try:
            yield
        finally:
            self.__enter__()

    @property
    def descriptor(self) -> int | None:
        """The file descriptor; None where it is closed, or is no file."""
        return descriptor_of(self._stream) if self._descriptor is None else self._descriptor

    @property
    def shows_unicode(self) -> bool:
        """Whether all characters can be written to it."""
        return self._stream is not None and self._stream.encoding.lower().replace("-", "") == "utf8"

    @property
    def width(self) -> int:
        """Columns of the terminal; the variable ``COLUMNS`` overrules it."""
        wished = os.environ.get("COLUMNS", "")
        if wished.isdecimal() and int(wished):
            return int(wished)
        if self._descriptor is not None:
            with suppress(OSError):
                return os.get_terminal_size(self._descriptor).columns or PLAIN_WIDTH
        return PLAIN_WIDTH

    def write(self, text: str) -> None:
        """Write one whole document.

        Raises:
            BrokenPipeError: The reader of the pipe has gone.
            WriteError: It cannot be written.
        """
        if self._stream is None:
            raise WriteError("to standard output", "it is closed")
        with telling("to standard output"):
            if self._descriptor is None:
                self._stream.write(text)
                self._stream.flush()
            elif self.terminal and not self.shows_unicode:
                write_all(self._descriptor, text.translate(ASCII).encode(self._stream.encoding, "replace"))
            else:
                write_all(self._descriptor, text.encode("utf-8", "replace"))

    def show(self, text: str) -> None:
        """Write a text for people, as :meth:`write` does; a terminal that has gone away is no failure."""
        try:
            self.write(text)
        except WriteError as error:
            if not self.terminal or error.errno != errno.EIO:
                raise


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, in one call wherever the system takes it so."""
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)


@contextmanager
def writing_to(path: str, out: Stdout, grows: bool = False) -> Iterator[Callable[[str], None]]:
    """Give the block what writes one whole document, whose last character is a line feed.

    Args:
        path: A file, a device, a pipe, or a name of a stream that this process was given; empty for standard output.
        out: Standard output.
        grows: Whether documents are added to a file, as whole lines, instead of replacing it.

    Raises:
        BrokenPipeError: It is a pipe, and its reader has gone.
        WriteError: It cannot be opened or written, and a file is as it was; or what was written does not reach the disk.
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

        with telling(path):
            file = LineFile(followed(absolute(path)))
            file.open()
        write, close = lambda data: file.write(lambda head: data, 0), file.close
    else:
        write = partial(_replace, path)

    def document(text: str) -> None:
        with telling(path):
            write(text.encode("utf-8", "replace"))

    try:
        yield document
    finally:
        with telling(path):
            close()


def _replace(path: str, data: bytes) -> None:
    """Replace a file at once, so that readers find the old document or the new one; a link is followed, and the mode is kept."""
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
    """Return a table of what there is, or a JSON array: the name, what it is, and what it needs."""
    if as_json:
        return json.dumps([dict(zip(("name", "summary", "needs"), row, strict=True)) for row in rows], indent=2, ensure_ascii=False) + "\n"
    return "\n".join(fitted([head, *rows], width)) + "\n"


def special(path: str) -> bool:
    """Return whether the path is there and no file of its own: a device, a pipe, a stream. Those are never replaced."""
    if stream_number(path) is not None:
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 - pathlib is a part of every start of the program
    except OSError:
        return False


def first_line(path: str) -> str:
    """Return the first line of a file that is there, without its end; empty for anything else."""
    if special(path):
        return ""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.readline().rstrip("\r\n")
    except OSError:
        return ""


# The streams that this process was given, under the names that the system has for them: ``/dev/stdout``, ``/dev/fd/3``. They are
# written to as they are. To open such a name would be something else where the stream is a file: one that is written from its
# beginning again; and while a command runs, descriptor 1 is not what the user gave as such.


def stream_number(path: str) -> int | None:
    """Return the number of the descriptor that a path leads to; None for any other path."""
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
    """Duplicate the descriptor of a stream that this process was given.

    Raises:
        WriteError: It was given none.
    """
    # What Python has opened is not inheritable: only a descriptor that came from outside is.
    closed = {1: out.descriptor is None, 2: sys.stderr is None}.get(number)
    with telling(path):
        if closed if closed is not None else not os.get_inheritable(number):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return os.dup(out.descriptor if number == 1 and out.descriptor is not None else number)
