"""GPUs and NPUs of boards and PCs that kernel drivers show in files: V3D, Mali, Adreno, Rockchip's NPU, AMD's XDNA."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

import pytest

from accelmetrics import Sampler, Snapshot
from accelmetrics.backends import registry, rockchip
from accelmetrics.backends.kit import DeviceSample
from accelmetrics.backends.kit.system import KeptFile
from accelmetrics.sampling.sources import SourceRegistry
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceIdentity, DeviceProcess
from accelmetrics.testing import FakeClock
from tests.simulators.amdgpu import Content
from tests.simulators.drm import DrmTree, fdinfo
from tests.simulators.jetson import JetsonTree
from tests.support.fuzzing import fuzz

PI, ROCK, PHONE, RYZEN = "1002000000.v3d", "fb000000.gpu", "ae01000.display-controller", "0000:c5:00.1"
NODE, NPU = "/dev/dri/renderD128", "/dev/accel/accel0"
MIB = 2**20
LOAD = "/sys/kernel/debug/rknpu/load"
THREE_CORES = "NPU load:  Core0: 82%, Core1:  7%, Core2:  0%,"


def stats(**runtime: int) -> str:
    """``gpu_stats`` of a V3D whose queues have worked for so many nanoseconds."""
    lines = [f"{queue}\t{87654321000}\t{3}\t{runtime.get(queue, 0)}" for queue in ("bin", "render", "tfu", "csd", "cache_clean", "cpu")]
    return "\n".join(("queue\ttimestamp\tjobs\truntime", *lines))


def clocked(name: str, current: int = 300_000_000, highest: int = 1_000_000_000) -> dict[str, Content]:
    """What the kernel's devfreq shows of a device, in Hz."""
    below = f"devfreq/{name}"
    return {
        f"{below}/cur_freq": current,
        f"{below}/max_freq": 850_000_000,
        f"{below}/available_frequencies": f"300000000 {highest} 850000000",
    }


Watch = Callable[..., "Watcher"]


class Watcher:
    """One sampler at one backend, and its time."""

    def __init__(self, name: str, clock: FakeClock, pid: int | None) -> None:
        import_module(f"accelmetrics.backends.{name}").backend.clock = clock
        self._clock = clock
        self.sampler = Sampler([name], clock=clock, pid=pid)

    def later(self, seconds: float = 1.0) -> Snapshot:
        self._clock.advance(seconds)
        return self.sampler.sample()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DrmTree:
    """A machine of whose programs all may be looked into, as root may."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    monkeypatch.setattr("accelmetrics.sampling.sampler.SHARED", SourceRegistry())
    made = DrmTree(tmp_path)
    made.whole_machine()
    return made


@pytest.fixture
def watch(machine: DrmTree, monkeypatch: pytest.MonkeyPatch) -> Watch:
    assert machine.root.exists()
    clock = FakeClock()
    monkeypatch.setattr("accelmetrics.backends.kit.processes.SYSTEM_CLOCK", clock)
    return lambda name, pid=None: Watcher(name, clock, pid)


def zone(machine: DrmTree, number: int, kind: str, millidegrees: int) -> None:
    machine.write(f"/sys/class/thermal/thermal_zone{number}/type", kind)
    machine.write(f"/sys/class/thermal/thermal_zone{number}/temp", millidegrees)


def own(snapshot: Snapshot, key: str = "gpu.0.") -> Mapping[str, float]:
    return {name.removeprefix(key): value for name, value in snapshot.metrics.items() if name.startswith(key)}


def use(machine: DrmTree, driver: str, pid: int, node: str = NODE, address: str = "", **keys: str) -> None:
    """A program with one client, and what the driver says of it."""
    machine.process(pid, {7: (node, fdinfo(driver, pid, address, **keys))})


# Raspberry Pi


@pytest.fixture
def pi(machine: DrmTree) -> DrmTree:
    files: dict[str, Content] = {"gpu_stats": stats(), "of_node/compatible": "brcm,2712-v3d\0", "power/runtime_status": "suspended"}
    machine.add(PI, "v3d", files)
    # Its display is another device, with a driver of its own.
    machine.add("axi:gpu", "vc4-drm", {}, number=1, node="drm/card")
    zone(machine, 0, "cpu-thermal", 61_800)
    return machine


def test_v3d_is_as_busy_as_its_busiest_queue(pi: DrmTree, watch: Watch) -> None:
    watcher = watch("v3d")
    first = watcher.later()
    assert first.unavailable["gpu.0.gpu"].reason == Reason.NEEDS_INTERVAL
    assert own(first) == {"temp": 61.8, "memoryAllocatedBytes": 0}
    use(pi, "v3d", 41, engine_render="5 ns", resident_memory="12 MiB", total_memory="90 MiB")
    pi.write("/sys/class/drm/card0/device/gpu_stats", stats(bin=90_000_000, render=750_000_000, csd=10_000_000, cpu=999_000_000))
    assert own(watcher.later()) == {"gpu": 75, "temp": 61.8, "memoryAllocatedBytes": 12 * MIB}
    pi.write("/sys/class/drm/card0/device/gpu_stats", stats(bin=90_000_000, render=1_760_000_000, csd=10_000_000))
    assert own(watcher.later())["gpu"] == 100
    assert watcher.later().metrics["gpu.0.gpu"] == 0
    (device,) = watcher.later().devices
    assert device.identity == DeviceIdentity("gpu", "v3d", 0, name="brcm,2712-v3d", unified=True)


def test_v3d_by_its_older_names(pi: DrmTree, watch: Watch) -> None:
    """And with its columns in another order."""
    watcher, queues = watch("v3d"), ("v3d_bin", "v3d_render", "v3d_tfu", "v3d_csd", "v3d_cache_clean")
    for runtime in (0, 250_000_000):
        lines = [f"{queue} {runtime if queue == 'v3d_csd' else 0} 7" for queue in queues]
        pi.write("/sys/class/drm/card0/device/gpu_stats", "\n".join(("queue runtime jobs", *lines)))
        snapshot = watcher.later()
    assert snapshot.metrics["gpu.0.gpu"] == 25


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("", Reason.NOT_SUPPORTED),
        ("queue\ttimestamp\tjobs\truntime", Reason.NOT_SUPPORTED),
        ("queue\ttimestamp\tjobs\nbin\t1\t2", Reason.NOT_SUPPORTED),
        ("garbage", Reason.NOT_SUPPORTED),
        (stats(bin=5).replace("\t5\n", "\tmany\n"), Reason.PARSE_ERROR),
        (stats()[:60], Reason.NOT_SUPPORTED),
    ],
)
def test_v3d_says_nothing(pi: DrmTree, watch: Watch, printed: str, reason: Reason) -> None:
    watcher = watch("v3d")
    watcher.later()
    pi.write("/sys/class/drm/card0/device/gpu_stats", printed)
    snapshot = watcher.later()
    assert snapshot.unavailable["gpu.0.gpu"].reason == reason
    assert snapshot.metrics["gpu.0.temp"] == 61.8


def test_v3d_without_its_statistics(pi: DrmTree, watch: Watch) -> None:
    """Kernels before 6.8 have none."""
    (pi.root / "sys/class/drm/card0/device/gpu_stats").unlink()
    watcher = watch("v3d")
    watcher.later()
    assert watcher.later().unavailable["gpu.0.gpu"].reason == Reason.NOT_SUPPORTED


# Mali and Adreno


@pytest.fixture
def rock(machine: DrmTree) -> DrmTree:
    machine.add(ROCK, "panthor", {**clocked(ROCK), "of_node/compatible": "rockchip,rk3588-mali\0arm,mali-valhall-csf\0", "profiling": "3"})
    for number, (kind, degrees) in enumerate({"package-thermal": 44_000, "gpu0-thermal": 42_500, "gpu1-thermal": 43_500}.items()):
        zone(machine, number, kind, degrees)
    return machine


def test_mali_is_used_as_its_programs_use_it(rock: DrmTree, watch: Watch) -> None:
    watcher = watch("mali", 41)
    for nanoseconds in (0, 400_000_000):
        for pid, part in ((41, 1), (42, 2)):
            said = {"engine_panthor": f"{part * nanoseconds // 2} ns", "cycles_panthor": "9", "maxfreq_panthor": "1000000000 Hz"}
            use(rock, "panthor", pid, **said, total_memory="16480 KiB", resident_memory=f"{pid} MiB")
        snapshot = watcher.later()
    assert own(snapshot) == {"gpu": pytest.approx(60), "smClock": 300, "maxSmClock": 1000, "temp": 43.5, "memoryAllocatedBytes": 83 * MIB}
    (device,) = snapshot.devices
    assert device.processes == (DeviceProcess(41, "", 41 * MIB, 20), DeviceProcess(42, "", 42 * MIB, 40))
    assert own(snapshot, "gpu.process.0.") == {"gpu": 20, "memoryAllocatedBytes": 41 * MIB, "temp": 43.5}
    assert (device.name, device.identity.unified) == ("rockchip,rk3588-mali", True)


def test_panfrost_has_two_engines(machine: DrmTree, watch: Watch) -> None:
    machine.add(ROCK, "panfrost", clocked(ROCK))
    watcher = watch("mali")
    for nanoseconds in (0, 100_000_000):
        said = {"engine-fragment": f"{nanoseconds} ns", "engine-vertex-tiler": f"{3 * nanoseconds} ns", "total-memory": "2 MiB"}
        use(machine, "panfrost", 41, **said)
        snapshot = watcher.later()
    assert snapshot.metrics["gpu.0.gpu"] == 30
    assert snapshot.devices[0].processes == (DeviceProcess(41, "graphics", 2 * MIB, 40),)


def test_mali_that_does_not_count(rock: DrmTree, watch: Watch) -> None:
    """As long as root has not asked for it; without a program it is idle all the same."""
    watcher = watch("mali")
    watcher.later()
    assert watcher.later().metrics["gpu.0.gpu"] == 0
    use(rock, "panthor", 41, resident_memory="41 MiB")
    watcher.later()
    snapshot = watcher.later()
    assert snapshot.unavailable["gpu.0.gpu"].reason == Reason.NOT_SUPPORTED
    assert snapshot.metrics["gpu.0.memoryAllocatedBytes"] == 41 * MIB


def test_others_than_root_have_clocks_and_temperature(rock: DrmTree, watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of other users cannot be looked into: one of them may use it."""
    use(rock, "panthor", 41, engine_panthor="5 ns")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    watcher = watch("mali")
    watcher.later()
    snapshot = watcher.later()
    assert own(snapshot) == {"smClock": 300, "maxSmClock": 1000, "temp": 43.5}
    assert {snapshot.unavailable[f"gpu.0.{name}"].reason for name in ("gpu", "memoryAllocatedBytes")} == {Reason.NO_PERMISSION}


def test_adreno_has_its_clocks_beside_the_display(machine: DrmTree, watch: Watch) -> None:
    machine.add(PHONE, "msm_dpu", {})
    compatible = "qcom,adreno-43050a01\0qcom,adreno\0"
    machine.add("3d00000.gpu", "adreno", {**clocked("3d00000.gpu", 680_000_000), "of_node/compatible": compatible}, node="")
    zone(machine, 0, "gpuss-0-thermal", 39_000)
    zone(machine, 1, "gpuss-1-thermal", 40_100)
    watcher = watch("adreno")
    for nanoseconds in (1000, 900_001_000):
        use(machine, "msm", 41, engine_gpu=f"{nanoseconds} ns", cycles_gpu="5", resident_memory="7 MiB")
        snapshot = watcher.later()
    assert own(snapshot) == {"gpu": 90, "smClock": 680, "maxSmClock": 1000, "temp": 40.1, "memoryAllocatedBytes": 7 * MIB}
    assert snapshot.devices[0].name == "qcom,adreno-43050a01"


def test_adreno_by_qualcomms_own_driver(machine: DrmTree, watch: Watch) -> None:
    kgsl = {"gpu_busy_percentage": "37 %", "gpu_model": "Adreno643v1", "temp": "41", "devfreq/cur_freq": 315_000_000}
    for file, content in (kgsl | {"devfreq/available_frequencies": "315000000 812000000"}).items():
        machine.write(f"/sys/class/kgsl/kgsl-3d0/{file}", str(content))
    machine.write("/dev/kgsl-3d0", "")
    zone(machine, 0, "gpuss-0", 40_300)
    assert registry.load("adreno").detect()[:2] == (True, "/dev/kgsl-3d0, no GPU driven by adreno")
    snapshot = watch("adreno").later()
    assert own(snapshot) == {"gpu": 37, "smClock": 315, "maxSmClock": 812, "temp": 40.3}
    assert snapshot.devices[0].identity == DeviceIdentity("gpu", "adreno", 0, name="Adreno643v1", unified=True)


# Rockchip


@pytest.fixture
def rk3588(machine: DrmTree) -> DrmTree:
    device = "/sys/devices/platform/fdab0000.npu"
    JetsonTree(machine.root).clocks("fdab0000.npu", device, "RKNPU", 1_000_000_000, 1_000_000_000)
    machine.write(f"{device}/of_node/compatible", b"rockchip,rk3588-rknpu\0")
    machine.write(f"{device}/devfreq/fdab0000.npu/load", "100@1000000000Hz")
    machine.write(LOAD, THREE_CORES)
    zone(machine, 0, "npu-thermal", 38_800)
    return machine


def test_rockchips_npu_is_used_as_the_mean_of_its_cores(rk3588: DrmTree, watch: Watch) -> None:
    assert rk3588.root.exists()
    snapshot = watch("rockchip").later()
    mean = pytest.approx(89 / 3)
    assert own(snapshot, "npu.0.") == {"utilization": mean, "smClock": 1000, "maxSmClock": 1000, "temp": 38.8}
    assert (snapshot.devices[0].name, snapshot.devices[0].identity.unified) == ("rockchip,rk3588-rknpu", True)


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ("NPU load:  37%", 37),
        ("NPU load:  Core0:  0%,", 0),
        ("", Reason.NOT_SUPPORTED),
        ("NPU load:", Reason.PARSE_ERROR),
        ("NPU load:  Core0: 400%, Core1: 0%", Reason.PARSE_ERROR),
        ("busy", Reason.PARSE_ERROR),
    ],
)
def test_what_rockchips_driver_prints(rk3588: DrmTree, watch: Watch, printed: str, said: float | Reason) -> None:
    rk3588.write(LOAD, printed)
    snapshot = watch("rockchip").later()
    why = snapshot.unavailable.get("npu.0.utilization")
    assert snapshot.metrics.get("npu.0.utilization", why and why.reason) == said


def test_rockchips_load_is_roots(rk3588: DrmTree, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rk3588.root.exists()
    read = KeptFile.read

    def refuse(file: KeptFile) -> bytes:
        if file.path == LOAD:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read(file)

    monkeypatch.setattr(KeptFile, "read", refuse)
    snapshot = watch("rockchip").later()
    assert snapshot.unavailable["npu.0.utilization"].reason == Reason.NO_PERMISSION
    assert snapshot.metrics["npu.0.temp"] == 38.8


def test_fuzz() -> None:
    fuzz(rockchip.backend, lambda text: [DeviceSample({LOAD: text, "cur_freq": "1000000000"})], THREE_CORES, "NPU load:  37%")


# AMD XDNA


@pytest.fixture
def ryzen(machine: DrmTree) -> DrmTree:
    files: dict[str, Content] = {"vbnv": "RyzenAI-npu4", "fw_version": "1.0.0.63", "device_type": "0"}
    files |= {"vendor": "0x1022", "device": "0x17f0", "class": "0x118000", "power/runtime_status": "suspended"}
    machine.add(RYZEN, "amdxdna", files, node="accel/accel")
    return machine


@pytest.mark.parametrize("engine", ["engine-npu-amdxdna", "engine-amdxdna_accel_driver"])
def test_xdna_by_the_names_of_both_drivers(ryzen: DrmTree, watch: Watch, engine: str) -> None:
    watcher = watch("xdna", 41)
    for nanoseconds in (0, 350_000_000):
        said = {engine: f"{nanoseconds} ns", "total-memory": "96 MiB"}
        use(ryzen, "amdxdna_accel_driver", 41, NPU, RYZEN, **said)
        snapshot = watcher.later()
    assert own(snapshot, "npu.0.") == {"utilization": 35, "memoryAllocatedBytes": 96 * MIB}
    assert own(snapshot, "npu.process.0.") == {"utilization": 35, "memoryAllocatedBytes": 96 * MIB}
    (device,) = snapshot.devices
    expected = {"name": "RyzenAI-npu4", "pci_bus_id": RYZEN, "firmware": "1.0.0.63", "unified": True}
    assert device.identity == DeviceIdentity("npu", "xdna", 0, **expected)  # type: ignore[arg-type]
    assert device.processes == (DeviceProcess(41, "compute", 96 * MIB, 35),)


def test_xdna_whose_driver_counts_no_time(ryzen: DrmTree, watch: Watch) -> None:
    """As that of Linux up to 7.2."""
    use(ryzen, "amdxdna_accel_driver", 41, NPU, RYZEN, **{"total-memory": "96 MiB", "amdxdna_accel_driver-heap-alloc": "64 MiB"})
    watcher = watch("xdna")
    watcher.later()
    snapshot = watcher.later()
    assert snapshot.unavailable["npu.0.utilization"].reason == Reason.NOT_SUPPORTED
    assert own(snapshot, "npu.0.") == {"memoryAllocatedBytes": 96 * MIB}


# All of them


BOARDS = ["v3d", "mali", "adreno", "rockchip", "xdna"]


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("name", BOARDS)
def test_another_machine_has_none(name: str) -> None:
    found = registry.load(name).detect()
    assert (found.present, found.devices) == (False, 0)
    with pytest.raises(SourceError, match=r"sysfs lists no (GPU|NPU)"):
        registry.load(name).open()


@pytest.mark.usefixtures("pi", "rk3588", "ryzen")
def test_each_is_found_by_its_kernel_driver(machine: DrmTree) -> None:
    machine.add(ROCK, "panfrost", {}, number=2)
    machine.add(PHONE, "msm_dpu", {}, number=3)
    machine.add("3d00000.gpu", "adreno", {}, node="")
    found = {name: registry.load(name).detect() for name in BOARDS}
    assert {name: (each.present, each.devices) for name, each in found.items()} == dict.fromkeys(BOARDS, (True, 1))
    assert "driven by v3d" in found["v3d"].evidence
    with Sampler(BOARDS) as sampler:
        snapshot = sampler.sample()
    assert [slot.key for slot in snapshot.identities] == ["gpu.0", "gpu.1", "gpu.2", "npu.0", "npu.1"]
    assert [slot.backend for slot in snapshot.identities] == BOARDS


def test_an_npu_without_its_driver_is_told_of(machine: DrmTree) -> None:
    machine.add(RYZEN, "", {"vendor": "0x1022", "device": "0x1502", "class": "0x118000"}, node="")
    found = registry.load("xdna").detect()
    assert (found.present, "modprobe amdxdna" in found.advice) == (True, True)


def test_a_device_that_goes_is_lost_and_comes_back_as_itself(rock: DrmTree, watch: Watch) -> None:
    watcher = watch("mali")
    watcher.later()
    rock.remove(rock.root / "sys/devices/platform/soc" / ROCK)
    assert watcher.later().unavailable["gpu.0.temp"].reason == Reason.DEVICE_LOST
    rock.add(ROCK, "panthor", clocked(ROCK, 850_000_000))
    assert watcher.later().metrics["gpu.0.smClock"] == 850
