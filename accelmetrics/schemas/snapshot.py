"""A snapshot: the machine at one moment, as plain values, with typed views, text and documents on demand.

Creating a snapshot costs a microsecond, since a sampler creates one at every tick: nothing is copied, checked or derived before it is
used. Only the typed views and the parsing of documents load pydantic.
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
from accelmetrics.schemas.reading import Header, header, without_numbers
from accelmetrics.schemas.topology import SupportedClocks, Topology

if TYPE_CHECKING:
    from accelmetrics.schemas.identity_models import DeviceFields
    from accelmetrics.schemas.metrics_models import DeviceMetrics, HostMetrics, ProcessMetrics
    from accelmetrics.schemas.selection import MetricSelection
else:
    from accelmetrics.schemas.identity import DeviceKind  # noqa: F401 - named by annotations of attributes

    DeviceFields = object

SCHEMA_VERSION = "1.0"
"""Version of the document. The number before the dot rises when a reader of the old format would misread the new one."""

NO_LIST = Unavailable(Reason.NOT_SUPPORTED, "its source does not list processes")
_NANOSECONDS = 1_000_000_000
_T = TypeVar("_T")
_Places = dict[str, dict[str, int]]
"""By device part and name, the key's position among all keys."""


class Metrics(FrozenDict[str, "int | float"]):
    """Values by key. Square brackets raise an error that gives the reason for a missing value.

    Attributes:
        unavailable: By key, the reason for a missing value.
    """

    __slots__ = ("unavailable",)

    unavailable: Mapping[str, Unavailable]

    def __missing__(self, key: str) -> int | float:
        """Raise an error that explains the missing value.

        Raises:
            KeyError: Always: with the reason, or with the nearest keys if the key is unknown.
        """
        why = self.unavailable.get(key)
        if why is not None:
            raise KeyError(f"{key} is not available: {why.reason}" + (f" ({why.detail})" if why.detail else ""))
        import difflib  # takes milliseconds, so it is imported only for an error

        known = [*self, *self.unavailable]
        part = ".".join(str(key).split(".")[:2]) + "."
        near = difflib.get_close_matches(str(key), [name for name in known if name.startswith(part)] or known)
        raise KeyError(f"no metric {key!r}" + (f"; the nearest: {', '.join(near)}" if near else ""))


class Snapshot:
    """The result of one reading: a view of a header and its row of numbers.

    Several receivers may share it, so its mappings are read-only. ``dict(snapshot.metrics)`` makes a copy that can be changed.

    Attributes:
        time_ns: When it was put together, in nanoseconds since 1970 (UTC). Documents have microseconds; snapshots that agree to the
            microsecond are equal.
        hostname: The machine's name.
        metrics: Finite ints and floats by key. A missing value is absent, and ``[]`` raises a :class:`KeyError` with the reason.
        identities: The devices, each with its place.
        unavailable: By key, the reason for a missing value.
        backends: The status of each source.
        processes: By device key, the processes that use the device; no entry if the source cannot list them.
        unlisted: By device key, the reason why the source cannot list its processes, if it gives one.
        topology: How the devices are connected; None unless requested.
    """

    __slots__ = (
        "_by_device",
        "_devices",
        "_header",
        "_host",
        "_metrics",
        "_numbers",
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

    def __init__(  # noqa: PLR0913, PLR0917 - one for each part of a document
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
        """Return a snapshot of a header and the numbers of its keys.

        Args:
            header: The snapshot without its numbers.
            numbers: The numbers, in the order of the header's keys.
            time_ns: As in the class.
            backends: As in the class.
            processes: As in the class.
            metrics: The numbers by key, if the caller has them. Copying this dict takes a tenth of the time of making it from keys.
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
        """The snapshot without its numbers. Snapshots that differ only in numbers have the same object."""
        if self._header is None:
            parts = tuple(self.metrics), self.identities, self.unavailable, without_numbers(self.backends), self.unlisted
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
        """The host's metrics, typed: the same numbers as in ``metrics``, None for a missing one."""
        if self._host is None:
            from accelmetrics.schemas.typed_views import host_metrics

            self._host = host_metrics(self.metrics)
        return self._host

    def device(self, name: str | int) -> Device:
        """Return the device with this key (``gpu.0``) or UUID. A number ``n`` is ``gpu.n``, as in ``gpus=``.

        Raises:
            UnknownNameError: No device of this snapshot has that key or UUID.
        """
        wanted = f"gpu.{name}" if isinstance(name, int) else name
        for device in self.devices:
            if wanted and wanted in (device.key, device.uuid):
                return device
        raise UnknownNameError("device", wanted, (known for device in self.devices for known in (device.key, device.uuid) if known))

    def with_metrics(self, more: Mapping[str, int | float]) -> Snapshot:
        """Return a copy with more metrics."""
        wider = self.header.with_keys(tuple(more))
        if wider is None:
            return self.with_values({**self.metrics, **more}, self.unavailable)
        rest = (self.time_ns, self.backends, self.processes)
        return Snapshot.of(wider, (*self.numbers, *more.values()), *rest, topology=self.topology)

    def with_topology(self, topology: Topology) -> Snapshot:
        """Return a copy that includes how the devices are connected."""
        return Snapshot.of(self.header, self.numbers, self.time_ns, self.backends, self.processes, topology=topology)

    def with_values(self, metrics: dict[str, int | float], unavailable: Mapping[str, Unavailable]) -> Snapshot:
        """Return a copy with other metrics and reasons."""
        rest = (self.backends, self.processes, self.unlisted, self.topology)
        return Snapshot(self.time_ns, self.hostname, metrics, self.identities, unavailable, *rest)

    def selected(self, selection: MetricSelection) -> Snapshot:
        """Return a snapshot with the selected metrics only; this one if everything is selected."""
        if selection.everything:
            return self
        narrower, places = self.header.selected(selection.wants, selection)
        numbers = tuple([self.numbers[place] for place in places])
        return Snapshot.of(narrower, numbers, self.time_ns, self.backends, self.processes, topology=self.topology)

    def flat(self) -> dict[str, int | float]:
        """Return the metrics as a new dict."""
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

        Lone surrogates, Python's representation of bytes that are not UTF-8 (in the name of a mount point, for example), are not
        valid text. Each one is written as its escape: ``/d\udcff`` becomes the eight letters that you see here.

        Raises:
            DocumentError: A value is not finite, which JSON cannot represent.
        """
        return to_text(self.to_dict(), indent, "snapshot")

    @classmethod
    def from_json(cls, text: str | bytes) -> Snapshot:
        """Return the snapshot of a document that ``to_json`` wrote, in any release with the same major schema version.

        Unknown reasons are kept, unknown fields are ignored.

        Raises:
            DocumentError: The text is not a valid document. The message says where it deviates.
        """
        from accelmetrics.schemas.document import parse

        return parse(text)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot of a document as plain containers, from ``json.loads`` or :meth:`to_dict`.

        See :meth:`from_json`.

        Raises:
            DocumentError: It is not a valid document. The message says where it deviates.
        """
        from accelmetrics.schemas.document import parse

        return parse(document)

    def __eq__(self, other: object) -> bool:
        return self._comparable() == other._comparable() if isinstance(other, Snapshot) else NotImplemented

    def _comparable(self) -> tuple[object, ...]:
        _, hostname, metrics, identities, *rest = self._parts()
        return (self.time_ns // 1000, hostname, metrics, [slot._replace(listed_by="") for slot in identities], *rest)

    def _parts(self) -> tuple[Any, ...]:
        """Return the constructor's arguments as plain containers, because shared or proxied mappings do not pickle."""
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
        """Return a table of the devices, for notebooks."""
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
    """A snapshot's values, reasons and processes, grouped by device on demand.

    Devices refer to this object instead of the snapshot, which refers to them. Without a reference cycle, a snapshot is freed at
    once, not by the garbage collector.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.processes = snapshot.processes
        self._metrics, self._unavailable, self._identities = snapshot.metrics, snapshot.unavailable, snapshot.identities

    @cached_property
    def places(self) -> _Places:
        return _places(tuple(self._metrics), self._identities)

    @cached_property
    def _grouped(self) -> dict[str, dict[str, int | float]]:
        return _group(self._metrics, self.places)

    @cached_property
    def _reasons(self) -> dict[str, dict[str, Unavailable]]:
        return _group(self._unavailable, _places(tuple(self._unavailable), self._identities))

    def values_of(self, part: str) -> dict[str, int | float]:
        return self._grouped.get(part, {})

    def reasons_of(self, part: str) -> dict[str, Unavailable]:
        return self._reasons.get(part, {})


def has_values(snapshot: Snapshot, part: str) -> bool:
    """Return whether a device, or another part, gave a value. Counts of events do not count: a lost device has them too."""
    return answered(snapshot._sorted().places.get(part, ()))


def own_processes(snapshot: Snapshot) -> dict[str, tuple[DeviceProcess, ...] | Unavailable]:
    """Return by device, in order, its processes or the reason why they are unknown. Each process appears once per device.

    If a device's partitions list their processes, only these lists are used; otherwise only the device's own list.
    """
    slots = snapshot.identities
    whole_devices = {slot.identity.anchor for slot in slots if not slot.identity.parent}
    split = {slot.identity.parent for slot in slots if slot.identity.parent and slot.key in snapshot.processes}

    def counts(identity: DeviceIdentity) -> bool:
        if not identity.parent:
            return identity.anchor not in split
        return identity.parent in split or identity.parent not in whole_devices  # its device may not have been chosen

    return {slot.key: snapshot.processes.get(slot.key, snapshot.unlisted.get(slot.key, NO_LIST)) for slot in slots if counts(slot.identity)}


class DeviceInfo(DeviceFields):
    """A device's identity and its place.

    Attributes:
        key: The device's key, and the prefix of its metrics' keys: ``gpu.0``.
        index: The number in its key.
        visible_index: Its position under the vendor's ``*_VISIBLE_DEVICES``; None if that hides it.
        parent: Key of the device that it is a partition of (or that device's UUID, if it is not reported); None for a whole device.
        identity: The properties that do not change, as one record. The other attributes are its fields, described by
            :class:`~accelmetrics.schemas.identity.DeviceIdentity`.
        clocks: The clocks that it can be set to, or the reason why they are unknown; None unless requested.
    """

    __slots__ = ("clocks", "identity", "index", "key", "parent", "visible_index")

    def __init__(self, slot: DeviceSlot, parent: str | None = None, clocks: SupportedClocks | Unavailable | None = None) -> None:
        self.key, self.index, self.visible_index, self.identity, _ = slot
        self.parent: str | None = parent
        self.clocks = clocks

    if not TYPE_CHECKING:  # type checkers get the fields from `DeviceFields`
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
    """Yield the parent of each reported device: its key, or its UUID if it is not reported; None for whole devices."""
    keys = {slot.identity.anchor: slot.key for slot in slots if not slot.identity.parent}
    for key, _, _, identity, _ in slots:
        above = identity.parent and (keys.get(identity.parent) or key.rpartition(f".{PARTITION}.")[0] or identity.parent)
        yield above or None


class Device(DeviceInfo):
    """A device in a snapshot: its identity and its values."""

    __slots__ = ("_metrics", "_process_metrics", "_sorted")

    def __init__(self, values: _ByDevice | Snapshot, slot: DeviceSlot, parent: str | None = None) -> None:
        super().__init__(slot, parent)
        self._sorted = values
        self._metrics: DeviceMetrics | None = None
        self._process_metrics: ProcessMetrics | None = None

    @property
    def metrics(self) -> DeviceMetrics:
        """The device's metrics, typed: the same numbers as in ``snapshot.metrics``, None for a missing one."""
        if self._metrics is None:
            from accelmetrics.schemas.typed_views import device_metrics

            self._metrics = device_metrics(self.kind, self.values)
        return self._metrics

    @property
    def process_metrics(self) -> ProcessMetrics | None:
        """The watched process's use of the device (``gpu.process.{i}.…``); None while it does not use it.

        A partition has none: the use of a partition is included in the whole device's.
        """
        values = {} if self.parent else self._sorted.values_of(f"{self.kind}.process.{self.index}")
        if self._process_metrics is None and values:
            from accelmetrics.schemas.typed_views import process_metrics

            self._process_metrics = process_metrics(values)
        return self._process_metrics

    @property
    def values(self) -> Mapping[str, int | float]:
        """The device's metrics by name (``powerWatts``), including names that only a plug-in knows."""
        return self._sorted.values_of(self.key)

    @property
    def unavailable(self) -> Mapping[str, Unavailable]:
        """By name (``fanSpeed``), the reason for a missing value of the device."""
        return self._sorted.reasons_of(self.key)

    @property
    def processes(self) -> tuple[DeviceProcess, ...] | None:
        """The processes that use the device; None if the source cannot list them."""
        return self._sorted.processes.get(self.key)

    def __repr__(self) -> str:
        return f"<Device {self.key} {self.vendor} {self.name!r}: {len(self.values)} metrics, {len(self.unavailable)} unavailable>"


def to_text(document: Mapping[str, Any], indent: int | None, what: str, separators: tuple[str, str] | None = None) -> str:
    """Return a document as JSON text; see :meth:`Snapshot.to_json`."""
    import json

    try:
        text = json.dumps(document, indent=indent, separators=separators, allow_nan=False)
    except ValueError as error:
        raise DocumentError(f"the {what} cannot be written as JSON: {error}") from error
    return surrogates_escaped(text)


def surrogates_escaped(text: str) -> str:
    """Return JSON text in which the escapes of lone surrogates are escaped again, so that they read back as six letters."""
    if "\\ud" not in text:
        return text
    import re

    escapes = re.compile(r"\\\\|\\ud[89ab]..\\ud[c-f]..|(\\ud[89a-f]..)")
    return escapes.sub(lambda found: "\\" + found[0] if found[1] else found[0], text)


def rfc3339(time_ns: int) -> str:
    """Format nanoseconds since 1970 as text, truncated to the microsecond."""
    return f"{rfc3339_second(time_ns)[:-1]}.{time_ns % _NANOSECONDS // 1000:06}Z"


def rfc3339_second(time_ns: int) -> str:
    """Format nanoseconds since 1970 as text, truncated to the second."""
    minutes, second = divmod(time_ns // _NANOSECONDS, 60)
    return f"{_to_the_minute(minutes)}:{second:02}Z"


@lru_cache(maxsize=4)
def _to_the_minute(minutes: int) -> str:
    year, month, day, hour, minute, *_ = time.gmtime(60 * minutes)
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}"


def device_entry(slot: DeviceSlot) -> dict[str, Any]:
    """Return a device as in documents."""
    identity = slot.identity._asdict()
    head = {"key": slot.key, "kind": identity.pop("kind"), "vendor": identity.pop("vendor"), "index": slot.index}
    return {**head, "vendor_index": identity.pop("vendor_index"), "visible_index": slot.visible_index, **identity}


def reason_entry(why: Unavailable) -> dict[str, str]:
    """Return the reason for a missing value as in documents."""
    return {"reason": str(why.reason), "detail": why.detail}


def _group(flat: Mapping[str, _T], places: _Places) -> dict[str, dict[str, _T]]:
    values = tuple(flat.values())
    return {part: FrozenDict({name: values[place] for name, place in below.items()}) for part, below in places.items()}


@lru_cache(maxsize=8)
def _places(keys: tuple[str, ...], slots: tuple[DeviceSlot, ...]) -> _Places:
    """Group keys below the longest device part that they begin with."""
    # Cached, because a reading usually has the keys of the one before it.
    groups: dict[str, dict[str, int]] = {}
    for slot in slots:
        groups[slot.key] = {}
        groups[f"{slot.identity.kind}.process.{slot.index}"] = {}
        if slot.identity.kind == "gpu":
            groups[f"torch.{slot.index}"] = {}
    for place, key in enumerate(keys):
        end = key.rfind(".")
        while end > 0 and key[:end] not in groups:
            end = key.rfind(".", 0, end)
        if end > 0:
            groups[key[:end]][key[end + 1 :]] = place
    return groups


def plain(record: Any) -> Any:
    """Return a record as a dict, recursively, with its tuples as lists and its mappings as dicts."""
    if hasattr(record, "_asdict"):
        record = record._asdict()
    if isinstance(record, Mapping):
        return {name: plain(value) for name, value in record.items()}
    return [plain(part) for part in record] if isinstance(record, tuple) else record
