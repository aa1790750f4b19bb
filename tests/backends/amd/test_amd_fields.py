"""The traps of the tool's output, one by one."""

from pathlib import Path

import pytest

from accelmetrics.backends.amd import gpu_metrics
from accelmetrics.backends.amd.amd_smi import sample
from accelmetrics.backends.amd.amdsmi import _energy
from accelmetrics.backends.amd.rocm_smi import PrintedCard, architecture, is_unified, unique_id
from accelmetrics.backends.contract import Value
from accelmetrics.schemas.errors import Reason, Unavailable
from tests.backends.amd.printed import AMD_SMI, identify, read as printed_metrics, read_card
from tests.simulators.amdgpu import tables
from tests.simulators.rocm_smi import cards

pytestmark = pytest.mark.usefixtures("root")  # nothing is known but what is printed

EDGE = "temperature (sensor edge) (c)"
JUNCTION = "temperature (sensor junction) (c)"
AVERAGE = "average graphics package power (w)"
SOCKET = "current socket graphics package power (w)"
CAP = "max graphics package power (w)"
USED, TOTAL = "vram total used memory (b)", "vram total memory (b)"


def lowered(name: str, number: int = 0) -> dict[str, object]:
    """One card of an output, as the parser gives it."""
    return {key.lower(): value for key, value in cards(name)[f"card{number}"].items()}


def read(card: PrintedCard, metric: str) -> Value:
    return read_card(card)[metric]


def reason(card: PrintedCard, metric: str) -> str:
    value = read(card, metric)
    assert isinstance(value, Unavailable), f"{metric} is {value}"
    return str(value.reason)


def test_the_words_of_a_secondary_die_are_kept() -> None:
    assert read({AVERAGE: "N/A (Secondary die)"}, "powerWatts") == Unavailable(Reason.NOT_SUPPORTED, "N/A (Secondary die)")


@pytest.mark.parametrize(
    ("key", "metric", "said"),
    [
        ("gpu use (%)", "gpu", "101"),
        ("gpu use (%)", "gpu", "-1"),
        ("gpu use (%)", "gpu", "65535"),
        ("gpu use (%)", "gpu", "1e400"),
        ("gpu memory use (%)", "memory", "4294967295"),
        ("gpu memory overdrive value (%)", "memoryOverDrive", "-1"),
        (EDGE, "temp", "65535.0"),
        (EDGE, "temp", "-273.0"),
        (JUNCTION, "hotspotTemp", "511.0"),
        (AVERAGE, "powerWatts", "4294.967295"),
        (AVERAGE, "powerWatts", "-1"),
        (CAP, "enforcedPowerLimitWatts", "65535.0"),
        ("fan speed (%)", "fanSpeed", "255"),
        ("sclk clock speed:", "smClock", "(65535Mhz)"),
        ("sclk clock speed:", "smClock", "(-1Mhz)"),
        ("accumulated energy (uj)", "energyJoules", str(0xFFFFFFFFFFFFFFFF * 15.259)),
        ("pcie replay count", "pcieReplays", "18446744073709551615"),
        ("pcie replay count", "pcieReplays", "4294967295"),
        (USED, "memoryAllocatedBytes", "18446744073709551615"),
        (TOTAL, "memoryTotalBytes", "18446744073709551615"),
    ],
)
def test_what_is_impossible_is_an_invalid_value(key: str, metric: str, said: str) -> None:
    assert reason({key: said}, metric) == Reason.INVALID_VALUE


NONE, WRONG, IMPOSSIBLE = Reason.NOT_SUPPORTED, Reason.PARSE_ERROR, Reason.INVALID_VALUE
SCLK = "sclk clock speed:"


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        # An old release's memory use is activity and never allocation.
        ({"gpu memory use (%)": "37"}, {"memory": 37, "memoryReadWriteActivity": 37, "memoryAllocated": NONE}),
        # The share comes from bytes; the printed one stands in where they are not printed, and outvotes none that are impossible.
        ({USED: "3", TOTAL: "8", "gpu memory allocated (vram%)": "99"}, {"memoryAllocated": 37.5}),
        ({"gpu memory allocated (vram%)": "31"}, {"memoryAllocated": 31}),
        (
            {USED: "9", TOTAL: "8", "gpu memory allocated (vram%)": "99"},
            {"memoryAllocated": IMPOSSIBLE, "memoryAllocatedBytes": IMPOSSIBLE, "memoryTotalBytes": 8},
        ),
        ({USED: "0", TOTAL: "0"}, {"memoryTotalBytes": NONE, "memoryAllocated": NONE}),
        # Temperature is the edge's, else the junction's; a broken edge sensor does not become the junction.
        ({EDGE: "41.0", JUNCTION: "55.0"}, {"temp": 41.0}),
        ({JUNCTION: "55.0"}, {"temp": 55.0}),
        ({EDGE: "N/A", JUNCTION: "55.0"}, {"temp": 55.0}),
        ({EDGE: "65535.0", JUNCTION: "55.0"}, {"temp": IMPOSSIBLE}),
        ({EDGE: "hot", JUNCTION: "55.0"}, {"temp": WRONG}),
        (
            {f"temperature (sensor #{number}) (c)": str(30 + number) for number in (1, 2, 3)},  # of old releases
            {"temp": 31, "hotspotTemp": 32, "memoryTemp": 33},
        ),
        # Power is the average, else the socket's. It needs no cap, and its percentage needs both.
        ({AVERAGE: "90.5", SOCKET: "100.0"}, {"powerWatts": 90.5}),
        ({SOCKET: "100.0"}, {"powerWatts": 100.0}),
        ({AVERAGE: "90.0"}, {"powerWatts": 90.0, "powerPercent": NONE}),
        ({CAP: "300.0"}, {"powerPercent": NONE}),
        ({AVERAGE: "90.0", CAP: "300.0"}, {"powerPercent": 30.0}),
        # A zero that was not measured is none; a fan's counts only beside its revolutions.
        ({AVERAGE: "0.0"}, {"powerWatts": NONE}),
        ({CAP: "0.0"}, {"enforcedPowerLimitWatts": NONE}),
        ({"accumulated energy (uj)": "0.0"}, {"energyJoules": NONE}),
        ({"fan speed (%)": "0", "fan speed (level)": "0"}, {"fanSpeed": NONE}),
        ({"fan speed (%)": "0", "fan rpm": "0"}, {"fanSpeed": 0}),
        # Clocks in each of their forms, and what is no clock; the highest one is the end of the range.
        ({SCLK: "(800Mhz)"}, {"smClock": 800}),
        ({"sclk clock speed": "800Mhz"}, {"smClock": 800}),
        ({"sclk clock level": "1 (800Mhz)"}, {"smClock": 800}),
        ({SCLK: "(800.Mhz)"}, {"smClock": 800}),
        *(({SCLK: said}, {"smClock": WRONG}) for said in ("1", "800", "(800)", "Mhz", "(8 00Mhz)", "500Mhz - 1700Mhz")),
        ({"valid sclk range": "500Mhz - 1700Mhz"}, {"maxSmClock": 1700}),
        *(({"valid sclk range": said}, {"maxSmClock": NONE}) for said in ("N/A", "0Mhz - 0Mhz")),
        *(({"valid sclk range": said}, {"maxSmClock": WRONG}) for said in ("500 - 1700", "500Mhz -")),
        ({"valid sclk range": "500Mhz - 99999999Mhz"}, {"maxSmClock": IMPOSSIBLE}),
        # Numbers that are no strings are read too.
        ({"gpu use (%)": 12.5, "pcie replay count": 3.0}, {"gpu": 12.5, "pcieReplays": 3}),
        ({"pcie replay count": 3.5}, {"pcieReplays": WRONG}),
        ({"gpu use (%)": float("nan")}, {"gpu": IMPOSSIBLE}),
        ({"gpu use (%)": 10**400}, {"gpu": IMPOSSIBLE}),
        # The link is printed among the clocks.
        ({"pcie clock level": "3 (2.5GT/s x8)"}, {"pcieLinkGen": 1, "pcieLinkWidth": 8}),
        ({"pcie clock level": "1 (16.0GT/s x16)"}, {"pcieLinkGen": 4, "pcieLinkWidth": 16}),
        ({"pcie clock speed": "8.0GT/s, x16 619Mhz"}, {"pcieLinkGen": 3, "pcieLinkWidth": 16}),
        ({"pcie clock level": "1"}, {"pcieLinkGen": NONE}),
    ],
)
def test_what_a_card_prints(card: PrintedCard, expected: dict[str, float | Reason]) -> None:
    found = read_card(card)
    assert {name: getattr(found[name], "reason", found[name]) for name in expected} == expected


def test_accumulators_are_no_percentages() -> None:
    card = {"gfx activity": "55", "memory activity": "66", "avg. memory bandwidth": "44"}
    assert {metric for metric, value in read_card(card).items() if not isinstance(value, Unavailable)} == set()


def test_an_apu_without_its_gtt_has_no_memory_to_report() -> None:
    """Its carve-out alone would read as nearly full for ever."""
    card = lowered("apu_and_card_6_2")
    del card["gtt total memory (b)"], card["gtt total used memory (b)"]
    assert is_unified(card)
    found = read_card(card)
    for metric in ("memoryAllocated", "memoryAllocatedBytes", "memoryTotalBytes"):
        missing = found[metric]
        assert isinstance(missing, Unavailable)
        assert missing.reason == Reason.NOT_SUPPORTED
        assert "carve-out" in missing.detail


def test_the_kernel_decides_what_is_integrated_where_it_knows(root: Path) -> None:
    card = {"pci bus": "0000:C4:00.0"}
    device = root / "sys/bus/pci/devices/0000:c4:00.0"
    device.mkdir(parents=True)
    for header, expected in ((b"\x80\x00\x02\x03", True), (b"\x08\x01\x03\x00", True), (b"\x78\x00\x01\x03", False)):
        (device / "gpu_metrics").write_bytes(header)
        assert is_unified(card) is expected


@pytest.mark.parametrize("number", [0, 1])
def test_an_edge_sensor_alone_does_not_make_an_apu(number: int) -> None:
    """An old card has no junction sensor either; only a socket's power beside it tells."""
    card = lowered("mi250_pair_5_4", number)
    old = {key: value for key, value in card.items() if "junction" not in key and "memory) (c)" not in key}
    assert not is_unified(old)


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        *[("gfx9010", "gfx90a"), ("gfx9402", "gfx942"), ("gfx9006", "gfx906"), ("gfx11001", "gfx1101"), ("gfx10300", "gfx1030")],
        *[("gfx12001", "gfx1201"), ("gfx90a", "gfx90a"), ("gfx942", "gfx942"), ("gfx1101", "gfx1101")],
        *[("gfx18446744073709551615", ""), ("N/A", ""), ("", "")],
    ],
)
def test_architectures_are_named_as_compilers_name_them(printed: str, expected: str) -> None:
    assert architecture(printed) == expected


@pytest.mark.parametrize(
    ("printed", "expected"), [("0x1f9d", "0x1f9d"), ("N/A", ""), ("0x0", ""), ("0x0000000000000000", ""), ("", ""), (None, "")]
)
def test_a_unique_id_is_kept_as_printed_unless_it_is_none(printed: str | None, expected: str) -> None:
    assert unique_id({"unique id": printed}) == expected


def test_an_id_that_several_cards_share_names_none_of_them() -> None:
    shared = {"unique id": "0xabc", "pci bus": "0000:01:00.0"}
    devices = identify({0: shared, 1: shared | {"pci bus": "0000:01:00.1"}, 2: {"unique id": "0xdef"}}, {})
    assert [device.anchor for device in devices] == ["0000:01:00.0", "0000:01:00.1", "0xdef"]


def test_a_name_falls_back_to_what_there_is() -> None:
    printed: list[PrintedCard] = [
        *({"card series": "N/A", "device name": "Navi"}, {"card series": "0x1002", "device id": "0x74a1"}),
        *({"card model": "0x6601", "gpu id": "0x66af"}, {}),
    ]
    names = [device.name for device in identify(dict(enumerate(printed)), {})]
    assert names == [
        "Navi",
        "AMD Instinct MI300X",
        "AMD GPU (0x66af)",
        "AMD GPU",
    ]


def test_energy_is_the_counter_in_its_own_unit_where_it_is_printed() -> None:
    """The tool rounds 1/65536 J to 15.3 µJ: from what it makes of the counter, that is taken back."""
    card = {"energy counter": "279426720261621", "accumulated energy (uj)": "4275228873299218.5"}
    joules = 279426720261621 / 65536
    assert read(card, "energyJoules") == joules
    assert read({"accumulated energy (uj)": "4275228873299218.5"}, "energyJoules") == pytest.approx(joules, rel=1e-7)
    assert read({"energy counter": "N/A", "accumulated energy (uj)": "4275228873299218.5"}, "energyJoules") == pytest.approx(
        joules, rel=1e-7
    )
    assert reason({"energy counter": "0", "accumulated energy (uj)": "0.0"}, "energyJoules") == Reason.NOT_SUPPORTED
    assert read({}, "energyJoules") == (Reason.NOT_SUPPORTED, NO_ENERGY)


NO_ENERGY = 'rocm-smi does not report "Energy counter"; rocm-smi does not report "Accumulated Energy (uJ)"'


@pytest.mark.parametrize("steps", [10**8, 279426720261621, 2**58])
def test_every_source_makes_the_same_joules_of_one_counter(steps: int) -> None:
    """Whatever a tool or a module takes a step of the counter for."""
    table = gpu_metrics.parse(tables.table(1, 4, energy_accumulator=steps, curr_socket_power=100))
    assert not isinstance(table, Unavailable)
    sources = {
        "sysfs": float(str(gpu_metrics.readings(table)["energy"])) / 1e6,
        "rocm-smi": read({"energy counter": str(steps)}, "energyJoules"),
        "rocm-smi without the counter": read({"accumulated energy (uj)": str(steps * 15.300000190734863)}, "energyJoules"),
        "amd-smi": read_amd_smi(round(steps * 15.3 / 1e6, 3)),
        "amd-smi since 6.3": read_amd_smi(round(steps * 15.300000190734863 / 1e6, 3)),
        **{f"amdsmi, {step} uJ": _energy(Counting(steps, step), None)["joules"] for step in (15.300000190734863, 15.259, 15.2587890625)},
    }
    possible = {name: joules for name, joules in sources.items() if not isinstance(joules, Unavailable)}
    assert possible == pytest.approx(dict.fromkeys(sources, steps / 65536), rel=1e-6)


def read_amd_smi(joules: float) -> Value:
    printed = {"gpu": 0, "energy": {"total_energy_consumption": {"value": joules, "unit": "J"}}}
    return printed_metrics(AMD_SMI, sample(printed))["energyJoules"]


class Counting:
    """A module ``amdsmi`` whose card has counted so many steps, which it takes for so many microjoules."""

    def __init__(self, steps: int, microjoules: float) -> None:
        self._said = {"energy_accumulator": steps, "counter_resolution": microjoules}

    def amdsmi_get_energy_count(self, _: object) -> dict[str, float]:
        return self._said


def test_a_processors_gpu_is_known_by_its_device_id_where_the_kernel_says_nothing() -> None:
    assert is_unified({"device id": "0x13c0", AVERAGE: "30.0", JUNCTION: "45.0"})
