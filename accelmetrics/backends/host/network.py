"""``network.sent`` and ``network.recv`` from ``/proc/net/dev``, ``network.tcpRetransmits`` from ``/proc/net/snmp``.

Bytes over all interfaces but loopback, and but the ports of a bond or bridge, whose bytes stand in its own numbers already.
All are counted from this reader's first reading; an interface that comes later counts from when it is first seen.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from accelmetrics.backends.host.numbers import FIRST, Counter, Pace, SumCounter, count, per_second
from accelmetrics.backends.host.part import Moment, Source
from accelmetrics.backends.kit.system import read_text, reason_of, system_path

_PACE_SECONDS = 0.9
_LOOPBACK_FLAG = 0x8
_KEYS = ("network.sent", "network.sentBps", "network.recv", "network.recvBps")
_RETRANSMITS = "network.tcpRetransmits"


class Traffic(NamedTuple):
    """Bytes of one interface since it came up."""

    sent: int
    received: int


def parse_net_dev(data: bytes) -> dict[str, Traffic]:
    """Every interface by name, loopback too.

    Raises:
        ValueError: A line has too few fields, or one is not a number.
    """
    found = {}
    for line in data.split(b"\n"):
        # Large numbers touch the colon, and an alias has one in its name.
        name, colon, rest = line.rpartition(b":")
        if not colon:
            continue
        fields = rest.split()
        if len(fields) < 9:
            raise ValueError(f"{len(fields)} numbers in a line, 9 are needed")
        found[os.fsdecode(name.strip())] = Traffic(count(fields[8]), count(fields[0]))
    return found


def parse_retransmits(data: bytes) -> int:
    """``RetransSegs`` of the pair of lines that begin with ``Tcp:``.

    Raises:
        ValueError: There is none.
    """
    lines = [line.split() for line in data.split(b"\n") if line.startswith(b"Tcp:")]
    if len(lines) != 2 or b"RetransSegs" not in lines[0]:
        raise ValueError("Tcp: RetransSegs is missing")
    column = lines[0].index(b"RetransSegs")
    if column >= len(lines[1]):
        raise ValueError("Tcp: has fewer numbers than names")
    return count(lines[1][column])


def counts_elsewhere(name: str) -> bool:
    """Whether an interface is loopback, or the port of another one."""
    if name == "lo" or system_path(f"/sys/class/net/{name}/master").exists():
        return True
    flags = read_text(f"/sys/class/net/{name}/flags") or ""
    try:
        return bool(int(flags, 16) & _LOOPBACK_FLAG)
    except ValueError:
        return False


class NetworkPart:
    """Bytes over the network."""

    def __init__(self, source: Source[dict[str, Traffic]], left_out: Callable[[str], bool]) -> None:
        self._source = source
        self._leave_out = left_out
        self._names: tuple[str, ...] = ()
        self._left_out: frozenset[str] = frozenset()
        self._pace = Pace(_PACE_SECONDS)
        self._counters = (SumCounter(), SumCounter())
        self._then = 0.0

    def read(self, moment: Moment) -> None:
        try:
            traffic = self._source.read()
        except (OSError, ValueError) as error:
            moment.miss(_KEYS, reason_of(error, self._source.what))
            return
        now = moment.clock()
        elapsed, self._then = now - self._then, now
        self._choose(moment.now, tuple(traffic))
        counted = {name: bytes_ for name, bytes_ in traffic.items() if name not in self._left_out}
        sent, received = self._counters
        sent.feed({name: bytes_.sent for name, bytes_ in counted.items()})
        received.feed({name: bytes_.received for name, bytes_ in counted.items()})
        self._give(moment, "network.sent", sent, elapsed)
        self._give(moment, "network.recv", received, elapsed)

    def _choose(self, now: float, names: tuple[str, ...]) -> None:
        """Which interfaces are left out: looked up when the list changes, and now and then, as a port may be moved."""
        if self._pace.due(now) or names != self._names:
            self._left_out = frozenset(name for name in names if self._leave_out(name))
            self._names = names

    @staticmethod
    def _give(moment: Moment, key: str, counter: SumCounter, elapsed: float) -> None:
        if counter.seen == 1:
            moment.miss((key, f"{key}Bps"), FIRST)
            return
        moment.values[key] = counter.total
        moment.put(f"{key}Bps", per_second(counter.gain, elapsed))


class TcpPart:
    """TCP segments sent again."""

    def __init__(self, source: Source[int]) -> None:
        self._source = source
        self._counter = Counter()

    def read(self, moment: Moment) -> None:
        try:
            self._counter.feed(self._source.read())
        except (OSError, ValueError) as error:
            moment.reasons[_RETRANSMITS] = reason_of(error, self._source.what)
            return
        moment.put(_RETRANSMITS, FIRST if self._counter.seen == 1 else self._counter.total)
