"""The one place that catches every exception of foreign code: vendor calls, plug-ins, exporters, callbacks.

The rest of the package catches only exceptions that it can name. :func:`guarded` turns a failure into a reason and measures the call, so
that no exception reaches the watched program.

A function that runs a command or loads a library is decorated with :func:`through`, so that its answers can be recorded and replayed.
Without a tap, this costs one look at an empty list for a call that takes milliseconds. Files need no tap: ``ACCELMETRICS_SYSROOT`` replaces
the machine's own.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from accelmetrics.schemas.errors import Reason, SourceError, Unavailable, without_secrets
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.text import kind_of

LONGEST = 1000
"""Most characters that are kept of an exception's message. Each metric that is missing because of it repeats the message."""

P = ParamSpec("P")
T = TypeVar("T")


class Outcome(Generic[T]):
    """Result of a guarded call.

    Attributes:
        value: The returned value; None if the call failed.
        failure: Why it failed; None if it succeeded.
        error: The exception, for callers that tell kinds apart. It has no traceback.
        seconds: Duration of the call.
    """

    __slots__ = ("error", "failure", "seconds", "value")

    def __init__(self, value: T | None, failure: Unavailable | None, error: BaseException | None, seconds: float) -> None:
        self.value = value
        self.failure = failure
        self.error = error
        self.seconds = seconds


class Wait(NamedTuple):
    """A tool that a thread waits for.

    Attributes:
        tool: Path of a vendor's tool or library, or name of a module that is being imported.
        since: Start of the wait, in nanoseconds since the epoch.
    """

    tool: str
    since: int


WAITS: dict[int, Wait] = {}
"""The tool that each thread waits for now, by thread id."""


def at_fork(**hooks: Callable[[], object]) -> None:
    """Register hooks as ``os.register_at_fork`` does. Does nothing on systems without fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**hooks)


at_fork(after_in_child=WAITS.clear)


@contextmanager
def waiting_for(tool: str) -> Iterator[None]:
    """Record that this thread waits for a tool, so that a late reading can name the tool."""
    thread = threading.get_ident()
    before, WAITS[thread] = WAITS.get(thread), Wait(tool, time.time_ns())
    try:
        yield
    finally:
        WAITS.pop(thread, None)
        if before is not None:
            WAITS[thread] = before


def guarded(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
    """Call foreign code and return its value, or its exception as a reason. Raises only Ctrl-C and the program's own exit."""
    started = time.perf_counter()
    try:
        value = call(*args, **kwargs)
    except SourceError as error:
        # The package's own errors already have a reason and words.
        reason, detail = error.unavailable
        return Outcome(None, Unavailable(reason, detail[:LONGEST]), without_frames(error), time.perf_counter() - started)
    except BaseException as error:  # the package's one broad except: foreign code may throw anything
        seconds = time.perf_counter() - started
        if _is_from_signal(error):
            raise  # the user's own: the program ends, or its handler decides
        # If putting the exception into words fails too, its type must do.
        words = None if call is _worded else guarded(_worded, error).value
        return Outcome(None, words or Unavailable(Reason.DRIVER_ERROR, kind_of(error)), error, seconds)
    return Outcome(value, None, None, time.perf_counter() - started)


def _worded(error: BaseException) -> Unavailable:
    return describe(without_frames(error))


def _is_from_signal(error: BaseException | None) -> bool:
    """Return whether a signal caused the exception: Ctrl-C, or a signal handler of the program that exits.

    False for a ``KeyboardInterrupt`` or ``SystemExit`` that the called code raises itself.
    """
    if not issubclass(type(error), (KeyboardInterrupt, SystemExit)) or threading.current_thread() is not threading.main_thread():
        return False
    while error is not None:
        trace, innermost = error.__traceback__, None
        while trace is not None:
            # Signal handlers run in the main thread, between two instructions of the interrupted frame. A handler gets
            # that frame as its second argument. So the exception came from a signal if it passed through a frame that
            # has its own caller among its variables.
            values = [value for found in trace.tb_frame.f_locals.values() for value in (found if type(found) is tuple else (found,))]
            if trace.tb_frame.f_back is not None and any(value is trace.tb_frame.f_back for value in values):
                return True
            trace, innermost = trace.tb_next, trace
        # Python's own handler of Ctrl-C has no frame: the exception appears in the innermost frame at an instruction
        # that is no ``raise``.
        if isinstance(error, KeyboardInterrupt) and innermost is not None:
            from opcode import opmap  # imported only after an interrupt, which is rare

            if innermost.tb_frame.f_code.co_code[innermost.tb_lasti] != opmap["RAISE_VARARGS"]:
                return True
        error = error.__context__  # cleanup code of the call may replace Ctrl-C by another exception
    return False


def warn_user(words: str) -> None:
    """Warn about a user's option or variable that has no effect. Raises nothing."""
    import warnings

    # ``warnings`` rather than logging, since most programs set up no logging. Guarded, since a program may turn
    # warnings into errors.
    guarded(warnings.warn, f"accelmetrics: {words}", RuntimeWarning, stacklevel=3)


class WarnOnce:
    """Logger that logs each kind of warning once and raises nothing.

    Args:
        head: Text that begins each warning.
    """

    def __init__(self, head: str = "") -> None:
        self._head = head
        self._known: set[object] = set()

    def __call__(self, kind: object, words: str, *details: object) -> None:
        """Log a warning unless one of this kind was logged before."""
        if kind not in self._known:
            self._known.add(kind)
            from accelmetrics.schemas.log import log  # loads logging, which a plain sample does not need

            details = tuple(detail[:LONGEST] if type(detail) is str else detail for detail in details)
            guarded(log.warning, (self._head + words)[:LONGEST], *details)  # a log handler of the program may raise

    def user(self, kind: object, words: str) -> None:
        """Warn with :func:`warn_user` unless there was a warning of this kind."""
        if kind not in self._known:
            self._known.add(kind)
            warn_user(self._head + words)


def without_frames(error: BaseException) -> BaseException:
    """Remove the tracebacks from an exception and from its causes, and return it."""
    # A traceback keeps all frames alive, and with them all local variables: buffers, handles, arrays of the program.
    cause: BaseException | None = error
    while cause is not None and cause.__traceback__ is not None:
        cause.__traceback__ = None
        cause = cause.__context__ if cause.__cause__ is None else cause.__cause__
    return error


def describe(error: BaseException) -> Unavailable:
    """Return an unexpected exception as a reason: its type and message, without secrets.

    Exceptions of this package have their message only, without the type.
    """
    reason, words = Reason.DRIVER_ERROR, ""
    if isinstance(error, PermissionError):
        reason, words = Reason.NO_PERMISSION, str(error)
    elif type(error).__module__.startswith("accelmetrics."):
        words = str(error)
    else:
        import traceback  # can word even an exception whose ``str`` fails

        words = "".join(traceback.format_exception_only(type(error), error)).strip()
    return Unavailable(reason, without_secrets(words)[:LONGEST])


class Tap(Protocol):
    """Makes a call and records it, or answers it from a recording."""

    @property
    def moment(self) -> float | None:
        """When a replay began, on the monotonic clock; None for a tap that makes the calls."""
        ...

    def __call__(self, call: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any: ...


TAPS: list[Tap] = []
"""The taps. The last one is in use, if there is any."""


def counted_at(now: float) -> float:
    """Return the time of counters that are read now. In a replay it is always the same moment, so that no rates are computed.

    A recording holds each file once, and its commands answer sooner or later than they did, so a rate would be wrong.

    Args:
        now: The time on the monotonic clock.
    """
    moment = TAPS[-1].moment if TAPS else None
    return now if moment is None else moment


def through(call: Callable[P, T]) -> Callable[P, T]:
    """Pass a function's calls to the tap while there is one."""

    @wraps(call)
    def tapped(*arguments: P.args, **options: P.kwargs) -> T:
        if not TAPS:
            return call(*arguments, **options)
        answer: T = TAPS[-1](call, arguments, options)
        return answer

    return tapped
