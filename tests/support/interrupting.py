"""Ctrl-C at every place of a call, one after the other.

CPython raises KeyboardInterrupt in the main thread after a call, at a function's entry and at a jump backwards. A trace function
raises it once at each of these places, in this package and in the standard library's Python code below it.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

DELIVERING = {
    code
    for name, code in dis.opmap.items()
    if name in ("JUMP_BACKWARD", "JUMP_ABSOLUTE", "RESUME") or name.startswith(("CALL", "POP_JUMP_BACKWARD"))
}
"""After these instructions, in the Pythons that have them."""
NEVER_IN = ("importlib", "/tests/", "frozen")

untraced = pytest.mark.skipif(sys.gettrace() is not None, reason="platform: another trace function is in use")


class InterruptAt:
    """Raises KeyboardInterrupt at one of the places where a signal's handler could run.

    Args:
        place: The number of the place, from 0.

    Attributes:
        where: The place that was reached: a file and a line; empty if the call ended before.
    """

    def __init__(self, place: int) -> None:
        self.where = ""
        self._left = place
        self._last: dict[FrameType, int] = {}

    def run(self, call: Callable[[], object]) -> None:
        """Make a call under the trace; an interrupt ends here."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            call()
        except KeyboardInterrupt:
            assert self.where
        else:
            assert not self.where, "the interrupt was swallowed"
        finally:
            sys.settrace(before)
            self._last.clear()

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if any(part in frame.f_code.co_filename for part in NEVER_IN):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event == "opcode" and not self.where:
            delivered = self._last.get(frame, -1) in DELIVERING
            self._last[frame] = frame.f_code.co_code[frame.f_lasti]
            if delivered:
                if self._left == 0:
                    self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                    raise KeyboardInterrupt
                self._left -= 1
        return self._trace


def every_place(attempt: Callable[[InterruptAt], None]) -> int:
    """Interrupt an attempt once at every place. Returns how many there were."""
    place = 0
    while True:
        interrupt = InterruptAt(place)
        try:
            attempt(interrupt)
        except BaseException as error:
            raise AssertionError(f"after an interrupt at place {place}, {interrupt.where}") from error
        if not interrupt.where:
            return place
        place += 1
