"""Standard output, for documents alone; standard error, for everything else."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TextIO

from accelmetrics.schemas.errors import AccelMetricsError

if TYPE_CHECKING:
    from types import TracebackType

PLAIN_WIDTH = 100
"""Columns where there is no terminal to say how many."""


class WriteError(AccelMetricsError):
    """Something could not be written; the message names it and gives the system's reason."""

    def __init__(self, what: str, error: OSError | str) -> None:
        super().__init__(f"cannot write {what}: {error if isinstance(error, str) else error.strerror or error}")


class Sink(Protocol):
    """Takes documents."""

    def write(self, text: str) -> None:
        """Write one whole document, whose last character is a line feed."""
        ...


def say(text: str) -> None:
    """Tell the user something; nobody to tell is no error."""
    if sys.stderr is not None:
        with suppress(OSError):
            print(text, file=sys.stderr, flush=True)


def one_line(error: Exception) -> str:
    """An error's words, on one line whatever was typed."""
    return " ".join(str(error).split())


class Stdout:
    """Standard output, kept for documents while the block runs: what anybody else prints goes to standard error.

    Vendor libraries print, from C too, and a line of theirs in the middle would spoil the document.
    """

    def __init__(self) -> None:
        self._stream: TextIO | None = sys.stdout
        self._descriptor: int | None = None

    def __enter__(self) -> Stdout:
        if self._stream is not None and _number(self._stream) == 1:
            with suppress(OSError):  # standard error may be closed: then prints have nowhere else to go
                self._stream.flush()
                self._descriptor = os.dup(1)
                os.dup2(2, 1)
        sys.stdout = sys.stderr
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        sys.stdout = self._stream
        if self._descriptor is not None:
            os.dup2(self._descriptor, 1)
            os.close(self._descriptor)
            self._descriptor = None

    @property
    def descriptor(self) -> int | None:
        """Where it lies; None where it is closed, or is no file."""
        if self._descriptor is not None:
            return self._descriptor
        return None if self._stream is None else _number(self._stream)

    @property
    def terminal(self) -> bool:
        """Whether a person reads it."""
        return self._descriptor is not None and os.isatty(self._descriptor)

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
            BrokenPipeError: Whoever read it has gone.
            WriteError: It cannot be written.
        """
        if self._stream is None:
            raise WriteError("to standard output", "it is closed")
        try:
            self._write(self._stream, text)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise WriteError("to standard output", error) from error

    def _write(self, stream: TextIO, text: str) -> None:
        if self._descriptor is None:
            stream.write(text)
            stream.flush()
        else:
            encoding = stream.encoding if self.terminal else "utf-8"
            write_all(self._descriptor, text.encode(encoding, "replace"))


def _number(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, AttributeError, ValueError):  # replaced by something that is no file, or closed
        return None


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything, in one call wherever the system takes it so."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
