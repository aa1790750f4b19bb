"""Tensors that are logged: copied on the program's stream, never waited for there, converted on a thread of ours.

CUDA is a stand-in with the signatures of PyTorch's: what is queued on its stream happens when the test says so.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from accelmetrics.monitor import steps as module
from accelmetrics.monitor.steps import StepLog
from accelmetrics.schemas.record import Step
from accelmetrics.schemas.statistics import Meter
from tests.monitor.watching import row
from tests.support.waiting import wait_for

relaxed: list[int] = []
"""Threads whose calls were told not to end the capture of a graph."""
queried: list[int] = []
"""At each query of an event, how often its thread had been told so."""


class Library:
    """The driver, with the one function that is called."""

    def __init__(self, name: str, mode: int) -> None:
        if name != "libcuda.so.1":
            raise OSError(name)
        assert mode & os.RTLD_NOLOAD, "nothing is loaded that the program has not loaded"

    @staticmethod
    def cuThreadExchangeStreamCaptureMode(mode: Any) -> int:  # noqa: N802 - the driver's name
        assert mode._obj.value == 2
        relaxed.append(threading.get_ident())
        return 0


class Stream:
    """What is queued on a device; nothing happens before ``run``."""

    def __init__(self, device: object = None) -> None:
        del device
        self.queue: deque[Callable[[], object]] = deque()

    def run(self) -> None:
        while self.queue:
            self.queue.popleft()()


class Device:
    """``torch.cuda``, ``torch.xpu``: one device whose current stream is the program's."""

    def __init__(self) -> None:
        self.program = Stream()
        self.entered = threading.local()
        self.capturing = False
        self.Stream = Stream
        self.Event = Event

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def current_stream(self, device: object) -> Stream:
        assert device == SimpleNamespace(type="cuda")
        return self.program

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        assert stream is not self.program
        self.entered.side = True
        yield
        self.entered.side = False


class Event:
    """Complete when its stream has come to where it was recorded."""

    def __init__(self) -> None:
        self._done = False

    def record(self, stream: Stream) -> None:
        stream.queue.append(lambda: setattr(self, "_done", True))

    def query(self) -> bool:
        queried.append(relaxed.count(threading.get_ident()))
        return self._done

    def synchronize(self) -> None:
        raise AssertionError("the program's thread waits for the device")


class Tensor:
    """A tensor on the device: each operation is queued on the program's stream."""

    def __init__(self, cuda: Device, *numbers: float, grad: bool = False, kind: str = "cuda") -> None:
        self.cuda, self.numbers, self.grad = cuda, list(numbers), grad
        self.device = SimpleNamespace(type=kind)
        self.shape = (len(numbers),)

    def numel(self) -> int:
        return len(self.numbers)

    def detach(self) -> Tensor:
        found = Tensor(self.cuda, kind=self.device.type)
        found.numbers = self.numbers
        return found

    def clone(self) -> Tensor:
        assert not self.grad, "a copy that is part of the graph keeps it alive"
        copy = Tensor(self.cuda)
        self.cuda.program.queue.append(lambda: copy.numbers.extend(self.numbers))
        return copy

    def fill_(self, value: float) -> None:
        self.cuda.program.queue.append(lambda: self.numbers.__setitem__(0, value))

    def item(self) -> float:
        if self.device.type != "cpu":
            assert threading.current_thread().name == "accelmetrics-steps", "the program's thread waits for the device"
            assert self.cuda.entered.side, "the program's stream is waited for"
        (number,) = self.numbers
        return number

    def __float__(self) -> float:
        raise AssertionError("the program's thread waits for the device")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Device:
    """PyTorch, as far as the program has loaded it."""
    torch = types.ModuleType("torch")
    device = Device()
    torch.Tensor = Tensor  # type: ignore[attr-defined]
    torch.cuda = device  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(ctypes, "CDLL", Library)
    relaxed.clear()
    queried.clear()
    return device


@pytest.fixture
def steps() -> Iterator[StepLog]:
    made = StepLog()
    yield made
    made.take(meter(), everything=True)


def meter() -> Meter:
    """Devices that were read until a while after every step of these tests."""
    made = Meter()
    for at in range(10):
        made.add([row({"gpu.0.powerWatts": 100.0}, float(at), at > 0)])
    return made


def given(steps: StepLog, count: int = 1) -> list[Step]:
    """Wait until so many steps are given out."""
    found: list[Step] = []

    def enough() -> bool:
        found.extend(steps.take(meter()))
        return len(found) >= count

    wait_for(enough)
    return found


def test_the_number_is_that_of_the_moment(cuda: Device, steps: StepLog) -> None:
    """An in-place update and a zeroed record afterwards change nothing, though the device computes it later."""
    loss = Tensor(cuda, 0.5, grad=True)
    steps.add(1.0, 0, 1, {"loss": loss, "epoch": 3})
    loss.fill_(0.0)
    steps.add(2.0, 0, 2, {"loss": loss})
    assert steps.take(meter()) == ()
    cuda.program.run()
    assert [step.values["loss"] for step in given(steps, 2)] == [0.5, 0.0]
    assert list(steps.returned[0].values) == ["loss", "epoch"]


def test_a_graph_that_is_captured_is_not_disturbed(cuda: Device, steps: StepLog, caplog: pytest.LogCaptureFixture) -> None:
    """An event's query in another thread would end the capture, unless that thread was told otherwise; a captured tensor has no value."""
    steps.add(1.0, 0, 1, {"loss": Tensor(cuda, 0.5)})
    cuda.program.run()
    given(steps)
    assert set(queried) == {1}
    cuda.capturing = True
    steps.add(2.0, 0, 2, {"loss": Tensor(cuda, 0.5)})
    assert not cuda.program.queue
    assert ["loss" in step.values for step in steps.take(meter())] == [False]
    assert "a graph that is being captured" in caplog.text


def test_steps_keep_their_order(cuda: Device, steps: StepLog) -> None:
    """One without tensors waits for those before it."""
    steps.add(1.0, 0, 1, {"loss": Tensor(cuda, 0.5)})
    steps.add(2.0, 0, 2, {"loss": 0.25})
    assert steps.take(meter()) == ()
    cuda.program.run()
    assert [step.step for step in given(steps, 2)] == [1, 2]


def test_other_ranks_wait_for_nobodys_tensors(cuda: Device, steps: StepLog) -> None:
    """A device that hangs holds back the steps of its own process alone."""
    steps.add(1.0, 0, 1, {"loss": Tensor(cuda, 0.5)})
    steps.add(1.5, 0, 1, {"loss": 0.75}, source=(1, "node"))
    assert [step.rank for step in steps.take(meter())] == [1]


def test_what_a_hung_device_owes_is_left_out_at_the_end(
    cuda: Device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The end does not wait for it for long, has the rest, says so, and leaves no thread."""
    monkeypatch.setattr(module, "SETTLING", 0.01)
    steps = StepLog()
    steps.add(1.0, 0, 1, {"loss": Tensor(cuda, 0.5), "epoch": 3})
    (found,) = steps.take(meter(), everything=True)
    assert found.values == {"epoch": 3}
    assert "a device did not compute a logged tensor in time" in caplog.text
    wait_for(lambda: not [thread for thread in threading.enumerate() if thread.name == "accelmetrics-steps"])


def test_what_is_not_finite_is_counted_when_it_is_known(cuda: Device, steps: StepLog) -> None:
    """On the thread that converts it."""
    for number, value in enumerate((0.5, float("nan"), float("inf"))):
        steps.add(1.0 + number, 0, number, {"loss": Tensor(cuda, value)})
    cuda.program.run()
    assert [step.values.get("nonFinite") for step in given(steps, 3)] == [None, 1, 2]


def test_several_elements_are_refused_once(cuda: Device, steps: StepLog, caplog: pytest.LogCaptureFixture) -> None:
    """Without touching the device."""
    for number in range(2):
        steps.add(1.0, 0, number, {"loss": Tensor(cuda, 0.5, 0.25), "epoch": 1})
    assert not cuda.program.queue
    assert [step.values for step in steps.take(meter())] == [{"epoch": 1}] * 2
    (told,) = caplog.messages
    assert told.startswith("monitor.log: loss is a Tensor and not a single number: it is ignored, here and from now on")


def test_tensors_of_the_host_are_taken_at_once(cuda: Device, steps: StepLog) -> None:
    """No thread is needed for them, nor for NumPy's."""
    array = numpy.array(0.25)
    steps.add(1.0, 0, 1, {"loss": Tensor(cuda, 0.5, kind="cpu"), "array": array, "one": numpy.array([[2]]), "scalar": numpy.float32(0.75)})
    array[...] = 0.0
    (found,) = steps.take(meter())
    assert found.values == {"loss": 0.5, "array": 0.25, "one": 2.0, "scalar": 0.75}


def test_a_tensor_that_is_not_reduced_is_refused(cuda: Device, steps: StepLog, caplog: pytest.LogCaptureFixture) -> None:
    """Reading it would be a collective, which other ranks are not in; a replicated one is read from its own part."""
    for replicated in (False, True):
        tensor = Tensor(cuda, 0.5)
        tensor.placements = (SimpleNamespace(is_replicate=lambda replicated=replicated: replicated),)  # type: ignore[attr-defined]
        tensor.to_local = lambda: Tensor(cuda, 0.125)  # type: ignore[attr-defined]
        steps.add(1.0, 0, int(replicated), {"norm": tensor})
    cuda.program.run()
    assert [step.values for step in given(steps, 2)] == [{}, {"norm": 0.125}]
    assert "pass tensor.full_tensor()" in caplog.text


class Array:
    """An array of JAX: ready when its computation is; asking for its value waits."""

    def __init__(self, number: float, ready: bool = True) -> None:
        self.number, self.ready, self.size, self.shape = number, ready, 1, ()
        self.is_fully_replicated = True

    def addressable_data(self, index: int) -> Array:
        assert index == 0
        return self

    def is_ready(self) -> bool:
        return self.ready

    def item(self) -> float:
        assert self.ready, "waits for the computation"
        assert threading.current_thread().name == "accelmetrics-steps"
        return self.number

    def __float__(self) -> float:
        raise AssertionError("the program's thread waits for the device")


def test_arrays_of_jax_are_asked_when_they_are_ready(monkeypatch: pytest.MonkeyPatch, steps: StepLog) -> None:
    """They never change, so that none is copied."""
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(Array=Array))
    array = Array(0.5, ready=False)
    steps.add(1.0, 0, 1, {"loss": array})
    assert steps.take(meter()) == ()
    array.ready = True
    assert [step.values for step in given(steps)] == [{"loss": 0.5}]


class Unknown:
    """A tensor of some other framework."""

    shape = ()

    def __float__(self) -> float:
        assert threading.current_thread().name == "accelmetrics-steps"
        return 0.5


def test_tensors_of_other_frameworks_are_converted_on_our_thread(steps: StepLog) -> None:
    """What has a shape may wait for a device."""
    steps.add(1.0, 0, 1, {"loss": Unknown()})
    assert [step.values for step in given(steps)] == [{"loss": 0.5}]


def test_no_framework_is_imported(steps: StepLog) -> None:
    """Only what the program has loaded can have made a value."""
    before = set(sys.modules)
    steps.add(1.0, 0, 1, {"loss": 0.5, "other": Unknown()})
    given(steps)
    assert not {name for name in set(sys.modules) - before if name.split(".")[0] in ("torch", "jax", "numpy", "tensorflow")}
