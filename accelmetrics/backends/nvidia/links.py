"""NVLink, every ten seconds: state, traffic and errors link by link, what all links come to, and the fabric of NVLink switches.

One batch of fields asks about all links. A link that is down has no traffic: a field that fails there costs nothing else. Drivers
without the field for the state are asked for it link by link.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from accelmetrics.backends.contract import Value
from accelmetrics.backends.nvidia.calls import CallGroup, Paced
from accelmetrics.backends.nvidia.metrics import (
    ALL_ONES,
    KIB,
    LARGEST,
    LINK_ERRORS,
    LINK_STATE,
    LINK_STATE_CALL,
    LINK_TRAFFIC,
    ONCE,
    TEN_SECONDS,
    Call,
    NvmlField,
    NvmlMetric,
)
from accelmetrics.backends.nvidia.nvml import Handle, Library, impossible, meaning
from accelmetrics.schemas.errors import Reason, Unavailable

MOST_LINKS = 36
COUNT = NvmlMetric("links", NvmlField(91, "NVLINK_LINK_COUNT"), every=ONCE, maximum=MOST_LINKS)
TOTALS = {"nvlinkTxBytesTotal": "txBytesTotal", "nvlinkRxBytesTotal": "rxBytesTotal"}
"""The metric of all links, and that of one of them."""
NO_LINKS = Unavailable(Reason.NOT_SUPPORTED, "the GPU has no NVLink")

FABRIC = Call(
    ("nvmlDeviceGetGpuFabricInfoV",),
    "4xQQIIB7x",
    ("clusterLow", "clusterHigh", "status", "cliqueId", "state"),
    version=0x02000024,
)
"""The cluster's id, which has 16 bytes, the status of joining, the clique, and the state, which is one byte."""
FABRIC_ROWS = tuple(NvmlMetric(member, FABRIC, member, maximum=2**64 - 1) for member in FABRIC.members)
FABRIC_SAFE_FROM = 550
"""The first driver whose function can be called: on older ones it crashes the process."""
NO_FABRIC, COMPLETED = 0, 3
FABRIC_STATES = {1: "NVLink fabric: not joined", 2: "NVLink fabric: joining", COMPLETED: "NVLink fabric: joined"}
TOO_OLD = Unavailable(Reason.NOT_SUPPORTED, f"drivers before {FABRIC_SAFE_FROM} crash when they are asked for it")
UNKNOWN_DRIVER = TOO_OLD._replace(detail=f"the driver does not say which version it is, and {TOO_OLD.detail}")
OUTSIDE = Unavailable(Reason.NOT_SUPPORTED, "the GPU belongs to no NVLink fabric")


class Links(Paced):
    """State, traffic and errors of the links of one GPU, and their sums where the driver does not add them up."""

    def __init__(self, library: Library, handle: Handle) -> None:
        super().__init__(TEN_SECONDS)
        self._library = library
        self._handle = handle
        self._links = 0
        self._count = CallGroup(library, handle, (COUNT,), ONCE)
        self._group: CallGroup | None = None
        self._state_by_field = True
        self._state_given = False

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Value] | None:
        if self._group is None:
            self._count.read(now, progress)
            self.due = self._count.due
            count = self._count.answers[COUNT.name]
            if isinstance(count, Unavailable) or count == 0:
                none = count == 0 or _is_unsupported(count)
                return dict.fromkeys(LINK_ERRORS, NO_LINKS if none else count)
            self._links = int(count)
            self._group = self._bind()
        self._group.read(now, progress)
        found = self._group.answers
        states = [found[f"nvlink.{link}.state"] for link in range(self._links)]
        self._state_given = self._state_given or not all(isinstance(state, Unavailable) for state in states)
        if self._state_by_field and not self._state_given and all(map(_is_unsupported, states)):
            self._state_by_field = False
            self._group = self._bind()
            self._group.read(now, progress)
            found = self._group.answers
        self.due = self._group.due
        return self._relate(found)

    def _bind(self) -> CallGroup:
        return CallGroup(self._library, self._handle, _rows(self._links, self._state_by_field), TEN_SECONDS)

    def _relate(self, found: Mapping[str, Value]) -> dict[str, Value]:
        """Add up errors over all links, and traffic where the driver does not add it up itself; leave out what a link does not support."""
        answers = {name: found[name] for name in _of_links(self._links) if not _is_unsupported(found[name])}
        for name in LINK_ERRORS:
            summed = self._sum(name, found)
            answers[name] = found[name] if summed is None else summed
        for name, of_link in TOTALS.items():
            summed = self._sum(of_link, found) if _is_unsupported(found[name]) else None
            if summed is not None:
                answers[name] = summed
        return answers

    def _sum(self, name: str, found: Mapping[str, Value]) -> Value | None:
        """Add up a metric over the links; None unless all that are not down have a value."""
        values = []
        for link in range(self._links):
            answer = found[f"nvlink.{link}.{name}"]
            if not isinstance(answer, Unavailable):
                values.append(answer)
            elif found[f"nvlink.{link}.state"] != 0:
                return None
        return sum(values) if values else None


@cache
def _rows(links: int, state_by_field: bool) -> tuple[NvmlMetric, ...]:
    """Make the rows for so many links; cached, since all GPUs of a machine have the same number."""
    rows = [NvmlMetric(name, LINK_TRAFFIC[way]._replace(scope=ALL_ONES), maximum=LARGEST, factor=KIB) for name, way in TOTALS.items()]
    rows += [NvmlMetric(name, of_all, maximum=LARGEST) for name, (_, of_all) in LINK_ERRORS.items()]
    for link in range(links):
        state = LINK_STATE._replace(scope=link) if state_by_field else LINK_STATE_CALL._replace(arguments=(link,))
        rows.append(NvmlMetric(f"nvlink.{link}.state", state, maximum=1))
        for way, field in LINK_TRAFFIC.items():
            rows.append(NvmlMetric(f"nvlink.{link}.{way}", field._replace(scope=link), maximum=LARGEST, factor=KIB))
        for name, (of_link, _) in LINK_ERRORS.items():
            rows.append(NvmlMetric(f"nvlink.{link}.{name}", of_link._replace(scope=link), maximum=LARGEST))
    return tuple(rows)


@cache
def _of_links(links: int) -> tuple[str, ...]:
    """Name the metrics of single links."""
    return tuple(f"nvlink.{link}.{name}" for link in range(links) for name in ("state", *LINK_TRAFFIC))


def _is_unsupported(answer: Value) -> bool:
    return isinstance(answer, Unavailable) and answer.reason == Reason.NOT_SUPPORTED


class Fabric(CallGroup):
    """State of one GPU in the fabric of NVLink switches.

    Args:
        library: The open library.
        handle: The GPU's handle.
        driver_version: Decides whether the question may be asked at all.
        announce: Takes the state in words.
    """

    def __init__(self, library: Library, handle: Handle, driver_version: str, announce: Callable[[str], None]) -> None:
        super().__init__(library, handle, FABRIC_ROWS, TEN_SECONDS)
        self._refused = _refused(driver_version)
        self._announce = announce

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Value] | None:
        if self._refused is not None:
            self.due = math.inf
            return {"fabricState": self._refused}
        found = super().ask(now, progress)
        if found is None:
            return None
        numbers = [int(answer) for answer in found.values() if not isinstance(answer, Unavailable)]
        return {"fabricState": self._state(*numbers) if numbers else found["state"]}

    def _state(self, low: int, high: int, status: int, clique: int, state: int) -> Value:
        if state == NO_FABRIC:
            self._announce("")
            return OUTSIDE
        if state not in FABRIC_STATES:
            return impossible(FABRIC.function)
        failed = state == COMPLETED and status
        words = f"NVLink fabric: joining failed ({meaning(status).symbol})" if failed else FABRIC_STATES[state]
        cluster = struct.pack("=QQ", low, high)
        self._announce(f"{words}, clique {clique} of cluster {cluster.hex()}" if any(cluster) else words)
        return state


def _refused(version: str) -> Unavailable | None:
    """Return why a driver of this version is not asked about the fabric; None where it may be."""
    branch = version.partition(".")[0]
    if not (branch.isascii() and branch.isdecimal()):
        return UNKNOWN_DRIVER
    return TOO_OLD if int(branch) < FABRIC_SAFE_FROM else None
