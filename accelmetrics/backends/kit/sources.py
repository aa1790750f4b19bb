"""Backends that can read the same devices in several ways: the first that opens is used, unless one is pinned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from accelmetrics.backends.contract import SYSTEM_CLOCK, Clock, Coverage, Detection, Driver
from accelmetrics.schemas.errors import Reason, SourceError, UnknownNameError
from accelmetrics.schemas.identity import DeviceKind
from accelmetrics.schemas.metric import Metric

Open = Callable[[Clock], Driver]
"""Opens one source, or raises ``SourceError``. It imports what it needs."""


class SourcesBackend:
    """A backend with several sources.

    Args:
        name: The name users select it by.
        kind: The first word of its devices' keys.
        sources: What can be pinned, by name.
        default: What is tried where nothing is pinned, in order; the sources when left out.
        detect: Looks for the hardware.
        coverage: Says which metrics it gives.
        clock: Where intervals are taken from.
        pin: The one source to use; empty for the first that opens.

    Attributes:
        interval: 0: a driver that is read in the background has an interval of its own.
        sources: What can be pinned, by name.
    """

    interval = 0.0

    def __init__(
        self,
        name: str,
        kind: DeviceKind,
        sources: Mapping[str, Open],
        *,
        detect: Callable[[], Detection],
        coverage: Callable[[], Coverage],
        default: Sequence[Open] = (),
        clock: Clock = SYSTEM_CLOCK,
        pin: str = "",
    ) -> None:
        self.name = name
        self.kind: DeviceKind | None = kind
        self.detect = detect
        self.coverage = coverage
        self.clock = clock
        self.pin = pin
        self.sources = tuple(sources)
        self._sources = sources
        self._default = tuple(default) or tuple(sources.values())
        self._pinned: dict[str, SourcesBackend] = {}

    def open(self) -> Driver:
        failures: list[SourceError] = []
        for opener in (self._sources[self.pin],) if self.pin else self._default:
            try:
                return opener(self.clock)
            except SourceError as error:
                failures.append(error.with_traceback(None))  # which holds this list
        # The failure of the best source that is there, with what detection found to be wrong first among the advice.
        first = next((error for error in failures if error.reason != Reason.DRIVER_UNAVAILABLE), failures[0])
        message = "; ".join(dict.fromkeys(error.message for error in (first, *failures)))
        advice = dict.fromkeys(words for words in (self.detect().advice, *(error.advice for error in failures)) if words)
        raise type(first)(first.reason, message, backend=self.name, advice="; ".join(advice))

    def own_metrics(self) -> Iterable[Metric]:
        return ()

    def pinned(self, source: str) -> SourcesBackend:
        """Return this backend with one source: the same object for the same name, so that its users share it.

        Raises:
            UnknownNameError: There is no such source; the message lists those there are.
        """
        if source not in self._sources:
            raise UnknownNameError(f"source of the backend {self.name}", source, self._sources)
        made = SourcesBackend(
            self.name, str(self.kind), self._sources, detect=self.detect, coverage=self.coverage, clock=self.clock, pin=source
        )
        return self._pinned.setdefault(source, made)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by name: in another process it is that process's own."""
        return _registered, (self.name, self.pin)


def _registered(name: str, pin: str) -> object:
    from accelmetrics.backends.registry import load

    backend = load(name)
    return getattr(backend, "pinned")(pin) if pin else backend  # noqa: B009 - not every backend has it
