"""Ctrl-C at any place in the first sample and in close loses no source, holds no lock and leaves no thread."""

from __future__ import annotations

import os

import pytest

from accelmetrics import Sampler
from accelmetrics.testing import FakeBackend
from tests.sampling.conftest import workers
from tests.simulators.nvml import NvmlSimulator
from tests.support.interrupting import InterruptAt, every_place, untraced
from tests.support.programs import Program
from tests.support.waiting import wait_for


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


def whole(sampler: Sampler) -> bool:
    return sampler.sample().metrics == {"gpu.0.temp": 40, "gpu.1.temp": 41}


@untraced
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
@untraced
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


@untraced
def test_an_interrupt_anywhere_in_a_later_sample_loses_nothing() -> None:
    backend = scripted()
    with Sampler([backend], timeout=20.0, open_timeout=20.0) as sampler:
        sampler.sample()

        def attempt(interrupt: InterruptAt) -> None:
            interrupt.run(sampler.sample)
            assert whole(sampler)

        assert every_place(attempt) > 20
        assert backend.opened == 1


@untraced
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
