"""Measures of rules about devices: a number per device at every evaluated reading.

A measure is called with a :class:`RuleInput` and returns numbers by key, mostly the key of a device. A device without a new value at this
reading is absent. A measure that needs earlier readings stores them itself, in bounded memory. Each function in this module creates a
measure from a rule's options.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, pairwise

from accelmetrics.schemas.errors import IN_ORDER, Reason
from accelmetrics.schemas.fabric import RECOVERIES, fabric_faults
from accelmetrics.schemas.identity import pci_address
from accelmetrics.schemas.metric import LINK, VITAL
from accelmetrics.schemas.record import HoldersOf, Step
from accelmetrics.schemas.ring import REPEATED, Layout, Row, Served, device_columns, marked
from accelmetrics.schemas.snapshot import Snapshot, has_values
from accelmetrics.schemas.text import in_words
from accelmetrics.schemas.vitals import (
    MEMORY_PERCENT,
    MEMORY_TOTAL,
    MEMORY_USED,
    POWER,
    POWER_LIMIT,
    RECOVERY,
    SLOWED,
    TEMPERATURE,
    UTILIZATION,
)
from accelmetrics.schemas.xid import KNOWN_XIDS, meaning

Names = tuple[str, ...]
"""Names of metrics, in order of preference. Each device's first available one is used."""
Values = Mapping[str, float]
Measure = Callable[["RuleInput"], Values]

TORCH = "torch."
"""Prefix of metrics of PyTorch's allocator."""
FABRIC_HEALTH = ("fabricHealth.routeUnhealthy", "fabricHealth.incorrectConfiguration", "fabricHealthSummary", *RECOVERIES)
ANSWERS = tuple(VITAL)
LOST = frozenset({str(Reason.DEVICE_LOST)})
JOBS = ("slurm.job.id", "ray.job.id", "k8s.pod.name", "torchrun.run.id")
"""Labels of a job. A run with one of them holds all devices that it sees."""


def median(numbers: Iterable[float]) -> float:
    """Return the median of at least one number."""
    # The standard library's statistics module imports decimal and fractions, which every program with a monitor would then load.
    ordered = sorted(numbers)
    half, odd = divmod(len(ordered), 2)
    return ordered[half] if odd else (ordered[half - 1] + ordered[half]) / 2


class RuleInput:
    """The input of measures: a reading, and the steps logged since the last evaluated reading.

    Attributes:
        at: Time of the reading on the monitor's monotonic clock, in seconds.
        snapshot: The reading.
        steps: The logged steps.
        labels: Labels of the run.
        joined: Whether no pause or restart lies between the previous reading and this one.
        layout: Keys of the reading.
        silent: Reasons of each listed whole device without a value; no reasons if no metric of it is read.
        words: Text for ``{words}`` in a rule's message, by key. Each rule has a separate dict that is kept between readings.
    """

    def __init__(self, labels: Mapping[str, str], attribution: HoldersOf | None = None) -> None:
        self.at = 0.0
        self.snapshot = Snapshot(0, "", {})
        self.steps: Sequence[Step] = ()
        self.labels = labels
        self._attribution = attribution
        self.joined = False
        self.layout: Layout = ()
        self.silent: dict[str, frozenset[str]] = {}
        self.words: dict[str, str] = {}
        self._row: array[float] = array("d")
        self._served: Served = {}
        self._columns: Mapping[str, Mapping[str, int]] = {}
        self._bound: dict[Names, Mapping[str, int]] = {}
        self._numbered: dict[tuple[str, str], list[tuple[str, str, int]]] = {}

    def take(self, snapshot: Snapshot, row: Row, steps: Sequence[Step], joined: bool) -> None:
        """Set the next reading."""
        self.at, self.snapshot, self.steps, self.joined = row.at, snapshot, steps, joined
        (marks,), self._served = marked([row], self._served)
        self._row = marks.values
        if row.layout is not self.layout:
            self.layout = row.layout
            columns = {name: dict(found) for name, found in device_columns(row.layout).items()}
            for column, key in enumerate(row.layout):
                if key.startswith(TORCH):
                    _, number, name = key.split(".", 2)
                    columns.setdefault(f"{TORCH}{name}", {})[f"gpu.{number}"] = column
            self._columns = columns
            self._bound.clear()
            self._numbered.clear()
        self.silent = {
            slot.key: frozenset(str(why.reason) for why in snapshot.reasons_of(slot.key).values())
            for slot in snapshot.identities
            if not (slot.identity.parent or self.has(slot.key, ANSWERS) or has_values(snapshot, slot.key))
        }

    def has(self, device: str, names: Names) -> bool:
        """Return whether a device has one of these metrics, including values that were served again."""
        for name in names:
            prefix, link, suffix = name.partition(LINK)
            if device in ([one for one, _, _ in self.numbered(prefix, suffix)] if link else self._columns.get(name, ())):
                return True
        return False

    def values(self, names: Names) -> Values:
        """Return each device's value of the first of these metrics that it has. Values that were served again are left out."""
        if names not in self._bound:
            columns: dict[str, int] = {}
            for name in reversed(names):
                columns.update(self._columns.get(name, ()))
            self._bound[names] = columns
        row = self._row
        return {device: value for device, column in self._bound[names].items() if (value := row[column]) != REPEATED}

    def held(self) -> set[str]:
        """Return the devices that jobs and pods hold: from attribution, and all that this run sees if it belongs to a job."""
        found = set() if self._attribution is None else {holder.device for holder in self._attribution(self.snapshot).found}
        if any(self.labels.get(label) for label in JOBS):
            found.update(slot.key for slot in self.snapshot.identities if slot.visible_index is not None)
        return found

    def numbered(self, before: str, behind: str) -> list[tuple[str, str, float]]:
        """Return device, number and value of metrics with a number in their name.

        Args:
            before: The name's part before the number: ``nvlink.``.
            behind: The name's part after the number: ``.state``.
        """
        if (before, behind) not in self._numbered:
            self._numbered[before, behind] = [
                (device, name[len(before) : -len(behind)], column)
                for name, columns in self._columns.items()
                if name.startswith(before) and name.endswith(behind)
                for device, column in columns.items()
            ]
        row = self._row
        return [(device, number, value) for device, number, column in self._numbered[before, behind] if (value := row[column]) != REPEATED]


class Latest:
    """A measure that returns the current value of a metric.

    Args:
        metric: Names of the metric, in order of preference.
    """

    def __init__(self, metric: Names) -> None:
        self._names = metric

    def __call__(self, inputs: RuleInput) -> Values:
        return inputs.values(self._names)


def margin() -> Measure:
    """Measure how far a device is below the temperature at which it slows down, in kelvins."""

    def measure(inputs: RuleInput) -> Values:
        temperatures, limits = inputs.values(TEMPERATURE), inputs.values(("tempLimit.slowdown",))
        computed = {device: limit - temperatures[device] for device, limit in limits.items() if device in temperatures}
        # A margin from the driver takes precedence: it is the distance to the nearest of several limits.
        return {**computed, **inputs.values(("tempMargin",))}

    return measure


class WindowSums:
    """Sums of a part and of its whole over a sliding window.

    Args:
        span: Length of the window in seconds.
        pieces: Number of pieces that the window is divided into. Numbers of a piece are stored as one sum.

    Attributes:
        part: Sum of the part.
        whole: Sum of the whole.
    """

    def __init__(self, span: float, pieces: int) -> None:
        self.part = self.whole = 0.0
        self._span, self._piece = span, span / pieces
        # Flat: start time, part and whole of each piece. It takes a sixth of the memory of an object per piece.
        self._pieces = array("d")

    def add(self, at: float, part: float, whole: float) -> None:
        """Add to both sums, and remove pieces that are older than the window."""
        pieces = self._pieces
        if not pieces or at - pieces[-3] >= self._piece:
            pieces.extend((at, 0.0, 0.0))
        pieces[-2] += part
        pieces[-1] += whole
        self.part += part
        self.whole += whole
        while at - pieces[0] > self._span:
            self.part = max(0.0, self.part - pieces[1])
            self.whole = max(0.0, self.whole - pieces[2])
            del pieces[:3]

    @property
    def percent(self) -> float | None:
        """The part in percent of the whole; None until the whole reaches four fifths of the window."""
        return 100 * self.part / self.whole if self.whole >= 0.8 * self._span else None


def throttled_share(span: float, load: float) -> Measure:
    """Measure the share of a window during which a loaded device was throttled by heat or the power supply, in percent.

    Args:
        span: Length of the window in seconds.
        load: Utilisation above which a device is loaded, in percent.
    """
    last = 0.0
    windows: dict[str, WindowSums] = {}

    def measure(inputs: RuleInput) -> Values:
        nonlocal last
        elapsed, last = inputs.at - last, inputs.at
        joined = inputs.joined and elapsed <= span / 5  # nothing is known about a longer gap
        reasons = [inputs.values((name,)) for name in SLOWED]
        shares: dict[str, float] = {}
        for device, utilization in inputs.values(UTILIZATION).items():
            flags = [values[device] for values in reasons if device in values]
            if not flags:
                continue
            window = windows.setdefault(device, WindowSums(span, pieces=30))
            slowed = elapsed if utilization > load and any(flags) else 0.0
            window.add(inputs.at, *((slowed, elapsed) if joined else (0.0, 0.0)))
            if window.percent is not None:
                shares[device] = window.percent
        return shares

    return measure


def _rises(
    span: float,
    initial: bool,
    overlapping: bool = False,
    words: Callable[[str], str] = str,
    ages: Callable[[RuleInput, str, str], Sequence[float]] = lambda inputs, device, counter: (),
) -> Callable[[RuleInput, Iterable[tuple[str, str, float]]], dict[str, float]]:
    """Return a function that sums up the recent rises of each device's counters.

    Args:
        span: Number of seconds for which a rise counts.
        initial: Whether the value of a counter at its first reading counts as a rise.
        overlapping: Whether several counters may count the same errors. Then the largest rise counts instead of the sum.
        words: Returns the text for a finding from the name of the counter that rose last.
        ages: Returns the ages in seconds of the errors in a counter's first value, as far as they are known.

    Returns:
        Function of a :class:`RuleInput` and of (device, counter, value) that returns the sum by device.
    """
    last: dict[tuple[str, str], float] = {}
    risen: dict[str, deque[tuple[float, float, str]]] = {}  # by device: time, rise and counter

    def add_up(inputs: RuleInput, read: Iterable[tuple[str, str, float]]) -> dict[str, float]:
        recent: dict[str, float] = {}
        for device, counter, value in read:
            before = last.get((device, counter))
            last[device, counter] = value
            recent.setdefault(device, 0.0)
            # A value below the last one means that the counter was reset, so all of it is new.
            since = value - before if before is not None and value >= before else value if before is not None or initial else 0.0
            if before is None and (known := ages(inputs, device, counter)):
                of_before = ((inputs.at - age, 1.0, counter) for age in known)
                risen[device] = deque(sorted([*risen.get(device, ()), *of_before]), maxlen=1024)
            elif since > 0:
                risen.setdefault(device, deque(maxlen=1024)).append((inputs.at, since, counter))
        for device, rises in risen.items():
            while rises and inputs.at - rises[0][0] > span:
                rises.popleft()
            by_counter: dict[str, float] = {}
            for _, rise, counter in rises:
                by_counter[counter] = by_counter.get(counter, 0.0) + rise
            if rises:
                inputs.words[device] = words(rises[-1][2])
            recent[device] = max(by_counter.values(), default=0.0) if overlapping else sum(by_counter.values())
        return recent

    return add_up


def recent_rises(counters: Names, span: float, initial: bool, overlapping: bool = False) -> Measure:
    """Measure the recent rise of counters. A counter that was reset counts from 0. The words name the counter that rose last.

    Args:
        counters: Names of the counters.
        span: Number of seconds for which a rise counts.
        initial: Whether the value of a counter at its first reading counts as a rise.
        overlapping: Whether several counters may count the same errors. Then the largest rise counts instead of the sum.
    """
    add_up = _rises(span, initial, overlapping)
    return lambda inputs: add_up(inputs, ((device, name, value) for name in counters for device, value in inputs.values((name,)).items()))


def recent_xids(codes: Sequence[int], others: bool, span: float) -> Measure:
    """Measure the number of recent Xid errors with certain codes. The words explain the last one.

    Args:
        codes: The codes.
        others: Whether to count all codes except these.
        span: Number of seconds for which an error counts.
    """

    def ages(inputs: RuleInput, device: str, code: str) -> Sequence[float]:
        addresses = [pci_address(slot.identity.pci_bus_id) for slot in inputs.snapshot.identities if slot.key == device]
        # A copy, because another thread may add to them.
        times = [when for address in addresses for when, one in tuple(KNOWN_XIDS.recent.get(address, ())) if str(one) == code]
        return [max(0.0, inputs.snapshot.time_ns / 1e9 - when) for when in times]

    add_up = _rises(span, initial=True, words=lambda code: f"{code}: {meaning(int(code))}", ages=ages)
    listed = frozenset(map(str, codes))

    def measure(inputs: RuleInput) -> Values:
        matching = [one for one in inputs.numbered("xid.", ".errors") if (one[1] in listed) != others]
        return {**dict.fromkeys(inputs.values(("xidErrors",)), 0.0), **add_up(inputs, matching)}

    return measure


def fabric_health() -> Measure:
    """Measure the number of faults that keep a device from using the NVLink fabric. The words list them."""

    def measure(inputs: RuleInput) -> Values:
        found: dict[str, dict[str, float]] = {}
        for name in FABRIC_HEALTH:
            for device, value in inputs.values((name,)).items():
                found.setdefault(device, {})[name] = value
        faults = {device: fabric_faults(values) for device, values in found.items()}
        inputs.words.update((device, ", ".join(words)) for device, words in faults.items())
        return {device: len(words) for device, words in faults.items()}

    return measure


def counter_rate(counter: str) -> Measure:
    """Measure the rate of a counter, per second.

    Args:
        counter: Name of the counter.
    """
    last: dict[str, tuple[float, float]] = {}

    def measure(inputs: RuleInput) -> Values:
        rates: dict[str, float] = {}
        for device, value in inputs.values((counter,)).items():
            at, before = last.get(device, (inputs.at, value))
            last[device] = inputs.at, value
            if inputs.at > at and value >= before and inputs.joined:
                rates[device] = (value - before) / (inputs.at - at)
        return rates

    return measure


def links_down() -> Measure:
    """Measure how many fewer NVLinks are up than before, or than on another device of the same product."""
    highest: dict[str, int] = {}  # highest number of links that were up, by device

    def measure(inputs: RuleInput) -> Values:
        up: dict[str, int] = {}
        for device, _, state in inputs.numbered("nvlink.", ".state"):
            up[device] = up.get(device, 0) + (state > 0)
        products = {slot.key: slot.identity.name for slot in inputs.snapshot.identities} if up else {}
        of_product: dict[str, int] = {}
        for device, count in up.items():
            most = highest[device] = max(count, highest.get(device, 0))
            product = products.get(device, "")
            of_product[product] = max(most, of_product.get(product, 0))
        # A device without any link so far may have no bridge, so none of its links counts as down.
        return {device: of_product[products.get(device, "")] - count if highest[device] else 0 for device, count in up.items()}

    return measure


def lost_devices() -> Measure:
    """Measure for how many readings a device has been lost. The words are the driver's."""
    # A lost device stays lost until it has a value again: while its driver is reloaded or it is reset, there is no reason to read.
    readings: dict[str, float] = {}

    def measure(inputs: RuleInput) -> Values:
        for slot in inputs.snapshot.identities:
            device = slot.key
            reasons = inputs.silent.get(device)
            if reasons == LOST:
                readings[device] = readings.get(device, 0.0) + 1
                inputs.words[device] = in_words(next(iter(inputs.snapshot.reasons_of(device).values())).detail)
            elif reasons is None and not slot.identity.parent:
                readings[device] = 0.0
        return readings.copy()

    return measure


def missing_devices() -> Measure:
    """Measure 1 for a device that has no values without being lost, or a source that is silent although its hardware is present; else 0."""
    lost_readings = lost_devices()
    known: dict[str, str] = {}  # source by whole device, of all devices listed so far
    silent: set[str] = set()  # sources that were silent before they had listed a device

    def measure(inputs: RuleInput) -> Values:
        present = {slot.key: slot.backend for slot in inputs.snapshot.identities if not slot.identity.parent}
        known.update(present)
        lost = lost_readings(inputs)
        missing: dict[str, float] = {}
        for device in known:
            reasons, listed = inputs.silent.get(device, frozenset()), device in present
            if reasons or not listed:
                inputs.words[device] = ", ".join(sorted(reasons)) if listed else "no longer listed"
            # A listed device without reasons has values, or none of its metrics is read.
            missing[device] = not lost.get(device) and (not listed or not reasons <= IN_ORDER)
        sources = set(known.values())
        for status in inputs.snapshot.backends:
            if status.name in silent or (status.silent and status.name not in sources):
                silent.add(status.name)
                missing[status.name] = status.silent and status.name not in sources
                inputs.words[status.name] = status.detail
        return missing

    return measure


def recovery_needed() -> Measure:
    """Measure 1 for a device if its driver requests a recovery action, or reports that values need a reset first; else 0."""

    def measure(inputs: RuleInput) -> Values:
        actions, missing = inputs.values(("recoveryAction",)), inputs.snapshot.unavailable
        required = {key for key, why in missing.items() if why.reason == Reason.RESET_REQUIRED}
        found: dict[str, float] = {}
        for slot in inputs.snapshot.identities:
            action = RECOVERY.get(int(actions.get(slot.key, 0)), "")
            refused = any(key.startswith(f"{slot.key}.") for key in required)
            if action or refused:
                inputs.words[slot.key] = action or "a reset is required before all values are available"
            if slot.key in actions or refused or inputs.has(slot.key, ANSWERS):
                found[slot.key] = float(bool(action) or refused)
        return found

    return measure


def idle_held(held_bytes: float) -> Measure:
    """Measure the utilisation of devices that a job, a pod or a program holds; 100 for free devices.

    Args:
        held_bytes: Memory in use from which a device counts as held by a program.
    """

    def measure(inputs: RuleInput) -> Values:
        loads, used = inputs.values(UTILIZATION), inputs.values(MEMORY_USED)
        if all(load > 5 for load in loads.values()):  # no device is idle: skip the search for holders
            return loads
        # Unified memory is also used by programs that do not use the device.
        shared = {slot.key for slot in inputs.snapshot.identities if slot.identity.unified}
        held = inputs.held() | {device for device, amount in used.items() if amount >= held_bytes and device not in shared}
        return {device: load if device in held else 100.0 for device, load in loads.items()}

    return measure


def relative_clock(load: float, least: float) -> Measure:
    """Measure a fully loaded device's clock in percent of its peers' median. Peers have the same product, power limit and load.

    Args:
        load: Utilisation above which a device is fully loaded, in percent.
        least: Minimum number of peers for a median.
    """

    def measure(inputs: RuleInput) -> Values:
        loads, clocks, limits = inputs.values(UTILIZATION), inputs.values(("smClock",)), inputs.values(POWER_LIMIT)
        groups: dict[tuple[str, float], dict[str, float]] = {}
        for slot in inputs.snapshot.identities:
            device = slot.key
            if loads.get(device, 0.0) > load and device in clocks:
                groups.setdefault((slot.identity.name, limits.get(device, 0.0)), {})[device] = clocks[device]
        usual = [(median(peers.values()), peers) for peers in groups.values() if len(peers) >= least]
        return {device: 100 * clock / middle for middle, peers in usual if middle > 0 for device, clock in peers.items()}

    return measure


def unmoved_energy(watts: float, readings: float) -> Measure:
    """Measure for how many seconds a device draws power without a change of its energy counter; 0 while the counter changes.

    Args:
        watts: Power above which the counter has to change.
        readings: Number of readings for which it must be unchanged.
    """
    unchanged: dict[str, tuple[float, float, int]] = {}  # by device: the counter, since when it is unchanged, readings since then

    def measure(inputs: RuleInput) -> Values:
        # After a reading without the counter, for example from a lost device, the time starts again: the gap is unknown.
        for device in list(unchanged):
            if not inputs.joined or not inputs.has(device, ("energyJoules",)):
                del unchanged[device]
        powers = inputs.values(POWER)
        found: dict[str, float] = {}
        for device, joules in inputs.values(("energyJoules",)).items():
            counter, since, count = unchanged.get(device, (joules, inputs.at, 0))
            if joules != counter or powers.get(device, 0.0) <= watts:
                counter, since, count = joules, inputs.at, 0
            unchanged[device] = counter, since, count + 1
            found[device] = inputs.at - since if count >= readings else 0.0
        return found

    return measure


def memory_growth(span: float, parts: float, hours: float) -> Measure:
    """Measure how fast a device's memory fills, in percent per hour, if it would be full within some hours; else 0.

    The number is the Theil-Sen slope of the minimum use in each part of the window. Minima ignore memory that the program frees from time
    to time. A single jump is ignored too: all parts except one must use more than the part before, and the total rise must be five times
    the largest deviation from the line.

    Args:
        span: Length of the window in seconds.
        parts: Number of parts of the window.
        hours: Number of hours within which the memory would be full.
    """
    lowest: dict[str, deque[tuple[float, float]]] = {}  # by device: start time and minimum use of each part
    slopes: dict[str, float] = {}

    def measure(inputs: RuleInput) -> Values:
        if not inputs.joined:
            lowest.clear()
            slopes.clear()
        used = dict(inputs.values(MEMORY_PERCENT))
        totals = inputs.values(MEMORY_TOTAL)
        # PyTorch's own count is preferred if known: its allocator returns no memory to the driver, so the driver's number hides a leak.
        for device, allocated in inputs.values((f"{TORCH}memoryAllocatedBytes",)).items():
            if totals.get(device):
                used[device] = 100 * allocated / totals[device]
        for device, share in used.items():
            least = lowest.setdefault(device, deque(maxlen=int(parts) + 1))
            if not least or inputs.at - least[-1][0] >= span / parts:
                if len(least) == least.maxlen:
                    least.popleft()
                if least:
                    slopes[device] = _slope(least, int(parts), hours)
                least.append((inputs.at, share))
            elif share < least[-1][1]:
                least[-1] = least[-1][0], share
        return {device: slopes[device] for device in used if device in slopes}

    return measure


def _slope(least: Sequence[tuple[float, float]], parts: int, hours: float) -> float:
    """Return the slope in percent per hour; 0 if the use does not grow steadily or the memory would not be full within these hours."""
    if len(least) < parts:
        return 0.0
    rises = sum(after[1] > before[1] for before, after in pairwise(least))
    slope = median((after[1] - before[1]) / (after[0] - before[0]) for before, after in combinations(least, 2))
    level = median(share - slope * at for at, share in least)
    departure = max(abs(share - slope * at - level) for at, share in least)
    rise = slope * (least[-1][0] - least[0][0])
    if slope <= 0 or rises < len(least) - 2 or rise < 5 * departure or (100 - least[-1][1]) / (3600 * slope) > hours:
        return 0.0
    return 3600 * slope
