"""Records as InfluxDB's line protocol: a point per device, one for the host, one per logged step, one for the monitor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from accelmetrics.exporters.fields import by_device, identity_tags, utf8
from accelmetrics.schemas.catalogue import match
from accelmetrics.schemas.record import Record

PRECISIONS = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
"""Nanoseconds in each unit that a server takes timestamps in."""

INT64 = 2**63
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_AMBIGUOUS = re.compile(r"\\+(?=[\\,= ]|$)")
_SPECIAL = re.compile(r"([,= ])")
_SPECIAL_IN_MEASUREMENT = re.compile(r"([, ])")
_RESERVED = frozenset({"time", "_field", "_measurement"})
"""Names that InfluxDB keeps for itself."""


def lines(record: Record, prefix: str = "", precision: str = "ns") -> Iterator[str]:
    """The record's points, each a line without its end.

    Args:
        record: One tick.
        prefix: What every measurement's name begins with.
        precision: Unit of the timestamps: ``ns``, ``us``, ``ms``, ``s``.
    """
    unit = PRECISIONS[precision]
    snapshot = record.snapshot
    common = {**record.labels, "host": snapshot.hostname}
    for slot, keys in by_device(snapshot):
        tags = {**common, **identity_tags(slot)} if slot else common
        fields = {name: _measured(key, snapshot.metrics[key]) for name, key in keys.items()}
        yield from _line(prefix + (slot.identity.kind if slot else "host"), tags, fields, snapshot.time_ns // unit)
    for step in record.steps:
        fields = {name: _float(value) for name, value in step.values.items()}
        if step.step is not None:
            fields["step"] = _integer(step.step)
        yield from _line(f"{prefix}training", common, fields, step.time_ns // unit)
    if record.monitor is not None:
        fields = {name.removeprefix("monitor."): _integer(value) for name, value in record.monitor.flat().items()}
        fields["interval"] = _float(record.monitor.interval)  # the one that is no counter
        yield from _line(f"{prefix}monitor", common, fields, snapshot.time_ns // unit)


def _line(measurement: str, tags: Mapping[str, str], fields: Mapping[str, str], timestamp: int) -> Iterator[str]:
    """One point, no name in it twice. Nothing where there are no fields, which the protocol does not have."""
    numbers = {escaped(_free(name)): value for name, value in fields.items() if name and value}
    texts = {escaped(_free(tag)): escaped(value) for tag, value in tags.items() if tag and value}
    if numbers:
        head = "".join(f",{tag}={texts[tag]}" for tag in sorted(texts))
        written = ",".join(f"{name}={value}" for name, value in numbers.items())
        yield f"{measurement_name(measurement)}{head} {written} {timestamp}"


@lru_cache(maxsize=8192)
def _is_whole(key: str) -> bool:
    row = match(key)
    return row is not None and row.integer


def _measured(key: str, value: int | float) -> str:
    """A value in the type that its field always has: a server refuses one that changes it."""
    return _integer(value) if _is_whole(key) else _float(value)


def _integer(value: int | float) -> str:
    """With an ``i``; nothing for a number that is too large to be one."""
    return f"{int(value)}i" if -INT64 <= value < INT64 else ""


def _float(value: int | float) -> str:
    return repr(float(value))


def _free(name: str) -> str:
    return f"{name}_" if name in _RESERVED else name


@lru_cache(maxsize=8192)
def escaped(text: str) -> str:
    r"""A tag's name or value, or a field's name: commas, equals signs and spaces escaped.

    What the protocol cannot carry is replaced: control characters by a space, and a backslash by a slash where it would stand
    before a special character, another backslash or the end, since servers differ in how they read that.
    """
    return _SPECIAL.sub(r"\\\1", _plain(text))


def measurement_name(text: str) -> str:
    """A measurement's name: commas and spaces escaped."""
    return _SPECIAL_IN_MEASUREMENT.sub(r"\\\1", _plain(text))


def _plain(text: str) -> str:
    text = _CONTROL.sub(" ", utf8(text))
    return _AMBIGUOUS.sub(lambda found: "/" * len(found[0]), text)
