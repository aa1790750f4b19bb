"""Readings on their way from one process to another: what arrives is what was sent, and what is none is refused."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from accelmetrics.sampling.node_view import OwnView
from accelmetrics.sampling.node_wire import LONGEST_READING, OWN, Decoder, Encoder, Frames, SharedReading, WireError
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceSlot
from accelmetrics.schemas.snapshot import Snapshot

SLOTS = tuple(DeviceSlot(f"gpu.{number}", number, number, DeviceIdentity("gpu", "nvidia", number), "nvidia") for number in range(2))
STATUSES = (
    BackendStatus("nvidia", "ok", "", "nvml", 0.25, "2001-09-09T01:46:39.500000Z", 0.5, 7, 2),
    BackendStatus("amd", "absent", "no PCI device of it"),
)
NAMES = ("powerWatts", "temp", "memoryAllocatedBytes")
FLOATS = st.floats(-1.7e308, 1.7e308)
NUMBERS = st.one_of(st.integers(-(2**70), 2**70), FLOATS)
VALUES = st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=2)


def snapshot(metrics: dict[str, int | float]) -> Snapshot:
    return Snapshot(10**18, "node", metrics, SLOTS, backends=STATUSES)


def metrics_of(values: Sequence[Sequence[int | float]], own: int | float) -> dict[str, int | float]:
    """Metrics of devices, and one that each process reads itself."""
    found = {f"gpu.{number}.{name}": value for number, part in enumerate(values) for name, value in zip(NAMES, part, strict=False)}
    return {**found, min(OWN): own, "load.1m": 0.5}


class Wire:
    """Both ends of a connection."""

    def __init__(self) -> None:
        self.encoder, self.decoder, self.frames = Encoder(), Decoder(), Frames(LONGEST_READING)
        self._serial = 0

    def send(self, taken: Snapshot) -> SharedReading:
        """Send a reading; what has arrived."""
        self.encoder.encode(taken, 5.0, 5.5)
        before = b"" if self._serial == self.encoder.serial else self.encoder.standing
        self._serial = self.encoder.serial
        return [self.decoder.decode(message) for message in self.frames.feed(before + self.encoder.reading)][-1]  # type: ignore[return-value]


def numbers(found: Mapping[str, int | float]) -> dict[str, tuple[type, int | float]]:
    return {key: (type(value), value) for key, value in found.items()}


@given(st.lists(st.tuples(VALUES, NUMBERS), min_size=1, max_size=5))
def test_what_arrives_is_what_was_sent(turns: list[tuple[list[list[int | float]], int | float]]) -> None:
    """Ints as ints and floats as floats, however large, whatever came before; a process's own facts stay."""
    wire = Wire()
    for values, own in turns:
        sent = snapshot(metrics_of(values, own))
        got = wire.send(sent)
        seen = dict(zip(got.header.keys, got.numbers, strict=True))
        assert numbers(seen) == {key: kind for key, kind in numbers(sent.metrics).items() if key not in OWN}
        assert got.backends == STATUSES


@pytest.mark.parametrize(
    ("chosen", "wanted"),
    [
        ({}, (*[f"gpu.{number}.{name}" for number in range(2) for name in NAMES], "load.1m")),
        ({"gpus": [1]}, ("gpu.1.powerWatts", "gpu.1.temp", "gpu.1.memoryAllocatedBytes", "load.1m")),
        ({"metrics": "temp"}, ("gpu.0.temp", "gpu.1.temp")),
        ({"metrics": "temp,memoryAllocatedBytes", "gpus": ["gpu.1"]}, ("gpu.1.temp", "gpu.1.memoryAllocatedBytes")),
    ],
    ids=["all", "gpu", "metric", "both"],
)
def test_each_process_is_shown_what_it_chose(chosen: dict[str, Any], wanted: Sequence[str]) -> None:
    sent = snapshot(metrics_of([[1, 2.5, 2**60 + 1], [4, 5.5, 2**61 + 1]], 0))
    view = OwnView({"backends": ["nvidia"], **chosen})
    wire = Wire()
    seen = [view.snapshot(wire.send(sent)) for _ in range(2)]
    for one in seen:
        assert numbers(one.metrics) == numbers({key: sent.metrics[key] for key in wanted})
    assert seen[0].header is seen[1].header


def spoilt(**changed: Any) -> bytes:
    """Return the body of a reading of two numbers, the second an int, in which something is wrong."""
    part = {"kind": 0, "began": 5.0, "count": 2, "values": (1.5, 2.0), "whole": b"\0\1", "source": (1, 0.5, 0.5), "tail": b"", **changed}
    head = struct.pack("=BqddHI", part["kind"], 10**18, part["began"], 5.5, 1, part["count"])
    return bytes(head + struct.pack("=qdd", *part["source"]) + array("d", part["values"]).tobytes() + part["whole"] + part["tail"])


def taken(body: bytes) -> SharedReading | None:
    """Have it decoded behind the layout that it is of."""
    wire = Wire()
    wire.send(Snapshot(10**18, "node", {"load.1m": 1.5, "load.5m": 2}, backends=STATUSES[:1]))
    (message,) = wire.frames.feed(struct.pack("!I", len(body)) + body)
    return wire.decoder.decode(message)


def test_a_reading_that_is_not_spoilt_is_taken() -> None:
    got = taken(spoilt(values=(1.7e308, float(2**60)), tail=b"[[1,%d]]" % (2**60 + 1)))
    assert got is not None
    assert got.numbers == (1.7e308, 2**60 + 1)


@pytest.mark.parametrize(
    "body",
    [
        spoilt()[:20],
        spoilt()[:-1],
        spoilt(count=2**32 - 1),
        spoilt(count=1, tail=b""),
        spoilt(values=(1.5,), whole=b"\1", count=1),
        spoilt(values=(1.5, float("inf"))),
        spoilt(values=(float("nan"), 2.0)),
        spoilt(values=(-float("inf"), 2.0)),
        spoilt(whole=b"\0\2"),
        spoilt(began=float("nan")),
        spoilt(source=(1, float("inf"), 0.5)),
        spoilt(source=(1, 0.5, -float("inf"))),
        spoilt(source=(1, 1e300, 0.5)),
        spoilt(source=(1, 1e17, 0.5)),
        spoilt(tail=b"[" * 60_000),
        spoilt(tail=b"[[1,3]]"),
        spoilt(tail=b"[[0,1]]"),
        spoilt(tail=b"[[-1,2]]"),
        spoilt(tail=b"[[2,2]]"),
        spoilt(tail=b"[[true,2]]"),
        spoilt(tail=b"[[1,2.0]]"),
        spoilt(tail=b"[[1,1%s]]" % (b"0" * 400)),
        spoilt(tail=b"3"),
        spoilt(tail=b"NaN"),
        spoilt(tail=b"\xff"),
    ],
)
def test_what_is_no_reading_is_refused(body: bytes) -> None:
    with pytest.raises(WireError):
        taken(body)


def test_a_reading_before_its_layout_is_refused() -> None:
    wire = Wire()
    (message,) = wire.frames.feed(struct.pack("!I", len(spoilt())) + spoilt())
    with pytest.raises(WireError, match="was not expected"):
        wire.decoder.decode(message)


def test_a_process_looks_at_itself_when_there_is_something_new() -> None:
    """A moment before that it would have the same for as long once more."""
    view, wire = OwnView({"backends": ["host"], "metrics": "proc.cpu.threads"}), Wire()
    for _ in range(2):
        view._own_due = 0.0
        view.snapshot(wire.send(snapshot(metrics_of([[1, 2.5, 3]], 0))))
    assert view._host is not None
    (host,) = view._host._engine.readers[0]._readers.values()  # type: ignore[union-attr]
    assert view._own_due >= max(collector.due for collector in host._collectors)  # type: ignore[union-attr]
    view.close()
