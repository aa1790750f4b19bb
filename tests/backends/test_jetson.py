"""NVIDIA Jetson, from trees of files as their kernel drivers show them, beside a simulated NVML."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends import jetson, nvidia, registry
from accelmetrics.backends.kit.system import KeptFile
from accelmetrics.sampling.sources import SourceRegistry
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess
from accelmetrics.testing import FakeClock
from tests.backends.nvidia.machine import fail
from tests.simulators.jetson import CLIENTS, JetsonTree
from tests.simulators.nvml import NvmlSimulator, Process, Ret
from tests.support.readings import of
from tests.support.waiting import wait_for

KIB = 1024
ORIN_NX = {
    "gpu": 41.7,
    "smClock": 918,
    "maxSmClock": 918,
    "temp": 53.406,
    "throttle.swThermalSlowdown": 0,
    "powerWatts": pytest.approx(4.992 * 1.464),
    "railPowerWatts": pytest.approx(4.984 * 0.32),
    "fanSpeed": 40,
    "fanSpeedRpm": 2890,
    "memoryTotalBytes": 16_099_096 * KIB,
    "memoryAllocatedBytes": 805_068 * KIB,
    "memoryAllocated": pytest.approx(100 * 805_068 / 16_099_096),
}


@pytest.fixture
def tree(root: Path, monkeypatch: pytest.MonkeyPatch) -> JetsonTree:
    monkeypatch.setattr("accelmetrics.sampling.sampler.SHARED", SourceRegistry())
    return JetsonTree(root)


@pytest.fixture
def orin(tree: JetsonTree, clock: FakeClock) -> Iterator[Sampler]:
    """Of an Orin NX without NVML."""
    tree.orin_nx()
    with Sampler(["jetson"], clock=clock) as made:
        yield made


def test_every_metric_and_who_it_is(orin: Sampler) -> None:
    snapshot = orin.sample()
    assert of(snapshot) == ORIN_NX
    (device,) = snapshot.devices
    assert device.identity == DeviceIdentity(
        "gpu",
        "nvidia",
        0,
        name="NVIDIA Jetson Orin NX Engineering Reference Developer Kit",
        serial="1421323049284",
        memory_total_bytes=16_099_096 * KIB,
        unified=True,
    )
    assert (snapshot.backends[0].source, snapshot.backends[0].status) == ("sysfs", "ok")


def test_who_uses_it(orin: Sampler) -> None:
    """As root is told: rows of one process are added, the kernel's are nobody's."""
    (device,) = orin.sample().devices
    assert device.processes == (DeviceProcess(7979, memory_bytes=2_352_600 * KIB), DeviceProcess(8119, memory_bytes=5800 * KIB))


def test_what_the_watched_process_holds(tree: JetsonTree, clock: FakeClock) -> None:
    tree.orin_nx()
    tree.write("/sys/kernel/debug/nvmap/iovmm/clients", CLIENTS.replace("8119", f"{os.getpid():>4}").rstrip("\n"))
    with Sampler(["jetson"], clock=clock, pid=os.getpid()) as sampler:
        metrics = sampler.sample().metrics
    assert metrics["gpu.process.0.memoryAllocatedBytes"] == 5800 * KIB


def test_other_users_are_told_no_processes(orin: Sampler, tree: JetsonTree, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> bytes:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(jetson, "read_once", refuse)
    (device,) = orin.sample().devices
    assert device.processes is None
    assert device.values["memoryAllocatedBytes"] == ORIN_NX["memoryAllocatedBytes"]


@pytest.mark.parametrize("printed", ["", "garbage", "user x y z", CLIENTS[:95], CLIENTS.replace("K\n", "\n")])
def test_a_list_of_processes_that_is_none_lists_nobody_wrongly(orin: Sampler, tree: JetsonTree, printed: str) -> None:
    tree.write("/sys/kernel/debug/nvmap/iovmm/clients", printed)
    (device,) = orin.sample().devices
    assert {process.pid for process in device.processes or ()} <= {7979, 8119}


def test_an_agx_has_no_rail_of_the_whole(tree: JetsonTree, clock: FakeClock) -> None:
    tree.agx_orin()
    with Sampler(["jetson"], clock=clock) as sampler:
        snapshot = sampler.sample()
    assert snapshot.metrics["gpu.0.railPowerWatts"] == pytest.approx(12.024 * 0.617)
    assert snapshot.unavailable["gpu.0.powerWatts"] == (Reason.NOT_SUPPORTED, 'sysfs does not report "rail VDD_IN"')
    assert snapshot.unavailable["gpu.0.memoryAllocatedBytes"].reason == Reason.NOT_SUPPORTED
    assert "gpu.0.fanSpeed" not in snapshot.metrics
    assert snapshot.metrics["gpu.0.temp"] == 53.406


def test_a_gpu_that_is_powered_down_is_read_and_does_nothing(orin: Sampler, tree: JetsonTree) -> None:
    """The driver answers for it without waking it; its sensor answers below zero, as releases before 6 have it."""
    tree.write("/sys/devices/platform/bus@0/17000000.gpu/power/runtime_status", "suspended")
    tree.write("/sys/devices/platform/bus@0/17000000.gpu/load", "0")
    tree.write("/sys/class/devfreq/17000000.gpu/cur_freq", "0")
    tree.write("/sys/class/thermal/thermal_zone1/temp", "-256000")
    snapshot = orin.sample()
    assert (snapshot.metrics["gpu.0.gpu"], snapshot.metrics["gpu.0.powerWatts"]) == (0, ORIN_NX["powerWatts"])
    assert snapshot.unavailable["gpu.0.temp"].reason == Reason.INVALID_VALUE
    assert snapshot.unavailable["gpu.0.smClock"].reason == Reason.NOT_SUPPORTED


def test_a_sensor_that_is_off_says_so(orin: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    """``EAGAIN``, as releases from 6 on have it."""
    read = KeptFile.read

    def refuse(file: KeptFile) -> bytes:
        if file.path.endswith("/thermal_zone1/temp"):
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return read(file)

    monkeypatch.setattr(KeptFile, "read", refuse)
    snapshot = orin.sample()
    assert snapshot.unavailable["gpu.0.temp"].reason == Reason.SUSPENDED
    assert of(snapshot) == {name: value for name, value in ORIN_NX.items() if name != "temp"}


@pytest.mark.parametrize(
    ("file", "printed", "metric", "reason"),
    [
        ("/sys/devices/platform/bus@0/17000000.gpu/load", "", "gpu", Reason.NOT_SUPPORTED),
        ("/sys/devices/platform/bus@0/17000000.gpu/load", "1047552", "gpu", Reason.INVALID_VALUE),
        ("/sys/devices/platform/bus@0/17000000.gpu/load", "garbage", "gpu", Reason.PARSE_ERROR),
        ("/sys/class/hwmon/hwmon2/curr1_input", "-392", "powerWatts", Reason.INVALID_VALUE),
        ("/sys/class/hwmon/hwmon2/curr1_input", "", "powerWatts", Reason.PARSE_ERROR),
        ("/sys/class/hwmon/hwmon2/in2_input", "4984.5", "railPowerWatts", Reason.PARSE_ERROR),
        ("/sys/class/devfreq/17000000.gpu/available_frequencies", "all of them", "maxSmClock", Reason.PARSE_ERROR),
        ("/sys/class/thermal/cooling_device4/cur_state", "off", "throttle.swThermalSlowdown", Reason.PARSE_ERROR),
        ("/proc/meminfo", "MemTotal:  lots\n", "memoryTotalBytes", Reason.PARSE_ERROR),
        ("/proc/meminfo", "", "memoryTotalBytes", Reason.NOT_SUPPORTED),
    ],
)
def test_what_says_nothing_possible_costs_its_own_metric(
    orin: Sampler, tree: JetsonTree, file: str, printed: str, metric: str, reason: Reason
) -> None:
    tree.write(file, printed)
    snapshot = orin.sample()
    assert snapshot.unavailable[f"gpu.0.{metric}"].reason == reason
    assert snapshot.metrics["gpu.0.temp"] == 53.406


def test_a_gpu_that_the_firmware_slows_down(orin: Sampler, tree: JetsonTree) -> None:
    tree.write("/sys/class/thermal/cooling_device4/cur_state", "2")
    assert orin.sample().metrics["gpu.0.throttle.swThermalSlowdown"] == 1


def test_sensors_that_come_back_under_other_numbers(
    orin: Sampler, tree: JetsonTree, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    orin.sample()
    tree.remove("/sys/class/hwmon/hwmon2")
    read = KeptFile.read

    def gone(file: KeptFile) -> bytes:
        """As the kernel answers for a descriptor of a device that is gone."""
        if "/hwmon2/" in file.path:
            raise OSError(errno.ENODEV, "No such device")
        return read(file)

    monkeypatch.setattr(KeptFile, "read", gone)
    clock.advance(1.0)
    assert orin.sample().unavailable["gpu.0.powerWatts"].reason == Reason.NOT_SUPPORTED
    tree.ina3221(("VDD_SOC", 4992, 448), ("VDD_IN", 5000, 2000))
    clock.advance(1.0)
    assert orin.sample().metrics["gpu.0.powerWatts"] == 10


def test_a_driver_that_goes_and_comes_back(orin: Sampler, tree: JetsonTree, clock: FakeClock) -> None:
    orin.sample()
    tree.file("/sys/class/devfreq/17000000.gpu").unlink()
    clock.advance(1.0)
    assert orin.sample().unavailable["gpu.0.gpu"].reason == Reason.DRIVER_UNAVAILABLE
    shutil.rmtree(tree.file("/sys/devices/platform/bus@0"))
    shutil.rmtree(tree.file("/sys/class/devfreq"))
    shutil.rmtree(tree.file("/sys/bus/platform"))
    tree.nvgpu(load=1000)
    clock.advance(1.0)
    assert orin.sample().metrics["gpu.0.gpu"] == 100


def test_another_makers_gpu_is_no_jetson(tree: JetsonTree) -> None:
    """A Mali may have the same name; by its driver it is none of NVIDIA's."""
    tree.clocks("17000000.gpu", "/sys/devices/platform/17000000.gpu", "panfrost", 800_000_000, 950_000_000)
    with pytest.raises(SourceError, match="NVML_ERROR"):
        jetson.backend.open()


# With NVML


@pytest.fixture
def nvml(tree: JetsonTree) -> Iterator[NvmlSimulator]:
    """The library as JetPack 6 has it on an Orin: a GPU that answers its name and little else."""
    tree.orin_nx()
    with NvmlSimulator(gpus=1, profile="gb10") as simulator:
        simulator.load()
        simulator.gpu[0].set(name="Orin (nvgpu)", architecture=11)
        for function in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetTemperature", "nvmlDeviceGetClockInfo", "nvmlDeviceGetPowerUsage"):
            fail(simulator, function, 0, Ret.NOT_SUPPORTED)
        yield simulator


@pytest.mark.usefixtures("nvml")
def test_a_gpu_that_nvml_answers_for_too_is_listed_once() -> None:
    with Sampler(["nvidia", "jetson"]) as sampler:
        wait_for(lambda: "gpu.0.gpu" in sampler.sample().metrics)
        snapshot = sampler.sample()
    (slot,) = snapshot.identities
    assert {name: value for name, value in of(snapshot).items() if name in ORIN_NX} == ORIN_NX
    assert (slot.backend, slot.identity.driver_version != "", slot.identity.uuid != "") == ("jetson", True, True)
    assert {status.name: status.status for status in snapshot.backends} == {"nvidia": "absent", "jetson": "ok"}


@pytest.mark.usefixtures("nvml")
def test_nvidias_backend_says_who_reads_it() -> None:
    found = registry.load("nvidia").detect()
    assert (found.present, found.evidence) == (False, f"no NVIDIA GPU but the integrated one: {nvidia.OF_JETSON}")
    with pytest.raises(SourceError, match="read by the backend jetson"):
        registry.load("nvidia").open()


def test_a_thor_has_its_use_and_processes_from_nvml(tree: JetsonTree) -> None:
    tree.thor()
    with NvmlSimulator(gpus=1, profile="gb10") as simulator, Sampler(["nvidia", "jetson"], pid=os.getpid()) as sampler:
        simulator.load()
        simulator.gpu[0].set(name="NVIDIA Thor", gpu_util=83)
        simulator.processes(0, [Process(pid=os.getpid(), used=64 * KIB)])
        wait_for(lambda: "gpu.0.gpu" in sampler.sample().metrics)
        snapshot = sampler.sample()
    metrics, (device,) = snapshot.metrics, snapshot.devices
    assert (metrics["gpu.0.gpu"], metrics["gpu.0.memoryAllocatedBytes"], metrics["gpu.0.smClock"]) == (83, 64 * KIB, 1575)
    assert metrics["gpu.0.powerWatts"] == pytest.approx(19.904 * 3.01)
    assert metrics["gpu.0.railPowerWatts"] == pytest.approx(12 * 2.7)
    assert metrics["gpu.process.0.memoryAllocatedBytes"] == 64 * KIB
    assert [process.pid for process in device.processes or ()] == [os.getpid()]
    assert device.name == "NVIDIA Jetson AGX Thor Developer Kit"


def test_a_thor_that_sleeps_is_not_woken(tree: JetsonTree) -> None:
    """NVML is not opened while its GPU is powered down; the board is read."""
    tree.thor()
    tree.write("/sys/bus/pci/devices/0000:01:00.0/power/runtime_status", "suspended")
    tree.write("/sys/class/devfreq/gpu-gpc-0/cur_freq", "0")
    with NvmlSimulator(gpus=1, profile="gb10") as simulator, Sampler(["jetson"]) as sampler:
        simulator.load()
        snapshot = sampler.sample()
        assert simulator.count("nvmlInitWithFlags") == 0
    assert snapshot.metrics["gpu.0.powerWatts"] == pytest.approx(59.91104)
    assert snapshot.unavailable["gpu.0.gpu"].reason == Reason.SUSPENDED


def test_a_card_in_a_thor_is_nvidias(tree: JetsonTree) -> None:
    """A machine with both lists each once."""
    tree.thor()
    card = "/sys/devices/platform/pcie/pci0001:00/0001:01:00.0"
    for file, text in {"vendor": "0x10de", "device": "0x2684", "class": "0x030000"}.items():
        tree.write(f"{card}/{file}", text)
    tree.link("/sys/bus/pci/devices/0001:01:00.0", card)
    with NvmlSimulator(gpus=["gb10", "rtx4090"]) as simulator, Sampler(["nvidia", "jetson"]) as sampler:
        simulator.load()
        simulator.gpu[0].set(name="NVIDIA Thor")
        wait_for(lambda: {"gpu.0.temp", "gpu.1.railPowerWatts"} <= sampler.sample().metrics.keys())
        names = {slot.key: (slot.backend, slot.identity.name) for slot in sampler.sample().identities}
    assert names == {"gpu.0": ("nvidia", "NVIDIA GeForce RTX 4090"), "gpu.1": ("jetson", "NVIDIA Jetson AGX Thor Developer Kit")}
    assert registry.load("nvidia").detect().devices == 1


def test_without_a_library_nothing_of_an_orin_is_missing(orin: Sampler) -> None:
    assert not orin.sample().unavailable
