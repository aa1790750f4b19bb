"""Sends records to a StatsD server as gauges, over UDP: whether they arrive cannot be told.

A client's work is one line a gauge and one ``sendto``; what is done here is to fill packets, and to say again what may have been lost.
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
"""Bytes that fit into one packet of an Ethernet with every header on the way: what StatsD's own documentation recommends."""
DEFAULT_PORT = 8125
SECONDS = 1.0
"""For a packet to leave this machine."""
MAX_NAME, MAX_TAG, MAX_NUMBER = 400, 200, 40
"""Characters of a name, of a tag's value (as Datadog has it), of a number with what stands around it."""

LONGEST_NUMBER = MAX_NUMBER - len(":|g") - 1
_JOINED = "\0"
"""Stands for the end of a line that may not be the last of its packet; no name has it."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
_NOT_IN_TAGS = re.compile(r"[^!-~]+|[,|#]+")

Tags = Mapping[str, str]
Gauge = tuple[str, int | float, Tags]


class StatsdExporter:
    """Gauges for StatsD, or for DogStatsD with tags.

    Args:
        address: ``HOST:PORT``, ``HOST`` or ``PORT``; an IPv6 address in brackets.
        prefix: What every name begins with; ``{hostname}`` in it stands for the machine's name.
        tags: ``none``: a device is part of the name, ``accelmetrics.gpu.0.powerWatts``. ``datadog``: it is a tag, and so are the
            record's labels: ``accelmetrics.gpu.powerWatts`` with ``accelerator:gpu.0``.
        metrics: Metrics to export: see :class:`~accelmetrics.schemas.selection.MetricSelection`.

    Raises:
        InvalidOptionError: The address cannot be read.
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
        self._address = Address.parse(address, DEFAULT_PORT)
        if self._address.port == 0:
            raise InvalidOptionError(f"statsd: the port of {address!r} is 0: it must be one on which a server listens")
        self.metrics = MetricSelection(metrics)
        self._turn = 0
        self._prefix, self._tagged = prefix, tags == "datadog"
        self._socket: socket.socket | None = None
        self._status = os.stat_result([0] * 10)  # of the socket

    def open(self) -> None:
        self.close()
        with self._telling():
            found = self._address.resolve(socket.SOCK_DGRAM)
            family, kind, protocol, where = found[self._turn % len(found)]
            self._socket = made = socket.socket(family, kind, protocol)
            self._status = self._status if sys.platform == "win32" else os.fstat(made.fileno())
            self._socket.settimeout(SECONDS)
            self._socket.connect(where)  # so that a port where no server listens is an error, where the kernel hears of it

    def export(self, record: Record) -> None:
        if self._socket is None or not self._is_ours(self._socket):
            self.open()
        assert self._socket is not None
        with self._telling():
            for packet in packets_of(record, self._prefix, self._tagged):
                self._socket.send(packet)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Raise a failure with the address, of the same kind, and begin anew with the next record.

        A name is looked up again next time, since it may lead elsewhere by then, and the next of its addresses is tried: the
        first one of ``localhost`` may be that of IPv6, and the server may listen on the other.
        """
        try:
            yield
        except OSError as error:
            self.close()
            self._turn += 1
            words = f"{self._address}: {error.strerror or error}"
            raise (OSError(words) if error.errno is None else OSError(error.errno, words)) from None

    def flush(self) -> None:
        """Return at once: nothing waits here."""

    def close(self) -> None:
        opened, self._socket = self._socket, None
        if opened is not None and not self._is_ours(opened):
            opened.detach()  # closing it would close what is somebody else's
        elif opened is not None:
            opened.close()

    def _is_ours(self, opened: socket.socket) -> bool:
        """Return whether the descriptor still is the socket's; Windows' sockets have none."""
        return sys.platform == "win32" or is_still(opened.fileno(), self._status)


def packets_of(record: Record, prefix: str, tagged: bool) -> Iterator[bytes]:
    """Make the packets of a record: what was measured, what the program logged, and the monitor's own counters.

    Args:
        record: The record.
        prefix: What every name begins with; ``{hostname}`` in it stands for the machine's name.
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
        if "-" in text or "e" in text or len(text) > LONGEST_NUMBER:
            texts[place] = _number(*gauges[place], numbers[place])
    counters = record.monitor.flat() if record.monitor is not None else {}
    more = *logged(record, tagged), *((name, value, common) for name, value in counters.items())
    return packets(template.fill(texts) + "".join([gauge(*around(name, tags), value) for name, value, tags in more]))


def _common(record: Record, tagged: bool) -> Tags:
    """Return the tags that every gauge has."""
    return {"host": record.snapshot.hostname, **record.labels} if tagged else {}


def logged(record: Record, tagged: bool) -> Iterator[Gauge]:
    """Return name, value and tags of what the program logged, in its order."""
    common = _common(record, tagged)
    for step in record.steps if tagged else record.own_steps:
        values = {**step.values, "step": step.step} if step.step is not None else step.values
        own = {**common, **step_tags(step)} if tagged else common
        for name, value in values.items():
            if isfinite(value):  # StatsD has no others; nonFinite counts them
                yield f"training.{name}", value, own


def gauge(name: str, tail: str, value: int | float) -> str:
    """Return the line of one gauge."""
    return f"{name}:{_number(name, tail, value)}{tail}\n"


def _number(name: str, tail: str, value: int | float) -> str:
    """Return a gauge's number. A sign makes StatsD add to the last value: a line that sets 0 stands before it."""
    number = repr(value)
    if "e" in number or len(number) > LONGEST_NUMBER:  # not every server reads an exponent
        plain = format(Decimal(number), "f") if "e" in number else number
        number = plain if len(plain) <= LONGEST_NUMBER else repr(float(value))
    return f"0{tail}{_JOINED}{name}:{number}" if number.startswith("-") else number


def _tail(name: str, tags: Tags) -> str:
    """Format what stands behind a gauge's number: its tags in their order, as many as there is room for."""
    room, text = MAX_PACKET - len(name) - MAX_NUMBER, ""
    for tag, value in tags.items():
        one = f"{',' if text else '|#'}{_tag(tag, value)}"
        if value and len(text) + len(one) <= room:
            text += one
    return f"|g{text}"


@lru_cache(maxsize=1024)
def _tag(tag: str, value: str) -> str:
    return f"{clean(tag)}:{_NOT_IN_TAGS.sub('_', value)[:MAX_TAG]}"


def packets(text: str) -> Iterator[bytes]:
    """Cut lines into packets, as many to a packet as fit. The two of a negative number stay together."""
    joined, start = text.encode(), 0
    lines = joined.replace(_JOINED.encode(), b"\n")
    while start < len(lines):
        end = joined.rfind(b"\n", start, start + MAX_PACKET + 1)
        if end < 0:  # two long lines of one number
            end = joined.index(b"\n", start)
        yield lines[start:end]
        start = end + 1


@lru_cache(maxsize=8192)
def clean(name: str) -> str:
    """Return a name as StatsD itself would store it: dots make the hierarchy, a slash becomes ``-``, the rest that it drops ``_``."""
    return _NOT_IN_NAMES.sub("_", name.replace("/", "-")).strip("._")[:MAX_NAME]
