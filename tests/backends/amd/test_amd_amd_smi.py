"""The command ``amd-smi``, in both shapes of its output."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from accelmetrics.backends.amd import DEFAULT, amd_smi, backend as amd, rocm_smi
from accelmetrics.backends.amd.amd_smi import parse, sample
from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.kit.polled import PolledDriver
from accelmetrics.schemas.catalogue import expected_names, find
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable
from accelmetrics.testing import FakeClock
from tests.backends.amd.printed import AMD_SMI, listed, read
from tests.simulators.amd_smi import AmdSmiStandIn, Shape, document, metric, static, value
from tests.simulators.amdgpu import Tree, machines
from tests.simulators.rocm_smi import RocmSmiStandIn, output
from tests.support.readings import values

OPTIONS = ReadOptions(pid=1)
MIB = 2**20
backend = amd.pinned("amd-smi")
MI210 = {
    **{"gpu": 62, "memory": 31, "memoryReadWriteActivity": 31, "powerWatts": 173, "enforcedPowerLimitWatts": 300},
    **{"powerPercent": 100 * 173 / 300, "smClock": 1695, "maxSmClock": 1700, "memoryClock": 1600, "maxMemoryClock": 1601, "temp": 47},
    **{"hotspotTemp": 58, "memoryTemp": 52, "pcieLinkWidth": 16, "pcieLinkGen": 4, "maxPcieLinkWidth": 16, "maxPcieLinkGen": 4},
    **{"pcieReplays": 4, "correctedMemoryErrors": 9, "uncorrectedMemoryErrors": 1, "unCorrectedMemoryErrors": 1, "energyJoules": 8123.5},
    **{"memoryAllocatedBytes": 4096 * MIB, "memoryTotalBytes": 65520 * MIB, "memoryFreeBytes": 61424 * MIB},
    **{"throttled": 1, "throttle.swPowerCap": 1, "throttle.swThermalSlowdown": 1, "throttle.hwThermalSlowdown": 0},
    "memoryAllocated": 100 * 4096 / 65520,
}
STATIC = [static(0, "0000:63:00.0", "0x3B7A21C0FFEE0001"), static(1, "0000:43:00.0", "0x3B7A21C0FFEE0002")]


@pytest.fixture
def stand_in(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> AmdSmiStandIn:
    del root
    command = AmdSmiStandIn(tmp_path)
    monkeypatch.setenv("PATH", command.path)
    monkeypatch.setattr("accelmetrics.backends.amd.amd_smi.DIRECTORIES", ())
    return command


def good(shape: Shape = "gpu_data", **changes: Any) -> tuple[str, str]:
    return document([metric(0, **changes), metric(1)], shape), document(STATIC, shape)


def driver(timeout: float = 10.0) -> PolledDriver:
    """A driver whose every later reading is a new run."""
    return amd_smi.backend(interval=1e-9, timeout=timeout).open()


@pytest.mark.parametrize("shape", ["list", "gpu_data"])
def test_both_shapes_give_every_metric(stand_in: AmdSmiStandIn, shape: Shape) -> None:
    stand_in.behave(*good(shape))
    opened = backend.open()
    assert opened.source == "amd-smi"
    for unit in range(2):
        reading = opened.reader(OPTIONS).read(unit, [])
        assert values(reading) == pytest.approx(MI210)
        assert {*values(reading), *reading.unavailable} <= set(expected_names("amd"))
        assert {why.reason for why in reading.unavailable.values()} == {Reason.NOT_SUPPORTED}
    assert stand_in.calls == ["metric --json", "static --json"]


def test_who_the_cards_are(stand_in: AmdSmiStandIn) -> None:
    stand_in.behave(*good())
    first, second = backend.open().devices
    assert (first.name, first.uuid, first.pci_bus_id) == ("AMD Instinct MI210", "0x3b7a21c0ffee0001", "0000:63:00.0")
    assert (first.serial, first.architecture, first.driver_version) == ("PCB052210-0047", "gfx90a", "6.10.5")
    assert first.part_number == "102-D67301-00"
    assert (first.firmware, first.memory_total_bytes) == ("022.040.003.043.000001", 65520 * MIB)
    assert (second.vendor_index, second.uuid) == (1, "0x3b7a21c0ffee0002")


def test_partitions_of_one_card_are_told_apart_and_have_its_values_once(stand_in: AmdSmiStandIn) -> None:
    """They share the chip's serial number; all but the first print next to nothing in some releases, and the card's values in others."""
    serial = "0x3B7A21C0FFEE0001"
    fixed = [static(number, f"0000:63:00.{number}", serial) for number in range(3)]
    fixed[1]["limit"] = "N/A"
    bare = metric(1, usage="N/A", power="N/A", energy="N/A", pcie="N/A", ecc="N/A", temperature={"edge": "N/A", "hotspot": "N/A"})
    stand_in.behave(document([metric(0), bare, metric(2)], "gpu_data"), document(fixed, "gpu_data"))
    opened = backend.open()
    assert [device.uuid for device in opened.devices] == [serial.lower(), f"{serial.lower()}/xcp1", f"{serial.lower()}/xcp2"]
    readings = [opened.reader(OPTIONS).read(unit, []) for unit in range(3)]
    assert values(readings[0]) == pytest.approx(MI210)
    for reading in readings[1:]:
        for name in (
            "powerWatts",
            "enforcedPowerLimitWatts",
            "powerPercent",
            "energyJoules",
            "correctedMemoryErrors",
            "pcieReplays",
            "temp",
        ):
            assert reading.unavailable[name] == (Reason.NOT_SUPPORTED, "amd-smi reports it for the whole card, and GPU 0 has it")
        assert values(reading)["memoryAllocatedBytes"] == 4096 * MIB
    assert (values(readings[2])["gpu"], values(readings[2])["smClock"]) == (62, 1695)


def test_a_number_that_several_cards_have_joins_nothing(stand_in: AmdSmiStandIn) -> None:
    """What `static` tells under that number is left out; the card that has a number of its own keeps its part."""
    fixed = [*STATIC, static(2, "0000:83:00.0", "0x3B7A21C0FFEE0003")]
    stand_in.behave(document([metric(0), metric(2), metric(0, power={"socket_power": value(90, "W")})], "list"), document(fixed, "list"))
    opened = backend.open()
    assert [device.uuid for device in opened.devices] == ["", "0x3b7a21c0ffee0003", ""]
    assert [values(opened.reader(OPTIONS).read(unit, []))["powerWatts"] for unit in range(3)] == [173, 173, 90]
    assert "enforcedPowerLimitWatts" in opened.reader(OPTIONS).read(0, []).unavailable


@pytest.mark.parametrize(
    ("asic", "name"),
    [
        ({"market_name": "N/A", "device_id": "0x74a1", "rev_id": "0x00"}, "AMD Instinct MI300X"),
        ({"market_name": "0x1002", "device_id": "0x7fff"}, "AMD GPU (0x7fff)"),
        ({}, "AMD GPU"),
    ],
)
def test_a_card_without_a_market_name_is_called_by_its_device_id(asic: dict[str, str], name: str) -> None:
    (device,) = listed(amd_smi.backend(), [sample({"gpu": 0, "asic": asic})])
    assert device.name == name


@pytest.mark.parametrize(
    ("changes", "metric_name", "reason"),
    [
        ({"usage": "N/A"}, "gpu", Reason.NOT_SUPPORTED),
        ({"usage": {"gfx_activity": "N/A"}}, "gpu", Reason.NOT_SUPPORTED),
        ({"usage": {"gfx_activity": {"value": "N/A", "unit": "%"}}}, "gpu", Reason.NOT_SUPPORTED),
        ({"usage": {"gfx_activity": value(65535, "%")}}, "gpu", Reason.INVALID_VALUE),
        ({"usage": {"gfx_activity": "busy"}}, "gpu", Reason.PARSE_ERROR),
        ({"energy": {"total_energy_consumption": value(0.0, "J")}}, "energyJoules", Reason.NOT_SUPPORTED),
        ({"power": {"socket_power": value(0, "W")}}, "powerWatts", Reason.NOT_SUPPORTED),
        ({"throttle": {"ppt_violation_status": "N/A"}}, "throttle.swPowerCap", Reason.NOT_SUPPORTED),
        ({"throttle": {"ppt_violation_status": "PERHAPS"}}, "throttle.swPowerCap", Reason.PARSE_ERROR),
        ({"throttle": {"prochot_violation_status": "ACTIVE"}}, "throttle.hwThermalSlowdown", Reason.NOT_SUPPORTED),
        ({"pcie": {"speed": value(7, "GT/s")}}, "pcieLinkGen", Reason.INVALID_VALUE),
        ({"mem_usage": {"total_vram": value(0, "MB"), "used_vram": value(0, "MB")}}, "memoryTotalBytes", Reason.NOT_SUPPORTED),
    ],
)
def test_what_the_tool_does_not_have_is_no_value(stand_in: AmdSmiStandIn, changes: Any, metric_name: str, reason: Reason) -> None:
    stand_in.behave(*good(**changes))
    reader = driver().reader(OPTIONS)
    assert reader.read(0, []).unavailable[metric_name].reason == reason
    assert values(reader.read(1, [])) == pytest.approx(MI210)


def test_older_releases_print_no_hotspot_unit_and_a_plain_number(stand_in: AmdSmiStandIn) -> None:
    stand_in.behave(*good("list", temperature={"edge": 44, "hotspot": "55"}))
    found = values(driver().reader(OPTIONS).read(0, []))
    assert (found["temp"], found["hotspotTemp"]) == (44, 55)


STATIC_6_0 = {
    "bus": {"bdf": "0000:63:00.0", "max_pcie_lanes": 16, "max_pcie_speed": 16},
    "driver": {"driver_name": "amdgpu", "driver_version": "6.3.6"},
}


def test_the_spellings_of_rocm_6_0(stand_in: AmdSmiStandIn) -> None:
    printed = {
        "gpu": 0,
        "usage": {"gfx_usage": value(62, "%"), "mem_usage": value(31, "%"), "mm_ip_usage": "N/A"},
        "power": {"current_power": value(173, "W")},
        "clock": {"gfx": {"cur_clk": value(1695, "MHz"), "max_clk": value(1700, "MHz")}, "mem": {"cur_clk": value(1600, "MHz")}},
        "ecc": {"total_correctable": 9, "total_uncorrectable": 1},
        "pcie": {"current_lanes": 16, "current_speed": value(16, "GT/s"), "replay_count": 4},
    }
    limits = {"max_power": value(310, "W"), "current_power": value(300, "W"), "slowdown_edge_temperature": value(100, "C")}
    limits["shutdown_edge_temperature"] = value(105, "C")
    stand_in.behave(document([printed], "list"), document([{"gpu": 0, "limit": limits, **STATIC_6_0}], "list"))
    opened = driver()
    found = values(opened.reader(OPTIONS).read(0, []))
    names = {"gpu", "memory", "powerWatts", "enforcedPowerLimitWatts", "powerPercent", "smClock", "maxSmClock", "memoryClock"}
    names |= {"correctedMemoryErrors", "uncorrectedMemoryErrors", "pcieLinkWidth", "pcieLinkGen", "pcieReplays"}
    names |= {"maxPcieLinkWidth", "maxPcieLinkGen"}
    assert {name: found[name] for name in names} == pytest.approx({name: MI210[name] for name in names})
    assert (found["tempLimit.slowdown"], found["tempLimit.shutdown"]) == (100, 105)
    assert opened.devices[0].driver_version == "6.3.6"


def test_words_and_further_documents_around_it_do_no_harm(stand_in: AmdSmiStandIn) -> None:
    metrics, statics = good()
    stand_in.behave(f"WARNING: User is missing group\nTIMESTAMP 1\n{metrics}\n[]\n", statics, status=3)
    assert values(driver().reader(OPTIONS).read(0, [])) == pytest.approx(MI210)


def test_cut_output_costs_only_the_card_that_was_cut(stand_in: AmdSmiStandIn) -> None:
    metrics, statics = good()
    stand_in.behave(metrics, statics)
    reader = driver().reader(OPTIONS)
    stand_in.behave(metrics[:-300], statics)
    assert values(reader.read(0, [])) == pytest.approx(MI210)
    with pytest.raises(SourceError) as caught:
        reader.read(1, [])
    assert caught.value.reason == Reason.PARSE_ERROR
    assert "amd-smi's output was cut" in caught.value.message


def test_cards_without_their_names_are_read_all_the_same(stand_in: AmdSmiStandIn) -> None:
    metrics, _ = good()
    stand_in.behave(metrics, document([{"gpu": 0, "asic": "N/A"}], "list"))
    assert [device.anchor for device in backend.open().devices] == ["amd:gpu:0", "amd:gpu:1"]


def test_static_that_fails_costs_only_its_fields(stand_in: AmdSmiStandIn) -> None:
    metrics, _ = good()
    stand_in.behave(metrics, "[]")
    opened = driver()
    reading = opened.reader(OPTIONS).read(0, [])
    lacking = {"enforcedPowerLimitWatts", "powerPercent", "maxPcieLinkWidth", "maxPcieLinkGen"}
    assert values(reading) == pytest.approx({name: number for name, number in MI210.items() if name not in lacking})
    for name in lacking:
        assert reading.unavailable[name].reason == Reason.DRIVER_ERROR
        assert "amd-smi static" in reading.unavailable[name].detail
    assert [device.uuid for device in opened.devices] == ["", ""]


def test_static_is_run_again_once_a_minute(stand_in: AmdSmiStandIn) -> None:
    metrics, statics = good()
    clock = FakeClock()
    stand_in.behave(metrics, "[]")
    opened = amd_smi.backend(clock, interval=1e-9).open()
    reader = opened.reader(OPTIONS)
    stand_in.behave(metrics, statics)
    clock.advance(59)
    assert "enforcedPowerLimitWatts" in reader.read(0, []).unavailable
    clock.advance(2)
    assert values(reader.read(0, [])) == pytest.approx(MI210)
    assert [device.uuid for device in opened.devices] == ["0x3b7a21c0ffee0001", "0x3b7a21c0ffee0002"]
    assert stand_in.calls.count("static --json") == 2


def test_missing_groups_are_told_with_what_to_do(stand_in: AmdSmiStandIn) -> None:
    """A paragraph of that in front of a good document is noise."""
    paragraph = (
        "Permission needed to access required GPU device node(s):\n  - /dev/dri/card0: Permission denied; owner=root(0):video(39);\n\n"
    )
    stand_in.behave(paragraph)
    with pytest.raises(SourceError, match="Permission needed to access") as caught:
        backend.open()
    assert (caught.value.reason, "usermod -aG video,render" in caught.value.advice) == (Reason.NO_PERMISSION, True)
    metrics, statics = good()
    stand_in.behave(paragraph + metrics, paragraph + statics)
    assert values(backend.open().reader(OPTIONS).read(1, [])) == pytest.approx(MI210)


@pytest.mark.parametrize("odd", [None, "gpu", [], {"gpu": "1"}, {"gpu": None}])
def test_an_entry_that_is_no_card_costs_no_other(stand_in: AmdSmiStandIn, odd: Any) -> None:
    stand_in.behave(*good())
    reader = driver().reader(OPTIONS)
    stand_in.behave(document([metric(0), odd], "list"), document(STATIC, "list"))
    assert values(reader.read(0, [])) == pytest.approx(MI210)
    with pytest.raises(SourceError) as caught:
        reader.read(1, [])
    assert caught.value.reason == Reason.PARSE_ERROR


def test_a_maximum_of_0_megahertz_is_none(stand_in: AmdSmiStandIn) -> None:
    clock = {"gfx_0": {"clk": value(90, "MHz"), "max_clk": value(0, "MHz")}}
    stand_in.behave(*good(clock=clock))
    reading = driver().reader(OPTIONS).read(0, [])
    assert values(reading)["smClock"] == 90
    assert reading.unavailable["maxSmClock"].reason == Reason.NOT_SUPPORTED


FAILURES: dict[str, tuple[dict[str, Any], Reason, str]] = {
    "nothing": ({}, Reason.PARSE_ERROR, "printed nothing (exit status 0)"),
    "a crash": ({"errors": "Traceback\nKeyError: 'libamd_smi.so'\n", "status": 1}, Reason.DRIVER_ERROR, "KeyError: 'libamd_smi.so'"),
    "no rights": ({"errors": "Permission denied: /dev/kfd\n", "status": 1}, Reason.NO_PERMISSION, "Permission denied"),
    "no groups": (
        {"errors": "Traceback\nRuntimeError: User is missing the following required groups: video. Please add user.\n", "status": 1},
        *(Reason.NO_PERMISSION, "required groups: video"),
    ),
    "prose": ({"metrics": "no GPU here\n"}, Reason.DRIVER_ERROR, "listed no device (exit status 0): no GPU here"),
    "cut": ({"metrics": '[{"gpu": 0, "usage": {"gfx'}, Reason.PARSE_ERROR, "cut or holds no card"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_each_failure_has_its_words_and_is_got_over(stand_in: AmdSmiStandIn, case: str) -> None:
    behaviour, reason, words = FAILURES[case]
    stand_in.behave(*good())
    reader = driver().reader(OPTIONS)
    stand_in.behave(**{"metrics": "", **behaviour})
    for call in (backend.open, lambda: reader.read(0, [])):
        with pytest.raises(SourceError) as caught:
            call()
        assert caught.value.reason == reason
        assert words in caught.value.message
    stand_in.behave(*good())
    assert values(reader.read(0, [])) == pytest.approx(MI210)


# Which source is used


@pytest.fixture
def both(stand_in: AmdSmiStandIn, tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[AmdSmiStandIn, RocmSmiStandIn]:
    """Both commands, and neither ROCm's library nor a card that the kernel shows."""
    rocm = RocmSmiStandIn(tmp_path)
    rocm.behave(output("mi250_pair_5_4"))
    stand_in.behave(*good())
    monkeypatch.setenv("PATH", f"{stand_in.directory}:{rocm.path}")
    del tree
    return stand_in, rocm


def test_a_command_runs_only_where_nothing_better_opened(both: tuple[AmdSmiStandIn, RocmSmiStandIn], root: Path) -> None:
    better, worse = both
    assert amd.open().source == "amd-smi"
    assert worse.calls == []
    better.behave("", errors="broken", status=1)
    assert amd.open().source == "rocm-smi"
    calls = len(better.calls), len(worse.calls)
    machines.rx_7900(Tree(root))
    assert amd.open().source == "sysfs"
    assert (len(better.calls), len(worse.calls)) == calls


def test_where_nothing_opens_each_source_says_why_and_the_one_that_is_there_gives_the_reason(
    both: tuple[AmdSmiStandIn, RocmSmiStandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    both[0].behave("", mode="hang")
    both[1].behave("")
    first, _, last = DEFAULT
    monkeypatch.setattr(amd, "_default", (first, lambda clock: amd_smi.backend(clock, timeout=0.5).open(), last))
    with pytest.raises(SourceError) as caught:
        amd.open()
    assert caught.value.reason == Reason.TIMED_OUT
    for words in ("no GPU is driven by amdgpu here", "gave no answer in 0.5 s", "rocm-smi printed nothing"):
        assert words in caught.value.message


def test_a_command_is_not_run_while_a_card_sleeps(both: tuple[AmdSmiStandIn, RocmSmiStandIn], root: Path) -> None:
    card = machines.rx_7900(Tree(root))
    readers = [each.backend(interval=1e-9).open().reader(OPTIONS) for each in (amd_smi, rocm_smi)]
    calls = len(both[0].calls), len(both[1].calls)
    card.write({"power/runtime_status": "suspended"})
    for reader in readers:
        with pytest.raises(SourceError) as caught:
            reader.read(0, [])
        assert caught.value.reason == Reason.SUSPENDED
        assert f"not run while {card.address} is suspended" in caught.value.message
    with pytest.raises(SourceError) as caught:
        backend.open()
    assert caught.value.reason == Reason.SUSPENDED
    assert (len(both[0].calls), len(both[1].calls)) == calls


# Any text


def check(text: str) -> None:
    cards, _ = parse(text)
    assert not cards or len(listed(amd_smi.backend(), map(sample, cards.values()))) == len(cards)
    for card in cards.values():
        found = read(AMD_SMI, sample(card))
        assert found.keys() <= set(expected_names("amd"))
        for name, said in found.items():
            if not isinstance(said, Unavailable):
                row = find(f"gpu.0.{name}")
                assert math.isfinite(said)
                assert row.minimum is None or said >= row.minimum
                assert row.maximum is None or said <= row.maximum
                assert isinstance(said, int) or not row.integer


@given(st.text() | st.text(alphabet='{}[]":, gpu01value').map(lambda text: f'[{{"gpu": 0, {text}'))
def test_any_text_can_be_parsed(text: str) -> None:
    check(text)


@given(st.data())
def test_a_damaged_output_never_raises_and_stays_possible(data: st.DataObject) -> None:
    text = document([metric(0), metric(1)], data.draw(st.sampled_from(["list", "gpu_data"])))
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    check(text[:start] + data.draw(st.text(max_size=10)) + text[end:])


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just({"value": 3, "unit": "W"})


@given(
    st.dictionaries(
        st.sampled_from(sorted(metric(0))), st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
    )
)
def test_any_record_gives_possible_numbers_or_reasons(card: dict[str, Any]) -> None:
    check(json.dumps([{"gpu": 0, **{name: inner for name, inner in card.items() if name != "gpu"}}]))


@pytest.mark.parametrize(
    ("crashing", "lost"), [(("power",), "powerWatts"), (("clock", "power"), "smClock"), (("mem_usage",), "memoryTotalBytes")]
)
def test_a_section_that_crashes_the_tool_is_left_out_and_the_cards_stay(
    stand_in: AmdSmiStandIn, crashing: tuple[str, ...], lost: str
) -> None:
    printed = [{name: section for name, section in metric(number).items() if name not in crashing} for number in (0, 1)]
    stand_in.behave(document(printed, "gpu_data"), document(STATIC, "gpu_data"), crashing=crashing)
    opened = driver()
    reading = opened.reader(OPTIONS).read(0, [])
    assert values(reading)["temp"] == 47
    why = reading.unavailable[lost]
    assert why.reason == Reason.DRIVER_ERROR
    assert "amd-smi crashes with --" in why.detail
    before = len(stand_in.calls)
    opened.reader(OPTIONS).read(0, [])
    assert not any(flag.replace("_", "-") in call for call in stand_in.calls[before:] for flag in (f"--{each}" for each in crashing))


def test_the_energy_counter_of_a_radeon_is_not_believed(stand_in: AmdSmiStandIn) -> None:
    """Nothing documents what it counts; no other source gives it."""
    told = static(0, "0000:63:00.0", "0x3B7A21C0FFEE0001")
    told["asic"] |= {"market_name": "Navi 21 [Radeon RX 6900 XT]", "device_id": "0x73bf"}
    stand_in.behave(document([metric(0)], "gpu_data"), document([told], "gpu_data"))
    assert driver().reader(OPTIONS).read(0, []).unavailable["energyJoules"].reason == Reason.NOT_SUPPORTED
    told["vram"] = {"type": "HBM2E"}
    stand_in.behave(document([metric(0)], "gpu_data"), document([told], "gpu_data"))
    assert values(driver().reader(OPTIONS).read(0, []))["energyJoules"] == pytest.approx(8123.5)
