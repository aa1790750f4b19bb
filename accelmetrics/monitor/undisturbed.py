"""Runs something to its end, whatever signals come meanwhile.

Python runs signal handlers on the main thread, between any two steps of what is going on there. Ctrl-C that is raised in the
middle of a change leaves it half made, and a handler that comes to the same place meets it so. What is run here goes on by
itself: Ctrl-C interrupts only who waits for it.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from accelmetrics.backends.flag import Flag
from accelmetrics.backends.guard import Outcome, guarded

P = ParamSpec("P")
T = TypeVar("T")


def undisturbed(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What a function returns or raises; on the main thread it is called by another one, for some fifty microseconds more."""
    if threading.current_thread() is not threading.main_thread() or sys.is_finalizing():
        return call(*args, **kwargs)
    done, outcomes = Flag(), list[Outcome[T]]()

    def work() -> None:
        outcomes.append(guarded(call, *args, **kwargs))
        done.set()

    try:
        _thread.start_new_thread(work, ())  # one call in C: that of threading.Thread can be interrupted itself
    except RuntimeError:  # there is no thread to be had
        return call(*args, **kwargs)
    done.wait()
    outcome = outcomes[0]
    if outcome.error is not None:
        raise outcome.error
    return cast("T", outcome.value)
