"""Build the flat dict of a snapshot: prefix names to keys, collect reasons, drop everything that is not a finite number.

Every value of every reading passes through here. Parts that do not change between readings (names, blocks of values, reasons) are
recognised, by identity or else by equality, and are not built again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, compress, repeat
from math import isfinite

from accelmetrics.backends.contract import NO_REASONS, Block, Number, Reading
from accelmetrics.schemas.errors import Reason, Unavailable
from accelmetrics.schemas.frozen import FrozenDict
from accelmetrics.schemas.identity import BackendStatus, DeviceProcess, DeviceSlot
from accelmetrics.schemas.reading import Header, header, without_numbers
from accelmetrics.schemas.selection import ALL_METRICS, MetricSelection, asked_of
from accelmetrics.schemas.snapshot import Snapshot

LARGEST = 1.7e308
"""Largest absolute value of a number: it fits a double, and JSON readers accept nothing larger."""
NUMBERS = frozenset({int, float})
"""The exact types of numbers. A bool, a Decimal or a NumPy number is written and compared differently."""
SILENT = Unavailable(Reason.NOT_SUPPORTED, "its source does not report it")


class KeyMapper:
    """Maps the names of one unit's readings to keys.

    Args:
        key: The device's key (``gpu.3``); empty for the machine-wide unit, whose names are complete keys.
        expected: Names that the unit must report. One that has neither a value nor a reason gets a reason.
        metrics: The wanted metrics. Values and reasons of others are dropped.

    Attributes:
        reasons: By key, the reasons for missing values.
    """

    def __init__(self, key: str, expected: Iterable[str], metrics: MetricSelection = ALL_METRICS) -> None:
        kind, _, number = key.partition(".")
        self.key = key
        self.reasons: Mapping[str, Unavailable] = NO_REASONS
        self._prefix = f"{key}." if key else ""
        self._process_prefix = f"{kind}.process.{number}." if key else ""
        self._wants = None if metrics.everything else metrics.wants
        self._expected = tuple(name for name in expected if metrics.wants(self._prefix + name))
        self._asked = [names for names in asked_of(metrics, key) if set(names).isdisjoint(self._expected)] if key else []
        self._blocks: Sequence[Block] = ()
        # For each block, the keys of its wanted values, and a flag for each value; None instead of flags if all are wanted.
        self._keys: list[tuple[tuple[str, ...], list[bool] | None]] = []
        self._given: Mapping[str, Unavailable] | None = None
        self._failure: Unavailable | None = None

    @property
    def keys(self) -> dict[str, None]:
        """All keys that it knows, in order, except keys of the watched process."""
        expected = [self._prefix + name for name in (*self._expected, *(names[0] for names in self._asked))]
        given = [key for block, (keys, _) in zip(self._blocks, self._keys, strict=True) if not block.process for key in keys]
        return dict.fromkeys((*expected, *self.reasons, *given))

    @property
    def names(self) -> list[str]:
        """The names of ``keys``, without the device."""
        return [key[len(self._prefix) :] for key in self.keys]

    def refresh(self, result: Reading | Unavailable, flat: dict[str, Number]) -> bool:
        """Replace this unit's values in a flat dict that contains its last reading, if only values have changed.

        Returns:
            Whether that succeeded. If not, everything must be written again with :meth:`put`.
        """
        if isinstance(result, Unavailable):
            return result == self._failure
        blocks = result.blocks
        try:
            if len(blocks) != len(self._keys) or (result.unavailable is not self._given and result.unavailable != self._given):
                return False
            self._given = result.unavailable
            # No strict zip: the lengths are equal, and this is the hottest loop of a reading.
            for known, (keys, wanted), block in zip(self._blocks, self._keys, blocks):  # noqa: B905
                if known is block:
                    continue
                names, values = block.names, block.values
                same = (known.names is names or known.names == names) and known.process == block.process and len(values) == len(names)
                if same and wanted is not None:
                    values = tuple(compress(values, wanted))
                # One sum shows whether all are finite numbers: infinity and NaN propagate into it.
                if not same or not isfinite(sum(values)):
                    return False
                flat.update(zip(keys, values))  # noqa: B905
            self._blocks = tuple(blocks)
        except (TypeError, AttributeError, OverflowError):  # the reading breaks the contract: ``put`` will report how
            return False
        return True

    def put(self, result: Reading | Unavailable, flat: dict[str, Number]) -> None:
        """Add this unit's values to a flat dict that has none of them, and set the reasons for missing ones."""
        if isinstance(result, Reading) and (wrong := fault(result)):
            result = Unavailable(Reason.DRIVER_ERROR, f"the backend broke its contract: {wrong}")
        self._given = None
        if isinstance(result, Unavailable):
            self.reasons = dict.fromkeys(self.keys, result)
            self._failure = result
            return
        self._failure = None
        prefix, wants, before = self._prefix, self._wants, len(flat)
        refused: dict[str, Unavailable] = {}
        self._blocks, self._keys = tuple(result.blocks), []
        for block in self._blocks:
            head = self._process_prefix if block.process else prefix
            keys = [head + name for name in block.names]
            wanted = None if wants is None or all(map(wants, keys)) else list(map(wants, keys))
            values: Iterable[object] = chain(block.values, repeat(None))
            if wanted is not None:
                keys, values = list(compress(keys, wanted)), compress(values, wanted)
            self._keys.append((tuple(keys), wanted))
            for key, value in zip(keys, values, strict=False):
                # NaN and infinity fail the comparison as well.
                if isinstance(value, (int, float)) and type(value) in NUMBERS and abs(value) <= LARGEST:
                    flat[key] = value
                else:
                    words = "a number that is too large" if type(value) is int else repr(value)
                    refused[key] = Unavailable(Reason.INVALID_VALUE, f"the source answered {words}")
        given = {name for block in result.blocks if not block.process for name in block.names}
        silent = {prefix + name: SILENT for name in self._expected if name not in given and name not in result.unavailable}
        for names in self._asked:
            if given.isdisjoint(names) and result.unavailable.keys().isdisjoint(names):
                silent[prefix + names[0]] = SILENT
        explained = {prefix + name: why for name, why in result.unavailable.items() if name not in given}
        if wants is not None:
            explained = {key: why for key, why in explained.items() if wants(key)}
        self.reasons = {**explained, **silent, **refused}
        if len(flat) - before == sum(len(keys) for keys, _ in self._keys):  # no value was refused, and no key is in two blocks
            self._given = result.unavailable


def fault(reading: Reading) -> str:
    """Return how a reading breaks the contract; empty if it does not. Called only after the form of readings has changed."""
    blocks: object = reading.blocks
    reasons: object = reading.unavailable
    if not isinstance(blocks, (list, tuple)) or not all(isinstance(block, Block) for block in blocks):
        return f"blocks is {blocks!r}, not a list of blocks"
    for block in blocks:
        if not isinstance(block.names, tuple) or not all(isinstance(name, str) for name in block.names):
            return f"a block's names are {block.names!r}, not a tuple of strings"
        if not isinstance(block.values, (list, tuple)):
            return f"a block's values are {block.values!r}, not a list"
    if not isinstance(reasons, Mapping):
        return f"unavailable is {reasons!r}, not a mapping"
    for name, why in reasons.items():
        if not isinstance(name, str) or not isinstance(why, Unavailable):
            return f"unavailable has {name!r}: {why!r}, not a name and an Unavailable"
    return ""


Entry = tuple[KeyMapper, Reading | Unavailable]
"""The outcome of reading a unit: its mapper, and a reading or the reason why there is none."""


class SnapshotBuilder:
    """Builds the snapshots of one sampler.

    While only values change, the header stays the same object and only changed values are written. Any other change (a value appears
    or disappears, a device fails) rebuilds everything.

    Args:
        hostname: The machine's name.
    """

    def __init__(self, hostname: str) -> None:
        self._hostname = hostname
        self._header: Header | None = None  # of the latest reading
        self._flat: dict[str, Number] = {}  # its values
        self._mappers: list[KeyMapper] = []
        self._states: Sequence[object] = ()
        self._slots: tuple[DeviceSlot, ...] = ()
        self._listed: dict[str, tuple[DeviceProcess, ...] | Unavailable] = {}
        self._processes: Mapping[str, tuple[DeviceProcess, ...]] = FrozenDict()
        self._unlisted: Mapping[str, Unavailable] = NO_REASONS

    def build(self, time_ns: int, entries: Sequence[Entry], slots: Sequence[DeviceSlot], statuses: tuple[BackendStatus, ...]) -> Snapshot:
        """Build the snapshot of a reading.

        Args:
            time_ns: When it began, in nanoseconds since 1970.
            entries: The outcome of each unit.
            slots: The devices.
            statuses: The status of each source.
        """
        flat, mappers = self._flat, [mapper for mapper, _ in entries]
        head, self._header = self._header, None  # None until the end: after an interrupt, the next reading rebuilds everything
        same = head is not None and mappers == self._mappers
        listed: dict[str, tuple[DeviceProcess, ...] | Unavailable] = {}
        for mapper, result in entries:
            same = same and mapper.refresh(result, flat)
            found = result.processes if isinstance(result, Reading) else result
            if found is not None and mapper.key:
                listed[mapper.key] = found
        if listed != self._listed:
            self._listed = listed
            self._processes = FrozenDict({key: found for key, found in listed.items() if not isinstance(found, Unavailable)})
            unlisted = {key: why for key, why in listed.items() if isinstance(why, Unavailable)}
            if unlisted != self._unlisted:
                self._unlisted, same = unlisted, False
        if (reported := tuple(slots)) != self._slots:
            self._slots, same = reported, False
        states = [(one.name, one.status, one.detail, one.source, one.devices, one.reason) for one in statuses]
        if not same or head is None or states != self._states:
            self._mappers, self._states = mappers, states
            flat = self._flat = {}
            for mapper, result in entries:
                mapper.put(result, flat)
            reasons = {key: why for mapper in mappers for key, why in mapper.reasons.items() if key not in flat}
            head = header(self._hostname, tuple(flat), self._slots, reasons, without_numbers(statuses), self._unlisted)
        self._header = head
        return Snapshot.of(head, tuple(flat.values()), time_ns, statuses, self._processes, flat)
