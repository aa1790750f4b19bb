"""Tables that map a vendor's record to metrics, with the place and the unit of each value.

A record holds the values of one device as a source reports them: an object of a document, a row of a table, a directory of files. A
table of rows maps it to metrics::

    FIELDS = (
        Field("powerWatts", "card_power", "W"),
        Field("memoryAllocatedBytes", "memory.used", "B"),                 # a path into the document
        Field("memoryTotalBytes", ("memory.total", "memory.capacity"), "B"),       # several spellings, tried in order
        *MEMORY,                                                           # share and rest of the two above
        Rate("gpu", "busy_time", "us"),                                    # from a counter
    )

Values are in the catalogue's unit and plausible: by unit, by metric, and in relation to one another. Any other value is
``invalid_value``. Placeholders such as ``N/A`` are never values: every other answer becomes the reason why the metric is missing.

- Absent sensors answer with numbers: 65535 or -273 °C, or an all-ones register of microwatts that reads as 4294.97 W.
- No device has a limit, a size, a link, a threshold or a highest clock of 0.
- A device may draw up to ten times its power limit for a moment. A limit of less than half a watt means that there is no limit.
- A chip is below 0 °C only if it is idle in a cold place. A negative temperature is rejected if the chip computes, draws more than
  a quarter of its limit, or has another sensor at 20 °C or more. Temperatures below -40 °C are always rejected, since no chip is
  made for them.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from accelmetrics.backends.contract import MOST_DEVICES, TIMES_LIMIT, Block, Number, Processes, Reading, Value
from accelmetrics.backends.guard import counted_at
from accelmetrics.schemas.catalogue import CATALOGUE, match
from accelmetrics.schemas.errors import Reason, Unavailable, UnknownNameError
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.text import clipped, printable

PRINTED = "printed"
"""A field's unit that means: the source must print a unit after the number."""

_NUMBER = re.compile(r"([+-]?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|inf(?:inity)?))\s*([^\d\s].*)?", re.IGNORECASE | re.ASCII)
_ABSENT = re.compile(
    r"[\s\[\]()*-]*(n ?/? ?a\b.*|none|null|nan\b.*|unknown|unsupported|secondary die|not? (support|available|data)\w*\b.*"
    r"|invalid argument|.*does ?n[o']t (exist|support)\b.*)?[\s\[\]()*-]*",
    re.IGNORECASE | re.ASCII,
)
DENIED = re.compile(r"permi(ssion|tted)|privilege|superuser", re.IGNORECASE)
"""Matches a tool's message that this user lacks permission."""
LONGEST = 120
"""Longest value in characters. Longer texts are never values, and are not worth matching."""

_UNITS: dict[str, tuple[str, float]] = {
    **{"1": ("1", 1), "gt/s": ("gt/s", 1), "rpm": ("rpm", 1)},
    **{"ratio": ("ratio", 1), "%": ("ratio", 1e-2), "permille": ("ratio", 1e-3)},
    **{"kw": ("w", 1e3), "w": ("w", 1), "watts": ("w", 1), "mw": ("w", 1e-3), "uw": ("w", 1e-6)},
    **{"kj": ("j", 1e3), "j": ("j", 1), "mj": ("j", 1e-3), "uj": ("j", 1e-6)},
    **{"mc": ("c", 1e-3), **dict.fromkeys(("c", "cel", "celsius", "celsius degree", "degree c"), ("c", 1))},
    **{"ghz": ("hz", 1e9), "mhz": ("hz", 1e6), "khz": ("hz", 1e3), "hz": ("hz", 1)},
    **{"s": ("s", 1), "ms": ("s", 1e-3), "us": ("s", 1e-6), "ns": ("s", 1e-9)},
    # Memory counts in powers of 1024: every vendor's tool that prints MB of memory means 1,048,576 bytes.
    **dict.fromkeys(("b", "by", "byte", "bytes"), ("b", 1)),
    **{f"{prefix}{unit}": ("b", 1024**power) for power, prefix in enumerate("kmgt", 1) for unit in ("b", "ib", "iby")},
    **{f"{prefix}{unit}": ("b/s", 1000**power) for power, prefix in enumerate(("", *"kmg")) for unit in ("b/s", "by/s")},
    **{f"{prefix}ib/s": ("b/s", 1024**power) for power, prefix in enumerate("kmg", 1)},
    "mbit/s": ("b/s", 125_000),
}
"""Base unit and factor by unit in lower case."""
PER_SECOND = {"j": "w", "s": "ratio", "b": "b/s", "1": "1"}
"""Unit of a counter's rise per second, by the counter's base unit."""
# Tools print the micro sign as either of two characters, and degrees with or without their sign.
_SPELLINGS = str.maketrans({"°": "", "'": "", "℃": "C", "µ": "u", "μ": "u"})
BY_UNIT: dict[str, tuple[float, float]] = {
    "%": (0, 1000),
    "W": (0, 4000),
    "Cel": (-40, 150),
    "MHz": (0, 20_000),
    "By": (0, 2**50),
    "By/s": (0, 2**50),
    "J": (0, 1e13),
    "GT/s": (0, 1000),
    "rpm": (0, 100_000),
    "s": (0, 1e9),
    "us": (0, 1e15),
    "1": (0, 2**53),
}
"""Smallest and largest value by the catalogue's unit."""
# Registers of absent sensors read as all ones.
ALL_ONES = (2**32 - 1, 2**64 - 1)
STEADY = frozenset(
    {
        *("enforcedPowerLimitWatts", "memoryTotalBytes", "maxSmClock", "maxMemoryClock", "tempLimit.slowdown", "tempLimit.shutdown"),
        *("pcieLinkGen", "pcieLinkWidth", "maxPcieLinkGen", "maxPcieLinkWidth"),
    }
)
"""Metrics that seldom change: limits, sizes, links, highest clocks."""
NEVER_ZERO = STEADY | {"energyJoules"}
"""Metrics for which 0 means that there is no value."""
ACTIVITY = ("gpu", "utilization", "ipu utilisation (%)", "neuroncore_utilization", "dutyCycle")


def quoted(value: object) -> str:
    """Return a printed value for use in a reason's detail, shortened to 120 characters."""
    if isinstance(value, int) and value.bit_length() > 8 * LONGEST:
        return f"a number of {value.bit_length()} bits"  # Python refuses to print more than 4,300 digits
    # A document may be too deep or too long for repr().
    if not isinstance(value, str):
        value = reprlib.repr(value) if isinstance(value, (Mapping, list, tuple)) else repr(value)
    return printable(clipped(value.strip(), LONGEST))


def is_absent(value: object) -> bool:
    """Return whether a tool prints this for a missing value: ``N/A``, ``[Not Supported]``, ``-``, ``None``, or nothing at all."""
    return value is None or (isinstance(value, str) and len(value) <= LONGEST and _ABSENT.fullmatch(value) is not None)


def text(value: object) -> str:
    """Return a name or an identifier as printed, shortened to 120 characters; empty if the source has none."""
    return "" if is_absent(value) or isinstance(value, bool) or not isinstance(value, (str, int)) else quoted(value)


def whole(value: object) -> int | None:
    """Return a whole number that identifies something (an index, a process); None if the text is none."""
    digits = text(value)
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 12 else None


def coded(**codes: int) -> Callable[[object], object]:
    """Make a field's ``convert`` that maps words to numbers, ignoring case and treating ``_`` as a blank.

    A text that is none of the words is returned unchanged.
    """
    known = {word.replace("_", " "): code for word, code in codes.items()}
    return lambda said: known.get(text(said).lower().replace("_", " "), said)


switched = coded(on=1, enable=1, enabled=1, off=0, disable=0, disabled=0)
"""Convert ``on`` and ``enabled`` to 1, ``off`` and ``disabled`` to 0; return other texts unchanged."""


def number(printed: object, unit: str = "", target: str = "1") -> Value:
    """Parse a printed value.

    Args:
        printed: A text or a number. A reason is returned unchanged.
        unit: The unit of a number printed without one; :data:`PRINTED` if the number must have one.
        target: The unit to convert to.

    Returns:
        The number, as an int if it is whole; or ``not_supported``, ``parse_error``, ``invalid_value``, ``no_permission``.
    """
    if isinstance(printed, Unavailable):
        return printed
    if isinstance(printed, str) and printed.isdecimal() and printed.isascii() and len(printed) <= LONGEST:
        printed = int(printed)  # the fast way: nearly all files hold a plain number
    if is_absent(printed):
        return Unavailable(Reason.NOT_SUPPORTED, quoted(printed) or "empty")
    printed_unit, value = "", printed
    if isinstance(printed, str):
        found = _NUMBER.fullmatch(printed.strip(" \t\r\n()")) if len(printed) <= LONGEST else None
        if found is None:
            # Some tools print a refusal in place of the number.
            denied = DENIED.search(printed, 0, LONGEST) is not None
            return Unavailable(Reason.NO_PERMISSION if denied else Reason.PARSE_ERROR, f"no number: {quoted(printed)}")
        digits, printed_unit = found[1], found[2] or ""
        value = int(digits) if digits.lstrip("+-").isdecimal() else float(digits)
    # JSON's true and false are ints in Python, but no measurement.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return Unavailable(Reason.PARSE_ERROR, f"no number: {quoted(printed)}")
    # A larger number is no measurement, and its conversion would overflow. In this form the condition is true for NaN as well.
    if not abs(value) <= 1e200:
        return Unavailable(Reason.INVALID_VALUE, quoted(printed))
    converted = None if unit == PRINTED and not printed_unit else convert(value, printed_unit or unit or target, target)
    return Unavailable(Reason.PARSE_ERROR, f"no number of {target}: {quoted(printed)}") if converted is None else converted


def convert(value: Number, unit: str, target: str) -> Number | None:
    """Convert a number to another unit; None if the units measure different things, or one is unknown."""
    factor, more = _factor(unit, target)
    return None if not factor else value * factor if more else value / factor


@lru_cache(maxsize=1024)
def _factor(unit: str, target: str) -> tuple[Number, bool]:
    """Return the factor of a conversion, and whether to multiply by it (else divide); 0 if there is no conversion."""
    source, wanted = _scale(unit), _scale(target)
    if source is None or wanted is None or source[0] != wanted[0]:
        return 0, False
    # A whole factor is exact and its fraction (0.001) is not, so a conversion to the larger unit divides.
    factor = max(source[1], wanted[1]) / min(source[1], wanted[1])
    return round(factor) if math.isclose(factor, round(factor), rel_tol=1e-9) else factor, source[1] >= wanted[1]


@lru_cache(maxsize=256)
def _scale(unit: str) -> tuple[str, float] | None:
    """Return a unit's base unit and factor. A unit may have a multiple in front: ``0.01 C`` is a hundredth of a degree."""
    multiple = re.fullmatch(r"(?a:(\d+(?:\.\d+)?)\s*(\D.*))", unit)  # only rows declare multiples: no printed unit begins with a digit
    measured = _UNITS.get((multiple[2] if multiple else unit).translate(_SPELLINGS).strip().lower())
    return (measured[0], measured[1] * float(multiple[1])) if measured and multiple else measured


def base_unit(unit: str) -> str:
    """Return the base unit of a unit; an unknown unit is returned unchanged."""
    return (_scale(unit) or (unit,))[0]


def pcie_generation(speed: object, per: float = 1) -> object:
    """Return the PCIe generation of a speed; any other value is returned unchanged.

    Args:
        speed: Transfers per lane and second, as ``16.0 GT/s PCIe`` or ``16``.
        per: Value of 1 GT/s in the speed's unit.
    """
    match = re.fullmatch(r"(?a:(\d{1,6}(?:\.\d*)?)(?: *GT/s.*)?)", quoted(speed))
    if match is None:
        return speed
    transfers = float(match[1]) / per
    return {2.5: 1, 5: 2, 8: 3, 16: 4, 32: 5, 64: 6}.get(
        transfers, Unavailable(Reason.INVALID_VALUE, f"unknown PCIe speed: {transfers:g} GT/s")
    )


class Says(NamedTuple):
    """A vendor's message and its meaning.

    Attributes:
        pattern: A regular expression for the message, ignoring case.
        reason: The reason that it means.
        message: An explanation in words; the vendor's message is quoted after it.
        advice: What to do.
        gone: Whether the message means that the driver is gone. The driver is then opened again once it is back.
    """

    pattern: str
    reason: Reason
    message: str = ""
    advice: str = ""
    gone: bool = False


class Field(NamedTuple):
    """A metric that is read directly from the record.

    Attributes:
        metric: The catalogue's name. A name that begins with ``_`` is an input of derived rows only. A name with a placeholder
            (``{link}``) is read once for each instance in the record: a link, a chip.
        where: The place in the record: a key, or a path of keys and list positions joined by dots, ignoring case. Several places
            are tried in order until one has a value. A wrong value ends the search; a missing one does not. Once a place had a
            value, only that place is read. ``{}`` is replaced by the instance.
        unit: The unit of a number printed without one; :data:`PRINTED` if the number must have one; the metric's own unit by
            default.
        convert: Applied to the raw value first. Returns text, a number, a reason, or None for nothing.
        zero_is_missing: Whether a 0 is no measurement. Limits, sizes and links imply it.
        high: The largest plausible value in the metric's unit, if it differs from the unit's.
        in_use: Whether the source reports it only while a program uses the device.
        words: The place in words, for the documentation; made from ``where`` by default.
        of_whole: Whether the value belongs to the card or board that the device is a part of. Only the first part then reports it.
    """

    metric: str
    where: str | tuple[str, ...]
    unit: str = ""
    convert: Callable[[Any], object] | None = None
    zero_is_missing: bool = False
    high: float | None = None
    in_use: bool = False
    words: str = ""
    of_whole: bool = False


class Rate(NamedTuple):
    """A metric that is a counter's rise between two readings of the same consumer.

    The counter's unit determines the metric: energy gives power, time a share of time, bytes give bytes per second, a count a
    number per second.

    Attributes:
        metric: The catalogue's name.
        where: The counter's place, as in :class:`Field`.
        unit: The counter's unit.
        bits: The width of a counter that wraps, in bits; 0 for a counter that restarts when it falls.
        pace: Shortest interval of a rate in seconds. Until it has passed, the last rate is repeated.
        rose: Whether to report only that the counter rose, as 1 or 0.
        words: As in :class:`Field`.
        of_whole: As in :class:`Field`.
        within: Seconds within which the counter may wrap. Longer intervals give no rate. 0 if it does not wrap that soon.
        zero_is_missing: Whether a counter at 0 is unused. The next place is then tried, and a counter that does not move gives no
            rate.
    """

    metric: str
    where: str | tuple[str, ...]
    unit: str
    bits: int = 0
    pace: float = 0.0
    rose: bool = False
    words: str = ""
    of_whole: bool = False
    within: float = 0.0
    zero_is_missing: bool = False


class Derived(NamedTuple):
    """A metric computed from other metrics of the same device. If an input is missing, the reason of the first missing one applies.

    Attributes:
        metric: The catalogue's name.
        inputs: The names of the inputs.
        compute: Computes the value from the inputs' numbers.
        words: The formula, for the documentation.
    """

    metric: str
    inputs: tuple[str, ...]
    compute: Callable[..., Number]
    words: str


Row = Field | Rate | Derived


def _places(row: Field | Rate) -> tuple[str, ...]:
    return (row.where,) if isinstance(row.where, str) else row.where


def share(metric: str, part: str, of: str) -> Derived:
    """Make a metric that is one metric as a percentage of another."""
    return Derived(metric, (part, of), lambda some, all_: 100 * some / all_, f"{part} / {of}")


def difference(metric: str, whole_: str, part: str) -> Derived:
    """Make a metric that is one metric minus another."""
    return Derived(metric, (whole_, part), lambda all_, some: all_ - some, f"{whole_} - {part}")


def total(metric: str, *parts: str) -> Derived:
    """Make a metric that is the sum of others."""
    return Derived(metric, parts, lambda *numbers: sum(numbers), " + ".join(parts))


MEMORY = (
    share("memoryAllocated", "memoryAllocatedBytes", "memoryTotalBytes"),
    difference("memoryFreeBytes", "memoryTotalBytes", "memoryAllocatedBytes"),
)
"""Share and free bytes, from the used and the total memory."""
POWER_SHARE = share("powerPercent", "powerWatts", "enforcedPowerLimitWatts")


class DeviceRecord:
    """The values that a source reports of one device, by place. :func:`flat` makes one from a document; subclasses read on demand.

    Args:
        places: The values, by place in lower case.
        missing: Why a device that could only be identified has no other values.
    """

    def __init__(self, places: Mapping[str, object], missing: Unavailable | None = None) -> None:
        self._places = places
        self._missing = missing

    def get(self, place: str) -> object:
        """Return the raw value at a place, ignoring case; if there is nothing, None or the reason ``missing``."""
        return self._places.get(place.lower(), self._missing)

    def instances(self, place: str) -> Iterable[str]:
        """Return the instances that replace ``{}`` in a place: the positions of a list, the keys of an object."""
        below = f"{place.lower().partition('.{}')[0]}."
        return dict.fromkeys(path[len(below) :].partition(".")[0] for path in self._places if path.startswith(below))


Printed = Mapping[str, Any] | DeviceRecord


def flat(document: object) -> DeviceRecord:
    """Make a record from a document: ``{"Memory": {"Used ": 1}}`` has the place ``memory.used``.

    A list has its positions as places, and itself. An object with a ``value`` becomes that value, with its ``unit`` after it. A
    record is returned unchanged. Parts that no row looks up are left out: places that are too deep, names that are too long, and
    items after the first 1,024 of a list or an object.
    """
    if isinstance(document, DeviceRecord):
        return document
    found: dict[str, object] = {}
    pending: list[tuple[str, object]] = [("", document)]
    # A loop, so that a deeply nested document cannot exhaust the stack.
    for path, value in pending:
        if len(pending) > 100_000:  # noise
            break
        if isinstance(value, Mapping) and "value" in value:
            plain, unit = value["value"], value.get("unit")
            value = f"{plain} {unit}" if unit and isinstance(plain, (int, float)) else plain  # noqa: PLW2901
        if not isinstance(value, Mapping):
            found[path] = value
        # No row has a longer path.
        if isinstance(value, (Mapping, list, tuple)) and not isinstance(value, Unavailable) and len(path) <= 1000:
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            named = ((str(name).strip().lower(), item) for name, item in islice(items, MOST_DEVICES))
            pending += [(f"{path}.{name}".lstrip("."), item) for name, item in named if len(name) <= LONGEST]
    return DeviceRecord(found)


NOT_READ = Unavailable(Reason.NOT_SUPPORTED, "it is not read")
Chosen = dict[str, tuple[str, str]]
"""Source and place of each metric's first value, kept while the device is open. No other source or place replaces them later, so that
a metric never changes its origin.
"""
NO_PLACE = ""
"""Place of a derived value, and of the kept value of a steady metric."""
Counters = dict[tuple[Field | Rate, str], tuple[float, Number, Value]]
"""One consumer's state by row and place, for rates: when the counter was read, its count, and the rate at that time. By row and
:data:`NO_PLACE`: when a steady metric was read, and its value.
"""


class Table:
    """A vendor's rows, bound to the catalogue. A metric may have several rows: the first one with a value counts.

    Args:
        source: The record's source in one word.
        kind: The kind of devices; empty if the rows' metrics are whole keys.
        rows: The rows.
        own: Catalogue rows that only this vendor has.
        says: The vendor's words in place of a number, and their meaning.

    Attributes:
        words: Where each name is read, in words.
        derived: The names that are computed from others.
        of_whole: Metrics that belong to the card or board that a device is a part of.

    Raises:
        UnknownNameError: The catalogue has no such metric.
    """

    def __init__(self, source: str, kind: str, rows: Sequence[Row], own: Sequence[Metric] = (), says: Sequence[Says] = ()) -> None:
        self._source = source
        self._says = tuple((re.compile(each.pattern, re.IGNORECASE), each.reason) for each in says)
        self._rows = tuple(row for row in rows if not isinstance(row, Derived))
        self._derived = tuple(row for row in rows if isinstance(row, Derived))
        self._metrics = {row.metric: _metric(row.metric, kind, own) for row in rows if not row.metric.startswith("_")}
        self._names = {name: metric.names for name, metric in self._metrics.items()}
        self._instances: dict[tuple[Field | Rate, str], Field | Rate] = {}
        self.words = joined_words((name, self._words(row)) for row in rows for name in self.names(row.metric))
        self._temperatures = [name for name, each in self._metrics.items() if each.unit == "Cel" and not name.startswith("tempLimit.")]
        self.of_whole = frozenset(row.metric for row in self._rows if row.of_whole)
        self.derived = tuple(name for row in self._derived for name in self.names(row.metric))
        # By a row's identity: to hash its fields costs more than to look it up.
        self._known: dict[tuple[int, str, str | None], Value | None] = {}

    def _words(self, row: Row) -> str:
        if row.words or isinstance(row, Derived):
            return row.words
        place = f'{self._source} "{_places(row)[0]}"'
        return f"{place}, rise per second" if isinstance(row, Rate) else place

    def needed(self, wants: Callable[[str], bool]) -> frozenset[str]:
        """Find the metrics with a wanted name, and the inputs they are computed from."""
        found = {metric for metric in self._metrics if any(map(wants, self.names(metric)))}
        for row in reversed(self._derived):  # in reverse, since an input may be a derived row before this one
            found.update(row.inputs if row.metric in found else ())
        return frozenset(found)

    def read(
        self,
        record: DeviceRecord,
        counters: Counters,
        at: float,
        idle: bool = False,
        given: Container[str] = (),
        chosen: Chosen | None = None,
        pace: float = 0.0,
    ) -> dict[str, Value]:
        """Read a record and return the values and reasons by metric. Derived rows are left to :meth:`derive`.

        Args:
            record: The record.
            counters: The state of this consumer's rates.
            at: When the record was read, on the monotonic clock.
            idle: Whether it is known that no program uses the device.
            given: Metrics that a better source has reported; they are skipped.
            chosen: Source and place of each metric's first value. New ones are added. None if any place will do.
            pace: Seconds for which values of steady metrics are kept, for a record that reads on demand.
        """
        found: dict[str, Value] = {}
        chosen = {} if chosen is None else chosen
        at, anywhere = counted_at(at), (self._source, None)
        for row in self._each(record):
            metric = row.metric
            if metric in given or (metric in found and not isinstance(found[metric], Unavailable)):
                continue
            source, only = chosen.get(metric, anywhere)
            if source != self._source or (only is not None and only not in _places(row)):
                continue
            # Limits and sizes rarely change, and each is a file or a call: they are not read at every reading.
            is_steady = pace > 0 and metric in STEADY and isinstance(row, Field)
            kept = counters.get((row, NO_PLACE)) if is_steady else None
            if kept is not None and 0 <= at - kept[0] < pace:
                found[metric] = kept[2]
                continue
            if isinstance(row, Field):
                value, place = self._field(row, record, only)
                if is_steady and not isinstance(value, Unavailable):
                    counters[row, NO_PLACE] = (at, value, value)
                if idle and row.in_use and isinstance(value, Unavailable) and value.reason == Reason.NOT_SUPPORTED:
                    value = Unavailable(Reason.NOT_IN_USE, f"no program uses this device, and {value.detail}")
            else:
                # A counter itself has no bounds; its rate does.
                value, place = self._rate(row, record, counters, at, only)
                value = self._possible(row, value)
            # A first rate has no value yet, but its place is known to have the counter.
            if place is not None and only is None and (not isinstance(value, Unavailable) or value.reason == Reason.NEEDS_INTERVAL):
                chosen[metric] = (self._source, place)
            merge(found, metric, value)
        return found

    def _each(self, record: DeviceRecord) -> Iterator[Field | Rate]:
        """Yield the rows to read, with a placeholder row repeated for each of the record's instances."""
        for row in self._rows:
            if "{" not in row.metric:
                yield row
                continue
            for instance in islice(record.instances(_places(row)[0]), MOST_DEVICES):
                # The limit is for a source that gives its links a new name at every reading.
                if (row, instance) not in self._instances and len(self._instances) < 10_000 and instance.isprintable():
                    name = _filled(row.metric, instance)
                    self._metrics[name] = self._metrics[row.metric]
                    self._names[name] = tuple(_filled(each, instance) for each in self._names[row.metric])
                    places = tuple(place.replace("{}", instance) for place in _places(row))
                    self._instances[row, instance] = row._replace(metric=name, where=places)
                if (row, instance) in self._instances:
                    yield self._instances[row, instance]

    def value(self, metric: str, record: DeviceRecord) -> Value:
        """Read a single metric from a record."""
        row = next((row for row in self._rows if row.metric == metric and isinstance(row, Field)), None)
        return NOT_READ if row is None else self._field(row, record)[0]

    def derive(self, found: dict[str, Value], chosen: Chosen | None = None) -> None:
        """Check values against one another, and add the derived metrics that were not read directly."""
        hold_together(found, self._temperatures)
        chosen = {} if chosen is None else chosen
        for row in self._derived:
            if isinstance(found.get(row.metric, NOT_READ), Unavailable) and chosen.get(row.metric, ("", NO_PLACE))[1] == NO_PLACE:
                inputs = [found[name] if name in found else Unavailable(Reason.NOT_SUPPORTED, f"{name} is not read") for name in row.inputs]
                value: Value | None = next((each for each in inputs if isinstance(each, Unavailable)), None)
                if value is None:
                    try:
                        value = row.compute(*inputs)
                    except ZeroDivisionError:
                        value = Unavailable(Reason.INVALID_VALUE, f"{row.words}: division by 0")
                value = found[row.metric] = self._possible(row, value)
                if not isinstance(value, Unavailable):
                    chosen.setdefault(row.metric, (self._source, NO_PLACE))

    def names(self, metric: str) -> tuple[str, ...]:
        """Return the catalogue's name of a metric and its aliases; none for an input that only derived rows need."""
        return self._names.get(metric, ())

    def missing(self, why: Unavailable) -> dict[str, Value]:
        """Return every metric of the rows as missing for one reason, without instances, which are unknown."""
        return {row.metric: why for row in self._rows if "{" not in row.metric}

    def _field(self, row: Field | Rate, record: DeviceRecord, only: str | None = None) -> tuple[Value, str | None]:
        """Read the first of a row's places that has a value. A counter is returned in its base unit.

        Args:
            row: The row.
            record: The record.
            only: The single place to read.

        Returns:
            The number or the reason, and the place that gave it; None as the place if there was nothing anywhere.
        """
        why: Value | None = None
        places = _places(row) if only is None else (only,)
        for place in places:
            if (raw := record.get(place)) is not None:
                value = self._same(row, place, raw) if isinstance(raw, str) and isinstance(row, Field) else self._value(row, place, raw)
                if value is not None and (not isinstance(value, Unavailable) or value.reason != Reason.NOT_SUPPORTED):
                    return value, place
                why = why or value
        return why or self._same(row, places[0], None) or NOT_READ, None

    def _same(self, row: Field | Rate, place: str, raw: str | None) -> Value | None:
        """Return :meth:`_value` from a cache: most files but counters hold the same text at the next reading, or are missing again."""
        key = (id(row), place, raw)
        if key not in self._known:
            if len(self._known) >= 2048:  # some dozen rows of 64 devices
                self._known.clear()
            self._known[key] = self._value(row, place, raw)
        return self._known[key]

    def _value(self, row: Field | Rate, place: str, raw: object) -> Value | None:
        """Return the number at a place, or the reason why there is none; None if ``convert`` finds nothing in the text."""
        if raw is None:
            # A pattern of files is unreadable for a person, and the first of several places may belong to another driver.
            words = f"not found: {row.words}" if "[" in place and row.words else f'{self._source} does not report "{place}"'
            return Unavailable(Reason.NOT_SUPPORTED, words)
        if isinstance(row, Field) and row.convert is not None and not isinstance(raw, Unavailable):
            raw = row.convert(raw)
        if raw is None or isinstance(raw, Unavailable):
            return raw
        metric = self._metrics.get(row.metric)
        target = metric.unit if metric is not None and isinstance(row, Field) else base_unit(row.unit or "1")
        value = number(raw, row.unit, target)
        if value == 0 and self._zero_is_missing(row):
            value = Unavailable(Reason.NOT_SUPPORTED, f'{self._source} reports 0 for "{place}", which is no measurement')
        if isinstance(raw, str) and isinstance(value, Unavailable):
            # The vendor's own words for a missing value say more than a failed parse.
            value = value._replace(reason=next((reason for words, reason in self._says if words.search(raw)), value.reason))
        return value if isinstance(row, Rate) else self._possible(row, value)

    def _rate(self, row: Rate, record: DeviceRecord, counters: Counters, at: float, only: str | None = None) -> tuple[Value, str | None]:
        base, metric = base_unit(row.unit), self._metrics.get(row.metric)
        count, place = self._field(row, record, only)
        if isinstance(count, Unavailable) or place is None:
            # After a gap, the next count starts a new interval.
            for each in _places(row):
                counters.pop((row, each), None)
            return count, place
        before = counters.get((row, place))
        # The same record again, or one too soon after it, repeats the last rate.
        if before is not None and (at <= before[0] or at - before[0] < row.pace):
            return before[2], place
        risen = 0 if before is None else count - before[1]
        # A counter of known width that falls has wrapped.
        if risen < 0 and row.bits:
            risen += convert(2**row.bits, row.unit, base) or 0
        if before is None:
            rate: Value = Unavailable(Reason.NEEDS_INTERVAL, "the first reading: a rate needs two")
        elif risen < 0:
            rate = Unavailable(Reason.NEEDS_INTERVAL, "the counter has restarted")
        elif row.within and at - before[0] > row.within:
            rate = Unavailable(Reason.NEEDS_INTERVAL, f"the counter may wrap within {row.within:g} s: take readings more often")
        elif risen == 0 and row.zero_is_missing:
            rate = Unavailable(Reason.NOT_SUPPORTED, f'{self._source} "{place}" does not rise')
        elif row.rose:
            rate = int(risen > 0)
        else:
            unit = PER_SECOND.get(base, base)
            rate = number(risen / (at - before[0]), unit, unit if metric is None else metric.unit)
        counters[row, place] = (at, count, rate)
        return rate, place

    @staticmethod
    def _zero_is_missing(row: Row) -> bool:
        return row.metric in NEVER_ZERO or (not isinstance(row, Derived) and row.zero_is_missing)

    def _possible(self, row: Row, value: Value) -> Value:
        """Return the value in the catalogue's form if it is plausible, or else a reason."""
        metric = self._metrics.get(row.metric)
        if isinstance(value, Unavailable) or metric is None:
            return value
        if metric.integer:
            if metric.unit == "1" and value != round(value):
                return Unavailable(Reason.PARSE_ERROR, "not a whole number")
            value = round(value)
        if value == 0 and isinstance(row, Derived) and self._zero_is_missing(row):
            return Unavailable(Reason.NOT_SUPPORTED, f"{self._source} reports 0 for {row.words}, which is no measurement")
        low, high = possible(metric, row.high if isinstance(row, Field) else None)
        if isinstance(row, Rate) and metric.maximum is not None and metric.maximum < value <= 1.05 * metric.maximum:
            return metric.maximum  # counter and clock are not read at the same instant, so a full share comes out slightly above it
        if low <= value <= high and value not in ALL_ONES:
            return value
        # The number is left out: it may differ at each reading, and each new reason would make a new header.
        wrong = "all bits are set, in" if value in ALL_ONES else f"below {low:g}" if value < low else f"above {high:g}"
        return Unavailable(Reason.INVALID_VALUE, f"{wrong} {metric.unit}")


@lru_cache(maxsize=1024)
def possible(metric: Metric, high: float | None = None) -> tuple[float, float]:
    """Return the smallest and the largest plausible value of a metric.

    Args:
        metric: Its row of the catalogue.
        high: The largest value, if it differs from the unit's.
    """
    low, most = BY_UNIT.get(metric.unit, (-math.inf, math.inf))
    # A smaller limit or threshold means that there is none.
    low = {"enforcedPowerLimitWatts": 0.5, "tempLimit.slowdown": 20, "tempLimit.shutdown": 20}.get(metric.name, low)
    most = most if high is None else high
    return (
        low if metric.minimum is None else max(low, metric.minimum),
        most if metric.maximum is None else min(most, metric.maximum),
    )


def hold_together(found: dict[str, Value], temperatures: Iterable[str]) -> None:
    """Replace implausible values of one device by a reason, judged by its other values.

    Args:
        found: Its values and reasons, by metric.
        temperatures: The metrics that are temperatures of the chip.
    """
    names = ("powerWatts", "enforcedPowerLimitWatts", *ACTIVITY, *temperatures)
    known = {name: value for name in names if name in found and not isinstance(value := found[name], Unavailable)}
    power, limit = known.get("powerWatts"), known.get("enforcedPowerLimitWatts")
    if power is not None and limit is not None and power > TIMES_LIMIT * limit:
        found["powerWatts"] = Unavailable(Reason.INVALID_VALUE, f"above {TIMES_LIMIT} times the limit of {limit:g} W")
    degrees = {name: known[name] for name in temperatures if name in known}
    cold = [name for name, value in degrees.items() if value < 0]
    # Without a known limit no draw counts as work. No sensor of an idle chip reaches 20 °C in a cold place.
    is_drawing = (power or 0) > 0.25 * (math.inf if limit is None else limit)
    if cold and (is_drawing or any(known.get(name, 0) > 0 for name in ACTIVITY) or max(degrees.values()) >= 20):
        found.update(dict.fromkeys(cold, Unavailable(Reason.INVALID_VALUE, "below 0 °C while the chip works")))


def merge(found: dict[str, Value], metric: str, value: Value) -> None:
    """Record the value of one more row or source: a value replaces a reason, and the first of two values is kept."""
    known = found.get(metric)
    # Sources come in order of preference, so the first value is the best.
    if known is None or (isinstance(known, Unavailable) and not isinstance(value, Unavailable)):
        found[metric] = value
    elif isinstance(known, Unavailable) and isinstance(value, Unavailable):
        found[metric] = weightier(known, value)


def joined_words(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return by name where each row or source reads it, the best first."""
    found: dict[str, str] = {}
    for name, words in pairs:
        known = found.setdefault(name, words)
        if words not in known:
            found[name] = f"{known}; else {words}"
    return found


def weightier(one: Unavailable, other: Unavailable) -> Unavailable:
    """Combine the reasons of two sources for one missing value, with the details of both.

    The reason of a source that is present outweighs that of an absent one. A value that may come later outweighs one that is never
    available.
    """
    ranks: dict[str, int] = {Reason.DRIVER_UNAVAILABLE: 0, Reason.NOT_SUPPORTED: 1}
    stronger = max(one, other, key=lambda each: ranks.get(each.reason, 2))  # the first of two equal ranks
    return Unavailable(stronger.reason, one.detail if other.detail in one.detail else f"{one.detail}; {other.detail}")


def _filled(template: str, instance: str) -> str:
    """Put the instance into a name's placeholder."""
    return re.sub(r"\{\w*\}", lambda _: instance, template)  # a plain replacement would read its backslashes


def _metric(name: str, kind: str, own: Sequence[Metric]) -> Metric:
    row = next((row for row in own if row.name == name), None) or match(f"{kind}.0.{name}" if kind else name)
    if row is None:
        raise UnknownNameError("metric", name, (row.name for row in (*own, *CATALOGUE)))
    return row


def make_reading(
    found: Mapping[str, Value],
    processes: Processes = None,
    read_at: float | None = None,
    used: Mapping[str, Number] | None = None,
) -> Reading:
    """Make the reading of a unit.

    Args:
        found: Each metric's value or the reason why it is missing.
        processes: The processes that use the device, or why they are not known; None if the source lists processes of no device.
        read_at: When the source took the numbers, in seconds on the monotonic clock; None for now.
        used: The watched process's use of the device, by metric.
    """
    values = {name: value for name, value in found.items() if not isinstance(value, Unavailable)}
    blocks = [Block(tuple(values), tuple(values.values()))]
    if used is not None:
        blocks.append(Block(tuple(used), tuple(used.values()), process=True))
    return Reading(blocks, {name: value for name, value in found.items() if isinstance(value, Unavailable)}, processes, read_at)
