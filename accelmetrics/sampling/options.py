"""What a sampler can be asked for, checked once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.schemas.errors import InvalidOptionError

Isolation = Literal["thread", "process"]
Choice = int | str
Visible = bool | Literal["renumber"]

DEFAULT_TIMEOUT = 1.0
DEFAULT_OPEN_TIMEOUT = 10.0
MAX_SECONDS = 1_000_000.0
"""Eleven days, as on the command line: longer than anybody waits, and within what every platform's clocks take."""


class Options(NamedTuple):
    """The checked options of a sampler.

    Attributes:
        pid: The watched process; None for the one that samples (after a fork: the child).
        children: Whether its descendants are watched with it.
        disk_paths: Mount points whose usage is reported.
        gpus: The devices asked for, by number, key or UUID; None for all.
        timeout: Seconds within which a reading is answered.
        open_timeout: Seconds the first reading waits for sources that are still opening.
        watched: Whether the process was named: kept apart from ``pid``, which a child process is told in any case.
        visible: Whether only the devices that the watched process sees are reported, or those under its own numbers.
    """

    pid: int | None
    children: bool
    disk_paths: tuple[str, ...]
    gpus: tuple[Choice, ...] | None
    timeout: float
    open_timeout: float
    watched: bool = False
    visible: Visible = False

    def read_options(self) -> ReadOptions:
        """What every source is told, in this process."""
        return ReadOptions(os.getpid() if self.pid is None else self.pid, self.children, self.disk_paths, self.watched)


def checked(
    *,
    gpus: Sequence[Choice] | None,
    pid: int | None,
    children: bool,
    disk_paths: Sequence[str],
    timeout: float,
    open_timeout: float,
    visible: Visible = False,
) -> Options:
    """Check what a user asked for.

    Raises:
        InvalidOptionError: Naming the option, its value and what is allowed.
    """
    if pid is not None and not (_is_count(pid) and pid):
        raise InvalidOptionError(f"pid is {pid!r}: it must be a process id, a whole number above 0")
    if visible not in (True, False, "renumber"):
        raise InvalidOptionError(f"visible is {visible!r}: it must be True, False or 'renumber'")
    return Options(
        pid,
        bool(children),
        _paths(disk_paths),
        _devices(gpus),
        _seconds("timeout", timeout),
        _seconds("open_timeout", open_timeout),
        pid is not None,
        visible,
    )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _seconds(option: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MAX_SECONDS:
        raise InvalidOptionError(f"{option} is {value!r}: it must be a number of seconds above 0, at most {MAX_SECONDS:,.0f}")
    return float(value)


def _paths(disk_paths: Sequence[str]) -> tuple[str, ...]:
    paths = _items(disk_paths)
    if paths is None or not all(_is_text(path) for path in paths):
        raise InvalidOptionError(f"disk_paths takes a list of mount points such as ['/'], not {disk_paths!r}")
    return paths


def _devices(gpus: Sequence[Choice] | None) -> tuple[Choice, ...] | None:
    if gpus is None:
        return None
    choices = _items(gpus)
    if choices is None:
        raise InvalidOptionError(f"gpus takes a list of numbers, keys or UUIDs, not {gpus!r}: write [{gpus!r}]")
    for choice in choices:
        if not _is_count(choice) and not _is_text(choice):
            raise InvalidOptionError(f"gpus has {choice!r}: each must be a device number, a key such as 'gpu.0', or a UUID")
    if not choices:
        raise InvalidOptionError("gpus is empty: leave it out for all devices, or select backends=['host'] for none")
    return choices


def _items(value: object) -> tuple[Any, ...] | None:
    """What a list has; None when it is none, or is a text, whose items are its letters."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else None
