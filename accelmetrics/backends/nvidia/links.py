"""NVLink, link by link, every ten seconds: state, traffic, errors; and what all links come to where the driver does not say.

One batch of fields asks about everything. A link that is down has no traffic: a field that fails there costs nothing else. A
driver without the field for the state is asked link by link.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from accelmetrics.backends.contract import Block, Number
from accelmetrics.backends.nvidia.calls import ALL_ONES, LARGEST, Call, Field, Value
from accelmetrics.backends.nvidia.library import Library
from accelmetrics.backends.nvidia.paced import Group
from accelmetrics.schemas.reasons import Reason, Unavailable

INTERVAL = 10.0
MOST_LINKS = 36
KIB = 1024
COUNT = Field(91, Value(("links",), MOST_LINKS))
STATE = "state"
TRAFFIC = {"tx": (138, "nvlinkTxBytesTotal"), "rx": (139, "nvlinkRxBytesTotal")}
"""KiB of payload: the field, which has a link or all links as its scope, and the metric of all links."""
ERRORS = {"nvlinkCrcErrors": (163, 38), "nvlinkReplayErrors": (161, 52), "nvlinkRecoveryErrors": (162, 59)}
"""The field of one link, and the one of all links that older GPUs have instead."""
STATE_FIELD = 165
NO_LINKS = Unavailable(Reason.NOT_SUPPORTED, "the GPU has no NVLink")

Answer = Number | Unavailable


class Links:
    """The links of one GPU.

    Attributes:
        block: What is known of the links and, over all of them, of errors and of traffic that the driver does not add up.
        unavailable: Why the rest is missing.
        totals: Which of the metrics of all links' traffic are in ``block``.
    """

    def __init__(self, library: Library, handle: Any) -> None:
        self._library = library
        self._handle = handle
        self._count = Group(library, handle, (_batch(COUNT),), math.inf)
        self._fields: Group | None = None
        self._states: Group | None = None
        self._links = 0
        self.block = Block((), ())
        self.unavailable: Mapping[str, Unavailable] = {}
        self.totals: frozenset[str] = frozenset()

    @property
    def due(self) -> float:
        """When it wants to be read next."""
        return min(group.due for group in (self._count, self._fields, self._states) if group is not None)

    def read(self, now: float, steps: list[Any]) -> bool:
        """Read what is due now; says whether anything is different from before."""
        changed = self._count.read(now, steps)
        if changed:
            self._meet(self._count.get("links"))
        for group in (self._fields, self._states):
            changed |= group is not None and group.read(now, steps)
        if not changed:
            return False
        found = _found(self._fields)
        if self._states is None and self._without_state(found):
            self._states = Group(self._library, self._handle, [_state_call(link) for link in range(self._links)], INTERVAL)
            self._states.read(now, steps)
        self._put({**found, **_found(self._states)})
        return True

    def _meet(self, links: Answer) -> None:
        """Settle which links there are."""
        self._links = 0 if isinstance(links, Unavailable) else int(links)
        calls = (_everything(self._links),)
        self._fields = Group(self._library, self._handle, calls, INTERVAL, patient=True) if self._links else None

    def _without_state(self, found: Mapping[str, Answer]) -> bool:
        states = [found.get(f"{STATE}.{link}") for link in range(self._links)]
        return bool(states) and all(isinstance(state, Unavailable) and state.reason == Reason.NOT_SUPPORTED for state in states)

    def _put(self, found: Mapping[str, Answer]) -> None:
        if self._links:
            answers = {**self._of_each(found), **self._of_all(found)}
        else:
            missing = self._count.unavailable.get("links", NO_LINKS)
            answers = dict.fromkeys(ERRORS, NO_LINKS if missing.reason == Reason.NOT_SUPPORTED else missing)
        metrics = {name: answer for name, answer in answers.items() if not isinstance(answer, Unavailable)}
        reasons = {name: answer for name, answer in answers.items() if isinstance(answer, Unavailable)}
        names = tuple(metrics)
        self.block = Block(self.block.names if names == self.block.names else names, tuple(metrics.values()))
        self.unavailable = self.unavailable if reasons == self.unavailable else reasons
        self.totals = frozenset(metrics).intersection(name for _, name in TRAFFIC.values())

    def _of_each(self, found: Mapping[str, Answer]) -> dict[str, Answer]:
        """What is told of single links; what a link does not support is not there."""
        told: dict[str, Answer] = {}
        for link in range(self._links):
            told[f"nvlink.{link}.state"] = found[f"{STATE}.{link}"]
            for way in TRAFFIC:
                told[f"nvlink.{link}.{way}BytesTotal"] = _bytes(found[f"{way}.{link}"])
        return {name: answer for name, answer in told.items() if not _unsupported(answer)}

    def _of_all(self, found: Mapping[str, Answer]) -> dict[str, Answer]:
        """Over all links: errors, and the traffic where the driver does not add it up itself."""
        told: dict[str, Answer] = {}
        for name in ERRORS:
            summed = self._sum(name, found)
            told[name] = found[f"{name}.all"] if summed is None else summed
        for way, (_, name) in TRAFFIC.items():
            summed = self._sum(way, found) if _unsupported(found[f"{way}.all"]) else None
            if summed is not None:
                told[name] = summed * KIB
        return told

    def _sum(self, name: str, found: Mapping[str, Answer]) -> Number | None:
        """The sum over the links, None unless all that are not down have a value."""
        total: Number | None = None
        for link in range(self._links):
            answer = found[f"{name}.{link}"]
            if not isinstance(answer, Unavailable):
                total = (total or 0) + answer
            elif found[f"{STATE}.{link}"] != 0:
                return None
        return total


def _fields(links: int) -> Iterator[Field]:
    for way, (field, _) in TRAFFIC.items():
        yield Field(field, Value((f"{way}.all",), LARGEST), ALL_ONES)
    for name, (_, field) in ERRORS.items():
        yield Field(field, Value((f"{name}.all",), LARGEST))
    for link in range(links):
        yield Field(STATE_FIELD, Value((f"{STATE}.{link}",), 1), link)
        for way, (field, _) in TRAFFIC.items():
            yield Field(field, Value((f"{way}.{link}",), LARGEST), link)
        for name, (field, _) in ERRORS.items():
            yield Field(field, Value((f"{name}.{link}",), LARGEST), link)


@cache
def _everything(links: int) -> Call:
    """The batch for so many links: all GPUs of a machine have the same number of them."""
    return _batch(*_fields(links))


def _batch(*fields: Field) -> Call:
    return Call(("nvmlDeviceGetFieldValues",), fields=fields)


def _state_call(link: int) -> Call:
    return Call(("nvmlDeviceGetNvLinkState",), "I", (Value((f"{STATE}.{link}",), 1),), (link,))


def _found(group: Group | None) -> dict[str, Answer]:
    """A group's answers by name."""
    return {} if group is None else {**dict(zip(group.block.names, group.block.values, strict=True)), **group.unavailable}


def _bytes(answer: Answer) -> Answer:
    return answer if isinstance(answer, Unavailable) else answer * KIB


def _unsupported(answer: Answer) -> bool:
    return isinstance(answer, Unavailable) and answer.reason == Reason.NOT_SUPPORTED
