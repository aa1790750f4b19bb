"""Sends records to a StatsD server as gauges, over UDP: nobody says whether they arrived."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Literal

from accelmetrics.exporters.fields import by_device, identity_tags
from accelmetrics.exporters.http.address import Address
from accelmetrics.schemas.errors import InvalidOptionError
from accelmetrics.schemas.record import Record

MAX_PACKET = 1432
"""Bytes that fit into one packet of an Ethernet with every header on the way: what StatsD's own documentation recommends."""
DEFAULT_PORT = 8125
SECONDS = 1.0
"""For a packet to leave this machine."""
MAX_NAME, MAX_TAG, MAX_NUMBER = 400, 200, 40
"""Characters of a name, of a tag's value (as Datadog has it), of a number with what stands around it."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")
_NOT_IN_TAGS = re.compile(r"[^!-~]+|[,|#]+")

Line = tuple[str, int | float, Mapping[str, str]]


class StatsdExporter:
    """Gauges for StatsD, or for DogStatsD with tags.

    Args:
        address: ``HOST:PORT``, ``HOST`` or ``PORT``; an IPv6 address in brackets.
        prefix: What every name begins with; ``{hostname}`` in it stands for the machine's name.
        tags: ``none``: a device is part of the name, ``accelmetrics.gpu.0.powerWatts``. ``datadog``: it is a tag, and so are the
            record's labels: ``accelmetrics.gpu.powerWatts`` with ``accelerator:gpu.0``.

    Raises:
        InvalidOptionError: The address cannot be read.
    """

    name = "statsd"

    def __init__(self, address: str = "127.0.0.1:8125", *, prefix: str = "accelmetrics", tags: Literal["none", "datadog"] = "none") -> None:
        self._address = Address.parse(address, DEFAULT_PORT)
        if self._address.port == 0:
            raise InvalidOptionError(f"statsd: the port of {address!r} is 0: it must be one on which a server listens")
        self._turn = 0
        self._prefix = prefix
        self._tagged = tags == "datadog"
        self._socket: socket.socket | None = None

    def open(self) -> None:
        self.close()
        try:
            found = self._address.resolve(socket.SOCK_DGRAM)
            family, kind, protocol, where = found[self._turn % len(found)]
            self._socket = socket.socket(family, kind, protocol)
            self._socket.settimeout(SECONDS)
            self._socket.connect(where)  # so that a port where nobody listens is an error, where the kernel hears of it
        except OSError as error:
            raise self._told(error) from None

    def export(self, record: Record) -> None:
        if self._socket is None:
            self.open()
        prefix = clean(self._prefix.replace("{hostname}", record.snapshot.hostname.replace(".", "_")))
        lines = _tagged(record) if self._tagged else _plain(record)
        for packet in packets(gauge(f"{prefix}.{clean(name)}" if prefix else clean(name), value, tags) for name, value, tags in lines):
            self._send(packet)

    def _send(self, packet: bytes) -> None:
        assert self._socket is not None
        try:
            self._socket.send(packet)
        except OSError as error:
            raise self._told(error) from None

    def _told(self, error: OSError) -> OSError:
        """The error with the address, of the same kind.

        A name is looked up again next time, since it may lead elsewhere by then, and the next of its addresses is tried: the
        first one of ``localhost`` may be that of IPv6, and the server may listen on the other.
        """
        self.close()
        self._turn += 1
        words = f"{self._address}: {error.strerror or error}"
        return OSError(words) if error.errno is None else OSError(error.errno, words)

    def flush(self) -> None:
        """Nothing waits here."""

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _plain(record: Record) -> Iterator[Line]:
    for key, value in record.snapshot.metrics.items():
        yield key, value, {}
    yield from _said(record, {})


def _tagged(record: Record) -> Iterator[Line]:
    common = {"host": record.snapshot.hostname, **record.labels}
    for slot, keys in by_device(record.snapshot):
        head = f"{slot.identity.kind}." if slot else ""
        tags = {**identity_tags(slot), **common} if slot else common
        for name, key in keys.items():
            yield f"{head}{name}", record.snapshot.metrics[key], tags
    yield from _said(record, common)


def _said(record: Record, tags: Mapping[str, str]) -> Iterator[Line]:
    """What the program logged, in its order, and how the monitor fares."""
    for step in record.steps:
        for name, value in step.values.items():
            yield f"training.{name}", value, tags
        if step.step is not None:
            yield "training.step", step.step, tags
    if record.monitor is not None:
        for name, value in record.monitor.flat().items():
            yield name, value, tags


def gauge(name: str, value: int | float, tags: Mapping[str, str]) -> bytes:
    """The line of one gauge. A sign makes StatsD add to the last value: a negative number takes a line that sets 0 before it."""
    number = _number(value)
    tail = f"|g{_tags(tags, MAX_PACKET - len(name) - MAX_NUMBER)}"
    line = f"{name}:{number}{tail}"
    return (f"{name}:0{tail}\n{line}" if number.startswith("-") else line).encode()


def _tags(tags: Mapping[str, str], room: int) -> str:
    """The tags in their order, as many as there is room for."""
    text = ""
    for tag, value in tags.items():
        one = f"{',' if text else '|#'}{clean(tag)}:{_NOT_IN_TAGS.sub('_', value)[:MAX_TAG]}"
        if value and len(text) + len(one) <= room:
            text += one
    return text


def packets(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines, as many to a packet as fit. The two of a negative number stay together."""
    waiting: list[bytes] = []
    size = 0
    for line in lines:
        if waiting and size + len(line) > MAX_PACKET:
            yield b"\n".join(waiting)
            waiting, size = [], 0
        waiting.append(line)
        size += len(line) + 1
    if waiting:
        yield b"\n".join(waiting)


def clean(name: str) -> str:
    """A name as StatsD itself would store it: dots make the hierarchy, a slash becomes ``-``, the rest that it drops ``_``."""
    return _NOT_IN_NAMES.sub("_", name.replace("/", "-")).strip("._")[:MAX_NAME]


def _number(value: int | float) -> str:
    """Plain digits where they are few enough: not every server reads an exponent."""
    text = repr(value)
    plain = format(Decimal(text), "f") if "e" in text else text
    return plain if len(plain) < MAX_NUMBER - len(":|g") else repr(float(value))
