"""Every release's output gives exactly the numbers that stand in it, and a reason for every other metric."""

import pytest

from accelmetrics.backends.amd.rocm_smi import parse
from accelmetrics.schemas.catalogue import expected_names
from accelmetrics.schemas.errors import Unavailable
from tests.backends.amd.printed import identify, read_card
from tests.simulators.rocm_smi import OUTPUTS, output

pytestmark = pytest.mark.usefixtures("root")  # whether a card is integrated is told from the output alone

RAS = {"correctedMemoryErrors", "uncorrectedMemoryErrors", "unCorrectedMemoryErrors"}

EXPECTED: dict[tuple[str, int], dict[str, float]] = {
    ("vega20_2_10", 1): {
        **{"gpu": 3, "memory": 12, "memoryReadWriteActivity": 12, "memoryOverDrive": 0, "fanSpeed": 21, "pcieReplays": 0},
        **{"temp": 34.0, "memoryTemp": 33.0, "hotspotTemp": 36.5, "smClock": 809, "memoryClock": 351},
        **{"powerWatts": 27.5, "enforcedPowerLimitWatts": 250.0, "powerPercent": 11.0},
        **{"memoryAllocatedBytes": 429077299, "memoryTotalBytes": 17163091968, "memoryAllocated": 100 * 429077299 / 17163091968},
        **{"pcieLinkGen": 3, "pcieLinkWidth": 16},
    },
    ("mi100_4_0", 0): {
        **{"gpu": 98, "memory": 61, "memoryReadWriteActivity": 61, "pcieReplays": 2},
        **{"temp": 38.0, "memoryTemp": 40.0, "hotspotTemp": 41.0, "smClock": 1502, "memoryClock": 1200},
        **{"powerWatts": 203.0, "enforcedPowerLimitWatts": 290.0, "powerPercent": 70.0},
        **{"memoryAllocatedBytes": 30908665036, "memoryTotalBytes": 34342961152, "memoryAllocated": 100 * 30908665036 / 34342961152},
        **{"pcieLinkGen": 4, "pcieLinkWidth": 16},
    },
    ("mi250_pair_5_4", 0): {
        **{"gpu": 99, "memory": 37, "memoryReadWriteActivity": 37, "memoryOverDrive": 0, "pcieReplays": 17},
        **{"temp": 47.0, "memoryTemp": 56.0, "hotspotTemp": 52.0, "smClock": 1700, "memoryClock": 1600},
        **{"powerWatts": 421.0, "enforcedPowerLimitWatts": 560.0, "powerPercent": 100 * 421 / 560, "energyJoules": 61952018333 / 65536},
        **{"memoryAllocatedBytes": 34351349760, "memoryTotalBytes": 68702699520, "memoryAllocated": 50.0},
        **{"pcieLinkGen": 4, "pcieLinkWidth": 16},
    },
    ("mi250_pair_5_4", 1): {
        **{"gpu": 97, "memory": 35, "memoryReadWriteActivity": 35, "memoryOverDrive": 0, "pcieReplays": 0},
        **{"temp": 45.0, "memoryTemp": 55.0, "hotspotTemp": 50.0, "smClock": 1690, "memoryClock": 1600},
        **{"memoryAllocatedBytes": 17175674880, "memoryTotalBytes": 68702699520, "memoryAllocated": 25.0},
    },
    ("radeon_6_0", 0): {
        **{"gpu": 96, "memory": 54, "memoryReadWriteActivity": 54, "memoryOverDrive": 5, "fanSpeed": 40, "pcieReplays": 0},
        **{"temp": 61.0, "memoryTemp": 82.0, "hotspotTemp": 79.0, "smClock": 2431, "memoryClock": 1249},
        **{"powerWatts": 318.0, "enforcedPowerLimitWatts": 339.0, "powerPercent": 100 * 318 / 339},
        **{"memoryAllocatedBytes": 6438256640, "memoryTotalBytes": 25753026560, "memoryAllocated": 25.0},
        **{"pcieLinkGen": 4, "pcieLinkWidth": 16},
    },
    ("radeon_6_2", 0): {
        **{"gpu": 83, "memory": 41, "memoryReadWriteActivity": 41, "memoryOverDrive": 0, "fanSpeed": 30, "pcieReplays": 1},
        **{"temp": 55.0, "memoryTemp": 64.0, "hotspotTemp": 68.0, "smClock": 132, "memoryClock": 1000},
        **{"powerWatts": 204.0, "enforcedPowerLimitWatts": 255.0, "powerPercent": 80.0},
        **{"memoryAllocatedBytes": 4290772992, "memoryTotalBytes": 17163091968, "memoryAllocated": 25.0},
        **{"pcieLinkGen": 4, "pcieLinkWidth": 16},
    },
    ("mi300x_6_2", 0): {
        **{"gpu": 100, "memory": 28, "memoryReadWriteActivity": 28, "pcieReplays": 0},
        **{"temp": 58.0, "memoryTemp": 49.0, "hotspotTemp": 58.0, "smClock": 2104, "memoryClock": 1300},
        **{"powerWatts": 618.0, "enforcedPowerLimitWatts": 750.0, "powerPercent": 82.4, "energyJoules": 31250},
        **{"memoryAllocatedBytes": 154606239744, "memoryTotalBytes": 206141652992, "memoryAllocated": 75.0},
        **{"pcieLinkGen": 5, "pcieLinkWidth": 16},
    },
    ("mi300x_6_2", 2): {
        **{"gpu": 0, "memory": 0, "memoryReadWriteActivity": 0, "pcieReplays": 0},
        **{"temp": 40.0, "memoryTemp": 36.0, "hotspotTemp": 40.0, "smClock": 131, "memoryClock": 900},
        **{"powerWatts": 139.0, "enforcedPowerLimitWatts": 750.0, "powerPercent": 100 * 139 / 750, "energyJoules": 7812.5},
        **{"memoryAllocatedBytes": 299892736, "memoryTotalBytes": 206141652992, "memoryAllocated": 100 * 299892736 / 206141652992},
        **{"pcieLinkGen": 5, "pcieLinkWidth": 16},
    },
    ("apu_and_card_6_2", 0): {
        **{"gpu": 77, "temp": 51.0, "powerWatts": 23.031, "smClock": 2600, "memoryClock": 2400},
        **{"memoryAllocatedBytes": 3721396224, "memoryTotalBytes": 16106127360, "memoryAllocated": 23.10546875},
    },
    ("apu_and_card_6_2", 1): {
        **{"gpu": 41.5, "memory": 11, "memoryReadWriteActivity": 11, "pcieReplays": 0},
        **{"temp": 48.0, "memoryTemp": 58.0, "hotspotTemp": 54.0, "smClock": 2010, "memoryClock": 1124},
        **{"powerWatts": 62.0, "enforcedPowerLimitWatts": 100.0, "powerPercent": 62.0},
        **{"memoryAllocatedBytes": 4286578688, "memoryTotalBytes": 8573157376, "memoryAllocated": 50.0},
    },
    ("mi210_all_6_1_2", 0): {
        **{"gpu": 58, "memory": 19, "memoryReadWriteActivity": 19, "memoryOverDrive": 0, "pcieReplays": 4, "memoryAllocated": 31},
        **{"temp": 36.0, "memoryTemp": 44.0, "hotspotTemp": 39.0, "smClock": 1420, "memoryClock": 1600},
        **{"maxSmClock": 1700, "maxMemoryClock": 1600},
        **{"powerWatts": 123.0, "enforcedPowerLimitWatts": 300.0, "powerPercent": 41.0, "energyJoules": 9e9 / 65536},
    },
}


def test_each_output_has_its_expectation() -> None:
    listed = {(name, number) for name in OUTPUTS for number in parse(output(name))[0]}
    assert listed == set(EXPECTED)


@pytest.mark.parametrize(("name", "number"), EXPECTED)
def test_values_are_exactly_those_printed(name: str, number: int) -> None:
    card = parse(output(name))[0][number]
    found = read_card(card)
    values = {metric: value for metric, value in found.items() if not isinstance(value, Unavailable)}
    expected = dict(EXPECTED[name, number])
    if "memoryAllocatedBytes" in expected:
        expected["memoryFreeBytes"] = expected["memoryTotalBytes"] - expected["memoryAllocatedBytes"]
    assert values == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("name", "number"), EXPECTED)
def test_each_metric_owed_has_a_value_or_a_reason(name: str, number: int) -> None:
    found = read_card(parse(output(name))[0][number])
    assert found.keys() <= set(expected_names("amd"))
    reasons = [value for value in found.values() if isinstance(value, Unavailable)]
    assert {reason.reason for reason in reasons} == {"not_supported"}
    assert all(reason.detail for reason in reasons)


@pytest.mark.parametrize("name", OUTPUTS)
def test_ras_counts_are_never_invented(name: str) -> None:
    for card in parse(output(name))[0].values():
        assert not RAS & read_card(card).keys()


def test_identity_of_a_data_centre_pair() -> None:
    parsed = parse(output("mi250_pair_5_4"))
    first, second = identify(dict(parsed[0]), parsed[1])
    assert first.name == "AMD INSTINCT MI250X (MCM) OAM AC MBA"
    assert (first.uuid, second.uuid) == ("0x7d4e1f2a90b3c611", "0x7d4e1f2a90b3c612")
    assert (first.pci_bus_id, second.pci_bus_id) == ("0000:2F:00.0", "0000:32:00.0")
    assert (first.serial, first.driver_version, first.firmware) == ("PCB031144-0021", "6.1.5", "113-D65201-045")
    assert (first.kind, first.vendor, first.vendor_index, second.vendor_index) == ("gpu", "amd", 0, 1)
    assert first.memory_total_bytes == 68702699520
    assert not first.unified


def test_card_numbers_are_the_tools_own() -> None:
    """A number that is missing stays missing: cards are not renumbered by position."""
    parsed = parse(output("mi300x_6_2"))
    assert [device.vendor_index for device in identify(dict(parsed[0]), parsed[1])] == [0, 2]


def test_identity_of_an_apu_beside_a_card() -> None:
    parsed = parse(output("apu_and_card_6_2"))
    integrated, card = identify(dict(parsed[0]), parsed[1])
    assert integrated.unified
    assert not card.unified
    assert (integrated.uuid, integrated.serial) == ("", "")
    assert integrated.memory_total_bytes == 536870912 + 15569256448
    assert (integrated.architecture, card.architecture) == ("gfx1103", "gfx1102")
