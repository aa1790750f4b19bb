"""InfiniBand and RoCE: what each port of each adapter moved, its errors and its link, from ``/sys/class/infiniband``.

Counters are the port's own, since its driver was loaded or they were reset. ``port_rcv_data`` and ``port_xmit_data`` count words of four
bytes. A port has those files that its adapter knows: a counter without one has no key, and one that answers "N/A" says why.
Which ports there are is looked up every ten seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from accelmetrics.backends.host.collector import INFINIBAND, PORT_FILES, RARE_PACE, Counter, HostReader
from accelmetrics.backends.kit.system import count, list_directory, read_once, reason_of
from accelmetrics.schemas.selection import MetricSelection

WORD = 4
MOST_PORTS = 256
_ADAPTER = re.compile(r"[0-9A-Za-z_-]{1,64}", re.ASCII)
_NUMBER = re.compile(r"\d{1,3}", re.ASCII)
_RATE = re.compile(rb"(\d{1,6}(?:\.\d+)?) Gb/sec")
_STATE = re.compile(rb"(\d): ")
ACTIVE = b"4"


def _words(data: bytes) -> int:
    return count(data) * WORD


def _megabits(data: bytes) -> float:
    """Parse a link's rate: ``200 Gb/sec (4X HDR)``."""
    found = _RATE.match(data)
    if found is None:
        raise ValueError(f"no rate: {data[:32]!r}")
    return float(found[1]) * 1000


def _active(data: bytes) -> int:
    """Parse a link's state: ``4: ACTIVE`` alone carries data."""
    found = _STATE.match(data)
    if found is None:
        raise ValueError(f"no state: {data[:32]!r}")
    return int(found[1] == ACTIVE)


PARSERS: Mapping[str, Callable[[bytes], int | float]] = {
    "rxBytesTotal": _words,
    "txBytesTotal": _words,
    "linkActive": _active,
    "linkRate": _megabits,
}
"""By name, what makes the value of a file's content; of all others it is a plain number."""
RATES = {"rxBytesTotal": "rxBps", "txBytesTotal": "txBps"}
"""By name of a counter, that of its rate."""


def ports() -> Iterator[tuple[str, str]]:
    """Yield adapter and number of each port."""
    for adapter in list_directory(INFINIBAND):
        if _ADAPTER.fullmatch(adapter):
            yield from ((adapter, number) for number in list_directory(f"{INFINIBAND}/{adapter}/ports") if _NUMBER.fullmatch(number))


class InfinibandCollector:
    """What ports moved and how they fare.

    Args:
        metrics: Those that are wanted: other files are not read, each of which may ask the adapter's firmware.
    """

    def __init__(self, metrics: MetricSelection) -> None:
        self._files = {
            name: file
            for name, file in PORT_FILES.items()
            if any(metrics.wants_some(f"ib.{{port}}.{each}") for each in (name, RATES.get(name)) if each)
        }
        self._counters: dict[str, Counter] = {}
        self._ports: list[tuple[str, str]] = []
        self._ports_due = -math.inf

    def __call__(self, reader: HostReader) -> None:
        if reader.now >= self._ports_due:
            self._ports, self._ports_due = list(islice(ports(), MOST_PORTS)), reader.now + RARE_PACE
        known, self._counters = self._counters, {}
        for adapter, number in self._ports:
            reader.progress.append(None)
            head = f"ib.{adapter}.{number}"
            for name, file in self._files.items():
                key = f"{head}.{name}"
                try:
                    value = PARSERS.get(name, count)(read_once(f"{INFINIBAND}/{adapter}/ports/{number}/{file}").strip())
                except FileNotFoundError:
                    continue  # this adapter does not know it
                except (OSError, ValueError) as error:
                    reader.put(key, reason_of(error, file))
                    continue
                reader.put(key, value)
                if name in RATES:
                    # A port that was away is measured anew when it is back.
                    counter = self._counters[key] = known.get(key) or Counter()
                    counter.feed({"": int(value)}, reader.clock())
                    reader.put(f"{head}.{RATES[name]}", counter.per_second())
