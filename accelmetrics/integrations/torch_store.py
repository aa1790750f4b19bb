"""Rows of the other nodes of a torch job, exchanged through the job's store, without configuration or an open port.

The first rank of each node writes a row into the store after each reading, and the job's first rank reads the rows of the others. This
happens on a separate thread, because the store ends with its process and a node may be lost at any time. This module does not import torch.
It waits until the program has imported it and has a store.
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
"""Seconds after which torch abandons a call into the store."""
LOST, LOST_INTERVALS = 10.0, 5
"""Seconds and intervals after which a node without a new row is lost. The longer of the two counts."""
MOST_FAILURES = 3
"""Consecutive failures after which the store counts as ended."""
LONGEST_ROW = 1 << 20
"""Size in bytes of the longest accepted row."""
CLOSING = 0.5
"""Seconds from the start of closing in which the thread must end. After that it is abandoned."""
# The variables are those of torchrun, Open MPI, Intel MPI and Slurm: processes per node, number of nodes, number of this node.
_HERE = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")
_NODES = ("GROUP_WORLD_SIZE", "SLURM_NNODES")
_NODE = ("GROUP_RANK", "SLURM_NODEID")


NodePlace = tuple[int, int, str, int]
"""The number of a node, the number of nodes, and the address and port of the job's store."""


def node_place(values: Mapping[str, str] | None = None) -> NodePlace | None:
    """Return the place of this process in a job of several nodes, or None if it is not the first rank of a node.

    Args:
        values: The environment. By default that of this process.
    """
    values = os.environ if values is None else values
    _, rank, local = position(values)
    world, here = first_number(values, ("WORLD_SIZE", "SLURM_NTASKS"), least=1), first_number(values, _HERE, least=1)
    node, nodes = first_number(values, _NODE), first_number(values, _NODES, least=1)
    if node is None and rank is not None and here is not None:
        node = rank // here
    # The last node may have fewer processes, so the quotient is rounded up.
    if nodes is None and world is not None and here is not None:
        nodes = -(-world // here)
    port = first_number(values, ("MASTER_PORT",), least=1)
    if local != 0 or node is None or nodes is None or nodes < 2 or not values.get("MASTER_ADDR") or port is None:
        return None
    return node, nodes, values["MASTER_ADDR"], port


class TorchStoreRows:
    """An exchange of rows through the job's store. Each node writes its rows, and the first node reads the rows of the others.

    Args:
        place: The place of this process in the job.
        take: Returns this node's row since its last call, with names that begin with ``/``.
        interval: Seconds between two rows.
    """

    def __init__(self, place: NodePlace, take: Callable[[], Mapping[str, float]], interval: float) -> None:
        self._node, self._nodes, self._address, self._port = place
        self._read_own_row = take
        self._interval = interval
        self._received: dict[int, tuple[int, str, Mapping[str, float], float]] = {}  # by node: number, name, row, time of arrival
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._ended = Flag()
        self._thread = OnDemandThread("accelmetrics-store", bool, self._run)

    def start(self) -> None:
        """Start in the background."""
        if self._pid != os.getpid():  # after a fork, the child has no thread
            self._begin()
        self._ended.clear()
        self._thread.start()

    def end(self) -> None:
        """Stop the exchange, without waiting."""
        self._ended.set()

    def join(self, until: float) -> None:
        """Wait for the end of the thread, at most until a time of ``time.monotonic``, even if a call into the store hangs."""
        while self._thread.alive and time.monotonic() < until:
            time.sleep(0.01)

    def rows(self) -> dict[str, float]:
        """Return the latest rows of the other nodes as a flat dictionary: ``node-1/gpu.0.powerWatts``. Never waits.

        A lost node has no values.
        """
        oldest = time.monotonic() - max(LOST, LOST_INTERVALS * self._interval)
        found: dict[str, float] = {}
        names = {hostname()}
        for node, (_, host, row, at) in sorted(self._received.copy().items()):
            name = f"{host}-{node}" if host in names else host  # nodes may have the same host name, in containers for example
            names.add(name)
            if at >= oldest:
                found.update((f"{name}/{key}", value) for key, value in row.items())
        return found

    def _run(self) -> None:
        """Exchange rows until ``end`` is called or the store has ended."""
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
        """Return a client of the job's store, or None while the program has not created the store."""
        distributed = getattr(sys.modules.get("torch"), "distributed", None)
        made = getattr(distributed, "is_initialized", None)
        if distributed is None or made is None or not (os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or made()):
            return None
        timeout = timedelta(seconds=CALL_TIMEOUT)
        store = distributed.TCPStore(self._address, self._port, is_master=False, wait_for_workers=False, timeout=timeout)
        return distributed.PrefixStore(PREFIX, store)

    def _exchange(self, store: Any, number: int) -> None:
        row = {name.removeprefix("/"): value for name, value in self._read_own_row().items() if isfinite(value)}
        store.set(f"node/{self._node}", json.dumps({"number": number, "name": hostname(), "row": row}))
        for node in range(1, self._nodes) if self._node == 0 else ():
            key = f"node/{node}"
            if store.check([key]):
                message = guarded(_parsed, store.get(key)).value  # another release may have written anything
                if message is not None and (node not in self._received or message[0] != self._received[node][0]):
                    self._received[node] = (*message, time.monotonic())


def _parsed(text: bytes) -> tuple[int, str, Mapping[str, float]]:
    """Return the number, name and row in a text of another node.

    Raises:
        ValueError: The text is too long.
    """
    if len(text) > LONGEST_ROW:
        raise ValueError("the row is too long")
    message = json.loads(text)
    row = {str(key): number for key, value in message["row"].items() if isfinite(number := float(value))}
    return int(message["number"]), str(message["name"]), row
