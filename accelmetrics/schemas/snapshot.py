"""One moment of the machine: plain values now, typed views, text and documents when they are asked for.

Making a snapshot costs a microsecond, since a sampler makes one at every tick: nothing is copied, checked or derived until
it is looked at. The typed views and the reading of documents load pydantic; nothing else here does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from accelmetrics.schemas.errors import DocumentError, Reason, Unavailable, UnknownNameError
from accelmetrics.schemas.frozen import FrozenDict, frozen
from accelmetrics.schemas.identity import BackendStatus, DeviceIdentity, DeviceProcess, DeviceSlot
from accelmetrics.schemas.metric import PARTITION, answered
from accelmetrics.schemas.reading import Header, header, standing
from accelmetrics.schemas.topology import SupportedClocks, Topology

if TYPE_CHECKING:
    from accelmetrics.schemas.identity_models import DeviceFields
    from accelmetrics.schemas.metrics_models import DeviceMetrics, HostMetrics, ProcessMetrics
    from accelmetrics.schemas.selection import MetricSelection
else:
    from accelmetrics.schemas.identity import DeviceKind  # noqa: F401 - what the attributes' annotations name

    DeviceFields = object

SCHEMA_VERSION = "1.0"
"""Of the document. The number before the dot rises when a reader of the old form would misread the new one."""

NO_LIST = Unavailable(Reason.NOT_SUPPORTED, "its source does not list processes")
_NANOSECONDS = 1_000_000_000
_T = TypeVar("_T")
_Places = dict[str, dict[str, int]]
"""By device part and name, which of all keys it is."""


class Metrics(FrozenDict[str, "int | float"]):
    """Values by key: square brackets say why one is missing.

    Attributes:
        unavailable: By key, why a value is absent.
    """

    __slots__ = ("unavailable",)

    unavailable: Mapping[str, Unavailable]

    def __missing__(self, key: str) -> int | float:
        """Say why there is no value.

        Raises:
            KeyError: Always: with the reason, or the nearest keys where no source owes one of this name.
        """
        why = self.unavailable.get(key)
        if why is not None:
            raise KeyError(f"{key} is not available: {why.reason}" + (f" ({why.detail})" if why.detail else ""))
        import difflib  # milliseconds, spent on mistakes alone

        known = [*self, *self.unavailable]
        part = ".".join(str(key).split(".")[:2]) + "."
        near = difflib.get_close_matches(str(key), [name for name in known if name.startswith(part)] or known)
        raise KeyError(f"no metric {key!r}" + (f"; the nearest: {', '.join(near)}" if near else ""))


class Snapshot:
    """What one sample gave: a view of a header and its row of numbers.

    Several receivers may hold it: its mappings raise on writing, ``dict(snapshot.metrics)`` is a copy of one's own.

    Attributes:
        time_ns: When it was put together, in nanoseconds since 1970 (UTC). Documents carry microseconds, and two snapshots
            that agree to the microsecond are equal.
        hostname: The machine's name.
        metrics: Finite ints and floats by key; what could not be read is absent, and ``[]`` raises a :class:`KeyError` that says why.
        identities: The devices, each with where it stands.
        unavailable: By key, why a value is absent.
        backends: How each source fared.
        processes: By device key, the processes that use the device; no entry where the source cannot say.
        unlisted: By device key, why the source cannot say which processes use the device, where it gives a reason.
        topology: How the devices are connected; None where that was not asked for.
    """

    __slots__ = (
        "_by_device",
        "_devices",
        "_header",
        "_host",
        "_metrics",
        "_numbers",
        "_selected",
        "backends",
        "hostname",
        "identities",
        "processes",
        "time_ns",
        "topology",
        "unavailable",
        "unlisted",
    )

    schema_version: ClassVar[str] = SCHEMA_VERSION
    __hash__ = None  # type: ignore[assignment]

    def __init__(  # noqa: PLR0913, PLR0917 - what a document has
        self,
        time_ns: int,
        hostname: str,
        metrics: dict[str, int | float],
        identities: Sequence[DeviceSlot] = (),
        unavailable: Mapping[str, Unavailable] | None = None,
        backends: Sequence[BackendStatus] = (),
        processes: Mapping[str, tuple[DeviceProcess, ...]] | None = None,
        unlisted: Mapping[str, Unavailable] | None = None,
        topology: Topology | None = None,
    ) -> None:
        self.time_ns = time_ns
        self.topology = topology
        self.hostname = hostname
        self.identities = tuple(identities)
        self.unavailable: Mapping[str, Unavailable] = frozen(unavailable)
        self._metrics: Metrics | None = metrics if type(metrics) is Metrics else Metrics(metrics)
        self._metrics.unavailable = self.unavailable
        self.backends = tuple(backends)
        self.processes: Mapping[str, tuple[DeviceProcess, ...]] = frozen(processes)
        self.unlisted: Mapping[str, Unavailable] = frozen(unlisted)
        self._header: Header | None = None
        self._numbers: tuple[int | float, ...] | None = None
        self._selected: dict[MetricSelection, Snapshot] = {}
        self._devices: tuple[Device, ...] | None = None
        self._host: HostMetrics | None = None
        self._by_device: _ByDevice | None = None

    @classmethod
    def of(
        cls,
        header: Header,
        numbers: tuple[int | float, ...],
        time_ns: int,
        backends: Sequence[BackendStatus],
        processes: Mapping[str, tuple[DeviceProcess, ...]],
        metrics: dict[str, int | float] | None = None,
        topology: Topology | None = None,
    ) -> Snapshot:
        """Make a snapshot of a header and the numbers of its keys.

        Args:
            header: All of it but the numbers.
            numbers: In the order of the header's keys.
            time_ns: As in the class.
            backends: As in the class.
            processes: As in the class.
            metrics: The numbers by key, where they are at hand. It is copied, in a tenth of the time that making it of keys takes.
            topology: As in the class.
        """
        made = cls.__new__(cls)
        made.topology = topology
        made._header, made._numbers, made.time_ns = header, numbers, time_ns
        made.hostname, made.identities, made.unavailable, made.unlisted = (
            header.hostname,
            header.identities,
            header.unavailable,
            header.unlisted,
        )
        made.backends = tuple(backends)
        made.processes = processes if type(processes) is FrozenDict else frozen(processes)
        made._metrics = made._devices = made._host = made._by_device = None
        if metrics is not None:
            made._metrics = Metrics(metrics)
            made._metrics.unavailable = header.unavailable
        made._selected = {}
        return made

    @property
    def metrics(self) -> dict[str, int | float]:
        """The values by key."""
        if self._metrics is None:
            made = Metrics(zip(self.header.keys, self.numbers, strict=True))
            made.unavailable = self.unavailable
            self._metrics = made
        return self._metrics

    @property
    def header(self) -> Header:
        """All of it but the numbers; the same object in snapshots of which only numbers differ."""
        if self._header is None:
            parts = tuple(self.metrics), self.identities, self.unavailable, standing(self.backends), self.unlisted
            self._header = header(self.hostname, *parts)
        return self._header

    @property
    def numbers(self) -> tuple[int | float, ...]:
        """The values in the order of the header's keys."""
        if self._numbers is None:
            self._numbers = tuple(self.metrics.values())
        return self._numbers

    @property
    def timestamp(self) -> str:
        """When it was put together: RFC 3339, UTC, with microseconds."""
        return rfc3339(self.time_ns)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices, in the order of their keys' numbers."""
        if self._devices is None:
            self._devices = tuple(map(partial(Device, self._sorted()), self.identities, parents(self.identities)))
        return self._devices

    @property
    def host(self) -> HostMetrics:
        """The host's metrics, typed: the same numbers as in ``metrics``, None where the host cannot say."""
        if self._host is None:
            from accelmetrics.schemas.typed_views import host_metrics

            self._host = host_metrics(self.metrics)
        return self._host

    def device(self, name: str | int) -> Device:
        """Return the device with this key (``gpu.0``) or UUID; a number ``n`` is ``gpu.n``, as in ``gpus=``.

        Raises:
            UnknownNameError: No device of this snapshot has that key or UUID.
        """
        wanted = f"gpu.{name}" if isinstance(name, int) else name
        for device in self.devices:
            if wanted and wanted in (device.key, device.uuid):
                return device
        raise UnknownNameError("device", wanted, (known for device in self.devices for known in (device.key, device.uuid) if known))

    def with_metrics(self, more: Mapping[str, int | float]) -> Snapshot:
        """Return the same moment with more metrics; this one stays as it is."""
        wider = self.header.with_keys(tuple(more))
        if wider is None:
            return self.with_values({**self.metrics, **more}, self.unavailable)
        rest = (self.time_ns, self.backends, self.processes)
        return Snapshot.of(wider, (*self.numbers, *more.values()), *rest, topology=self.topology)

    def with_topology(self, topology: Topology) -> Snapshot:
        """Return the same moment with how the devices are connected; this one stays as it is."""
        return Snapshot.of(self.header, self.numbers, self.time_ns, self.backends, self.processes, topology=topology)

    def with_values(self, metrics: dict[str, int | float], unavailable: Mapping[str, Unavailable]) -> Snapshot:
        """Return the same moment with other metrics and reasons; this one stays as it is."""
        rest = (self.backends, self.processes, self.unlisted, self.topology)
        return Snapshot(self.time_ns, self.hostname, metrics, self.identities, unavailable, *rest)

    def selected(self, selection: MetricSelection) -> Snapshot:
        """Return the same moment with what a selection wants alone; this one where it wants everything."""
        if selection.everything:
            return self
        found = self._selected.get(selection)
        if found is None:
            narrower, places = self.header.selected(selection.wants, selection)
            numbers = tuple([self.numbers[place] for place in places])
            found = Snapshot.of(narrower, numbers, self.time_ns, self.backends, self.processes, topology=self.topology)
        return self._selected.setdefault(selection, found)  # exporters that want the same share what they derive from it

    def flat(self) -> dict[str, int | float]:
        """Return the metrics alone, as a new dict."""
        return dict(self.metrics)

    def to_dict(self) -> dict[str, Any]:
        """Return the document as new plain containers, ready for ``json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "timestamp": self.timestamp,
            "hostname": self.hostname,
            "metrics": dict(self.metrics),
            "devices": [device_entry(slot) for slot in self.identities],
            "unavailable": {key: reason_entry(why) for key, why in self.unavailable.items()},
            "backends": [status._asdict() for status in self.backends],
            "processes": {key: [process._asdict() for process in found] for key, found in self.processes.items()},
            "unlisted": {key: reason_entry(why) for key, why in self.unlisted.items()},
            **({} if self.topology is None else {"topology": plain(self.topology)}),
        }

    def to_json(self, indent: int | None = None) -> str:
        r"""Return the document as text, on one line unless ``indent`` is given.

        Lone surrogates, with which Python stands for bytes that are not UTF-8 (in the name of a mount point, say), are no text:
        each is written as an escape, ``/d\udcff`` as the eight letters that you see here.

        Raises:
            DocumentError: A value is not finite, which JSON cannot hold.
        """
        return to_text(self.to_dict(), indent, "snapshot")

    @classmethod
    def from_json(cls, text: str | bytes) -> Snapshot:
        """Read a document that ``to_json`` wrote, here or in another release of the same major schema version.

        Reasons that this release does not know are kept, fields that it does not know are passed over.

        Raises:
            DocumentError: The text is not such a document; the message says where it departs.
        """
        from accelmetrics.schemas.document import parse

        return parse(text)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Snapshot:
        """Read a snapshot as :meth:`from_json` does, from what ``json.loads`` or :meth:`to_dict` gave.

        Raises:
            DocumentError: It is not such a document; the message says where it departs.
        """
        from accelmetrics.schemas.document import parse

        return parse(document)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot):
            return NotImplemented
        return self._comparable() == other._comparable()

    def _comparable(self) -> tuple[object, ...]:
        _, hostname, metrics, identities, *rest = self._parts()
        return (self.time_ns // 1000, hostname, metrics, [slot._replace(listed_by="") for slot in identities], *rest)

    def _parts(self) -> tuple[Any, ...]:
        """Return the constructor's arguments as plain containers: a mapping that is shared or proxied does not pickle."""
        processes = {key: tuple(found) for key, found in self.processes.items()}
        return (
            self.time_ns,
            self.hostname,
            self.metrics,
            tuple(self.identities),
            dict(self.unavailable),
            tuple(self.backends),
            processes,
            dict(self.unlisted),
            self.topology,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._parts()

    def __repr__(self) -> str:
        counts = f"{len(self.identities)} devices, {len(self.metrics)} metrics, {len(self.unavailable)} unavailable"
        return f"<Snapshot {self.timestamp} {self.hostname}: {counts}>"

    def _repr_html_(self) -> str:
        """Draw a table of the devices, for notebooks."""
        from accelmetrics.schemas.notebook import snapshot_html

        return snapshot_html(self)

    def values_of(self, part: str) -> dict[str, int | float]:
        """Return the values below a device part (``gpu.0``, ``gpu.process.0``, ``torch.0``), by name."""
        return self._sorted().values_of(part)

    def reasons_of(self, part: str) -> dict[str, Unavailable]:
        """Return the reasons below a device part, by name."""
        return self._sorted().reasons_of(part)

    def _sorted(self) -> _ByDevice:
        if self._by_device is None:
            self._by_device = _ByDevice(self)
        return self._by_device


class _ByDevice:
    """A snapshot's values, reasons and processes, sorted by device when they are asked for.

    Its devices refer to this, not to the snapshot, which refers to them: what nothing refers to is freed without the collector.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.processes = snapshot.processes
        self._metrics, self._unavailable, self._identities = snapshot.metrics, snapshot.unavailable, snapshot.identities

    @cached_property
    def places(self) -> _Places:
        return _places(self._metrics, self._identities)

    @cached_property
    def _grouped(self) -> dict[str, dict[str, int | float]]:
        return _group(self._metrics, self.places)

    @cached_property
    def _reasons(self) -> dict[str, dict[str, Unavailable]]:
        return _group(self._unavailable, _places(self._unavailable, self._identities))

    def values_of(self, part: str) -> dict[str, int | float]:
        return self._grouped.get(part, {})

    def reasons_of(self, part: str) -> dict[str, Unavailable]:
        return self._reasons.get(part, {})


def has_values(snapshot: Snapshot, part: str) -> bool:
    """Return whether a device, or another part, gave a value; counts of events, which a lost device has, are none. Sorts no values."""
    return answered(snapshot._sorted().places.get(part, ()))


def own_processes(snapshot: Snapshot) -> dict[str, tuple[DeviceProcess, ...] | Unavailable]:
    """Return by device, in order, the processes on it or why they are not known, each process on a device once.

    Of a device whose partitions list their processes those lists count alone, and of one whose partitions do not, its own alone.
    """
    slots = snapshot.identities
    wholes = {slot.identity.anchor for slot in slots if not slot.identity.parent}
    split = {slot.identity.parent for slot in slots if slot.identity.parent and slot.key in snapshot.processes}

    def counts(who: DeviceIdentity) -> bool:
        if not who.parent:
            return who.anchor not in split
        return who.parent in split or who.parent not in wholes  # its device may not have been chosen

    counted = [slot.key for slot in slots if counts(slot.identity)]
    return {key: snapshot.processes.get(key, snapshot.unlisted.get(key, NO_LIST)) for key in counted}


class DeviceInfo(DeviceFields):
    """Which device it is, and where it stands.

    Attributes:
        key: ``gpu.0``: what its metrics' keys begin with.
        index: The number in its key.
        visible_index: Its position under the vendor's ``*_VISIBLE_DEVICES``, None where that hides it.
        parent: Key of the device that it is a partition of (its UUID, where that device is not reported); None for a whole device.
        identity: Everything that does not change about the device, as one record. The other attributes are its fields, which
            :class:`~accelmetrics.schemas.identity.DeviceIdentity` describes.
        clocks: The clocks that it can be set to, or why they are not known; None where they were not asked for.
    """

    __slots__ = ("clocks", "identity", "index", "key", "parent", "visible_index")

    def __init__(self, slot: DeviceSlot, parent: str | None = None, clocks: SupportedClocks | Unavailable | None = None) -> None:
        self.key, self.index, self.visible_index, self.identity, _ = slot
        self.parent: str | None = parent
        self.clocks = clocks

    if not TYPE_CHECKING:  # the fields of an identity are all that there is
        __annotations__ = {**DeviceIdentity.__annotations__, "parent": "str | None"}

        def __getattr__(self, name: str) -> Any:
            if name in DeviceIdentity._fields:
                return getattr(self.identity, name)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        def __dir__(self) -> list[str]:
            return [*super().__dir__(), *DeviceIdentity._fields]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key} {self.vendor} {self.name!r}>"


def parents(slots: Sequence[DeviceSlot]) -> Iterator[str | None]:
    """Yield, of each of all reported devices, the key of the one that it is a partition of, else that one's UUID; None for whole ones."""
    keys = {slot.identity.anchor: slot.key for slot in slots if not slot.identity.parent}
    for key, _, _, identity, _ in slots:
        above = identity.parent and (keys.get(identity.parent) or key.rpartition(f".{PARTITION}.")[0] or identity.parent)
        yield above or None


class Device(DeviceInfo):
    """One device in one snapshot: which it is, and what was read of it."""

    __slots__ = ("_metrics", "_process_metrics", "_sorted")

    def __init__(self, values: _ByDevice | Snapshot, slot: DeviceSlot, parent: str | None = None) -> None:
        super().__init__(slot, parent)
        self._sorted = values
        self._metrics: DeviceMetrics | None = None
        self._process_metrics: ProcessMetrics | None = None

    @property
    def metrics(self) -> DeviceMetrics:
        """The device's metrics, typed: the same numbers as in ``snapshot.metrics``, None where it cannot say."""
        if self._metrics is None:
            from accelmetrics.schemas.typed_views import device_metrics

            self._metrics = device_metrics(self.kind, self.values)
        return self._metrics

    @property
    def process_metrics(self) -> ProcessMetrics | None:
        """What the watched process uses of the device (``gpu.process.{i}.…``), None while it does not use it.

        A partition has none of its own: what is used of it is among what is used of the whole device.
        """
        values = {} if self.parent else self._sorted.values_of(f"{self.kind}.process.{self.index}")
        if self._process_metrics is None and values:
            from accelmetrics.schemas.typed_views import process_metrics

            self._process_metrics = process_metrics(values)
        return self._process_metrics

    @property
    def values(self) -> Mapping[str, int | float]:
        """The device's metrics by name (``powerWatts``), those that only a plug-in knows among them."""
        return self._sorted.values_of(self.key)

    @property
    def unavailable(self) -> Mapping[str, Unavailable]:
        """By name (``fanSpeed``), why a value of the device is absent."""
        return self._sorted.reasons_of(self.key)

    @property
    def processes(self) -> tuple[DeviceProcess, ...] | None:
        """The processes that use the device, None where the source cannot say."""
        return self._sorted.processes.get(self.key)

    def __repr__(self) -> str:
        return f"<Device {self.key} {self.vendor} {self.name!r}: {len(self.values)} metrics, {len(self.unavailable)} unavailable>"


def to_text(document: Mapping[str, Any], indent: int | None, what: str, separators: tuple[str, str] | None = None) -> str:
    """Write a document as JSON; see :meth:`Snapshot.to_json`."""
    import json

    try:
        text = json.dumps(document, indent=indent, separators=separators, allow_nan=False)
    except ValueError as error:
        raise DocumentError(f"the {what} cannot be written as JSON: {error}") from error
    return surrogates_escaped(text)


def surrogates_escaped(text: str) -> str:
    """Escape the escapes of lone surrogates in JSON once more, so that they read back as those six letters."""
    if "\\ud" not in text:
        return text
    import re

    escapes = re.compile(r"\\\\|\\ud[89ab]..\\ud[c-f]..|(\\ud[89a-f]..)")
    return escapes.sub(lambda found: "\\" + found[0] if found[1] else found[0], text)


def rfc3339(time_ns: int) -> str:
    """Format nanoseconds since 1970 as text, cut to the microsecond."""
    seconds, rest = divmod(time_ns, _NANOSECONDS)
    return f"{_to_the_second(seconds)}.{rest // 1000:06}Z"


def rfc3339_second(time_ns: int) -> str:
    """Format nanoseconds since 1970 as text, cut to the second."""
    return f"{_to_the_second(time_ns // _NANOSECONDS)}Z"


def _to_the_second(seconds: int) -> str:
    minutes, second = divmod(seconds, 60)
    return f"{_to_the_minute(minutes)}:{second:02}"


@lru_cache(maxsize=4)
def _to_the_minute(minutes: int) -> str:
    year, month, day, hour, minute, *_ = time.gmtime(60 * minutes)
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}"


def device_entry(slot: DeviceSlot) -> dict[str, Any]:
    """Return a device as documents have it."""
    identity = slot.identity._asdict()
    head = {"key": slot.key, "kind": identity.pop("kind"), "vendor": identity.pop("vendor"), "index": slot.index}
    return {**head, "vendor_index": identity.pop("vendor_index"), "visible_index": slot.visible_index, **identity}


def reason_entry(why: Unavailable) -> dict[str, str]:
    """Return why a value is missing as documents have it."""
    return {"reason": str(why.reason), "detail": why.detail}


def _group(flat: Mapping[str, _T], places: _Places) -> dict[str, dict[str, _T]]:
    values = tuple(flat.values())
    return {part: FrozenDict({name: values[place] for name, place in below.items()}) for part, below in places.items()}


def _places(flat: Mapping[str, object], slots: Sequence[DeviceSlot]) -> _Places:
    return _sorted_keys(tuple(flat), tuple((slot.key, slot.identity.kind, slot.index) for slot in slots))


@lru_cache(maxsize=8)
def _sorted_keys(keys: tuple[str, ...], slots: tuple[tuple[str, str, int], ...]) -> _Places:
    """Sort keys below the longest device part that they begin with. A reading has the keys of the one before it, as a rule."""
    groups: dict[str, dict[str, int]] = {}
    for slot, kind, index in slots:
        groups[slot] = {}
        groups[f"{kind}.process.{index}"] = {}
        if kind == "gpu":
            groups[f"torch.{index}"] = {}
    nested = any(slot.count(".") > 1 for slot, _, _ in slots)
    for place, key in enumerate(keys):
        # Nearly every key is two words and a name: that case is met without a loop.
        end = key.find(".", key.find(".") + 1)
        group = groups.get(key[:end])
        if group is None or nested:
            end = key.rfind(".")
            while end > 0 and key[:end] not in groups:
                end = key.rfind(".", 0, end)
            group = groups.get(key[:end]) if end > 0 else None
        if group is not None:
            group[key[end + 1 :]] = place
    return groups


def plain(record: Any) -> Any:
    """Return a record as a dict, its tuples as lists and its mappings as dicts, all the way down."""
    if hasattr(record, "_asdict"):
        record = record._asdict()
    if isinstance(record, Mapping):
        return {name: plain(value) for name, value in record.items()}
    return [plain(part) for part in record] if isinstance(record, tuple) else record
