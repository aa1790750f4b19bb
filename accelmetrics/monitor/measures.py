"""What rules measure on devices: one number of each at every reading that is judged.

A measure is called with a :class:`RuleInput` and gives numbers by what they are about, a device's key mostly; what has none at this
reading (it was not read, or not anew) is absent. One that looks back keeps what it needs itself, in bounded memory.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, pairwise

from accelmetrics.schemas.errors import IN_ORDER, Reason
from accelmetrics.schemas.fabric import RECOVERIES, fabric_faults
from accelmetrics.schemas.history import REPEATED, HistoryRow, Layout, device_columns
from accelmetrics.schemas.metric import LINK, VITAL
from accelmetrics.schemas.record import HoldersOf, Step
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
from accelmetrics.schemas.xid import meaning

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
    """

    def __init__(self, labels: Mapping[str, str], attribution: HoldersOf | None = None) -> None:
        self.at = 0.0
        self.snapshot = Snapshot(0, "", {})
        self.steps: Sequence[Step] = ()
        self.labels = labels
        self._attribution = attribution
        self.joined = False
        self.layout: Layout = ()
        self._marks: tuple[object, ...] = ()
        self._silent: dict[str, frozenset[str]] = {}
        self._row: array[float] = array("d")
        self._columns: Mapping[str, Mapping[str, int]] = {}
        self._bound: dict[Names, list[tuple[str, int]]] = {}
        self._numbered: dict[tuple[str, str], list[tuple[str, str, int]]] = {}
        self._values: dict[Names, Values] = {}

    def take(self, snapshot: Snapshot, row: HistoryRow, steps: Sequence[Step], joined: bool) -> None:
        """Go on to another reading."""
        self.at, self.snapshot, self.steps, self.joined = row.at, snapshot, steps, joined
        self._row = row.values
        self._values.clear()
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

    def has(self, device: str, names: Names) -> bool:
        """Return whether a device gives one of these metrics, anew or not."""
        whole = [name for name in names if LINK not in name]
        linked = [name.partition(LINK) for name in names if LINK in name]
        return any(device in self._columns.get(name, ()) for name in whole) or any(
            device == one for before, _, behind in linked for one, _, _ in self.numbered(before, behind)
        )

    @property
    def silent(self) -> Mapping[str, frozenset[str]]:
        """The whole devices that are listed and give nothing, with the reasons; those whose metrics are not read have none."""
        snapshot = self.snapshot
        marks = self.layout, snapshot.identities, snapshot.unavailable
        if marks != self._marks:
            self._marks = marks
            self._silent = {
                slot.key: frozenset(str(why.reason) for why in snapshot.reasons_of(slot.key).values())
                for slot in snapshot.identities
                if not (slot.identity.parent or self.has(slot.key, ANSWERS) or has_values(snapshot, slot.key))
            }
        return self._silent

    def values(self, names: Names) -> Values:
        """Return by device its value under the first of these names that it gives; not one that was served again."""
        found = self._values.get(names)
        if found is None:
            bound = self._bound.get(names)
            if bound is None:
                columns: dict[str, int] = {}
                for name in reversed(names):
                    columns.update(self._columns.get(name, ()))
                bound = self._bound[names] = list(columns.items())
            row = self._row
            found = self._values[names] = {device: value for device, column in bound if (value := row[column]) != REPEATED}
        return found

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
        bound = self._numbered.get((before, behind))
        if bound is None:
            bound = self._numbered[before, behind] = [
                (device, name[len(before) : -len(behind)], column)
                for name, columns in self._columns.items()
                if name.startswith(before) and name.endswith(behind)
                for device, column in columns.items()
            ]
        row = self._row
        return [(device, number, value) for device, number, column in bound if (value := row[column]) != REPEATED]


class Latest:
    """Gives a metric as it is read.

    Args:
        metric: Its names, of which each device's first counts.
    """

    def __init__(self, metric: Names) -> None:
        self._names = metric

    def __call__(self, given: RuleInput) -> Values:
        return given.values(self._names)


class Margin:
    """Gives how far a device is below the temperature at which it slows itself down, in kelvins.

    The margin that a driver gives counts first: it is to the nearest of several limits.
    """

    def __call__(self, given: RuleInput) -> Values:
        temperatures, limits = given.values(TEMPERATURE), given.values(("tempLimit.slowdown",))
        computed = {device: limit - temperatures[device] for device, limit in limits.items() if device in temperatures}
        return {**computed, **given.values(("tempMargin",))}


class ThrottledShare:
    """Gives the share of a window during which heat or the power supply held the clocks of a loaded device down, in percent.

    Args:
        span: Seconds of the window; shares are known once four fifths of it are.
        load: Utilisation above which a device is loaded, in percent.
    """

    PARTS = 30

    def __init__(self, span: float, load: float) -> None:
        self._span, self._load = span, load
        self._last = 0.0
        self._windows: dict[str, WindowSums] = {}

    def __call__(self, given: RuleInput) -> Values:
        elapsed = given.at - self._last
        joined = given.joined and elapsed <= self._span / 5
        self._last = given.at
        reasons = [given.values((name,)) for name in SLOWED]
        shares: dict[str, float] = {}
        for device, load in given.values(UTILIZATION).items():
            told = [values[device] for values in reasons if device in values]
            if not told:
                continue
            window = self._windows.get(device) or self._windows.setdefault(device, WindowSums())
            slowed = elapsed if load > self._load and any(told) else 0.0
            window.add(given.at, *((slowed, elapsed) if joined else (0.0, 0.0)), self._span / self.PARTS, self._span)
            if window.whole >= 0.8 * self._span:
                shares[device] = 100 * window.part / window.whole
        return shares


class WindowSums:
    """Two sums over the last seconds, of which one is a part of the other.

    Attributes:
        part: The one.
        whole: The other.
    """

    def __init__(self) -> None:
        self.part = self.whole = 0.0
        # Of each piece since when, and the sums since then, one behind the other: a sixth of the memory of as many objects.
        self._pieces = array("d")

    def add(self, at: float, part: float, whole: float, piece: float, span: float) -> None:
        """Add to both, and take away what is older than ``span``; pieces of so many seconds are kept together."""
        pieces = self._pieces
        if not pieces or at - pieces[-3] >= piece:
            pieces.extend((at, 0.0, 0.0))
        pieces[-2] += part
        pieces[-1] += whole
        self.part += part
        self.whole += whole
        while at - pieces[0] > span:
            self.part = max(0.0, self.part - pieces[1])
            self.whole = max(0.0, self.whole - pieces[2])
            del pieces[:3]


class Recent:
    """Gives by how much counters rose of late. A counter that begins anew counts from 0.

    Args:
        counters: Their names.
        span: For how many seconds a rise counts.
        standing: Whether what a counter holds at its first reading counts as a rise.
        overlapping: Whether counters may count the same errors: then the one that rose most is taken, instead of their sum.
    """

    def __init__(self, counters: Names, span: float, standing: bool, overlapping: bool = False) -> None:
        self._counters, self._span, self._standing, self._overlapping = counters, span, standing, overlapping
        self._last: dict[tuple[str, str], float] = {}
        self._rises: dict[str, deque[tuple[float, float, str]]] = {}  # by device: when, by how much, of which counter

    def __call__(self, given: RuleInput) -> Values:
        recent: dict[str, float] = {}
        for device, counter, value in self._read(given):
            before = self._last.get((device, counter))
            self._last[device, counter] = value
            recent.setdefault(device, 0.0)
            since = value - before if before is not None and value >= before else value if before is not None or self._standing else 0.0
            if since > 0:
                self._rises.setdefault(device, deque(maxlen=1024)).append((given.at, since, counter))
        for device, rises in self._rises.items():
            while rises and given.at - rises[0][0] > self._span:
                rises.popleft()
            by_counter: dict[str, float] = {}
            for _, rise, counter in rises:
                by_counter[counter] = by_counter.get(counter, 0.0) + rise
            recent[device] = max(by_counter.values(), default=0.0) if self._overlapping else sum(by_counter.values())
        return recent

    def _read(self, given: RuleInput) -> Iterable[tuple[str, str, float]]:
        return [(device, name, value) for name in self._counters for device, value in given.values((name,)).items()]

    def words(self, device: str) -> str:
        """Name the counter that rose last."""
        rises = self._rises.get(device)
        return rises[-1][2] if rises else ""


class RecentXids(Recent):
    """Gives how many Xid errors of some codes a device reported of late.

    Args:
        codes: Which codes.
        others: Whether all codes but these are meant.
        span: For how many seconds one counts.
    """

    def __init__(self, codes: Sequence[int], others: bool, span: float) -> None:
        super().__init__((), span, standing=True)
        self._codes, self._others = frozenset(map(str, codes)), others

    def __call__(self, given: RuleInput) -> Values:
        return {**dict.fromkeys(given.values(("xidErrors",)), 0.0), **super().__call__(given)}

    def _read(self, given: RuleInput) -> Iterable[tuple[str, str, float]]:
        return [one for one in given.numbered("xid.", ".errors") if (one[1] in self._codes) != self._others]

    def words(self, device: str) -> str:
        """Say what the code means that came last."""
        code = super().words(device)
        return f"{code}: {meaning(int(code))}" if code else ""


class FabricFaults:
    """Gives how many things keep a device from using the fabric of NVLink switches."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}

    def __call__(self, given: RuleInput) -> Values:
        found: dict[str, dict[str, float]] = {}
        for name in FABRIC_HEALTH:
            for device, value in given.values((name,)).items():
                found.setdefault(device, {})[name] = value
        faults = {device: fabric_faults(values) for device, values in found.items()}
        self._words = {device: ", ".join(words) for device, words in faults.items()}
        return {device: len(words) for device, words in faults.items()}

    def words(self, device: str) -> str:
        """Say what is wrong."""
        return self._words.get(device, "")


class CounterRate:
    """Gives how fast a counter rises, per second.

    Args:
        counter: Its name.
    """

    def __init__(self, counter: str) -> None:
        self._names = (counter,)
        self._last: dict[str, tuple[float, float]] = {}

    def __call__(self, given: RuleInput) -> Values:
        rates: dict[str, float] = {}
        for device, value in given.values(self._names).items():
            at, before = self._last.get(device, (given.at, value))
            self._last[device] = given.at, value
            if given.at > at and value >= before and given.joined:
                rates[device] = (value - before) / (given.at - at)
        return rates


class LinksDown:
    """Gives how many NVLinks are down that were up before, or that are up on a device of the same product.

    A device of which no link was ever up has none that is missed: its bridge may not be there.
    """

    def __init__(self) -> None:
        self._most: dict[str, int] = {}

    def __call__(self, given: RuleInput) -> Values:
        up: dict[str, int] = {}
        for device, _, state in given.numbered("nvlink.", ".state"):
            up[device] = up.get(device, 0) + (state > 0)
        if not up:
            return up
        products = {slot.key: slot.identity.name for slot in given.snapshot.identities}
        of_product: dict[str, int] = {}
        for device, count in up.items():
            most = self._most[device] = max(count, self._most.get(device, 0))
            product = products.get(device, "")
            of_product[product] = max(most, of_product.get(product, 0))
        return {device: of_product[products.get(device, "")] - count if self._most[device] else 0 for device, count in up.items()}


class LostDevices:
    """Gives for how many readings a device has been lost; one that was lost is so until it gives something.

    A driver that is loaded again, or a reset, says nothing of it meanwhile.
    """

    def __init__(self) -> None:
        self._readings: dict[str, float] = {}
        self._words: dict[str, str] = {}

    def __call__(self, given: RuleInput) -> Values:
        silent, readings = given.silent, self._readings
        for slot in given.snapshot.identities:
            device = slot.key
            reasons = silent.get(device)
            if reasons == LOST:
                readings[device] = readings.get(device, 0.0) + 1
                self._words[device] = in_words(next(iter(given.snapshot.reasons_of(device).values())).detail)
            elif reasons is None and not slot.identity.parent:
                readings[device] = 0.0
        return readings.copy()

    def words(self, device: str) -> str:
        """Say what the driver says of it."""
        return self._words.get(device, "")


class MissingDevices:
    """Gives 1 for a device that gives nothing though it is not lost, or a source that is silent though its hardware is there; else 0."""

    def __init__(self) -> None:
        self._lost = LostDevices()
        self._known: dict[str, str] = {}  # whole devices that were ever listed, and their sources
        self._silent: set[str] = set()  # sources that were silent before they listed any device
        self._words: dict[str, str] = {}

    def __call__(self, given: RuleInput) -> Values:
        snapshot = given.snapshot
        present = {slot.key: slot.backend for slot in snapshot.identities if not slot.identity.parent}
        self._known.update(present)
        lost = self._lost(given)
        missing = {device: 0.0 if lost.get(device) else self._is_missing(device, device in present, given) for device in self._known}
        listed = set(self._known.values())
        for status in snapshot.backends:
            if status.name in self._silent or (status.silent and status.name not in listed):
                self._silent.add(status.name)
                missing[status.name] = status.silent and status.name not in listed
                self._words[status.name] = status.detail
        return missing

    def _is_missing(self, device: str, listed: bool, given: RuleInput) -> bool:
        reasons = given.silent.get(device, frozenset())
        if reasons or not listed:
            self._words[device] = ", ".join(sorted(reasons)) if listed else "it is not listed any more"
        return not listed or not reasons <= IN_ORDER  # without reasons it gives something, or none of its metrics is read

    def words(self, key: str) -> str:
        """Say why it gives nothing."""
        return self._words.get(key, "")


class RecoveryNeeded:
    """Gives 1 for a device whose driver asks for a reset or more, or answers that one is required before it gives a value; else 0."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}

    def __call__(self, given: RuleInput) -> Values:
        actions, missing = given.values(("recoveryAction",)), given.snapshot.unavailable
        required = {key for key, why in missing.items() if why.reason == Reason.RESET_REQUIRED}
        found: dict[str, float] = {}
        for slot in given.snapshot.identities:
            action = RECOVERY.get(int(actions.get(slot.key, 0)), "")
            refused = bool(required) and any(key.startswith(f"{slot.key}.") for key in required)
            if action or refused:
                self._words[slot.key] = action or "a reset is required before it gives all values"
            if slot.key in actions or refused or given.has(slot.key, ANSWERS):
                found[slot.key] = float(bool(action) or refused)
        return found

    def words(self, device: str) -> str:
        """Say what is asked for."""
        return self._words.get(device, "")


class IdleHeld:
    """Gives the utilisation of devices that a job, a pod or a program holds; 100 for those that are free.

    Args:
        held_bytes: Device memory in use from which on a device counts as held, by any program.
    """

    def __init__(self, held_bytes: float) -> None:
        self._held = held_bytes

    def __call__(self, given: RuleInput) -> Values:
        loads, used = given.values(UTILIZATION), given.values(MEMORY_USED)
        if all(load > 5 for load in loads.values()):
            return loads
        shared = {slot.key for slot in given.snapshot.identities if slot.identity.unified}
        full = {device for device, amount in used.items() if amount >= self._held and device not in shared}
        held = given.held() | full
        return {device: load if device in held else 100.0 for device, load in loads.items()}


class RelativeClock:
    """Gives the clock of a fully loaded device in percent of the median of its peers: same product, same power limit, as loaded.

    Args:
        load: Utilisation above which a device is fully loaded, in percent.
        least: Devices of which a median is taken at least.
    """

    def __init__(self, load: float, least: float) -> None:
        self._load, self._least = load, least

    def __call__(self, given: RuleInput) -> Values:
        loads, clocks, limits = given.values(UTILIZATION), given.values(("smClock",)), given.values(POWER_LIMIT)
        groups: dict[tuple[str, float], dict[str, float]] = {}
        for slot in given.snapshot.identities:
            device = slot.key
            if loads.get(device, 0.0) > self._load and device in clocks:
                groups.setdefault((slot.identity.name, limits.get(device, 0.0)), {})[device] = clocks[device]
        found: dict[str, float] = {}
        for peers in groups.values():
            usual = median(peers.values()) if len(peers) >= self._least else 0.0
            if usual > 0:
                found.update((device, 100 * clock / usual) for device, clock in peers.items())
        return found


class Unmoved:
    """Gives for how many seconds the energy counter of a device that draws power stands still; 0 while it moves.

    A reading without the counter begins anew: of the time in between nothing is known, such as while the device was lost.

    Args:
        watts: Power above which it must move.
        readings: Readings for which it must have stood still.
    """

    def __init__(self, watts: float, readings: float) -> None:
        self._watts, self._readings = watts, readings
        self._since: dict[str, tuple[float, float, int]] = {}  # by device: the counter, since when, readings since then

    def __call__(self, given: RuleInput) -> Values:
        if not given.joined:
            self._since.clear()
        for device in [device for device in self._since if not given.has(device, ("energyJoules",))]:
            del self._since[device]
        powers = given.values(POWER)
        found: dict[str, float] = {}
        for device, joules in given.values(("energyJoules",)).items():
            counter, since, readings = self._since.get(device, (joules, given.at, 0))
            if joules != counter or powers.get(device, 0.0) <= self._watts:
                counter, since, readings = joules, given.at, 0
            self._since[device] = counter, since, readings + 1
            found[device] = given.at - since if readings >= self._readings else 0.0
        return found


class Growth:
    """Gives how fast a device's memory fills, in percent of it per hour, where it would be full within a day; else 0.

    It is the Theil-Sen slope of the least use in each part of the window: what a program frees now and then does not count, nor does a
    single step: all parts but one must use more than the one before, and the rise be five times what any departs from it. PyTorch's
    own use counts where it is known, since its allocator gives nothing back.

    Args:
        span: Seconds of the window.
        parts: Parts of the window.
        hours: Within how many hours the memory would be full.
    """

    def __init__(self, span: float, parts: float, hours: float) -> None:
        self._part, self._parts, self._hours = span / parts, int(parts), hours
        self._least: dict[str, deque[tuple[float, float]]] = {}  # by device, of each part: when it began, and the least use in it
        self._slopes: dict[str, float] = {}

    def __call__(self, given: RuleInput) -> Values:
        if not given.joined:
            self._least.clear()
            self._slopes.clear()
        used = dict(given.values(MEMORY_PERCENT))
        totals = given.values(MEMORY_TOTAL)
        for device, allocated in given.values((f"{TORCH}memoryAllocatedBytes",)).items():
            if totals.get(device):
                used[device] = 100 * allocated / totals[device]
        for device, share in used.items():
            least = self._least.setdefault(device, deque(maxlen=self._parts + 1))
            if not least or given.at - least[-1][0] >= self._part:
                if len(least) == least.maxlen:
                    least.popleft()
                if least:
                    self._slopes[device] = self._slope(least)
                least.append((given.at, share))
            elif share < least[-1][1]:
                least[-1] = least[-1][0], share
        return {device: self._slopes[device] for device in used if device in self._slopes}

    def _slope(self, least: Sequence[tuple[float, float]]) -> float:
        if len(least) < self._parts:
            return 0.0
        rises = sum(after[1] > before[1] for before, after in pairwise(least))
        slope = median((after[1] - before[1]) / (after[0] - before[0]) for before, after in combinations(least, 2))
        level = median(share - slope * at for at, share in least)
        departure = max(abs(share - slope * at - level) for at, share in least)
        rise = slope * (least[-1][0] - least[0][0])
        if slope <= 0 or rises < len(least) - 2 or rise < 5 * departure or (100 - least[-1][1]) / (3600 * slope) > self._hours:
            return 0.0
        return 3600 * slope
