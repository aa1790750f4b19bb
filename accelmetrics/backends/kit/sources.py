"""Backends with several ways to read the same devices. The first source that opens is used, unless one is pinned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.backends.contract import SYSTEM_CLOCK, Backend, Clock, Coverage, Detection, Driver
from accelmetrics.backends.kit.system import find_registered
from accelmetrics.schemas.errors import Reason, SourceError, UnknownNameError
from accelmetrics.schemas.identity import DeviceKind
from accelmetrics.schemas.metric import Metric

Open = Callable[[Clock], Driver]
"""Opens one source, or raises ``SourceError``. It imports its own dependencies."""
Self = TypeVar("Self", bound="Pinnable")


class Pinnable:
    """A backend with sources that can be pinned, so that ``accelmetrics verify`` can compare them.

    Attributes:
        name: The name that users select it by.
        sources: The names of the sources that can be pinned.
        pin: The only source to use; empty for no choice.
    """

    name: str
    sources: tuple[str, ...]
    pin = ""

    def __init__(self) -> None:
        self._pinned: dict[str, Any] = {}

    def pinned(self: Self, source: str) -> Self:
        """Return this backend with one source. The same name gives the same object, so that its users share it.

        Raises:
            UnknownNameError: There is no source of that name; the message lists the existing ones.
        """
        if source not in self.sources:
            raise UnknownNameError(f"source of the backend {self.name}", source, self.sources)
        # A copy that shares everything but the pin. If two threads make one, setdefault() keeps the first.
        made = object.__new__(type(self))
        vars(made).update(vars(self), pin=source)
        made._drop_others()
        found: Self = self._pinned.setdefault(source, made)
        return found

    def _drop_others(self) -> None:
        """Drop the state of sources that are not pinned."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a pinned backend by name, so that another process uses its own instance."""
        return (_registered, (self.name, self.pin)) if self.pin else super().__reduce_ex__(protocol)


def _registered(name: str, pin: str) -> object:
    from accelmetrics.backends.registry import load

    backend = load(name)
    return getattr(backend, "pinned")(pin) if pin else backend  # noqa: B009 - not every backend has it


class SourcesBackend(Pinnable):
    """A backend with several sources.

    Args:
        name: The name that users select it by.
        kind: The first word of its devices' keys.
        sources: The sources that can be pinned, by name: a function that opens one, or a backend of the kit, whose own sources can
            then be pinned.
        default: The sources to try if none is pinned, in order; ``sources`` by default.
        detect: Looks for the hardware. Built-in backends are found by their registration.
        coverage: Returns the metrics that the backend reports; by default those of its sources, if each is a backend.
        clock: Clock for intervals.
        pin: The only source to use; empty for the first that opens.

    Attributes:
        interval: Always 0, because a driver that is read in the background has its own interval.
    """

    interval = 0.0

    def __init__(
        self,
        name: str,
        kind: DeviceKind,
        sources: Mapping[str, Open | Backend],
        *,
        detect: Callable[[], Detection] | None = None,
        coverage: Callable[[], Coverage] | None = None,
        default: Sequence[Open | Backend] = (),
        clock: Clock = SYSTEM_CLOCK,
        pin: str = "",
    ) -> None:
        super().__init__()
        self.name = name
        self.kind: DeviceKind | None = kind
        self.detect = detect or (lambda: find_registered(BUILT_IN[name]))
        self.coverage = coverage or self._joined_coverage
        self.clock = clock
        self.pin = pin
        self._sources = sources
        given: Mapping[str, Any] = sources
        self._within = {name: each for each in given.values() if isinstance(each, Pinnable) for name in each.sources}
        self.sources = (*(name for name, each in given.items() if not isinstance(each, Pinnable)), *self._within)
        self._default = tuple(default) or tuple(sources.values())

    def open(self) -> Driver:
        failures: list[SourceError] = []
        within: Any = self._within.get(self.pin)
        pinned = () if not self.pin else (self._sources[self.pin],) if within is None else (within.pinned(self.pin),)
        for source in pinned or self._default:
            try:
                return source(self.clock) if callable(source) else source.open()
            except SourceError as error:
                failures.append(error.with_traceback(None))  # its frames hold this list, so a traceback would make a cycle
        # A source that is installed and fails says more than one that is missing. Detection's advice comes first.
        first = next((error for error in failures if error.reason != Reason.DRIVER_UNAVAILABLE), failures[0])
        message = "; ".join(dict.fromkeys(error.message for error in (first, *failures)))
        advice = dict.fromkeys(words for words in (self.detect().advice, *(error.advice for error in failures)) if words)
        raise type(first)(first.reason, message, backend=self.name, advice="; ".join(advice))

    def own_metrics(self) -> Iterable[Metric]:
        return ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle by name, so that another process uses its own instance."""
        return _registered, (self.name, self.pin)

    def _joined_coverage(self) -> Coverage:
        from accelmetrics.backends.kit.fields import joined_words  # detection does not need it

        given = [source.coverage() for source in self._sources.values() if not callable(source)]
        return given[0]._replace(devices=joined_words(pair for each in given for pair in each.devices.items()))
