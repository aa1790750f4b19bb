"""What processes of one machine say to each other over a Unix socket, to share one reading: frames, and what stands in them.

A frame is a length of four bytes, then that many bytes of JSON: an object with a ``type``. Its length is bounded before a byte of it is
kept; nothing is unpickled. A client begins with a ``hello`` and is answered with a ``welcome``, or with why it is ``refused``.

Then come readings. What seldom changes (devices, keys, why values are missing) is sent once as a ``layout``, in the form of the header
of :mod:`~accelmetrics.schemas.lines`; a ``reading`` has the numbers alone, in the layout's order, and after the first one only those
that have changed, with their places. Facts of a process (``cpu``, ``proc.…``,
``gpu.process.…``) are not among them: each client reads its own, from the processes of each device that are sent beside.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from math import isfinite
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError

from accelmetrics.schemas.catalogue.host import MEMORY, PROCESS
from accelmetrics.schemas.document import Part, ProcessEntry, describe
from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.identity import BackendStatus, DeviceProcess
from accelmetrics.schemas.line_models import HeaderLine
from accelmetrics.schemas.lines import Header
from accelmetrics.schemas.record import Record
from accelmetrics.schemas.snapshot import DeviceSlot, Snapshot, plain, rfc3339

PROTOCOL = 1
"""Rises whenever a process that speaks the form before would misread this one."""
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.01, 86_400.0
"""Seconds between two readings that a client may ask for."""
LONGEST_HELLO, LONGEST_MESSAGES, LONGEST_READING = 1 << 16, 1 << 20, 1 << 26
"""Bytes of a frame: a client's first, its later ones, and those that it is sent."""
OWN = frozenset(row.key for row in (*PROCESS, *MEMORY))
"""Keys that each client reads itself: of its own process, and of the memory that its own control group leaves it."""
_LENGTH = struct.Struct("!I")
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_XUCRED = "=IIh2x16I"


def _refuse(word: str) -> object:
    raise ValueError(f"{word} is no number")


_DECODER = json.JSONDecoder(parse_constant=_refuse)

Text = Annotated[str, Field(max_length=1024)]


class WireError(Exception):
    """What the other end sent cannot be understood."""


class Hello(Part):
    """What a client says first."""

    protocol: int
    release: Text = ""
    job: Text = ""
    rank: int | None = None
    labels: dict[Text, Text] = Field({}, max_length=64)
    interval: float = Field(ge=SHORTEST_INTERVAL, le=LONGEST_INTERVAL)
    metrics: list[Text] = Field(["all"], max_length=256)
    backends: list[Text] | None = Field(None, max_length=64)
    amd_source: Text | None = None
    disk_paths: list[Text] = Field(["/"], max_length=64)

    @property
    def options(self) -> dict[str, object]:
        """What all clients of one reading must have in common."""
        return {"backends": self.backends, "amd_source": self.amd_source, "disk_paths": self.disk_paths}


def hello(message: Mapping[str, Any]) -> Hello:
    """Check what a client said first.

    Raises:
        WireError: It is no hello.
    """
    try:
        return Hello.model_validate(message)
    except ValidationError as error:
        raise WireError(f"no hello: {describe(error)}") from error


def frame(message: Mapping[str, Any]) -> bytes:
    """Return a message as it is sent.

    Raises:
        ValueError: A number in it is not finite, or it refers to itself.
        TypeError: Something in it is nothing that JSON has.
    """
    body = _ENCODER.encode(message).encode()
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Cuts what is received into messages.

    Attributes:
        longest: Bytes of a frame at most.
    """

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._waiting = bytearray()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Take what has come, and yield the messages that are whole.

        Raises:
            WireError: It is no frame, or a longer one than is taken.
        """
        self._waiting += data
        begin = 0
        while len(self._waiting) - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._waiting, begin)
            if length > self.longest:
                raise WireError(f"a frame of {length} bytes: at most {self.longest} are taken")
            end = begin + _LENGTH.size + length
            if len(self._waiting) < end:
                break
            yield _message(bytes(self._waiting[begin + _LENGTH.size : end]))
            begin = end
        del self._waiting[:begin]


def _message(body: bytes) -> dict[str, Any]:
    try:
        message = _DECODER.decode(body.decode())
    except (ValueError, RecursionError) as error:
        raise WireError(f"no JSON: {error}") from error
    if not isinstance(message, dict):
        raise WireError("a message must be an object")
    return message


class Credentials(NamedTuple):
    """Who is at the other end of a Unix socket, as the kernel says; the process is 0 where it does not say."""

    pid: int
    uid: int
    gid: int


def credentials(connection: socket.socket) -> Credentials:
    """Ask the kernel who is at the other end.

    Raises:
        OSError: It does not say, or this is a system that cannot.
    """
    if hasattr(socket, "SO_PEERCRED"):
        return Credentials(*struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))))
    if sys.platform == "darwin":
        local, peer_credentials, peer_process = 0, 1, 2  # of <sys/un.h>
        _, uid, _, gid, *_ = struct.unpack(_XUCRED, connection.getsockopt(local, peer_credentials, struct.calcsize(_XUCRED)))
        return Credentials(connection.getsockopt(local, peer_process), uid, gid)
    raise OSError("this system does not say who is at the other end of a socket")


class Layout(NamedTuple):
    """What the numbers of a reading are.

    Attributes:
        serial: Which one of its sender.
        keys: The keys.
        header: The devices, the reasons, and how the sources stand.
    """

    serial: int
    keys: tuple[str, ...]
    header: Header


class SharedReading(NamedTuple):
    """A reading as it was received. It holds until the next one is decoded.

    Attributes:
        number: Counts the readings of a connection.
        layout: What its numbers are.
        values: Its numbers.
        changed: The places of those that are not as in the reading before; None where all may be.
        time_ns: When it was begun, in nanoseconds since 1970.
        began: The same on the machine's monotonic clock.
        ended: When it was put together, on that clock.
        backends: How the sources fared.
        processes: By device key, the processes on it; the same object while nothing changed.
    """

    number: int
    layout: Layout
    values: Sequence[int | float]
    changed: Sequence[int] | None
    time_ns: int
    began: float
    ended: float
    backends: tuple[BackendStatus, ...]
    processes: Mapping[str, tuple[DeviceProcess, ...]]


class Encoder:
    """Turns snapshots into frames: those that all clients have had are not sent again.

    Attributes:
        number: Counts the readings.
        serial: Which layout and processes are the latest.
        standing: The frames that a client needs before its first reading, and again when the serial has risen.
        changes: The latest reading, for clients that had the one before: what has changed.
    """

    def __init__(self) -> None:
        self.number = self.serial = 0
        self.standing = self.changes = b""
        self._wanted: list[bool] = []
        self._last: tuple[object, ...] = ()
        self._processes: Mapping[str, tuple[DeviceProcess, ...]] | None = None
        self._layout = self._whole = b""
        self._head: dict[str, Any] = {}
        self._values: list[int | float] = []

    def encode(self, snapshot: Snapshot, began: float, ended: float) -> None:
        """Take the next reading.

        Args:
            snapshot: The reading.
            began: When it was begun, on the machine's monotonic clock.
            ended: When it was put together.
        """
        changed = self._note_layout(snapshot)
        if changed or snapshot.processes is not self._processes:
            self._processes = snapshot.processes
            self.serial += 1
            listed = {key: plain(tuple(found)) for key, found in snapshot.processes.items()}
            self.standing = self._layout + frame({"type": "processes", "processes": listed})
        sources = {
            one.name: [one.sequence, one.age_seconds, one.duration_seconds]
            for one in snapshot.backends
            if one.sequence or one.duration_seconds is not None
        }
        before, self._values = self._values, list(compress(snapshot.metrics.values(), self._wanted))
        self._head = {"type": "reading", "time_ns": snapshot.time_ns, "began": began, "ended": ended, "sources": sources}
        self.number += 1
        self._whole = self.changes = b""
        if not changed:
            places = [place for place, (old, new) in enumerate(zip(before, self._values, strict=True)) if old != new]
            self.changes = frame({**self._head, "places": places, "values": [self._values[place] for place in places]})

    @property
    def whole(self) -> bytes:
        """The latest reading, for clients that have none."""
        self._whole = self._whole or frame({**self._head, "places": None, "values": self._values})
        return self._whole

    def _note_layout(self, snapshot: Snapshot) -> bool:
        """Make the layout's frame anew where anything in it has changed; whether it has."""
        keys = tuple(snapshot.metrics)
        stands = [(one.status, one.detail, one.source, one.devices) for one in snapshot.backends]
        now = (keys, snapshot.identities, snapshot.unavailable, snapshot.unlisted, stands)
        if self._last and all(new is old or new == old for new, old in zip(now, self._last, strict=True)):
            return False
        self._last = now
        self._wanted = [_is_shared(key) for key in keys]
        header = Header.of(Record(snapshot, {}))
        shared = header._replace(unavailable={key: why for key, why in header.unavailable.items() if _is_shared(key)})
        self._layout = frame(
            {
                "type": "layout",
                "keys": list(compress(keys, self._wanted)),
                "listed_by": [slot.listed_by for slot in snapshot.identities],
                "header": shared.to_dict("node"),
            }
        )
        return True


def _is_shared(key: str) -> bool:
    return key not in OWN and ".process." not in key


class Decoder:
    """Turns the frames of one connection into readings."""

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._layouts = self._readings = 0
        self._values: list[int | float] = []
        self._processes: Mapping[str, tuple[DeviceProcess, ...]] = {}

    def decode(self, message: Mapping[str, Any]) -> SharedReading | None:
        """Take a message; return the reading that it is, None for one that goes before a reading.

        Raises:
            WireError: It is none of those.
        """
        kind = message.get("type")
        try:
            if kind == "layout":
                self._layouts += 1
                self._layout, self._values = _layout(message, self._layouts), []
                return None
            if kind == "processes":
                self._processes = _processes(message)
                return None
            if kind == "reading" and self._layout is not None:
                return self._reading(message, self._layout)
        except (KeyError, IndexError, TypeError, ValueError, OverflowError, DocumentError) as error:
            words = describe(error) if isinstance(error, ValidationError) else str(error)
            raise WireError(f"no {kind}: {words}") from error
        raise WireError(f"a message of the type {kind!r} was not expected")

    def _reading(self, message: Mapping[str, Any], layout: Layout) -> SharedReading:
        places, values = message["places"], message["values"]
        if not set(map(type, values)) <= {int, float} or not isfinite(sum(values)):
            raise ValueError("its values are not finite numbers")
        if places is None:
            self._values = list(values)
        else:
            for place, value in zip(places, values, strict=True):
                self._values[place] = value
        if len(self._values) != len(layout.keys):
            raise ValueError("its values are not those of its layout")
        time_ns, sources = int(message["time_ns"]), message["sources"]
        self._readings += 1
        return SharedReading(
            self._readings,
            layout,
            self._values,
            places,
            time_ns,
            float(message["began"]),
            float(message["ended"]),
            tuple(_fared(stands, sources.get(stands.name), time_ns) for stands in layout.header.backends),
            self._processes,
        )


def _layout(message: Mapping[str, Any], serial: int) -> Layout:
    header = HeaderLine.model_validate(message["header"]).header()
    keys, names = tuple(map(str, message["keys"])), list(map(str, message["listed_by"]))
    if len(set(keys)) != len(keys):
        raise ValueError("a key stands there twice")
    slots: list[DeviceSlot] = [slot._replace(listed_by=name) for slot, name in zip(header.identities, names, strict=True)]
    return Layout(serial, keys, header._replace(identities=tuple(slots)))


def _processes(message: Mapping[str, Any]) -> Mapping[str, tuple[DeviceProcess, ...]]:
    return {
        str(key): tuple(DeviceProcess(**dict(ProcessEntry.model_validate(entry))) for entry in found)
        for key, found in message["processes"].items()
    }


def _fared(stands: BackendStatus, numbers: object, time_ns: int) -> BackendStatus:
    """Return how a source fared: what the layout says, and the numbers of this reading."""
    if numbers is None:
        return stands
    if not isinstance(numbers, list):
        raise TypeError("the numbers of a source must be a list")
    sequence, age, duration = numbers
    if not isinstance(sequence, int) or not isinstance(age, float | int | None) or not isinstance(duration, float | int | None):
        raise TypeError("the numbers of a source are none")
    read_at = "" if age is None else rfc3339(time_ns - int(age * 1e9))
    return stands._replace(duration_seconds=duration, read_at=read_at, age_seconds=age, sequence=sequence)
