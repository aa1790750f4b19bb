"""The two parts of a reading: a header, which rarely changes, and a row with a number for each of the header's keys.

Nearly everything that consumers derive from a reading (labels, texts around numbers, selections of columns) depends on the header
only. So they check `header is previous` to learn whether anything but numbers has changed, and cache derived data in the header
itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from accelmetrics.schemas.frozen import FrozenDict, frozen
from accelmetrics.schemas.identity import BackendStatus, DeviceSlot

if TYPE_CHECKING:
    from accelmetrics.schemas.errors import Unavailable

T = TypeVar("T")
NO_LABELS: Mapping[str, str] = FrozenDict()


class Header:
    """A reading without its numbers. Immutable: a reading that differs in anything else has another header.

    Create it by :func:`header`, so that equal headers are one object.

    Attributes:
        hostname: The machine's name.
        keys: The keys of the metrics, in the order of the numbers.
        identities: The devices.
        unavailable: By key, the reason for a missing value.
        backends: The sources, without the numbers of a reading.
        unlisted: By device key, the reason why its processes are unknown.
        labels: The labels of the stream, if the header belongs to a file.
    """

    __slots__ = ("_kept", "backends", "hostname", "identities", "keys", "labels", "unavailable", "unlisted")

    def __init__(
        self,
        hostname: str,
        keys: tuple[str, ...],
        identities: tuple[DeviceSlot, ...],
        unavailable: Mapping[str, Unavailable],
        backends: tuple[BackendStatus, ...],
        unlisted: Mapping[str, Unavailable],
        labels: Mapping[str, str],
    ) -> None:
        self.hostname, self.keys, self.identities, self.backends = hostname, keys, identities, backends
        self.unavailable, self.unlisted, self.labels = frozen(unavailable), frozen(unlisted), frozen(labels)
        self._kept: dict[Hashable, object] = {}

    def __reduce__(self) -> tuple[object, ...]:
        parts = (self.hostname, self.keys, self.identities, self.unavailable, self.backends, self.unlisted)
        return header, (*parts, self.labels)

    def kept(self, name: Hashable, make: Callable[[], T]) -> T:
        """Return the cached result of ``make`` for this header and name.

        Args:
            name: The name of the cache entry. A consumer with options includes these, or itself, in it.
            make: Called on the first use, or twice in a race; the first result is kept.
        """
        found = self._kept.get(name)
        if found is None:
            found = self._kept.setdefault(name, make())
        return cast("T", found)

    def with_keys(self, more: tuple[str, ...]) -> Header | None:
        """Return the header with more metrics appended; None if it already has one of them."""

        def wider() -> tuple[Header | None]:
            if not self.places.keys().isdisjoint(more):
                return (None,)
            reasons = {key: why for key, why in self.unavailable.items() if key not in more}
            return (header(self.hostname, self.keys + more, self.identities, reasons, self.backends, self.unlisted),)

        return self.kept(("with", more), wider)[0]

    def selected(self, wants: Callable[[str], bool], name: Hashable) -> tuple[Header, list[int]]:
        """Return the header with the wanted metrics and reasons only, and the places of its metrics in this row.

        Args:
            wants: Returns whether a key is wanted.
            name: The name of the selection for the cache; selections with equal names must be equal.
        """

        def narrower() -> tuple[Header, list[int]]:
            places = [place for place, key in enumerate(self.keys) if wants(key)]
            reasons = {key: why for key, why in self.unavailable.items() if wants(key)}
            keys = tuple([self.keys[place] for place in places])
            return header(self.hostname, keys, self.identities, reasons, self.backends, self.unlisted), places

        return self.kept(("selected", name), narrower)

    @property
    def places(self) -> Mapping[str, int]:
        """The place of each key's number in the row."""
        return self.kept("places", lambda: {key: place for place, key in enumerate(self.keys)})


# Several recent headers, so that a key that comes and goes does not create new ones.
_known: deque[Header] = deque(maxlen=16)


def header(  # one argument for each attribute
    hostname: str,
    keys: tuple[str, ...],
    identities: Sequence[DeviceSlot],
    unavailable: Mapping[str, Unavailable],
    backends: tuple[BackendStatus, ...],
    unlisted: Mapping[str, Unavailable],
    labels: Mapping[str, str] = NO_LABELS,
) -> Header:
    """Return the header with these parts: a remembered one if all parts are equal."""
    slots = tuple(identities)
    for known in tuple(_known):
        if (
            # Identity first: it is the usual case, and comparing a thousand keys is slow.
            (known.keys is keys or known.keys == keys)
            and (known.unavailable is unavailable or known.unavailable == unavailable)
            and (known.identities is slots or known.identities == slots)
            and known.backends == backends
            and known.hostname == hostname
            and known.unlisted == unlisted
            and known.labels == labels
        ):
            return known
    made = Header(hostname, keys, slots, unavailable, backends, unlisted, labels)
    _known.append(made)
    return made


def without_numbers(backends: Sequence[BackendStatus]) -> tuple[BackendStatus, ...]:
    """Return the sources' statuses without the numbers of a single reading (durations, ages, counts)."""
    return tuple([BackendStatus(one.name, one.status, one.detail, one.source, devices=one.devices, reason=one.reason) for one in backends])


class NumberTemplate:
    """A text with places for numbers: the part of a text that all readings with the same header share.

    Args:
        parts: The text in pieces. An integer in between is the place in the row of the number to insert.
    """

    def __init__(self, parts: Iterable[str | int]) -> None:
        self._places = list[int]()
        self._parts = [""]  # text and room for a number by turns
        for part in parts:
            if isinstance(part, str):
                self._parts[-1] += part
            else:
                self._places.append(part)
                self._parts += ["", ""]

    def fill(self, texts: Sequence[str]) -> str:
        """Return the text with the numbers inserted.

        Args:
            texts: The numbers as texts, in the order of the row.
        """
        parts = self._parts.copy()
        parts[1::2] = map(texts.__getitem__, self._places)
        return "".join(parts)
