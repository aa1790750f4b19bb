"""What a sampler can be asked for, checked once."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Literal, NamedTuple

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.schemas.errors import InvalidOptionError

Isolation = Literal["thread", "process"]
Choice = int | str
Visible = bool | Literal["renumber"]

DEFAULT_TIMEOUT = 1.0
DEFAULT_OPEN_TIMEOUT = 10.0


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
    if isinstance(disk_paths, str) or not all(_is_text(path) for path in disk_paths):
        raise InvalidOptionError(f"disk_paths takes a list of mount points such as ['/'], not {disk_paths!r}")
    if pid is not None and not (_is_count(pid) and pid):
        raise InvalidOptionError(f"pid is {pid!r}: it must be a process id, a whole number above 0")
    if visible not in (True, False, "renumber"):
        raise InvalidOptionError(f"visible is {visible!r}: it must be True, False or 'renumber'")
    return Options(
        pid,
        bool(children),
        tuple(disk_paths),
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
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise InvalidOptionError(f"{option} is {value!r}: it must be a number of seconds above 0")
    return float(value)


def _devices(gpus: Sequence[Choice] | None) -> tuple[Choice, ...] | None:
    if gpus is None:
        return None
    if isinstance(gpus, (str, int)):
        raise InvalidOptionError(f"gpus takes a list of numbers, keys or UUIDs, not {gpus!r}: write [{gpus!r}]")
    for choice in gpus:
        if not _is_count(choice) and not _is_text(choice):
            raise InvalidOptionError(f"gpus has {choice!r}: each must be a device number, a key such as 'gpu.0', or a UUID")
    if not gpus:
        raise InvalidOptionError("gpus is empty: leave it out for all devices, or select backends=['host'] for none")
    return tuple(gpus)
