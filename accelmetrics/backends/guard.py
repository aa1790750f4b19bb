"""The one place that catches whatever foreign code throws: vendor calls, plug-ins, exporters, callbacks.

Everything else in the package catches only what it can name. A failure is turned into a reason, with the duration of the
call beside it, and never travels on into the program that is being watched.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, ParamSpec, TypeVar

from accelmetrics.schemas.errors import Reason, SourceError, Unavailable, without_secrets
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.text import kind_of

LONGEST = 1000
"""Characters of an exception's words that are kept: each metric that is missing for it carries them."""

P = ParamSpec("P")
T = TypeVar("T")


class Outcome(Generic[T]):
    """What a guarded call came to.

    Attributes:
        value: What it returned, None when it failed.
        failure: Why it failed, None when it did not.
        error: The exception itself, for callers that tell kinds apart; its traceback is gone, whose frames would keep all that they hold.
        seconds: How long it took.
    """

    __slots__ = ("error", "failure", "seconds", "value")

    def __init__(self, value: T | None, failure: Unavailable | None, error: BaseException | None, seconds: float) -> None:
        self.value = value
        self.failure = failure
        self.error = error
        self.seconds = seconds


class Wait(NamedTuple):
    """What a thread waits for.

    Attributes:
        tool: The path of a vendor's tool or library, or the name of a module that is imported.
        since: Since when, in nanoseconds since the epoch.
    """

    tool: str
    since: int


WAITS: dict[int, Wait] = {}
"""By thread, the tool that it waits for now."""


def at_fork(**hooks: Callable[[], object]) -> None:
    """Register functions as ``os.register_at_fork`` does; nothing where there are no forks."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**hooks)


at_fork(after_in_child=WAITS.clear)


@contextmanager
def waiting_for(tool: str) -> Iterator[None]:
    """Note that this thread waits for a tool: a reading that is late for it can name it."""
    thread = threading.get_ident()
    before, WAITS[thread] = WAITS.get(thread), Wait(tool, time.time_ns())
    try:
        yield
    finally:
        WAITS.pop(thread, None)
        if before is not None:
            WAITS[thread] = before


def guarded(call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
    """Call foreign code; whatever it throws becomes a reason."""
    started = time.perf_counter()
    try:
        value = call(*args, **kwargs)
    except SourceError as error:
        reason, detail = error.unavailable
        return Outcome(None, Unavailable(reason, detail[:LONGEST]), without_frames(error), time.perf_counter() - started)
    except BaseException as error:  # the package's one broad except: foreign code may throw anything
        seconds = time.perf_counter() - started
        if _of_a_signal(error):
            raise  # the user's own: the program ends, or goes on as it says
        if call is _put_down:  # it cannot be put into words
            return Outcome(None, Unavailable(Reason.DRIVER_ERROR, kind_of(error)), error, seconds)
        worded = guarded(_put_down, error)
        return Outcome(None, worded.value or Unavailable(Reason.DRIVER_ERROR, kind_of(error)), error, seconds)
    return Outcome(value, None, None, time.perf_counter() - started)


def _put_down(error: BaseException) -> Unavailable:
    return describe(without_frames(error))


def _of_a_signal(error: BaseException | None) -> bool:
    """Return whether a signal ends the call: Ctrl-C, or a handler of the program's that exits. What a call raises by itself is none.

    A handler runs in the main thread, between two instructions of what it interrupts. The exception came through its frame, which has the
    interrupted one as its second argument. Python's own handler of Ctrl-C has no frame: then the innermost frame has no ``raise``.
    """
    if not issubclass(type(error), (KeyboardInterrupt, SystemExit)) or threading.current_thread() is not threading.main_thread():
        return False
    while error is not None:
        trace, innermost = error.__traceback__, None
        while trace is not None:
            values = [value for found in trace.tb_frame.f_locals.values() for value in (found if type(found) is tuple else (found,))]
            if trace.tb_frame.f_back is not None and any(value is trace.tb_frame.f_back for value in values):
                return True
            trace, innermost = trace.tb_next, trace
        if isinstance(error, KeyboardInterrupt) and innermost is not None:
            from opcode import opmap  # where a program is interrupted, and nowhere else

            if innermost.tb_frame.f_code.co_code[innermost.tb_lasti] != opmap["RAISE_VARARGS"]:
                return True
        error = error.__context__  # a call may raise another one in the place of Ctrl-C
    return False


def warn_user(words: str) -> None:
    """Warn of an option or a variable of the user's that cannot act: seen in programs that set up no logging too. Raises nothing."""
    import warnings

    guarded(warnings.warn, f"accelmetrics: {words}", RuntimeWarning, stacklevel=3)  # a program may have made errors of warnings


class WarnOnce:
    """Logs each kind of warning once, and raises nothing.

    Args:
        head: What the words of each begin with.
    """

    def __init__(self, head: str = "") -> None:
        self._head = head
        self._known: set[object] = set()

    def __call__(self, kind: object, words: str, *details: object) -> None:
        """Log a warning, unless there was one of this kind."""
        if kind not in self._known:
            self._known.add(kind)
            from accelmetrics.schemas.log import log  # it loads logging, which a sample alone does not need

            bounded = [detail[:LONGEST] if type(detail) is str else detail for detail in details]
            guarded(log.warning, (self._head + words)[:LONGEST], *bounded)  # a handler of the program may raise

    def user(self, kind: object, words: str) -> None:
        """As :func:`warn_user`, unless there was a warning of this kind."""
        if kind not in self._known:
            self._known.add(kind)
            warn_user(self._head + words)


def without_frames(error: BaseException) -> BaseException:
    """Take the tracebacks from an exception and from those that led to it."""
    led: BaseException | None = error
    while led is not None and led.__traceback__ is not None:
        led.__traceback__ = None
        led = led.__context__ if led.__cause__ is None else led.__cause__
    return error


def describe(error: BaseException) -> Unavailable:
    """Word an unexpected exception as a reason: its type and words, without secrets; of the package's own errors the words alone."""
    reason, words = Reason.DRIVER_ERROR, ""
    if isinstance(error, PermissionError):
        reason, words = Reason.NO_PERMISSION, str(error)
    elif type(error).__module__.startswith("accelmetrics."):
        words = str(error)
    else:
        import traceback  # knows how to put into words even an exception that cannot be printed

        words = "".join(traceback.format_exception_only(type(error), error)).strip()
    return Unavailable(reason, without_secrets(words)[:LONGEST])
