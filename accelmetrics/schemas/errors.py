"""The reasons for missing values, and every error that accelmetrics raises on purpose.

A value that the hardware did not give is absent from ``metrics`` and present in ``unavailable`` with a :class:`Reason`. Documents
written by a newer release may carry reasons that are unknown here: readers accept any string.

::

    AccelMetricsError              carries backend, device, reason and advice; pickles
    ├── UnknownNameError           a backend, exporter, dialect, device or key that does not exist (also a ValueError)
    ├── InvalidOptionError         an option whose value cannot be used (also a ValueError)
    ├── MissingDependencyError     an optional package is not installed; the message holds the command (also an ImportError)
    ├── DocumentError              text that is not an accelmetrics document (also a ValueError)
    └── SourceError                a source could not be opened or read; raised by backends, seen by users as a reason ├──
        DriverGoneError        the driver went away: the source is closed and opened again, with back-off └── PartitionRemovedError  a
        partition was removed on purpose: it leaves the list of devices
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
    """The reasons of this release. Members are strings: ``Reason.TIMED_OUT == "timed_out"``."""

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
"""Reasons that do not indicate a fault. A device that lacks values only for these reasons is healthy."""
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
"""The word that every view shows in place of a missing value."""
ADVICE: Mapping[str, str] = {
    Reason.NO_PERMISSION: "run as a user that may read it (root, or a group that owns the device nodes)",
    Reason.DEVICE_LOST: "look at the kernel's log (dmesg); the device comes back with a reset or a reboot, if the hardware is sound",
    Reason.DRIVER_UNAVAILABLE: "load the vendor's driver, or install the one that fits the kernel and the vendor's library; see dmesg",
    Reason.TIMED_OUT: "look at the kernel's log (dmesg), and whether the vendor's own tool hangs too; try a longer --timeout",
    Reason.RESET_REQUIRED: "stop what runs on the device and reset it with the vendor's tool, or reboot",
    Reason.PARSE_ERROR: "report it with the output of the vendor's tool: its form is not one that this release knows",
}
"""Advice for reasons without advice from detection or the driver."""


class Unavailable(NamedTuple):
    """Why a value is missing.

    Attributes:
        reason: The reason in one word, for programs; readers accept unknown reasons. It is a :class:`Reason`, or a string from a newer
            release.
        detail: The source's own message. It must not contain numbers that change from reading to reading: readings with equal reasons
            share a header.
    """

    reason: str
    detail: str = ""


_NAME_AND_PASSWORD = re.compile(r"(?<=://)\S*(?=@)|[^\s:/@'\"(]+:(?!\S*://)[^\s/]\S*(?=@)")
HIDDEN = "***"


def without_passwords(text: str) -> str:
    """Return a text with names and passwords in addresses (before the ``@``) masked."""
    return _NAME_AND_PASSWORD.sub(HIDDEN, text) if "@" in text else text


def without_secrets(text: str) -> str:
    """Return a text with passwords in addresses masked, and with values of secret environment variables masked.

    A variable is secret if its name ends like WANDB_API_KEY or MLFLOW_TRACKING_PASSWORD.
    """
    for name in list(os.environ):
        value = os.environ.get(name, "")  # another thread may have removed it
        # A shorter value may be part of any word.
        if name.endswith(("KEY", "TOKEN", "SECRET", "PASSWORD", "HEADERS")) and len(value) >= 8:
            text = text.replace(value, HIDDEN)
    return without_passwords(text)


class AccelMetricsError(Exception):
    """The base class of all errors of this package.

    Args:
        message: The error in words. Passwords in addresses are masked.
        backend: The backend concerned, if any.
        device: The device concerned (its key, for example ``gpu.0``), if any.
        reason: The reason of the values that are missing because of this error.
        advice: Advice for the user.
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
    """A name does not exist. The message lists the known names and suggests the nearest."""

    LISTED = 40
    """Most names that a message lists."""

    def __init__(self, what: str, name: str, known: Iterable[str]) -> None:
        import difflib  # takes a millisecond, so it is imported only for an error

        choices = list(dict.fromkeys(known))
        near = difflib.get_close_matches(name, choices, n=1) if len(name) <= LONGEST_SHOWN else []
        hint = f" Did you mean {near[0]!r}?" if near else ""
        more = len(choices) - self.LISTED
        listed = ", ".join(choices[: self.LISTED]) + (f" and {more} more" if more > 0 else "") or "none"
        super().__init__(f"unknown {what} {shown(name)}.{hint} Known: {listed}")


class InvalidOptionError(AccelMetricsError, ValueError):
    """An option has an invalid value. The message names the option, the value and the valid values."""


class MissingDependencyError(AccelMetricsError, ImportError):
    """A package of an optional extra is not installed. The message contains the command that installs it."""

    def __init__(self, package: str, extra: str, *, backend: str = "") -> None:
        command = f"pip install 'accelmetrics[{extra}]'"
        super().__init__(
            f"the package {package!r} is not installed: {command}", backend=backend, reason=Reason.DRIVER_UNAVAILABLE, advice=command
        )


class DocumentError(AccelMetricsError, ValueError):
    """A text is not an accelmetrics document. The message says where it deviates."""


class SourceError(AccelMetricsError):
    """A source could not be opened or read. ``reason`` becomes the reason of all values that it would have given."""

    def __init__(self, reason: str, message: str, *, backend: str = "", device: str = "", advice: str = "") -> None:
        super().__init__(message, backend=backend, device=device, reason=reason, advice=advice)

    @property
    def unavailable(self) -> Unavailable:
        """The reason and the message, as an entry of ``snapshot.unavailable``."""
        return Unavailable(self.reason, self.message)


class DriverGoneError(SourceError):
    """The driver went away (unloaded, reset, updated). Raised by a reading, it makes the source close and open again."""


class PartitionRemovedError(SourceError):
    """A partition was removed on purpose, according to its device. It is listed again once a reading gives a value of it."""


def require(module: str, extra: str, package: str = "") -> Any:
    """Import a module of a package that an optional extra installs.

    Raises:
        MissingDependencyError: The package is not installed.
    """
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        found = None
    # A directory without code may have the package's name (W&B creates one called ``wandb``): it imports as a namespace
    # package without a file.
    if found is None or getattr(found, "__file__", None) is None:
        raise MissingDependencyError(package or module.partition(".")[0], extra) from None
    return found
