"""Logged steps: accepted from any thread, and returned with the next reading, with rates and work per joule.

Logging a framework's tensor does not wait for the device that computes it; another thread converts it later. No framework is imported,
because a framework that is not loaded cannot have created a value. Values that may change later are copied when they are logged: PyTorch's
tensors on the program's stream, so that later operations on the stream do not change the copy. JAX's arrays never change.
"""

from __future__ import annotations

import ctypes
import operator
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from math import isfinite
from typing import Any, SupportsFloat, cast

from accelmetrics.backends.guard import WarnOnce, guarded
from accelmetrics.sampling.threads import Flag, OnDemandThread
from accelmetrics.schemas.frozen import FrozenDict
from accelmetrics.schemas.record import WORK, Done, Step, StepSource, add_work
from accelmetrics.schemas.statistics import Meter
from accelmetrics.schemas.text import kind_of

PENDING = 20_000
"""Maximum number of steps that wait for the next tick; the oldest are dropped. A step takes a few hundred bytes."""
MOST_PROCESSES = 4096
"""Maximum number of processes of a job with stored steps."""
KEPT_STEPS = 100
"""Number of steps that remain available after they were returned."""
STILL_RUNS, LATE, REMOTE_DELAY = 10, 3, 3.0
"""How long a process without new steps still counts as working: multiples of its step, at least multiples of the time between readings, and
additional seconds for other processes, whose steps arrive later."""
LONGEST_PACE = 60.0
"""Maximum number of seconds between two readings in that calculation."""
NOT_FINITE = "nonFinite"
"""Name of the count of non-finite numbers."""
SETTLING = 1.0
"""Maximum number of seconds that the end waits for tensors that are still being computed."""
IDLE = 60.0
"""Seconds without tensors after which the converting thread ends."""
FIRST_LOOK, LONGEST_PAUSE = 0.0005, 0.02
"""First and longest pause between two checks whether a device has finished, in seconds."""
LARGEST_STEP = 2**63
"""Steps are 64-bit integers, the largest that readers of files and databases accept."""
LARGEST = 1.7e308
Pending = Callable[[], "float | None"]
"""Function that returns a number computed by a device; None while it is not finished, if this can be checked without waiting."""

EXCHANGE_CAPTURE_MODE = {
    "libcuda.so.1": "cuThreadExchangeStreamCaptureMode",
    "libamdhip64.so": "hipThreadExchangeStreamCaptureMode",
}
"""Function by library that sets the mode of a thread's calls while other threads capture graphs."""
RELAXED = 2
"""The mode in which these calls do not invalidate a capture."""
_this_thread = threading.local()


SendStep = Callable[[float, int, int | None, Mapping[str, float]], object]
"""Function that receives a step: its time on the monitor's clock and in nanoseconds since 1970, its number, and its values by name."""


class _Logged:
    """A logged step before it is returned.

    Attributes:
        at: Time on the monitor's clock.
        time_ns: Time in nanoseconds since 1970.
        step: The program's step.
        values: Its numbers. The converting thread replaces tensors with numbers.
        converted: Set when all tensors are converted; None if there was none.
    """

    __slots__ = ("at", "converted", "step", "time_ns", "values")

    def __init__(self, at: float, time_ns: int, step: int | None, values: dict[str, Any], converted: Flag | None) -> None:
        self.at = at
        self.time_ns = time_ns
        self.step = step
        self.values = values
        self.converted = converted


class _Process:
    """The steps of one process of the job.

    Args:
        source: The process.

    Attributes:
        source: The process.
        pending: Steps that have not been returned yet.
        last: The last returned step, and the energy up to it.
        rates: Work per second in the last step, by kind of work.
        until: Time until which these rates are assumed; later the process counts as ended.
    """

    def __init__(self, source: StepSource) -> None:
        self.source = source
        self.pending: deque[_Logged] = deque(maxlen=PENDING)
        self.last: tuple[_Logged, tuple[float, float] | None] | None = None
        self.rates: dict[str, float] = {}
        self.until = float("-inf")


class StepLog:
    """Collects the steps that the processes of a job log, from any thread and from signal handlers, until the next reading.

    Args:
        source: This process.
        send: Function that is called with each step of this process when its numbers are known, to send it to the job's other processes.

    Attributes:
        returned: The last returned steps.
        work: Total work of all returned steps, by kind of work and process. Of more than ``MOST_PROCESSES``, ended ones are dropped.
    """

    def __init__(self, source: StepSource = (None, ""), send: SendStep | None = None) -> None:
        self.returned: deque[Step] = deque(maxlen=KEPT_STEPS)
        self.work: dict[tuple[str, StepSource], Done] = {}
        self._own = _Process(source)
        self._send = send
        self._pace = 0.0  # seconds between two readings
        self._processes: dict[StepSource, _Process] = {source: self._own}
        self._counter = count(1)
        self._not_finite = 0
        self._take_lock = threading.RLock()  # a signal handler that stops the monitor may interrupt a ``take``
        self._warn = WarnOnce()
        self._unconverted: deque[_Logged] = deque(maxlen=PENDING)
        self._woken = Flag()
        self._ending = False
        self._converter = OnDemandThread("accelmetrics-steps", lambda: self._unconverted, self._convert)

    def add(self, at: float, time_ns: int, step: object, values: Mapping[str, object], source: StepSource | None = None) -> None:
        """Add a step. Never raises, and never waits, not even for a device.

        A value that is no number is left out, with a warning the first time. Non-finite numbers are kept and counted, with a warning the
        first time; every later step contains the count as ``nonFinite``. Tensors are converted on another thread, and the step is returned
        after that.

        Args:
            at: Time on the monitor's clock.
            time_ns: Time in nanoseconds since 1970.
            step: The program's step.
            values: Its numbers by name.
            source: Process of the job that logged the step, which has already converted and counted its numbers; by default this process.
        """
        numbers: dict[str, Any] = {}
        converted: Flag | None = None
        for name, value in values.items():
            found: Any = value
            if type(value) is float or type(value) is int:
                # "not <=" instead of ">", so that NaN is included. A file of another process may contain any integer.
                if not -LARGEST <= value <= LARGEST and (source is None or type(value) is int):
                    found = self._number(name, value)
            elif value is not None:
                found = self._number_or_pending(name, value)
                if callable(found):
                    converted = converted or Flag()
            if found is not None:
                numbers[name] = found
        process = self._own
        if source == process.source:
            return  # another process with the same rank and node: its steps could not be distinguished from this process's
        if source is None:
            if self._not_finite:
                numbers.setdefault(NOT_FINITE, self._not_finite)
        else:
            if source not in self._processes and len(self._processes) >= MOST_PROCESSES:
                self._drop_ended(at)
            if source not in self._processes and len(self._processes) >= MOST_PROCESSES:
                self._warn(
                    "processes", "monitor: more than %d processes log steps: the steps of further processes are ignored", MOST_PROCESSES
                )
                return
            process = self._processes.get(source) or self._processes.setdefault(source, _Process(source))
        if len(process.pending) == PENDING:
            self._warn("", "monitor.log: %d steps wait for a reading: the oldest are dropped", PENDING)
        if step is not None and not (type(step) is int and -LARGEST_STEP <= step < LARGEST_STEP):
            kind, index = kind_of(step), guarded(_whole_number, step).value
            step = index if index is not None and -LARGEST_STEP <= index < LARGEST_STEP else None
            if step is None:
                self._warn("step", "monitor.log: the step is a %s and not a 64-bit integer: it is ignored", kind)
        logged = _Logged(at, time_ns, step, numbers, converted)
        if converted is not None:
            self._unconverted.append(logged)
            self._ending = False
            self._woken.set()
            self._converter.start()
        # After starting the thread: a step without a converting thread, because Ctrl-C came between, would block all later ones.
        process.pending.append(logged)
        if converted is None and source is None and self._send is not None:
            self._send(at, time_ns, step, numbers)

    def _drop_ended(self, now: float) -> None:
        """Drop processes that have ended, to make room: a machine that is watched for months has any number of programs."""
        for source, process in tuple(self._processes.items()):
            last = process.last
            if (
                last is not None
                and max(process.until, last[0].at + LONGEST_PACE) < now
                and not process.pending
                and process is not self._own
            ):
                del self._processes[source]
                for name in WORK:
                    self.work.pop((name, source), None)

    def first(self, *candidates: object) -> object:
        """Return the first of several steps in a wrong call. A warning is logged once."""
        found = [one for one in candidates if one is not None]
        if len(found) > 1:
            words = "monitor.log ignores extra arguments (%d): pass a step number and named values: `log(7, loss=loss)`"
            self._warn("steps", words, len(found) - 1)
        return found[0] if found else None

    @property
    def waiting(self) -> bool:
        """Whether there are steps that have not been returned."""
        return any(process.pending for process in tuple(self._processes.values()))

    @property
    def many(self) -> bool:
        """Whether so many steps wait that some will soon be dropped."""
        return any(len(process.pending) > PENDING // 4 for process in tuple(self._processes.values()))

    @property
    def used(self) -> bool:
        """Whether anything was ever logged."""
        return bool(self.returned) or self.waiting

    def take(self, meter: Meter, everything: bool = False, deadline: float = float("inf")) -> tuple[Step, ...]:
        """Return the steps up to the last reading of the devices' energy, ordered by time, with derived numbers.

        Args:
            meter: The energy of all selected devices.
            everything: Whether to return all steps, including later ones, whose energy is not known yet. Then this waits for tensors that
                are still being computed, at most a second.
            deadline: Deadline of that wait, on ``time.monotonic``.
        """
        self._pace = min(meter.pace, LONGEST_PACE)
        if everything:
            deadline = min(deadline, time.monotonic() + SETTLING)
            for logged in [logged for process in tuple(self._processes.values()) for logged in process.pending.copy()]:
                if logged.converted is not None and not logged.converted.wait(deadline - time.monotonic()):
                    self._warn("late", "monitor.log: a device did not compute a logged tensor in time: it is ignored")
            self._ending = True
            self._woken.set()
        found: list[tuple[_Logged, _Process]] = []
        with self._take_lock:  # nothing in this block waits
            for process in tuple(self._processes.values()):
                pending = process.pending
                while pending and (everything or (pending[0].at <= meter.latest and self._is_converted(pending[0]))):
                    found.append((pending.popleft(), process))
            found.sort(key=lambda pair: pair[0].at)
            steps = tuple(self._completed(process, logged, meter) for logged, process in found)
            for step in steps:
                add_work(self.work, step)
            self.returned.extend(steps)
        return steps

    def _completed(self, process: _Process, logged: _Logged, meter: Meter) -> Step:
        """Return a step with the numbers that follow from it and from the process's previous step."""
        joules, before = meter.at(logged.at), process.last
        process.last = (logged, joules)
        values = logged.values
        if not self._is_converted(logged):  # at the end, tensors without a result are left out: the device may never finish
            values = {name: value for name, value in values.copy().items() if not callable(value)}
        derived: dict[str, float] = {}
        if before is not None and logged.at > before[0].at:
            seconds, last = logged.at - before[0].at, before[1]
            used = joules[1] - last[1] if joules and last and joules[0] == last[0] else 0.0
            step, step_before = logged.step, before[0].step
            advanced = step - step_before if step is not None and step_before is not None else 1
            if advanced > 0:
                derived["step_seconds"] = seconds / advanced
            # Steps of other processes arrive with a later reading.
            process.until = max(logged.at, meter.latest) + max(STILL_RUNS * seconds, LATE * self._pace)
            process.until += REMOTE_DELAY if process is not self._own else 0.0
            process.rates = {name: values[name] / seconds for name in WORK if name in values and isfinite(values[name])}
            for name, rate in process.rates.items():
                derived[f"{name}_per_second"] = rate
                if used > 0:
                    # The energy of the devices is used by all processes, so their work is added up too.
                    rates = [one.rates.get(name, 0.0) for one in tuple(self._processes.values()) if logged.at <= one.until]
                    per_joule = sum(rates) * seconds / used
                    derived[f"{name}_per_joule"] = per_joule
                    derived[f"{name}_per_joule_of_mean_device"] = per_joule * meter.devices
        numbers = FrozenDict({**values, **{name: rate for name, rate in derived.items() if isfinite(rate)}, **values})
        return Step(logged.time_ns, logged.step, numbers, *process.source)

    @staticmethod
    def _is_converted(logged: _Logged) -> bool:
        return logged.converted is None or logged.converted.is_set()

    def _convert(self) -> None:
        """Convert tensors in the order in which they were logged. Runs on a separate thread, which ends after a while without tensors."""
        while True:
            self._woken.clear()  # before checking, so that a later event sets it again
            try:
                logged = self._unconverted.popleft()
            except IndexError:
                if self._ending or not self._woken.wait(IDLE):
                    return
                continue
            for name, value in logged.values.copy().items():
                if callable(value):
                    number = self._converted(name, value)
                    if number is None:
                        logged.values.pop(name)
                    else:
                        logged.values[name] = number
            if self._not_finite:
                logged.values[NOT_FINITE] = self._not_finite
            assert logged.converted is not None
            logged.converted.set()
            if self._send is not None:
                self._send(logged.at, logged.time_ns, logged.step, logged.values)

    def _converted(self, name: str, value: Pending) -> float | None:
        """Wait until the device has computed a value and return it; None if it fails or does not finish before the end."""
        pause = FIRST_LOOK
        while True:
            outcome = guarded(value)
            if outcome.failure is not None:
                self._refuse(name, "tensor", outcome.failure.detail)
                return None
            if outcome.value is not None:
                return self._number(name, outcome.value)
            if self._ending:
                return None
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _number(self, name: str, value: float) -> float | None:
        """Return a number, and count it if it is not finite; None for an integer beyond the range of floats."""
        if type(value) is int:
            if abs(value) <= LARGEST:
                return value
            self._warn(name, "monitor.log: %s is a number beyond the range of floats: it is ignored, here and from now on", name)
            return None
        if isfinite(value):
            return value
        self._not_finite = next(self._counter)
        self._warn(f"{name} not finite", "monitor.log: %s is %s: it is kept, and such numbers are counted as %s", name, value, NOT_FINITE)
        return value

    def _number_or_pending(self, name: str, value: object) -> float | Pending | None:
        """Return a number, or a function that returns it later; None if the value is no number."""
        outcome = guarded(number_of, value)  # a tensor with several numbers, or one of an unknown package, may raise any exception
        if outcome.failure is not None:
            self._refuse(name, kind_of(value), outcome.failure.detail)
        return self._number(name, outcome.value) if isinstance(outcome.value, float) else outcome.value

    def _refuse(self, name: str, kind: str, detail: str) -> None:
        self._warn(name, "monitor.log: %s is a %s and not a single number: it is ignored, here and from now on (%s)", name, kind, detail)


def _whole_number(value: Any) -> int:
    """Return a whole number as an ``int``."""
    # __index__ of int itself: an instance of a subclass may raise when it is compared.
    return int.__index__(operator.index(value))


def number_of(value: object) -> float | Pending:
    """Return the number in a value, or a function that returns it later if a device still computes it.

    Raises:
        TypeError: The value has several elements, or is distributed over ranks and not reduced.
        Exception: Any error of a framework.
    """
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is not None and isinstance(value, tensor):
        return _of_torch(value)
    if isinstance(value, (str, bytes, bytearray)):  # float() would accept "3.5", and quote a text of any length in its error
        raise TypeError("a string")
    if not hasattr(value, "shape"):
        return float(cast("SupportsFloat", value))
    array = getattr(sys.modules.get("jax"), "Array", None)
    if array is not None and isinstance(value, array):
        return _of_jax(value)
    own = getattr(sys.modules.get("numpy"), "ndarray", ())
    if isinstance(value, own) or type(value).__module__ == "numpy":
        host: Any = value
        _single(host.size)
        return float(host.item())
    return lambda: float(cast("SupportsFloat", value))  # TensorFlow and others: their tensors are immutable, so no copy is needed


def _of_jax(array: Any) -> Pending:
    """Return a function for the value of an array. It reads this process's part as a separate object."""
    _single(array.size)
    if not array.is_fully_replicated:
        raise TypeError("the array is not replicated")
    # The program may donate the array to a computation that reuses its memory. In jax 0.10, is_ready() of a donated array ends the process;
    # is_ready() of a separate object for the same data raises an exception.
    own = array.addressable_data(0)
    return lambda: float(own.item()) if own.is_ready() else None


def _of_torch(tensor: Any) -> float | Pending:
    """Copy a tensor on the program's stream, and return a function that fetches the copy when an event of CUDA, ROCm or XPU reports it."""
    _single(tensor.numel())
    placements = getattr(tensor, "placements", None)
    if placements is not None:  # a DTensor: converting one that is not reduced is a collective
        if not all(placement.is_replicate() for placement in placements):
            raise TypeError("the DTensor is not replicated: pass tensor.full_tensor()")
        tensor = tensor.to_local()
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return float(tensor.item())
    device: Any = getattr(sys.modules["torch"], tensor.device.type, None)
    if getattr(device, "is_current_stream_capturing", bool)():
        raise TypeError("the tensor belongs to a graph that is being captured: log it after a replay")
    copy = tensor.clone()
    if not (hasattr(device, "Event") and hasattr(device, "current_stream")):
        return lambda: float(copy.item())
    event = device.Event()
    event.record(device.current_stream(tensor.device))

    def fetch() -> float | None:
        _let_others_capture()
        if not event.query():
            return None
        with device.stream(device.Stream(copy.device)):  # the program's stream would wait for all operations queued on it
            return float(copy.item())

    return fetch


def _let_others_capture() -> None:
    """Set a mode in which calls of this thread do not invalidate the capture of a graph in another thread."""
    # In the default mode, querying an event would invalidate it. The mode is a property of the thread, so it is set once per thread.
    if not getattr(_this_thread, "relaxed", False):
        _this_thread.relaxed = True
        for library, function in EXCHANGE_CAPTURE_MODE.items():
            with suppress(OSError, AttributeError):
                found = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_NOLOAD)  # only a library that the framework has loaded
                getattr(found, function)(ctypes.byref(ctypes.c_int(RELAXED)))


def _single(elements: int) -> None:
    if elements != 1:
        raise TypeError(f"it has {elements} elements")
