"""Rows of a torch job's other nodes, by way of the job's own store: nothing is configured, and nothing listens.

The first rank of each node writes its row there, at the pace of its readings; the job's first rank reads those of the others. All of it on
a thread of its own: the store ends with the process that has it, and a node may be lost at any time. torch itself is not imported: until
the program has done so and has its store, there is nothing to do.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from math import isfinite
from typing import Any

from accelmetrics.backends.guard import guarded
from accelmetrics.sampling.engine import hostname
from accelmetrics.sampling.threads import Flag, OnDemandThread
from accelmetrics.visibility.job import first_number, position

PREFIX = "accelmetrics/"
CALL_TIMEOUT = 5.0
"""Seconds after which torch gives a call into the store up."""
LOST, LOST_INTERVALS = 10.0, 5
"""Seconds, and intervals, after which a node that has said nothing new has no row any more: the longer of the two."""
MOST_FAILURES = 3
"""Failures in a row after which the store has ended."""
LONGEST_ROW = 1 << 20
"""Bytes of a row that is believed."""
CLOSING = 0.5
"""Seconds from the beginning of the end within which the thread is waited for."""
_HERE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")
_NODES = ("GROUP_WORLD_SIZE", "SLURM_NNODES")
_NODE = ("GROUP_RANK", "SLURM_NODEID")


NodePlace = tuple[int, int, str, int]
"""Where the first rank of a node stands in its job: the number of its node, how many there are, and the store's address and port."""


def node_place(values: Mapping[str, str] | None = None) -> NodePlace | None:
    """Find where this process stands in a job of several nodes; None unless it is the first rank of one of them.

    Args:
        values: The environment; this process's own when left out.
    """
    values = os.environ if values is None else values
    _, rank, local = position(values)
    world, here = first_number(values, ("WORLD_SIZE", "SLURM_NTASKS"), least=1), first_number(values, _HERE, least=1)
    node, nodes = first_number(values, _NODE), first_number(values, _NODES, least=1)
    if node is None and rank is not None and here is not None:
        node = rank // here
    if nodes is None and world is not None and here is not None:
        nodes = -(-world // here)
    port = first_number(values, ("MASTER_PORT",), least=1)
    if local != 0 or node is None or nodes is None or nodes < 2 or not values.get("MASTER_ADDR") or port is None:
        return None
    return node, nodes, values["MASTER_ADDR"], port


class TorchStoreRows:
    """Writes this node's rows to the job's store, and on its first node reads those of the others.

    Args:
        place: Where this process stands.
        take: Gives this node's row, its names below ``/``, since it was called last.
        interval: Seconds between two rows.
    """

    def __init__(self, place: NodePlace, take: Callable[[], Mapping[str, float]], interval: float) -> None:
        self._node, self._nodes, self._address, self._port = place
        self._take = take
        self._interval = interval
        self._heard: dict[int, tuple[int, str, Mapping[str, float], float]] = {}  # by node: number, name, the latest row, when it came
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._ended = Flag()
        self._thread = OnDemandThread("accelmetrics-store", bool, self._run)

    def start(self) -> None:
        """Begin, in the background."""
        if self._pid != os.getpid():  # the thread stayed behind
            self._begin()
        self._ended.clear()
        self._thread.start()

    def end(self) -> None:
        """Exchange nothing more. Does not wait."""
        self._ended.set()

    def join(self, until: float) -> None:
        """Wait for the thread until a moment of ``time.monotonic``; longer for no call into the store."""
        while self._thread.alive and time.monotonic() < until:
            time.sleep(0.01)

    def rows(self) -> dict[str, float]:
        """Return the latest rows of the other nodes, flat: ``node-1/gpu.0.powerWatts``. A node that is lost has none. Never waits."""
        oldest = time.monotonic() - max(LOST, LOST_INTERVALS * self._interval)
        found: dict[str, float] = {}
        names = {hostname()}
        for node, (_, said, row, at) in sorted(self._heard.copy().items()):
            name = f"{said}-{node}" if said in names else said
            names.add(name)
            if at >= oldest:
                found.update((f"{name}/{key}", value) for key, value in row.items())
        return found

    def _run(self) -> None:
        """Exchange rows until the end, or until the store has ended."""
        store: Any = None
        failures = number = 0
        while not self._ended.wait(self._interval) and failures < MOST_FAILURES:
            if store is None:
                made = guarded(self._connect)
                store, failures = made.value, failures + (made.failure is not None)
                continue
            number += 1
            outcome = guarded(self._exchange, store, number)
            failures = 0 if outcome.failure is None else failures + 1
            if outcome.failure is not None:
                store = None

    def _connect(self) -> Any:
        """Return a client of the job's store; None while the program has not made one."""
        distributed = getattr(sys.modules.get("torch"), "distributed", None)
        made = getattr(distributed, "is_initialized", None)
        if distributed is None or made is None or not (os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or made()):
            return None
        timeout = timedelta(seconds=CALL_TIMEOUT)
        store = distributed.TCPStore(self._address, self._port, is_master=False, wait_for_workers=False, timeout=timeout)
        return distributed.PrefixStore(PREFIX, store)

    def _exchange(self, store: Any, number: int) -> None:
        row = {name.removeprefix("/"): value for name, value in self._take().items() if isfinite(value)}
        store.set(f"node/{self._node}", json.dumps({"number": number, "name": hostname(), "row": row}))
        for node in range(1, self._nodes) if self._node == 0 else ():
            key = f"node/{node}"
            if store.check([key]):
                said = guarded(_parsed, store.get(key)).value  # of another release, it may be anything
                if said is not None and (node not in self._heard or said[0] != self._heard[node][0]):
                    self._heard[node] = (*said, time.monotonic())


def _parsed(text: bytes) -> tuple[int, str, Mapping[str, float]]:
    """Return the number, the name and the row that another node has written."""
    if len(text) > LONGEST_ROW:
        raise ValueError("the row is too long")
    said = json.loads(text)
    row = {str(key): number for key, value in said["row"].items() if isfinite(number := float(value))}
    return int(said["number"]), str(said["name"]), row
