"""Hook for recording the answers of commands and libraries, and for replaying them.

A function that runs a command or loads a library is decorated with ``through``. Without a tap, this costs one look at an empty list
for a call that takes milliseconds. Files need no tap: ``ACCELMETRICS_SYSROOT`` replaces the machine's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


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
