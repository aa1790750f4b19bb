"""What the parsers and the parts share: checked integers, counters as one reader sees them, a pace."""

from __future__ import annotations

from collections.abc import Mapping

from accelmetrics.schemas.reasons import Reason, Unavailable

MIB = 1024 * 1024
GIB = 1024 * MIB
_LIMIT = 1 << 64

FIRST = Unavailable(Reason.NEEDS_INTERVAL, "first reading: there is nothing yet to take a difference from")
RESET = Unavailable(Reason.NEEDS_INTERVAL, "the counter began anew since the last reading")
TOO_SOON = Unavailable(Reason.NEEDS_INTERVAL, "no time has passed since the last reading")


def count(word: bytes) -> int:
    """A kernel's unsigned number. Anything else, larger than 64 bits too, is a ``ValueError`` that quotes it."""
    if not word.isdigit() or len(word) > 20:
        raise ValueError(f"not a number: {word[:32]!r}")
    value = int(word)
    if value >= _LIMIT:
        raise ValueError(f"not a number of 64 bits: {word!r}")
    return value


class Counter:
    """A rising number of the system, counted from this reader's first sight of it.

    A number smaller than the last one means a reset or a wrap: counting goes on from there, so that the total never falls
    and never jumps.

    Attributes:
        total: What it gained since the first sight.
        gain: What it gained since the last reading; None at the first sight and after a reset.
        seen: How many times it was read.
    """

    __slots__ = ("_last", "gain", "seen", "total")

    def __init__(self) -> None:
        self._last = 0
        self.total = 0
        self.gain: int | None = None
        self.seen = 0

    def feed(self, value: int) -> None:
        """Take the system's number."""
        known = self.seen > 0 and value >= self._last
        self.gain = value - self._last if known else None
        self.total += self.gain or 0
        self._last = value
        self.seen += 1


class SumCounter:
    """The same over instances that come and go: the total is of what each gained while it was there.

    Attributes:
        total: What they gained since the first reading.
        gain: What they gained since the last reading; None at the first, and when one of them began anew.
        seen: How many times they were read.
    """

    __slots__ = ("_last", "gain", "seen", "total")

    def __init__(self) -> None:
        self._last: Mapping[str, int] = {}
        self.total = 0
        self.gain: int | None = None
        self.seen = 0

    def feed(self, values: Mapping[str, int]) -> None:
        """Take the system's numbers by instance."""
        last = self._last
        gain = 0
        whole = self.seen > 0
        for name, value in values.items():
            before = last.get(name, value)
            gain += max(value - before, 0)
            whole = whole and value >= before
        self.gain = gain if whole else None
        self.total += gain
        self._last = values
        self.seen += 1


def per_second(gain: int | None, elapsed: float) -> float | Unavailable:
    """A gain as a rate over the seconds since the last reading."""
    if gain is None:
        return RESET
    return gain / elapsed if elapsed > 0 else TOO_SOON


class Pace:
    """Lets what moves slowly (limits, affinity) be read at most every so many seconds."""

    __slots__ = ("_due", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._due = float("-inf")

    def due(self, now: float) -> bool:
        """Whether it is time again; if so, the next time is set."""
        if now < self._due:
            return False
        self._due = now + self._seconds
        return True
