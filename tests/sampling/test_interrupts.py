"""Ctrl-C at any place in the first sample and in close loses no source, holds no lock and leaves no thread.

CPython raises KeyboardInterrupt in the main thread after a call, at a function's entry and at a jump backwards. A trace function
raises it once at each of these places, one after the other, in this package and in the standard library's Python code below it.
"""

from __future__ import annotations

import dis
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from accelmetrics import Sampler
from accelmetrics.testing import FakeBackend
from tests.sampling.conftest import workers
from tests.simulators.nvml import NvmlSimulator
from tests.support.programs import Program
from tests.support.waiting import wait_for

DELIVERING = {
    code
    for name, code in dis.opmap.items()
    if name in ("JUMP_BACKWARD", "JUMP_ABSOLUTE", "RESUME") or name.startswith(("CALL", "POP_JUMP_BACKWARD"))
}
"""After these instructions, in the Pythons that have them."""
NEVER_IN = ("importlib", "tests/sampling", "frozen")


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


@pytest.fixture(autouse=True)
def _unvalidated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The validation that tests add to every sample has thousands of places; everything else is imported before the first."""
    monkeypatch.setenv("ACCELMETRICS_VALIDATE", "0")
    with Sampler([scripted()]) as sampler:
        sampler.sample()


def scripted() -> FakeBackend:
    backend = FakeBackend(devices=2)
    for number in range(2):
        backend.device(number).set(temp=40 + number)
    return backend


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


def whole(sampler: Sampler) -> bool:
    return sampler.sample().metrics == {"gpu.0.temp": 40, "gpu.1.temp": 41}


@pytest.mark.skipif(sys.gettrace() is not None, reason="platform: another trace function is in use")
def test_an_interrupt_anywhere_in_the_first_sample_loses_nothing() -> None:
    def attempt(interrupt: InterruptAt) -> None:
        backend = scripted()
        sampler = Sampler([backend], timeout=20.0, open_timeout=20.0)
        interrupt.run(sampler.sample)
        assert whole(sampler), "the next sample has everything"
        assert whole(sampler)
        assert backend.opened == 1
        sampler.close()
        wait_for(lambda: backend.closed == 1 and workers() == 0)

    assert every_place(attempt) > 50


@pytest.mark.slow
@pytest.mark.skipif(sys.gettrace() is not None, reason="platform: another trace function is in use")
def test_an_interrupt_anywhere_in_the_first_sample_of_several_loses_none() -> None:
    """Of sources that are shared with other samplers, and opened side by side."""
    backend = scripted()
    with Sampler([backend], timeout=20.0, open_timeout=20.0) as other:
        other.sample()

        def attempt(interrupt: InterruptAt) -> None:
            sampler = Sampler([backend, "host"], timeout=20.0, open_timeout=20.0)
            interrupt.run(sampler.sample)
            assert [status.status for status in sampler.sample().backends] == ["ok", "ok"]
            sampler.close()
            assert whole(other)

        assert every_place(attempt) > 100
        assert backend.opened == 1


@pytest.mark.skipif(sys.gettrace() is not None, reason="platform: another trace function is in use")
def test_an_interrupt_anywhere_in_a_later_sample_loses_nothing() -> None:
    backend = scripted()
    with Sampler([backend], timeout=20.0, open_timeout=20.0) as sampler:
        sampler.sample()

        def attempt(interrupt: InterruptAt) -> None:
            interrupt.run(sampler.sample)
            assert whole(sampler)

        assert every_place(attempt) > 20
        assert backend.opened == 1


@pytest.mark.skipif(sys.gettrace() is not None, reason="platform: another trace function is in use")
def test_an_interrupt_anywhere_in_close_leaves_nothing_open() -> None:
    def attempt(interrupt: InterruptAt) -> None:
        backend = scripted()
        sampler = Sampler([backend], timeout=20.0, open_timeout=20.0)
        sampler.sample()
        interrupt.run(sampler.close)
        sampler.close()
        wait_for(lambda: backend.closed == backend.opened == 1 and workers() == 0)
        assert whole(sampler), "it opens anew"
        sampler.close()

    assert every_place(attempt) > 20


SIGNALLED = """
    import signal, sys
    import accelmetrics
    moment, isolation = float(sys.argv[1]), sys.argv[2]
    sampler = accelmetrics.Sampler(["nvidia", "host"], isolation=isolation, timeout=20.0)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, moment)
    try:
        sampler.sample()
        signal.pause()
    except KeyboardInterrupt:
        pass
    tell([status.status for status in sampler.sample().backends])
    sampler.close()
"""
"""Interrupted at a moment of its first sample, or after it."""


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_signal_at_any_moment_of_a_program_s_first_sample_loses_no_source(isolation: str) -> None:
    """Among imports and openings that no other sample has made before."""
    with NvmlSimulator(gpus=1) as simulator:
        environment = {**os.environ, **simulator.environment(), "ACCELMETRICS_VALIDATE": "0"}
        for moment in (0.0005, 0.002, 0.01, 0.03, 0.1):
            with Program(SIGNALLED, str(moment), isolation, env=environment) as program:
                assert program.told() == [["ok", "ok"]], f"after {moment} s"
                assert program.end() == 0, program.errors
