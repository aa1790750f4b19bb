"""Where the answers of a machine's commands and libraries can be recorded, and given from a record.

A function that runs a command or loads a library goes ``through`` here. Without a tap that is one look at an empty list beside a call that
takes milliseconds. Files need no tap: ``ACCELMETRICS_SYSROOT`` stands for the machine's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Tap(Protocol):
    """Makes a call, or answers it in the machine's place."""

    @property
    def moment(self) -> float | None:
        """When it began to answer, on the monotonic clock; None for a tap that makes the calls."""
        ...

    def __call__(self, call: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any: ...


TAPS: list[Tap] = []
"""The tap that is in use, if there is one, is the last."""


def counted_at(now: float) -> float:
    """Return when counters were read that are read now: at one and the same moment where a tap answers, so that no rate is taken of them.

    A recording holds each file once, and its commands are answered sooner or later than they were.

    Args:
        now: The monotonic clock.
    """
    moment = TAPS[-1].moment if TAPS else None
    return now if moment is None else moment


def through(call: Callable[P, T]) -> Callable[P, T]:
    """Let a tap have a function's calls, as long as there is one."""

    @wraps(call)
    def tapped(*arguments: P.args, **options: P.kwargs) -> T:
        if not TAPS:
            return call(*arguments, **options)
        answer: T = TAPS[-1](call, arguments, options)
        return answer

    return tapped
