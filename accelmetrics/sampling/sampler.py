"""The sampling API: ``Sampler``, and ``sample()``, which keeps samplers for its callers."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import lru_cache, partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec

from accelmetrics.backends.contract import Clock
from accelmetrics.backends.guard import Outcome, at_fork, guarded
from accelmetrics.backends.registry import BackendChoice, items_of, named, pinned, select
from accelmetrics.sampling.engine import ReadingCounts, ThreadEngine
from accelmetrics.sampling.options import DEFAULT_OPEN_TIMEOUT, DEFAULT_TIMEOUT, Choice, Isolation, Visible, checked, items
from accelmetrics.sampling.sources import SHARED, SourceRegistry
from accelmetrics.sampling.threads import OnDemandThread
from accelmetrics.schemas.errors import InvalidOptionError, Unavailable
from accelmetrics.schemas.limits import MAX_SECONDS
from accelmetrics.schemas.selection import ALL, MetricChoice, MetricSelection, refuse_impossible
from accelmetrics.schemas.snapshot import DeviceInfo, Snapshot, parents
from accelmetrics.schemas.topology import Topology

if TYPE_CHECKING:
    import asyncio

    from accelmetrics.sampling.isolation import ProcessEngine

P = ParamSpec("P")
MOST_SHARED = 8
"""Samplers that :func:`sample` keeps. The least recently used one is dropped, which closes sources that no other sampler uses."""
LINGER = 5.0
"""Seconds the thread of a :class:`CoroutineReader` waits for the next request, so that a program that reads every second starts one
thread, not one per reading."""
Request = tuple[Callable[[], Snapshot], "asyncio.AbstractEventLoop", "asyncio.Future[Snapshot]"]
"""A waiting coroutine: the function that takes the reading, the coroutine's event loop, and the future it awaits."""


class Sampler:
    """Reads the selected backends within a deadline, each time it is asked.

    The first :meth:`sample` detects and opens the sources. Samplers in one process share drivers and device numbers. Rates are
    measured over each sampler's own intervals, so one sampler never shortens another's. Safe from any thread; works in a forked
    child.

    Args:
        backends: Names or objects of the backends to read, as a list or a text: ``"accelerators"`` is all but the host, ``"-amd"``
            all but AMD. Default: all that are registered. A backend named here is opened even if detection finds nothing.
        metrics: The metrics to report: presets, names, keys and patterns, for example ``"core"`` or ``"standard,-nvlink*"``. Default:
            all. Driver calls that give none of them are not made. See docs/selection.md.
        gpus: Devices to report, by number (``0`` is ``gpu.0``), key or UUID. Default: all.
        visible: Report only the devices that the watched process sees by its ``*_VISIBLE_DEVICES`` variables; ``"renumber"`` also
            applies its numbers. Its view is determined at the first reading. See docs/visible-devices.md.
        pid: The process watched by ``cpu``, ``proc.…`` and ``gpu.process.…``. Default: this process.
        children: Whether its descendants are watched too.
        disk_paths: Mount points whose usage is reported.
        timeout: Seconds within which :meth:`sample` answers. A source that has not answered by then is ``timed_out``.
        open_timeout: Seconds the first :meth:`sample` waits for sources that are still opening.
        isolation: ``"thread"`` reads in this process. ``"process"`` reads in a child process: for drivers that may hang for good,
            libraries that may call ``exit``, and busy interpreters.
        amd_source: The only source to read AMD GPUs from: ``"sysfs"``, ``"amdsmi"``, ``"amd-smi"`` or ``"rocm-smi"``. Default: the
            best one that opens.
        clock: The clock for intervals and timestamps; for tests.

    Raises:
        InvalidOptionError: An option has an invalid value.
        UnknownNameError: A backend, its source, or a metric does not exist.
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
        chosen = pinned(select(backends), {"amd": amd_source})  # before `checked`, so that a plug-in's metrics are known to it
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
            max_age: Seconds. If a reading of this sampler began no longer ago than this, it is returned again and nothing is read. So
                many threads that ask at the same time cause one reading; its snapshot is read-only.
            topology: Include how the devices are connected, as :meth:`topology` returns it. This may take another ``timeout``.

        Returns:
            A snapshot, within the deadline, even if a driver hangs. Values that could not be read are in ``unavailable``.

        Raises:
            InvalidOptionError: ``max_age`` is invalid.
            UnknownNameError: ``gpus`` names a device that does not exist. This is known at the first reading.
            DocumentError: A backend broke the schema. Only with ``ACCELMETRICS_VALIDATE=1`` in the environment, which has every
                snapshot validated.
        """
        snapshot = self._engine.sample(checked_age(max_age) if max_age != 0 else 0.0)
        if topology:
            snapshot = snapshot.with_topology(self.topology())
        return snapshot if self._check is None else self._check(snapshot)

    async def asample(self, max_age: float = 0.0) -> Snapshot:
        """Read everything once, as :meth:`sample` does, without blocking the caller's event loop.

        Coroutines that wait at the same time, in any event loop, share one reading that began after they asked. A cancelled coroutine
        stops waiting at once.

        Args:
            max_age: As for :meth:`sample`.

        Raises:
            InvalidOptionError: ``max_age`` is invalid. Other errors are those of :meth:`sample`.
        """
        if (young := self._engine.latest(time.monotonic() - checked_age(max_age))) is not None:
            return young
        if self._coroutines is None:
            self._coroutines = CoroutineReader()
        return await self._coroutines.read(self.sample)

    def devices(self, clocks: bool = False) -> tuple[DeviceInfo, ...]:
        """Return the selected devices, without reading any metric.

        The first call opens the drivers and waits for them, at most ``open_timeout``. Later calls ask nothing of a driver that stays
        open. A device stays listed when its driver is lost. With ``isolation="process"`` the devices are those of the last reading;
        the first call takes one.

        Args:
            clocks: Include the clocks that each device can be set to. Drivers are asked for them, within the ``timeout`` of a
                reading.

        Raises:
            UnknownNameError: ``gpus`` names a device that does not exist.
        """
        described = self._engine.describe() if clocks else None
        slots = self._engine.list_devices()
        if described is None:
            return tuple(map(DeviceInfo, slots, parents(slots)))
        from accelmetrics.sampling.topology import NO_DETAILS

        details = (described.get(slot.key, NO_DETAILS) for slot in slots)
        choices = (each if isinstance(each, Unavailable) else each.clocks for each in details)
        return tuple(map(DeviceInfo, slots, parents(slots), choices))

    def topology(self) -> Topology:
        """Return how the selected devices are connected with each other and with network cards.

        Connections are PCIe paths, NUMA nodes, NVLink and XGMI. PCIe paths between devices of any vendor are read from the kernel.
        Links are read from the drivers, within the ``timeout`` of a reading; if a device does not answer, its connections contain the
        reason. Answers are kept until the driver is opened again: ``gpu.{i}.nvlink.{link}.state`` shows which links are up now.

        Raises:
            UnknownNameError: ``gpus`` names a device that does not exist.
        """
        from accelmetrics.sampling.topology import connect

        described = self._engine.describe()
        return connect(self._engine.list_devices(), described)

    @property
    def statistics(self) -> ReadingCounts:
        """The number of snapshots taken, and how many of them were timed out or late."""
        return self._engine.statistics

    def close(self) -> None:
        """Close the sources that no other sampler uses. The sampler can be used again: it opens them again."""
        self._engine.close()

    def __repr__(self) -> str:
        return f"<Sampler of {', '.join(self._names)}: {self.statistics.readings} readings>"

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def checked_age(seconds: object) -> float:
    """Return a valid ``max_age`` in seconds.

    Raises:
        InvalidOptionError: It is not a number of seconds from 0 on.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= MAX_SECONDS:
        raise InvalidOptionError(f"max_age is {seconds!r}: it must be a number of seconds from 0 to {MAX_SECONDS:,.0f}")
    return float(seconds)


def moment_of(snapshot: Snapshot, began: float, now: float) -> float:
    """Return the time of the devices' reading on a monotonic clock.

    The first reading may begin seconds earlier, since drivers take time to open.

    Args:
        snapshot: The reading.
        began: When it began.
        now: The time just after it.
    """
    ages = [status.age_seconds for status in snapshot.backends if status.age_seconds is not None]
    return max(began, now - min(ages, default=float("inf")))


def check_of(metrics: MetricSelection) -> Callable[[Snapshot], Snapshot] | None:
    """Return a function that validates snapshots of these metrics; None unless ``ACCELMETRICS_VALIDATE=1`` is set."""
    if os.environ.get("ACCELMETRICS_VALIDATE") != "1":
        return None
    from accelmetrics.schemas.validation import validate

    def checked_one(snapshot: Snapshot) -> Snapshot:
        validate(snapshot, metrics)
        return snapshot

    return checked_one


_shared = lru_cache(MOST_SHARED)(Sampler)
_making = threading.RLock()
"""Held during a lookup in ``_shared``, so that calls of several threads make one sampler. A fork waits for it, and both sides
release it."""
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
    """Read everything once, with the options of :class:`Sampler`. Calls with equal options share one sampler.

    ``max_age`` and ``topology`` are the arguments of :meth:`Sampler.sample`: the greatest age in seconds of a reading that may be
    returned again, and whether to include how the devices are connected.
    """
    sampler = _sampler(
        backends,
        gpus,
        metrics,
        children,
        disk_paths,
        visible=visible,
        pid=pid,
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
    """Return the devices, without reading any metric, with the options of :class:`Sampler`.

    See :meth:`Sampler.devices`.
    """
    sampler = _sampler(
        backends,
        gpus,
        visible=visible,
        pid=pid,
        timeout=timeout,
        open_timeout=open_timeout,
        isolation=isolation,
        amd_source=amd_source,
    )
    return sampler.devices(clocks)


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
    """Return how the devices are connected, with the options of :class:`Sampler`; see :meth:`Sampler.topology`."""
    sampler = _sampler(
        backends,
        gpus,
        visible=visible,
        pid=pid,
        timeout=timeout,
        open_timeout=open_timeout,
        isolation=isolation,
        amd_source=amd_source,
    )
    return sampler.topology()


def _sampler(
    backends: BackendChoice | None,
    gpus: Sequence[Choice] | None,
    metrics: MetricChoice = ALL,
    children: bool = False,
    disk_paths: Sequence[str] = ("/",),
    **others: Any,
) -> Sampler:
    """Return the sampler shared by all calls with these options."""
    # The callers name the other options in one order, because `lru_cache` distinguishes calls by it.
    listed = {"gpus": hashable(gpus), "metrics": hashable(metrics), "disk_paths": hashable(disk_paths)}
    chosen, options = hashable(backends), {**listed, "children": children, **others}
    try:
        with _making:
            return _shared(chosen, **options)
    except TypeError:  # an option that cannot be used, or a backend that cannot be hashed
        return Sampler(chosen, **options)


def hashable(value: Any) -> Any:
    """Turn a list into a tuple. Return anything else unchanged, for :class:`Sampler` to check."""
    listed = items(value)
    return value if listed is None else listed


class CoroutineReader:
    """A daemon thread that takes readings for the coroutines of any number of event loops.

    It ends some seconds after the last request. It never keeps the interpreter from exiting, and references no sampler between readings.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._thread = OnDemandThread("accelmetrics-coroutines", self._requests.qsize, partial(_serve, self._requests))

    async def read(self, take: Callable[[], Snapshot]) -> Snapshot:
        """Return a reading that began after this call.

        Raises:
            BaseException: The error that ``take`` raised, or the reason why no thread could be started.
        """
        import asyncio  # a program that does not use it need not load it

        if os.getpid() != self._pid:  # in the child of a fork the thread is gone, and its queue may be locked
            self._begin()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Snapshot] = loop.create_future()
        self._requests.put((take, loop, future))
        error = self._thread.start().error
        if error is not None:
            future.cancel()
            raise error
        return await future


def _serve(requests: queue.SimpleQueue[Request]) -> None:
    """Answer requests until none has come for a while. One reading answers all requests that wait."""
    while True:
        try:
            waiting = [requests.get(timeout=LINGER)]
        except queue.Empty:
            return
        while not requests.empty():
            waiting.append(requests.get())
        # All these requests came before the reading begins, so one reading answers all of them.
        waiting = [request for request in waiting if not request[2].cancelled()]
        if waiting:
            outcome = guarded(waiting[0][0])
            for _, loop, future in waiting:
                with suppress(RuntimeError):  # the loop has been closed
                    loop.call_soon_threadsafe(_settle, future, outcome)
            del loop, future, outcome
        del waiting  # a reference here would keep the sampler alive while the thread waits


def _settle(future: asyncio.Future[Snapshot], outcome: Outcome[Snapshot]) -> None:
    if future.done():  # it was cancelled during the reading
        return
    if outcome.error is not None:
        future.set_exception(outcome.error)
    elif outcome.value is not None:
        future.set_result(outcome.value)


@lru_cache(MOST_SHARED)
def _shared_for_coroutines(*args: object, **options: object) -> CoroutineReader:
    """Return the reader shared by all calls with these options."""
    return CoroutineReader()


def _for_coroutines(take: Callable[P, Snapshot]) -> Callable[P, Coroutine[Any, Any, Snapshot]]:
    @wraps(take, assigned=("__annotations__",))  # the options, for help() and editors
    async def asample(*args: P.args, **options: P.kwargs) -> Snapshot:
        """Read everything once, as :func:`sample` does, without blocking the caller's event loop.

        The options are those of :func:`sample`. Coroutines that wait at the same time, with equal options, share one reading that
        began after they asked. A cancelled coroutine stops waiting at once.
        """
        given: list[Any] = [hashable(value) for value in args]  # only once: this consumes an iterator
        named: dict[str, Any] = {name: hashable(value) for name, value in options.items()}
        try:
            reader = _shared_for_coroutines(*given, **named)
        except TypeError:  # an option that cannot be used, or a backend that cannot be hashed
            reader = _shared_for_coroutines.__wrapped__()
        return await reader.read(partial(take, *given, **named))

    return asample


asample = _for_coroutines(sample)
