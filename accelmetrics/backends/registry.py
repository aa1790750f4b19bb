"""Registry of all backends: the built-in ones, and the ones that other packages register.

A third-party package registers one object, or a callable without arguments that returns it, under the entry-point group
``accelmetrics.backends``. The built-in backends are registered there too. Importing a plug-in must be cheap. A plug-in whose import fails
is reported as a backend that cannot be opened. A built-in backend whose row says how its hardware is recognised is imported only when it is
opened.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from importlib.util import resolve_name
from typing import TYPE_CHECKING, cast

from accelmetrics.backends import built_in
from accelmetrics.backends.contract import Backend, Coverage, Detection, Driver
from accelmetrics.backends.guard import guarded, warn_user
from accelmetrics.backends.kit.system import find_registered
from accelmetrics.backends.loading import import_modules
from accelmetrics.schemas import plug_ins
from accelmetrics.schemas.errors import InvalidOptionError, Reason, SourceError, UnknownNameError
from accelmetrics.schemas.metric import Metric

if TYPE_CHECKING:
    from accelmetrics.schemas.identity import DeviceKind

GROUP = "accelmetrics.backends"
ENDPOINT = "openmetrics:"
"""Prefix of the address of a metrics endpoint. The address with its prefix is a backend's name."""
ALL, ACCELERATORS = GROUPS = ("all", "accelerators")
"""Words that select several backends at once."""
DISABLE = "ACCELMETRICS_DISABLE"
"""Environment variable with the names of the backends that the user switches off on this machine."""

BackendChoice = str | Sequence[str | Backend]
"""Selection of backends: one text with commas, or a list of names and backend objects."""


class BuiltInBackend:
    """A built-in backend that detects its hardware without importing its module. Opening it imports the module."""

    def __init__(self, row: built_in.Registration) -> None:
        self.name = row.name
        self.kind = row.kind
        self._row = row

    @property
    def interval(self) -> float:
        """The interval of its module. Imports the module."""
        return self._backend.interval

    def detect(self) -> Detection:
        """Look for the hardware that its registration describes."""
        return find_registered(self._row)

    def open(self) -> Driver:
        """Import the module and open the source."""
        return self._backend.open()

    def coverage(self) -> Coverage:
        """Return the coverage that its module declares, from a generated file. Imports nothing."""
        return declared(self.name)

    def own_metrics(self) -> Iterable[Metric]:
        """Return an empty tuple: the rows of built-in backends are in the catalogue."""
        return ()

    @property
    def sources(self) -> Sequence[str]:
        """Names of the sources that can be pinned; empty if there is only one."""
        return getattr(self._backend, "sources", ()) if hasattr(self._backend, "pinned") else ()

    def pinned(self, source: str) -> Backend:
        """Return the backend with this source alone."""
        pinned: Backend = getattr(self._backend, "pinned")(source)  # noqa: B009 - not every backend has it
        return pinned

    @cached_property
    def _backend(self) -> Backend:
        return _import(self.name)


class BrokenBackend:
    """Placeholder for a backend that cannot be used: a plug-in that could not be loaded, or one that the user switched off.

    Args:
        name: Its name.
        message: Why it cannot be used, for ``doctor`` and for the error of opening it.
        kind: The kind of its devices, if known.
        present: Whether it is reported like a source that does not open, so that the user sees the failure.
        advice: What to do.
    """

    interval = 0.0

    def __init__(self, name: str, message: str, kind: DeviceKind | None = None, present: bool = True, advice: str = "") -> None:
        self.name = name
        self.kind = kind
        self._detection = Detection(present, message, advice=advice)

    def detect(self) -> Detection:
        """Return what is wrong."""
        return self._detection

    def open(self) -> Driver:
        """Raise ``SourceError`` with what is wrong."""
        raise SourceError(Reason.DRIVER_UNAVAILABLE, self._detection.evidence, backend=self.name, advice=self._detection.advice)

    def coverage(self) -> Coverage:
        """Return an empty coverage."""
        return Coverage()

    def own_metrics(self) -> Iterable[Metric]:
        """Return an empty tuple."""
        return ()


def declared(name: str) -> Coverage:
    """Return the coverage of a built-in backend, as generated when the package was built; empty for any other name."""
    from accelmetrics.schemas.coverage import COVERAGE

    return Coverage(**COVERAGE.get(name, {}))


def names() -> tuple[str, ...]:
    """List the names of all backends, in the order in which device numbers are assigned."""
    return (*(name for name in plug_ins.names(GROUP, built_in.BUILT_IN) if name != "host"), "host")


_loaded: dict[str, Backend] = {}


def load(name: str) -> Backend:
    """Return the backend with this name, the same object at every call; a :class:`BrokenBackend` if its import fails.

    Raises:
        UnknownNameError: Nothing is registered under this name.
        InvalidOptionError: The name is the address of an endpoint, and the address is invalid.
    """
    if name in _loaded:
        return _loaded[name]
    row = built_in.BUILT_IN.get(name)
    # Checked first, so that a disabled backend is not even imported.
    if name in _switched_off(os.environ.get(DISABLE, "")):
        kind = None if row is None else row.kind
        backend: Backend = BrokenBackend(name, f"switched off by {DISABLE}", kind, present=False)
    elif name.startswith(ENDPOINT):
        from accelmetrics.backends.openmetrics import OpenMetricsBackend

        backend = OpenMetricsBackend(name.removeprefix(ENDPOINT))
    # A row that names no hardware belongs to a backend with its own detection, so its module is imported now.
    elif row is not None and (row.pci or row.nodes or row.drivers):
        backend = BuiltInBackend(row)
    elif row is None and name not in plug_ins.registered(GROUP):
        raise UnknownNameError("backend", name, (*GROUPS, *names()))
    else:
        outcome = guarded(_import, name)
        target = row.target if row is not None else plug_ins.registered(GROUP)[name].value
        why = f"the plug-in {target} could not be loaded: {outcome.failure.detail if outcome.failure is not None else 'it is None'}"
        advice = "fix or uninstall the package that registers it"
        backend = BrokenBackend(name, why, advice=advice) if outcome.value is None else outcome.value
    # Two threads may both create an object. `setdefault` gives both the same one, without a lock that a fork could copy while it is held.
    return _loaded.setdefault(name, backend)


@lru_cache(maxsize=1)
def _switched_off(listed: str) -> frozenset[str]:
    """Return the names in :data:`DISABLE`. Warns the user once about each name that no backend has."""
    # Cached by the variable's value: the warnings appear once, and a test may change the variable.
    off = frozenset(filter(None, map(str.strip, listed.split(","))))
    for name in sorted(off - built_in.BUILT_IN.keys()):
        if not name.startswith(ENDPOINT) and name not in plug_ins.registered(GROUP):
            warn_user(f"{DISABLE}: {UnknownNameError('backend', name, names())}")
    return off


def forget() -> None:
    """Drop the cache of plug-ins and of loaded backends. For tests."""
    plug_ins.registered.cache_clear()
    _switched_off.cache_clear()
    _loaded.clear()


def _import(name: str) -> Backend:
    loaded = plug_ins.load("backend", GROUP, {row.name: row.target for row in built_in.BUILT_IN.values()}, name)
    # The entry point may name a class or a function that returns the backend.
    if isinstance(loaded, type) or (callable(loaded) and not hasattr(loaded, "detect")):
        loaded = loaded()
    if missing := _missing(loaded):
        raise TypeError(f"it is not a backend: it lacks {', '.join(missing)}")
    backend = cast(Backend, loaded)
    if backend.name != name:
        raise ValueError(f"its name is {backend.name!r}, not {name!r}")
    return backend


def prepare(backend: Backend) -> None:
    """Import the modules that a built-in backend needs for opening and reading. A failing import is reported when the backend is opened.

    Raises:
        SourceError: A library that is being loaded hangs, so no module can be imported now (``timed_out``).
    """
    row = built_in.BUILT_IN.get(backend.name)
    if row is not None and not isinstance(backend, BrokenBackend):
        # All at once and before a library is loaded: once a library's constructor hangs, nothing more can be imported.
        import_modules(resolve_name(name, __package__) for name in (f".{row.name}", *row.imports))


def _missing(candidate: object) -> list[str]:
    """Return the required attributes that this object does not have."""
    return [part for part in ("name", "kind", "interval", "detect", "open", "coverage", "own_metrics") if not hasattr(candidate, part)]


def is_registered(backend: Backend) -> bool:
    """Return whether this object is the registered backend of its name, rather than another object with the same name."""
    return (backend.name in built_in.BUILT_IN or backend.name in plug_ins.registered(GROUP)) and load(backend.name) is backend


def items_of(selection: BackendChoice | None) -> tuple[str | Backend, ...] | None:
    """Return the items of a selection, a text split at its commas; None if nothing was selected.

    Raises:
        InvalidOptionError: The selection is neither a text nor a list.
    """
    if selection is None:
        return None
    if isinstance(selection, str):
        return tuple(item.strip() for item in selection.split(","))
    if not isinstance(selection, Iterable):
        raise InvalidOptionError(f"backends takes a list of names or backend objects, not {selection!r}")
    return tuple(selection)


def named(selection: BackendChoice | None) -> frozenset[str]:
    """Return the names of backends that are selected one by one. They are opened even if detection finds nothing."""
    return frozenset(item if isinstance(item, str) else item.name for item in items_of(selection) or ()) - {*GROUPS}


def select(selection: BackendChoice | None) -> tuple[Backend, ...]:
    """Return the selected backends in numbering order; all of them without a selection.

    An item is a name, a backend object, ``all`` or ``accelerators``. ``-`` before a name excludes it. A selection of exclusions alone means
    all other backends.

    Raises:
        UnknownNameError: A name is not registered.
        InvalidOptionError: A backend is selected twice, no backend is left, or an item is no backend.
    """
    items = items_of(selection)
    chosen: list[Backend] = []
    wide: dict[str, None] = {}
    excluded: set[str] = set()
    for item in (ALL,) if items is None else items:
        if isinstance(item, type):
            raise InvalidOptionError(f"backends has the class {item.__name__}: give an object of it, {item.__name__}(...)")
        if not isinstance(item, str):
            if missing := ", ".join(_missing(item)):
                raise InvalidOptionError(f"backends has {item!r}: each must be a name or a backend object, and it lacks {missing}")
            chosen.append(item)
        elif item.startswith("-"):
            excluded.update(_members(item[1:].strip()))
        elif item in GROUPS:
            wide.update(dict.fromkeys(_members(item)))
        else:
            chosen.append(load(item))
    for name in excluded - {backend.name for backend in chosen}:
        if name not in names():
            raise UnknownNameError("backend", name, (*GROUPS, *names()))
    if excluded and not (chosen or wide):
        wide = dict.fromkeys(names())
    one_by_one = {backend.name for backend in chosen}
    chosen += [load(name) for name in wide if name not in excluded | one_by_one]
    chosen = [backend for backend in chosen if backend.name not in excluded]
    if not chosen:
        raise InvalidOptionError(f"backends is empty. Known: {', '.join(names())}")
    listed = [backend.name for backend in chosen]
    if repeated := sorted({name for name in listed if listed.count(name) > 1}):
        raise InvalidOptionError(f"backends names {', '.join(repeated)} more than once")
    for backend in chosen:
        add_own_metrics(backend)
    # Device numbers follow this order: built-in backends, then others by name. The host comes last.
    order = {name: place for place, name in enumerate(built_in.BUILT_IN) if name != "host"}
    return tuple(sorted(chosen, key=lambda backend: (backend.name == "host", order.get(backend.name, len(order)), backend.name)))


def _members(item: str) -> Iterable[str]:
    """Return the names that an item of a selection means."""
    if item == ACCELERATORS:
        # A backend that could not be loaded may have devices: it counts as an accelerator, so that its failure is
        # shown.
        return [name for name in names() if isinstance(backend := load(name), BrokenBackend) or backend.kind is not None]
    return names() if item == ALL else (item,)


def add_own_metrics(backend: Backend) -> tuple[Metric, ...]:
    """Add the rows that only this backend knows to the catalogue, and return them. Invalid rows are reported when it is opened."""
    rows: tuple[object, ...] = guarded(lambda: tuple(backend.own_metrics())).value or ()
    own = tuple(row for row in rows if isinstance(row, Metric))
    if own:
        from accelmetrics.schemas.catalogue import add  # a plain reading does not need the catalogue's tables

        add(own)
    return own


def pinned(backends: Sequence[Backend], sources: Mapping[str, str | None]) -> tuple[Backend, ...]:
    """Return the backends, each one named in ``sources`` reduced to its one source.

    Args:
        backends: The backends.
        sources: By backend name, the name of the source; None for the best source that opens.

    Raises:
        UnknownNameError: The backend has no source of this name.
        InvalidOptionError: The backend is not selected, or has only one source.
    """
    wanted = {name: source for name, source in sources.items() if source is not None}
    # `pinned` is an optional method of the contract.
    pins: dict[str, Callable[[str], Backend]] = {each.name: getattr(each, "pinned") for each in backends if hasattr(each, "pinned")}  # noqa: B009
    for name, source in wanted.items():
        if name not in pins:
            raise InvalidOptionError(f"{name}_source is {source!r}, but the backend {name} is not selected")
    return tuple(pins[backend.name](wanted[backend.name]) if backend.name in wanted else backend for backend in backends)
