"""A reading's two halves: a header, which rarely changes, and a row of numbers, one for each of the header's keys.

Nearly all that consumers compute from a reading (labels, texts around numbers, which columns are wanted) follows from the header alone.
So they ask `header is previous` to learn whether anything but numbers has changed, and keep what they made in the header itself.
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
KNOWN = 16
"""Headers that are remembered: a key that comes and goes returns to one of them."""


class Header:
    """All of a reading but its numbers. Never changed: a reading that differs has another header.

    :func:`header` makes them, so that equal headers are one object.

    Attributes:
        hostname: The machine's name.
        keys: The keys of the metrics, in the order of the numbers.
        identities: The devices.
        unavailable: By key, why a value is missing.
        backends: The sources, without the numbers of a reading.
        unlisted: By device key, why its processes are not known.
        labels: What tells the stream from others, where the header is that of a file.
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
        """Return what ``make`` gave for this header at the first call with this name.

        Args:
            name: Tells it from what others keep. A consumer whose options matter puts them, or itself, into it.
            make: Called once, or in a race twice; the first result stays.
        """
        found = self._kept.get(name)
        if found is None:
            found = self._kept.setdefault(name, make())
        return cast("T", found)

    def with_keys(self, more: tuple[str, ...]) -> Header | None:
        """Return the header of the same reading with more metrics behind the others; None where one of them is there already."""

        def wider() -> tuple[Header | None]:
            if not self.places.keys().isdisjoint(more):
                return (None,)
            reasons = {key: why for key, why in self.unavailable.items() if key not in more}
            return (header(self.hostname, self.keys + more, self.identities, reasons, self.backends, self.unlisted),)

        return self.kept(("with", more), wider)[0]

    def selected(self, wants: Callable[[str], bool], name: Hashable) -> tuple[Header, list[int]]:
        """Return the header of the wanted metrics and reasons alone, and the places of those metrics in this header's row.

        Args:
            wants: Tells whether a key is wanted.
            name: What the selection is known by: equal names select the same.
        """

        def narrower() -> tuple[Header, list[int]]:
            places = [place for place, key in enumerate(self.keys) if wants(key)]
            reasons = {key: why for key, why in self.unavailable.items() if wants(key)}
            keys = tuple([self.keys[place] for place in places])
            return header(self.hostname, keys, self.identities, reasons, self.backends, self.unlisted), places

        return self.kept(("selected", name), narrower)

    @property
    def places(self) -> Mapping[str, int]:
        """Where the number of each key stands in the row."""
        return self.kept("places", lambda: {key: place for place, key in enumerate(self.keys)})


_known: deque[Header] = deque(maxlen=KNOWN)


def header(  # one argument for each attribute
    hostname: str,
    keys: tuple[str, ...],
    identities: Sequence[DeviceSlot],
    unavailable: Mapping[str, Unavailable],
    backends: tuple[BackendStatus, ...],
    unlisted: Mapping[str, Unavailable],
    labels: Mapping[str, str] = NO_LABELS,
) -> Header:
    """Return the header of these parts: one that is known, where all are equal."""
    slots = tuple(identities)
    for known in tuple(_known):
        if (
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


def standing(backends: Sequence[BackendStatus]) -> tuple[BackendStatus, ...]:
    """Return how sources stand, without the numbers of one reading (durations, ages, counts)."""
    return tuple([BackendStatus(one.name, one.status, one.detail, one.source, devices=one.devices, reason=one.reason) for one in backends])


class NumberTemplate:
    """A text with places for numbers: all that texts of different readings with the same header have in common.

    Args:
        parts: The text, with a number's place in the row where that number stands.
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
        """Return the text with the numbers in their places.

        Args:
            texts: The numbers' own texts, in the order of the row.
        """
        parts = self._parts.copy()
        parts[1::2] = map(texts.__getitem__, self._places)
        return "".join(parts)
