"""What processes of one machine say to each other over a Unix socket, to share one reading: frames, and what stands in them.

A frame is a length of four bytes, then that many bytes of JSON: an object with a ``type``. Its length is bounded before a byte of it is
kept; nothing is unpickled. A client begins with a ``hello`` and is answered with a ``welcome``, or with why it is ``refused``.

Then come readings. What seldom changes (devices, keys, why values are missing) is sent once as a ``layout``, in the form of the header
of :mod:`~accelmetrics.schemas.lines`. A ``reading`` has the numbers alone, in the layout's order, and is no JSON: a row of doubles, as
a history keeps them, a byte for each that tells ints from floats, and as text the ints that no double holds. Facts of a process
(``cpu``, ``proc.…``, ``gpu.process.…``) are not among them: each client reads its own, from the processes of each device that are
sent beside.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping
from itertools import repeat
from math import isfinite, isinf, isnan, nan
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationError

from accelmetrics.schemas.catalogue.host import MEMORY, PROCESS
from accelmetrics.schemas.document import HeaderLine, describe
from accelmetrics.schemas.errors import DocumentError
from accelmetrics.schemas.identity import BackendStatus, DeviceProcess
from accelmetrics.schemas.identity_models import ProcessEntry
from accelmetrics.schemas.limits import LONGEST_INTERVAL, SHORTEST_INTERVAL
from accelmetrics.schemas.lines import header_line
from accelmetrics.schemas.reading import Header, header as header_of
from accelmetrics.schemas.snapshot import Snapshot, plain, rfc3339
from accelmetrics.schemas.view_model import Part

LARGEST_EXACT = 2**53
"""Up to here every whole number is a double."""
PROTOCOL = 2
"""Rises whenever a process that speaks the form before would misread this one."""
LONGEST_HELLO, LONGEST_MESSAGES, LONGEST_READING = 1 << 16, 1 << 20, 1 << 26
"""Bytes of a frame: a client's first, its later ones, and those that it is sent."""
OWN = frozenset(row.key for row in (*PROCESS, *MEMORY))
"""Keys that each client reads itself: of its own process, and of the memory that its own control group leaves it."""
_LENGTH = struct.Struct("!I")
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_XUCRED = "=IIh2x16I"
_PACKED = 0
"""The first byte of a reading; that of JSON is another."""
_HEAD = struct.Struct("=BqddHI")
"""That byte, the time in nanoseconds, when the reading was begun and when it was put together, how many sources and how many numbers."""
_SOURCE = struct.Struct("=qdd")
"""A source's sequence, age and duration: those are no number where there is none."""
_HIGHEST = 7 if sys.byteorder == "little" else 0
"""Of the eight bytes of a double the one with most of the exponent: where none has all bits of it set, all are finite."""


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
        come: bytes | bytearray = data
        if self._waiting:
            self._waiting += data
            come = self._waiting
        begin = 0
        while len(come) - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(come, begin)
            if length > self.longest:
                raise WireError(f"a frame of {length} bytes: at most {self.longest} are taken")
            end = begin + _LENGTH.size + length
            if len(come) < end:
                break
            yield _message(bytes(come[begin + _LENGTH.size : end]))
            begin = end
        if come is data:  # as nearly always, to the end of a frame
            self._waiting += data[begin:]
        else:
            del self._waiting[:begin]


def _message(body: bytes) -> dict[str, Any]:
    if body[:1] == b"\0":
        return _unpacked(body)
    try:
        message = _DECODER.decode(body.decode())
    except (ValueError, RecursionError) as error:
        raise WireError(f"no JSON: {error}") from error
    if not isinstance(message, dict):
        raise WireError("a message must be an object")
    return message


def _unpacked(body: bytes) -> dict[str, Any]:
    """Take a reading apart.

    Raises:
        WireError: It is none.
    """
    try:
        _, time_ns, began, ended, sources, count = _HEAD.unpack_from(body)
        first = _HEAD.size + sources * _SOURCE.size
        end = first + (8 + 1) * count
        if len(body) < end:
            raise WireError("no reading: it is too short")
        values = array("d")
        values.frombytes(memoryview(body)[first : first + 8 * count])
        high = body[first + _HIGHEST : first + 8 * count : 8]
        if (b"\x7f" in high or b"\xff" in high) and not all(map(isfinite, values)):
            raise WireError("no reading: its values are not finite numbers")
        return {
            "type": "reading",
            "time_ns": time_ns,
            "began": began,
            "ended": ended,
            "sources": list(_SOURCE.iter_unpack(body[_HEAD.size : first])),
            "values": values,
            "whole": body[end - count : end],
            "exact": _DECODER.decode(body[end:].decode()) if len(body) > end else [],
        }
    except (struct.error, ValueError, RecursionError) as error:
        raise WireError(f"no reading: {error}") from error


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


class SharedReading(NamedTuple):
    """A reading as it was received.

    Attributes:
        header: Its keys, devices and reasons.
        numbers: The numbers of the keys.
        time_ns: When it was begun, in nanoseconds since 1970.
        began: The same on the machine's monotonic clock.
        ended: When it was put together, on that clock.
        backends: How the sources fared.
        processes: By device key, the processes on it; the same object while nothing changed.
    """

    header: Header
    numbers: tuple[int | float, ...]
    time_ns: int
    began: float
    ended: float
    backends: tuple[BackendStatus, ...]
    processes: Mapping[str, tuple[DeviceProcess, ...]]


class Encoder:
    """Turns snapshots into frames: those that all clients have had are not sent again.

    Attributes:
        serial: Which layout and processes are the latest.
        standing: The frames that a client needs before its first reading, and again when the serial has risen.
        reading: The latest reading.
    """

    def __init__(self) -> None:
        self.serial = 0
        self.standing = self.reading = b""
        self._processes: Mapping[str, tuple[DeviceProcess, ...]] | None = None
        self._header: Header | None = None
        self._layout = b""
        self._shared: list[int] = []  # the places of the numbers that are sent

    def encode(self, snapshot: Snapshot, began: float, ended: float) -> None:
        """Take the next reading.

        Args:
            snapshot: The reading.
            began: When it was begun, on the machine's monotonic clock.
            ended: When it was put together.
        """
        changed = snapshot.header is not self._header
        if changed:
            self._header = snapshot.header
            self._shared = [place for place, key in enumerate(self._header.keys) if _is_shared(key)]
            self._layout = self._layout_frame(self._header)
        if changed or snapshot.processes is not self._processes:
            self._processes = snapshot.processes
            self.serial += 1
            listed = {key: plain(tuple(found)) for key, found in snapshot.processes.items()}
            self.standing = self._layout + frame({"type": "processes", "processes": listed})
        self.reading = self._packed(snapshot, began, ended)

    def _packed(self, snapshot: Snapshot, began: float, ended: float) -> bytes:
        """Return the frame of a reading."""
        numbers = [snapshot.numbers[place] for place in self._shared]
        exact: list[list[int]] = []
        if numbers and not -LARGEST_EXACT <= min(numbers) <= max(numbers) <= LARGEST_EXACT:
            exact = [[place, number] for place, number in enumerate(numbers) if isinstance(number, int) and abs(number) > LARGEST_EXACT]
        sources = [
            _SOURCE.pack(
                one.sequence,
                nan if one.age_seconds is None else one.age_seconds,
                nan if one.duration_seconds is None else one.duration_seconds,
            )
            for one in snapshot.backends
        ]
        body = [
            _HEAD.pack(_PACKED, snapshot.time_ns, began, ended, len(sources), len(numbers)),
            *sources,
            array("d", numbers).tobytes(),
            bytes([type(number) is int for number in numbers]),
            _ENCODER.encode(exact).encode() if exact else b"",
        ]
        packed = b"".join(body)
        return _LENGTH.pack(len(packed)) + packed

    def _layout_frame(self, head: Header) -> bytes:
        """Return the frame that says what the numbers of a reading are."""
        unavailable = {key: why for key, why in head.unavailable.items() if _is_shared(key)}
        sent = header_of(head.hostname, (), head.identities, unavailable, head.backends, head.unlisted)
        return frame(
            {
                "type": "layout",
                "keys": [head.keys[place] for place in self._shared],
                "listed_by": [slot.listed_by for slot in head.identities],
                "header": header_line(sent, "node"),
            }
        )


def _is_shared(key: str) -> bool:
    return key not in OWN and ".process." not in key


class Decoder:
    """Turns the frames of one connection into readings."""

    def __init__(self) -> None:
        self._header: Header | None = None
        self._processes: Mapping[str, tuple[DeviceProcess, ...]] = {}

    def decode(self, message: Mapping[str, Any]) -> SharedReading | None:
        """Take a message; return the reading that it is, None for one that goes before a reading.

        Raises:
            WireError: It is none of those.
        """
        kind = message.get("type")
        try:
            if kind == "layout":
                self._header = _layout(message)
                return None
            if kind == "processes":
                self._processes = _processes(message)
                return None
            if kind == "reading" and self._header is not None:
                return self._reading(message, self._header)
        except (KeyError, IndexError, TypeError, ValueError, OverflowError, OSError, DocumentError) as error:  # OSError: no such year
            words = describe(error) if isinstance(error, ValidationError) else str(error)
            raise WireError(f"no {kind}: {words}") from error
        raise WireError(f"a message of the type {kind!r} was not expected")

    def _reading(self, message: Mapping[str, Any], head: Header) -> SharedReading:
        values, whole, sources = message["values"], message["whole"], message["sources"]
        if not isinstance(values, array) or len(values) != len(head.keys) or len(sources) != len(head.backends):
            raise ValueError("it is none of its layout")
        if whole.strip(b"\0\1"):
            raise ValueError("it does not say which of its numbers are ints")
        numbers = [int(value) if is_whole else value for value, is_whole in zip(values, whole, strict=True)]
        for place, number in message["exact"]:
            if type(place) is not int or type(number) is not int or place < 0 or float(number) != values[place] or not whole[place]:
                raise ValueError("its large numbers are none of its values")
            numbers[place] = number
        time_ns, began, ended = message["time_ns"], message["began"], message["ended"]
        if not isfinite(began + ended):
            raise ValueError("its moments are none")
        fared = tuple(map(_fared, head.backends, sources, repeat(time_ns)))
        return SharedReading(head, tuple(numbers), time_ns, began, ended, fared, self._processes)


def _layout(message: Mapping[str, Any]) -> Header:
    head = HeaderLine.model_validate(message["header"]).header()
    keys, names = tuple(map(str, message["keys"])), list(map(str, message["listed_by"]))
    if len(set(keys)) != len(keys):
        raise ValueError("a key stands there twice")
    slots = tuple([slot._replace(listed_by=name) for slot, name in zip(head.identities, names, strict=True)])
    return header_of(head.hostname, keys, slots, head.unavailable, head.backends, head.unlisted)


def _processes(message: Mapping[str, Any]) -> Mapping[str, tuple[DeviceProcess, ...]]:
    return {
        str(key): tuple(DeviceProcess(**dict(ProcessEntry.model_validate(entry))) for entry in found)
        for key, found in message["processes"].items()
    }


def _fared(stands: BackendStatus, numbers: tuple[int, float, float], time_ns: int) -> BackendStatus:
    """Return how a source fared: what the layout says, and the numbers of this reading."""
    sequence, age, duration = numbers
    if isinf(age) or isinf(duration):
        raise ValueError("the numbers of a source are not finite")
    read_at = "" if isnan(age) else rfc3339(time_ns - int(age * 1e9))
    return stands._replace(
        duration_seconds=None if isnan(duration) else duration,
        read_at=read_at,
        age_seconds=None if isnan(age) else age,
        sequence=sequence,
    )
