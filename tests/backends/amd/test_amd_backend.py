"""The backend through a real command that does everything a vendor's tool may do wrong."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from accelmetrics.backends.amd import backend as amd, rocm_smi
from accelmetrics.backends.amd.rocm_smi import ALL, FLAGS
from accelmetrics.backends.contract import ReadOptions
from accelmetrics.backends.kit.polled import PolledDriver
from accelmetrics.schemas.catalogue import expected_names
from accelmetrics.schemas.errors import DriverGoneError, Reason, SourceError
from tests.simulators.rocm_smi import RocmSmiStandIn, cards, output
from tests.support.readings import values

OPTIONS = ReadOptions(pid=1)
FULL = ("--showid", *(word for flag in FLAGS for word in flag), "--json")
PAIR = "mi250_pair_5_4"
backend = amd.pinned("rocm-smi")


def driver(timeout: float = 5.0) -> PolledDriver:
    """A driver whose every later reading is a new run."""
    return rocm_smi.backend(interval=1e-9, timeout=timeout).open()


def opening_failure() -> SourceError:
    with pytest.raises(SourceError) as caught:
        backend.open()
    return caught.value


def reading_failure(opened: PolledDriver, unit: int = 0) -> SourceError:
    with pytest.raises(SourceError) as caught:
        opened.reader(OPTIONS).read(unit, [])
    return caught.value


def test_it_is_a_source_of_gpus_and_the_command_has_a_pace_of_its_own(stand_in: RocmSmiStandIn) -> None:
    assert (amd.name, amd.kind, amd.own_metrics()) == ("amd", "gpu", ())
    stand_in.behave(output(PAIR))
    assert (amd.interval, rocm_smi.backend().open().interval) == (0.0, 2.0)


def test_open_lists_the_devices_and_reading_gives_every_metric(stand_in: RocmSmiStandIn) -> None:
    stand_in.behave(output(PAIR))
    opened = backend.open()
    assert opened.source == "rocm-smi"
    assert [device.uuid for device in opened.devices] == ["0x7d4e1f2a90b3c611", "0x7d4e1f2a90b3c612"]
    for unit in range(2):
        progress: list[object] = []
        reading = opened.reader(OPTIONS).read(unit, progress)
        assert len(progress) == 1
        assert {*values(reading), *reading.unavailable} <= set(expected_names("amd"))
        assert reading.read_at is not None
        assert reading.read_at <= time.monotonic()
        assert reading.processes is None
    opened.close()
    assert len(stand_in.calls) == 1


def test_the_command_is_called_with_the_flags_that_are_not_slow(stand_in: RocmSmiStandIn) -> None:
    stand_in.behave(output("radeon_6_2"))
    backend.open()
    (call,) = stand_in.calls
    assert call["flags"] == list(FULL)
    assert not {"--showpids", "-a"} & set(call["flags"])
    assert call["stdin"] == ""
    assert call["environment"]["LC_ALL"] == "C"


def test_a_release_that_refuses_the_flags_is_asked_for_everything_and_that_is_remembered(stand_in: RocmSmiStandIn) -> None:
    stand_in.behave("", all_output=output("mi210_all_6_1_2"), unknown_flags=("--showenergycounter",))
    opened = driver()
    assert values(opened.reader(OPTIONS).read(0, []))["memoryAllocated"] == 31
    assert [call["flags"] for call in stand_in.calls] == [list(FULL), list(ALL), list(ALL)]


def test_a_release_that_refuses_everything_says_so(stand_in: RocmSmiStandIn) -> None:
    stand_in.behave("", unknown_flags=("--json",))
    error = opening_failure()
    assert error.reason == Reason.NOT_SUPPORTED
    assert "unrecognized arguments: --json" in error.message
    assert "update ROCm" in error.advice


@pytest.mark.parametrize("status", [1, 2, 4, 255])
def test_a_bad_exit_status_with_a_good_payload_is_good(stand_in: RocmSmiStandIn, status: int) -> None:
    """Old releases end with the status of the last value that a card does not have; 2 is that of a refused flag too."""
    stand_in.behave(output("radeon_6_2"), status=status)
    assert values(driver().reader(OPTIONS).read(0, []))["gpu"] == 83
    assert {tuple(call["flags"]) for call in stand_in.calls} == {FULL}


FAILURES: dict[str, tuple[dict[str, object], Reason, str, str, bool]] = {
    "nothing at all": ({"output": ""}, Reason.PARSE_ERROR, "printed nothing (exit status 0)", "", False),
    "nothing but a status": ({"output": "", "status": 9}, Reason.DRIVER_ERROR, "printed nothing (exit status 9)", "", False),
    "a crash": (
        {"output": "", "errors": "Traceback:\nZeroDivisionError: float division by zero\n", "status": 1},
        Reason.DRIVER_ERROR,
        "ZeroDivisionError",
        "",
        False,
    ),
    "prose": ({"output": "hello\nworld\n"}, Reason.DRIVER_ERROR, "listed no device (exit status 0): world", "", False),
    "cut": ({"output": output(PAIR)[:300]}, Reason.PARSE_ERROR, "cut", "", False),
    "no driver": (
        {"output": "", "errors": "ERROR: Driver not initialized (amdgpu not found in modules)\n"},
        *(Reason.DRIVER_UNAVAILABLE, "the kernel driver amdgpu is not loaded", "modprobe amdgpu", True),
    ),
    "no cards": (
        {"output": "WARNING: No AMD GPUs specified\n{}\n", "errors": "WARNING: No JSON data to report\n"},
        *(Reason.DRIVER_UNAVAILABLE, "sees no AMD GPU", "--device=/dev/kfd --device=/dev/dri", True),
    ),
    "no data": (
        {"output": "", "errors": "WARNING: No JSON data to report\n"},
        *(Reason.DRIVER_UNAVAILABLE, "nothing to report", "--device=/dev/kfd", True),
    ),
    "no permission": (
        {"output": "", "errors": "ERROR: Permission denied: /dev/kfd\n", "status": 4},
        *(Reason.NO_PERMISSION, "may not read the devices: ERROR: Permission denied: /dev/kfd", "video and render groups", False),
    ),
    "no library": (
        {"output": "Still couldn't import 'rsmiBindings'. Make sure it's installed\n", "status": 1},
        *(Reason.DRIVER_UNAVAILABLE, "cannot load its library", "rocm-smi-lib", False),
    ),
    "without end": ({"output": "", "mode": "endless"}, Reason.PARSE_ERROR, "more than", "", False),
}


@pytest.mark.parametrize("case", FAILURES)
def test_each_failure_has_its_words_on_opening_and_on_reading_and_is_got_over(stand_in: RocmSmiStandIn, case: str) -> None:
    behaviour, reason, words, advice, goes = FAILURES[case]
    behave: Callable[..., None] = stand_in.behave
    stand_in.behave(output(PAIR))
    opened = driver()
    behave(**behaviour)
    for error in (opening_failure(), reading_failure(opened, 1)):
        assert error.reason == reason
        assert words in error.message
        assert advice in error.advice
        assert isinstance(error, DriverGoneError) == goes
        assert error.backend == "amd"
    stand_in.behave(output(PAIR))
    assert values(opened.reader(OPTIONS).read(1, []))["gpu"] == 97


def test_hygons_tool_of_the_same_name_is_passed_over(stand_in: RocmSmiStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told by the keys that it prints, wherever it stands in ``PATH``, and it is run once."""
    (tmp_path / "dtk").mkdir()
    theirs = RocmSmiStandIn(tmp_path / "dtk")
    theirs.behave(json.dumps({"card0": {"HCU use (%)": "10", "Temperature (Sensor edge) (C)": "35"}}))
    stand_in.behave(output(PAIR))
    monkeypatch.setenv("PATH", f"{theirs.directory}:{stand_in.directory}")
    opened = driver()
    assert [values(opened.reader(OPTIONS).read(1, []))["gpu"] for _ in range(2)] == [97, 97]
    assert len(theirs.calls) == 1
    monkeypatch.setenv("PATH", str(theirs.directory))
    for error in (opening_failure(), reading_failure(opened)):
        assert f"{theirs.command} is another vendor's tool of the same name (Hygon's)" in error.message
        assert (error.reason, "rocm-smi-lib" in error.advice) == (Reason.DRIVER_UNAVAILABLE, True)


def test_a_missing_tool_says_what_to_install(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("accelmetrics.backends.amd.rocm_smi.DIRECTORIES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    error = opening_failure()
    assert error.reason == Reason.DRIVER_UNAVAILABLE
    assert "rocm-smi was not found in PATH" in error.message
    assert "rocm-smi-lib" in error.advice


def test_what_the_kernel_shows_to_be_wrong_comes_first_among_the_advice(stand_in: RocmSmiStandIn, root: Path) -> None:
    device = root / "sys/bus/pci/devices/0000:03:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1002")
    (device / "class").write_text("0x030000")
    stand_in.command.chmod(0o644)
    assert opening_failure().advice.startswith("load the kernel driver: sudo modprobe amdgpu")


def test_a_card_with_another_id_is_new_and_the_one_that_had_its_number_is_lost(stand_in: RocmSmiStandIn) -> None:
    stand_in.behave(output(PAIR))
    opened = driver()
    moved = cards(PAIR)
    moved["card1"]["Unique ID"] = "0x77"
    stand_in.behave(json.dumps(moved))
    assert values(opened.reader(OPTIONS).read(0, []))["gpu"] == 99
    assert reading_failure(opened, 1).reason == Reason.DEVICE_LOST
    assert [device.uuid for device in opened.devices][2:] == ["0x77"]


def test_a_release_without_ids_is_no_other_card(stand_in: RocmSmiStandIn) -> None:
    stand_in.behave(output(PAIR))
    opened = driver()
    bare = cards(PAIR)
    for card in ("card0", "card1"):
        del bare[card]["Unique ID"], bare[card]["PCI Bus"]
    stand_in.behave(json.dumps(bare))
    assert values(opened.reader(OPTIONS).read(0, []))["gpu"] == 99


@pytest.mark.parametrize("function", ["0", "1"])
def test_a_card_s_power_stands_on_its_first_partition(stand_in: RocmSmiStandIn, function: str) -> None:
    """Each partition prints the whole card's, under one id and, in some releases, one address: sums are those of the cards."""
    printed = {"Current Socket Graphics Package Power (W)": "131.0", "Max Graphics Package Power (W)": "750.0", "GPU use (%)": "7"}
    printed |= {"Energy counter": str(1000 * 65536), "Unique ID": "0xabc", "PCI Bus": "0000:01:00.0"}
    other = printed | {"Unique ID": "0xdef", "PCI Bus": "0000:02:00.0"}
    stand_in.behave(json.dumps({"card0": printed, "card1": printed | {"PCI Bus": f"0000:01:00.{function}"}, "card2": other}))
    reader = driver().reader(ReadOptions(1))
    found = [
        {name: value for block in reading.blocks for name, value in zip(block.names, block.values, strict=True)}
        for reading in (reader.read(unit, []) for unit in range(3))
    ]
    sums = {name: sum(each.get(name, 0) for each in found) for name in ("powerWatts", "enforcedPowerLimitWatts", "energyJoules", "gpu")}
    assert sums == {"powerWatts": 262, "enforcedPowerLimitWatts": 1500, "energyJoules": 2000, "gpu": 21}


# Flags that crash it


RANGES = ("--showsclkrange", "--showmclkrange")


@pytest.mark.parametrize("crashing", [RANGES, RANGES[:1], ("--showpower", "--showmclkrange"), ("--showmeminfo",)])
def test_a_tool_that_crashes_on_a_flag_is_asked_without_it_until_it_changes(stand_in: RocmSmiStandIn, crashing: tuple[str, ...]) -> None:
    stand_in.behave(output("radeon_6_2"), crashing_flags=crashing)
    opened = driver()
    reader = opened.reader(OPTIONS)
    reading = reader.read(0, [])
    assert values(reading)["temp"] > 0
    before = len(stand_in.calls)
    reader.read(0, [])
    (asked,) = [call["flags"] for call in stand_in.calls[before:]]
    assert [flag for flag in FULL if flag.startswith("--") and flag not in asked] == [flag for flag in FULL if flag in crashing]
    stand_in.behave(output("radeon_6_2"))
    stand_in.command.write_text(f"{stand_in.command.read_text()}\n# a later release\n")
    reader.read(0, [])
    assert stand_in.calls[-1]["flags"] == list(FULL)


def test_what_a_crashing_flag_would_give_says_so(stand_in: RocmSmiStandIn) -> None:
    printed = json.loads(output("radeon_6_2"))
    for card in printed.values():
        card.pop("Valid sclk range", None)
    stand_in.behave(json.dumps(printed), crashing_flags=RANGES[:1])
    why = driver().reader(OPTIONS).read(0, []).unavailable["maxSmClock"]
    assert (why.reason, why.detail) == (
        Reason.DRIVER_ERROR,
        "rocm-smi crashes with --showsclkrange, so it is run without it",
    )


def test_a_tool_that_crashes_whatever_it_is_asked_is_not_asked_over_and_over(stand_in: RocmSmiStandIn) -> None:
    stand_in.behave(output("radeon_6_2"), crashing_flags=("--json",))
    assert opening_failure().reason == Reason.DRIVER_ERROR
    assert len(stand_in.calls) <= 4


# The source of a value


def test_where_the_edge_sensor_is_left_out_once_the_temperature_is_not_the_hotspots(stand_in: RocmSmiStandIn) -> None:
    """rocm-smi leaves out what it cannot read."""
    whole = json.loads(output("radeon_6_2"))
    silent = json.loads(output("radeon_6_2"))
    for card in silent.values():
        card.pop("Temperature (Sensor edge) (C)", None)
    stand_in.behave(json.dumps(whole))
    reader = driver().reader(OPTIONS)
    known = values(reader.read(0, []))
    stand_in.behave(json.dumps(silent))
    reading = reader.read(0, [])
    assert "temp" in reading.unavailable
    assert values(reading)["hotspotTemp"] == known["hotspotTemp"]
    stand_in.behave(json.dumps(whole))
    assert values(reader.read(0, []))["temp"] == known["temp"]


def test_a_card_is_not_taken_for_a_processors_where_its_sensors_are_left_out_once(stand_in: RocmSmiStandIn) -> None:
    """An edge sensor alone, beside a socket's power, is otherwise how such a GPU is told."""
    card = {
        **{"Temperature (Sensor edge) (C)": "41.0", "Temperature (Sensor junction) (C)": "45.0"},
        **{"Current Socket Graphics Package Power (W)": "88.0", "VRAM Total Memory (B)": str(2**34), "VRAM Total Used Memory (B)": "7"},
        **{"GTT Total Memory (B)": str(2**35), "GTT Total Used Memory (B)": "5"},
    }
    stand_in.behave(json.dumps({"card0": card}))
    reader = driver().reader(OPTIONS)
    assert values(reader.read(0, []))["memoryTotalBytes"] == 2**34
    del card["Temperature (Sensor junction) (C)"]
    stand_in.behave(json.dumps({"card0": card}))
    assert values(reader.read(0, []))["memoryTotalBytes"] == 2**34


@pytest.mark.parametrize(
    ("more", "joules"), [({}, None), ({"Temperature (Sensor HBM 0) (C)": "0.0"}, None), ({"Temperature (Sensor HBM 0) (C)": "51.0"}, 2)]
)
def test_the_energy_counter_of_a_radeon_is_not_believed(stand_in: RocmSmiStandIn, more: dict[str, str], joules: int | None) -> None:
    """Nothing documents what it counts, and no other source gives it; some releases print 0 degrees of sensors that it does not have."""
    card = {"Device ID": "0x73bf", "Card Series": "Navi 21 [Radeon RX 6900 XT]", "Energy counter": str(2 * 65536), **more}
    stand_in.behave(json.dumps({"card0": card}))
    assert values(driver().reader(OPTIONS).read(0, [])).get("energyJoules") == joules
