"""The program's steps: taken from any thread, given out with the next reading, with rates and the work that they did per joule.

Numbers of frameworks are noted without waiting for the device that computes them, and converted on another thread. No framework is
imported: what is not loaded cannot have made a value. What may change afterwards is copied where it is noted: PyTorch's tensors on the
stream that the program uses, so that a later step of that stream does not change the copy. JAX's arrays never change.
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
"""Steps that wait for the next tick at most; the oldest go. A few hundred bytes each."""
MOST_PROCESSES = 4096
"""Processes of a job whose steps are kept."""
KEPT_STEPS = 100
"""Steps that are still known after they were given out."""
STILL_RUNS, LATE, HEARD = 10, 3, 3.0
"""For how long a process that logs nothing is taken to work on: in its own steps' durations, and at least in those between readings. Steps
of other processes are heard so many seconds after they were logged."""
LONGEST_PACE = 60.0
"""Seconds between two readings that count there."""
NOT_FINITE = "nonFinite"
"""The name under which numbers that are not finite are counted."""
SETTLING = 1.0
"""Seconds that the end waits for tensors that are still computed."""
IDLE = 60.0
"""Seconds for which the thread that converts tensors waits for the next one."""
FIRST_LOOK, LONGEST_PAUSE = 0.0005, 0.02
"""Seconds between two looks at whether a device is done: at first, and at most."""
LARGEST_STEP = 2**63
"""What readers of files and databases take."""
LARGEST = 1.7e308
Pending = Callable[[], "float | None"]
"""Gives a number that a device computes; None while it is not there yet, as far as that can be told without waiting."""

EXCHANGE_CAPTURE_MODE = {
    "libcuda.so.1": "cuThreadExchangeStreamCaptureMode",
    "libamdhip64.so": "hipThreadExchangeStreamCaptureMode",
}
"""By library, what sets how a thread's calls count while graphs are captured."""
RELAXED = 2
"""The mode in which they disturb none."""
_this_thread = threading.local()


Tell = Callable[[float, int, int | None, Mapping[str, float]], object]
"""Takes a step: when on the monitor's clock and in nanoseconds since 1970, the program's own number of it, its numbers by name."""


class _Logged:
    """What one process logged at one moment, on its way.

    Attributes:
        at: When, on the monitor's clock.
        time_ns: When, in nanoseconds since 1970.
        step: The program's own step.
        values: Its numbers; the thread that converts tensors puts theirs in.
        whole: Set when no value is a tensor any more; None where none was.
    """

    __slots__ = ("at", "step", "time_ns", "values", "whole")

    def __init__(self, at: float, time_ns: int, step: int | None, values: dict[str, Any], whole: Flag | None) -> None:
        self.at = at
        self.time_ns = time_ns
        self.step = step
        self.values = values
        self.whole = whole


class _Process:
    """The steps of one process of the job.

    Args:
        source: The process.

    Attributes:
        source: The process.
        pending: Those that wait to be given out.
        last: The last one that was given out, and the energy until then.
        rates: By kind of work, what it did in a second when it last said so.
        until: Until when those rates are taken to hold: it may have ended.
    """

    def __init__(self, source: StepSource) -> None:
        self.source = source
        self.pending: deque[_Logged] = deque(maxlen=PENDING)
        self.last: tuple[_Logged, tuple[float, float] | None] | None = None
        self.rates: dict[str, float] = {}
        self.until = float("-inf")


class StepLog:
    """Takes what the processes of a job log, from any thread and from signal handlers, and gives it out with the next reading.

    Args:
        source: The process that it is in.
        tell: Called with each step that this process logs, once its numbers are known: for the other processes of its job.

    Attributes:
        given: The last steps that were given out.
        work: What those that were ever given out come to.
    """

    def __init__(self, source: StepSource = (None, ""), tell: Tell | None = None) -> None:
        self.given: deque[Step] = deque(maxlen=KEPT_STEPS)
        self.work: dict[tuple[str, StepSource], Done] = {}
        self._own = _Process(source)
        self._tell = tell
        self._pace = 0.0  # seconds between two readings
        self._processes: dict[StepSource, _Process] = {source: self._own}
        self._counter = count(1)
        self._not_finite = 0
        self._taking = threading.RLock()  # a signal handler that stops the monitor may interrupt a ``take``
        self._warn = WarnOnce()
        self._unconverted: deque[_Logged] = deque(maxlen=PENDING)
        self._woken = Flag()
        self._ending = False
        self._converter = OnDemandThread("accelmetrics-steps", lambda: self._unconverted, self._convert)

    def add(self, at: float, time_ns: int, step: object, values: Mapping[str, object], source: StepSource | None = None) -> None:
        """Note numbers. Never waits, neither for a device, and raises nothing.

        What is no number is left out and told once. Numbers that are not finite are kept, told once and counted: from the first on each
        step has their count so far as ``nonFinite``. Tensors are converted on a thread of ours; the step is given out after that.

        Args:
            at: When, on the monitor's clock.
            time_ns: When, in nanoseconds since 1970.
            step: The program's own step.
            values: Its numbers by name.
            source: The process of the job that logged it, which has converted and counted itself; this one when left out.
        """
        numbers: dict[str, Any] = {}
        whole: Flag | None = None
        for name, value in values.items():
            found: Any = value
            if type(value) is float or type(value) is int:
                if not -LARGEST <= value <= LARGEST and source is None:  # NaN is in no order
                    found = self._number(name, value)
            elif value is not None:
                found = self._noted(name, value)
                if callable(found):
                    whole = whole or Flag()
            if found is not None:
                numbers[name] = found
        process = self._own
        if source == process.source:
            return  # of another process that is told apart by nothing
        if source is None:
            if self._not_finite:
                numbers.setdefault(NOT_FINITE, self._not_finite)
        else:
            if source not in self._processes and len(self._processes) >= MOST_PROCESSES:
                self._warn(
                    "processes", "monitor: steps of more than %d processes are not kept: of others they are left out", MOST_PROCESSES
                )
                return
            process = self._processes.get(source) or self._processes.setdefault(source, _Process(source))
        if len(process.pending) == PENDING:
            self._warn("", "monitor.log: %d steps wait for a reading: the oldest go", PENDING)
        if step is not None and not (type(step) is int and -LARGEST_STEP <= step < LARGEST_STEP):
            kind, index = kind_of(step), guarded(_whole_number, step).value
            step = index if index is not None and -LARGEST_STEP <= index < LARGEST_STEP else None
            if step is None:
                self._warn("step", "monitor.log: the step is a %s that is no whole number of 64 bits: left out", kind)
        logged = _Logged(at, time_ns, step, numbers, whole)
        if whole is not None:
            self._unconverted.append(logged)
            self._ending = False
            self._woken.set()
            self._converter.start()
        process.pending.append(logged)  # at last: a step that Ctrl-C left without a thread to convert it would hold up all later ones
        if whole is None and source is None and self._tell is not None:
            self._tell(at, time_ns, step, numbers)

    def first(self, *given: object) -> object:
        """Return the first of what was given as a step; that there is more is told once."""
        found = [one for one in given if one is not None]
        if len(found) > 1:
            self._warn("steps", "monitor.log takes one step and names (`log(7, loss=loss)`): %d more were left out", len(found) - 1)
        return found[0] if found else None

    @property
    def waiting(self) -> bool:
        """Whether steps wait to be given out."""
        return any(process.pending for process in tuple(self._processes.values()))

    @property
    def many(self) -> bool:
        """Whether so many steps wait that some would be lost."""
        return any(len(process.pending) > PENDING // 4 for process in tuple(self._processes.values()))

    @property
    def used(self) -> bool:
        """Whether anything was ever logged."""
        return bool(self.given) or self.waiting

    def take(self, meter: Meter, everything: bool = False, by: float = float("inf")) -> tuple[Step, ...]:
        """Return what was logged up to the last reading of the devices' energy, in the order of its time; all of it at the end.

        Args:
            meter: The energy of all selected devices.
            everything: Whether steps whose energy is not known yet are given out too. Tensors that are still computed are waited for,
                a second at most.
            by: The moment of ``time.monotonic`` until which they are waited for in any case.
        """
        self._pace = min(meter.pace, LONGEST_PACE)
        if everything:
            by = min(by, time.monotonic() + SETTLING)
            for logged in [logged for process in tuple(self._processes.values()) for logged in process.pending.copy()]:
                if logged.whole is not None and not logged.whole.wait(by - time.monotonic()):
                    self._warn("late", "monitor.log: a device has not computed what was logged: it is left out")
            self._ending = True
            self._woken.set()
        found: list[tuple[_Logged, _Process]] = []
        with self._taking:  # nothing in here waits
            for process in tuple(self._processes.values()):
                pending = process.pending
                while pending and (everything or (pending[0].at <= meter.latest and self._is_whole(pending[0]))):
                    found.append((pending.popleft(), process))
            found.sort(key=lambda pair: pair[0].at)
            steps = tuple(self._completed(process, logged, meter) for logged, process in found)
            for step in steps:
                add_work(self.work, step)
            self.given.extend(steps)
        return steps

    def _completed(self, process: _Process, logged: _Logged, meter: Meter) -> Step:
        """Return a step with what follows from it and the one before of the same process."""
        joules, before = meter.at(logged.at), process.last
        process.last = (logged, joules)
        values = logged.values
        if not self._is_whole(logged):  # given out without them: the device may never answer
            values = {name: value for name, value in values.copy().items() if not callable(value)}
        derived: dict[str, float] = {}
        if before is not None and logged.at > before[0].at:
            seconds, last = logged.at - before[0].at, before[1]
            used = joules[1] - last[1] if joules and last and joules[0] == last[0] else 0.0
            step, step_before = logged.step, before[0].step
            advanced = step - step_before if step is not None and step_before is not None else 1
            if advanced > 0:
                derived["step_seconds"] = seconds / advanced
            # Those of other processes come with a later reading.
            process.until = max(logged.at, meter.latest) + max(STILL_RUNS * seconds, LATE * self._pace)
            process.until += HEARD if process is not self._own else 0.0
            process.rates = {name: values[name] / seconds for name in WORK if name in values and isfinite(values[name])}
            for name, rate in process.rates.items():
                derived[f"{name}_per_second"] = rate
                if used > 0:
                    # The devices' energy is that of all processes together: so is their work.
                    rates = [one.rates.get(name, 0.0) for one in tuple(self._processes.values()) if logged.at <= one.until]
                    per_joule = sum(rates) * seconds / used
                    derived[f"{name}_per_joule"] = per_joule
                    derived[f"{name}_per_joule_of_mean_device"] = per_joule * meter.devices
        told = FrozenDict({**values, **{name: rate for name, rate in derived.items() if isfinite(rate)}, **values})
        return Step(logged.time_ns, logged.step, told, *process.source)

    @staticmethod
    def _is_whole(logged: _Logged) -> bool:
        return logged.whole is None or logged.whole.is_set()

    def _convert(self) -> None:
        """Convert tensors in the order in which they were logged, on a thread of its own; ends where there are none for a while."""
        while True:
            self._woken.clear()  # before looking: what comes later sets it again
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
            assert logged.whole is not None
            logged.whole.set()
            if self._tell is not None:
                self._tell(logged.at, logged.time_ns, logged.step, logged.values)

    def _converted(self, name: str, value: Pending) -> float | None:
        """Convert one, when the device has computed it; None where it does not before the end."""
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
        """Return a number, counted where it is not finite; None for a whole one that no float holds."""
        if type(value) is int:
            if abs(value) <= LARGEST:
                return value
            self._warn(name, "monitor.log: %s is a whole number that no float holds: left out, here and from now on", name)
            return None
        if isfinite(value):
            return value
        self._not_finite = next(self._counter)
        self._warn(f"{name} not finite", "monitor.log: %s is %s: kept, and counted as %s from now on", name, value, NOT_FINITE)
        return value

    def _noted(self, name: str, value: object) -> float | Pending | None:
        """Return a number, or what gives it later; None for what is none."""
        outcome = guarded(noted, value)  # a tensor of several numbers, or of another package, may raise anything
        if outcome.failure is not None:
            self._refuse(name, kind_of(value), outcome.failure.detail)
        return self._number(name, outcome.value) if isinstance(outcome.value, float) else outcome.value

    def _refuse(self, name: str, kind: str, detail: str) -> None:
        self._warn(name, "monitor.log: %s is a %s that is no single number: left out, here and from now on (%s)", name, kind, detail)


def _whole_number(value: Any) -> int:
    """Return a value that is a whole number, as one of Python's own: those of classes made from it may raise when they are compared."""
    return int.__index__(operator.index(value))


def noted(value: object) -> float | Pending:
    """Return a value that is one number: at once if the host has it, else what gives it later.

    Raises:
        TypeError: It has several elements, or is of ranks that have not been reduced.
        Exception: Whatever a framework raises.
    """
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is not None and isinstance(value, tensor):
        return _of_torch(value)
    if isinstance(value, (str, bytes, bytearray)):  # float() would read "3.5", and quote a text of any length
        raise TypeError("a text")
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
    return lambda: float(cast("SupportsFloat", value))  # of TensorFlow and others, whose tensors do not change


def _of_jax(array: Any) -> Pending:
    """Take the part of an array that this process holds, as an object of its own.

    The program may give the array itself to a computation that reuses its memory. Asking that one whether it is ready ends the
    process (jax 0.10); this one raises.
    """
    _single(array.size)
    if not array.is_fully_replicated:
        raise TypeError("an array that is not replicated")
    own = array.addressable_data(0)
    return lambda: float(own.item()) if own.is_ready() else None


def _of_torch(tensor: Any) -> float | Pending:
    """Copy a tensor on the stream that the program uses; the events of CUDA, ROCm and XPU tell when that is done."""
    _single(tensor.numel())
    placements = getattr(tensor, "placements", None)
    if placements is not None:  # a DTensor: converting one that is not reduced is a collective
        if not all(placement.is_replicate() for placement in placements):
            raise TypeError("a DTensor that is not replicated: pass tensor.full_tensor()")
        tensor = tensor.to_local()
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return float(tensor.item())
    device: Any = getattr(sys.modules["torch"], tensor.device.type, None)
    if getattr(device, "is_current_stream_capturing", bool)():
        raise TypeError("a tensor of a graph that is being captured: log it where the graph is replayed")
    copy = tensor.clone()
    if not (hasattr(device, "Event") and hasattr(device, "current_stream")):
        return lambda: float(copy.item())
    event = device.Event()
    event.record(device.current_stream(tensor.device))

    def fetch() -> float | None:
        _let_others_capture()
        if not event.query():
            return None
        with device.stream(device.Stream(copy.device)):  # on the program's stream it would wait for what is queued there
            return float(copy.item())

    return fetch


def _let_others_capture() -> None:
    """Have calls of this thread not end the capture of a graph in another thread, as an event's query would otherwise do."""
    if not getattr(_this_thread, "relaxed", False):
        _this_thread.relaxed = True
        for library, function in EXCHANGE_CAPTURE_MODE.items():
            with suppress(OSError, AttributeError):
                found = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_NOLOAD)  # only what the framework has loaded
                getattr(found, function)(ctypes.byref(ctypes.c_int(RELAXED)))


def _single(elements: int) -> None:
    if elements != 1:
        raise TypeError(f"{elements} elements, and not one number")
