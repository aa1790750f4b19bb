"""What rules measure on devices: one number of each at every reading that is judged.

A measure is called with a :class:`RuleInput` and gives numbers by what they are about, a device's key mostly; what has none at this
reading (it was not read, or not anew) is absent. One that looks back keeps what it needs itself, in bounded memory. Each function here
makes a measure, with a rule's options.
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
"""Metrics of which each device's first is taken."""
Values = Mapping[str, float]
Measure = Callable[["RuleInput"], Values]

TORCH = "torch."
"""Before the name of a metric of PyTorch's allocator on a device."""
FABRIC_HEALTH = ("fabricHealth.routeUnhealthy", "fabricHealth.incorrectConfiguration", "fabricHealthSummary", *RECOVERIES)
ANSWERS = tuple(VITAL)
LOST = frozenset({str(Reason.DEVICE_LOST)})
JOBS = ("slurm.job.id", "ray.job.id", "k8s.pod.name", "torchrun.run.id")
"""Labels of a run that holds the devices it sees."""


def median(numbers: Iterable[float]) -> float:
    """Return the middle of numbers, of which there is one at least.

    The standard library's module brings ``decimal`` and ``fractions`` along, which every program with a monitor would load.
    """
    ordered = sorted(numbers)
    half, odd = divmod(len(ordered), 2)
    return ordered[half] if odd else (ordered[half - 1] + ordered[half]) / 2


class RuleInput:
    """What rules judge: a reading, and what the program logged since the one that was judged before.

    Attributes:
        at: When it was read, on the monitor's monotonic clock, in seconds.
        snapshot: The reading.
        steps: What was logged.
        labels: Those of the run.
        joined: Whether no pause or restart lies between this reading and the one before.
        layout: The keys of the reading.
        silent: The whole devices that are listed and give nothing, with the reasons; those whose metrics are not read have none.
        words: What ``{words}`` in a rule's message stands for, by what its finding is about; a rule's own, kept from reading to reading.
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
        """Go on to another reading."""
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
        """Return whether a device gives one of these metrics, anew or not."""
        for name in names:
            before, link, behind = name.partition(LINK)
            if device in ([one for one, _, _ in self.numbered(before, behind)] if link else self._columns.get(name, ())):
                return True
        return False

    def values(self, names: Names) -> Values:
        """Return by device its value under the first of these names that it gives; not one that was served again."""
        if names not in self._bound:
            columns: dict[str, int] = {}
            for name in reversed(names):
                columns.update(self._columns.get(name, ()))
            self._bound[names] = columns
        row = self._row
        return {device: value for device, column in self._bound[names].items() if (value := row[column]) != REPEATED}

    def held(self) -> set[str]:
        """Return the devices that jobs and pods hold: all that the run's own job sees, and those that attribution tells."""
        found = set() if self._attribution is None else {holder.device for holder in self._attribution(self.snapshot).found}
        if any(self.labels.get(label) for label in JOBS):
            found.update(slot.key for slot in self.snapshot.identities if slot.visible_index is not None)
        return found

    def numbered(self, before: str, behind: str) -> list[tuple[str, str, float]]:
        """Return the values of metrics with a number in their name: device, number and value.

        Args:
            before: What stands before the number: ``nvlink.``.
            behind: What stands behind it: ``.state``.
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
    """Gives a metric as it is read.

    Args:
        metric: Its names, of which each device's first counts.
    """

    def __init__(self, metric: Names) -> None:
        self._names = metric

    def __call__(self, given: RuleInput) -> Values:
        return given.values(self._names)


def margin() -> Measure:
    """Measure how far a device is below the temperature at which it slows itself down, in kelvins.

    The margin that a driver gives counts first: it is to the nearest of several limits.
    """

    def measure(given: RuleInput) -> Values:
        temperatures, limits = given.values(TEMPERATURE), given.values(("tempLimit.slowdown",))
        computed = {device: limit - temperatures[device] for device, limit in limits.items() if device in temperatures}
        return {**computed, **given.values(("tempMargin",))}

    return measure


class WindowSums:
    """Two sums over the last seconds, of which one is a part of the other.

    Args:
        span: Seconds that are added up.
        pieces: Into how many pieces these are divided: numbers of one piece are kept together.

    Attributes:
        part: The one.
        whole: The other.
    """

    def __init__(self, span: float, pieces: int) -> None:
        self.part = self.whole = 0.0
        self._span, self._piece = span, span / pieces
        # Of each piece since when, and the sums since then, one behind the other: a sixth of the memory of as many objects.
        self._pieces = array("d")

    def add(self, at: float, part: float, whole: float) -> None:
        """Add to both, and take away what is older."""
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
        """The part in percent of the whole; None until four fifths of the time are known."""
        return 100 * self.part / self.whole if self.whole >= 0.8 * self._span else None


def throttled_share(span: float, load: float) -> Measure:
    """Measure the share of a window during which heat or the power supply held the clocks of a loaded device down, in percent.

    Args:
        span: Seconds of the window.
        load: Utilisation above which a device is loaded, in percent.
    """
    last = 0.0
    windows: dict[str, WindowSums] = {}

    def measure(given: RuleInput) -> Values:
        nonlocal last
        elapsed, last = given.at - last, given.at
        joined = given.joined and elapsed <= span / 5
        reasons = [given.values((name,)) for name in SLOWED]
        shares: dict[str, float] = {}
        for device, utilization in given.values(UTILIZATION).items():
            told = [values[device] for values in reasons if device in values]
            if not told:
                continue
            window = windows.setdefault(device, WindowSums(span, pieces=30))
            slowed = elapsed if utilization > load and any(told) else 0.0
            window.add(given.at, *((slowed, elapsed) if joined else (0.0, 0.0)))
            if window.percent is not None:
                shares[device] = window.percent
        return shares

    return measure


def _rises(
    span: float,
    standing: bool,
    overlapping: bool = False,
    words: Callable[[str], str] = str,
    ages: Callable[[RuleInput, str, str], Sequence[float]] = lambda given, device, counter: (),
) -> Callable[[RuleInput, Iterable[tuple[str, str, float]]], dict[str, float]]:
    """Return what adds up by how much the counters of each device rose of late, of device, counter and value.

    ``ages`` tells how long ago what a counter holds at its first reading was counted, as far as that is known.
    """
    last: dict[tuple[str, str], float] = {}
    risen: dict[str, deque[tuple[float, float, str]]] = {}  # by device: when, by how much, of which counter

    def add_up(given: RuleInput, read: Iterable[tuple[str, str, float]]) -> dict[str, float]:
        recent: dict[str, float] = {}
        for device, counter, value in read:
            before = last.get((device, counter))
            last[device, counter] = value
            recent.setdefault(device, 0.0)
            since = value - before if before is not None and value >= before else value if before is not None or standing else 0.0
            if before is None and (known := ages(given, device, counter)):
                of_before = ((given.at - age, 1.0, counter) for age in known)
                risen[device] = deque(sorted([*risen.get(device, ()), *of_before]), maxlen=1024)
            elif since > 0:
                risen.setdefault(device, deque(maxlen=1024)).append((given.at, since, counter))
        for device, rises in risen.items():
            while rises and given.at - rises[0][0] > span:
                rises.popleft()
            by_counter: dict[str, float] = {}
            for _, rise, counter in rises:
                by_counter[counter] = by_counter.get(counter, 0.0) + rise
            if rises:
                given.words[device] = words(rises[-1][2])
            recent[device] = max(by_counter.values(), default=0.0) if overlapping else sum(by_counter.values())
        return recent

    return add_up


def recent_rises(counters: Names, span: float, standing: bool, overlapping: bool = False) -> Measure:
    """Measure by how much counters rose of late. A counter that begins anew counts from 0. The words name the one that rose last.

    Args:
        counters: Their names.
        span: For how many seconds a rise counts.
        standing: Whether what a counter holds at its first reading counts as a rise.
        overlapping: Whether counters may count the same errors: then the one that rose most is taken, instead of their sum.
    """
    add_up = _rises(span, standing, overlapping)
    return lambda given: add_up(given, ((device, name, value) for name in counters for device, value in given.values((name,)).items()))


def recent_xids(codes: Sequence[int], others: bool, span: float) -> Measure:
    """Measure how many Xid errors of some codes a device reported of late. The words say what the last one means.

    Args:
        codes: Which codes.
        others: Whether all codes but these are meant.
        span: For how many seconds one counts.
    """

    def ages(given: RuleInput, device: str, code: str) -> Sequence[float]:
        addresses = [pci_address(slot.identity.pci_bus_id) for slot in given.snapshot.identities if slot.key == device]
        # Copied, as another thread may add to them.
        times = [when for address in addresses for when, one in tuple(KNOWN_XIDS.recent.get(address, ())) if str(one) == code]
        return [max(0.0, given.snapshot.time_ns / 1e9 - when) for when in times]

    add_up = _rises(span, standing=True, words=lambda code: f"{code}: {meaning(int(code))}", ages=ages)
    listed = frozenset(map(str, codes))

    def measure(given: RuleInput) -> Values:
        meant = [one for one in given.numbered("xid.", ".errors") if (one[1] in listed) != others]
        return {**dict.fromkeys(given.values(("xidErrors",)), 0.0), **add_up(given, meant)}

    return measure


def fabric_health() -> Measure:
    """Measure how many things keep a device from using the fabric of NVLink switches."""

    def measure(given: RuleInput) -> Values:
        found: dict[str, dict[str, float]] = {}
        for name in FABRIC_HEALTH:
            for device, value in given.values((name,)).items():
                found.setdefault(device, {})[name] = value
        faults = {device: fabric_faults(values) for device, values in found.items()}
        given.words.update((device, ", ".join(words)) for device, words in faults.items())
        return {device: len(words) for device, words in faults.items()}

    return measure


def counter_rate(counter: str) -> Measure:
    """Measure how fast a counter rises, per second.

    Args:
        counter: Its name.
    """
    last: dict[str, tuple[float, float]] = {}

    def measure(given: RuleInput) -> Values:
        rates: dict[str, float] = {}
        for device, value in given.values((counter,)).items():
            at, before = last.get(device, (given.at, value))
            last[device] = given.at, value
            if given.at > at and value >= before and given.joined:
                rates[device] = (value - before) / (given.at - at)
        return rates

    return measure


def links_down() -> Measure:
    """Measure how many NVLinks are down that were up before, or that are up on a device of the same product.

    A device of which no link was ever up has none that is missed: its bridge may not be there.
    """
    highest: dict[str, int] = {}

    def measure(given: RuleInput) -> Values:
        up: dict[str, int] = {}
        for device, _, state in given.numbered("nvlink.", ".state"):
            up[device] = up.get(device, 0) + (state > 0)
        products = {slot.key: slot.identity.name for slot in given.snapshot.identities} if up else {}
        of_product: dict[str, int] = {}
        for device, count in up.items():
            most = highest[device] = max(count, highest.get(device, 0))
            product = products.get(device, "")
            of_product[product] = max(most, of_product.get(product, 0))
        return {device: of_product[products.get(device, "")] - count if highest[device] else 0 for device, count in up.items()}

    return measure


def lost_devices() -> Measure:
    """Measure for how many readings a device has been lost; one that was lost is so until it gives something.

    A driver that is loaded again, or a reset, says nothing of it meanwhile. The words are the driver's.
    """
    readings: dict[str, float] = {}

    def measure(given: RuleInput) -> Values:
        for slot in given.snapshot.identities:
            device = slot.key
            reasons = given.silent.get(device)
            if reasons == LOST:
                readings[device] = readings.get(device, 0.0) + 1
                given.words[device] = in_words(next(iter(given.snapshot.reasons_of(device).values())).detail)
            elif reasons is None and not slot.identity.parent:
                readings[device] = 0.0
        return readings.copy()

    return measure


def missing_devices() -> Measure:
    """Give 1 for a device that gives nothing though it is not lost, or a source that is silent though its hardware is there; else 0."""
    lost_readings = lost_devices()
    known: dict[str, str] = {}  # whole devices that were ever listed, and their sources
    silent: set[str] = set()  # sources that were silent before they listed any device

    def measure(given: RuleInput) -> Values:
        present = {slot.key: slot.backend for slot in given.snapshot.identities if not slot.identity.parent}
        known.update(present)
        lost = lost_readings(given)
        missing: dict[str, float] = {}
        for device in known:
            reasons, listed = given.silent.get(device, frozenset()), device in present
            if reasons or not listed:
                given.words[device] = ", ".join(sorted(reasons)) if listed else "it is not listed any more"
            # Without reasons it gives something, or none of its metrics is read.
            missing[device] = not lost.get(device) and (not listed or not reasons <= IN_ORDER)
        sources = set(known.values())
        for status in given.snapshot.backends:
            if status.name in silent or (status.silent and status.name not in sources):
                silent.add(status.name)
                missing[status.name] = status.silent and status.name not in sources
                given.words[status.name] = status.detail
        return missing

    return measure


def recovery_needed() -> Measure:
    """Give 1 for a device whose driver asks for a reset or more, or answers that one is required before it gives a value; else 0."""

    def measure(given: RuleInput) -> Values:
        actions, missing = given.values(("recoveryAction",)), given.snapshot.unavailable
        required = {key for key, why in missing.items() if why.reason == Reason.RESET_REQUIRED}
        found: dict[str, float] = {}
        for slot in given.snapshot.identities:
            action = RECOVERY.get(int(actions.get(slot.key, 0)), "")
            refused = any(key.startswith(f"{slot.key}.") for key in required)
            if action or refused:
                given.words[slot.key] = action or "a reset is required before it gives all values"
            if slot.key in actions or refused or given.has(slot.key, ANSWERS):
                found[slot.key] = float(bool(action) or refused)
        return found

    return measure


def idle_held(held_bytes: float) -> Measure:
    """Measure the utilisation of devices that a job, a pod or a program holds; 100 for those that are free.

    Args:
        held_bytes: Device memory in use from which on a device counts as held, by any program.
    """

    def measure(given: RuleInput) -> Values:
        loads, used = given.values(UTILIZATION), given.values(MEMORY_USED)
        if all(load > 5 for load in loads.values()):
            return loads
        shared = {slot.key for slot in given.snapshot.identities if slot.identity.unified}
        held = given.held() | {device for device, amount in used.items() if amount >= held_bytes and device not in shared}
        return {device: load if device in held else 100.0 for device, load in loads.items()}

    return measure


def relative_clock(load: float, least: float) -> Measure:
    """Measure the clock of a fully loaded device in percent of the median of its peers: same product, same power limit, as loaded.

    Args:
        load: Utilisation above which a device is fully loaded, in percent.
        least: Devices of which a median is taken at least.
    """

    def measure(given: RuleInput) -> Values:
        loads, clocks, limits = given.values(UTILIZATION), given.values(("smClock",)), given.values(POWER_LIMIT)
        groups: dict[tuple[str, float], dict[str, float]] = {}
        for slot in given.snapshot.identities:
            device = slot.key
            if loads.get(device, 0.0) > load and device in clocks:
                groups.setdefault((slot.identity.name, limits.get(device, 0.0)), {})[device] = clocks[device]
        usual = [(median(peers.values()), peers) for peers in groups.values() if len(peers) >= least]
        return {device: 100 * clock / middle for middle, peers in usual if middle > 0 for device, clock in peers.items()}

    return measure


def unmoved_energy(watts: float, readings: float) -> Measure:
    """Measure for how many seconds the energy counter of a device that draws power stands still; 0 while it moves.

    A reading without the counter begins anew: of the time in between nothing is known, such as while the device was lost.

    Args:
        watts: Power above which it must move.
        readings: Readings for which it must have stood still.
    """
    stood: dict[str, tuple[float, float, int]] = {}  # by device: the counter, since when, readings since then

    def measure(given: RuleInput) -> Values:
        for device in list(stood):
            if not given.joined or not given.has(device, ("energyJoules",)):
                del stood[device]
        powers = given.values(POWER)
        found: dict[str, float] = {}
        for device, joules in given.values(("energyJoules",)).items():
            counter, since, count = stood.get(device, (joules, given.at, 0))
            if joules != counter or powers.get(device, 0.0) <= watts:
                counter, since, count = joules, given.at, 0
            stood[device] = counter, since, count + 1
            found[device] = given.at - since if count >= readings else 0.0
        return found

    return measure


def memory_growth(span: float, parts: float, hours: float) -> Measure:
    """Measure how fast a device's memory fills, in percent of it per hour, where it would be full within a day; else 0.

    It is the Theil-Sen slope of the least use in each part of the window: what a program frees now and then does not count, nor does a
    single step: all parts but one must use more than the one before, and the rise be five times what any departs from it. PyTorch's
    own use counts where it is known, since its allocator gives nothing back.

    Args:
        span: Seconds of the window.
        parts: Parts of the window.
        hours: Within how many hours the memory would be full.
    """
    lowest: dict[str, deque[tuple[float, float]]] = {}  # by device, of each part: when it began, and the least use in it
    slopes: dict[str, float] = {}

    def measure(given: RuleInput) -> Values:
        if not given.joined:
            lowest.clear()
            slopes.clear()
        used = dict(given.values(MEMORY_PERCENT))
        totals = given.values(MEMORY_TOTAL)
        for device, allocated in given.values((f"{TORCH}memoryAllocatedBytes",)).items():
            if totals.get(device):
                used[device] = 100 * allocated / totals[device]
        for device, share in used.items():
            least = lowest.setdefault(device, deque(maxlen=int(parts) + 1))
            if not least or given.at - least[-1][0] >= span / parts:
                if len(least) == least.maxlen:
                    least.popleft()
                if least:
                    slopes[device] = _slope(least, int(parts), hours)
                least.append((given.at, share))
            elif share < least[-1][1]:
                least[-1] = least[-1][0], share
        return {device: slopes[device] for device in used if device in slopes}

    return measure


def _slope(least: Sequence[tuple[float, float]], parts: int, hours: float) -> float:
    """Return the slope in percent an hour; 0 where the use does not grow steadily, or would not be full within these hours."""
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
