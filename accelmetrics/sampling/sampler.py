"""The sampling API: ``Sampler``, and ``sample()``, which keeps samplers itself."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import lru_cache, partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec

from accelmetrics.backends.contract import Clock
from accelmetrics.backends.guard import at_fork
from accelmetrics.backends.registry import BackendChoice, items_of, named, pinned, select
from accelmetrics.sampling.engine import ReadingCounts, ThreadEngine
from accelmetrics.sampling.options import DEFAULT_OPEN_TIMEOUT, DEFAULT_TIMEOUT, Choice, Isolation, Visible, checked, items
from accelmetrics.sampling.sources import SHARED, SourceRegistry
from accelmetrics.schemas.errors import InvalidOptionError, Unavailable
from accelmetrics.schemas.limits import MAX_SECONDS
from accelmetrics.schemas.selection import ALL, MetricChoice, MetricSelection, refuse_impossible
from accelmetrics.schemas.snapshot import DeviceInfo, Snapshot, parents
from accelmetrics.schemas.topology import Topology

if TYPE_CHECKING:
    from accelmetrics.sampling.coroutines import CoroutineReader
    from accelmetrics.sampling.isolation import ProcessEngine

P = ParamSpec("P")
MOST_SHARED = 8
"""Samplers that :func:`sample` keeps; the one that was not used for the longest time is dropped, and closes what no other uses."""


class Sampler:
    """Reads the selected backends, each time it is asked, within a deadline.

    Opening is lazy: the first :meth:`sample` detects and opens. Samplers in one process share drivers and device numbers,
    and each has its own intervals: one never shortens the other's rates. Safe from any thread; works on in a forked child.

    Args:
        backends: Names, or backend objects, to read, as a list or as a text: ``"accelerators"`` is all but the host, ``"-amd"`` all but
            AMD. All that are registered when left out. One named here is opened whatever detection says.
        metrics: The metrics to report: presets, names, keys and patterns, such as ``"core"`` or ``"standard,-nvlink*"``; all when left
            out. Calls into a driver that give none of them are not made. See docs/selection.md.
        gpus: Devices to report, by number (``0`` is ``gpu.0``), key or UUID; all when left out.
        visible: Report only the devices that the watched process sees by its ``*_VISIBLE_DEVICES``; ``"renumber"`` also
            gives them its numbers. What it sees is found out at the first reading. See docs/visible-devices.md.
        pid: The process watched by ``cpu``, ``proc.…`` and ``gpu.process.…``; this one when left out.
        children: Whether its descendants are watched with it.
        disk_paths: Mount points whose usage is reported.
        timeout: Seconds within which :meth:`sample` answers. A source that has not answered is ``timed_out``.
        open_timeout: Seconds that the first :meth:`sample` waits for sources that are still opening.
        isolation: ``"thread"`` reads in this process; ``"process"`` in a child, for drivers that may hang beyond
            repair, libraries that may call ``exit``, and interpreters that are busy.
        amd_source: The one source to read AMD's GPUs from: ``"sysfs"``, ``"amdsmi"``, ``"amd-smi"`` or ``"rocm-smi"``; the
            best that opens when left out.
        clock: Where intervals and timestamps come from; only tests give one.

    Raises:
        InvalidOptionError: An option that cannot be used.
        UnknownNameError: A backend, a source of one, or a metric that does not exist.
    """

    def __init__(  # noqa: PLR0913 - every option is a keyword with a default
        self,
        backends: BackendChoice | None = None,
        *,
        metrics: MetricChoice = ALL,
        gpus: Sequence[Choice] | None = None,
        visible: Visible = False,
        pid: int | None = None,
        children: bool = False,
        disk_paths: Sequence[str] = ("/",),
        timeout: float = DEFAULT_TIMEOUT,
        open_timeout: float = DEFAULT_OPEN_TIMEOUT,
        isolation: Isolation = "thread",
        amd_source: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        backends = items_of(backends)
        chosen = pinned(select(backends), {"amd": amd_source})  # first: a plug-in's metrics are known then
        options = checked(
            metrics=metrics,
            gpus=gpus,
            visible=visible,
            pid=pid,
            children=children,
            disk_paths=disk_paths,
            timeout=timeout,
            open_timeout=open_timeout,
        )
        kinds = [backend.kind for backend in chosen]
        refuse_impossible(options.metrics, devices=any(kind is not None for kind in kinds), host=None in kinds)
        self._names = tuple(backend.name for backend in chosen)
        self._check = check_of(options.metrics)
        self._engine: ThreadEngine | ProcessEngine
        if isolation == "thread":
            self._engine = ThreadEngine(SHARED if clock is None else SourceRegistry(clock), chosen, named(backends), options)
        elif isolation == "process":
            from accelmetrics.sampling.isolation import ProcessEngine

            self._engine = ProcessEngine(chosen, named(backends), options)
        else:
            raise InvalidOptionError(f"isolation is {isolation!r}: it must be 'thread' or 'process'")
        self._coroutines: CoroutineReader | None = None

    def sample(self, max_age: float = 0.0, topology: bool = False) -> Snapshot:
        """Read everything once.

        Args:
            max_age: Seconds. A reading of this sampler that began no longer ago than this is returned once more, and nothing is
                read: many threads that ask at the same time cause one reading, whose snapshot cannot be written to.
            topology: Say in the snapshot how the devices are connected, as :meth:`topology` does. That may take ``timeout`` once more.

        Returns:
            A snapshot, within the deadline, whatever a driver does: what could not be read is in ``unavailable``.

        Raises:
            InvalidOptionError: ``max_age`` cannot be used.
            UnknownNameError: ``gpus`` names a device that is not there; found out at the first reading.
            DocumentError: Only with ``ACCELMETRICS_VALIDATE=1`` in the environment, which has every snapshot checked
                against the schema: some backend broke it.
        """
        snapshot = self._engine.sample(checked_age(max_age) if max_age != 0 else 0.0)
        if topology:
            snapshot = snapshot.with_topology(self.topology())
        return snapshot if self._check is None else self._check(snapshot)

    async def asample(self, max_age: float = 0.0) -> Snapshot:
        """Read everything once, as :meth:`sample`, while the caller's event loop runs on.

        Coroutines of any loops that wait at the same time share a reading that began after they asked. One that is cancelled
        stops waiting at once.

        Args:
            max_age: As for :meth:`sample`.

        Raises:
            InvalidOptionError: ``max_age`` cannot be used; so do the others that :meth:`sample` raises.
        """
        if (young := self._engine.latest(time.monotonic() - checked_age(max_age))) is not None:
            return young
        if self._coroutines is None:
            from accelmetrics.sampling.coroutines import CoroutineReader

            self._coroutines = CoroutineReader()
        return await self._coroutines.read(self.sample)

    def devices(self, clocks: bool = False) -> tuple[DeviceInfo, ...]:
        """List the selected devices, without reading any metric.

        The first call opens the drivers and waits for them, ``open_timeout`` at most; later ones ask nothing of a driver that stays open.
        A device whose driver has gone stays listed. With ``isolation="process"`` the devices are those of the last reading, and the first
        call takes one.

        Args:
            clocks: Say of each which clocks it can be set to. What drivers are asked for that has the ``timeout`` of a reading.

        Raises:
            UnknownNameError: ``gpus`` names a device that is not there.
        """
        described = self._engine.describe() if clocks else None
        slots = self._engine.list_devices()
        if described is None:
            return tuple(map(DeviceInfo, slots, parents(slots)))
        from accelmetrics.sampling.topology import NOT_TOLD

        told = (described.get(slot.key, NOT_TOLD) for slot in slots)
        return tuple(map(DeviceInfo, slots, parents(slots), (each if isinstance(each, Unavailable) else each.clocks for each in told)))

    def topology(self) -> Topology:
        """Say how the selected devices are connected with each other and with network cards: PCIe, NUMA nodes, NVLink, XGMI.

        What PCIe has between devices of any vendor is read from the kernel. Links are what drivers tell, within the ``timeout`` of a
        reading; a device that does not answer leaves the reason in its own connections. What was told is kept until a driver is opened
        again: ``gpu.{i}.nvlink.{link}.state`` says which links are up now.

        Raises:
            UnknownNameError: ``gpus`` names a device that is not there.
        """
        from accelmetrics.sampling.topology import connect

        described = self._engine.describe()
        return connect(self._engine.list_devices(), described)

    @property
    def statistics(self) -> ReadingCounts:
        """How many snapshots were taken, and how many of them were timed out or late."""
        return self._engine.statistics

    def close(self) -> None:
        """Close what no other sampler uses. The sampler may be used again: it opens anew."""
        self._engine.close()

    def __repr__(self) -> str:
        return f"<Sampler of {', '.join(self._names)}: {self.statistics.readings} readings>"

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def checked_age(seconds: object) -> float:
    """Return how old a reading may be.

    Raises:
        InvalidOptionError: It is no number of seconds from 0 on.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= MAX_SECONDS:
        raise InvalidOptionError(f"max_age is {seconds!r}: it must be a number of seconds from 0 to {MAX_SECONDS:,.0f}")
    return float(seconds)


def moment_of(snapshot: Snapshot, began: float, now: float) -> float:
    """Return when devices were read: at the first reading a driver may take seconds to open, for which nothing is known.

    Args:
        snapshot: The reading.
        began: When it began, on a monotonic clock.
        now: The moment on that clock, just after it.
    """
    ages = [status.age_seconds for status in snapshot.backends if status.age_seconds is not None]
    return max(began, now - min(ages, default=float("inf")))


def check_of(metrics: MetricSelection) -> Callable[[Snapshot], Snapshot] | None:
    """Return what snapshots of these metrics go through: the whole schema with ``ACCELMETRICS_VALIDATE=1``, else nothing."""
    if os.environ.get("ACCELMETRICS_VALIDATE") != "1":
        return None
    from accelmetrics.schemas.validation import validate

    def checked_one(snapshot: Snapshot) -> Snapshot:
        validate(snapshot, metrics)
        return snapshot

    return checked_one


_shared = lru_cache(MOST_SHARED)(Sampler)
_making = threading.RLock()
"""Held while one is looked up, so that calls of several threads make one; a fork waits for it and gives it back on both sides."""
at_fork(before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release)


def sample(  # noqa: PLR0913 - every option is a keyword with a default
    backends: BackendChoice | None = None,
    *,
    metrics: MetricChoice = ALL,
    gpus: Sequence[Choice] | None = None,
    visible: Visible = False,
    pid: int | None = None,
    children: bool = False,
    disk_paths: Sequence[str] = ("/",),
    timeout: float = DEFAULT_TIMEOUT,
    open_timeout: float = DEFAULT_OPEN_TIMEOUT,
    isolation: Isolation = "thread",
    amd_source: str | None = None,
    max_age: float = 0.0,
    topology: bool = False,
) -> Snapshot:
    """Read everything once. The options are those of :class:`Sampler`; calls with equal ones share one sampler.

    With ``max_age``, a reading of theirs that began no more than so many seconds ago is returned once more; with ``topology``, the snapshot
    says how the devices are connected: see :meth:`Sampler.sample`.
    """
    sampler = _sampler(
        backends,
        metrics=metrics if isinstance(metrics, str) else hashable(metrics),
        gpus=hashable(gpus),
        visible=visible,
        pid=pid,
        children=children,
        disk_paths=hashable(disk_paths),
        timeout=timeout,
        open_timeout=open_timeout,
        isolation=isolation,
        amd_source=amd_source,
    )
    return sampler.sample(max_age, topology)


def devices(  # noqa: PLR0913 - every option is a keyword with a default
    backends: BackendChoice | None = None,
    *,
    gpus: Sequence[Choice] | None = None,
    visible: Visible = False,
    pid: int | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    open_timeout: float = DEFAULT_OPEN_TIMEOUT,
    isolation: Isolation = "thread",
    amd_source: str | None = None,
    clocks: bool = False,
) -> tuple[DeviceInfo, ...]:
    """List the devices, without reading any metric. The options are those of :class:`Sampler`; see :meth:`Sampler.devices`."""
    how = {"timeout": timeout, "open_timeout": open_timeout, "isolation": isolation, "amd_source": amd_source}
    return _for_devices(backends, gpus, visible=visible, pid=pid, **how).devices(clocks)


def topology(
    backends: BackendChoice | None = None,
    *,
    gpus: Sequence[Choice] | None = None,
    visible: Visible = False,
    pid: int | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    open_timeout: float = DEFAULT_OPEN_TIMEOUT,
    isolation: Isolation = "thread",
    amd_source: str | None = None,
) -> Topology:
    """Say how the devices are connected. The options are those of :class:`Sampler`; see :meth:`Sampler.topology`."""
    how = {"timeout": timeout, "open_timeout": open_timeout, "isolation": isolation, "amd_source": amd_source}
    return _for_devices(backends, gpus, visible=visible, pid=pid, **how).topology()


def _for_devices(backends: BackendChoice | None, gpus: Sequence[Choice] | None, **options: Any) -> Sampler:
    """Return the sampler that lists devices with these options: the one of :func:`sample` with the same."""
    return _sampler(backends, metrics=ALL, gpus=hashable(gpus), children=False, disk_paths=("/",), **options)


def _sampler(backends: BackendChoice | None, **options: Any) -> Sampler:
    """Return the sampler that calls with these options share."""
    chosen = hashable(backends)
    try:
        with _making:
            return _shared(chosen, **options)
    except TypeError:  # an option that cannot be used, or a backend that cannot be hashed
        return Sampler(chosen, **options)


def hashable(value: Any) -> Any:
    """Turn a list into what can be hashed; anything else, a text too, as it is, for :class:`Sampler` to refuse."""
    listed = items(value)
    return value if listed is None else listed


@lru_cache(MOST_SHARED)
def _shared_for_coroutines(*args: object, **options: object) -> CoroutineReader:
    """Return the reader of all calls with these options."""
    from accelmetrics.sampling.coroutines import CoroutineReader

    return CoroutineReader()


def _for_coroutines(take: Callable[P, Snapshot]) -> Callable[P, Coroutine[Any, Any, Snapshot]]:
    @wraps(take, assigned=("__annotations__",))  # the options, for help() and editors
    async def asample(*args: P.args, **options: P.kwargs) -> Snapshot:
        """Read everything once, as :func:`sample` with the same options, while the caller's event loop runs on.

        Coroutines that wait at the same time, for the same options, share a reading that began after they asked. One that
        is cancelled stops waiting at once.
        """
        given: list[Any] = [hashable(value) for value in args]  # once: an iterator is used up by it
        named: dict[str, Any] = {name: hashable(value) for name, value in options.items()}
        try:
            reader = _shared_for_coroutines(*given, **named)
        except TypeError:  # an option that cannot be used, or a backend that cannot be hashed
            reader = _shared_for_coroutines.__wrapped__()
        return await reader.read(partial(take, *given, **named))

    return asample


asample = _for_coroutines(sample)
