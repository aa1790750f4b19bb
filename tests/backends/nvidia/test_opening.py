"""Opening the driver: who the devices are, and each way in which it fails in words of its own."""

from __future__ import annotations

import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from accelmetrics import Sampler
from accelmetrics.backends import nvidia
from accelmetrics.backends.nvidia import NvidiaBackend, advise, backend, gpu as opening, library_name, nvml
from accelmetrics.schemas.errors import DriverGoneError, SourceError
from accelmetrics.testing import FakeClock as SampledClock
from tests.backends.nvidia.machine import Consume, Consumer, FakeClock, fail, write_tree
from tests.simulators.nvml import NvmlSimulator, Ret

pynvml: Any = pytest.importorskip("pynvml")

VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Wed Feb 21 12:00:00 UTC 2024\nGCC version:  gcc 12\n"
OPEN_VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root@host)\n"


def refuse_to_load(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """Have the system's loader refuse the library."""

    def refuse(path: str) -> None:
        raise OSError(words.format(path=path))

    monkeypatch.setattr(nvml, "load_library", refuse)


MISSING = "{path}: cannot open shared object file: No such file or directory"


def failure() -> SourceError:
    with pytest.raises(SourceError) as raised:
        backend.open()
    assert raised.value.backend == "nvidia"
    return raised.value


def test_identity(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Everything that does not change, from the driver."""
    assert [device.vendor_index for device in consumer.driver.devices] == [0, 1, 2]
    device = consumer.identities()[1]
    assert device.name == "NVIDIA H100 80GB HBM3"
    assert device.uuid.startswith("GPU-")
    assert device.pci_bus_id == "00000000:19:00.0"
    assert device.serial == "165230104712"
    assert device.architecture == "Hopper"
    assert device.driver_version == "570.124.06"
    assert device.runtime_version == "12.8"
    assert device.firmware == "96.00.41.00.01"
    assert device.cores == 16896
    assert device.memory_total_bytes == simulator.gpu[1].get("memory_total")
    assert (device.kind, device.vendor, device.unified, device.parent) == ("gpu", "nvidia", False, "")
    assert len({device.uuid for device in consumer.driver.devices}) == 3


def test_the_registration() -> None:
    """What the sampler asks before anything is loaded."""
    assert (backend.name, backend.kind, backend.interval) == ("nvidia", "gpu", 0.0)
    assert tuple(backend.own_metrics()) == ()


def test_importing_the_backend_loads_no_driver() -> None:
    """The binding takes tens of milliseconds: it waits for open."""
    code = "import sys, accelmetrics.backends.nvidia as n; n.backend.detect(); sys.exit('pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(("text", "kernel"), [(VERSION, "535.161.08"), (OPEN_VERSION, "580.65.06"), (None, "an unknown version")])
def test_versions_that_differ(root: Path, simulator: NvmlSimulator, text: str | None, kernel: str) -> None:
    """Both versions are named, and what to do."""
    if text:
        write_tree(root, {"/proc/driver/nvidia/version": text})
    simulator.fail_init(Ret.LIB_RM_VERSION_MISMATCH)
    error = failure()
    assert error.reason == "driver_unavailable"
    assert kernel in str(error)
    assert "NVML_ERROR_LIB_RM_VERSION_MISMATCH" in str(error)
    assert "reboot" in error.advice


def test_a_driver_that_is_not_loaded(root: Path, simulator: NvmlSimulator) -> None:
    """Words and advice of its own; in a container that lacks its devices, the flag that passes them."""
    simulator.fail_init(Ret.DRIVER_NOT_LOADED)
    error = failure()
    assert (error.reason, "not loaded" in str(error), "modprobe" in error.advice) == ("driver_unavailable", True, True)
    write_tree(root, {"/.dockerenv": ""})
    assert "--gpus all" in failure().advice


@pytest.mark.parametrize(("code", "named"), [(Ret.NO_PERMISSION, "/dev/nvidia"), (Ret.OPERATING_SYSTEM, "cgroup")], ids=str)
def test_no_permission(simulator: NvmlSimulator, code: Ret, named: str) -> None:
    """Who may not ask is told so; where the operating system blocks the devices, that is named, not the driver."""
    simulator.fail_init(code)
    error = failure()
    assert (error.reason, named in f"{error} {error.advice}") == ("no_permission", True)


@pytest.mark.parametrize("how", ["count", "init"])
def test_no_device(simulator: NvmlSimulator, how: str) -> None:
    """A driver without GPUs says so by a count of 0, or refuses to start."""
    if how == "count":
        simulator.set(gpu_count=0)
    else:
        simulator.fail_init(Ret.NOT_FOUND)
    error = failure()
    assert "lists no GPU" in str(error)
    assert "lspci" in error.advice


def test_a_failed_opening_leaves_nothing_initialised(simulator: NvmlSimulator) -> None:
    """What nvmlInit took is given back."""
    fail(simulator, "nvmlDeviceGetCount_v2", None, Ret.UNKNOWN)
    simulator.reset_calls()
    failure()
    assert simulator.count("nvmlInitWithFlags") == simulator.count("nvmlShutdown") == 1


@pytest.mark.parametrize("installed", [None, types.ModuleType("pynvml")])
def test_no_binding_is_needed(
    installed: types.ModuleType | None, simulator: NvmlSimulator, consume: Consume, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without NVIDIA's own, or with another package's module of the same name, readings are the same."""
    monkeypatch.setitem(sys.modules, "pynvml", installed)
    assert consume().read(1).metrics["temp"] == simulator.gpu[1].get("temperature")


def test_a_library_that_is_not_installed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container it was not brought in, elsewhere the driver is missing."""
    refuse_to_load(monkeypatch, MISSING)
    monkeypatch.setattr(nvidia, "library_name", lambda: "libnvidia-ml-that-is-not-here.so.1")
    assert "install the NVIDIA driver" in failure().advice
    write_tree(root, {"/run/.containerenv": ""})
    assert "--gpus all" in failure().advice
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "void")
    assert "NVIDIA_VISIBLE_DEVICES" in failure().advice


def test_a_library_that_the_loader_passes_over(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for another architecture lies where the loader looks: it is installed, as detection says, and the advice is detection's."""
    (root / library_name()).write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(root))
    refuse_to_load(monkeypatch, MISSING)
    error = failure()
    assert "exists but does not load" in str(error)
    assert "not installed" not in str(error)
    assert error.advice == backend.detect().advice


@pytest.mark.parametrize("node", [False, True])
def test_a_library_that_does_not_load(root: Path, monkeypatch: pytest.MonkeyPatch, node: bool) -> None:
    """The loader is quoted; where detection has advice, it is the same, so that it is shown once."""
    if node:
        write_tree(root, {"/dev/nvidiactl": ""})
    refuse_to_load(monkeypatch, "/usr/lib/libnvidia-ml.so.1: undefined symbol: nvmlOfANewerDriver")
    error = failure()
    assert error.reason == "driver_unavailable"
    assert "does not load: /usr/lib/libnvidia-ml.so.1: undefined symbol: nvmlOfANewerDriver" in str(error)
    assert "not installed" not in str(error)
    assert error.advice.startswith("install the driver again") if node else error.advice == advise(library=True)


def test_attempts_at_a_failed_device_back_off(simulator: NvmlSimulator, consume: Consume) -> None:
    """A second, then two, then four: a device that does not come is not asked at every reading."""
    simulator.fail_enumeration(1)
    consumer = consume()
    simulator.reset_calls()
    for _ in range(150):
        consumer.error(0.1, 1)
    assert simulator.count("nvmlDeviceGetHandleByIndex_v2") == 4
    simulator.recover(1)
    assert consumer.later(60.0, 1).metrics["temp"] == simulator.gpu[1].get("temperature")


def test_facts_that_are_known_stay(simulator: NvmlSimulator, consume: Consume) -> None:
    """A device that is asked again for one fact keeps the others, even where their calls fail this time."""
    simulator.rule("nvmlDeviceGetSerial", 1, error=Ret.TIMEOUT)
    consumer = consume()
    before = consumer.identities()[1]
    simulator.rule("nvmlDeviceGetSerial", 1)
    simulator.rule("nvmlDeviceGetUUID", 1, error=Ret.TIMEOUT)
    simulator.rule("nvmlDeviceGetNumGpuCores", 1, error=Ret.TIMEOUT)
    consumer.later(1.5, 1)
    assert before.serial == ""
    assert consumer.driver.devices[1] == before._replace(serial="165230104712")


def test_a_failed_device_when_the_driver_is_gone(simulator: NvmlSimulator, consume: Consume) -> None:
    """The attempt to get it back finds out."""
    simulator.fail_enumeration(1)
    consumer = consume()
    simulator.driver_away()
    assert isinstance(consumer.error(2.0, 1), DriverGoneError)


def test_the_driver_goes_and_comes_back(simulator: NvmlSimulator, consume: Consume) -> None:
    """Every unit says that it must be opened again; after that, handles are new and values are back, in the same process."""
    consumer = consume()
    uuids = [device.uuid for device in consumer.driver.devices]
    consumer.read(0)
    simulator.driver_away()
    for unit in range(3):
        error = consumer.error(0.2, unit)
        assert (error.reason, type(error)) == ("driver_unavailable", DriverGoneError)
    consumer.driver.close()
    assert failure().reason == "driver_unavailable"
    simulator.driver_back()
    again = consume()
    assert [device.uuid for device in again.driver.devices] == uuids
    again.read(2)
    assert again.later(0.2, 2).metrics["smActive"] == simulator.gpu[2].get("gpm[2]")


@pytest.mark.parametrize("initialised_by_another", [False, True])
def test_a_reload_between_two_readings(simulator: NvmlSimulator, consumer: Consumer, initialised_by_another: bool) -> None:
    """Old handles are of no use, even where other code in this process has initialised NVML anew."""
    consumer.read(0)
    if initialised_by_another:
        pynvml.nvmlInit()
    simulator.driver_away()
    simulator.driver_back()
    if initialised_by_another:
        pynvml.nvmlShutdown()
        pynvml.nvmlInit()
    assert isinstance(consumer.error(0.2), DriverGoneError)


def test_without_a_thread_to_open_on_nothing_is_left_open(simulator: NvmlSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML counts its users: it is shut down as often as it was initialised."""
    ended = simulator.count("nvmlShutdown")

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            backend.open()
    assert simulator.count("nvmlShutdown") == ended + 1


@pytest.mark.parametrize(
    "unread", [("nvmlDeviceGetUUID",), ("nvmlDeviceGetUUID", "nvmlDeviceGetPciInfo_v3"), ("nvmlDeviceGetHandleByIndex_v2",)]
)
def test_a_gpu_that_is_not_read_while_its_driver_is_opened_again(simulator: NvmlSimulator, unread: tuple[str, ...]) -> None:
    """It is the same device: by its address, by its number, and by its UUID again once that is read."""
    clock = SampledClock()
    with Sampler([NvidiaBackend(clock)], clock=clock) as sampler:
        before = [(device.key, device.uuid, device.pci_bus_id) for device in sampler.sample().devices]
        simulator.driver_away()
        sampler.sample()
        for function in unread:
            simulator.rule(function, 1, error=Ret.UNKNOWN)
        simulator.driver_back()
        clock.advance(2.0)
        reopened = sampler.sample()
        assert [(device.key, device.uuid, device.pci_bus_id) for device in reopened.devices] == before
        assert ("gpu.1.temp" in reopened.metrics) != ("gpu.1.temp" in reopened.unavailable)
        simulator.clear_rules()
        clock.advance(2.0)
        sampler.sample()
        clock.advance(2.0)
        snapshot = sampler.sample()
        assert [(device.key, device.uuid, device.pci_bus_id) for device in snapshot.devices] == before
        assert snapshot.metrics["gpu.1.temp"] == simulator.gpu[1].get("temperature")
        assert {key.split(".")[1] for key in (*snapshot.metrics, *snapshot.unavailable)} <= {"0", "1", "2", "process"}


def test_two_drivers_in_one_process(simulator: NvmlSimulator, consume: Consume) -> None:
    """NVML counts its users: closing one leaves the other working."""
    first, second = consume(), consume()
    first.read(0)
    second.read(0)
    first.driver.close()
    assert second.later(0.2).metrics["temp"] == simulator.gpu[0].get("temperature")


def test_the_clock_can_be_replaced(simulator: NvmlSimulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend hands its clock to the driver."""
    seen: list[object] = []
    monkeypatch.setattr(opening, "open_driver", lambda clock, _maker: seen.append(clock))
    clock = FakeClock()
    NvidiaBackend(clock).open()
    assert seen == [clock]
