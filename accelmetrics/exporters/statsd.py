"""Sends records to a StatsD server as gauges over UDP, without knowing whether they arrive.

No client library is used: a client would only format a line per gauge and call ``sendto``. This module also fills packets.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from functools import lru_cache
from math import isfinite
from typing import Literal

from accelmetrics.exporters.fields import by_device, identity_tags, step_tags
from accelmetrics.exporters.files import is_still
from accelmetrics.exporters.network import Address
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.reading import NumberTemplate
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.selection import ALL, MetricChoice, MetricSelection

MAX_PACKET = 1432
"""Maximum size of a packet in bytes. StatsD's documentation recommends it: it fits into an Ethernet frame with all headers."""
MAX_NAME, MAX_TAG, MAX_NUMBER = 400, 200, 40
"""Maximum length of a name, of a tag's value (Datadog's limit), and of a number with its separators."""

LONGEST_NUMBER = MAX_NUMBER - len(":|g") - 1
# A line break after which a packet may not end. No name contains this character.
_JOINED = "\0"

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
_NOT_IN_TAGS = re.compile(r"[^!-~]+|[,|#]+")

Tags = Mapping[str, str]


class StatsdExporter:
    """Sends gauges to StatsD, or to DogStatsD with tags.

    Args:
        address: ``HOST:PORT``, ``HOST`` or ``PORT``; an IPv6 address in brackets.
        prefix: Prefix of every name; ``{hostname}`` in it is replaced by the machine's name.
        tags: ``none``: the device is part of the name, ``accelmetrics.gpu.0.powerWatts``. ``datadog``: the device and the record's labels
            are tags: ``accelmetrics.gpu.powerWatts`` with ``accelerator:gpu.0``.
        metrics: Metrics to export: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        InvalidOptionError: The address is invalid.
    """

    name = "statsd"

    def __init__(
        self,
        address: str = "127.0.0.1:8125",
        *,
        prefix: str = "accelmetrics",
        tags: Literal["none", "datadog"] = "none",
        metrics: MetricChoice = ALL,
    ) -> None:
        self._address = Address.parse(address, 8125)
        if self._address.port == 0:
            raise InvalidOptionError(f"statsd: the port of {address!r} is 0: give the port of a server")
        self.metrics = MetricSelection(metrics)
        self._address_index = 0  # index of the host's address to use, of those that its name resolves to
        self._prefix, self._tagged = prefix, tags == "datadog"
        self._socket: socket.socket | None = None
        self._status = os.stat_result([0] * 10)  # of the socket

    def open(self) -> None:
        self.close()
        with self._naming_address():
            found = self._address.resolve(socket.SOCK_DGRAM)
            family, kind, protocol, where = found[self._address_index % len(found)]
            self._socket = made = socket.socket(family, kind, protocol)
            self._status = self._status if sys.platform == "win32" else os.fstat(made.fileno())
            self._socket.settimeout(1.0)
            self._socket.connect(where)  # only a connected socket reports the kernel's error for a port where no server listens

    def export(self, record: Record) -> None:
        if self._socket is None or not self._is_ours(self._socket):
            self.open()
        assert self._socket is not None
        with self._naming_address():
            for packet in packets_of(record, self._prefix, self._tagged):
                self._socket.send(packet)

    @contextmanager
    def _naming_address(self) -> Iterator[None]:
        """Close the socket after an error of the block, and raise the error with the address in its message."""
        try:
            yield
        except OSError as error:
            # The next record resolves the name again, because it may have changed, and tries the next address: localhost may resolve to
            # an IPv6 address first while the server listens only on IPv4.
            self.close()
            self._address_index += 1
            words = f"{self._address}: {error.strerror or error}"
            raise (OSError(words) if error.errno is None else OSError(error.errno, words)) from None

    def flush(self) -> None:
        """Do nothing: records are sent when they are exported."""

    def close(self) -> None:
        opened, self._socket = self._socket, None
        if opened is not None and not self._is_ours(opened):
            opened.detach()  # the number now belongs to another file of the program, which must stay open
        elif opened is not None:
            opened.close()

    def _is_ours(self, opened: socket.socket) -> bool:
        """Return whether the descriptor still refers to this socket. Always True on Windows, where sockets have no descriptors."""
        return sys.platform == "win32" or is_still(opened.fileno(), self._status)


def packets_of(record: Record, prefix: str, tagged: bool) -> Iterator[bytes]:
    """Return the packets of a record: measured values, logged numbers and the monitor's counters.

    Args:
        record: The record.
        prefix: Prefix of every name; ``{hostname}`` in it is replaced by the machine's name.
        tagged: Whether devices and labels are tags.
    """
    snapshot, common = record.snapshot, _common(record, tagged)
    head = clean(prefix.replace("{hostname}", snapshot.hostname.replace(".", "_")))

    def around(name: str, tags: Tags) -> tuple[str, str]:
        full = f"{head}.{clean(name)}" if head else clean(name)
        return full, _tail(full, tags)

    def measured() -> tuple[list[tuple[str, str]], list[int], NumberTemplate]:
        found: list[tuple[str, Tags, str]] = [] if tagged else [(key, {}, key) for key in snapshot.metrics]
        for slot, keys in by_device(snapshot) if tagged else ():
            above, tags = (f"{slot.identity.kind}.", {**identity_tags(slot), **common}) if slot else ("", common)
            found += [(above + name, tags, key) for name, key in keys.items()]
        gauges = [around(name, tags) for name, tags, _ in found]
        parts = (part for place, (name, tail) in enumerate(gauges) for part in (f"{name}:", place, f"{tail}\n"))
        return gauges, [snapshot.header.places[key] for _, _, key in found], NumberTemplate(parts)

    gauges, places, template = snapshot.header.kept(("statsd", prefix, tagged, *record.labels.items()), measured)
    row = snapshot.numbers
    numbers = [row[place] for place in places]
    texts = [*map(repr, numbers)]
    for place, text in enumerate(texts):
        # Most numbers are usable as repr() prints them. The others need more work: see _number.
        if "-" in text or "e" in text or len(text) > LONGEST_NUMBER:
            texts[place] = _number(*gauges[place], numbers[place])
    counters = record.monitor.flat() if record.monitor is not None else {}
    more = *logged(record, tagged), *((name, value, common) for name, value in counters.items())
    return packets(template.fill(texts) + "".join([gauge(*around(name, tags), value) for name, value, tags in more]))


def _common(record: Record, tagged: bool) -> Tags:
    """Return the tags that every gauge of a record has."""
    return {"host": record.snapshot.hostname, **record.labels} if tagged else {}


def logged(record: Record, tagged: bool) -> Iterator[tuple[str, int | float, Tags]]:
    """Yield name, value and tags of each logged number, in the program's order."""
    common = _common(record, tagged)
    for step in record.steps if tagged else record.own_steps:
        values = {**step.values, "step": step.step} if step.step is not None else step.values
        own = {**common, **step_tags(step)} if tagged else common
        for name, value in values.items():
            if isfinite(value):  # StatsD has no NaN or infinity; the metric nonFinite counts them
                yield f"training.{name}", value, own


def gauge(name: str, tail: str, value: int | float) -> str:
    """Format the line of a gauge."""
    return f"{name}:{_number(name, tail, value)}{tail}\n"


def _number(name: str, tail: str, value: int | float) -> str:
    """Format a gauge's number. A negative number needs two lines."""
    # StatsD adds a number with a sign to the last value. A line that sets the gauge to 0 therefore precedes a negative number.
    number = repr(value)
    if "e" in number or len(number) > LONGEST_NUMBER:  # some servers cannot parse an exponent
        plain = format(Decimal(number), "f") if "e" in number else number
        number = plain if len(plain) <= LONGEST_NUMBER else repr(float(value))
    return f"0{tail}{_JOINED}{name}:{number}" if number.startswith("-") else number


def _tail(name: str, tags: Tags) -> str:
    """Format the part of a line after the number: the type and the tags, as many as fit into a packet."""
    room, text = MAX_PACKET - len(name) - MAX_NUMBER, ""
    for tag, value in tags.items():
        one = f"{',' if text else '|#'}{clean(tag)}:{_NOT_IN_TAGS.sub('_', value)[:MAX_TAG]}"
        if value and len(text) + len(one) <= room:
            text += one
    return f"|g{text}"


def packets(text: str) -> Iterator[bytes]:
    """Split lines into packets of maximum size. The two lines of a negative number stay in one packet."""
    joined, start = text.encode(), 0
    lines = joined.replace(_JOINED.encode(), b"\n")
    while start < len(lines):
        end = joined.rfind(b"\n", start, start + MAX_PACKET + 1)
        if end < 0:  # the two lines of one number exceed the size: send them nevertheless
            end = joined.index(b"\n", start)
        yield lines[start:end]
        start = end + 1


@lru_cache(maxsize=8192)
def clean(name: str) -> str:
    """Return a name that StatsD stores unchanged: a slash becomes ``-``, other invalid characters ``_``; dots separate levels."""
    return _NOT_IN_NAMES.sub("_", name.replace("/", "-")).strip("._")[:MAX_NAME]
