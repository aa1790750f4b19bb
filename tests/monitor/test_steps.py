"""What the program logs: taken from anything, derived numbers against numbers reckoned by hand, in bounded memory."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from types import FrameType
from typing import Any

import numpy
import pytest

from accelmetrics.monitor import steps as steps_module
from accelmetrics.monitor.steps import KEPT_STEPS, PENDING, StepLog
from accelmetrics.schemas.record import Step, rates
from accelmetrics.schemas.statistics import Meter
from tests.monitor.watching import row
from tests.support.waiting import wait_for


class Tensor:
    """Like a framework's: one number, or several, which is an error of its own kind."""

    def __init__(self, *numbers: float, error: BaseException | None = None) -> None:
        self.numbers = numbers
        self.error = error

    def __float__(self) -> float:
        if self.error is not None:
            raise self.error
        if len(self.numbers) != 1:
            raise RuntimeError(f"a Tensor with {len(self.numbers)} elements cannot be converted to Scalar")
        return self.numbers[0]

    def __repr__(self) -> str:
        raise RuntimeError("not even this")


def meter(until: float, watts: float = 300.0, devices: int = 1) -> Meter:
    """Devices that draw so much together, read every second."""
    made = Meter()
    for at in range(int(until) + 1):
        made.add([row({f"gpu.{number}.powerWatts": watts / devices for number in range(devices)}, float(at), at > 0)])
    return made


def test_numbers_of_every_kind_are_taken() -> None:
    """Python's, NumPy's, a tensor's of one number; whole numbers stay whole; None is left out without a word."""
    steps = StepLog()
    steps.add(1.0, 10, 7, {"a": 1, "b": 0.5, "c": numpy.float32(0.25), "d": Tensor(2.0), "e": Decimal("0.5"), "f": None, "g": 10**30})
    found = steps.take(meter(2.0))
    assert found == ((10, 7, {"a": 1, "b": 0.5, "c": 0.25, "d": 2.0, "e": 0.5, "g": 10**30}, None, ""),)
    assert type(found[0].values["a"]) is int


class Signalled:
    """A value whose number takes so long that a signal comes meanwhile."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __float__(self) -> float:
        signal.raise_signal(self.number)
        return 1.0


class Handlers:
    """Of a program, in the ways in which programs write them."""

    def method(self, number: int, _: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        sys.exit(3)

    def __call__(self, *_: object) -> None:
        self._leave()

    def _leave(self) -> None:
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("handler", "error"),
    [
        (lambda *_: sys.exit(3), SystemExit),
        (Handlers().method, SystemExit),
        (Handlers(), SystemExit),
        (partial(Handlers.method, Handlers()), SystemExit),
        (signal.default_int_handler, KeyboardInterrupt),
    ],
    ids=["function", "method", "object", "partial", "of Python"],
)
def test_a_signal_that_comes_while_a_value_is_converted_ends_the_program(handler: Any, error: type[BaseException]) -> None:
    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(error):
            StepLog().add(1.0, 10, 1, {"loss": Signalled(signal.SIGTERM)})
    finally:
        signal.signal(signal.SIGTERM, before)


class Leaving:
    """A value of a class that ends the program, by a call and not by ``raise``."""

    def __float__(self) -> float:
        sys.exit(3)


def odd(names: str, error: BaseException) -> Callable[[], object]:
    """Return what makes a value whose attributes of these names raise."""

    def raising(*_: object) -> Any:
        raise error

    found = {name: property(raising) if name in ("shape", "dtype", "__class__") else raising for name in names.split()}
    return type("Odd", (), {"__float__": lambda _: 1.0, "__index__": lambda _: 1, **found})


def deep(value: object) -> Any:
    return deep(value)


class Nameless(type):
    """The type of a class whose name raises."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]  # that is what is tried
        raise ValueError("no name")


class UnspeakableError(BaseException):
    """An error that cannot be put into words, nor looked at."""

    def __str__(self) -> str:
        raise self

    def __getattribute__(self, name: str) -> Any:
        raise self


ODD = {
    f"{names} {type(error).__name__}": odd(names, error)
    for names in (
        "__getattr__ __float__ __index__",
        "__getattribute__ __float__ __index__",
        "__float__ __index__ __str__ __repr__ __iter__ __eq__ __hash__ __bool__ __len__",
        "shape dtype __index__",
        "__class__ __getattribute__ __index__",
    )
    for error in (ValueError("odd"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), RecursionError(), MemoryError())
}
NO_NUMBERS: dict[str, Callable[[], object]] = {
    **ODD,
    "int": lambda: 10**400,
    "text": lambda: "0.5 W",
    "list": lambda: [1.0],
    "long list": lambda: [[0] * 1_000_000],
    "tensor": lambda: Tensor(1.0, 2.0),
    "error": lambda: Tensor(error=KeyError("x")),
    "long error": lambda: Tensor(error=ValueError("x" * 1_000_000)),
    "unspeakable error": lambda: Tensor(error=UnspeakableError()),
    "exit": Leaving,
    "deep": type("Deep", (), {"__float__": deep}),
    "nameless": Nameless("Odd", (), {}),
}


@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_what_is_no_number_is_left_out_and_told_once(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is raised into the program, whatever the value does; the other numbers of the step are kept."""
    steps = StepLog()
    with caplog.at_level(logging.WARNING, logger="accelmetrics"):
        for number in range(3):
            steps.add(1.0, 10, number, {"loss": NO_NUMBERS[kind](), "epoch": 1})
    assert [step.values for step in steps.take(meter(2.0))] == [{"epoch": 1}] * 3
    (told,) = caplog.messages
    assert told.startswith("monitor.log: loss is a ")
    assert "ignored, here and from now on" in told
    assert len(told) < 1200


class OddNumber(int):
    """A whole number that cannot be compared."""

    def __ge__(self, _: object) -> bool:
        raise ValueError("odd")

    __lt__ = __le__ = __gt__ = __eq__ = __ge__
    __hash__ = int.__hash__


@pytest.mark.parametrize("make", [*ODD.values(), lambda: OddNumber(7), lambda: "7", lambda: 10**400])
def test_a_step_of_any_kind_raises_nothing(make: Callable[[], object], caplog: pytest.LogCaptureFixture) -> None:
    steps = StepLog()
    for _ in range(2):
        steps.add(1.0, 10, make(), {"loss": 0.5})
    assert [found.values for found in steps.take(meter(2.0))] == [{"loss": 0.5}] * 2
    assert len(caplog.messages) <= 1


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), Tensor(float("inf"))], ids=["nan", "infinity", "tensor"])
def test_what_is_not_finite_is_kept_told_once_and_counted(value: float, caplog: pytest.LogCaptureFixture) -> None:
    """A loss that has gone is what a training is watched for: each step from there on has the count."""
    steps = StepLog()
    with caplog.at_level(logging.WARNING, logger="accelmetrics"):
        for number, loss in enumerate((0.5, value, value, 0.25)):
            steps.add(1.0, 10, number, {"loss": loss})
    found = [step.values for step in steps.take(meter(2.0))]
    assert [repr(values["loss"]) for values in found] == ["0.5", repr(float(value)), repr(float(value)), "0.25"]
    assert [values.get("nonFinite") for values in found] == [None, 1, 2, 2]
    (told,) = [message.getMessage() for message in caplog.records]
    assert told == f"monitor.log: loss is {float(value)}: it is kept, and such numbers are counted as nonFinite"


def test_work_that_is_not_finite_spoils_no_rate() -> None:
    """Of the process that logged it, and of the others beside it."""
    steps = StepLog((0, "node"))
    for at in (0.5, 1.5):
        steps.add(at, 0, None, {"tokens": float("nan")})
        steps.add(at, 0, None, {"tokens": 300}, source=(1, "node"))
    found = steps.take(meter(2.0))
    assert "tokens_per_second" not in found[2].values
    assert found[3].values["tokens_per_joule"] == pytest.approx(1.0)
    assert rates(steps.work)["tokens"]["per_second"] == pytest.approx(300.0)


def test_ranks_work_side_by_side() -> None:
    """Two ranks of 100 tokens per 0.1 s do 2,000 a second together; each step has its own rank's rate, and what all do per joule."""
    steps = StepLog((0, "node"))
    for number in range(10):
        steps.add(0.1 * number, 0, number, {"tokens": 100})
        steps.add(0.1 * number + 0.03, 0, number, {"tokens": 100}, source=(1, "node"))
    found = steps.take(meter(2.0))
    assert [step.rank for step in found] == [0, 1] * 10
    assert {round(step.values["tokens_per_second"]) for step in found[2:]} == {1000}
    assert found[-1].values["tokens_per_joule"] == pytest.approx(2000.0 / 300.0)
    (rate,) = rates(steps.work).values()
    assert rate["per_second"] == pytest.approx(2000.0)
    assert rate["per_joule"] == pytest.approx(2000.0 / 300.0, rel=0.1)


def test_a_rank_that_has_ended_is_counted_no_more() -> None:
    """Its share of the energy is the others' from a few readings on; until then its steps may still be on their way."""
    steps, known = StepLog((0, "node")), Meter()
    found: list[Step] = []
    for second in range(40):
        for number in range(10):
            steps.add(second + 0.1 * number, 0, 10 * second + number, {"tokens": 100})
            if second < 2:
                steps.add(second + 0.1 * number, 0, 10 * second + number, {"tokens": 100}, source=(1, "node"))
        known.add([row({"gpu.0.powerWatts": 300.0}, second + 1.0, second > 0)])
        found += [step for step in steps.take(known) if step.rank == 0]
    per_joule = [step.values["tokens_per_joule"] for step in found if "tokens_per_joule" in step.values]
    assert per_joule[5] == pytest.approx(2000.0 / 300.0)
    assert per_joule[-1] == pytest.approx(1000.0 / 300.0)


def test_others_are_told_of_steps_as_they_are_logged() -> None:
    """Not of those of others, nor does a process count its own twice."""
    told: list[tuple[Any, ...]] = []
    steps, other = StepLog((0, "node"), lambda *step: told.append(step)), StepLog((1, "node"))
    steps.add(0.5, 500_000_000, 7, {"loss": float("nan"), "epoch": 1})
    ((at, time_ns, step, values),) = told
    for log in (steps, other):
        log.add(at, time_ns, step, values, (0, "node"))
    assert len(told) == 1
    (own,), (found,) = steps.take(meter(2.0)), other.take(meter(2.0))
    assert repr(found) == repr(own)


def test_others_are_told_of_tensors_when_their_numbers_are_known() -> None:
    told: list[tuple[Any, ...]] = []
    steps, gate = StepLog((0, "node"), lambda *step: told.append(step)), threading.Event()

    class Tensor:
        shape = ()

        def __float__(self) -> float:
            gate.wait(60)
            return 0.25

    steps.add(0.5, 500_000_000, 7, {"loss": Tensor()})
    assert not told
    gate.set()
    wait_for(lambda: told)
    assert told == [(0.5, 500_000_000, 7, {"loss": 0.25})]


def test_steps_of_a_bounded_number_of_processes_are_kept(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever others tell."""
    monkeypatch.setattr(steps_module, "MOST_PROCESSES", 3)
    log = StepLog((0, "node"))
    for rank in range(1, 10):
        log.add(1.0, 0, 1, {"loss": 1.0}, (rank, "node"))
    log.add(1.0, 0, 1, {"loss": 1.0})
    assert sorted(step.rank or 0 for step in log.take(meter(2.0))) == [0, 1, 2]
    assert caplog.text.count("more than 3 processes") == 1


def test_processes_that_have_ended_make_room_for_others(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A machine that is watched for months has more programs than are kept at once."""
    monkeypatch.setattr(steps_module, "MOST_PROCESSES", 3)
    log = StepLog((0, "node"))
    for number in range(10):
        for at in (100.0 * number, 100.0 * number + 1):
            log.add(at, 0, 1, {"tokens": 1.0}, (0, f"pid {number} of node"))
        assert [step.node for step in log.take(meter(100.0 * number + 2))] == [f"pid {number} of node"] * 2
    assert len(log.work) <= 2
    assert not caplog.text


def test_an_integer_of_another_process_that_no_float_holds_is_left_out() -> None:
    """Its file may contain anything."""
    log = StepLog((0, "node"))
    for at in (1.0, 2.0):
        log.add(at, 0, 1, {"tokens": 10**400, "loss": 0.5}, (1, "node"))
    assert [step.values["loss"] for step in log.take(meter(3.0))] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("step", "kept"), [(3, 3), (numpy.int64(3), 3), (True, 1), (None, None), (2.5, None), ("3", None), (2**63, None), ({"loss": 1}, None)]
)
def test_a_step_is_a_whole_number_or_none(step: object, kept: int | None) -> None:
    """What else is given as one is left out: exporters write it into files and databases."""
    steps = StepLog()
    steps.add(1.0, 10, step, {"loss": 0.5})
    (found,) = steps.take(meter(2.0))
    assert found.step == kept
    assert type(found.step) is (int if kept is not None else type(None))


def test_throughput_and_efficiency_are_those_reckoned_by_hand() -> None:
    """Two steps further in 4 s at 300 W of two devices: 2 s a step, and 6,000 tokens for 1,200 J."""
    steps = StepLog()
    steps.add(1.0, 0, 10, {"tokens": 1000, "samples": 5})
    steps.add(5.0, 0, 12, {"tokens": 6000, "samples": 24, "loss": 0.5})
    first, second = steps.take(meter(6.0, 300.0, devices=2))
    assert first.values == {"tokens": 1000, "samples": 5}
    assert second.values == pytest.approx(
        {
            "tokens": 6000,
            "samples": 24,
            "loss": 0.5,
            "step_seconds": 2.0,
            "tokens_per_second": 1500.0,
            "tokens_per_joule": 5.0,
            "tokens_per_joule_of_mean_device": 10.0,
            "samples_per_second": 6.0,
            "samples_per_joule": 0.02,
            "samples_per_joule_of_mean_device": 0.04,
        }
    )


def test_a_step_waits_for_the_reading_that_says_what_it_used() -> None:
    """And is given out once; at the end all are, without what is not known."""
    steps = StepLog()
    for at in (0.5, 1.5, 2.5):
        steps.add(at, 0, None, {"tokens": 300})
    assert len(steps.take(meter(2.0))) == 2
    assert steps.take(meter(2.0)) == ()
    (last,) = steps.take(meter(2.0), everything=True)
    assert last.values == {"tokens": 300, "step_seconds": 1.0, "tokens_per_second": 300.0}


def test_a_step_may_last_longer_than_the_meter_remembers() -> None:
    """An hour at ten readings a second: its energy is known all the same."""
    steps, known = StepLog(), Meter()
    steps.add(0.5, 0, 1, {"tokens": 5})
    for at in range(3 * Meter.KEPT + 1):
        known.add([row({"gpu.0.powerWatts": 100.0}, float(at), at > 0)])
        if at == Meter.KEPT:
            assert len(steps.take(known)) == 1
    steps.add(3 * Meter.KEPT - 0.5, 0, 2, {"tokens": 1000})
    (found,) = steps.take(known)
    assert "tokens_per_joule" not in found.values
    steps.add(3 * Meter.KEPT - 0.25, 0, 3, {"tokens": 1000})
    for at in range(3 * Meter.KEPT + 1, 6 * Meter.KEPT):
        known.add([row({"gpu.0.powerWatts": 100.0}, float(at))])
        steps.take(known)
    steps.add(6 * Meter.KEPT - 1.25, 0, 4, {"tokens": 1000})
    assert steps.take(known)[0].values["tokens_per_joule"] == pytest.approx(1000 / (100 * (3 * Meter.KEPT - 1)))


def test_nothing_is_derived_that_is_not_known() -> None:
    """No rate of the first step, no efficiency where a device was lost or nothing gives power, no duration when steps begin anew."""
    steps = StepLog()
    steps.add(0.5, 0, 5, {"tokens": 10})
    steps.add(1.5, 0, 1, {"tokens": 10})
    without = Meter()
    for at in range(3):
        without.add([row({"cpu": 1.0}, float(at), at > 0)])
    first, second = steps.take(without)
    assert first.values == {"tokens": 10}
    assert second.values == {"tokens": 10, "tokens_per_second": 10.0}


@pytest.mark.parametrize(("logged", "told"), [((0, 1, 2, 3, 4), [False, False, False, False, True]), ((0, 4), [False, False])])
def test_no_energy_is_told_across_a_moment_at_which_it_was_not_known(logged: tuple[int, ...], told: list[bool]) -> None:
    """A device was lost between two steps: what it used is in neither."""
    steps, known = StepLog(), Meter()
    both, one = {"gpu.0.powerWatts": 100.0, "gpu.1.powerWatts": 100.0}, {"gpu.0.powerWatts": 100.0}
    found: list[Step] = []
    for at, values in enumerate((both, both, one, both, both, both)):
        if at in logged:
            steps.add(at + 0.5, 0, at, {"tokens": 100})
        known.add([row(values, float(at), at > 0)])
        found += steps.take(known)
    assert ["tokens_per_joule" in step.values for step in found] == told
    assert all(step.values["tokens_per_joule"] == pytest.approx(0.5) for step in found if "tokens_per_joule" in step.values)


def test_what_the_program_reckons_itself_is_believed() -> None:
    """A logged number is not overwritten by a derived one of the same name."""
    steps = StepLog()
    steps.add(0.5, 0, 1, {"tokens": 10})
    steps.add(1.5, 0, 2, {"tokens": 10, "tokens_per_second": 42.0, "step_seconds": 7.0})
    found = steps.take(meter(2.0))[1].values
    assert (found["tokens_per_second"], found["step_seconds"]) == (42.0, 7.0)


def test_two_steps_at_one_moment_do_not_divide_by_zero() -> None:
    """Clocks are coarse."""
    steps = StepLog()
    for number in range(2):
        steps.add(1.0, 0, number, {"tokens": 10})
    assert [step.values for step in steps.take(meter(2.0))] == [{"tokens": 10}] * 2


def test_steps_that_no_reading_takes_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """A driver that hangs for hours costs a bounded number of steps, which is said once; those given out are bounded too."""
    steps = StepLog()
    for number in range(PENDING + 500):
        steps.add(1.0, 0, number, {"loss": 1.0})
    assert [record.getMessage() for record in caplog.records] == [
        f"monitor.log: {PENDING} steps wait for a reading: the oldest are dropped"
    ]
    found = steps.take(meter(2.0))
    assert [found[0].step, len(found)] == [500, PENDING]
    assert tuple(steps.returned) == found[-KEPT_STEPS:]


def test_every_step_is_given_out_once_however_many_ask() -> None:
    """The last reading and the stop may come at the same time."""
    steps, known = StepLog(), meter(2.0)
    for number in range(2000):
        steps.add(1.0, 0, number, {"loss": 1.0})
    found: list[int | None] = []
    threads = [threading.Thread(target=lambda: found.extend(step.step for step in steps.take(known, True))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for number in found if number is not None) == list(range(2000))


def test_a_rate_beyond_every_number_is_left_out() -> None:
    """What follows from a number is held to the same as the number: an infinite rate would spoil the whole record."""
    steps = StepLog()
    steps.add(1.0, 10, 1, {"tokens": 1e308})
    steps.add(1.001, 11, 2, {"tokens": 1e308})
    last = steps.take(meter(2.0))[-1]
    assert "tokens_per_second" not in last.values
    assert last.values["tokens"] == 1e308


@pytest.mark.parametrize("text", ["3.5", b"3.5", bytearray(b"7"), "x" * 1_000_000])
def test_a_text_is_no_number_and_is_not_quoted(text: object, caplog: pytest.LogCaptureFixture) -> None:
    log = StepLog()
    log.add(0.0, 0, 1, {"loss": 1.0, "note": text})
    [step] = log.take(Meter(), everything=True)
    assert dict(step.values) == {"loss": 1.0}
    [line] = caplog.messages
    assert "note is a" in line
    assert len(line) < 200
