"""Every value is the one that the driver has, in the unit that the catalogue says, on every GPU its own."""

from __future__ import annotations

import pytest

from accelmetrics import Monitor, Sampler
from accelmetrics.backends.nvidia.metrics import FABRIC_FLAGS, LINK_COUNTS, LINK_RATIOS, PCIE_RATES
from accelmetrics.schemas.catalogue import expected_names, find
from accelmetrics.schemas.catalogue.devices import NOT_THROTTLING
from tests.backends.nvidia.machine import OWED, Consume, Consumer, Simulate
from tests.simulators.nvml import ALL_LINKS, PRODUCTS, NvmlSimulator, Ret, ValueType
from tests.support.waiting import wait_for

DRAM, SRAM = 2, 7
SHUTDOWN, SLOWDOWN = 0, 1

MEASURED = ("a100", "rtx4090", "t4")
"""GPUs without GPM and byte counters: their PCIe throughput is measured."""
VIOLATIONS = ("power", "thermal", "syncBoost", "boardLimit", "lowUtilization", "reliability")
FACTS: dict[str, tuple[str, float]] = {
    "powerInstantWatts": ("power_instant_mw", 1 / 1000),
    "tempMargin": ("temp_margin", 1),
    "maxOpTemp": ("temp_threshold[3]", 1),
    "memoryMaxOpTemp": ("temp_threshold[2]", 1),
    "jpegUtilization": ("jpg_util", 1),
    "ofaUtilization": ("ofa_util", 1),
    "videoClock": ("clock_video", 1),
    "maxVideoClock": ("max_clock_video", 1),
    "persistenceMode": ("persistence_mode", 1),
    "computeMode": ("compute_mode", 1),
    "migMode": ("mig_mode", 1),
    "migModePending": ("mig_pending", 1),
    "eccMode": ("ecc_mode", 1),
    "eccModePending": ("ecc_pending", 1),
    "retiredPagesSingleBit": ("retired_pages[0]", 1),
    "retiredPagesDoubleBit": ("retired_pages[1]", 1),
    "retiredPagesPending": ("retired_pending", 1),
    "minPowerLimitWatts": ("power_limit_min_mw", 1 / 1000),
    "maxPowerLimitWatts": ("power_limit_max_mw", 1 / 1000),
    "defaultPowerLimitWatts": ("power_limit_default_mw", 1 / 1000),
    "c2cMode": ("c2c_enabled", 1),
    "c2cLinks": ("c2c_links", 1),
    "c2cLinkSpeed": ("c2c_max_bw_mbps", 10**6),
}
SOURCES: dict[str, tuple[str, float]] = {
    "gpu": ("gpu_util", 1),
    "memory": ("memory_util", 1),
    "memoryAllocatedBytes": ("memory_used", 1),
    "memoryTotalBytes": ("memory_total", 1),
    "temp": ("temperature", 1),
    "memoryTemp": ("memory_temp", 1),
    "powerWatts": ("power_mw", 1 / 1000),
    "enforcedPowerLimitWatts": ("power_limit_enforced_mw", 1 / 1000),
    "energyJoules": ("energy_mj", 1 / 1000),
    "smClock": ("clock_sm", 1),
    "memoryClock": ("clock_mem", 1),
    "graphicsClock": ("clock_graphics", 1),
    "maxSmClock": ("max_clock_sm", 1),
    "maxMemoryClock": ("max_clock_mem", 1),
    "performanceState": ("pstate", 1),
    "encoderUtilization": ("encoder_util", 1),
    "decoderUtilization": ("decoder_util", 1),
    "correctedMemoryErrors": (f"ecc_corrected_volatile[{DRAM}]", 1),
    "uncorrectedMemoryErrors": (f"ecc_uncorrected_volatile[{DRAM}]", 1),
    "unCorrectedMemoryErrors": (f"ecc_uncorrected_volatile[{DRAM}]", 1),
    "correctedMemoryErrorsAggregate": (f"ecc_corrected_aggregate[{DRAM}]", 1),
    "uncorrectedMemoryErrorsAggregate": (f"ecc_uncorrected_aggregate[{DRAM}]", 1),
    "remappedRowsCorrected": ("remapped_correctable", 1),
    "remappedRowsUncorrected": ("remapped_uncorrectable", 1),
    "rowRemapPending": ("remapped_pending", 1),
    "rowRemapFailure": ("remapped_failure", 1),
    "recoveryAction": ("recovery_action", 1),
    **{f"violationSeconds.{name}": (f"violation_ns[{number}]", 1e-9) for number, name in enumerate(VIOLATIONS)},
    "pcieLinkGen": ("pcie_gen", 1),
    "pcieLinkWidth": ("pcie_width", 1),
    "maxPcieLinkGen": ("pcie_gen_max", 1),
    "maxPcieLinkWidth": ("pcie_width_max", 1),
    "pcieReplays": ("pcie_replay", 1),
    "fabricState": ("fabric_state", 1),
    "fabricHealthMask": ("fabric_health_mask", 1),
    "fabricHealthSummary": ("fabric_health_summary", 1),
    "sramThresholdExceeded": ("sram_threshold_exceeded", 1),
    "uncorrectedSramParityErrors": ("sram_parity[0]", 1),
    "uncorrectedSramParityErrorsAggregate": ("sram_parity[1]", 1),
    **{
        f"uncorrectedSramErrorsAggregate.{source}": (f"sram_buckets[{number}]", 1)
        for number, source in enumerate(("l2", "sm", "pcie", "microcontroller", "other"))
    },
    **{f"nvlinkFec.bin{number}": (f"nvlink_fec[{number}]", 18) for number in range(16)},
    "pcieTxBytesTotal": ("pcie_tx_bytes", 1),
    "pcieRxBytesTotal": ("pcie_rx_bytes", 1),
    "bar1UsedBytes": ("bar1_used", 1),
    "tempLimit.slowdown": (f"temp_threshold[{SLOWDOWN}]", 1),
    "tempLimit.shutdown": (f"temp_threshold[{SHUTDOWN}]", 1),
    "fanSpeed": ("fan_speed[0]", 1),
    **FACTS,
    "grEngineActive": ("gpm[1]", 1),
    "smActive": ("gpm[2]", 1),
    "smOccupancy": ("gpm[3]", 1),
    "dramActive": ("gpm[10]", 1),
    "pipeTensorActive": ("gpm[5]", 1),
    "pipeTensorHmmaActive": ("gpm[7]", 1),
    "pipeFp64Active": ("gpm[11]", 1),
    "pipeFp32Active": ("gpm[12]", 1),
    "pipeFp16Active": ("gpm[13]", 1),
    "pcieTxBytes": ("gpm[20]", 2**20),
    "pcieRxBytes": ("gpm[21]", 2**20),
    "nvlinkTxBytes": ("gpm[61]", 2**20),
    "nvlinkRxBytes": ("gpm[60]", 2**20),
}
COMPUTED = {
    *("memoryAllocated", "memoryFreeBytes", "powerPercent", "nvlinkTxBytesTotal", "nvlinkRxBytesTotal"),
    *("nvlinkCrcErrors", "nvlinkReplayErrors", "nvlinkRecoveryErrors", "xidErrors", "throttled"),
    *(*LINK_COUNTS, *LINK_RATIOS),
    *(f"{name}{scope}" for name in ("correctedSramErrors", "uncorrectedSramSecDedErrors") for scope in ("", "Aggregate")),
    *(f"fabricHealth.{name}" for name in (*FABRIC_FLAGS, "incorrectConfiguration")),
    *("correctedEccErrors", "uncorrectedEccErrors", "correctedEccErrorsAggregate", "uncorrectedEccErrorsAggregate"),
}
"""And counted: these are the matter of other tests."""
THROTTLE = (
    *("gpuIdle", "applicationsClocksSetting", "swPowerCap", "hwSlowdown", "syncBoost", "swThermalSlowdown"),
    *("hwThermalSlowdown", "hwPowerBrakeSlowdown", "displayClockSetting"),
)


def test_the_tables_here_cover_every_name() -> None:
    """A metric that is added to the catalogue has to be compared here."""
    assert {*SOURCES, *COMPUTED, *(f"throttle.{name}" for name in THROTTLE)} == OWED


@pytest.mark.parametrize("profile", sorted(PRODUCTS))
def test_every_value_is_the_drivers(simulate: Simulate, consume: Consume, profile: str) -> None:
    """On each product: what the driver has is there, what it has not is not_supported."""
    simulator = simulate(gpus=4, profile=profile)
    consumer = consume()
    for unit in range(4):
        consumer.read(unit)
    consumer.clock.now += 0.2
    for unit in range(4):
        seen = consumer.read(unit)
        unified = profile == "gb10"
        for name, (source, factor) in SOURCES.items():
            if unified and name in ("memoryTotalBytes", "memoryAllocatedBytes"):
                continue
            if name in PCIE_RATES and profile in MEASURED:
                continue  # test_pcie
            answer = simulator.gpu[unit].get(source)
            if isinstance(answer, Ret):
                assert seen.reason(name) == "not_supported", name
            else:
                assert seen.metrics[name] == pytest.approx(answer * factor, rel=1e-12), name


def test_gpus_are_not_mixed_up(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Values that differ between GPUs differ in the readings."""
    seen = [consumer.read(unit) for unit in range(3)]
    for name in ("gpu", "memoryAllocatedBytes", "temp", "powerWatts", "smClock", "energyJoules", "correctedMemoryErrors", "pcieReplays"):
        assert len({reading.metrics[name] for reading in seen}) == 3, name


def test_memory(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Memory is the v2 reading: used leaves the reserve out, free is what remains of all."""
    simulator.gpu[1].set(memory_total=80_000, memory_used=20_000, memory_reserved=10_000, memory_free=50_000)
    metrics = consumer.read(1).metrics
    assert (metrics["memoryTotalBytes"], metrics["memoryAllocatedBytes"], metrics["memoryFreeBytes"]) == (80_000, 20_000, 50_000)
    assert metrics["memoryAllocated"] == 25.0


def test_errors_of_all_memories_of_the_chip(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """The device memory's among them, which have keys of their own; each kind and each scope for itself."""
    for place, family in enumerate(("corrected_volatile", "uncorrected_volatile", "corrected_aggregate", "uncorrected_aggregate"), 1):
        simulator.gpu[1].set(**{f"ecc_{family}": {DRAM: place * 100, SRAM: place}})
    metrics = consumer.read(1).metrics
    found = [metrics[f"{kind}EccErrors{scope}"] for scope in ("", "Aggregate") for kind in ("corrected", "uncorrected")]
    assert found == [101, 202, 303, 404]
    assert metrics["correctedMemoryErrors"] == 100


def test_how_long_the_gpu_was_held_back(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Seconds of nanoseconds, by reason."""
    simulator.gpu[1].set(violation_ns=[1_500_000_000, 0, 0, 2_000_000_000, 0, 0])
    metrics = consumer.read(1).metrics
    found = {name: metrics[f"violationSeconds.{name}"] for name in VIOLATIONS}
    assert found == dict.fromkeys(VIOLATIONS, 0) | {"power": 1.5, "boardLimit": 2.0}


def test_slow_fields_come_in_one_call(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Every ten seconds a batch of them, beside that of the links: a value more costs no call more."""
    consumer.read(0)
    simulator.reset_calls()
    consumer.later(10.0)
    assert simulator.count("nvmlDeviceGetFieldValues") == 3


def test_power(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Watts, the mean of a second, and the share of the enforced limit, which may be exceeded."""
    simulator.gpu[1].set(power_mw=111_000, power_limit_enforced_mw=200_000, power_instant_mw=999_000, power_average_mw=300_500)
    metrics = consumer.read(1).metrics
    assert metrics["powerWatts"] == 300.5
    assert metrics["enforcedPowerLimitWatts"] == 200.0
    assert metrics["powerPercent"] == 150.25


@pytest.mark.parametrize("profile", ["a100", "t4"])
def test_power_of_older_gpus(simulate: Simulate, consume: Consume, profile: str) -> None:
    """GA100 and what came before it have no mean of a second: the call says what there is."""
    simulator = simulate(gpus=1, profile=profile)
    consumer = consume()
    assert consumer.read(0).metrics["powerWatts"] == simulator.gpu[0].get("power_mw") / 1000
    simulator.reset_calls()
    consumer.later(0.2)
    assert simulator.count("nvmlDeviceGetPowerUsage") == 1


def test_nvlink_counters_are_sums_over_the_links_in_bytes(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Payload over all links, KiB made bytes."""
    simulator.gpu[2].set(nvlink_data_tx_kib=dict.fromkeys(range(18), 0) | {3: 7, 11: 5}, nvlink_data_rx_kib=dict.fromkeys(range(18), 2))
    metrics = consumer.read(2).metrics
    assert metrics["nvlinkTxBytesTotal"] == 12 * 1024
    assert metrics["nvlinkRxBytesTotal"] == 36 * 1024


@pytest.mark.parametrize("bit", range(9))
def test_each_clocks_event_reason_has_its_own_key(simulator: NvmlSimulator, consumer: Consumer, bit: int) -> None:
    """One bit sets one key to 1 and the others to 0; bits without a key set none. A GPU whose clocks are set or idle is not throttled."""
    simulator.gpu[0].set(clocks_event_reasons=1 << bit | 1 << 20)
    metrics = consumer.read(0).metrics
    assert {name: metrics[f"throttle.{name}"] for name in THROTTLE} == {name: int(name == THROTTLE[bit]) for name in THROTTLE}
    assert metrics["throttled"] == int(THROTTLE[bit] not in NOT_THROTTLING)


def test_both_spellings_carry_one_value(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """W&B's documentation and its collector spell the uncorrected errors differently."""
    simulator.gpu[0].set(ecc_uncorrected_volatile={DRAM: 31337})
    metrics = consumer.read(0).metrics
    assert metrics["uncorrectedMemoryErrors"] == metrics["unCorrectedMemoryErrors"] == 31337


def test_values_are_of_the_catalogues_types(consumer: Consumer) -> None:
    """Whole numbers where the catalogue says so, within its bounds."""
    consumer.read(0)
    metrics = consumer.later(0.2).metrics
    for name in expected_names("nvidia"):
        if name not in metrics:
            continue
        row, value = find(f"gpu.0.{name}"), metrics[name]
        assert isinstance(value, int) or not row.integer, row.name
        assert row.minimum is None or value >= row.minimum, row.name
        assert row.maximum is None or value <= row.maximum, row.name


def test_counters_beyond_32_bits(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Nothing is cut to 32 bits."""
    simulator.gpu[0].set(energy_mj=2**50, pcie_tx_bytes=2**51, ecc_corrected_volatile={DRAM: 2**40}, bar1_used=2**37)
    metrics = consumer.read(0).metrics
    assert metrics["energyJoules"] == 2**50 / 1000
    assert metrics["pcieTxBytesTotal"] == 2**51
    assert metrics["correctedMemoryErrors"] == 2**40
    assert metrics["bar1UsedBytes"] == 2**37


@pytest.mark.parametrize("kind", list(ValueType))
def test_a_field_is_read_by_its_own_type(simulator: NvmlSimulator, consumer: Consumer, kind: ValueType) -> None:
    """The driver says of each field how it is encoded, and may say something else tomorrow."""
    simulator.gpu[0].set_field("MEMORY_TEMP", 61, kind=kind)
    simulator.gpu[0].set_field("TOTAL_ENERGY_CONSUMPTION", 12_000, kind=kind)
    simulator.gpu[0].set_field("NVLINK_THROUGHPUT_DATA_TX", 3, ALL_LINKS, kind=kind)
    simulator.gpu[0].set_field("REMAPPED_COR", 17, kind=kind)
    metrics = consumer.read(0).metrics
    assert metrics["memoryTemp"] == 61
    assert metrics["energyJoules"] == 12.0
    assert metrics["nvlinkTxBytesTotal"] == 3072
    assert metrics["remappedRowsCorrected"] == 17
    assert consumer.later(0.2).metrics["energyJoules"] == 12.0


def test_the_type_of_a_field_may_change_between_readings(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """A pattern that was seen before is recognised again."""
    for kind in (ValueType.UNSIGNED_INT, ValueType.DOUBLE, ValueType.UNSIGNED_INT, ValueType.SIGNED_INT):
        simulator.gpu[0].set_field("MEMORY_TEMP", 44, kind=kind)
        assert consumer.read(0).metrics["memoryTemp"] == 44


def test_a_memory_temperature_below_zero(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """No memory that works is colder than ice, and a sensor that is not there says 0."""
    for value in (-5, 0):
        simulator.gpu[0].set_field("MEMORY_TEMP", value, kind=ValueType.SIGNED_INT)
        assert consumer.later(0.2).reason("memoryTemp") == "invalid_value"


@pytest.mark.parametrize("name", ["NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e"])
def test_the_energy_of_a_module_is_not_called_the_gpus(simulate: Simulate, consume: Consume, name: str) -> None:
    """GH200 counts CPU and memory too; its power is the GPU's."""
    simulator = simulate(gpus=1)
    simulator.gpu[0].set(name=name, energy_mj=5_000_000)
    consumer = consume()
    seen = consumer.read(0)
    assert seen.metrics["moduleEnergyJoules"] == 5000.0
    assert "energyJoules" not in seen.metrics
    assert seen.reason("energyJoules") == "not_supported"
    simulator.gpu[0].set(energy_mj=5_000_900)
    assert consumer.later(0.2).metrics["moduleEnergyJoules"] == 5000.9


@pytest.mark.parametrize("name", ["NVIDIA H200", "NVIDIA GB200"])
def test_other_gpus_count_their_own_energy(simulate: Simulate, consume: Consume, name: str) -> None:
    """And have no key for a module's."""
    simulate(gpus=1).gpu[0].set(name=name, energy_mj=5_000_000)
    seen = consume().read(0)
    assert seen.metrics["energyJoules"] == 5000.0
    assert "moduleEnergyJoules" not in {*seen.metrics, *seen.reasons}


def test_a_window_on_a_module_has_the_gpus_energy_from_its_power(simulate: Simulate) -> None:
    """And the module's counter is a key like others, chosen by its name."""
    simulate(gpus=1).gpu[0].set(name="NVIDIA GH200 480GB", energy_mj=5_000_000, power_mw=300_000)
    with Sampler(["nvidia"], metrics=["moduleEnergyJoules"]) as sampler:
        assert dict(sampler.sample().metrics) == {"gpu.0.moduleEnergyJoules": 5000.0}
    with Monitor(0.02, backends=["nvidia"]) as monitor:
        wait_for(lambda: monitor.status.ticks >= 1)
        with monitor.window() as window:
            wait_for(lambda: window.summary)
    assert window.energy_joules["gpu.0"].source == "integrated"
    assert window.energy_joules["gpu.0"].joules == pytest.approx(300.0 * window.energy_joules["gpu.0"].seconds)
