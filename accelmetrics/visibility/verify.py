"""Whether the numbers are right: what is read here, held against what a second source says of the same machine.

A backend's references (:class:`~accelmetrics.backends.contract.Reference`) share no code with the backend. Where a backend can read the
same devices from several sources, those that it does not use are references too, each read by a sampler in a process of its own.

Each round asks every reference before and after a reading. A value of now agrees when it lies between what the reference said from
``kept`` seconds before the reading until after it, widened by what either side rounds away. What moves may be missed once, so a value
differs when it lies outside three times in a row. A counter that began elsewhere is compared by what it gained since the first round, a
rate or a mean by its mean over all rounds.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from accelmetrics.backends.contract import Backend, Number, ReadOptions, Reference, Said
from accelmetrics.backends.guard import Outcome, guarded
from accelmetrics.backends.registry import BackendChoice, pinned, select
from accelmetrics.sampling.options import DEFAULT_OPEN_TIMEOUT, DEFAULT_TIMEOUT, Choice, checked
from accelmetrics.sampling.sampler import Sampler
from accelmetrics.sampling.threads import Flag
from accelmetrics.schemas import catalogue
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable
from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot, pci_address
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.selection import ALL, MetricChoice
from accelmetrics.schemas.snapshot import Snapshot, plain

AGREES, DIFFERS, NO_REFERENCE = "agrees", "differs", "no_reference"
DEVICES = ".devices"
"""Behind the name of a backend, the key of how many devices it has."""
INTERVAL = 0.5
"""Seconds from one round to the next."""
LEAST = 3
"""Rounds, and answers of a reference: two that are around a reading, and one more."""
LONGEST_WAIT = 20.0
"""Seconds after the span for which a reference that is read in the background is waited for to have so many answers."""
OUTSIDE = 3
"""How many times in a row a value lies outside before it differs."""
PATIENCE = 2.0
"""Seconds more than sources may take to open, within which a reference answers; one that does not is not asked again."""
REMEMBERED = 15.0
"""Seconds for which is remembered what a reference said: longer than any value is kept."""
PASSING = frozenset({Reason.NEEDS_INTERVAL, Reason.TIMED_OUT, Reason.STALE, Reason.SUSPENDED, Reason.NOT_IN_USE})
"""Reasons of missing values that are no difference: another reading has the value, or the device is at rest."""
TOLERANCES: Mapping[str, tuple[float, float]] = {
    "%": (1.0, 0.0),  # drivers answer in whole percents
    "Cel": (1.0, 0.0),  # and in whole degrees
    "MHz": (15.0, 0.0),  # the step of NVIDIA's clocks
    "W": (0.5, 0.02),  # power moves between two answers
    "J": (1.0, 0.05),  # energy is counted in steps of some milliseconds' power
    "By/s": (0.0, 0.05),
    "s": (0.01, 0.01),
    "1": (0.0, 0.0),  # states and counts are exact
}
"""By unit, how far outside a value may lie, and again as a share of it. Of other units it is the share of ``USUAL``."""
USUAL = (0.0, 0.01)
ROUNDED = {"W": 1.0, "By": 2.0**20, "J": 1.0}
"""By unit, what vendors' commands round away: they print whole watts and mebibytes."""


class Comparison(NamedTuple):
    """One value beside what one reference says of it.

    Attributes:
        key: The metric's key.
        unit: Its unit.
        result: ``agrees``, ``differs`` or ``no_reference``.
        ours: The value, or its gain or mean over the span; None where it is missing here.
        reference: Which reference; empty where there is none.
        low: The least that the reference said around it.
        high: The most.
        detail: Why there is no reference, or no value here; what is compared where that is no value of now.
        compared: How many times they were compared.
        agreed: How many times the value lay within.
    """

    key: str
    unit: str
    result: str
    ours: Number | None = None
    reference: str = ""
    low: float | None = None
    high: float | None = None
    detail: str = ""
    compared: int = 0
    agreed: int = 0


class ReferenceStatus(NamedTuple):
    """One reference and how it fared.

    Attributes:
        backend: The backend whose numbers it has.
        name: What was asked.
        answers: How often it answered.
        problem: Why it did not answer the last time; empty where it did.
    """

    backend: str
    name: str
    answers: int
    problem: str


class Verification(NamedTuple):
    """What was compared, and what came of it.

    Attributes:
        hostname: The machine's name.
        timestamp: When it was done (RFC 3339, UTC).
        seconds: How long values were compared.
        references: Who was asked.
        comparisons: By value and reference; a value without one has one entry.
    """

    hostname: str
    timestamp: str
    seconds: float
    references: tuple[ReferenceStatus, ...]
    comparisons: tuple[Comparison, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many values agree with every reference, differ from one, and have none."""
        worst: dict[str, str] = {}
        for one in self.comparisons:
            worst[one.key] = DIFFERS if DIFFERS in (one.result, worst.get(one.key)) else one.result
        return {result: sum(found == result for found in worst.values()) for result in (AGREES, DIFFERS, NO_REFERENCE)}

    def to_dict(self) -> dict[str, Any]:
        """Return the whole in new plain containers, ready for ``json``."""
        return {**plain(self), "counts": self.counts}


class Pair:
    """One of our values beside what one reference says of it. Pure: it reads no device and no clock.

    Args:
        metric: The value's row in the catalogue.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._how = Said(0)
        self._said: deque[tuple[float, float, float]] = deque()  # when asking began and ended, and the answer
        # Ours that the reference has not answered after: since when it may be, when reading began and ended, and the value.
        self._waiting: list[tuple[float, float, float, Number | Unavailable]] = []
        self._base: tuple[Number, float, float] | None = None
        self._shown: tuple[Number, float, float] | None = None
        self._missing = ""
        self._row = self._longest_row = self._compared = self._agreed = 0
        self._ours, self._theirs = _Mean(), _Mean()
        self._first_said: tuple[float, float] | None = None

    @property
    def _is_mean(self) -> bool:
        """Whether means over the whole span are compared."""
        return self._how.over == "mean" or (self._how.over == "counter" and self._metric.kind != "counter")

    def hear(self, said: Said, began: float, ended: float) -> None:
        """Take what the reference said, and when it was asked."""
        if said.age:
            began = ended = ended - said.age
        self._how = said
        self._said.append((began, ended, said.value))
        self._first_said = self._first_said or (ended, said.value)
        self._theirs.add(said.value, ended)
        self._waiting = [seen for seen in self._waiting if not self._judged(*seen)]
        while len(self._said) > 1 and self._said[1][1] < ended - REMEMBERED:
            self._said.popleft()

    def see(self, value: Number | Unavailable, began: float, ended: float, age: float = 0.0) -> None:
        """Take our value, or why there is none, when it was read, and how old it was."""
        if not isinstance(value, Unavailable):
            self._ours.add(value, ended)
        if not isinstance(value, Unavailable) or value.reason not in PASSING:
            self._waiting.append((began - age - self._how.kept, began, ended, value))

    def _judged(self, since: float, began: float, ended: float, value: Number | Unavailable) -> bool:
        """Compare one value, unless the reference has not answered since. Returns: whether it did."""
        after = next((place for place, said in enumerate(self._said) if said[0] >= ended), None)
        if after is None:
            return False
        before = [place for place, said in enumerate(self._said) if said[1] <= began]
        if before and isinstance(value, Unavailable):
            self._missing = ": ".join(filter(None, value))
            self._count(False)
        elif before and not isinstance(value, Unavailable) and not self._is_mean:
            first = max((place for place in before if self._said[place][1] <= since), default=0)
            around = [self._said[place][2] for place in range(first, after + 1)]
            self._compare(value, min(around), max(around))
        return True

    def _compare(self, value: Number, low: float, high: float) -> None:
        if self._how.over == "counter":
            if self._base is None:
                self._base = value, low, high
                return
            value, low, high = value - self._base[0], max(0.0, low - self._base[2]), high - self._base[1]
        inside = low - self._slack(low) <= value <= high + self._slack(high)
        if not inside or self._longest_row < OUTSIDE:  # once it differs, what differed is shown
            self._shown = value, low, high
        self._missing = ""
        self._count(inside)

    def _slack(self, value: float) -> float:
        absolute, share = TOLERANCES.get(self._metric.unit, USUAL)
        return absolute + self._how.step + share * abs(value)

    def _count(self, inside: bool) -> None:
        self._compared += 1
        self._agreed += inside
        self._row = 0 if inside else self._row + 1
        self._longest_row = max(self._longest_row, self._row)

    def result(self, key: str, reference: str) -> Comparison:
        """Return what came of all rounds."""
        unit, detail = self._metric.unit, self._missing
        if self._is_mean and not self._missing:
            self._compare_means()
            detail = f"mean of {self._ours.seconds:.1f} s" if self._compared else "no two readings to take a mean of"
        elif self._how.over and not self._missing:
            detail = "gain over the span" if self._compared else "no two readings to take a difference of"
        if not self._compared:
            return Comparison(
                key, unit, NO_REFERENCE, self._ours.last, detail=detail or f"{reference} has not answered before and after it"
            )
        result = DIFFERS if self._longest_row >= OUTSIDE or not self._agreed else AGREES
        ours, low, high = self._shown or (None, *(2 * [self._said[-1][2]]))
        return Comparison(key, unit, result, ours, reference, low, high, detail, self._compared, self._agreed)

    def _compare_means(self) -> None:
        """Compare two means, each over intervals of its own: what one of ours that may be at either end amounts to is no difference."""
        if not self._ours.seconds or not self._theirs.seconds or self._first_said is None:
            return
        theirs = self._theirs.mean
        if self._how.over == "counter":
            (began, first), (_, ended, last) = self._first_said, self._said[-1]
            theirs = (last - first) / (ended - began)
        ours, edge = self._ours.mean, self._ours.largest * self._how.kept / self._ours.seconds
        self._shown = ours, theirs, theirs
        self._count(abs(ours - theirs) <= self._slack(theirs) + edge)


class _Mean:
    """Values that hold from one reading to the next, and their mean over the time."""

    def __init__(self) -> None:
        self.seconds = self.largest = self._sum = 0.0
        self.last: Number | None = None
        self._then = 0.0

    def add(self, value: Number, now: float) -> None:
        """Take a value that was read now, and is about the time since the last one."""
        if self.last is not None:
            self.seconds += now - self._then
            self._sum += value * (now - self._then)
            self.largest = max(self.largest, value)
        self.last, self._then = value, now

    @property
    def mean(self) -> float:
        """The mean."""
        return self._sum / self.seconds


class OtherSource:
    """Another source of a backend, read by a sampler of its own in a process of its own: a vendor's library is loaded once in ours.

    Args:
        backend: The backend.
        source: The source.
        joined: A source that is read here beside this one, and before it: what that one lacks is this one's here too, and no reference.
        options: Those of a sampler.

    Attributes:
        sequence: The number of its latest reading, which is served again where it is read in the background.
    """

    def __init__(self, backend: Any, source: str, joined: str, options: Mapping[str, Any]) -> None:
        self.name = source
        self.sequence = 0
        self._sampler = Sampler([backend.pinned(source)], isolation="process", **options)
        self._joined = Sampler([backend.pinned(joined)], isolation="process", **options) if joined else None

    def read(self, slots: Sequence[DeviceSlot]) -> Mapping[str, Said | str]:
        """Read it, under the keys that devices have here."""
        snapshot = self._sampler.sample()
        status = snapshot.backends[0]
        if not status.source:
            raise SourceError(status.reason or Reason.DRIVER_UNAVAILABLE, status.detail)
        self.sequence = status.sequence
        read_before = self._joined.sample() if self._joined is not None else None
        found: dict[str, Said | str] = {f"{status.name}{DEVICES}": Said(_whole_devices(snapshot, status.name))}
        of_devices = tuple(f"{slot.key}." for slot in snapshot.identities)
        found |= {key: _said(key, value, status.age_seconds) for key, value in snapshot.metrics.items() if not key.startswith(of_devices)}
        for slot in slots:
            device = _same(slot.identity, snapshot)
            if device is None:
                continue
            here = None if read_before is None else _same(slot.identity, read_before)
            only = None if read_before is None or here is None else read_before.values_of(here.key)
            for name, value in snapshot.values_of(device.key).items():
                key = f"{slot.key}.{name}"
                read_here = only is not None and name not in only
                found[key] = "the value is read from it here" if read_here else _said(key, value, status.age_seconds)
            found |= {f"{slot.key}.{name}": ": ".join(filter(None, why)) for name, why in snapshot.reasons_of(device.key).items()}
        return found

    def close(self) -> None:
        """End its process."""
        self._sampler.close()
        if self._joined is not None:
            self._joined.close()


def _said(key: str, value: Number, age: float | None) -> Said:
    """Return what another source says: energy by what it gains, since sources count in steps of their own."""
    row = catalogue.match(key)
    unit = "1" if row is None else row.unit
    return Said(value, ROUNDED.get(unit, 0.0), "counter" if unit == "J" else "", age=age or 0.0)


def _same(wanted: DeviceIdentity, snapshot: Snapshot) -> DeviceSlot | None:
    """Find a device in another source's reading: by its address, else by UUID, else by its number.

    A partition has its number too, and so has a part of a card, whose address the other parts have.
    """
    addresses = Counter(pci_address(slot.identity.pci_bus_id) for slot in snapshot.identities if not slot.identity.parent)
    for slot in snapshot.identities:
        other = slot.identity
        if bool(other.parent) != bool(wanted.parent) or (other.parent and other.vendor_index != wanted.vendor_index):
            continue
        if wanted.pci_bus_id and other.pci_bus_id:
            address = pci_address(wanted.pci_bus_id)
            same = address == pci_address(other.pci_bus_id) and (addresses[address] < 2 or wanted.vendor_index == other.vendor_index)
        elif wanted.uuid and other.uuid:
            same = wanted.uuid == other.uuid
        else:
            same = wanted.vendor_index == other.vendor_index
        if same:
            return slot
    return None


def _whole_devices(snapshot: Snapshot, backend: str) -> int:
    """Count the devices that a backend lists, partitions left out."""
    return sum(slot.backend == backend and not slot.identity.parent for slot in snapshot.identities)


class _Asked:
    """A reference, asked on a thread of its own: one that hangs is left alone.

    Args:
        backend: As below.
        reference: The reference.
        problem: Why it is not to be asked at all.

    Attributes:
        backend: The name of the backend whose numbers it has.
        name: What is asked.
        answers: How often it answered; one that is served twice counts once.
        problem: Why it did not the last time.
        pairs: By key, our value beside its.
        words: By key, why it says nothing.
    """

    def __init__(self, backend: str, reference: Reference, problem: str = "") -> None:
        self.backend, self.name = backend, reference.name
        self.answers, self.problem, self._number = 0, problem, 0
        self.pairs: dict[str, Pair] = {}
        self.words: dict[str, str] = {}
        self._reference = reference
        self._left_alone = bool(problem)
        self._questions: SimpleQueue[Sequence[DeviceSlot] | None] = SimpleQueue()
        self._answers: SimpleQueue[Outcome[Mapping[str, Said | str]]] = SimpleQueue()
        self._thread = threading.Thread(target=self._answer, name=f"accelmetrics-{reference.name}", daemon=True)

    def _answer(self) -> None:
        while (slots := self._questions.get()) is not None:
            self._answers.put(guarded(self._reference.read, slots))
        guarded(self._reference.close)

    def ask(self, slots: Sequence[DeviceSlot], patience: float) -> None:
        """Ask it once, and note what it says."""
        if self._left_alone:
            return
        began = time.monotonic()
        if not self._thread.is_alive():
            self._thread.start()
        self._questions.put([slot for slot in slots if slot.backend == self.backend])
        try:
            outcome = self._answers.get(timeout=patience)
        except Empty:
            self._left_alone, self.problem = True, f"it has not answered in {patience:g} s, and is not asked again"
            return
        ended = time.monotonic()
        self.problem = "" if outcome.failure is None else ": ".join(filter(None, outcome.failure))
        number = getattr(self._reference, "sequence", self.answers + 1)
        self.answers += outcome.failure is None and number != self._number
        self._number = number
        for key, said in (outcome.value or {}).items():
            if isinstance(said, str):
                self.words[key] = said
            elif math.isfinite(said.value):
                row = catalogue.match(key) or Metric(key, "1", "gauge", "")
                self.pairs.setdefault(key, Pair(row)).hear(said, began, ended)

    def passes_over(self, value: Number | Unavailable) -> bool:
        """Tell whether a value says nothing about agreement: sources of one backend need not have the same metrics."""
        return isinstance(self._reference, OtherSource) and isinstance(value, Unavailable) and value.reason == Reason.NOT_SUPPORTED

    def close(self) -> None:
        """Give it back, unless it hangs."""
        self._questions.put(None)
        if not self._left_alone and self._thread.is_alive():
            self._thread.join(PATIENCE)


def verify(  # noqa: PLR0913 - every option is a keyword with a default
    seconds: float,
    *,
    stop: Flag | None = None,
    backends: BackendChoice | None = None,
    metrics: MetricChoice = ALL,
    gpus: Sequence[Choice] | None = None,
    pid: int | None = None,
    disk_paths: Sequence[str] = ("/",),
    timeout: float = DEFAULT_TIMEOUT,
    open_timeout: float = DEFAULT_OPEN_TIMEOUT,
    amd_source: str | None = None,
) -> Verification:
    """Compare everything that is read with what other sources say of it.

    Args:
        seconds: For how long; rates and counters are compared over this span.
        stop: Ends it earlier when it is set.
        backends: As in :class:`~accelmetrics.Sampler`, as are the following.
        metrics: The metrics to compare.
        gpus: The devices.
        pid: The process whose use of the host is compared.
        disk_paths: Mount points.
        timeout: Seconds within which a reading is answered.
        open_timeout: Seconds to wait for sources that are still opening.
        amd_source: The one source to read AMD's GPUs from: it is held against the others.

    Raises:
        InvalidOptionError: An option that cannot be used.
        UnknownNameError: A backend, a source, a metric or a device that does not exist.
    """
    stop = stop or Flag()
    common: dict[str, Any] = {"metrics": metrics, "timeout": timeout, "open_timeout": open_timeout}
    options = checked(pid=pid, disk_paths=disk_paths, **common).read_options()
    with Sampler(backends, gpus=gpus, pid=pid, disk_paths=disk_paths, amd_source=amd_source, **common) as sampler:
        snapshot = sampler.sample()
        asked = _references(pinned(select(backends), {"amd": amd_source}), snapshot, options, common)
        sampler.close()  # it opens anew: what is read once, or seldom, is then read after the references were asked for the first time
        known: dict[str, Number | Unavailable] = {}
        began, rounds = time.monotonic(), 0
        span = seconds
        while rounds == 0 or not (stop.is_set() or (rounds >= LEAST and time.monotonic() - began >= span)):
            snapshot = _round(sampler, snapshot.identities, asked, open_timeout + PATIENCE, known)
            rounds += 1
            stop.wait(INTERVAL)
            # Longer while a reference has not answered often enough.
            span = seconds + LONGEST_WAIT * any(one.answers < LEAST and not one.problem for one in asked)
        lasted = time.monotonic() - began
        for one in asked:
            one.close()
    known = {key: known[key] for key in (*snapshot.metrics, *known) if gpus is None or not key.endswith(DEVICES)}  # they count all devices
    statuses = tuple(ReferenceStatus(one.backend, one.name, one.answers, one.problem) for one in asked)
    return Verification(snapshot.hostname, snapshot.timestamp, lasted, statuses, tuple(_comparisons(known, asked)))


def _references(backends: Sequence[Backend], snapshot: Snapshot, options: ReadOptions, common: Mapping[str, Any]) -> list[_Asked]:
    """Return the references of the backends that are here: their own, and those sources that they do not read."""
    asked = []
    for backend, status in zip(backends, snapshot.backends, strict=True):
        if status.status == "absent":
            continue
        found: list[Reference] = list(getattr(backend, "references", lambda _: ())(options))
        read = status.source.split("+")
        others = [source for source in getattr(backend, "sources", ()) if status.source and source != read[0]]
        found += [OtherSource(backend, source, read[0] if source in read else "", common) for source in others]
        slots = [slot for slot in snapshot.identities if slot.backend == backend.name]
        asleep = any(why.reason == Reason.SUSPENDED for slot in slots for why in snapshot.reasons_of(slot.key).values())
        asked += [
            _Asked(backend.name, reference, "a device is powered down, and asking would wake it" if asleep else "") for reference in found
        ]
    return asked


def _round(
    sampler: Sampler, slots: Sequence[DeviceSlot], asked: Sequence[_Asked], patience: float, known: dict[str, Number | Unavailable]
) -> Snapshot:
    """Take a reading between two answers of each reference, and add it to what is known."""
    for one in asked:
        one.ask(slots, patience)
    began = time.monotonic()
    snapshot = sampler.sample()
    ended = time.monotonic()
    reasons = ((slot.backend, why.reason) for slot in snapshot.identities for why in snapshot.reasons_of(slot.key).values())
    lost = {backend for backend, reason in reasons if reason == Reason.DEVICE_LOST}  # a driver may list such a device or not
    devices = {f"{one.backend}{DEVICES}": _whole_devices(snapshot, one.backend) for one in asked if one.backend not in lost}
    now: dict[str, Number | Unavailable] = {**snapshot.unavailable, **snapshot.metrics, **devices}
    known |= now
    ages = {status.name: status.age_seconds or 0.0 for status in snapshot.backends}
    for one in asked:
        for key, pair in one.pairs.items():
            if key in now and not one.passes_over(now[key]):
                pair.see(now[key], began, ended, ages[one.backend])
    for one in reversed(asked):
        one.ask(slots, patience)
    return snapshot


def _comparisons(known: Mapping[str, Number | Unavailable], asked: Sequence[_Asked]) -> Iterator[Comparison]:
    """Give what came of each value, by reference; once for a value that has none."""
    for key, value in known.items():
        found = [one.pairs[key].result(key, one.name) for one in asked if key in one.pairs]
        compared = [comparison for comparison in found if comparison.compared]
        yield from compared
        if not (compared or isinstance(value, Unavailable) or key.endswith(DEVICES)):
            row = catalogue.match(key)
            words = [f"{one.name}: {one.words[key]}" for one in asked if key in one.words]
            detail = "; ".join(words or dict.fromkeys(one.detail for one in found))
            yield Comparison(key, "1" if row is None else row.unit, NO_REFERENCE, value, detail=detail)
