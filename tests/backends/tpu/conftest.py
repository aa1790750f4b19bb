"""A machine without any hardware, no runtime on the usual port, and no libtpu, until a test puts them there."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from accelmetrics.backends.tpu import driver, runtime, sdk
from accelmetrics.backends.tpu.sdk import SdkReading
from accelmetrics.schemas.errors import Reason, Unavailable

pytest.importorskip("grpc")

from tests.backends.tpu.reading import Consumer
from tests.simulators.tpu import LibtpuStandIn, TpuMachine, TpuRuntime
from tests.support.waiting import HANG

NO_SDK = Unavailable(Reason.NOT_SUPPORTED, "no SDK in this test")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TpuMachine]:
    """A machine without chips; looked over for holders at every reading. Deadlines are far away unless a test is about them."""
    root = tmp_path / "root"
    (root / "proc").mkdir(parents=True)
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(root))
    monkeypatch.delenv("TPU_RUNTIME_METRICS_PORTS", raising=False)
    monkeypatch.setattr(driver, "FRESH", -1.0)  # every reading asks anew; what is shared has tests of its own
    for deadline in ("CONNECT_TIMEOUT", "LIST_TIMEOUT", "CALL_TIMEOUT"):
        monkeypatch.setattr(runtime, deadline, HANG)
    monkeypatch.setattr(sdk, "ask", lambda names, clock: SdkReading(clock.monotonic(), {}, NO_SDK, missing=True))
    with socket.socket() as taken:  # bound and not listening: nothing else can be there, and every connection is refused
        taken.bind(("localhost", 0))
        monkeypatch.setattr(runtime, "DEFAULT_PORT", taken.getsockname()[1])
        yield TpuMachine(root)


@pytest.fixture
def start(machine: TpuMachine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], TpuRuntime]]:
    """Starts one more runtime, on a port that the environment lists."""
    del machine
    started: list[TpuRuntime] = []

    def one_more() -> TpuRuntime:
        started.append(TpuRuntime())
        monkeypatch.setenv("TPU_RUNTIME_METRICS_PORTS", ",".join(str(runtime.port) for runtime in started))
        return started[-1]

    yield one_more
    for runtime_ in started:
        runtime_.stop()


@pytest.fixture
def v5e(machine: TpuMachine, start: Callable[[], TpuRuntime]) -> TpuRuntime:
    """Four TPU v5e chips, held by one program."""
    for node in machine.chips("v5e", 4):
        machine.process(4711, node)
    found = start()
    found.devices(0, 1, 2, 3)
    return found


@pytest.fixture
def libtpu(tmp_path: Path, machine: TpuMachine, monkeypatch: pytest.MonkeyPatch) -> LibtpuStandIn:
    """A libtpu for the Python of this test."""
    del machine
    stand_in = LibtpuStandIn(tmp_path)
    monkeypatch.setattr(sdk, "ask", ASK)
    monkeypatch.setattr(sdk, "TIMEOUT", HANG)
    monkeypatch.setattr(driver, "FIRST_WAIT", HANG)
    monkeypatch.setattr("sys.executable", str(stand_in.python))
    return stand_in


ASK = sdk.ask


@pytest.fixture(autouse=True)
def close_drivers() -> Iterator[None]:
    """Close what a test opened."""
    yield
    while Consumer.opened:
        Consumer.opened.pop().close()
