"""NVLink by link, and the fabric of its switches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.nvidia import NvidiaBackend
from tests.backends.nvidia.machine import Consume, Consumer, Simulate
from tests.simulators.nvml import ALL_LINKS, NvmlSimulator, Ret

LINKS = 18
OLD_FIELDS = ("NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "NVLINK_REPLAY_ERROR_COUNT_TOTAL", "NVLINK_RECOVERY_ERROR_COUNT_TOTAL")
ERRORS = {"nvlinkCrcErrors": "nvlink_crc_flit", "nvlinkReplayErrors": "nvlink_replay", "nvlinkRecoveryErrors": "nvlink_recovery"}
TOTALS = {"nvlinkTxBytesTotal": ("DATA_TX", "tx"), "nvlinkRxBytesTotal": ("DATA_RX", "rx")}
FIELDS = "nvmlDeviceGetFieldValues"
FABRIC = "nvmlDeviceGetGpuFabricInfoV"


def set_totals(simulator: NvmlSimulator, answer: int | None) -> None:
    """Have the driver answer for all links of the first GPU."""
    for field, _ in TOTALS.values():
        simulator.gpu[0].set_field(f"NVLINK_THROUGHPUT_{field}", answer, ALL_LINKS)


def of_links(simulator: NvmlSimulator, name: str) -> list[int]:
    return [int(simulator.gpu[0].get(f"{name}[{link}]")) for link in range(LINKS)]


def test_every_link(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """State and traffic of each, in bytes."""
    simulator.gpu[0].set(nvlink_state={3: 0})
    metrics = consumer.read(0).metrics
    assert [metrics[f"nvlink.{link}.state"] for link in range(LINKS)] == [int(link != 3) for link in range(LINKS)]
    for way in ("tx", "rx"):
        found = [metrics[f"nvlink.{link}.{way}BytesTotal"] for link in range(LINKS)]
        assert found == [kib * 1024 for kib in of_links(simulator, f"nvlink_data_{way}_kib")]
    assert f"nvlink.{LINKS}.state" not in metrics


def test_errors_are_summed_over_the_links(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Each kind on its own."""
    simulator.gpu[0].set(nvlink_recovery={7: 5})
    metrics = consumer.read(0).metrics
    assert {name: metrics[name] for name in ERRORS} == {name: sum(of_links(simulator, source)) for name, source in ERRORS.items()}
    assert metrics["nvlinkRecoveryErrors"] == 5


def test_errors_of_gpus_that_count_over_all_links_alone(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """The older fields stand in where no link has the newer ones."""
    for link in range(LINKS):
        for field in ("CRC", "REPLAY", "RECOVERY"):
            simulator.gpu[0].set_field(f"NVLINK_ERROR_DL_{field}", None, link)
    for number, field in enumerate(("CRC_FLIT", "REPLAY", "RECOVERY")):
        simulator.gpu[0].set_field(f"NVLINK_{field}_ERROR_COUNT_TOTAL", 70 + number)
    metrics = consumer.read(0).metrics
    assert [metrics[name] for name in ERRORS] == [70, 71, 72]


@pytest.mark.parametrize("up", [(), (4,), range(LINKS)], ids=["none", "one", "all"])
def test_links_that_are_down_hide_no_counter(simulator: NvmlSimulator, consumer: Consumer, up: Sequence[int]) -> None:
    """Which counters links have is asked of one that is up: one that is down may refuse what it has."""
    refused = [link for link in range(LINKS) if link not in up and link != 7]
    for field in OLD_FIELDS:
        simulator.gpu[0].set_field(field, 900)
    for link in refused:
        simulator.gpu[0].set_field("NVLINK_ERROR_DL_RECOVERY", Ret.NOT_SUPPORTED, link)
    simulator.gpu[0].set(nvlink_state={link: int(link in up) for link in range(LINKS)}, nvlink_recovery={7: 5})
    assert consumer.read(0).metrics["nvlinkRecoveryErrors"] == 5


@pytest.mark.parametrize("code", [Ret.NOT_SUPPORTED, Ret.INVALID_ARGUMENT], ids=str)
def test_traffic_that_the_driver_does_not_add_up(simulator: NvmlSimulator, consumer: Consumer, code: Ret) -> None:
    """The links are summed, those that are down left out."""
    simulator.gpu[0].set(nvlink_state={5: 0})
    for field, _ in TOTALS.values():
        simulator.gpu[0].set_field(f"NVLINK_THROUGHPUT_{field}", code, ALL_LINKS)
        simulator.gpu[0].set_field(f"NVLINK_THROUGHPUT_{field}", Ret.UNKNOWN, 5)
    seen = consumer.read(0)
    for name, (_, way) in TOTALS.items():
        expected = sum(kib for link, kib in enumerate(of_links(simulator, f"nvlink_data_{way}_kib")) if link != 5)
        assert seen.metrics[name] == expected * 1024
    assert seen.reason("nvlink.5.txBytesTotal") == "driver_error"


def test_a_sum_that_lacks_a_link_is_none(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """What one link that is up does not say, all of them together do not either."""
    set_totals(simulator, None)
    simulator.gpu[0].set_field("NVLINK_THROUGHPUT_DATA_TX", Ret.TIMEOUT, 2)
    seen = consumer.read(0)
    assert seen.reason("nvlinkTxBytesTotal") == "not_supported"
    assert "nvlinkRxBytesTotal" in seen.metrics
    assert "nvlink.1.txBytesTotal" in seen.metrics


def test_a_sum_that_fails_for_now_is_not_replaced(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """One that is read at every reading and one of ten seconds ago are not mixed."""
    simulator.gpu[0].set_field("NVLINK_THROUGHPUT_DATA_TX", Ret.TIMEOUT, ALL_LINKS)
    assert consumer.read(0).reason("nvlinkTxBytesTotal") == "timed_out"


def test_a_total_that_stays_0_beside_links_that_count(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """The sum of the links stands in, and stays, whatever the driver's total becomes later."""
    set_totals(simulator, 0)
    expected = {name: sum(of_links(simulator, f"nvlink_data_{way}_kib")) * 1024 for name, (_, way) in TOTALS.items()}
    assert {name: consumer.read(0).metrics[name] for name in TOTALS} == expected
    set_totals(simulator, 7)
    assert {name: consumer.later(10).metrics[name] for name in TOTALS} == expected


def test_links_without_traffic_have_a_total_of_0(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Until there is some: then the driver's total is taken, and stays."""
    simulator.gpu[0].set(nvlink_data_tx_kib=[0] * LINKS)
    assert consumer.read(0).metrics["nvlinkTxBytesTotal"] == 0
    simulator.gpu[0].set(nvlink_data_tx_kib=[5] * LINKS)
    assert consumer.later(10).metrics["nvlinkTxBytesTotal"] == 5 * LINKS * 1024
    simulator.gpu[0].set_field("NVLINK_THROUGHPUT_DATA_TX", 0, ALL_LINKS)
    assert consumer.later(10).metrics["nvlinkTxBytesTotal"] == 0


def test_nvlink_5(simulate: Simulate, consume: Consume) -> None:
    """Blackwell refuses the older fields and has its own: counts are summed, of the error ratios the worst link's is told."""
    simulator = simulate(gpus=1, profile="b200")
    families = ("malformed", "overrun", "receive", "remote", "header", "integrity", "discard", "effective", "symbol")
    for number, family in enumerate((*families, "recovery_success", "recovery_failure", "recovery_event"), start=1):
        simulator.gpu[0].set(**{f"nvlink_{family}": dict.fromkeys(range(LINKS), number)})
    simulator.gpu[0].set(nvlink_symbol_ber={4: 6 << 8 | 11})
    seen = consume().read(0)
    found = {name: seen.metrics[f"nvlink{name.capitalize()}Errors"] for name in families}
    assert found == {name: number * LINKS for number, name in enumerate(families, start=1)}
    recovered = [seen.metrics[f"nvlinkRecovery{result}"] for result in ("Successes", "Failures", "Errors")]
    assert recovered == [10 * LINKS, 11 * LINKS, 12 * LINKS]
    assert (seen.metrics["nvlinkSymbolErrorRatio"], seen.metrics["nvlinkEffectiveErrorRatio"]) == (6e-11, 15e-255)
    assert [seen.metrics[f"nvlinkFec.bin{number}"] for number in range(4)] == [1_000_000 * LINKS, 40 * LINKS, 2 * LINKS, 0]
    assert {seen.reason(name) for name in ("nvlinkCrcErrors", "nvlinkReplayErrors")} == {"not_supported"}
    assert seen.metrics["nvlinkTxBytesTotal"] == sum(of_links(simulator, "nvlink_data_tx_kib")) * 1024


def test_the_source_of_a_count_stays(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """A link that fails for a while does not make the count jump to that of another field; what is not supported is not asked again."""
    simulator.gpu[0].set(nvlink_recovery={7: 5})
    for field in OLD_FIELDS:
        simulator.gpu[0].set_field(field, 900)
    assert consumer.read(0).metrics["nvlinkRecoveryErrors"] == 5
    simulator.gpu[0].set_field("NVLINK_ERROR_DL_RECOVERY", Ret.TIMEOUT, 7)
    simulator.gpu[0].set(nvlink_symbol=dict.fromkeys(range(LINKS), 1))
    seen = consumer.later(10)
    assert (seen.reason("nvlinkRecoveryErrors"), seen.reason("nvlinkSymbolErrors")) == ("timed_out", "not_supported")
    simulator.gpu[0].clear_fields()
    assert consumer.later(10).metrics["nvlinkRecoveryErrors"] == 5


def test_a_source_is_not_settled_while_it_fails(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """A field that times out at the first reading is not given up for another one."""
    simulator.gpu[0].set_field("NVLINK_ERROR_DL_RECOVERY", Ret.TIMEOUT, 7)
    simulator.gpu[0].set_field("NVLINK_RECOVERY_ERROR_COUNT_TOTAL", 900)
    assert consumer.read(0).reason("nvlinkRecoveryErrors") == "timed_out"
    simulator.gpu[0].clear_fields()
    assert consumer.later(10).metrics["nvlinkRecoveryErrors"] == 0


def test_the_state_of_links_on_drivers_without_its_field(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Asked for link by link; twice at first, before and after it is known what a link counts."""
    for link in range(LINKS):
        simulator.gpu[0].set_field("NVLINK_GET_STATE", Ret.INVALID_ARGUMENT, link)
    simulator.gpu[0].set(nvlink_state={4: 0})
    metrics = consumer.read(0).metrics
    assert [metrics[f"nvlink.{link}.state"] for link in range(LINKS)] == [int(link != 4) for link in range(LINKS)]
    assert simulator.calls()[("nvmlDeviceGetNvLinkState", 0)] == 2 * LINKS


def test_links_are_read_every_ten_seconds_in_one_call(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Even where a link's fields fail, once they were asked for again: that is no reason to ask for all of them at every reading."""
    simulator.gpu[0].set_field("NVLINK_THROUGHPUT_DATA_TX", Ret.UNKNOWN, 2)
    consumer.read(0)
    consumer.later(0.2)
    before = simulator.calls()[(FIELDS, 0)]
    consumer.later(0.2)
    assert simulator.calls()[(FIELDS, 0)] - before == 1, "the fast ones alone"
    simulator.gpu[0].set(nvlink_state={0: 0})
    assert consumer.later(9.0).metrics["nvlink.0.state"] == 1
    before = simulator.calls()[(FIELDS, 0)]
    assert consumer.later(1.0).metrics["nvlink.0.state"] == 0
    assert simulator.calls()[(FIELDS, 0)] - before == 3, "the fast ones, the slow ones, the links"


@pytest.mark.parametrize("total", [None, 0], ids=["refused", "zero"])
def test_a_gpu_without_links(simulate: Simulate, consume: Consume, total: int | None) -> None:
    """It has no link's keys, and says of the sums that it has none, whatever the driver answers for all links."""
    simulator = simulate(gpus=1, profile="t4")
    set_totals(simulator, total)
    seen = consume().read(0)
    assert {seen.reasons[name].detail for name in (*ERRORS, *TOTALS, "nvlinkSymbolErrors")} == {"the GPU has no NVLink"}
    assert {seen.reason(name) for name in (*ERRORS, "fabricState")} == {"not_supported"}
    assert not [name for name in (*seen.metrics, *seen.reasons) if name.startswith("nvlink.")]


def test_links_through_the_sampler(simulator: NvmlSimulator) -> None:
    """Keys with two numbers, held to the whole schema, and read back."""
    with Sampler(["nvidia"]) as sampler:
        snapshot = sampler.sample()
    assert snapshot.metrics["gpu.2.nvlink.17.state"] == 1
    assert snapshot.metrics["gpu.2.nvlink.17.txBytesTotal"] == int(simulator.gpu[2].get("nvlink_data_tx_kib[17]")) * 1024
    assert type(snapshot).from_json(snapshot.to_json()) == snapshot


# The fabric


def test_the_state_of_the_fabric(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """A number at its pace, and words in the identity."""
    assert consumer.read(0).metrics["fabricState"] == 3
    assert consumer.driver.devices[0].fabric == "NVLink fabric: joined"
    simulator.gpu[0].set(fabric_state=2)
    assert consumer.later(5.0).metrics["fabricState"] == 3
    assert consumer.later(5.0).metrics["fabricState"] == 2
    assert consumer.driver.devices[0].fabric == "NVLink fabric: joining"


def test_the_part_of_the_fabric(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Cluster and clique, where there is more than one machine's own."""
    simulator.gpu[0].set(fabric_cluster=0x1234, fabric_clique=7)
    consumer.read(0)
    assert consumer.driver.devices[0].fabric == f"NVLink fabric: joined, clique 7 of cluster {'0' * 28}1234"


CONDITIONS = ("degradedBandwidth", "routeRecovery", "routeUnhealthy", "accessTimeoutRecovery")


@pytest.mark.parametrize(
    ("mask", "conditions", "configuration", "words"),
    [
        (0x1AA, (0, 0, 0, 0), 1, ""),
        (1194, (0, 0, 0, 0), 4, ", no partition"),
        (0x15A, (0, 0, 1, 1), 1, ", route unhealthy"),
        (0x7A5, (1, 1, 0, 0), 7, ", invalid location"),
        (0xFA6, (0, 1, 0, 0), 15, ", incorrect configuration 15"),
    ],
)
def test_the_health_of_the_fabric(
    simulator: NvmlSimulator, consumer: Consumer, mask: int, conditions: tuple[int, ...], configuration: int, words: str
) -> None:
    """The mask, what it says part by part, and the summary; what is wrong stands beside the state."""
    simulator.gpu[0].set(fabric_health_mask=mask, fabric_health_summary=2 if words else 1)
    metrics = consumer.read(0).metrics
    assert (metrics["fabricHealthMask"], metrics["fabricHealthSummary"]) == (mask, 2 if words else 1)
    assert tuple(metrics[f"fabricHealth.{name}"] for name in CONDITIONS) == conditions
    assert metrics["fabricHealth.incorrectConfiguration"] == configuration
    assert consumer.driver.devices[0].fabric == f"NVLink fabric: joined{words}"


def test_a_fabric_that_says_nothing_of_its_health(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """Parts of the mask that are 0 are not told, and a value that cannot be is none."""
    simulator.gpu[0].set(fabric_health_mask=0, fabric_health_summary=0)
    simulator.gpu[1].set(fabric_health_mask=0xFFFFFFFF, fabric_health_summary=9)
    names = [*(f"fabricHealth.{name}" for name in (*CONDITIONS, "incorrectConfiguration")), "fabricHealthSummary"]
    assert {consumer.read(0).reason(name) for name in names} == {"not_supported"}
    assert {consumer.read(1).reason(name) for name in (*names, "fabricHealthMask")} == {"invalid_value"}


def test_a_driver_without_the_newest_form_of_the_fabric(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """The older one is used, which lacks the summary. The newer one is tried first each time, as with every call of several forms."""
    simulator.gpu[0].set(fabric_version=2, fabric_health_mask=1194)
    seen = consumer.read(0)
    assert (seen.metrics["fabricState"], seen.metrics["fabricHealth.incorrectConfiguration"]) == (3, 4)
    assert seen.reason("fabricHealthSummary") == "not_supported"
    before = simulator.count(FABRIC)
    consumer.later(10)
    assert simulator.count(FABRIC) - before == 2


@pytest.mark.parametrize("version", [1, 2])
def test_the_place_in_the_rack(simulate: Simulate, consume: Consume, version: int) -> None:
    """Part of the identity, in both forms of the answer; what the platform does not say is not known."""
    simulator = simulate(gpus=["b200", "b200", "h100"])
    simulator.gpu[0].set(platform_version=version, platform_host=255)
    simulator.gpu[1].set(platform_slot=0, platform_tray=0, platform_host=0, platform_module=0, chassis_serial=None)
    first, bare, other = consume().identities()
    place = (first.chassis_serial, first.chassis_slot, first.tray_index, first.host_id, first.module_id)
    assert place == ("1821325191344", 11, 3, None, 2)
    for device in (bare, other):
        assert (device.chassis_serial, device.chassis_slot, device.tray_index, device.host_id, device.module_id) == ("", *[None] * 4)


def test_a_fabric_that_could_not_be_joined(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """The state is "done", and the status says how."""
    simulator.gpu[0].set(fabric_status=int(Ret.UNKNOWN))
    assert consumer.read(0).metrics["fabricState"] == 3
    assert consumer.driver.devices[0].fabric == "NVLink fabric: joining failed (NVML_ERROR_UNKNOWN)"


def test_a_gpu_outside_any_fabric(simulator: NvmlSimulator, consumer: Consumer) -> None:
    """State 0 is no state; one that cannot be is none either."""
    simulator.gpu[0].set(fabric_state=0)
    simulator.gpu[1].set(fabric_state=9)
    assert (consumer.read(0).reason("fabricState"), consumer.read(1).reason("fabricState")) == ("not_supported", "invalid_value")
    assert consumer.driver.devices[0].fabric == ""


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("535.161.08", "drivers before 550 crash"),
        ("549.99", "drivers before 550 crash"),
        ("", "the driver does not report its version"),
        ("unknown", "the driver does not report its version"),
    ],
)
def test_old_drivers_are_not_asked_about_the_fabric(simulator: NvmlSimulator, consume: Consume, version: str, words: str) -> None:
    """Asking crashes them, so one whose version is not known is not asked either, and is not called old."""
    simulator.set(driver_version=version)
    seen = consume().read(0)
    assert seen.reason("fabricState") == "not_supported"
    assert seen.reasons["fabricState"].detail.startswith(words)
    assert simulator.count(FABRIC) == 0
    simulator.set(driver_version="550.54.14")
    assert consume().read(0).metrics["fabricState"] == 3, "the first branch that answers"


@pytest.mark.parametrize("code", [Ret.UNKNOWN, Ret.NO_PERMISSION, Ret.TIMEOUT], ids=str)
def test_an_error_that_lasts_is_not_met_at_every_reading(simulator: NvmlSimulator, consumer: Consumer, code: Ret) -> None:
    """Asked again at the next reading, and then at the fabric's own pace, until it has passed."""
    simulator.rule(FABRIC, 0, error=code)
    consumer.read(0)
    consumer.later(0.1)
    asked = simulator.count(FABRIC)
    for _ in range(49):
        seen = consumer.later(0.1)
    assert "fabricState" in seen.reasons
    assert simulator.count(FABRIC) == asked
    simulator.clear_rules()
    assert consumer.later(5.0).metrics["fabricState"] == 3
    assert simulator.count(FABRIC) == asked + 1


def test_doctor_tells_of_the_fabric(simulator: NvmlSimulator) -> None:
    """With the device."""
    from accelmetrics.visibility.doctor import diagnose

    found = diagnose([NvidiaBackend()])
    assert {device.fabric for device in found.backends[0].devices} == {"NVLink fabric: joined"}
