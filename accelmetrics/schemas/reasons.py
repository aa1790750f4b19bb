"""Why a value is missing.

A value that the hardware did not give is absent from ``metrics`` and present in ``unavailable`` with one of these
reasons. Documents written by a newer release may carry reasons that this list does not have: readers accept any string.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


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


class Unavailable(NamedTuple):
    """One missing value: the reason (a :class:`Reason`, or a string from a newer release) and what exactly was said."""

    reason: str
    detail: str = ""
