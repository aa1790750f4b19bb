"""PyTorch's memory beside the driver's: matched by UUID, and never a reason to import or start anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence

import pytest

from accelmetrics.schemas.identity import DeviceIdentity, DeviceSlot
from tests.simulators.nvml import NvmlSimulator
from tests.simulators.torch import Card, of_hip, torch_environment

GPUS = [
    DeviceIdentity("gpu", "nvidia", 0, uuid="GPU-18ef14e9-dec6-1d7e-1284-3010c6ce98b1"),
    DeviceIdentity("gpu", "nvidia", 1, uuid="GPU-9b1e4f7a-0c2d-4e8f-a1b3-c5d7e9f0a2b4"),
    DeviceIdentity("gpu", "nvidia", 2, uuid="GPU-00000000-0000-4000-8000-000000000003"),
]
MIG = DeviceIdentity("gpu", "nvidia", 0, uuid="MIG-3f7c1f0e-5b2a-5c1d-9e8f-7a6b5c4d3e2f", parent=GPUS[1].uuid)
AMD = DeviceIdentity("gpu", "amd", 0, uuid="0x1cf37bd39a23ae61")

PROGRAM = """
import json, sys
from accelmetrics.monitor.torch import TorchMemory
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.schemas.identity import DeviceSlot
from accelmetrics.schemas.snapshot import Snapshot
places = [DeviceSlot(key, 0, visible, DeviceIdentity(*identity)) for key, visible, identity in json.loads(sys.argv[1])]
snapshot = Snapshot(0, "node", {}, tuple(places))
memory = TorchMemory()
"""
STARTED = "import torch; torch.cuda.init(); print(json.dumps(memory(snapshot)))"
"""A program that uses a GPU."""


def plain(uuid: str) -> str:
    return uuid.partition("-")[2]


def held(index: int, allocated: int, reserved: int, peak: int = 0) -> dict[str, object]:
    """What is given of a device that holds memory."""
    numbers = {"memoryAllocatedBytes": allocated, "memoryReservedBytes": reserved, "memoryPeakBytes": peak}
    found = {**numbers, "memoryFragmentation": pytest.approx(100 * (1 - allocated / reserved))}
    return {f"torch.{index}.{name}": value for name, value in found.items()}


def run(body: str, places: Sequence[DeviceSlot], cards: Sequence[Card], environment: Mapping[str, str] | None = None) -> object:
    """What a program of its own, with the stand-in, prints last."""
    text = json.dumps([(place.key, place.visible_index, list(place.identity)) for place in places])
    command = [sys.executable, "-c", PROGRAM + textwrap.dedent(body), text]
    done = subprocess.run(command, env={**os.environ, **torch_environment(cards), **(environment or {})}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def listed(*identities: DeviceIdentity, visible: Sequence[int | None] | None = None) -> list[DeviceSlot]:
    seen = [None] * len(identities) if visible is None else visible
    return [DeviceSlot(f"gpu.{number}", number, seen[number], identity) for number, identity in enumerate(identities)]


def test_what_is_not_wanted_is_left_out() -> None:
    body = """
        import torch
        from accelmetrics.schemas.selection import MetricSelection
        torch.cuda.init()
        print(json.dumps(TorchMemory(MetricSelection("*Reserved*"))(snapshot)))
    """
    assert run(body, listed(*GPUS), [Card(plain(GPUS[1].uuid), 5, 6)]) == {"torch.1.memoryReservedBytes": 6}


def test_a_program_that_did_not_import_it_has_no_such_numbers_and_no_torch() -> None:
    """Though the package is there."""
    found = run("print(json.dumps([memory(snapshot), 'torch' in sys.modules]))", listed(*GPUS), [Card(plain(GPUS[0].uuid), 5, 6)])
    assert found == [{}, False]


def test_cuda_is_never_started() -> None:
    """A program that imported it for the CPU keeps its GPU memory to itself: nothing of a device is even asked."""
    body = "import torch; print(json.dumps([memory(snapshot), torch.cuda.is_initialized(), torch.cuda.calls]))"
    assert run(body, listed(*GPUS), [Card(plain(GPUS[0].uuid), 5, 6)]) == [{}, False, []]


def test_devices_are_matched_by_their_uuid() -> None:
    """Whatever order PyTorch counts in; what it does not see has no numbers, and what we do not list neither."""
    cards = [
        Card(plain(GPUS[2].uuid), 300, 400),
        Card("ffffffff-0000-4000-8000-000000000000", 1, 2),
        Card(plain(GPUS[0].uuid).upper(), 0, 200),
    ]
    found = run(STARTED, listed(*GPUS), cards)
    assert found == {**held(2, 300, 400), **held(0, 0, 200)}


def test_an_allocator_that_holds_nothing_is_not_fragmented() -> None:
    """A share of nothing is no number."""
    found = run(STARTED, listed(GPUS[0]), [Card(plain(GPUS[0].uuid))])
    assert found == dict.fromkeys(("torch.0.memoryAllocatedBytes", "torch.0.memoryReservedBytes", "torch.0.memoryPeakBytes"), 0)


def test_matching_is_done_once_and_again_when_the_devices_change() -> None:
    """One call a device and tick is all that it costs."""
    body = """
        import torch
        torch.cuda.init()
        for _ in range(3):
            memory(snapshot)
        before = len(torch.cuda.calls)
        other = Snapshot(0, "node", {}, tuple(places[1:]))
        print(json.dumps([before, memory(other), [call for call in torch.cuda.calls if call.startswith("started")]]))
    """
    cards = [Card(plain(GPUS[0].uuid), 5, 6), Card(plain(GPUS[1].uuid), 7, 8)]
    found = run(body, listed(*GPUS), cards)
    assert found == [1 + 2 + 3 * 2, held(1, 7, 8), []]


def test_a_partition_has_its_numbers_under_its_device() -> None:
    """A program on a MIG instance of gpu.1 sees that one alone; its UUID has a prefix of its own."""
    places = [*listed(*GPUS), DeviceSlot("gpu.1.mig.0", 0, 0, MIG)]
    found = run(STARTED, places, [Card(plain(MIG.uuid), 11, 22)])
    assert found == held(1, 11, 22)


def test_amds_devices_are_matched_by_the_digits_of_their_unique_id() -> None:
    """HIP has them where CUDA has a UUID."""
    assert of_hip(AMD.uuid) == "31636633-3762-6433-3961-323361653631"
    found = run(STARTED, listed(GPUS[0], AMD), [Card(of_hip(AMD.uuid), 3, 4)])
    assert found == held(1, 3, 4)


def test_without_uuids_devices_are_matched_by_what_is_visible_or_not_at_all() -> None:
    """PyTorch counts what `CUDA_VISIBLE_DEVICES` leaves, in its order; on a machine of two vendors it cannot be told."""
    cards = [Card("", 10, 20), Card("", 30, 40)]
    found = run(STARTED, listed(*GPUS, visible=[1, None, 0]), cards)
    assert found == {**held(2, 10, 20), **held(0, 30, 40)}
    assert run(STARTED, listed(*GPUS, visible=[None, None, None]), cards) == {}
    assert run(STARTED, listed(GPUS[0], AMD, visible=[0, 0]), cards) == {}


@pytest.mark.parametrize(
    "state", ["sys.modules['torch'] = None", "sys.modules['torch'] = types.ModuleType('torch')", "sys.modules['torch'] = 5"]
)
def test_half_an_import_is_none(state: str) -> None:
    """Another thread may be in the middle of it; a test of the user's may have put anything there."""
    assert run(f"import types; {state}; print(json.dumps(memory(snapshot)))", listed(*GPUS), []) == {}


def test_a_whole_monitor_has_them_in_its_snapshots_history_and_windows() -> None:
    """On simulated GPUs, as a training script would see them; not when it watches another process."""
    simulator = NvmlSimulator(4)
    body = """
        import os, threading, time
        import torch
        from accelmetrics import Monitor, Sampler
        uuids = [device.uuid for device in Sampler(["nvidia"]).sample().devices]
        numbers = {"reserved": 200, "peak": 150}
        torch.cuda._CARDS.extend({"uuid": uuids[index].removeprefix("GPU-"), "allocated": 100 + index, **numbers} for index in (3, 1))
        def ticks(monitor, count):
            while monitor.status.ticks < count:
                time.sleep(0.01)
        with Monitor(0.05, backends=["nvidia"]) as monitor, Monitor(0.05, backends=["nvidia"], pid=os.getppid()) as other:
            ticks(monitor, 2)
            before = sorted(key for key in monitor.latest.metrics if key.startswith("torch"))
            torch.cuda.init()
            start = monitor.status.ticks
            with monitor.window("step") as window:
                ticks(monitor, start + 3)
            ticks(other, 3)
            mine = {key: value for key, value in monitor.latest.metrics.items() if key.startswith("torch")}
            theirs = [key for key in other.latest.metrics if key.startswith("torch")]
            driver = monitor.latest.metrics["gpu.3.memoryAllocatedBytes"]
            print(json.dumps([before, mine, theirs, window.summary["torch.3.memoryAllocatedBytes"].max, driver > 1000,
                              monitor.history.column("torch.1.memoryReservedBytes")[-1]]))
    """
    with simulator:
        found = run(body, [], [], simulator.environment())
    mine = {**held(3, 103, 200, 150), **held(1, 101, 200, 150)}
    assert found == [[], mine, [], 103.0, True, 200.0]
