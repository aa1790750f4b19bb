"""Ray: rows of the devices of all nodes of a cluster, for the trainer's logger.

>>> from accelmetrics.integrations.ray import Fleet
>>> with Fleet(interval=1.0) as fleet:                                       # doctest: +SKIP
...     for step in range(steps):
...         logger.log({**train(), **fleet.row()}, step)

An actor on each living node reads the node's devices, and a thread in this process collects the readings. The caller never waits for Ray.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorDiedError, ActorUnschedulableError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from accelmetrics.backends.guard import Outcome, WarnOnce, guarded
from accelmetrics.integrations.ray_allocation import devices_among, node_name
from accelmetrics.integrations.training import (
    BRIEF,
    DEFAULT_PREFIX,
    RowChoice,
    TrainingRun,
    headed,
    measured,
    named,
    report_unused,
    row_choice,
    training,
)
from accelmetrics.sampling.threads import Flag, begin
from accelmetrics.schemas.ring import Ring, Row
from accelmetrics.schemas.selection import MetricChoice
from accelmetrics.schemas.snapshot import Snapshot
from accelmetrics.schemas.statistics import CounterJudge, WindowAggregator
from accelmetrics.schemas.text import clipped

T = TypeVar("T")

NAME = "accelmetrics-"
"""Prefix of an actor's name. The id of its node follows."""
GIVEN_UP = (ActorDiedError, ActorUnschedulableError)
"""Errors after which Ray does not restart an actor."""
KEPT = 256
"""Readings that an actor keeps until they are fetched."""
RESCAN = 5.0
"""Seconds between two queries for living nodes."""
LONGEST_PAUSE = 60.0
"""Seconds between two attempts to create an actor. The first pauses are shorter."""
CLOSING = 5.0
"""Seconds for which ``close`` waits for a call into Ray."""
LONGEST_WAIT = 1.0
"""Seconds for which one call into Ray waits for answers."""
SILENT, SILENT_INTERVALS = 10.0, 5
"""Seconds and intervals after which a node that does not answer has no values. The longer of the two counts."""
LONGEST_WORDS = 300


# The actor's process is part of the answer, because Ray restarts a failed actor, and the numbers of readings then begin again.
Batch = tuple[str, tuple[str, ...], list[Row]]
"""An actor's answer: an id of its process, the keys of its devices, and its readings."""


class NodeReader:
    """The actor of a node. It reads the node's devices and keeps the readings until they are fetched.

    Args:
        interval: Seconds between two readings.
        options: Options of :func:`accelmetrics.training`.
    """

    # Ray may hide devices from an actor that requests none, so the actor reads all devices of the node. It shares readings with the other
    # processes of the job on its node.
    def __init__(self, interval: float, options: Mapping[str, Any]) -> None:
        self._reader = f"{os.getpid()}-{time.monotonic_ns()}"
        self._rows = Ring(KEPT)
        self._devices: tuple[str, ...] = ()
        self._run = _reading(interval, options)
        self._run.monitor.subscribe(self._receive)
        self._run.start()

    def rows(self, reader: str, after: int) -> Batch:
        """Return the readings after number ``after`` of process ``reader``, or all kept readings if that was another process."""
        return self._reader, self._devices, self._rows.after(after if reader == self._reader else 0)

    def _receive(self, snapshot: Snapshot) -> None:
        self._devices = tuple(slot.key for slot in snapshot.identities)
        self._rows.add(snapshot, time.monotonic())


class NodeRows:
    """The state of a node in this process. Readings are aggregated on arrival, so that memory is bounded.

    Args:
        name: The node's name in rows.

    Attributes:
        name: The node's name in rows.
        trouble: Why the node sends no readings, in words. Empty while it does.
        actor: The handle of its actor. None if there is none.
        made: Whether this process created its actor, or an earlier one.
        pending: The reference of the expected answer.
        asked_at: When the answer was requested.
        retry_at: When to call or create an actor again after a failure.
        read: The process of the actor's last answer, and the number of its last reading.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.trouble = "no answer yet"
        self.actor: Any = None
        self.made = False
        self.pending: Any = None
        self.asked_at = self.retry_at = 0.0
        self._pause = 0.5
        self._lock = threading.Lock()
        self.read = "", 0
        self._devices: tuple[str, ...] = ()
        self._last: dict[str, float] = {}
        self._aggregator: WindowAggregator | None = None
        self._judge = CounterJudge()

    def add(self, batch: Batch) -> None:
        """Add an answer of the actor."""
        reader, devices, new_rows = batch
        rows = []
        for row in new_rows:
            following = self.read == (reader, row.number - 1)
            rows.append(row if following else row.but(joined=False))
            self.read = reader, row.number
        if rows:
            with self._lock:
                self._aggregator = self._aggregator or WindowAggregator(rows[0].at, trailing=True)
                self._aggregator.fold(rows)
                self._judge.add(rows)
                self._aggregator.doubts = self._judge.doubts
                self._last = dict(zip(rows[-1].layout, rows[-1].values, strict=True))
                self._devices = devices
        self.trouble, self._pause = "" if self._aggregator is not None else "no reading yet", 0.5

    def fail(self, error: BaseException, now: float) -> str:
        """Record a failed call. Return a description of the error.

        The next call follows after a pause, since Ray restarts a failed actor. An actor that Ray does not restart is replaced.
        """
        self.actor, self.pending = None if isinstance(error, GIVEN_UP) else self.actor, None
        self.trouble = clipped(str(error).strip().rpartition("\n")[2] or type(error).__name__, LONGEST_WORDS)
        self.retry_at, self._pause = now + self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return self.trouble

    def row(self, choice: RowChoice, keys: MetricChoice, stats: Iterable[str]) -> dict[str, float]:
        """Return the values of its devices since the last call. Empty before the first reading and while the node does not answer."""
        selection, chosen = choice(keys, stats)
        with self._lock:
            aggregator = self._aggregator
            if aggregator is None:
                return {}
            self._aggregator = aggregator.following() if aggregator.readings else aggregator
            devices, last = self._devices, self._last
        return {} if self.trouble and not aggregator.readings else measured(aggregator, devices, last, selection, chosen)


class Fleet:
    """Rows of the devices of all nodes of the Ray cluster to which this process is connected.

    New nodes are found, a lost node only loses its own values, and a killed actor is replaced. The methods never raise into the program: an
    error is logged once on the logger ``accelmetrics`` and appears in ``nodes``. There are no rows while Ray is not connected.

    Args:
        interval: Seconds between two readings.
        run: A training run of this process, which the program starts and ends. It provides the rows of this node instead of an actor.
            By default this node has an actor like the others.
        namespace: The namespace of the actors. By default that of the job.
        options: Options of :func:`accelmetrics.training` in each actor: ``backends``, ``metrics`` (by default ``"core"``) …

    Raises:
        InvalidOptionError: An option is invalid. Other errors are those of :func:`accelmetrics.training`.
    """

    def __init__(self, interval: float = 1.0, *, run: TrainingRun | None = None, namespace: str | None = None, **options: Any) -> None:
        _reading(interval, options)  # so that an invalid option raises here, and not in an actor
        self._interval, self._options, self._namespace = interval, options, namespace
        self._run = run
        self._nodes: dict[str, NodeRows] = {}
        self._here = ""
        self._warn = WarnOnce("fleet: ")
        self._choice = row_choice(self._warn)
        self._ended = Flag()
        self._thread: threading.Thread | None = None

    def start(self) -> Fleet:
        """Start in the background. A second start has no effect. A closed fleet starts again."""
        if self._thread is None:
            self._ended = Flag()
            thread = threading.Thread(target=self._gather, args=(self._ended,), name="accelmetrics-fleet", daemon=True)
            failure = begin(thread).failure
            if failure is not None:
                self._warn("thread", f"no thread can be started: {failure.detail}")
                return self
            self._thread = thread
            atexit.register(self.close)  # runs before Ray's own exit handler, so that our thread does not call Ray while it ends
        return self

    def close(self) -> None:
        """Stop, and end the actors that this process created, within seconds. A second close has no effect."""
        thread, self._thread = self._thread, None
        if thread is not None:
            atexit.unregister(self.close)
            self._ended.set()
            thread.join(CLOSING)

    def __enter__(self) -> Fleet:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def nodes(self) -> dict[str, str]:
        """The known living nodes: by name, why a node sends no readings. The reason is empty if it does."""
        return {node.name: node.trouble for node in list(self._nodes.values())}

    def row(
        self, prefix: str = DEFAULT_PREFIX, keys: MetricChoice = BRIEF, stats: Iterable[str] = ("mean",), *unused: object, **unknown: object
    ) -> dict[str, float]:
        """Return the values of all nodes' devices since the last row as a flat dictionary for the trainer's logger. Never waits.

        Names of this node are as in :meth:`TrainingRun.row`. Names of another node have its name in front:
        ``system/node-1/gpu.0.powerWatts``. A reading of another node arrives one interval later. A node that does not answer has no values.

        Args:
            prefix: The prefix of the names, as for :meth:`TrainingRun.row`.
            keys: The metrics: ``"brief"``, or a selection.
            stats: The statistics.
            unused: Not used. Further arguments are reported once.
            unknown: Not used.
        """
        report_unused(self._warn, unused, unknown)
        found = self._run.row(prefix, keys, stats) if self._run is not None else {}
        return {**found, **(self._contain("row", self._rows, prefix, keys, stats) or {})}

    def __repr__(self) -> str:
        nodes = self.nodes
        silent = [f"{name}: {trouble}" for name, trouble in nodes.items() if trouble]
        return f"<Fleet of {len(nodes)} nodes every {self._interval:g} s{''.join(f', {words}' for words in silent)}>"

    def _rows(self, prefix: str, keys: MetricChoice, stats: Iterable[str]) -> dict[str, float]:
        found: dict[str, float] = {}
        head, (_, chosen) = headed(prefix), self._choice(keys, stats)
        for node_id, node in list(self._nodes.items()):
            place = head if node_id == self._here else f"{head}{node.name}/"
            found.update(named(node.row(self._choice, keys, chosen), place))
        return found

    def _gather(self, ended: Flag) -> None:
        """Find nodes and fetch their readings until ``ended`` is set. Then end the actors that this process created."""
        scanned = float("-inf")
        while not ended.is_set():
            began = time.monotonic()
            if not ray.is_initialized():  # most calls of Ray would start a new cluster
                self._warn.user("ray", "Ray is not connected: rows are empty until ray.init() is called")
            else:
                if began >= scanned + RESCAN:
                    scanned = began
                    self._contain("nodes", self._scan)
                self._contain("fetch", self._fetch, began)
            ended.wait(max(0.0, began + self._interval - time.monotonic()))
        nodes, self._nodes = self._nodes, {}
        for node_id, node in nodes.items():
            if node.made and ray.is_initialized():
                guarded(lambda name: _unwrapped(ray.kill)(_unwrapped(ray.get_actor)(name, self._namespace)), f"{NAME}{node_id}")

    def _scan(self) -> None:
        """Add new nodes and remove lost ones. If some nodes offer devices to Ray, other nodes are ignored."""
        self._here = _unwrapped(ray.get_runtime_context)().get_node_id()
        alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        alive = {node_id: node for node_id, node in alive.items() if devices_among(node["Resources"])} or alive
        if self._run is not None:
            alive.pop(self._here, None)
        known = {node_id: node for node_id, node in self._nodes.items() if node_id in alive}
        names = {node.name for node in known.values()}
        for node_id, node in alive.items():
            if node_id not in known:
                known[node_id] = NodeRows(node_name(node, names))
                names.add(known[node_id].name)
        self._nodes = known

    def _fetch(self, now: float) -> None:
        """Call the actor of each node without a pending call, and add the answers that arrive within an interval."""
        pending_nodes: dict[Any, NodeRows] = {}
        for node_id, node in self._nodes.items():
            if node.pending is None and now >= node.retry_at:
                self._check(node, guarded(self._request_rows, node_id, node, now), now)
            if node.pending is not None:
                pending_nodes[node.pending] = node
        if not pending_nodes:
            return
        ready, late = _unwrapped(ray.wait)(list(pending_nodes), num_returns=len(pending_nodes), timeout=min(self._interval, LONGEST_WAIT))
        for answer in ready:
            node = pending_nodes[answer]
            node.pending = None
            outcome = guarded(_unwrapped(ray.get), answer)
            self._check(node, outcome, now)
            if outcome.value is not None:
                node.add(outcome.value)
        for answer in late:
            node = pending_nodes[answer]
            if now - node.asked_at > max(SILENT, SILENT_INTERVALS * self._interval):
                node.trouble = f"no answer for {now - node.asked_at:.0f} s"

    def _check(self, node: NodeRows, outcome: Outcome[Any], now: float) -> None:
        """Record and report the error of a node's call, if it has one."""
        if outcome.error is not None:
            self._warn(f"{node.name} {type(outcome.error)}", f"{node.name}: {node.fail(outcome.error, now)}")

    def _request_rows(self, node_id: str, node: NodeRows, now: float) -> None:
        if node.actor is None:
            name = f"{NAME}{node_id}"
            try:
                node.actor = _unwrapped(ray.get_actor)(name, self._namespace)
            except ValueError:  # no actor has this name
                # The actor reserves no CPU, so that it starts on a busy node too. With get_if_exists, two processes that create it at the
                # same time share it.
                options = {"num_cpus": 0, "max_restarts": -1, "name": name, "namespace": self._namespace, "get_if_exists": True}
                strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
                maker = ray.remote(NodeReader).options(scheduling_strategy=strategy, **options)
                node.actor, node.made = maker.remote(self._interval, self._options), True
        node.pending, node.asked_at = node.actor.rows.remote(*node.read), now

    def _contain(self, what: str, call: Callable[..., T], *arguments: object) -> T | None:
        outcome = guarded(call, *arguments)
        if outcome.failure is not None:
            self._warn(f"{what} {type(outcome.error)}", f"{what} failed: {outcome.failure.detail}")
        return outcome.value


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the unwrapped Ray function, so that calling it after ``ray.shutdown()`` starts no new cluster."""
    # Ray's wrapper connects automatically, and the program may have disconnected since the last check of is_initialized().
    inner: Callable[..., Any] = getattr(function, "__wrapped__", function)
    return inner


def _reading(interval: float, options: Mapping[str, Any]) -> TrainingRun:
    """Return the training run of an actor."""
    return training(interval, **{"metrics": "core", "visible": False, "rules": "none", **options})
