"""Which metric is read from where in a vendor's record, in which unit.

A record is what a source says of one device: a document's object, a row of a table, a directory of files. A table of rows says what
becomes of it::

    FIELDS = (
        Field("powerWatts", "card_power", "W"),
        Field("memoryAllocatedBytes", "memory.used", "B"),                 # a path into the document
        Field("memoryTotalBytes", ("memory.total", "memory.capacity"), "B"),       # several spellings, tried in order
        *MEMORY,                                                           # share and rest of the two above
        Rate("gpu", "busy_time", "us"),                                    # from a counter
    )

What a row gives is in the catalogue's unit, possible, and never a stand-in: every other answer becomes a reason.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from accelmetrics.backends.contract import MOST_DEVICES, Block, Number, Processes, Reading, Value
from accelmetrics.backends.kit.bounds import ALL_ONES, NEVER_ZERO, STEADY, hold_together, possible
from accelmetrics.backends.kit.tap import counted_at
from accelmetrics.schemas.catalogue import CATALOGUE, match
from accelmetrics.schemas.errors import Reason, Unavailable, UnknownNameError
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.named_tuple import NamedTuple
from accelmetrics.schemas.text import clipped, printable

PRINTED = "printed"
"""As a field's unit: the number must have its unit beside it."""

_NUMBER = re.compile(r"([+-]?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|inf(?:inity)?))\s*([^\d\s].*)?", re.IGNORECASE | re.ASCII)
_ABSENT = re.compile(
    r"[\s\[\]()*-]*(n ?/? ?a\b.*|none|null|nan\b.*|unknown|unsupported|secondary die|not? (support|available|data)\w*\b.*"
    r"|invalid argument|.*does ?n[o']t (exist|support)\b.*)?[\s\[\]()*-]*",
    re.IGNORECASE | re.ASCII,
)
DENIED = re.compile(r"permi(ssion|tted)|privilege|superuser", re.IGNORECASE)
"""How tools say that this user may not."""
_PLACEHOLDER = re.compile(r"\{\w*\}")
_LONGEST = 120
"""Characters: no value is longer, and longer ones are not worth matching."""
_LONGEST_PATH = 1000
"""Characters of a path into a document: no row looks deeper."""
_MOST_PLACES = 100_000
"""Places of a document: more is noise."""
_MOST_INSTANCES = 10_000
"""Rows that are made for instances of a record over a table's life: a source whose links have ever new names gives no more."""
_MOST_KNOWN = 2048
"""Texts of a table whose numbers are kept: some dozen rows of 64 devices."""
_LARGEST = 1e200
"""What is larger is no measurement, and could not be converted."""

_UNITS: dict[str, tuple[str, float]] = {
    **{"1": ("1", 1), "gt/s": ("gt/s", 1), "rpm": ("rpm", 1)},
    **{"ratio": ("ratio", 1), "%": ("ratio", 1e-2), "permille": ("ratio", 1e-3)},
    **{"kw": ("w", 1e3), "w": ("w", 1), "watts": ("w", 1), "mw": ("w", 1e-3), "uw": ("w", 1e-6)},
    **{"kj": ("j", 1e3), "j": ("j", 1), "mj": ("j", 1e-3), "uj": ("j", 1e-6)},
    **{"mc": ("c", 1e-3), **dict.fromkeys(("c", "cel", "celsius", "celsius degree", "degree c"), ("c", 1))},
    **{"ghz": ("hz", 1e9), "mhz": ("hz", 1e6), "khz": ("hz", 1e3), "hz": ("hz", 1)},
    **{"s": ("s", 1), "ms": ("s", 1e-3), "us": ("s", 1e-6), "ns": ("s", 1e-9)},
    # Every vendor's tool that prints MB of memory means 1,048,576 bytes.
    **dict.fromkeys(("b", "by", "byte", "bytes"), ("b", 1)),
    **{f"{prefix}{unit}": ("b", 1024**power) for power, prefix in enumerate("kmgt", 1) for unit in ("b", "ib", "iby")},
    **{f"{prefix}{unit}": ("b/s", 1000**power) for power, prefix in enumerate(("", *"kmg")) for unit in ("b/s", "by/s")},
    **{f"{prefix}ib/s": ("b/s", 1024**power) for power, prefix in enumerate("kmg", 1)},
    "mbit/s": ("b/s", 125_000),
}
"""By unit in lower case: the base unit of what is measured, and how many of that it is."""
PER_SECOND = {"j": "w", "s": "ratio", "b": "b/s", "1": "1"}
"""By a counter's base unit, the unit of its rise per second."""
_SPELLINGS = str.maketrans({"°": "", "'": "", "℃": "C", "µ": "u", "μ": "u"})
GENERATIONS = {2.5: 1, 5: 2, 8: 3, 16: 4, 32: 5, 64: 6}
"""By GT/s of a lane, the PCIe generation."""
_SPEED = re.compile(r"(\d{1,6}(?:\.\d*)?)(?: *GT/s.*)?", re.ASCII)
_MULTIPLE = re.compile(r"(\d+(?:\.\d+)?)\s*(\D.*)", re.ASCII)


def quoted(value: object) -> str:
    """Return what was printed, for a reason's detail, cut to a sensible length."""
    if isinstance(value, int) and value.bit_length() > 8 * _LONGEST:
        return f"a number of {value.bit_length()} bits"  # beyond 4,300 digits Python refuses to print it
    # A document may be too deep, or too long, to be written down whole.
    said = value.strip() if isinstance(value, str) else reprlib.repr(value) if isinstance(value, (Mapping, list, tuple)) else repr(value)
    return printable(clipped(said, _LONGEST))


def is_absent(value: object) -> bool:
    """Return whether this is how a tool says that it has no value: ``N/A``, ``[Not Supported]``, ``-``, ``None``, nothing at all."""
    return value is None or (isinstance(value, str) and len(value) <= _LONGEST and _ABSENT.fullmatch(value) is not None)


def text(value: object) -> str:
    """Return a name or an identifier as printed, cut to a sensible length; empty where the source has none."""
    return "" if is_absent(value) or isinstance(value, bool) or not isinstance(value, (str, int)) else quoted(value)


def whole(value: object) -> int | None:
    """Return a whole number that is an identifier (an index, a process); None where it is none."""
    digits = text(value)
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 12 else None


def coded(**codes: int) -> Callable[[object], object]:
    """Make a field's ``convert`` of words that stand for numbers, in any case and with ``_`` for a blank. Others stay what they are."""
    known = {word.replace("_", " "): code for word, code in codes.items()}
    return lambda said: known.get(text(said).lower().replace("_", " "), said)


switched = coded(on=1, enable=1, enabled=1, off=0, disable=0, disabled=0)
"""Take a text for 1 where it says that something is on, for 0 where it says that it is off."""


def number(printed: object, unit: str = "", target: str = "1") -> Value:
    """Read a printed value.

    Args:
        printed: Text, a number, or a reason, which stays what it is.
        unit: The unit of a number that has none beside it; :data:`PRINTED` where it must have one.
        target: The unit to convert to.

    Returns:
        The number, a whole one as an int; or ``not_supported``, ``parse_error``, ``invalid_value``.
    """
    if isinstance(printed, Unavailable):
        return printed
    if isinstance(printed, str) and printed.isdecimal() and printed.isascii() and len(printed) <= _LONGEST:
        printed = int(printed)  # as nearly all files say it
    if is_absent(printed):
        return Unavailable(Reason.NOT_SUPPORTED, quoted(printed) or "empty")
    beside, value = "", printed
    if isinstance(printed, str):
        found = _NUMBER.fullmatch(printed.strip(" \t\r\n()")) if len(printed) <= _LONGEST else None
        if found is None:
            denied = DENIED.search(printed, 0, _LONGEST) is not None
            return Unavailable(Reason.NO_PERMISSION if denied else Reason.PARSE_ERROR, f"no number: {quoted(printed)}")
        digits, beside = found[1], found[2] or ""
        value = int(digits) if digits.lstrip("+-").isdecimal() else float(digits)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return Unavailable(Reason.PARSE_ERROR, f"no number: {quoted(printed)}")
    if not abs(value) <= _LARGEST:  # NaN is not either
        return Unavailable(Reason.INVALID_VALUE, quoted(printed))
    converted = None if unit == PRINTED and not beside else convert(value, beside or unit or target, target)
    return Unavailable(Reason.PARSE_ERROR, f"no number of {target}: {quoted(printed)}") if converted is None else converted


def convert(value: Number, unit: str, target: str) -> Number | None:
    """Convert a number to another unit; None where that measures something else, or is unknown."""
    factor, more = _factor(unit, target)
    return None if not factor else value * factor if more else value / factor


@lru_cache(maxsize=1024)
def _factor(unit: str, target: str) -> tuple[Number, bool]:
    """Return by what a number is multiplied, or divided, to convert it; 0 where it cannot be converted."""
    source, wanted = _scale(unit), _scale(target)
    if source is None or wanted is None or source[0] != wanted[0]:
        return 0, False
    # Whole factors are exact where their fractions are not.
    factor = max(source[1], wanted[1]) / min(source[1], wanted[1])
    return round(factor) if math.isclose(factor, round(factor), rel_tol=1e-9) else factor, source[1] >= wanted[1]


@lru_cache(maxsize=256)
def _scale(unit: str) -> tuple[str, float] | None:
    """Return the base unit of what a unit measures, and how many of that it is; ``0.01 C`` is a hundredth of a degree."""
    multiple = _MULTIPLE.fullmatch(unit)  # of a unit that a row declares: none that is printed begins with a digit
    measured = _UNITS.get((multiple[2] if multiple else unit).translate(_SPELLINGS).strip().lower())
    return (measured[0], measured[1] * float(multiple[1])) if measured and multiple else measured


def base_unit(unit: str) -> str:
    """Return the base unit of what a unit measures; one that is unknown stays what it is."""
    measured = _scale(unit)
    return unit if measured is None else measured[0]


def pcie_generation(speed: object, per: float = 1) -> object:
    """Return the PCIe generation of a speed; what is no speed stays what it is.

    Args:
        speed: Transfers per lane and second: ``16.0 GT/s PCIe``, ``16``.
        per: What 1e9 of them are in the speed's unit.
    """
    match = _SPEED.fullmatch(quoted(speed))
    if match is None:
        return speed
    transfers = float(match[1]) / per
    return GENERATIONS.get(transfers, Unavailable(Reason.INVALID_VALUE, f"a PCIe speed of {transfers:g} GT/s"))


class Says(NamedTuple):
    """A vendor's own words, and what they mean.

    Attributes:
        pattern: A regular expression for them; case makes no difference.
        reason: The reason that they stand for.
        message: What they mean, in a sentence's words; they are quoted after it.
        advice: What to do.
        gone: Whether they say that the driver is not there: it is then opened again when it is back.
    """

    pattern: str
    reason: Reason
    message: str = ""
    advice: str = ""
    gone: bool = False


class Field(NamedTuple):
    """One metric that stands in the record.

    Attributes:
        metric: The catalogue's name; one that begins with ``_`` is for derived rows only. One with a placeholder (``{link}``) is read
            once for each instance that the record has: a link, a chip.
        where: Its place: a key, or a path of keys and list positions joined by dots, in any case; several are tried in order. One that
            has no value makes way for the next, until one had a value; one whose value is wrong does not. ``{}`` stands for the instance.
        unit: The unit of a number that has none beside it; :data:`PRINTED` where it must have one; the metric's own when left out.
        convert: What is done first to what stands there: gives text, a number, a reason, or None for nothing.
        zero_is_missing: Whether a 0 is no measurement; for limits, sizes and links that needs not be said.
        high: The largest possible value in the metric's unit, where that is not what the unit allows.
        in_use: Whether the source has it only while a program uses the device.
        words: Where it is read, for the documentation; its place when left out.
        of_whole: Whether it is the value of the card or board that the device is a part of: the first part alone has it.
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
    """A metric that is the rise of a counter between two readings of one consumer.

    The unit is the counter's: energy gives power, time the share of time, bytes bytes per second, a count a number per second.

    Attributes:
        metric: The catalogue's name.
        where: The counter's place, as in :class:`Field`.
        unit: The counter's unit.
        bits: After how many bits it wraps; 0 for one that starts anew when it falls.
        pace: Seconds between two differences at least; meanwhile the last one stands.
        rose: Whether only that it rose is told: 1 or 0.
        words: As in :class:`Field`.
        of_whole: As in :class:`Field`.
        within: Seconds in which it may wrap: longer ones give no rate. 0 for a counter that does not wrap that soon.
        zero_is_missing: Whether a counter at 0 counts nothing, and makes way for the next place, and one that stands still gives no rate.
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
    """A metric that is made of others of the same device; missing for the reason of the first that is missing.

    Attributes:
        metric: The catalogue's name.
        inputs: The names of the others.
        compute: From their numbers to its own.
        words: How, for the documentation.
    """

    metric: str
    inputs: tuple[str, ...]
    compute: Callable[..., Number]
    words: str


Row = Field | Rate | Derived


def _places(row: Field | Rate) -> tuple[str, ...]:
    return (row.where,) if isinstance(row.where, str) else row.where


def share(metric: str, part: str, of: str) -> Derived:
    """Make a metric that is one as a percentage of another."""
    return Derived(metric, (part, of), lambda some, all_: 100 * some / all_, f"{part} / {of}")


def difference(metric: str, whole_: str, part: str) -> Derived:
    """Make a metric that is one less another."""
    return Derived(metric, (whole_, part), lambda all_, some: all_ - some, f"{whole_} - {part}")


def total(metric: str, *parts: str) -> Derived:
    """Make a metric that is the sum of others."""
    return Derived(metric, parts, lambda *numbers: sum(numbers), " + ".join(parts))


MEMORY = (
    share("memoryAllocated", "memoryAllocatedBytes", "memoryTotalBytes"),
    difference("memoryFreeBytes", "memoryTotalBytes", "memoryAllocatedBytes"),
)
"""What follows from the memory that is used and the memory that there is."""
POWER_SHARE = share("powerPercent", "powerWatts", "enforcedPowerLimitWatts")


class DeviceRecord:
    """What a source says of one device, by place: made of a document by :func:`flat`, or a subclass that reads when it is asked."""

    def __init__(self, places: Mapping[str, object]) -> None:
        self._places = places

    def get(self, place: str) -> object:
        """Return what stands at a place, in any case; None where there is nothing."""
        return self._places.get(place.lower())

    def instances(self, place: str) -> Iterable[str]:
        """Return what stands where a place has ``{}``, for rows that are read of each: the positions of a list, the keys of an object."""
        below = f"{place.lower().partition('.{}')[0]}."
        return dict.fromkeys(path[len(below) :].partition(".")[0] for path in self._places if path.startswith(below))


Printed = Mapping[str, Any] | DeviceRecord


def flat(document: object) -> DeviceRecord:
    """Make a record of a document: ``{"Memory": {"Used ": 1}}`` has ``memory.used``, a list its positions and itself.

    An object with a ``value`` is that value, with its ``unit`` beside it. A record stays what it is. What no row looks for is left
    out: what lies too deep, has too long a name, or comes after the first 1,024 of a list or an object.
    """
    if isinstance(document, DeviceRecord):
        return document
    found: dict[str, object] = {}
    pending: list[tuple[str, object]] = [("", document)]
    for path, value in pending:
        if len(pending) > _MOST_PLACES:
            break
        if len(path) > _LONGEST_PATH:
            continue
        if isinstance(value, Mapping) and "value" in value:
            plain, unit = value["value"], value.get("unit")
            value = f"{plain} {unit}" if unit and isinstance(plain, (int, float)) else plain  # noqa: PLW2901
        if not isinstance(value, Mapping):
            found[path] = value
        if isinstance(value, (Mapping, list, tuple)) and not isinstance(value, Unavailable):
            items = value.items() if isinstance(value, Mapping) else enumerate(value)
            named = ((str(name).strip().lower(), item) for name, item in islice(items, MOST_DEVICES))
            pending += [(f"{path}.{name}".lstrip("."), item) for name, item in named if len(name) <= _LONGEST]
    return DeviceRecord(found)


NOT_READ = Unavailable(Reason.NOT_SUPPORTED, "it is not read")
Chosen = dict[str, tuple[str, str]]
"""By metric, the source and the place that gave its first value, kept for as long as the device is open: no other may stand in for them."""
COMPUTED = ""
"""The place of a value that is made of others."""
Counters = dict[tuple[Field | Rate, str], tuple[float, Number, Value]]
"""By row and place, what one consumer's rate is taken from: when the counter was read, what it said, and the rate then. By row and
:data:`NO_PLACE`, when a value of a steady metric was read, and that value."""
NO_PLACE = ""


class Table:
    """A vendor's rows, bound to the catalogue. A metric may have several: it is the value of the first that has one.

    Args:
        source: What the record is from, in one word.
        kind: The kind of devices; empty for rows whose metrics are whole keys.
        rows: The rows.
        own: Catalogue rows that only this vendor has.
        says: The vendor's words in the place of a number, and what they mean.

    Attributes:
        words: By every name that is given, where it is read.
        derived: Those names among them that are made of others.
        of_whole: Metrics that are read of the card or board that a device is a part of.

    Raises:
        UnknownNameError: The catalogue has no such metric.
    """

    def __init__(self, source: str, kind: str, rows: Iterable[Row], own: Sequence[Metric] = (), says: Sequence[Says] = ()) -> None:
        self._source = source
        self._says = tuple((re.compile(each.pattern, re.IGNORECASE), each.reason) for each in says)
        every = tuple(rows)
        self._rows = tuple(row for row in every if not isinstance(row, Derived))
        self._derived = tuple(row for row in every if isinstance(row, Derived))
        self._metrics = {row.metric: _metric(row.metric, kind, own) for row in every if not row.metric.startswith("_")}
        self._names = {name: metric.names for name, metric in self._metrics.items()}
        self._instances: dict[tuple[Field | Rate, str], Field | Rate] = {}
        self.words = joined_words((name, self._words(row)) for row in every for name in self.names(row.metric))
        names = [name for name, metric in self._metrics.items() if metric.unit == "Cel" and not name.startswith("tempLimit.")]
        self._temperatures = tuple(names)
        self.of_whole = frozenset(row.metric for row in self._rows if row.of_whole)
        self.derived = tuple(name for row in self._derived for name in self.names(row.metric))
        self._known: dict[tuple[Row, str, str], Value | None] = {}

    def _words(self, row: Row) -> str:
        if row.words or isinstance(row, Derived):
            return row.words
        place = f'{self._source} "{_places(row)[0]}"'
        return f"{place}, rise per second" if isinstance(row, Rate) else place

    def needed(self, wants: Callable[[str], bool]) -> frozenset[str]:
        """Find the metrics that have a name which is wanted, and those that they are made of."""
        found = {metric for metric in self._metrics if any(map(wants, self.names(metric)))}
        for row in reversed(self._derived):  # one may be made of another that stands before it
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
        """Return what stands in a record, by metric; derived rows are left to :meth:`derive`.

        Args:
            record: The record.
            counters: What this consumer's rates are taken from.
            at: When the record was read, on the monotonic clock.
            idle: Whether it is known that no program uses the device.
            given: Metrics that a better source has given: they are not read.
            chosen: Where this device's metrics were read first, to which new ones are added; None where any place may give them.
            pace: Seconds for which values of steady metrics are kept, of a record that reads.
        """
        found: dict[str, Value] = {}
        chosen = {} if chosen is None else chosen
        at = counted_at(at)
        anywhere = (self._source, None)
        for row in self._each(record):
            metric = row.metric
            known = found.get(metric)
            if metric in given or not (known is None or isinstance(known, Unavailable)):
                continue
            source, only = chosen.get(metric, anywhere)
            if source != self._source or (only is not None and only not in _places(row)):
                continue
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
                value, place = self._rate(row, record, counters, at, only)
                value = self._possible(row, value)
            if place is not None and only is None and (not isinstance(value, Unavailable) or value.reason == Reason.NEEDS_INTERVAL):
                chosen[metric] = (self._source, place)
            merge(found, metric, value)
        return found

    def _each(self, record: DeviceRecord) -> Iterator[Field | Rate]:
        """Return the rows that are read, one with a placeholder once for each of the record's instances."""
        for row in self._rows:
            if "{" not in row.metric:
                yield row
                continue
            for instance in islice(record.instances(_places(row)[0]), MOST_DEVICES):
                if (row, instance) not in self._instances:
                    if len(self._instances) >= _MOST_INSTANCES or not instance.isprintable():
                        continue
                    name = _filled(row.metric, instance)
                    self._metrics[name] = self._metrics[row.metric]
                    self._names[name] = tuple(_filled(each, instance) for each in self._names[row.metric])
                    where = tuple(place.replace("{}", instance) for place in _places(row))
                    self._instances[row, instance] = row._replace(metric=name, where=where)
                yield self._instances[row, instance]

    def value(self, metric: str, record: DeviceRecord) -> Value:
        """Read one metric that stands in a record."""
        row = next((row for row in self._rows if row.metric == metric and isinstance(row, Field)), None)
        return NOT_READ if row is None else self._field(row, record)[0]

    def derive(self, found: dict[str, Value], chosen: Chosen | None = None) -> None:
        """Hold values that stand together to one another, and add the derived metrics that were not read as such."""
        hold_together(found, self._temperatures)
        chosen = {} if chosen is None else chosen
        for row in self._derived:
            if not isinstance(found.get(row.metric, NOT_READ), Unavailable) or chosen.get(row.metric, ("", COMPUTED))[1] != COMPUTED:
                continue
            inputs = [found[name] if name in found else Unavailable(Reason.NOT_SUPPORTED, f"{name} is not read") for name in row.inputs]
            value: Value | None = next((each for each in inputs if isinstance(each, Unavailable)), None)
            if value is None:
                try:
                    value = row.compute(*inputs)
                except ZeroDivisionError:
                    value = Unavailable(Reason.INVALID_VALUE, f"{row.words}: division by 0")
            value = found[row.metric] = self._possible(row, value)
            if not isinstance(value, Unavailable):
                chosen.setdefault(row.metric, (self._source, COMPUTED))

    def names(self, metric: str) -> tuple[str, ...]:
        """Return the names under which a metric is given: the catalogue's and its aliases; none for one that only derived rows need."""
        return self._names.get(metric, ())

    def missing(self, why: Unavailable) -> dict[str, Value]:
        """Return every metric that is read as missing for one reason; instances are not known."""
        return {row.metric: why for row in self._rows if "{" not in row.metric}

    def _field(self, row: Field | Rate, record: DeviceRecord, only: str | None = None) -> tuple[Value, str | None]:
        """Read the number at the first of a row's places that has a value, or why there is none; a counter's in its base unit.

        Args:
            row: The row.
            record: The record.
            only: The one place to read.

        Returns:
            The number or the reason, and the place where it stands; None where nothing stands anywhere.
        """
        why: Unavailable | None = None
        for place in _places(row) if only is None else (only,):
            said = record.get(place)
            value = self._same(row, place, said) if isinstance(said, str) and isinstance(row, Field) else self._value(row, place, said)
            if value is not None and (not isinstance(value, Unavailable) or value.reason != Reason.NOT_SUPPORTED):
                return value, place
            why = why or value
        sought = only or _places(row)[0]
        # A pattern of files is nothing to read for a person, and the first of several places may be another driver's.
        words = f"not found: {row.words}" if "[" in sought and row.words else f'{self._source} gives no "{sought}"'
        return why or Unavailable(Reason.NOT_SUPPORTED, words), None

    def _same(self, row: Field, place: str, said: str) -> Value | None:
        """Return the same as :meth:`_value`, kept: most texts are the same at the next reading, but for counters'."""
        asked = (row, place, said)
        if asked not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[asked] = self._value(row, place, said)
        return self._known[asked]

    def _value(self, row: Field | Rate, place: str, said: object) -> Value | None:
        """Return the number that stands at a place, or what is wrong with it; None where nothing stands there."""
        if said is not None and isinstance(row, Field) and row.convert is not None and not isinstance(said, Unavailable):
            said = row.convert(said)
        if said is None or isinstance(said, Unavailable):
            return said
        metric = self._metrics.get(row.metric)
        target = metric.unit if metric is not None and isinstance(row, Field) else base_unit(row.unit or "1")
        value = number(said, row.unit, target)
        if value == 0 and self._zero_says_nothing(row):
            value = Unavailable(Reason.NOT_SUPPORTED, f'{self._source} gives 0 for "{place}", which is no measurement')
        if isinstance(said, str) and isinstance(value, Unavailable):
            value = value._replace(reason=next((reason for words, reason in self._says if words.search(said)), value.reason))
        return value if isinstance(row, Rate) else self._possible(row, value)

    def _rate(self, row: Rate, record: DeviceRecord, counters: Counters, at: float, only: str | None = None) -> tuple[Value, str | None]:
        base, metric = base_unit(row.unit), self._metrics.get(row.metric)
        count, place = self._field(row, record, only)
        if isinstance(count, Unavailable) or place is None:
            for each in _places(row):
                counters.pop((row, each), None)
            return count, place
        before = counters.get((row, place))
        if before is not None and (at <= before[0] or at - before[0] < row.pace):
            return before[2], place
        risen = 0 if before is None else count - before[1]
        if risen < 0 and row.bits:
            risen += convert(2**row.bits, row.unit, base) or 0
        rate: Value
        if before is None:
            rate = Unavailable(Reason.NEEDS_INTERVAL, "the first reading: a rate needs two")
        elif risen < 0:
            rate = Unavailable(Reason.NEEDS_INTERVAL, "the counter has started anew")
        elif row.within and at - before[0] > row.within:
            rate = Unavailable(Reason.NEEDS_INTERVAL, f"the counter may wrap within {row.within:g} s: read it more often")
        elif risen == 0 and row.zero_is_missing:
            rate = Unavailable(Reason.NOT_SUPPORTED, f'{self._source} "{place}" stands still')
        elif row.rose:
            rate = int(risen > 0)
        else:
            unit = PER_SECOND.get(base, base)
            rate = number(risen / (at - before[0]), unit, unit if metric is None else metric.unit)
        counters[row, place] = (at, count, rate)
        return rate, place

    @staticmethod
    def _zero_says_nothing(row: Row) -> bool:
        if isinstance(row, Rate):
            return row.zero_is_missing
        return row.metric in NEVER_ZERO or (isinstance(row, Field) and row.zero_is_missing)

    def _possible(self, row: Row, value: Value) -> Value:
        """Return the value where it is possible, in the form that the catalogue asks for."""
        metric = self._metrics.get(row.metric)
        if isinstance(value, Unavailable) or metric is None:
            return value
        if metric.integer:
            if metric.unit == "1" and value != round(value):
                return Unavailable(Reason.PARSE_ERROR, "no whole number")
            value = round(value)
        if value == 0 and isinstance(row, Derived) and self._zero_says_nothing(row):
            return Unavailable(Reason.NOT_SUPPORTED, f"{self._source} gives 0 for {row.words}, which is no measurement")
        low, high = possible(metric, row.high if isinstance(row, Field) else None)
        if isinstance(row, Rate) and metric.maximum is not None and metric.maximum < value <= 1.05 * metric.maximum:
            return metric.maximum  # counter and clock are not read in the same instant
        if low <= value <= high and value not in ALL_ONES:
            return value
        # Without the number: it may differ at each reading, and a reason that differs makes a new header of each.
        wrong = "all bits are set, in" if value in ALL_ONES else f"below {low:g}" if value < low else f"above {high:g}"
        return Unavailable(Reason.INVALID_VALUE, f"{wrong} {metric.unit}")


def merge(found: dict[str, Value], metric: str, value: Value) -> None:
    """Note what one more row or source says of a metric: a value beats a reason, and of two values the first stands."""
    known = found.get(metric)
    if known is None or (isinstance(known, Unavailable) and not isinstance(value, Unavailable)):
        found[metric] = value
    elif isinstance(known, Unavailable) and isinstance(value, Unavailable):
        found[metric] = weightier(known, value)


def joined_words(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Say, by name, where each row or source reads it, the best first."""
    found: dict[str, str] = {}
    for name, words in pairs:
        known = found.setdefault(name, words)
        if words not in known:
            found[name] = f"{known}; else {words}"
    return found


def weightier(one: Unavailable, other: Unavailable) -> Unavailable:
    """Say why a value is missing that two sources could give: in the words of both.

    A source that is there says more than one that is not, and one that may have the value later more than one that never has it.
    """
    ranks: dict[str, int] = {Reason.DRIVER_UNAVAILABLE: 0, Reason.NOT_SUPPORTED: 1}
    telling = max(one, other, key=lambda each: ranks.get(each.reason, 2))  # of two alike the first
    return Unavailable(telling.reason, one.detail if other.detail in one.detail else f"{one.detail}; {other.detail}")


def _filled(template: str, instance: str) -> str:
    """Put the instance into a name's placeholder."""
    return _PLACEHOLDER.sub(lambda _: instance, template)  # a plain replacement would read its backslashes


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
        found: By metric, its value or why there is none.
        processes: The processes that use the device, or why they are not known; None where the source lists none of any device.
        read_at: When the source took the numbers, in seconds on the monotonic clock; None for now.
        used: By metric, what the watched process uses of the device.
    """
    values = {name: value for name, value in found.items() if not isinstance(value, Unavailable)}
    reasons = {name: value for name, value in found.items() if isinstance(value, Unavailable)}
    blocks = [Block(tuple(values), tuple(values.values()))]
    if used is not None:
        blocks.append(Block(tuple(used), tuple(used.values()), process=True))
    return Reading(blocks, reasons, processes, read_at)
