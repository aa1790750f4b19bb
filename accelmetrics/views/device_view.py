"""The view of one device: its values, the reasons for missing ones, its state, and notes in words.

States and wording are decided only here, so that the terminal, the page and every other view agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from accelmetrics.schemas.errors import ADVICE, IN_ORDER, WORDS, Reason, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot
from accelmetrics.schemas.metric import answered
from accelmetrics.schemas.record import SEVERITIES, Finding, Holder, Record, Severity
from accelmetrics.schemas.text import STATE_MARKS, STATE_WORDS, celsius, counted, duration, in_words, printable
from accelmetrics.schemas.vitals import (
    FULL_MEMORY,
    HOT,
    LOADED,
    MEMORY_PERCENT,
    MEMORY_TOTAL,
    MEMORY_USED,
    NEAR_SLOWDOWN,
    OVERHEATING,
    POWER,
    POWER_LIMIT,
    RECOVERY,
    SLOWED,
    TEMPERATURE,
    UTILIZATION,
    Vitals,
)
from accelmetrics.schemas.xid import meaning

State = Literal["ok", "warn", "bad", "missing"]
STATES: tuple[State, ...] = ("bad", "warn", "missing", "ok")
"""All states, the worst first."""
STATE_OF: Mapping[Severity, State] = {"critical": "bad", "warning": "warn", "info": "ok"}

NOT_READ = "not_read"
"""Reason of a value that the source never provides for this device, or that the user did not select."""
LASTING = frozenset({Reason.TIMED_OUT, Reason.STALE})
"""Reasons that are shown with their duration."""


@dataclass(frozen=True)
class ValueRow:
    """A value that views show for devices.

    Attributes:
        name: Its name in views.
        label: Its label on screens.
        unit: Its unit, as in the catalogue.
        names: Metrics that provide it. The first that the device has is used.
        core: Whether every device should have it. If it is missing, the view says why.
        top: Upper end of its scale; None if it has no fixed one.
    """

    name: str
    label: str
    unit: str
    names: tuple[str, ...]
    core: bool = False
    top: float | None = None


VALUES: tuple[ValueRow, ...] = (
    ValueRow("power_watts", "power", "W", POWER, core=True),
    ValueRow("utilization", "util", "%", UTILIZATION, core=True, top=100.0),
    ValueRow("memory_percent", "memory", "%", MEMORY_PERCENT, core=True, top=100.0),
    ValueRow("memory_used_bytes", "memory used", "By", MEMORY_USED, core=True),
    ValueRow("memory_total_bytes", "memory total", "By", MEMORY_TOTAL),
    ValueRow("temperature_celsius", "temp", "Cel", TEMPERATURE, core=True),
    ValueRow("power_limit_watts", "power limit", "W", POWER_LIMIT),
    ValueRow("memory_temperature_celsius", "memory temp", "Cel", ("memoryTemp",)),
    ValueRow("hotspot_temperature_celsius", "hotspot temp", "Cel", ("hotspotTemp", "average board temp (C)")),
    ValueRow("slowdown_celsius", "slows down at", "Cel", ("tempLimit.slowdown",)),
    ValueRow("sm_clock_mhz", "clock", "MHz", ("smClock", "freq", "clock (MHz)", "graphicsClock")),
    ValueRow("max_sm_clock_mhz", "highest clock", "MHz", ("maxSmClock",)),
    ValueRow("memory_clock_mhz", "memory clock", "MHz", ("memoryClock",)),
    ValueRow("memory_activity_percent", "memory busy", "%", ("memory", "dramActive", "runtimeHbmUtilization"), top=100.0),
    ValueRow("fan_percent", "fan", "%", ("fanSpeed",), top=100.0),
    ValueRow("fan_rpm", "fan speed", "rpm", ("fanSpeedRpm",)),
    ValueRow("cores_allocated", "cores held", "1", ("coresAllocated",)),
    ValueRow("encoder_percent", "encoder", "%", ("encoderUtilization",), top=100.0),
    ValueRow("decoder_percent", "decoder", "%", ("decoderUtilization",), top=100.0),
    ValueRow("energy_joules", "energy", "J", ("energyJoules",)),
    ValueRow("pcie_tx_bytes_per_second", "PCIe sent", "By/s", ("pcieTxBytes",)),
    ValueRow("pcie_rx_bytes_per_second", "PCIe received", "By/s", ("pcieRxBytes",)),
    ValueRow("nvlink_tx_bytes_per_second", "NVLink sent", "By/s", ("nvlinkTxBytes",)),
    ValueRow("nvlink_rx_bytes_per_second", "NVLink received", "By/s", ("nvlinkRxBytes",)),
    ValueRow("pcie_generation", "PCIe generation", "1", ("pcieLinkGen",)),
    ValueRow("pcie_lanes", "PCIe lanes", "1", ("pcieLinkWidth",)),
    ValueRow("pcie_lanes_maximum", "most PCIe lanes", "1", ("maxPcieLinkWidth",)),
    # Those of the whole chip include those of the device memory.
    ValueRow("corrected_errors", "corrected errors", "1", ("correctedEccErrors", "correctedMemoryErrors")),
    ValueRow("uncorrected_errors", "uncorrected errors", "1", ("uncorrectedEccErrors", "uncorrectedMemoryErrors")),
    ValueRow("last_xid", "last Xid", "1", ("lastXid",)),
    ValueRow("xid_errors", "Xid errors", "1", ("xidErrors",)),
)
"""Values that views show, in the order in which graphs offer them."""
GROUPS: Mapping[str, tuple[int, tuple[str, ...]]] = {
    "Utilisation": (4, ("utilization", "memory_activity_percent", "encoder_percent", "decoder_percent", "cores_allocated")),
    "Memory": (1, ("memory_percent", "memory_used_bytes")),
    "Power": (1, ("power_watts", "energy_joules")),
    "Temperature": (
        3,
        ("temperature_celsius", "memory_temperature_celsius", "hotspot_temperature_celsius", "slowdown_celsius", "fan_percent", "fan_rpm"),
    ),
    "Clocks": (2, ("sm_clock_mhz", "memory_clock_mhz", "max_sm_clock_mhz")),
    "Links": (
        4,
        ("pcie_tx_bytes_per_second", "pcie_rx_bytes_per_second", "nvlink_tx_bytes_per_second", "nvlink_rx_bytes_per_second"),
    ),
    "Errors": (0, ("corrected_errors", "uncorrected_errors", "last_xid", "xid_errors")),
}
"""Groups of values in the details of one device: by title, how many of the first values share a graph, and all values."""
BY_NAME: Mapping[str, ValueRow] = {row.name: row for row in VALUES}
OF_VITALS = {
    "power_watts": "power",
    "power_limit_watts": "power_limit",
    "temperature_celsius": "temperature",
    "memory_used_bytes": "memory_used",
    "memory_total_bytes": "memory_total",
    "memory_percent": "memory_percent",
    "utilization": "utilization",
}
"""Values that are taken from a field of ``Vitals`` instead of a metric, by name."""

THROTTLES: Mapping[str, str] = {
    "throttle.hwThermalSlowdown": "heat",
    "throttle.swThermalSlowdown": "heat (driver)",
    "throttle.hwPowerBrakeSlowdown": "power brake",
    "throttle.hwSlowdown": "hardware slowdown",
    "throttle.currentLimit": "current limit",
    "throttle.swPowerCap": "power cap",
    "throttle.syncBoost": "a slower device",
    "throttle.applicationsClocksSetting": "clocks set",
    "throttle.displayClockSetting": "display",
}
"""Throttle reasons in words. An idle clock is absent, because it is no throttling."""
LAST_SEEN = "last seen: "
"""Prefix of findings about a silent device, because they describe its last readings."""
HEAT = frozenset({"hot", "overheating", "near_slowdown"})
"""Rules about the temperature. Their message has it, so a note about the warning level is left out."""
GONE = frozenset({"device_lost", "device_missing"})
"""Rules that only report that a device is silent. The device's own state says the same, so they are not repeated."""


def throttle_words(reason: str) -> str:
    """Return a throttle reason in words: ``power cap`` for ``swPowerCap``. An unknown reason is returned unchanged."""
    return THROTTLES.get(f"throttle.{reason}", printable(reason))


class WarningLevels(NamedTuple):
    """Levels above which values are drawn as warnings.

    Attributes:
        temperature: Level for every device, in degrees Celsius. None: derived from the device's slowdown temperature, or 80 if it
            reports none.
        memory: Level of used memory, in percent of the device's memory.
    """

    temperature: float | None = None
    memory: float = float(FULL_MEMORY)


USUAL_LEVELS = WarningLevels()
NOTHING: Mapping[str, float] = MappingProxyType({})
Notes = list[tuple[State, str, str]]
"""Notes about a device: for each, the state that it causes, its text, and advice (may be empty)."""


class MissingValue(NamedTuple):
    """Why a value is missing.

    Attributes:
        reason: The reason, as in ``snapshot.unavailable``, or ``not_read``.
        word: Short text to show in place of the value.
        detail: The message of the source.
        advice: How to fix it; empty if nothing is wrong or nothing can be done.
    """

    reason: str
    word: str
    detail: str = ""
    advice: str = ""


@dataclass(frozen=True)
class DeviceView:
    """A device at one moment. Texts are printable, except in ``identity``, ``findings`` and ``gaps``.

    Attributes:
        key: Device key: ``gpu.0``.
        label: Short key: ``gpu.0``, or ``gpu.0.1`` for a partition.
        name: Product name without the vendor's name.
        identity: Vendor, product, UUID and other facts that do not change.
        parent: Key of the device that this partition belongs to; empty for a whole device.
        state: The worst state of all notes.
        notes: Notes in words, the most severe first.
        values: Values by their names in ``VALUES``. A missing value is absent.
        missing: By name, the reason for each missing value that is a core value or that the source should provide.
        levels: By name, the state of each value above its warning level.
        metrics: All metrics of the device, by their catalogue names.
        gaps: By catalogue name, the reason for each missing metric.
        throttled: Active throttle reasons, in words.
        errors: Consequences of memory errors, and the last Xid, in words. The numbers of errors are in ``values``.
        links: State of the links to the host and to other devices, in words.
        holders: Jobs and pods that the device is allocated to.
        findings: Findings of rules about the device, the most severe first.
        silent: Why the device reports no value at all; None while it reports any.
        silent_since_ns: Start of the silence, in nanoseconds since 1970; None if unknown or not silent.
        last: The last values before the silence; empty while not silent.
        aged: Whether the values are older than two intervals.
        advice: Advice for its notes, the most severe first.
    """

    key: str
    label: str
    name: str
    identity: DeviceIdentity
    parent: str
    state: State
    notes: tuple[str, ...]
    values: Mapping[str, float]
    missing: Mapping[str, MissingValue]
    levels: Mapping[str, State]
    metrics: Mapping[str, float]
    gaps: Mapping[str, Unavailable]
    throttled: tuple[str, ...]
    errors: tuple[str, ...]
    links: tuple[str, ...]
    holders: tuple[str, ...]
    findings: tuple[Finding, ...]
    silent: MissingValue | None
    silent_since_ns: int | None
    last: Mapping[str, float]
    aged: bool
    advice: tuple[str, ...]

    @property
    def note(self) -> str:
        """All notes on one line."""
        return ", ".join(self.notes)

    @property
    def mark(self) -> str:
        """The one-character mark of the state."""
        return STATE_MARKS[self.state]

    @property
    def word(self) -> str:
        """The state in a word: ``ok``, ``warning``, ``critical``; for a silent device the reason: ``lost``, ``timed out``."""
        return STATE_WORDS[self.state] if self.silent is None else self.silent.word


def device_view(
    record: Record,
    slot: DeviceSlot,
    vitals: Vitals,
    levels: WarningLevels,
    before: tuple[int, DeviceView] | None,
    now_ns: int,
    read: tuple[float | None, bool],
    most_links: int,
) -> DeviceView:
    """Return the view of one device.

    Args:
        record: The reading, with findings and allocations.
        slot: The device's key and identity.
        vitals: The device's core values.
        levels: Warning levels.
        before: Time and content of the previous view of the device; None for the first view.
        now_ns: Time of the view, in nanoseconds since 1970.
        read: Seconds since the source was read (None if unknown), and whether that is more than two intervals.
        most_links: Largest number of NVLinks that are up on any device of this product.
    """
    metrics, gaps, slots = record.snapshot.values_of(slot.key), record.snapshot.reasons_of(slot.key), record.snapshot.identities
    whole, (age, aged) = slot.identity.parent, read
    gone = None if answered(metrics) else _gone(gaps)
    # A silence begins with the last view that had values. Later views of the same silence pass its start and these values on.
    since, last = None, NOTHING
    if before is not None and gone is not None:
        then, old = before
        since, last = (old.silent_since_ns, old.last) if old.silent is not None else (then, old.values)
    silence = age if since is None else max(0.0, (now_ns - since) / 1e9)
    silent = None if gone is None else _missing(gone, silence)
    values: dict[str, float] = {}
    missing: dict[str, MissingValue] = {}
    for row in VALUES:
        field = OF_VITALS.get(row.name)
        value = getattr(vitals, field) if field else next((metrics[name] for name in row.names if name in metrics), None)
        reasons = [gaps[name] for name in row.names if name in gaps]
        if value is not None:
            values[row.name] = value
        elif reasons:
            # Of several metrics, "not supported" explains least: another reason may be temporary or fixable.
            why = next((why for why in reasons if why.reason != Reason.NOT_SUPPORTED), reasons[0])
            missing[row.name] = _missing(why, age if silent is None else silence)
        elif row.core:
            missing[row.name] = MissingValue(NOT_READ, "n/a", "the source does not report it, or it is not among the selected metrics")
    found = sorted((one for one in record.findings if one.key == slot.key), key=lambda one: SEVERITIES.index(one.severity))
    notes: Notes = []
    if silent is not None:
        # An unused or sleeping device is no problem.
        state: State = "missing" if silent.reason in IN_ORDER else "bad"
        seconds = "" if since is None or silent.reason in IN_ORDER else f" for {duration(silence or 0.0)}"
        notes.append((state, f"{silent.word}{'' if silent.reason in LASTING else seconds}", silent.advice))
        notes += [(state, words, "")] if (words := in_words(silent.detail)) else []
    warned, hot = _levels(values, levels)
    # The only metrics of a lost device are its counts of Xid errors. These are current, so they get no "last seen".
    notes += [
        (
            STATE_OF[one.severity],
            f"{'' if silent is None or (one.rule.startswith('xid') and metrics) else LAST_SEEN}{printable(one.message)}",
            printable(one.advice),
        )
        for one in found
        if silent is None or one.rule not in GONE
    ]
    heat = {STATE_OF[one.severity] for one in found if one.rule in HEAT}
    notes += [one for one in hot if one[0] not in heat and "bad" not in heat]
    throttled = tuple(word for name, word in THROTTLES.items() if metrics.get(name))
    notes += _throttle_notes(metrics, values, throttled)
    if (uncorrected := values.get("uncorrected_errors")) and all(one.rule != "ecc_uncorrected" for one in found):
        notes.append(("warn", counted(round(uncorrected), "uncorrected error"), ""))
    if corrected := values.get("corrected_errors"):
        notes.append(("ok", counted(round(corrected), "corrected error"), ""))
    errors, links = _errors(metrics), _links(metrics, most_links)
    notes += errors + [one for one in links if one[0] != "ok"]
    # A value that the source never provides is no problem, one that it should provide is.
    for name in ("utilization", "memory_percent", "power_watts", "temperature_celsius"):
        gap = missing.get(name)
        if silent is None and gap is not None and gap.reason not in IN_ORDER and gap.reason != NOT_READ:
            notes.append(("warn", f"{BY_NAME[name].label} {gap.word}", gap.advice))
    # In MIG mode, NVML reports no utilisation of the whole GPU.
    if "utilization" not in values and any(slot.identity.anchor == other.identity.parent for other in slots if other.identity.parent):
        notes.append(("ok", "MIG: no util", ""))
    # The sort is stable: within a state, notes keep the order above.
    notes.sort(key=lambda one: STATES.index(one[0]))
    return DeviceView(
        key=slot.key,
        label=slot.key.replace(".mig.", "."),
        name=vitals.short_name,
        identity=slot.identity,
        parent=next((one.key for one in slots if whole and whole == one.identity.anchor and not one.identity.parent), ""),
        state=notes[0][0] if notes else "ok",
        notes=tuple(dict.fromkeys(words for _, words, _ in notes)),
        values=values,
        missing=missing,
        levels=warned,
        metrics=metrics,
        gaps=gaps,
        throttled=throttled,
        errors=tuple(words for _, words, _ in errors),
        links=tuple(words for _, words, _ in links),
        holders=tuple(dict.fromkeys(holder_words(holder) for holder in record.holders.found if holder.device == slot.key)),
        findings=tuple(found),
        silent=silent,
        silent_since_ns=since,
        last=last,
        aged=aged,
        advice=tuple(dict.fromkeys(advice for _, _, advice in notes if advice)),
    )


def holder_words(holder: Holder) -> str:
    """Return the short name of a job or a pod: ``job 42 (ann)``, ``pod default/train-0``."""
    labels = holder.labels
    if holder.kind == "pod":
        return printable(f"pod {'/'.join(filter(None, (labels.get('namespace'), labels.get('pod'))))}")
    user = labels.get("user")
    return printable(f"job {labels.get('job_id', '')}" + (f" ({user})" if user else ""))


def _gone(gaps: Mapping[str, Unavailable]) -> Unavailable:
    """Return the reason why a device is silent: the most severe one among the reasons of its metrics."""
    problems = [why for why in gaps.values() if why.reason not in IN_ORDER]
    unused = [why for why in gaps.values() if why.reason in (Reason.NOT_IN_USE, Reason.SUSPENDED, Reason.NO_PERMISSION)]
    return next(iter((*problems, *unused, *gaps.values(), Unavailable(NOT_READ, "none of its metrics is read"))))


def _missing(why: Unavailable, seconds: float | None) -> MissingValue:
    """Return how to show a missing value. ``seconds`` is the time for which it has been missing, if known."""
    reason = str(why.reason)
    word = WORDS.get(reason, "n/a" if reason == NOT_READ else printable(reason).replace("_", " "))
    if reason in LASTING and seconds is not None and seconds >= 1:
        word += f" {duration(seconds)}"
    return MissingValue(printable(reason), word, printable(why.detail), ADVICE.get(reason, ""))


def _levels(values: Mapping[str, float], levels: WarningLevels) -> tuple[dict[str, State], Notes]:
    """Return the states of values above their warning levels, by name, and the notes about them."""
    found: dict[str, State] = {}
    notes: Notes = []
    temperature, slowdown = values.get("temperature_celsius"), values.get("slowdown_celsius")
    if temperature is not None:
        if levels.temperature is None and slowdown is not None:
            warm, hot, words = slowdown - NEAR_SLOWDOWN, slowdown, f"slows down at {celsius(slowdown)}"
        else:
            warm = float(HOT) if levels.temperature is None else levels.temperature
            hot, words = warm + OVERHEATING - HOT, f"above {warm:g} °C"
        if temperature > warm:
            found["temperature_celsius"] = "bad" if temperature > hot else "warn"
            notes.append((found["temperature_celsius"], f"{celsius(temperature)}, {words}", ""))
    # Full memory gets no note, so it does not change the device's state: many programs reserve all memory on purpose.
    if values.get("memory_percent", 0.0) > levels.memory:
        found["memory_percent"] = "warn"
    return found, notes


def _throttle_notes(metrics: Mapping[str, float], values: Mapping[str, float], throttled: Sequence[str]) -> Notes:
    """Return the note about throttling. Under load, heat and the power supply are a warning; the power limit is not."""
    score = metrics.get("throttleScore", 0.0)
    if score > 0:
        return [("warn", f"throttled {score:g}/10", "")]
    if not throttled:
        return [("ok", "throttled", "")] if metrics.get("throttled") else []
    # A device without a utilisation counts as loaded.
    slow = values.get("utilization", 100.0) > LOADED and any(metrics.get(name) for name in SLOWED)
    return [("warn" if slow else "ok", f"throttled: {', '.join(throttled)}", "")]


def _errors(metrics: Mapping[str, float]) -> Notes:
    """Return notes about the consequences of memory errors, and the last Xid, which does not worsen the state."""
    action, xid = RECOVERY.get(int(metrics.get("recoveryAction", 0)), ""), int(metrics.get("lastXid", 0))
    rows: tuple[tuple[object, State, str], ...] = (
        (metrics.get("rowRemapFailure"), "bad", "a memory row could not be replaced"),
        (metrics.get("rowRemapPending"), "warn", "memory rows wait for a reset"),
        (action, "warn", action),
        ("lastXid" in metrics, "ok", f"Xid {xid}: {meaning(xid)}"),
    )
    return [(state, words, "") for holds, state, words in rows if holds]


def links_up(metrics: Mapping[str, float]) -> int:
    """Return the number of NVLinks of a device that are up."""
    return sum(1 for name, value in metrics.items() if value and name.endswith(".state") and name.startswith("nvlink."))


def _links(metrics: Mapping[str, float], most: int) -> Notes:
    """Return notes about links. PCIe below its full width is a warning, like fewer NVLinks than on a device of the same product."""
    notes: Notes = []
    width, widest, generation = (metrics.get(name) for name in ("pcieLinkWidth", "maxPcieLinkWidth", "pcieLinkGen"))
    if width is not None:
        speed = f"PCIe {generation:.0f}.0 x{width:.0f}" if generation is not None else f"PCIe x{width:.0f}"
        notes.append(("warn", f"{speed} of x{widest:.0f}", "") if widest is not None and width < widest else ("ok", speed, ""))
    if most and answered(metrics):
        up = links_up(metrics)
        notes.append(("warn", f"NVLink {up} of {most} up", "") if up < most else ("ok", f"NVLink {up} up", ""))
    if health := metrics.get("iciLinkHealth", 0):
        notes.append(("warn", f"ICI link {health:g}/10", ""))
    return notes
