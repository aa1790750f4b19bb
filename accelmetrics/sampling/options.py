"""The options of a sampler, checked once, and the selection of devices."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from accelmetrics.backends.contract import ReadOptions
from accelmetrics.schemas.errors import InvalidOptionError, UnknownNameError
from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.limits import MAX_SECONDS
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.selection import ALL, ALL_METRICS, MetricChoice, MetricSelection

Isolation = Literal["thread", "process"]
Choice = int | str
Visible = bool | Literal["renumber"]

DEFAULT_TIMEOUT = 1.0
DEFAULT_OPEN_TIMEOUT = 10.0
MIN_UUID_PREFIX = 8
"""Shorter beginnings of a UUID, for example ``GPU-1``, are more likely a mistake than a choice."""


class Options(NamedTuple):
    """The checked options of a sampler.

    Attributes:
        pid: The watched process; None for the process that samples (after a fork: the child).
        children: Whether its descendants are watched too.
        disk_paths: Mount points whose usage is reported.
        gpus: The requested devices, by number, key or UUID; None for all.
        timeout: Seconds within which a reading is answered.
        open_timeout: Seconds the first reading waits for sources that are still opening.
        watched: Whether the user named the process. ``pid`` does not show this, since it is always set in a child process.
        visible: Whether only the devices that the watched process sees are reported; ``"renumber"`` also applies its numbers.
        metrics: The metrics that are reported.
    """

    pid: int | None
    children: bool
    disk_paths: tuple[str, ...]
    gpus: tuple[Choice, ...] | None
    timeout: float
    open_timeout: float
    watched: bool = False
    visible: Visible = False
    metrics: MetricSelection = ALL_METRICS

    def read_options(self) -> ReadOptions:
        """Return the options that every source gets, for reading in this process."""
        # Resolved at each call, since after a fork "this process" is the child.
        return ReadOptions(os.getpid() if self.pid is None else self.pid, self.children, self.disk_paths, self.watched, self.metrics)


def checked(
    *,
    gpus: Sequence[Choice] | None = None,
    pid: int | None = None,
    children: bool = False,
    disk_paths: Sequence[str] = ("/",),
    timeout: float = DEFAULT_TIMEOUT,
    open_timeout: float = DEFAULT_OPEN_TIMEOUT,
    visible: Visible = False,
    metrics: MetricChoice = ALL,
) -> Options:
    """Return the options of a sampler, checked.

    Raises:
        InvalidOptionError: An option has an invalid value. The message names the option, the value and the valid values.
        UnknownNameError: ``metrics`` contains a name that no metric has.
    """
    if pid is not None and not (_is_count(pid) and pid):
        raise InvalidOptionError(f"pid is {pid!r}: it must be a process id, a whole number above 0")
    if visible not in (True, False, "renumber"):
        raise InvalidOptionError(f"visible is {visible!r}: it must be True, False or 'renumber'")
    times: tuple[tuple[str, object], ...] = (("timeout", timeout), ("open_timeout", open_timeout))
    for option, value in times:
        # In Python a bool is an int, so `timeout=True` would otherwise be a second.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= MAX_SECONDS:
            raise InvalidOptionError(f"{option} is {value!r}: it must be a number of seconds above 0, at most {MAX_SECONDS:,.0f}")
    paths = items(disk_paths)
    if paths is None or not all(isinstance(path, str) and path for path in paths):
        raise InvalidOptionError(f"disk_paths takes a list of mount points such as ['/'], not {disk_paths!r}")
    choices = items(gpus)
    if gpus is not None:
        if choices is None:
            raise InvalidOptionError(f"gpus takes a list of numbers, keys or UUIDs, not {gpus!r}: write [{gpus!r}]")
        for choice in choices:
            if not (_is_count(choice) or (isinstance(choice, str) and choice)):
                raise InvalidOptionError(f"gpus has {choice!r}: each must be a device number, a key such as 'gpu.0', or a UUID")
        if not choices:
            raise InvalidOptionError("gpus is empty: leave it out for all devices, or select backends=['host'] for none")
    selected = MetricSelection(metrics)
    return Options(pid, bool(children), paths, choices, float(timeout), float(open_timeout), pid is not None, visible, selected)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def items(value: object) -> tuple[Any, ...] | None:
    """Return the items of an iterable as a tuple; None for anything else. A text counts as none: its items are letters."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, (str, bytes)) else None


class DeviceSelection:
    """The requested devices.

    A bare number ``n`` is the device ``gpu.n``. A device includes its partitions. Kinds that are not mentioned are left out only if
    they are GPUs: ``gpus=[0]`` does not exclude TPUs.

    Args:
        choices: The user's choice; None for everything.
    """

    def __init__(self, choices: Sequence[Choice] | None) -> None:
        self._choices = None if choices is None else tuple(f"gpu.{choice}" if str(choice).isdigit() else str(choice) for choice in choices)
        self.kinds = {"gpu", *(choice.partition(".")[0] for choice in self._choices or () if "." in choice)}

    def wants(self, slot: DeviceSlot) -> bool:
        """Return whether a device, or the parent of a partition, was requested."""
        if self._choices is None or slot.identity.kind not in self.kinds:
            return True
        parent = slot.identity.parent
        return self.names(slot) or any(
            parent and (slot.key.startswith(f"{choice}.") or _begins(parent, choice)) for choice in self._choices
        )

    def names(self, slot: DeviceSlot) -> bool:
        """Return whether a choice names this device itself, not its parent."""
        return any(choice == slot.key or _begins(slot.identity.uuid, choice) for choice in self._choices or ())

    def check(self, slots: Iterable[DeviceSlot]) -> None:
        """Refuse a choice that matches no device.

        Args:
            slots: Every device, selected or not.

        Raises:
            UnknownNameError: A choice matches no device. The message lists the devices.
        """
        listed = list(slots)
        for choice in self._choices or ():
            if not any(DeviceSelection((choice,)).names(slot) for slot in listed):
                known = [f"{slot.key} ({slot.identity.uuid})" if slot.identity.uuid else slot.key for slot in listed]
                raise UnknownNameError("device", choice, known)


def _begins(uuid: str, choice: str) -> bool:
    return bool(uuid) and uuid.lower().startswith(choice.lower()) and len(choice) >= MIN_UUID_PREFIX
