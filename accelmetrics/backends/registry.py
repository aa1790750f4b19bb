"""Which backends there are: the built-in ones and those that other packages register.

A third-party package registers one object (or a callable without arguments that makes it) under the entry-point group
``accelmetrics.backends``; the built-in ones are registered there too. Their import is cheap by contract, and a plug-in
whose import fails is reported as a backend that cannot be opened: it costs nobody else anything.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn, cast

from accelmetrics.backends.contract import Backend, Detection, Driver
from accelmetrics.backends.guard import guarded
from accelmetrics.schemas.errors import InvalidOptionError, SourceError, UnknownNameError
from accelmetrics.schemas.reasons import Reason, Unavailable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from accelmetrics.schemas.identity import DeviceKind
    from accelmetrics.schemas.metric import Metric

GROUP = "accelmetrics.backends"

BUILT_IN = {
    "nvidia": "accelmetrics.backends.nvidia:backend",
    "amd": "accelmetrics.backends.amd:backend",
    "apple": "accelmetrics.backends.apple:backend",
    "tpu": "accelmetrics.backends.tpu:backend",
    "neuron": "accelmetrics.backends.neuron:backend",
    "graphcore": "accelmetrics.backends.graphcore:backend",
    "host": "accelmetrics.backends.host:backend",
}
"""In the order in which device numbers are given out; third-party backends follow by name. Kept here so that naming a
built-in backend does not pay for a scan of every installed package; a test holds it equal to the entry points."""


class BrokenBackend:
    """Stands in for a plug-in that could not be loaded, so that it is reported like any source that does not open."""

    kind: DeviceKind | None = None
    interval = 0.0

    def __init__(self, name: str, target: str, failure: Unavailable) -> None:
        self.name = name
        self._message = f"the plug-in {target} could not be loaded: {failure.detail}"

    def detect(self) -> Detection:
        """Present, so that the failure is shown."""
        return Detection(True, self._message, advice="fix or uninstall the package that registers it")

    def open(self) -> Driver:
        """Always fails, with the words of the import."""
        self._fail()

    def own_metrics(self) -> Iterable[Metric]:
        """None are known."""
        return ()

    def _fail(self) -> NoReturn:
        raise SourceError(
            Reason.DRIVER_UNAVAILABLE, self._message, backend=self.name, advice="fix or uninstall the package that registers it"
        )


_loaded: dict[str, Backend] = {}


@lru_cache(maxsize=1)
def _plug_ins() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    found = {point.name: point for point in entry_points(group=GROUP)}
    return {name: found[name] for name in sorted(found) if name not in BUILT_IN}


def names() -> tuple[str, ...]:
    """All backends by name, in numbering order."""
    return (*(name for name in BUILT_IN if name != "host"), *_plug_ins(), "host")


def load(name: str) -> Backend:
    """The backend registered under a name, one object for as long as the process lives; a :class:`BrokenBackend` when its import fails.

    Raises:
        UnknownNameError: Nothing is registered under that name.
    """
    backend = _loaded.get(name)
    # Two threads may both make one: both get the same, and nobody waits for a lock that a fork could copy.
    return backend if backend is not None else _loaded.setdefault(name, _load(name))


def forget() -> None:
    """Look for plug-ins anew, and load everything anew: for tests."""
    _plug_ins.cache_clear()
    _loaded.clear()


def _load(name: str) -> Backend:
    target = BUILT_IN.get(name)
    if target is not None:
        return _checked(name, target, lambda: _resolve(target))
    point = _plug_ins().get(name)
    if point is None:
        raise UnknownNameError("backend", name, names())
    return _checked(name, point.value, point.load)


def select(selection: Sequence[str | Backend] | None) -> tuple[Backend, ...]:
    """The backends that a user asked for, in numbering order; all when nothing was asked for.

    Raises:
        UnknownNameError: A name that is not registered.
        InvalidOptionError: The same backend twice, nothing at all, or what is no backend.
    """
    if isinstance(selection, str):
        raise InvalidOptionError(f"backends takes a list of names, not the string {selection!r}: write [{selection!r}]")
    if selection is None:
        return tuple(load(name) for name in names())
    if not isinstance(selection, Iterable):
        raise InvalidOptionError(f"backends takes a list of names or backend objects, not {selection!r}")
    chosen = [load(item) if isinstance(item, str) else _made_by_hand(item) for item in selection]
    if not chosen:
        raise InvalidOptionError(f"backends is empty. Known: {', '.join(names())}")
    listed = [backend.name for backend in chosen]
    twice = {name for name in listed if listed.count(name) > 1}
    if twice:
        raise InvalidOptionError(f"backends names {', '.join(sorted(twice))} more than once")
    return tuple(sorted(chosen, key=_place))


def pinned(backends: Sequence[Backend], sources: Mapping[str, str | None]) -> tuple[Backend, ...]:
    """The backends, of which those named in ``sources`` read the one source that is given there.

    Args:
        backends: The backends.
        sources: By backend, the source's name; None for the best that opens.

    Raises:
        UnknownNameError: The backend has no such source.
        InvalidOptionError: The backend is not among those selected, or is another object that has no sources to choose from.
    """
    wanted = {name: source for name, source in sources.items() if source is not None}
    for name, source in wanted.items():
        if not any(backend.name == name and hasattr(backend, "pinned") for backend in backends):
            raise InvalidOptionError(f"{name}_source is {source!r}, and the backend {name} is not among those that are read")
    return tuple(_pin(backend, wanted.get(backend.name)) for backend in backends)


def _pin(backend: Backend, source: str | None) -> Backend:
    if source is None:
        return backend
    pin: Callable[[str], Backend] = getattr(backend, "pinned")  # noqa: B009 - not every backend has it
    return pin(source)


def _place(backend: Backend) -> tuple[int, str]:
    order = [name for name in BUILT_IN if name != "host"]
    if backend.name == "host":
        return len(order) + 1, ""
    return (order.index(backend.name), "") if backend.name in order else (len(order), backend.name)


def _resolve(target: str) -> object:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _made_by_hand(item: Backend) -> Backend:
    if isinstance(item, type):
        raise InvalidOptionError(f"backends has the class {item.__name__}: give an object of it, {item.__name__}(...)")
    missing = _missing(item)
    if missing:
        raise InvalidOptionError(f"backends has {item!r}: each must be a name or a backend object, and it lacks {', '.join(missing)}")
    return item


def _checked(name: str, target: str, loader: object) -> Backend:
    outcome = guarded(_instance, name, loader)
    if outcome.failure is not None or outcome.value is None:
        return BrokenBackend(name, target, outcome.failure or Unavailable(Reason.DRIVER_ERROR, "it is None"))
    return outcome.value


def _instance(name: str, loader: object) -> Backend:
    loaded = loader() if callable(loader) else loader
    if isinstance(loaded, type) or (callable(loaded) and not hasattr(loaded, "detect")):
        loaded = loaded()
    missing = _missing(loaded)
    if missing:
        raise TypeError(f"it is no backend: it lacks {', '.join(missing)}")
    backend = cast(Backend, loaded)
    if backend.name != name:
        raise ValueError(f"it calls itself {backend.name!r}, not {name!r}")
    return backend


def _missing(candidate: object) -> list[str]:
    """What a backend has and this object lacks."""
    return [part for part in ("name", "kind", "interval", "detect", "open", "own_metrics") if not hasattr(candidate, part)]


def is_registered(backend: Backend) -> bool:
    """Whether this very object is what its name stands for, rather than one made by hand."""
    return (backend.name in BUILT_IN or backend.name in _plug_ins()) and load(backend.name) is backend
