"""NVLink, every ten seconds: state, traffic and errors of each link, totals over all links, and the fabric of NVLink switches.

One batch of fields covers all links. A link that is down has no traffic, and its failing fields affect no others. On drivers
without a field for the state, it is asked link by link. Generations of NVLink count errors in different fields. Which fields a GPU
has is found out once, from one link that is up, and kept until the driver is reopened: a counter that changed its source would
jump.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from accelmetrics.backends.contract import Number, Value
from accelmetrics.backends.nvidia.calls import CallGroup, Paced
from accelmetrics.backends.nvidia.metrics import (
    ALL_ONES,
    FABRIC_CALL,
    FABRIC_CONFIGURATION,
    FABRIC_FLAGS,
    KIB,
    LARGEST,
    LINK_COUNTS,
    LINK_COUNTS_OF_ALL,
    LINK_RATIOS,
    LINK_STATE,
    LINK_STATE_CALL,
    LINK_TRAFFIC,
    OF_FABRIC,
    ONCE,
    TEN_SECONDS,
    Call,
    NvmlField,
    NvmlMetric,
)
from accelmetrics.backends.nvidia.nvml import (
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    Handle,
    Library,
    field_unavailable,
    impossible,
    is_unsupported,
    meaning,
    unavailable,
)
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.fabric import fabric_faults

MOST_LINKS = 36
COUNT = NvmlMetric("links", NvmlField(91, "NVLINK_LINK_COUNT"), every=ONCE, maximum=MOST_LINKS)
TOTALS = {"nvlinkTxBytesTotal": "txBytesTotal", "nvlinkRxBytesTotal": "rxBytesTotal"}
"""The metric of one link, by the metric of all links."""
NO_FIELD = (unavailable(NOT_SUPPORTED), field_unavailable(INVALID_ARGUMENT))
"""Reasons of a field that this GPU or this driver will never have."""
ALL_DOWN = Unavailable(Reason.NOT_SUPPORTED, "no NVLink is up")
LARGEST_RATIO = 0xFFF
"""Largest answer of a bit error ratio: 15 × 10⁻²⁵⁵, which means no errors."""

_FABRIC_MEMBERS = ("clusterLow", "clusterHigh", "status", "cliqueId", "state", "healthMask")
FABRIC = Call(
    (FABRIC_CALL,),
    "4xQQIIB3xIB3x",
    (*_FABRIC_MEMBERS, "healthSummary"),
    version=0x03000028,
    structure="c_nvmlGpuFabricInfo_v3_t",
    fallback=Call((FABRIC_CALL,), "4xQQIIB3xI", _FABRIC_MEMBERS, version=0x02000024, structure="c_nvmlGpuFabricInfo_v2_t"),
)
"""The cluster's id of 16 bytes, the status of joining, the clique, and the state of one byte. Version 2 has no summary of the health."""
FABRIC_ROWS = tuple(NvmlMetric(member, FABRIC, member, maximum=2**64 - 1) for member in FABRIC.members)
FABRIC_SAFE_FROM = 550
"""The first driver branch with a safe function; on older ones it crashes the process."""
NO_FABRIC, COMPLETED = 0, 3
FABRIC_STATES = {1: "NVLink fabric: not joined", 2: "NVLink fabric: joining", COMPLETED: "NVLink fabric: joined"}
MOST_SUMMARY = 3
TOO_OLD = Unavailable(Reason.NOT_SUPPORTED, f"drivers before {FABRIC_SAFE_FROM} crash on this call")
UNKNOWN_DRIVER = TOO_OLD._replace(detail=f"the driver does not report its version, and {TOO_OLD.detail}")
NO_HEALTH = Unavailable(Reason.NOT_SUPPORTED, "the driver does not report it for this GPU")

_Source = tuple[NvmlField, bool]
"""A field, and whether it covers all links instead of one."""


class Links(Paced):
    """State and traffic of the links of one GPU, and their totals.

    Args:
        library: The open library.
        handle: The GPU's handle.
        needed: The metrics that are needed; fields of others are left out.
    """

    def __init__(self, library: Library, handle: Handle, needed: frozenset[str]) -> None:
        super().__init__(TEN_SECONDS)
        self._library = library
        self._handle = handle
        self._links = 0
        self._count = CallGroup(library, handle, (COUNT,), ONCE)
        self._group: CallGroup | None = None
        # The possible sources of each count, in the order of preference.
        self._sources: dict[str, tuple[_Source, ...]] = {}
        for name in (name for name in LINK_COUNTS if name in needed):
            first, *others = ((field, False) for field in LINK_COUNTS[name])
            of_all = [(LINK_COUNTS_OF_ALL[name], True)] if name in LINK_COUNTS_OF_ALL else []
            self._sources[name] = (first, *of_all, *others)
        self._sources |= {name: ((field, False),) for name, field in LINK_RATIOS.items() if name in needed}
        self._probed = False  # whether fields that the links lack have been removed from them
        self._with_value: set[str] = set()  # counts that had a value once: their source is kept, even if it fails later
        self._summed: dict[str, bool] = {}  # by total of traffic, once known: whether it is the sum over the links

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Value] | None:
        if self._group is None:
            self._count.read(now, progress)
            self.due = self._count.due
            count = self._count.answers[COUNT.name]
            if count in (0, unavailable(NOT_SUPPORTED)):
                return dict.fromkeys((*self._sources, *TOTALS), Unavailable(Reason.NOT_SUPPORTED, "the GPU has no NVLink"))
            if isinstance(count, Unavailable):
                return dict.fromkeys(self._sources, count)
            self._links = int(count)
            self._group = CallGroup(self._library, self._handle, self._rows(), TEN_SECONDS)
        found = self._group.ask(now, progress)
        self.due = self._group.due
        if found is None:
            return None
        states = [found[f"nvlink.{link}.state"] for link in range(self._links)]
        if not self._probed:
            self._probe(next((link for link, state in enumerate(states) if state != 0), None), now, progress)
            self._group.read_instead(self._rows())
            found = self._group.ask(now, progress) or found
            self.due = self._group.due
        before = dict(self._sources)
        of_links = [f"nvlink.{link}.{name}" for link in range(self._links) for name in ("state", *LINK_TRAFFIC)]
        answers = {name: found[name] for name in of_links if not is_unsupported(found[name])}
        answers |= {name: self._counted(name, found) for name in self._sources}
        # A total of traffic is replaced by the sum over the links if the driver refuses it, or if it stays 0 while links count.
        for name, of_link in TOTALS.items():
            total, summed = found[name], self._over_links(of_link, found, before="nvlink.")
            if name not in self._summed and not isinstance(total, Unavailable) and total > 0:
                self._summed[name] = False
            if not self._summed.get(name, total == 0 or is_unsupported(total)):
                continue
            if not isinstance(summed, Unavailable):
                answers[name] = summed
                if summed or total != 0:
                    self._summed[name] = True
            elif name in self._summed:
                answers[name] = summed
        if self._sources != before:  # from the next call on, sources that the GPU lacks are not read
            self._group.read_instead(self._rows())
        return answers

    def _rows(self) -> tuple[NvmlMetric, ...]:
        sources = frozenset(source for known in self._sources.values() for source in known if self._probed or source[1])
        return _rows(self._links, sources)

    def _probe(self, link: int | None, now: float, progress: list[Any]) -> None:
        """Remove the fields that a link lacks. Otherwise several hundred fields of other NVLink generations would be read.

        Args:
            link: A link that is up. None if all are down, because some of these refuse fields that they have.
            now: The time.
            progress: Grows with every call.
        """
        self._probed = True
        if link is None:
            return
        fields = {str(field.identifier): field for known in self._sources.values() for field, of_all in known if not of_all}
        rows = tuple(NvmlMetric(name, field._replace(scope=link), maximum=LARGEST) for name, field in fields.items())
        found = (CallGroup(self._library, self._handle, rows, ONCE).ask(now, progress) if rows else None) or {}
        missing = {name for name, answer in found.items() if answer in NO_FIELD}
        for name, known in self._sources.items():
            self._sources[name] = tuple((field, of_all) for field, of_all in known if of_all or str(field.identifier) not in missing)

    def _counted(self, name: str, found: Mapping[str, Value]) -> Value:
        """Return a count or a ratio over all links, and keep the first source that the GPU has."""
        answer, down = NO_FIELD[0], False
        for source in self._sources[name]:
            field, of_all = source
            value = found[str(field.identifier)] if of_all else self._over_links(str(field.identifier), found, name in LINK_RATIOS)
            if isinstance(value, Unavailable):
                # Another failure may pass, so it settles nothing.
                if value is not ALL_DOWN and value not in NO_FIELD:
                    return value
                answer, down = value, down or value is ALL_DOWN
                continue
            self._sources[name] = (source,)
            self._with_value.add(name)
            return impossible(field.function) if name in LINK_RATIOS and value > 1 else value
        # A link that is down refuses some fields that it has, so no source is given up while one is.
        if not down and name not in self._with_value:
            self._sources[name] = ()
        return ALL_DOWN if down else answer

    def _over_links(self, name: str, found: Mapping[str, Value], ratio: bool = False, before: str = "") -> Value:
        """Return the sum over the links, or the largest ratio; if a link that is not down has no value, the reason."""
        values: list[Number] = []
        for link in range(self._links):
            answer = found[f"{before}{link}.{name}"]
            if not isinstance(answer, Unavailable):
                # A bit error ratio is decoded as NVML_NVLINK_ERROR_COUNTER_BER_GET does.
                values.append(float(f"{int(answer) >> 8}e-{int(answer) & 0xFF}") if ratio else answer)
            elif found[f"nvlink.{link}.state"] != 0:
                return answer
        return ALL_DOWN if not values else max(values) if ratio else sum(values)


@cache
def _rows(links: int, sources: frozenset[_Source]) -> tuple[NvmlMetric, ...]:
    """Make the rows for this number of links. Cached, because all GPUs of a machine have the same number."""
    rows = [NvmlMetric(name, LINK_TRAFFIC[way]._replace(scope=ALL_ONES), maximum=LARGEST, factor=KIB) for name, way in TOTALS.items()]
    fields = sorted(sources)
    rows += [NvmlMetric(str(field.identifier), field, maximum=LARGEST) for field, of_all in fields if of_all]
    for link in range(links):
        by_call = NvmlMetric(f"nvlink.{link}.state", LINK_STATE_CALL._replace(arguments=(("link", link),)), maximum=1)
        rows.append(by_call._replace(source=LINK_STATE._replace(scope=link), otherwise=by_call))
        for way, field in LINK_TRAFFIC.items():
            rows.append(NvmlMetric(f"nvlink.{link}.{way}", field._replace(scope=link), maximum=LARGEST, factor=KIB))
        for field in (field for field, of_all in fields if not of_all):
            most = LARGEST_RATIO if field in LINK_RATIOS.values() else LARGEST
            rows.append(NvmlMetric(f"{link}.{field.identifier}", field._replace(scope=link), maximum=most))
    return tuple(rows)


class Fabric(CallGroup):
    """State and health of one GPU in the fabric of NVLink switches.

    Args:
        library: The open library.
        handle: The GPU's handle.
        driver_version: Decides whether the call is safe.
        report_state: Called with the state in words.
    """

    def __init__(self, library: Library, handle: Handle, driver_version: str, report_state: Callable[[str], None]) -> None:
        super().__init__(library, handle, FABRIC_ROWS, TEN_SECONDS)
        branch = driver_version.partition(".")[0]
        known = branch.isascii() and branch.isdecimal()
        self._refused = UNKNOWN_DRIVER if not known else TOO_OLD if int(branch) < FABRIC_SAFE_FROM else None
        self._report_state = report_state

    def ask(self, now: float, progress: list[Any]) -> Mapping[str, Value] | None:
        if self._refused is not None:
            self.due = math.inf
            return dict.fromkeys(OF_FABRIC, self._refused)
        found = super().ask(now, progress)
        if found is None:
            return None
        failure = next((answer for answer in found.values() if isinstance(answer, Unavailable)), None)
        if failure is not None:
            return dict.fromkeys(OF_FABRIC, failure)
        numbers = {name: int(answer) for name, answer in found.items() if not isinstance(answer, Unavailable)}
        state, status = numbers["state"], numbers["status"]
        if state == NO_FABRIC:
            self._report_state("")
            return dict.fromkeys(OF_FABRIC, Unavailable(Reason.NOT_SUPPORTED, "the GPU belongs to no NVLink fabric"))
        if state not in FABRIC_STATES:
            return dict.fromkeys(OF_FABRIC, impossible(FABRIC_CALL))
        answers = {"fabricState": state, **_health(numbers["healthMask"], numbers["healthSummary"])}
        faults = fabric_faults({name: answer for name, answer in answers.items() if not isinstance(answer, Unavailable)})
        failed = state == COMPLETED and status
        words = f"NVLink fabric: joining failed ({meaning(status)[0]})" if failed else FABRIC_STATES[state]
        # The cluster's id has 16 bytes and is read as two numbers.
        cluster = struct.pack("=QQ", numbers["clusterLow"], numbers["clusterHigh"])
        part = [f"clique {numbers['cliqueId']} of cluster {cluster.hex()}"] if any(cluster) else []
        self._report_state(", ".join((words, *faults, *part)))
        return answers


def _health(mask: int, summary: int) -> dict[str, Value]:
    """Decode the health mask and the summary, which is 0 if the driver has none."""
    wrong = impossible(FABRIC_CALL)
    known_summary = (summary or NO_HEALTH) if summary <= MOST_SUMMARY else wrong
    answers: dict[str, Value] = {"fabricHealthMask": mask, "fabricHealthSummary": known_summary}
    flags: dict[int, Value] = {0: NO_HEALTH, 1: 1, 2: 0}
    answers |= {f"fabricHealth.{name}": flags.get(mask >> shift & 3, wrong) for name, shift in FABRIC_FLAGS.items()}
    answers["fabricHealth.incorrectConfiguration"] = mask >> FABRIC_CONFIGURATION & 15 or NO_HEALTH
    # All bits set is NVML's "not available", so no flag is believed.
    if mask == ALL_ONES:
        answers |= {name: wrong for name in answers if name != "fabricHealthSummary"}
    return answers
