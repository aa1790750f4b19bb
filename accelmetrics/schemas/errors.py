"""Why a value is missing, and every error that accelmetrics raises on purpose.

A value that the hardware did not give is absent from ``metrics`` and present in ``unavailable`` with a :class:`Reason`. Documents
written by a newer release may carry reasons that this list does not have: readers accept any string.

::

    AccelMetricsError              carries backend, device, reason and advice; pickles
    ├── UnknownNameError           a backend, exporter, dialect, device or key that does not exist (also a ValueError)
    ├── InvalidOptionError         an option whose value cannot be used (also a ValueError)
    ├── MissingDependencyError     an optional package is not installed; the message holds the command (also an ImportError)
    ├── DocumentError              text that is not an accelmetrics document (also a ValueError)
    └── SourceError                a source could not be opened or read; raised by backends, seen by users as a reason
        ├── DriverGoneError        the driver went away: the source is closed and opened again, with back-off
        └── PartitionRemovedError  a partition was removed on purpose: it leaves the list of devices
"""

from __future__ import annotations

import copyreg
import importlib
import os
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.text import LONGEST_SHOWN, shown


class Reason(str, Enum):
    """The reasons this release gives. Members are strings: ``Reason.TIMED_OUT == "timed_out"``."""

    NOT_SUPPORTED = "not_supported"
    """This device, driver or tool does not have the value, and asking again will not change that."""
    NO_PERMISSION = "no_permission"
    """The value is there, and this user may not read it."""
    DEVICE_LOST = "device_lost"
    """The device was found and has stopped answering for good (fell off the bus)."""
    DRIVER_UNAVAILABLE = "driver_unavailable"
    """The driver is not loaded, is being reloaded, or does not match its library."""
    TIMED_OUT = "timed_out"
    """A vendor call is in progress and has not answered within the deadline."""
    PARSE_ERROR = "parse_error"
    """The source answered in a form that is not understood."""
    STALE = "stale"
    """The last answer is older than two of the source's intervals plus the timeout."""
    NOT_IN_USE = "not_in_use"
    """The device answers only while a program holds it, and none does."""
    SUSPENDED = "suspended"
    """The device is powered down, and reading it would wake it."""
    NEEDS_INTERVAL = "needs_interval"
    """A rate, on its first reading: there is nothing yet to take a difference from."""
    DRIVER_ERROR = "driver_error"
    """The driver answered with an error that is none of the above."""
    RESET_REQUIRED = "reset_required"
    """The device must be reset before it answers again."""
    INVALID_VALUE = "invalid_value"
    """The driver answered something impossible (an all-ones integer, a utilisation of 4,000 %)."""

    __str__ = str.__str__


IN_ORDER = frozenset({Reason.NOT_SUPPORTED, Reason.NO_PERMISSION, Reason.NOT_IN_USE, Reason.SUSPENDED, Reason.NEEDS_INTERVAL})
"""Reasons that say nothing against the device: one that gives no value for these alone is as it should be."""
WORDS: Mapping[str, str] = {
    Reason.NOT_SUPPORTED: "n/a",
    Reason.NO_PERMISSION: "no right",
    Reason.DEVICE_LOST: "lost",
    Reason.DRIVER_UNAVAILABLE: "no driver",
    Reason.TIMED_OUT: "timed out",
    Reason.PARSE_ERROR: "unreadable",
    Reason.STALE: "stale",
    Reason.NOT_IN_USE: "unused",
    Reason.SUSPENDED: "asleep",
    Reason.NEEDS_INTERVAL: "wait",
    Reason.DRIVER_ERROR: "error",
    Reason.RESET_REQUIRED: "reset due",
    Reason.INVALID_VALUE: "bad value",
}
"""How every surface says in place of a value why it is missing."""
ADVICE: Mapping[str, str] = {
    Reason.NO_PERMISSION: "run as a user that may read it (root, or a group that owns the device nodes)",
    Reason.DEVICE_LOST: "look at the kernel's log (dmesg); the device comes back with a reset or a reboot, if the hardware is sound",
    Reason.DRIVER_UNAVAILABLE: "load the vendor's driver, or install the one that fits the kernel and the vendor's library; see dmesg",
    Reason.TIMED_OUT: "look at the kernel's log (dmesg), and whether the vendor's own tool hangs too; try a longer --timeout",
    Reason.RESET_REQUIRED: "stop what runs on the device and reset it with the vendor's tool, or reboot",
    Reason.PARSE_ERROR: "report it with the output of the vendor's tool: its form is not one that this release knows",
}
"""What to do where neither detection nor the driver says it."""


class Unavailable(NamedTuple):
    """One missing value: the reason (a :class:`Reason`, or a string from a newer release) and what exactly was said.

    ``detail`` holds no number that may differ at each reading: readings with the same reasons share a header.
    """

    reason: str
    detail: str = ""


_NAME_AND_PASSWORD = re.compile(r"(?<=://)\S*(?=@)|[^\s:/@'\"(]+:(?!\S*://)[^\s/]\S*(?=@)")
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|HEADERS)$")
"""How the names of variables end that hold a secret: WANDB_API_KEY, MLFLOW_TRACKING_PASSWORD."""
SHORTEST_SECRET = 8
"""Characters below which a variable's value is taken for no secret: it may be part of any word."""
HIDDEN = "***"


def without_passwords(text: str) -> str:
    """Return a text with what stands before the ``@`` of an address left out, where that may be a name and a password."""
    return _NAME_AND_PASSWORD.sub(HIDDEN, text) if "@" in text else text


def without_secrets(text: str) -> str:
    """Return a text without passwords in addresses, and without what variables of the environment hold that are secret by their names."""
    for name in list(os.environ):
        value = os.environ.get(name, "")  # another thread may have removed it
        if _SECRET.search(name) and len(value) >= SHORTEST_SECRET:
            text = text.replace(value, HIDDEN)
    return without_passwords(text)


class AccelMetricsError(Exception):
    """The root of the tree.

    Args:
        message: What is wrong, in words; a password in an address is left out.
        backend: The backend concerned, if one is.
        device: The device concerned (a key such as ``gpu.0``), if one is.
        reason: The reason under which values go missing because of this.
        advice: What the reader can do about it.
    """

    def __init__(self, message: str, *, backend: str = "", device: str = "", reason: str = "", advice: str = "") -> None:
        message = without_passwords(message)
        super().__init__(message)
        self.message = message
        self.backend = backend
        self.device = device
        self.reason = reason
        self.advice = advice

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle through ``__new__`` and the attributes, so that subclasses may have any signature."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]  # typeshed leaves it out


class UnknownNameError(AccelMetricsError, ValueError):
    """Something was asked for by a name that does not exist; the message lists what there is, and suggests the nearest."""

    LISTED = 40
    """Names that a message lists at most."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        import difflib  # a millisecond, spent on mistakes alone

        choices = list(dict.fromkeys(known))
        near = difflib.get_close_matches(name, choices, n=1) if len(name) <= LONGEST_SHOWN else []
        hint = f" Did you mean {near[0]!r}?" if near else ""
        more = len(choices) - self.LISTED
        listed = ", ".join(choices[: self.LISTED]) + (f" and {more} more" if more > 0 else "") or "none"
        super().__init__(f"unknown {what} {shown(name)}.{hint} Known: {listed}")


class InvalidOptionError(AccelMetricsError, ValueError):
    """An option has a value that cannot be used; the message names the option, the value and what is allowed."""


class MissingDependencyError(AccelMetricsError, ImportError):
    """A package that an extra brings is not installed."""

    def __init__(self, package: str, extra: str, *, backend: str = "") -> None:
        command = f"pip install 'accelmetrics[{extra}]'"
        super().__init__(
            f"the package {package!r} is not installed: {command}", backend=backend, reason=Reason.DRIVER_UNAVAILABLE, advice=command
        )


class DocumentError(AccelMetricsError, ValueError):
    """A text that should be an accelmetrics document is not; the message says where it departs."""


class SourceError(AccelMetricsError):
    """A source could not be opened or read. ``reason`` becomes the reason of every value that it would have given."""

    def __init__(self, reason: str, message: str, *, backend: str = "", device: str = "", advice: str = "") -> None:
        super().__init__(message, backend=backend, device=device, reason=reason, advice=advice)

    @property
    def unavailable(self) -> Unavailable:
        """The same, as it stands in ``snapshot.unavailable``."""
        return Unavailable(self.reason, self.message)


class DriverGoneError(SourceError):
    """The driver went away (unloaded, reset, updated). Raised by a reading, it makes the source close and reopen."""


class PartitionRemovedError(SourceError):
    """A partition was removed on purpose, as its device says. It is off the list until a reading gives something of it again."""


def require(module: str, extra: str, package: str = "") -> Any:
    """Import a module of a package that an extra brings.

    A directory without code that happens to bear the name, as W&B makes one called ``wandb``, is not the package.

    Raises:
        MissingDependencyError: The package is not installed.
    """
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        found = None
    if found is None or getattr(found, "__file__", None) is None:
        raise MissingDependencyError(package or module.partition(".")[0], extra) from None
    return found
