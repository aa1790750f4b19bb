"""``accelmetrics verify``: compare the readings of this package with other sources on the same machine.

A backend's references (:class:`~accelmetrics.backends.contract.Reference`) share no code with the backend. If a backend can read the same
devices from several sources, the unused sources are references too. A sampler in another process reads each of them.

Each round asks every reference before and after a reading. A momentary value agrees if it lies in the range of the reference's answers,
from ``kept`` seconds before the reading until the first answer after it. The range is widened by the rounding of both sides. A value that
changes quickly may lie outside once, so a value differs if it lies outside three times in a row. A counter may start at another number, so
its gain since the first round is compared. Of a rate or a mean, the mean over all rounds is compared.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from accelmetrics.backends.contract import Backend, Number, ReadOptions, Reference, ReferenceValue
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
"""Suffix of the key with a backend's number of devices: ``NAME.devices``."""
INTERVAL = 0.5
"""Seconds between two rounds."""
# The minimum of rounds, and of answers of a reference: one before and one after a reading, and one more.
LEAST = 3
LONGEST_WAIT = 20.0
"""Seconds beyond the span to wait until a reference that is read in the background has ``LEAST`` answers."""
OUTSIDE = 3
"""Consecutive rounds outside the range after which a value differs."""
PATIENCE = 2.0
"""Seconds to wait for a reference, in addition to the time that sources may take to open. A late one is not asked again."""
# Seconds for which answers of a reference are stored. No backend serves a value for longer.
REMEMBERED = 15.0
# Reasons of missing values that are no difference: another reading has the value, or the device is idle.
PASSING = frozenset({Reason.NEEDS_INTERVAL, Reason.TIMED_OUT, Reason.STALE, Reason.SUSPENDED, Reason.NOT_IN_USE})
TOLERANCES: Mapping[str, tuple[float, float]] = {
    "%": (1.0, 0.0),  # drivers answer in whole percents
    "Cel": (1.0, 0.0),  # and in whole degrees
    "MHz": (15.0, 0.0),  # the step of NVIDIA's clocks
    "W": (0.5, 0.02),  # power changes between two answers
    "J": (1.0, 0.05),  # a step of an energy counter is the power of some milliseconds
    "By/s": (0.0, 0.05),
    "s": (0.01, 0.01),
    "1": (0.0, 0.0),  # states and counts are exact
}
"""How far a value may lie outside the range, by unit: in the unit, and as a share of the value. Other units have ``USUAL``."""
USUAL = (0.0, 0.01)
# Resolution of another source, by unit. Vendors' commands print whole watts and mebibytes.
ROUNDED = {"W": 1.0, "By": 2.0**20, "J": 1.0}


class Comparison(NamedTuple):
    """The comparison of a value with one reference.

    Attributes:
        key: The metric's key.
        unit: Its unit.
        result: ``agrees``, ``differs`` or ``no_reference``.
        ours: The value, or its gain or mean over the span. None if this package has no value.
        reference: The name of the reference. Empty if there is none.
        low: The lowest answer of the reference around the value.
        high: The highest answer.
        detail: Why the reference or our value is missing, or that a gain or mean is compared.
        compared: Number of comparisons.
        agreed: Number of comparisons in which the value lay in the range.
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


class Verification(NamedTuple):
    """The result of :func:`verify`.

    Attributes:
        hostname: The machine's name.
        timestamp: Time of the last reading (RFC 3339, UTC).
        seconds: Duration of the comparison.
        references: The references, as dicts: ``backend`` that it verifies, ``name`` of the tool, library or source, number of
            ``answers``, and the ``problem`` for which the last call failed, else empty.
        comparisons: An entry for each value and reference. A value without a reference has one entry.
    """

    hostname: str
    timestamp: str
    seconds: float
    references: tuple[Mapping[str, Any], ...]
    comparisons: tuple[Comparison, ...]

    @property
    def counts(self) -> dict[str, int]:
        """Number of values that agree with all their references, that differ from at least one, and that have no reference."""
        worst: dict[str, str] = {}
        for one in self.comparisons:
            worst[one.key] = DIFFERS if DIFFERS in (one.result, worst.get(one.key)) else one.result
        return {result: sum(found == result for found in worst.values()) for result in (AGREES, DIFFERS, NO_REFERENCE)}

    def to_dict(self) -> dict[str, Any]:
        """Return the verification as new plain containers, ready for ``json``."""
        return {**plain(self), "counts": self.counts}


class Pair:
    """The running comparison of a value with one reference. It reads no device and no clock.

    Args:
        metric: The metric's row in the catalogue.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._latest = ReferenceValue(0)
        self._answers: deque[tuple[float, float, float]] = deque()  # when the call began and ended, and the answer
        # Our values that wait for the reference's next answer: the earliest time of the value, start and end of the reading, the value.
        self._waiting: list[tuple[float, float, float, Number | Unavailable]] = []
        self._base: tuple[Number, float, float] | None = None
        self._shown: tuple[Number, float, float] | None = None
        self._missing = ""
        self._misses = self._most_misses = self._compared = self._agreed = 0
        self._ours, self._theirs = _Mean(), _Mean()
        self._first_answer: tuple[float, float] | None = None

    @property
    def _is_mean(self) -> bool:
        """Whether the mean over the whole span is compared."""
        return self._latest.over == "mean" or (self._latest.over == "counter" and self._metric.kind != "counter")

    def add_answer(self, answer: ReferenceValue, began: float, ended: float) -> None:
        """Add an answer of the reference, with the start and end of the call on the monotonic clock."""
        if answer.age:
            began = ended = ended - answer.age
        self._latest = answer
        self._answers.append((began, ended, answer.value))
        self._first_answer = self._first_answer or (ended, answer.value)
        self._theirs.add(answer.value, ended)
        self._waiting = [waiting for waiting in self._waiting if not self._compare_if_answered(*waiting)]
        while len(self._answers) > 1 and self._answers[1][1] < ended - REMEMBERED:
            self._answers.popleft()

    def add_value(self, value: Number | Unavailable, began: float, ended: float, age: float = 0.0) -> None:
        """Add our value or the reason why it is missing, with start and end of the reading and the value's age in seconds."""
        if not isinstance(value, Unavailable):
            self._ours.add(value, ended)
        if not isinstance(value, Unavailable) or value.reason not in PASSING:
            self._waiting.append((began - age - self._latest.kept, began, ended, value))

    def _compare_if_answered(self, since: float, began: float, ended: float, value: Number | Unavailable) -> bool:
        """Compare a value if the reference has answered after it. Return whether it has."""
        after = next((place for place, answer in enumerate(self._answers) if answer[0] >= ended), None)
        if after is None:
            return False
        before = [place for place, answer in enumerate(self._answers) if answer[1] <= began]
        if before and isinstance(value, Unavailable):
            self._missing = ": ".join(filter(None, value))
            self._count(False)
        elif before and not isinstance(value, Unavailable) and not self._is_mean:
            first = max((place for place in before if self._answers[place][1] <= since), default=0)
            around = [self._answers[place][2] for place in range(first, after + 1)]
            self._compare(value, min(around), max(around))
        return True

    def _compare(self, value: Number, low: float, high: float) -> None:
        if self._latest.over == "counter":
            if self._base is None:  # the first round is the start of the gain
                self._base = value, low, high
                return
            value, low, high = value - self._base[0], max(0.0, low - self._base[2]), high - self._base[1]
        inside = low - self._slack(low) <= value <= high + self._slack(high)
        if not inside or self._most_misses < OUTSIDE:  # once the value differs, keep showing numbers that differ
            self._shown = value, low, high
        self._missing = ""
        self._count(inside)

    def _slack(self, value: float) -> float:
        absolute, share = TOLERANCES.get(self._metric.unit, USUAL)
        return absolute + self._latest.step + share * abs(value)

    def _count(self, inside: bool) -> None:
        self._compared += 1
        self._agreed += inside
        self._misses = 0 if inside else self._misses + 1
        self._most_misses = max(self._most_misses, self._misses)

    def result(self, key: str, reference: str) -> Comparison:
        """Return the comparison over all rounds."""
        unit, detail = self._metric.unit, self._missing
        if self._is_mean and not self._missing:
            self._compare_means()
            detail = f"mean of {self._ours.seconds:.1f} s" if self._compared else "no two readings to take a mean of"
        elif self._latest.over and not self._missing:
            detail = "gain over the span" if self._compared else "no two readings to take a difference of"
        if not self._compared:
            return Comparison(
                key, unit, NO_REFERENCE, self._ours.last, detail=detail or f"{reference} has not answered before and after it"
            )
        result = DIFFERS if self._most_misses >= OUTSIDE or not self._agreed else AGREES
        ours, low, high = self._shown or (None, *(2 * [self._answers[-1][2]]))
        return Comparison(key, unit, result, ours, reference, low, high, detail, self._compared, self._agreed)

    def _compare_means(self) -> None:
        """Compare our mean with the reference's mean."""
        if not self._ours.seconds or not self._theirs.seconds or self._first_answer is None:
            return
        theirs = self._theirs.mean
        if self._latest.over == "counter":
            (began, first), (_, ended, last) = self._first_answer, self._answers[-1]
            theirs = (last - first) / (ended - began)
        # The two spans do not start and end together. A kept value of ours at an end of the span may shift our mean by ``edge``.
        ours, edge = self._ours.mean, self._ours.largest * self._latest.kept / self._ours.seconds
        self._shown = ours, theirs, theirs
        self._count(abs(ours - theirs) <= self._slack(theirs) + edge)


class _Mean:
    """A mean over time. Each value counts for the time since the previous one."""

    def __init__(self) -> None:
        self.seconds = self.largest = self._sum = 0.0
        self.last: Number | None = None
        self._then = 0.0

    def add(self, value: Number, now: float) -> None:
        """Add a value about the time since the previous one."""
        if self.last is not None:
            self.seconds += now - self._then
            self._sum += value * (now - self._then)
            self.largest = max(self.largest, value)
        self.last, self._then = value, now

    @property
    def mean(self) -> float:
        """The mean over ``seconds``."""
        return self._sum / self.seconds


class OtherSource:
    """Another source of a backend as a reference, read by a sampler in another process.

    Args:
        backend: The backend.
        source: The name of the source.
        joined: The main source, if this package reads ``source`` together with it. Values that ``joined`` lacks come from
            ``source`` here too, so they have no reference. Empty otherwise.
        options: Options of a sampler.

    Attributes:
        sequence: The number of its latest reading. A source that is read in the background may return a reading twice.
    """

    # Another process, because a vendor's library can be loaded only once in this one.
    def __init__(self, backend: Any, source: str, joined: str, options: Mapping[str, Any]) -> None:
        self.name = source
        self.sequence = 0
        self._sampler = Sampler([backend.pinned(source)], isolation="process", **options)
        self._joined = Sampler([backend.pinned(joined)], isolation="process", **options) if joined else None

    def read(self, slots: Sequence[DeviceSlot]) -> Mapping[str, ReferenceValue | str]:
        """Read the source. Return values, or reasons in words, with the keys that this process gives its devices."""
        snapshot = self._sampler.sample()
        status = snapshot.backends[0]
        if not status.source:
            raise SourceError(status.reason or Reason.DRIVER_UNAVAILABLE, status.detail)
        self.sequence = status.sequence
        read_before = self._joined.sample() if self._joined is not None else None
        found: dict[str, ReferenceValue | str] = {f"{status.name}{DEVICES}": ReferenceValue(_whole_devices(snapshot, status.name))}
        of_devices = tuple(f"{slot.key}." for slot in snapshot.identities)
        found |= {
            key: _answer_of(key, value, status.age_seconds) for key, value in snapshot.metrics.items() if not key.startswith(of_devices)
        }
        for slot in slots:
            device = _same(slot.identity, snapshot)
            if device is None:
                continue
            here = None if read_before is None else _same(slot.identity, read_before)
            only = None if read_before is None or here is None else read_before.values_of(here.key)
            for name, value in snapshot.values_of(device.key).items():
                key = f"{slot.key}.{name}"
                read_here = only is not None and name not in only
                found[key] = "the value is read from it here" if read_here else _answer_of(key, value, status.age_seconds)
            found |= {f"{slot.key}.{name}": ": ".join(filter(None, why)) for name, why in snapshot.reasons_of(device.key).items()}
        return found

    def close(self) -> None:
        """End the processes of the samplers."""
        self._sampler.close()
        if self._joined is not None:
            self._joined.close()


def _metric(key: str) -> Metric:
    return catalogue.match(key) or Metric(key, "1", "gauge", "")


def _answer_of(key: str, value: Number, age: float | None) -> ReferenceValue:
    """Return another source's value as an answer of a reference."""
    # Energy is compared by its gain, because the counters of two sources start at different times.
    unit = _metric(key).unit
    return ReferenceValue(value, ROUNDED.get(unit, 0.0), "counter" if unit == "J" else "", age=age or 0.0)


def _same(wanted: DeviceIdentity, snapshot: Snapshot) -> DeviceSlot | None:
    """Return the same device in another source's reading, by PCI address, else by UUID, else by number. None if it is missing."""
    # Partitions of a device, and parts of a card with a common address, are distinguished by their number.
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
    """Return the number of devices that a backend lists, without partitions."""
    return sum(slot.backend == backend and not slot.identity.parent for slot in snapshot.identities)


class _ReferenceThread:
    """A reference with its own thread. A reference that hangs is abandoned.

    Args:
        backend: The name of the backend that it verifies.
        reference: The reference.
        problem: Why the reference must not be asked. Empty if it may.

    Attributes:
        backend: The name of the backend that it verifies.
        reference: The reference.
        name: The name of the reference.
        answers: Number of answers. A reading that is returned twice counts once.
        problem: Why the last call failed. Empty if it succeeded.
        pairs: The comparison of each value, by key.
        reasons: Why the reference has no value, by key.
    """

    def __init__(self, backend: str, reference: Reference, problem: str = "") -> None:
        self.backend, self.name = backend, reference.name
        self.answers, self.problem, self._number = 0, problem, 0
        self.pairs: dict[str, Pair] = {}
        self.reasons: dict[str, str] = {}
        self.reference = reference
        self._abandoned = bool(problem)
        self._questions: SimpleQueue[Sequence[DeviceSlot] | None] = SimpleQueue()
        self._answers: SimpleQueue[Outcome[Mapping[str, ReferenceValue | str]]] = SimpleQueue()
        self._thread = threading.Thread(target=self._answer, name=f"accelmetrics-{reference.name}", daemon=True)

    def _answer(self) -> None:
        while (slots := self._questions.get()) is not None:
            self._answers.put(guarded(self.reference.read, slots))
        guarded(self.reference.close)

    def ask(self, slots: Sequence[DeviceSlot], patience: float) -> None:
        """Ask the reference once and record its answer."""
        if self._abandoned:
            return
        began = time.monotonic()
        if not self._thread.is_alive():
            self._thread.start()
        self._questions.put([slot for slot in slots if slot.backend == self.backend])
        try:
            outcome = self._answers.get(timeout=patience)
        except Empty:
            self._abandoned, self.problem = True, f"no answer in {patience:g} s: it is not asked again"
            return
        ended = time.monotonic()
        self.problem = "" if outcome.failure is None else ": ".join(filter(None, outcome.failure))
        number = getattr(self.reference, "sequence", self.answers + 1)
        self.answers += outcome.failure is None and number != self._number
        self._number = number
        for key, answer in (outcome.value or {}).items():
            if isinstance(answer, str):
                self.reasons[key] = answer
            elif math.isfinite(answer.value):
                self.pairs.setdefault(key, Pair(_metric(key))).add_answer(answer, began, ended)

    def close(self) -> None:
        """Close the reference, unless it hangs."""
        self._questions.put(None)
        if not self._abandoned and self._thread.is_alive():
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
    """Compare the readings of this machine with all references.

    Args:
        seconds: The span. Rates and counters are compared over all of it.
        stop: A flag that ends the comparison early.
        backends: The backends. This and the following options are those of :class:`~accelmetrics.Sampler`.
        metrics: The metrics to compare.
        gpus: The devices.
        pid: The process to compare, in metrics of a single process.
        disk_paths: Mount points.
        timeout: Seconds within which a reading is answered.
        open_timeout: Seconds to wait for sources that are still opening.
        amd_source: The only source to read AMD's GPUs from. The other sources are its references.

    Raises:
        InvalidOptionError: An option is invalid.
        UnknownNameError: A backend, a source, a metric or a device does not exist.
    """
    stop = stop or Flag()
    common: dict[str, Any] = {"metrics": metrics, "timeout": timeout, "open_timeout": open_timeout}
    options = checked(pid=pid, disk_paths=disk_paths, **common).read_options()
    with Sampler(backends, gpus=gpus, pid=pid, disk_paths=disk_paths, amd_source=amd_source, **common) as sampler:
        snapshot = sampler.sample()
        references = _find_references(pinned(select(backends), {"amd": amd_source}), snapshot, options, common)
        # The sampler opens again at its next reading. So values that are read once or rarely are read after the first round of questions.
        sampler.close()
        known: dict[str, Number | Unavailable] = {}
        began, rounds = time.monotonic(), 0
        span = seconds
        while rounds == 0 or not (stop.is_set() or (rounds >= LEAST and time.monotonic() - began >= span)):
            snapshot = _round(sampler, snapshot.identities, references, open_timeout + PATIENCE, known)
            rounds += 1
            stop.wait(INTERVAL)
            # The span is longer while a reference has too few answers.
            span = seconds + LONGEST_WAIT * any(reference.answers < LEAST and not reference.problem for reference in references)
        lasted = time.monotonic() - began
        for reference in references:
            reference.close()
    # With selected devices, counts are left out: a reference counts all devices.
    known = {key: known[key] for key in (*snapshot.metrics, *known) if gpus is None or not key.endswith(DEVICES)}
    statuses = tuple({name: getattr(reference, name) for name in ("backend", "name", "answers", "problem")} for reference in references)
    return Verification(snapshot.hostname, snapshot.timestamp, lasted, statuses, tuple(_comparisons(known, references)))


def _find_references(
    backends: Sequence[Backend], snapshot: Snapshot, options: ReadOptions, common: Mapping[str, Any]
) -> list[_ReferenceThread]:
    """Return the references of the present backends: their own, and their sources that are not the main one."""
    threads = []
    for backend, status in zip(backends, snapshot.backends, strict=True):
        if status.status == "absent":
            continue
        found: list[Reference] = list(getattr(backend, "references", lambda _: ())(options))
        read = status.source.split("+")
        others = [source for source in getattr(backend, "sources", ()) if status.source and source != read[0]]
        found += [OtherSource(backend, source, read[0] if source in read else "", common) for source in others]
        slots = [slot for slot in snapshot.identities if slot.backend == backend.name]
        asleep = any(why.reason == Reason.SUSPENDED for slot in slots for why in snapshot.reasons_of(slot.key).values())
        threads += [
            _ReferenceThread(backend.name, reference, "a device is powered down, and asking would wake it" if asleep else "")
            for reference in found
        ]
    return threads


def _round(
    sampler: Sampler,
    slots: Sequence[DeviceSlot],
    references: Sequence[_ReferenceThread],
    patience: float,
    known: dict[str, Number | Unavailable],
) -> Snapshot:
    """Take a reading between two answers of each reference, and add its values to ``known`` and to the comparisons."""
    for reference in references:
        reference.ask(slots, patience)
    began = time.monotonic()
    snapshot = sampler.sample()
    ended = time.monotonic()
    reasons = ((slot.backend, why.reason) for slot in snapshot.identities for why in snapshot.reasons_of(slot.key).values())
    lost = {backend for backend, reason in reasons if reason == Reason.DEVICE_LOST}  # a driver may or may not list a lost device
    devices = {
        f"{reference.backend}{DEVICES}": _whole_devices(snapshot, reference.backend)
        for reference in references
        if reference.backend not in lost
    }
    now: dict[str, Number | Unavailable] = {**snapshot.unavailable, **snapshot.metrics, **devices}
    known |= now
    ages = {status.name: status.age_seconds or 0.0 for status in snapshot.backends}
    for reference in references:
        for key in reference.pairs.keys() & now.keys():
            value = now[key]
            # Two sources of a backend need not support the same metrics.
            unsupported = isinstance(value, Unavailable) and value.reason == Reason.NOT_SUPPORTED
            if not (unsupported and isinstance(reference.reference, OtherSource)):
                reference.pairs[key].add_value(value, began, ended, ages[reference.backend])
    for reference in reversed(references):
        reference.ask(slots, patience)
    return snapshot


def _comparisons(known: Mapping[str, Number | Unavailable], references: Sequence[_ReferenceThread]) -> Iterator[Comparison]:
    """Yield the comparisons of each value with its references, or one entry if it has none."""
    for key, value in known.items():
        found = [reference.pairs[key].result(key, reference.name) for reference in references if key in reference.pairs]
        compared = [comparison for comparison in found if comparison.compared]
        yield from compared
        if not (compared or isinstance(value, Unavailable) or key.endswith(DEVICES)):
            reasons = [f"{reference.name}: {reference.reasons[key]}" for reference in references if key in reference.reasons]
            detail = "; ".join(reasons or dict.fromkeys(comparison.detail for comparison in found))
            yield Comparison(key, _metric(key).unit, NO_REFERENCE, value, detail=detail)
