"""Rows of a torch job's other nodes, by way of a stand-in for the job's store."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import accelmetrics
from accelmetrics.integrations import torch_store
from accelmetrics.integrations.torch_store import NodePlace, TorchStoreRows, node_place
from accelmetrics.sampling.engine import hostname
from tests.monitor.watching import Recorder, gpus
from tests.support.waiting import HANG, Gate, wait_for

TWO = (0, 2, "127.0.0.1", 29500)


class Store:
    """What torch's store does, in this process.

    Attributes:
        kept: What was written.
        broken: Whether every call fails.
        calls: How many there were.
        hook: Called at each.
    """

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.broken = False
        self.calls = 0
        self.hook: Callable[[], object] = bool

    def _call(self) -> None:
        self.calls += 1
        self.hook()
        if self.broken:
            raise RuntimeError("the store has ended")

    def set(self, key: str, value: str) -> None:
        self._call()
        self.kept[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        self._call()
        return all(key in self.kept for key in keys)

    def get(self, key: str) -> bytes:
        self._call()
        return self.kept[key]

    def say(self, node: int, number: int, row: Any, name: str = "b") -> None:
        """Write as another node does."""
        self.kept[f"node/{node}"] = json.dumps({"number": number, "name": name, "row": row}).encode()


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()

    def client(address: str, port: int, is_master: bool, wait_for_workers: bool, timeout: object) -> Store:
        assert (address, port, is_master, wait_for_workers) == ("127.0.0.1", 29500, False, False)
        made._call()
        return made

    def below(prefix: str, inner: Store) -> Store:
        assert prefix == "accelmetrics/"
        return inner

    distributed = SimpleNamespace(TCPStore=client, PrefixStore=below, is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=distributed))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    return made


@contextmanager
def exchanging(place: NodePlace = TWO, interval: float = 0.01, **row: float) -> Iterator[TorchStoreRows]:
    rows = TorchStoreRows(place, lambda: {f"/{name}": value for name, value in row.items()}, interval)
    rows.start()
    try:
        yield rows
    finally:
        rows.end()
        rows.join(time.monotonic() + HANG)


def test_each_node_writes_its_row_and_the_first_reads_the_others(store: Store) -> None:
    store.say(1, 1, {"gpu.0.powerWatts": 300.0})
    with exchanging((0, 3, "127.0.0.1", 29500), readings=4.0) as rows:
        wait_for(rows.rows)
        assert rows.rows() == {"b/gpu.0.powerWatts": 300.0}
        store.say(2, 1, {"gpu.0.powerWatts": 100.0})
        wait_for(lambda: len(rows.rows()) == 2)
        assert set(rows.rows()) == {"b/gpu.0.powerWatts", "b-2/gpu.0.powerWatts"}, "names of one machine are told apart"
        assert json.loads(store.kept["node/0"])["row"] == {"readings": 4.0}


def test_other_nodes_write_and_read_nothing(store: Store) -> None:
    store.say(0, 1, {"gpu.0.powerWatts": 300.0})
    with exchanging((1, 2, "127.0.0.1", 29500), readings=4.0, bad=float("nan")) as rows:
        wait_for(lambda: "node/1" in store.kept)
        assert json.loads(store.kept["node/1"])["row"] == {"readings": 4.0}
        assert json.loads(store.kept["node/1"])["name"] == hostname()
        assert rows.rows() == {}


def test_a_node_that_says_nothing_new_has_no_row_any_more(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_store, "LOST", 0.05)
    store.say(1, 1, {"gpu.0.powerWatts": 300.0})
    with exchanging() as rows:
        wait_for(rows.rows)
        wait_for(lambda: not rows.rows())
        store.say(1, 2, {"gpu.0.powerWatts": 200.0})
        wait_for(rows.rows)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b'{"number": 1, "name": "b", "row": {"a": NaN, "b": Infinity}}',
        b'{"number": 1, "name": "b", "row": {"a": "x"}}',
        b"x" * (1 << 21),
    ],
)
def test_what_makes_no_sense_is_left_out(store: Store, text: bytes) -> None:
    store.kept["node/1"] = text
    with exchanging() as rows:
        wait_for(lambda: store.calls > 10)
        assert rows.rows() == {}
        store.say(1, 5, {"a": 1.0})
        wait_for(rows.rows)


def test_a_store_that_has_ended_is_left_alone(store: Store) -> None:
    with exchanging() as rows:
        wait_for(lambda: "node/0" in store.kept)
        store.broken = True
        wait_for(lambda: not rows._thread.alive)


def test_a_store_that_answers_again_is_used_again(store: Store) -> None:
    with exchanging():
        wait_for(lambda: "node/0" in store.kept)
        store.broken = True
        calls = store.calls
        wait_for(lambda: store.calls > calls)
        store.broken = False
        store.kept.clear()
        wait_for(lambda: "node/0" in store.kept)


def test_a_call_that_hangs_holds_up_nothing(store: Store) -> None:
    gate = Gate()
    store.hook = gate
    with exchanging() as rows:
        assert gate.entered.wait(HANG)
        assert rows.rows() == {}
        rows.end()
        rows.join(time.monotonic())
        gate.release()


def test_a_run_stops_while_the_store_is_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the store answers when the exporters are closed: an end that waited for it first would not come."""
    for name, value in {**JOB, "RANK": "0", "WORLD_SIZE": "2", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    for module in ("training", "torch_store"):
        monkeypatch.setattr(f"accelmetrics.integrations.{module}.CLOSING", 10 * HANG)
    gate, recorder = Gate(), Recorder()
    store.hook = gate
    recorder.on_close = gate.release
    run = accelmetrics.training(0.01, [recorder], backends=[gpus(1)], share=None)
    run.hear_other_nodes()
    run.start()
    assert gate.entered.wait(HANG)
    ending = threading.Thread(target=run.close, daemon=True)
    ending.start()
    ending.join(HANG)
    assert not ending.is_alive()
    assert recorder.count("close") == 1


def test_nothing_is_connected_before_the_program_has_a_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    initialized = threading.Event()
    monkeypatch.setattr(sys.modules["torch"].distributed, "is_initialized", initialized.is_set)
    looked = threading.Event()
    monkeypatch.setattr(TorchStoreRows, "_connect", _noting(TorchStoreRows._connect, looked))
    with exchanging():
        assert looked.wait(HANG)
        assert store.calls == 0
        initialized.set()
        wait_for(lambda: "node/0" in store.kept)


def _noting(call: Callable[[TorchStoreRows], Any], looked: threading.Event) -> Callable[[TorchStoreRows], Any]:
    def noted(rows: TorchStoreRows) -> Any:
        found = call(rows)
        looked.set()
        return found

    return noted


JOB = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"RANK": "0", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2"}, TWO),
        ({"RANK": "8", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}, (1, *TWO[1:])),
        ({"RANK": "8", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, (1, *TWO[1:])),
        ({"SLURM_PROCID": "4", "SLURM_NODEID": "1", "SLURM_NNODES": "2"}, (1, *TWO[1:])),
        ({"RANK": "0", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1"}, None),
        ({"RANK": "1", "LOCAL_RANK": "1", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2"}, None),
        ({"RANK": "0", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2", "MASTER_PORT": "x"}, None),
        ({"RANK": "0"}, None),
    ],
    ids=["torchrun", "torchrun-second", "sizes", "slurm", "one-node", "other-rank", "no-port", "alone"],
)
def test_where_a_process_stands(values: dict[str, str], place: NodePlace | None) -> None:
    assert node_place({**JOB, **values}) == place


def test_a_training_run_has_them_in_its_rows(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**JOB, "RANK": "0", "WORLD_SIZE": "2", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    store.say(1, 1, {"gpu.0.powerWatts": 300.0})
    with accelmetrics.training(0.01, backends=["host"]) as run:
        wait_for(lambda: "system/b/gpu.0.powerWatts" in run.row())
        wait_for(lambda: json.loads(store.kept.get("node/0", b'{"row": {}}'))["row"].get("readings", 0) > 0)
