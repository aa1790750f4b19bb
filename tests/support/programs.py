"""Python programs in processes of their own that report how far they have come.

with Program('''
    import accelmetrics
    monitor = accelmetrics.Monitor(0.1)
    monitor.start()
    tell("started", monitor.status.ticks)
    wait_to_go_on()
    monitor.stop()
''') as program:
    assert program.told() == ["started", 0]
    os.kill(program.pid, signal.SIGTERM)
    program.go_on()
    assert program.end() == 0, program.errors
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from tests.support.waiting import HANG

_PREFACE = """\
import json as _json, os as _os
def tell(*facts):
    _os.write({told}, (_json.dumps(facts) + "\\n").encode())
def wait_to_go_on():
    _os.read({go_on}, 1)
"""


class Program:
    """A running program, ended with the block.

    In it, ``tell(*facts)`` reports facts (anything JSON holds) and ``wait_to_go_on()`` waits for the test; both are plain reads and
    writes of pipes and work in signal handlers and forked children too.

    Args:
        text: The program, indented or not.
        arguments: Its command line.
        env: Its whole environment; this process's when None.
        options: The interpreter's options, such as ``-X dev``.
        popen: More arguments of ``subprocess.Popen``.
    """

    def __init__(
        self, text: str, *arguments: str, env: Mapping[str, str] | None = None, options: tuple[str, ...] = (), **popen: Any
    ) -> None:
        self._told, told = os.pipe()
        go_on, self._go_on = os.pipe()
        self._output, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed with the block
        self._heard = b""
        source = _PREFACE.format(told=told, go_on=go_on) + textwrap.dedent(text)
        self.process = subprocess.Popen(
            [sys.executable, *options, "-c", source, *arguments],
            stdin=popen.pop("stdin", subprocess.DEVNULL),
            stdout=popen.pop("stdout", self._output),
            stderr=popen.pop("stderr", self._errors),
            env=env,
            pass_fds=(told, go_on, *popen.pop("pass_fds", ())),
            **popen,
        )
        os.close(told)
        os.close(go_on)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._told)
        os.close(self._go_on)
        self._output.close()
        self._errors.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    @property
    def output(self) -> str:
        """What it wrote to standard output so far."""
        return _content(self._output)

    @property
    def errors(self) -> str:
        """What it wrote to standard error so far."""
        return _content(self._errors)

    def told(self, limit: float = HANG) -> list[Any]:
        """Return the facts that it tells next, waiting for them.

        Raises:
            AssertionError: It ended, or told nothing within the limit.
        """
        end = time.monotonic() + limit
        while b"\n" not in self._heard:
            ready = select.select([self._told], [], [], max(0.0, end - time.monotonic()))[0]
            assert ready, f"it told nothing in {limit:g} s: {self.errors}"
            data = os.read(self._told, 1 << 16)
            assert data, f"it ended with {self.process.wait(limit)}: {self.errors}"
            self._heard += data
        line, self._heard = self._heard.split(b"\n", 1)
        facts: list[Any] = json.loads(line)
        return facts

    def has_told(self) -> bool:
        """Return whether it has told a fact that was not asked for yet."""
        return bool(self._heard or select.select([self._told], [], [], 0.0)[0])

    def go_on(self) -> None:
        """Let one ``wait_to_go_on()`` return, the present or the next."""
        os.write(self._go_on, b"!")

    def end(self, limit: float = HANG) -> int:
        """Wait for its end and return its exit status, negative for a signal."""
        return self.process.wait(limit)


def _content(file: Any) -> str:
    """Read a file from its begin by a position of our own: the program's descriptor shares the file's."""
    data: bytes = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)
    return data.decode(errors="replace")
