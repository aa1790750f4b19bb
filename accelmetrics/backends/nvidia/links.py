"""NVLink, every ten seconds: state, traffic and errors link by link, what all links come to, and the fabric of NVLink switches.

One batch of fields asks about all links. A link that is down has no traffic: a field that fails there costs nothing else. Drivers
without the field for the state are asked for it link by link.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from accelmetrics.backends.nvidia.calls import Answer, Group, Paced
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
    Field,
    Row,
)
from accelmetrics.backends.nvidia.nvml import NOT_SUPPORTED, Handle, Library, check_device, impossible, meaning, unavailable
from accelmetrics.schemas.errors import Reason, Unavailable

MOST_LINKS = 36
COUNT = Row("links", Field(91, "NVLINK_LINK_COUNT"), every=ONCE, maximum=MOST_LINKS)
TOTALS = {"tx": "nvlinkTxBytesTotal", "rx": "nvlinkRxBytesTotal"}
NO_LINKS = Unavailable(Reason.NOT_SUPPORTED, "the GPU has no NVLink")

FABRIC = "nvmlDeviceGetGpuFabricInfoV"
FABRIC_VERSION = 0x02000024
"""``nvmlGpuFabricInfo_v2``: the structure's size and its version."""
FABRIC_INFO = struct.Struct("=4x16sIIB7x")
"""Its cluster, the status of joining, the clique, and the state, which is one byte."""
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
        self._count = Group(library, handle, (COUNT,), ONCE)
        self._group: Group | None = None
        self._state_by_field = True

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Answer] | None:
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
        if self._state_by_field and all(_is_unsupported(found[f"state.{link}"]) for link in range(self._links)):
            self._state_by_field = False
            self._group = self._bind()
            self._group.read(now, progress)
            found = self._group.answers
        self.due = self._group.due
        return {**self._of_each(found), **self._of_all(found)}

    def _bind(self) -> Group:
        return Group(self._library, self._handle, _rows(self._links, self._state_by_field), TEN_SECONDS)

    def _of_each(self, found: Mapping[str, Answer]) -> dict[str, Answer]:
        """Select the metrics of single links; leave out what a link does not support."""
        answers: dict[str, Answer] = {}
        for link in range(self._links):
            answers[f"nvlink.{link}.state"] = found[f"state.{link}"]
            answers.update((f"nvlink.{link}.{way}BytesTotal", found[f"{way}.{link}"]) for way in LINK_TRAFFIC)
        return {name: answer for name, answer in answers.items() if not _is_unsupported(answer)}

    def _of_all(self, found: Mapping[str, Answer]) -> dict[str, Answer]:
        """Add up errors over all links, and traffic where the driver does not add it up itself."""
        answers: dict[str, Answer] = {}
        for name in LINK_ERRORS:
            summed = self._sum(name, found)
            answers[name] = found[f"{name}.all"] if summed is None else summed
        for way, name in TOTALS.items():
            summed = self._sum(way, found) if _is_unsupported(found[f"{way}.all"]) else None
            if summed is not None:
                answers[name] = summed
        return answers

    def _sum(self, name: str, found: Mapping[str, Answer]) -> Answer | None:
        """Add up a metric over the links; None unless all that are not down have a value."""
        values = []
        for link in range(self._links):
            answer = found[f"{name}.{link}"]
            if not isinstance(answer, Unavailable):
                values.append(answer)
            elif found[f"state.{link}"] != 0:
                return None
        return sum(values) if values else None


@cache
def _rows(links: int, state_by_field: bool) -> tuple[Row, ...]:
    """Make the rows for so many links; cached, since all GPUs of a machine have the same number."""
    rows = [Row(f"{way}.all", field._replace(scope=ALL_ONES), maximum=LARGEST, factor=KIB) for way, field in LINK_TRAFFIC.items()]
    rows += [Row(f"{name}.all", of_all, maximum=LARGEST) for name, (_, of_all) in LINK_ERRORS.items()]
    for link in range(links):
        state = LINK_STATE._replace(scope=link) if state_by_field else LINK_STATE_CALL._replace(arguments=(link,))
        rows.append(Row(f"state.{link}", state, maximum=1))
        for way, field in LINK_TRAFFIC.items():
            rows.append(Row(f"{way}.{link}", field._replace(scope=link), maximum=LARGEST, factor=KIB))
        for name, (of_link, _) in LINK_ERRORS.items():
            rows.append(Row(f"{name}.{link}", of_link._replace(scope=link), maximum=LARGEST))
    return tuple(rows)


def _is_unsupported(answer: Answer) -> bool:
    return isinstance(answer, Unavailable) and answer.reason == Reason.NOT_SUPPORTED


class Fabric(Paced):
    """State of one GPU in the fabric of NVLink switches.

    Args:
        library: The open library.
        handle: The GPU's handle.
        driver_version: Decides whether the question may be asked at all.
        announce: Takes the state in words.
    """

    def __init__(self, library: Library, handle: Handle, driver_version: str, announce: Callable[[str], None]) -> None:
        super().__init__(TEN_SECONDS)
        self._refused = _refused(driver_version)
        self._function = library.function(FABRIC)
        self._handle = handle
        self._announce = announce
        self._info = (ctypes.c_uint * (FABRIC_INFO.size // 4))(FABRIC_VERSION)

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Answer] | None:
        if self._refused is not None:
            self.due = math.inf
            return {"fabricState": self._refused}
        status = self._function(self._handle, self._info)
        progress.append(status)
        check_device(status, FABRIC)
        self.wait(now, status != 0)
        if status == NOT_SUPPORTED:
            self.due = math.inf
        return {"fabricState": unavailable(status) if status else self._state()}

    def _state(self) -> Answer:
        cluster, status, clique, state = FABRIC_INFO.unpack(self._info)
        if state == NO_FABRIC:
            self._announce("")
            return OUTSIDE
        if state not in FABRIC_STATES:
            return impossible(FABRIC)
        failed = state == COMPLETED and status
        words = f"NVLink fabric: joining failed ({meaning(status).symbol})" if failed else FABRIC_STATES[state]
        self._announce(f"{words}, clique {clique} of cluster {cluster.hex()}" if any(cluster) else words)
        return int(state)


def _refused(version: str) -> Unavailable | None:
    """Return why a driver of this version is not asked about the fabric; None where it may be."""
    branch = version.partition(".")[0]
    if not (branch.isascii() and branch.isdecimal()):
        return UNKNOWN_DRIVER
    return TOO_OLD if int(branch) < FABRIC_SAFE_FROM else None
