"""Every key, exactly, from commands that print as the real ones do, in each of their formats."""

import json

import pytest

from accelmetrics import Sampler
from accelmetrics.backends import registry
from accelmetrics.backends.apple import backend
from accelmetrics.backends.contract import SYSTEM_CLOCK
from accelmetrics.schemas.errors import Reason
from accelmetrics.schemas.identity import DeviceIdentity
from tests.backends.apple.reading import Mac
from tests.simulators.apple import (
    POWERMETRICS_OLD_TEXT,
    POWERMETRICS_TEXT,
    RAM,
    MacStandIn,
    ioreg,
    macmon_0_7,
    macmon_0_8,
    powermetrics,
)

MEMORY = {"memoryAllocated": 25.0, "memoryAllocatedBytes": 8_589_934_592, "memoryTotalBytes": RAM}
GPU = {"gpu": 62.5, "scaledUtilization": 37.5, "freq": 912, "temp": 48.5, "powerWatts": 7.25, "fanSpeedRpm": 1399} | MEMORY
MACHINE = {
    "cpu.ecpu_percent": 12.5,
    "cpu.ecpu_freq": 1284,
    "cpu.pcpu_percent": 50.0,
    "cpu.pcpu_freq": 3096,
    "ane.power": 0.0,
    "system.powerWatts": 24.5,
    "soc.powerWatts": 13.75,
    "memory.powerWatts": 1.25,
    "cpu.powerWatts": 6.5,
    "cpu.avg_temp": 52.75,
    "memory.used": 17_179_869_184,
    "memory.used_percent": 50.0,
    "swap.used": 805_306_368,
}
POWER = {"powerWatts": 3.0, "ane.power": 0.125, "cpu.powerWatts": 4.25, "soc.powerWatts": 7.375, "cpu.ecpu_freq": 1200.0}


def of_gpu(values: dict[str, float]) -> dict[str, float]:
    return {f"gpu.0.{name}": value for name, value in values.items()}


def test_macmon_and_ioreg_together_give_everything(mac: MacStandIn, sampler: Sampler) -> None:
    snapshot = sampler.sample()
    assert snapshot.metrics == of_gpu(GPU) | MACHINE
    assert set(snapshot.unavailable) == {"gpu.0.powerPercent"}
    assert snapshot.unavailable["gpu.0.powerPercent"] == (
        Reason.NOT_SUPPORTED,
        "no power limit is published for the GPUs of Apple's chips",
    )
    (status,) = snapshot.backends
    assert (status.status, status.source) == ("ok", "macmon+ioreg")
    assert mac.calls("powermetrics") == []


def test_root_needs_no_powermetrics_beside_macmon(root: MacStandIn, sampler: Sampler) -> None:
    assert sampler.sample().backends[0].source == "macmon+ioreg"
    assert root.calls("powermetrics") == []


def test_what_is_given_or_explained_is_what_is_promised() -> None:
    coverage = backend.coverage()
    assert set(coverage.devices) == {*GPU, "powerPercent"}
    assert set(coverage.machine) == MACHINE.keys()
    assert (coverage.partitions, coverage.processes, coverage.optional) == ({}, {}, {})
    assert (
        coverage.devices["gpu"]
        == 'macmon "gpu_active_ratio", from 0.8 on; else ioreg "Device Utilization %"; else powermetrics "GPU HW active residency"'
    )


def test_0_7_has_no_active_ratio_so_that_is_ioreg_s(mac: MacStandIn, sampler: Sampler) -> None:
    """The ratio that 0.7 prints is weighted by the clock: it is not how busy the GPU is."""
    mac.behave("macmon", json.dumps(macmon_0_7()), version="macmon 0.7.2\n")
    without_fans = {name: value for name, value in GPU.items() if name != "fanSpeedRpm"}
    assert sampler.sample().metrics == of_gpu(without_fans | {"gpu": 37}) | MACHINE


@pytest.mark.parametrize(("fans", "rpm"), [([], None), ([{"name": "fan0", "rpm": 0, "max_rpm": 5777}], 0), (None, None)])
def test_a_fan_that_stands_still_is_there_and_a_mac_without_one_has_none(
    mac: MacStandIn, sampler: Sampler, fans: object, rpm: int | None
) -> None:
    mac.macmon(macmon_0_8(fans=fans, ram_power=0.0))
    snapshot = sampler.sample()
    assert snapshot.metrics.get("gpu.0.fanSpeedRpm") == rpm
    assert ("gpu.0.fanSpeedRpm" in snapshot.unavailable) == (rpm is None)
    assert "memory.powerWatts" in snapshot.unavailable


def test_0_8_1_prints_both_spellings(mac: MacStandIn, sampler: Sampler) -> None:
    mac.macmon(macmon_0_7() | macmon_0_8())
    assert sampler.sample().metrics == of_gpu(GPU) | MACHINE


def test_without_macmon_ioreg_gives_utilisation_and_memory(mac: MacStandIn, sampler: Sampler) -> None:
    mac.remove("macmon")
    snapshot = sampler.sample()
    assert snapshot.metrics == of_gpu({"gpu": 37} | MEMORY)
    assert snapshot.backends[0].source == "ioreg"
    assert snapshot.unavailable["gpu.0.powerWatts"] == (
        Reason.NO_PERMISSION,
        "macmon is not installed (brew install macmon); powermetrics needs root",
    )
    assert snapshot.unavailable["gpu.0.temp"].reason == Reason.DRIVER_UNAVAILABLE
    assert mac.calls("powermetrics") == []


@pytest.mark.parametrize(
    ("printed", "refused", "clock", "busy"),
    [
        (powermetrics(), "", 740.5, 37),
        (POWERMETRICS_TEXT, "", 740.0, 37),
        (POWERMETRICS_OLD_TEXT.replace("ANE", "CPU Power: 4250 mW\nGPU Power: 3000 mW\nANE"), "", 740.0, 37),
    ],
)
def test_root_without_macmon_has_powermetrics(
    root: MacStandIn, sampler: Sampler, printed: str, refused: str, clock: float, busy: float
) -> None:
    root.remove("macmon")
    root.behave("powermetrics", printed, refused=refused)
    snapshot = sampler.sample()
    power = {key if "." in key else f"gpu.0.{key}": value for key, value in POWER.items()}
    assert snapshot.metrics == of_gpu({"gpu": busy, "freq": clock} | MEMORY) | power | {"cpu.pcpu_freq": 2500.0}
    assert snapshot.backends[0].source == "ioreg+powermetrics"


def test_without_ioreg_powermetrics_says_how_busy_it_is(root: MacStandIn, sampler: Sampler) -> None:
    root.remove("macmon", "ioreg")
    root.behave("powermetrics", powermetrics())
    snapshot = sampler.sample()
    assert snapshot.metrics["gpu.0.gpu"] == 75.0
    assert snapshot.unavailable["gpu.0.memoryAllocatedBytes"].reason == Reason.DRIVER_UNAVAILABLE
    root.behave("powermetrics", POWERMETRICS_TEXT)


@pytest.mark.parametrize(("printed", "busy"), [(POWERMETRICS_TEXT, 75.5), (POWERMETRICS_OLD_TEXT, 75.5), (powermetrics(), 75.0)])
def test_residency_in_each_form(root: MacStandIn, machine: Mac, printed: str, busy: float) -> None:
    root.remove("macmon", "ioreg")
    root.behave("powermetrics", printed)
    assert machine.read().values["gpu"] == busy


def test_a_powermetrics_without_property_lists_is_asked_for_text(root: MacStandIn, machine: Mac) -> None:
    root.remove("macmon")
    root.behave("powermetrics", POWERMETRICS_TEXT, refused="plist", errors="unrecognized format\n", status=64)
    assert machine.read().values["powerWatts"] == 3.0


def test_energies_are_as_good_as_powers(root: MacStandIn, machine: Mac) -> None:
    """Older releases give mJ over the sample's time."""
    root.remove("macmon")
    energies = {"ane_energy": 25, "cpu_energy": 850, "combined_energy": 1475}
    root.behave("powermetrics", powermetrics(processor=energies))
    values = machine.read().values
    assert {name: values[name] for name in POWER if name != "cpu.ecpu_freq"} == {
        "powerWatts": 3.0,
        "ane.power": 0.125,
        "cpu.powerWatts": 4.25,
        "soc.powerWatts": 7.375,
    }


def test_who_the_gpu_is(mac: MacStandIn, sampler: Sampler) -> None:
    (device,) = sampler.sample().devices
    assert device.key == "gpu.0"
    assert device.identity == DeviceIdentity("gpu", "apple", 0, name="Apple M2 Pro", cores=19, memory_total_bytes=RAM, unified=True)
    assert mac.calls("system_profiler") == [["SPDisplaysDataType", "-json"]]
    assert device.processes is None


@pytest.mark.parametrize("printed", ["", "not JSON", "[]", '{"SPDisplaysDataType": [{"spdisplays_vendor": "sppci_vendor_amd"}]}'])
def test_where_the_profiler_does_not_say_the_driver_does(mac: MacStandIn, machine: Mac, printed: str) -> None:
    mac.behave("system_profiler", printed)
    mac.behave("ioreg", ioreg(model=b"Apple M3\0", **{"gpu-core-count": 10}))
    (identity,) = machine.driver.devices
    assert (identity.name, identity.cores) == ("Apple M3", 10)


def test_where_the_driver_does_not_say_the_profiler_does(mac: MacStandIn, machine: Mac) -> None:
    mac.remove("ioreg")
    (identity,) = machine.driver.devices
    assert (identity.name, identity.cores, identity.memory_total_bytes) == ("Apple M2 Pro", 19, RAM)


def test_where_neither_says_it_is_apple_s_gpu(mac: MacStandIn, machine: Mac) -> None:
    mac.remove("system_profiler", "ioreg", "sysctl")
    (identity,) = machine.driver.devices
    assert (identity.name, identity.cores, identity.unified) == ("Apple GPU", None, True)


def test_memory_that_sysctl_does_not_tell_is_macmon_s(mac: MacStandIn, sampler: Sampler) -> None:
    mac.behave("sysctl", "", errors="sysctl: unknown oid 'hw.memsize'\n", status=1)
    snapshot = sampler.sample()
    assert snapshot.metrics["gpu.0.memoryAllocated"] == 25.0
    assert snapshot.devices[0].identity.memory_total_bytes == RAM


@pytest.mark.parametrize(
    ("changed", "missing", "reason"),
    [
        ({"temp": {"cpu_temp_avg": 0.0, "gpu_temp_avg": 0.0}}, {"temp", "cpu.avg_temp"}, Reason.NOT_SUPPORTED),
        ({"temp": {"cpu_temp_avg": 52.75, "gpu_temp_avg": 1250.0}}, {"temp"}, Reason.INVALID_VALUE),
        ({"sys_power": 0.0}, {"system.powerWatts"}, Reason.NOT_SUPPORTED),
        ({"cpu_power": 0.0}, {"cpu.powerWatts"}, Reason.NOT_SUPPORTED),
        ({"gpu_power": None}, {"powerWatts"}, Reason.NOT_SUPPORTED),
        ({"gpu_power": -1.0}, {"powerWatts"}, Reason.INVALID_VALUE),
        ({"gpu_power": "low"}, {"powerWatts"}, Reason.PARSE_ERROR),
        ({"ecpu_freq_mhz": 0, "ecpu_scaled_ratio": 0.0}, {"cpu.ecpu_freq", "cpu.ecpu_percent"}, Reason.NOT_SUPPORTED),
        ({"gpu_freq_mhz": 0}, {"freq"}, Reason.NOT_IN_USE),
        ({"gpu_scaled_ratio": 37.5}, {"scaledUtilization"}, Reason.INVALID_VALUE),
        (
            {"memory": {"ram_total": RAM, "ram_usage": RAM + 1, "swap_total": 1, "swap_usage": 0}},
            {"memory.used_percent"},
            Reason.INVALID_VALUE,
        ),
        (
            {"memory": {"ram_total": RAM, "ram_usage": 17_179_869_184, "swap_total": 0, "swap_usage": 0}},
            {"swap.used"},
            Reason.NOT_SUPPORTED,
        ),
    ],
)
def test_what_was_not_measured_is_missing_and_not_0(
    mac: MacStandIn, sampler: Sampler, changed: dict[str, object], missing: set[str], reason: Reason
) -> None:
    mac.macmon(macmon_0_8(**changed))
    snapshot = sampler.sample()
    keys = {name if name in MACHINE else f"gpu.0.{name}" for name in missing}
    assert {key: snapshot.unavailable[key].reason for key in keys} == dict.fromkeys(keys, reason)
    assert set(snapshot.unavailable) == {*keys, "gpu.0.powerPercent"}


def test_an_idle_gpu_is_0_percent_busy(mac: MacStandIn, sampler: Sampler) -> None:
    mac.macmon(macmon_0_8(gpu_freq_mhz=0, gpu_scaled_ratio=0.0, gpu_active_ratio=0.0, gpu_power=0.0))
    metrics = sampler.sample().metrics
    assert (metrics["gpu.0.gpu"], metrics["gpu.0.scaledUtilization"], metrics["gpu.0.powerWatts"]) == (0.0, 0.0, 0.0)


def test_a_ratio_a_hair_above_1_is_all_of_it(mac: MacStandIn, sampler: Sampler) -> None:
    mac.macmon(macmon_0_8(gpu_active_ratio=1.0000001))
    assert sampler.sample().metrics["gpu.0.gpu"] == 100.0


def test_the_processors_temperature_and_power_are_all_that_the_host_backend_names_too() -> None:
    """It answers on Linux only: on a Mac the values are this backend's, and its reasons give way."""
    assert backend.coverage().machine.keys() & registry.load("host").coverage().machine.keys() == {"cpu.avg_temp", "cpu.powerWatts"}


def test_beside_the_host_no_key_collides(mac: MacStandIn) -> None:
    """Validation, on in every test, refuses a key with a value and a reason."""
    del mac
    with Sampler(["apple", "host"], clock=SYSTEM_CLOCK) as sampler:
        sampler.sample()
        metrics = sampler.sample().metrics
    assert metrics["system.powerWatts"] == 24.5
    assert "memory_percent" in metrics
