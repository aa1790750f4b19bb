"""InfiniBand and RoCE: what each port of each adapter moved, its errors and its link, from ``/sys/class/infiniband``.

Counters are the port's own, since its driver was loaded or they were reset. ``port_rcv_data`` and ``port_xmit_data`` count words of four
bytes. A port has those files that its adapter knows: a counter without one has no key, and one that answers "N/A" says why.
Which ports there are is looked up every ten seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
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


RATES = {"rxBytesTotal": "rxBps", "txBytesTotal": "txBps"}
"""By name of a counter of words, that of its rate."""
FORMS = {"linkActive": _STATE, "linkRate": _RATE}
"""By name, how a file is written that holds more than a number: ``4: ACTIVE``, ``200 Gb/sec (4X HDR)``."""


def parse_value(name: str, data: bytes) -> int | float:
    """Parse the file of a value: bytes, Mbit/s of a link, 1 for one that is active and so carries data, plain numbers.

    Raises:
        ValueError: It holds something else.
    """
    if name not in FORMS:
        return count(data) * (WORD if name in RATES else 1)
    found = FORMS[name].match(data)
    if found is None:
        raise ValueError(f"no {PORT_FILES[name]}: {data[:32]!r}")
    return float(found[1]) * 1000 if name == "linkRate" else int(found[1] == ACTIVE)


def infiniband_collector(metrics: MetricSelection) -> Callable[[HostReader], None]:
    """Make the collector of what ports moved and how they fare.

    Args:
        metrics: Those that are wanted: other files are not read, each of which may ask the adapter's firmware.
    """
    files = {
        name: file
        for name, file in PORT_FILES.items()
        if any(metrics.wants_some(f"ib.{{port}}.{each}") for each in (name, RATES.get(name)) if each)
    }
    counters: dict[str, Counter] = {}
    ports: list[tuple[str, str]] = []
    due = -math.inf

    def collect(reader: HostReader) -> None:
        nonlocal counters, ports, due
        if reader.now >= due:
            adapters = filter(_ADAPTER.fullmatch, list_directory(INFINIBAND))
            found = ((adapter, number) for adapter in adapters for number in list_directory(f"{INFINIBAND}/{adapter}/ports"))
            ports = list(islice((port for port in found if _NUMBER.fullmatch(port[1])), MOST_PORTS))
            due = reader.now + RARE_PACE
        known, counters = counters, {}
        for adapter, number in ports:
            reader.progress.append(None)
            head = f"ib.{adapter}.{number}"
            for name, file in files.items():
                key = f"{head}.{name}"
                try:
                    value = parse_value(name, read_once(f"{INFINIBAND}/{adapter}/ports/{number}/{file}").strip())
                except FileNotFoundError:
                    continue  # this adapter does not know it
                except (OSError, ValueError) as error:
                    reader.put(key, reason_of(error, file))
                    continue
                reader.put(key, value)
                if name in RATES:
                    # A port that was away is measured anew when it is back.
                    counter = counters[key] = known.get(key) or Counter()
                    counter.feed({"": int(value)}, reader.clock())
                    reader.put(f"{head}.{RATES[name]}", counter.per_second())

    return collect
