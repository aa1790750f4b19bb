"""The real module from PyPI against a library that is compiled here."""

import subprocess
import sys
from pathlib import Path

import pytest

from accelmetrics.backends.amd import amdsmi, backend
from accelmetrics.backends.amd.amdsmi import CALLS
from accelmetrics.backends.contract import Driver, Reading, ReadOptions
from accelmetrics.schemas.catalogue import expected_names
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.selection import MetricSelection
from tests.simulators import libamd_smi
from tests.simulators.amdgpu import Device, Tree, machines
from tests.simulators.libamd_smi import MODULE, RELEASES, Rocm, StandInUnavailable
from tests.simulators.libamd_smi.machines import mi300x
from tests.support.readings import values

OPTIONS = ReadOptions(pid=1)
GIB = 2**30
ALONE = {
    **{"gpu": 93, "memory": 58, "memoryReadWriteActivity": 58, "temp": 59, "hotspotTemp": 59, "memoryTemp": 46, "powerWatts": 613},
    **{"enforcedPowerLimitWatts": 750, "powerPercent": 100 * 613 / 750, "energyJoules": 9000, "fanSpeed": 20, "smClock": 2101},
    **{"maxSmClock": 2103, "memoryClock": 1301, "maxMemoryClock": 1302, "correctedMemoryErrors": 17, "uncorrectedMemoryErrors": 2},
    **{"unCorrectedMemoryErrors": 2, "pcieReplays": 6, "pcieLinkGen": 5, "maxPcieLinkGen": 5, "pcieLinkWidth": 16},
    **{"maxPcieLinkWidth": 16, "memoryAllocatedBytes": 31 * GIB, "memoryTotalBytes": 192 * GIB, "memoryFreeBytes": 161 * GIB},
    **{"memoryAllocated": 100 * 31 / 192, "tempLimit.slowdown": 100, "tempLimit.shutdown": 105},
}


@pytest.fixture
def rocm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rocm:
    """A ROCm without a module, and the module from PyPI on Python's path."""
    return installed(tmp_path, monkeypatch)


def installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str = "7.0.2-56", version: str = MODULE, file: str | None = None
) -> Rocm:
    try:
        made = Rocm(tmp_path / "rocm", release, version, file)
    except StandInUnavailable as error:
        pytest.skip(str(error))
    monkeypatch.setenv("ROCM_PATH", str(made.root))
    monkeypatch.delenv("ROCM_HOME", raising=False)
    monkeypatch.setattr(amdsmi, "DEFAULT_ROOT", str(tmp_path / "opt"))
    monkeypatch.setenv("AMDSMI_STAND_IN", str(made.state))
    monkeypatch.setenv("AMDSMI_STAND_IN_STARTS", str(made.starts))
    monkeypatch.syspath_prepend(str(libamd_smi.module()))
    made.behave(mi300x())
    return made


@pytest.fixture
def card(root: Path) -> Device:
    return machines.mi300x(Tree(root))


def read(driver: Driver) -> Reading:
    reading = driver.reader(OPTIONS).read(0, [])
    assert {*values(reading), *reading.unavailable} <= set(expected_names("amd"))
    return reading


def refusal() -> SourceError:
    with pytest.raises(SourceError) as caught:
        backend.pinned("amdsmi").open()
    return caught.value


def test_alone_it_gives_everything_that_the_library_knows(rocm: Rocm, card: Device) -> None:
    opened = backend.pinned("amdsmi").open()
    assert opened.source == "amdsmi"
    assert [device.pci_bus_id for device in opened.devices] == [card.address]
    reading = read(opened)
    assert values(reading) == pytest.approx(ALONE, rel=1e-6)
    assert list(reading.unavailable) == ["throttled"], "it is made of what the library does not say"


def test_beside_the_files_it_gives_what_they_lack_and_nothing_else(rocm: Rocm, card: Device) -> None:
    alone = values(read(backend.pinned("sysfs").open()))
    opened = backend.open()
    assert opened.source == "sysfs+amdsmi"
    found = values(read(opened))
    assert {name: found[name] for name in alone} == alone
    lacking = {name: found[name] for name in found.keys() - alone.keys()}
    assert lacking == pytest.approx({name: ALONE[name] for name in lacking}, rel=1e-6)
    assert {"correctedMemoryErrors", "uncorrectedMemoryErrors", "pcieLinkGen", "fanSpeed"} <= lacking.keys()


def test_only_calls_whose_metrics_are_missing_are_made(rocm: Rocm, card: Device) -> None:
    progress: list[object] = []
    backend.open().reader(OPTIONS).read(0, progress)
    assert "ecc" in progress
    assert not {"activity", "power", "vram", "edge", "junction"} & set(progress)


@pytest.mark.parametrize(
    ("metrics", "calls"),
    [
        ("temp", {"edge", "junction"}),
        ("gpu.0.correctedMemoryErrors", {"ecc"}),
        ("powerPercent", {"power", "cap"}),
        ("memoryAllocated", {"vram"}),
        ("core", {"activity", "edge", "junction", "power", "cap", "energy", "sclk", "vram"}),
        ("cpu", set()),
        ("processes", set()),
    ],
)
def test_calls_that_give_nothing_wanted_are_not_made(rocm: Rocm, card: Device, metrics: str, calls: set[str]) -> None:
    """Of the module alone; what is derived has what it is made of."""
    progress: list[object] = []
    reading = backend.pinned("amdsmi").open().reader(OPTIONS._replace(metrics=MetricSelection(metrics))).read(0, progress)
    assert set(progress) & CALLS.keys() == calls
    chosen = MetricSelection(metrics)
    assert {name: value for name, value in values(reading).items() if chosen.wants(f"gpu.0.{name}")} == pytest.approx(
        {name: value for name, value in ALONE.items() if chosen.wants(f"gpu.0.{name}")}
    )


def test_beside_the_files_only_wanted_calls_are_made(rocm: Rocm, card: Device) -> None:
    """None where the files have all of it."""
    for metrics, calls in (("correctedMemoryErrors,powerWatts", {"ecc"}), ("powerWatts", set()), ("cpu", set())):
        progress: list[object] = []
        backend.open().reader(OPTIONS._replace(metrics=MetricSelection(metrics))).read(0, progress)
        assert set(progress) & CALLS.keys() == calls
        assert bool(progress) == (metrics != "cpu")


def test_a_call_that_is_not_supported_is_not_made_again(rocm: Rocm, card: Device) -> None:
    rocm.behave({**mi300x(), "0.ecc.status": 2})
    reader = backend.pinned("amdsmi").open().reader(OPTIONS)
    first = reader.read(0, [])
    assert first.unavailable["correctedMemoryErrors"].reason == Reason.NOT_SUPPORTED
    assert "AMDSMI_STATUS_NOT_SUPPORTED" in first.unavailable["correctedMemoryErrors"].detail
    rocm.behave(mi300x())
    assert "correctedMemoryErrors" not in values(reader.read(0, []))
    assert values(read(backend.pinned("amdsmi").open()))["correctedMemoryErrors"] == 17


@pytest.mark.parametrize(("status", "reason"), [(10, Reason.NO_PERMISSION), (30, Reason.DRIVER_ERROR), (9, Reason.DRIVER_ERROR)])
def test_a_call_that_fails_is_made_again(rocm: Rocm, card: Device, status: int, reason: Reason) -> None:
    reader = backend.pinned("amdsmi").open().reader(OPTIONS)
    rocm.behave({**mi300x(), "0.power.status": status})
    failed = reader.read(0, [])
    assert {failed.unavailable[name].reason for name in ("powerWatts", "powerPercent")} == {reason}
    assert values(failed)["gpu"] == 93
    rocm.behave(mi300x())
    assert values(reader.read(0, []))["powerWatts"] == 613


def test_a_card_that_the_library_no_longer_knows_is_lost(rocm: Rocm, card: Device) -> None:
    reader = backend.pinned("amdsmi").open().reader(OPTIONS)
    rocm.behave({**mi300x(), "0.activity.status": 31})
    with pytest.raises(SourceError) as caught:
        reader.read(0, [])
    assert caught.value.reason == Reason.DEVICE_LOST
    rocm.behave({**mi300x(), "0.ecc.status": 31})
    found = values(read(backend.open()))
    assert found["gpu"] == 95
    assert "correctedMemoryErrors" not in found


def test_sentinels_are_no_values(rocm: Rocm, card: Device) -> None:
    rocm.behave({**mi300x(), "0.activity.gfx": 0xFFFF, "0.power.current_socket_power": 0, "0.energy.counter": 0})
    reading = read(backend.pinned("amdsmi").open())
    assert {reading.unavailable[name].reason for name in ("gpu", "powerWatts", "energyJoules")} == {Reason.NOT_SUPPORTED}


def test_the_module_that_rocm_brought_along_is_preferred(rocm: Rocm, card: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    rocm.ship("26.0.2+39589fda")
    loaded = amdsmi.load()
    assert Path(loaded.__file__).parent == rocm.root / "share/amd_smi/amdsmi"
    assert loaded.__version__ == "26.0.2+39589fda"


@pytest.mark.parametrize("release", ["6.4.3-128", "7.0.1-42", ""])
def test_a_module_of_another_release_is_refused_with_words_and_never_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: Device, release: str
) -> None:
    rocm = installed(tmp_path, monkeypatch, release)
    sys.modules.pop(amdsmi.PRIVATE_NAME, None)
    error = refusal()
    assert error.reason == Reason.DRIVER_UNAVAILABLE
    assert "amdsmi is of version 7.0.2, which does not match" in error.message
    assert str(rocm.root / "lib/libamd_smi.so") in error.message
    assert release.partition("-")[0] in error.message
    assert "share/amd_smi" in error.advice
    assert amdsmi.PRIVATE_NAME not in sys.modules
    assert backend.open().source == "sysfs"


def test_a_shipped_module_that_does_not_match_makes_way_for_one_that_does(rocm: Rocm, card: Device) -> None:
    rocm.ship("25.3.0")
    assert Path(amdsmi.load().__file__).parent == libamd_smi.module() / "amdsmi"


def test_a_module_that_found_another_library_is_not_used(rocm: Rocm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: Device) -> None:
    other = tmp_path / "other/lib"
    other.mkdir(parents=True)
    (other / "libamd_smi.so").write_bytes(libamd_smi.library().read_bytes())
    found = amdsmi.find_library()
    monkeypatch.setattr(amdsmi, "find_library", lambda: found)
    monkeypatch.setenv("ROCM_HOME", str(other.parent))
    error = refusal()
    assert "loaded another library" in error.message
    assert str(other) in error.message


def test_a_library_that_does_not_start_says_so(rocm: Rocm, card: Device) -> None:
    rocm.behave({"init.status": 34})
    assert "AMDSMI_STATUS_DRIVER_NOT_LOADED" in refusal().message
    assert backend.open().source == "sysfs"


def test_the_library_is_left_alone_while_a_card_sleeps(rocm: Rocm, card: Device) -> None:
    card.write({"power/runtime_status": "suspended"})
    error = refusal()
    assert error.reason == Reason.SUSPENDED
    assert card.address in error.message
    assert backend.open().source == "sysfs"


def test_without_rocm_no_module_is_imported_and_nothing_is_printed(root: Path, tmp_path: Path) -> None:
    """Importing it prints two lines on standard output, and raises ``KeyError``."""
    machines.rx_7900(Tree(root))
    package = tmp_path / "path/amdsmi"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("print('Unable to find libamd_smi.so')\nraise KeyError('libamd_smi.so')\n")
    (package / "_version.py").write_text('__version__ = "7.0.2"\n')
    script = "from accelmetrics.backends.amd import backend; import sys; sys.exit(backend.open().source)"
    environment = {"ACCELMETRICS_SYSROOT": str(root), "PYTHONPATH": f"{Path.cwd()}:{tmp_path / 'path'}", "ROCM_PATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr.strip()) == ("", "sysfs")


def test_what_a_module_prints_goes_to_standard_error(
    rocm: Rocm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    rocm.ship()
    (rocm.root / "share/amd_smi/amdsmi/__init__.py").write_text("print('Unable to find libamd_smi.so')\nraise KeyError('libamd_smi.so')\n")
    assert "cannot be imported: KeyError: 'libamd_smi.so'" in refusal().message
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Unable to find" in printed.err


# Which module matches, and what it wakes


@pytest.mark.parametrize("version", RELEASES)
def test_the_module_that_each_rocm_ships_opens_and_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: Device, version: str
) -> None:
    """It bears the library's number, and the library tells that only once it is initialised."""
    rocm = installed(tmp_path, monkeypatch, f"{version}-1", version)
    rocm.ship()
    opened = backend.pinned("amdsmi").open()
    assert opened.source == "amdsmi"
    expected = dict(ALONE)
    if version.startswith("5"):
        # It knows an average power alone, which this card does not have.
        for name in ("powerWatts", "powerPercent", "energyJoules"):
            del expected[name]
    assert values(read(opened)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("version", ["6.2.4", "7.0.2"])
def test_a_library_whose_file_has_its_version_is_not_asked_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: Device, version: str
) -> None:
    """Nothing is initialised for a module that does not match."""
    rocm = installed(tmp_path, monkeypatch, "", version)
    rocm.ship("23.9.1")
    refused = refusal().message
    assert "amdsmi is of version 23.9.1" in refused
    assert "does not match" in refused
    assert rocm.initialised == 0
    assert backend.open().source == "sysfs"


@pytest.mark.parametrize(("module", "source"), [("24.6.0", "sysfs+amdsmi"), ("24.5.3", "sysfs")])
def test_a_library_whose_file_has_no_version_is_initialised_and_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: Device, module: str, source: str
) -> None:
    rocm = installed(tmp_path, monkeypatch, "", "6.2.4", "")
    rocm.ship(module)
    assert backend.open().source == source
    assert rocm.initialised >= 1


def test_a_library_is_never_asked_while_a_card_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: Device) -> None:
    """Whatever is known of it: initialising it wakes cards."""
    rocm = installed(tmp_path, monkeypatch, "", "6.2.4", "")
    rocm.ship()
    card.write({"power/runtime_status": "suspended"})
    assert backend.open().source == "sysfs"
    assert rocm.initialised == 0


def test_a_library_that_does_not_start_is_not_asked_for_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: Device) -> None:
    rocm = installed(tmp_path, monkeypatch, "", "6.2.4", "")
    rocm.ship()
    rocm.behave({"init.status": 34})
    assert "does not start: amdsmi_init answers 34" in refusal().message


# What is believed


def test_a_card_without_ecc_has_no_error_counts(rocm: Rocm, card: Device) -> None:
    """The count itself succeeds there, with zeros."""
    without = {name: value for name, value in mi300x().items() if ".ecc." not in name}
    rocm.behave(without)
    for opened in (backend.pinned("amdsmi").open(), backend.open()):
        reading = read(opened)
        assert reading.unavailable["uncorrectedMemoryErrors"].reason == Reason.NOT_SUPPORTED
        assert "correctedMemoryErrors" not in values(reading)


def test_an_energy_counter_that_nothing_documents_is_read_by_no_source(rocm: Rocm, root: Path) -> None:
    """A Radeon's, which the library gives and the files do not."""
    machines.rx_7900(Tree(root))
    radeon = {name: value for name, value in mi300x(machines.CARD).items() if "socket_power" not in name}
    rocm.behave({**radeon, "0.power.average_socket_power": 241})
    for name in ("sysfs", "amdsmi", ""):
        opened = backend.pinned(name).open() if name else backend.open()
        assert read(opened).unavailable["energyJoules"].reason == Reason.NOT_SUPPORTED
    rocm.behave({**radeon, "0.power.average_socket_power": 241, "0.temperature.3": 51})
    assert values(read(backend.pinned("amdsmi").open()))["energyJoules"] == 9000


@pytest.mark.parametrize(
    ("version", "limit", "watts"),
    [("7.0.2", 740000000, 740), ("6.2.4", 740000000, 740), ("6.2.4", 740, 740), ("6.2.4", 0xFFFF, None), ("5.7.0", 740, None)],
)
def test_the_limit_of_power_info_is_used_in_the_unit_of_its_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, card: Device, version: str, limit: int, watts: int | None
) -> None:
    """Where there is no cap; in 5.7 it is the largest that can be set."""
    rocm = installed(tmp_path, monkeypatch, f"{version}-1", version)
    rocm.ship()
    rocm.behave({**mi300x(), "0.cap.status": 2, "0.power.power_limit": limit})
    assert values(read(backend.pinned("amdsmi").open())).get("enforcedPowerLimitWatts") == watts


def test_limits_are_those_of_the_sensor_that_the_temperature_is_of(rocm: Rocm, card: Device) -> None:
    both = {**mi300x(), "0.temperature.0": 47, "0.temperature.0.7": 98}
    rocm.behave(both)
    reading = read(backend.pinned("amdsmi").open())
    assert [values(reading).get(name) for name in ("temp", "hotspotTemp", "tempLimit.shutdown")] == [47, 59, 98]
    assert reading.unavailable["tempLimit.slowdown"].reason == Reason.NOT_SUPPORTED, "the junction's would be no answer"


def test_where_the_files_show_no_id_the_library_gives_it_as_the_kernel_writes_it(rocm: Rocm, card: Device) -> None:
    named = backend.open().devices[0].uuid
    card.remove("unique_id")
    assert backend.pinned("sysfs").open().devices[0].uuid == ""
    assert backend.open().devices[0].uuid == named == "0x18ef14e9dec61d7e"


def test_of_partitions_with_one_address_the_first_answers_for_the_card(rocm: Rocm, card: Device) -> None:
    second = {name.replace("0.", "1.", 1): value for name, value in mi300x().items() if name.startswith("0.")}
    rocm.behave({**mi300x(), **second, "cards": 2, "1.power.current_socket_power": 0, "1.energy.counter": 0})
    found = values(read(backend.pinned("amdsmi").open()))
    assert (found["powerWatts"], found["energyJoules"]) == (613, 9000)


# The source of a value


def test_where_the_edge_sensor_is_silent_once_the_temperature_is_not_the_hotspots(rocm: Rocm, card: Device) -> None:
    both = {**mi300x(), "0.temperature.0": 47}
    rocm.behave(both)
    reader = backend.pinned("amdsmi").open().reader(OPTIONS)
    assert values(reader.read(0, []))["temp"] == 47
    rocm.behave({**both, "0.temperature.0": 0, "0.temperature.status": 43})
    assert "temp" not in values(reader.read(0, []))
    rocm.behave(both)
    assert values(reader.read(0, []))["temp"] == 47


def test_what_the_files_gave_is_not_the_librarys_where_they_are_silent_once(rocm: Rocm, card: Device) -> None:
    reader = backend.open().reader(OPTIONS)
    assert values(reader.read(0, []))["powerWatts"] == 611
    card.sensors({"power1_input": "N/A"})
    silent = reader.read(0, [])
    assert silent.unavailable["powerWatts"].reason == Reason.NOT_SUPPORTED
    card.sensors({"power1_input": 609000000})
    assert values(reader.read(0, []))["powerWatts"] == 609


def test_what_the_library_gave_is_not_the_files_where_it_is_silent_once(rocm: Rocm, card: Device) -> None:
    """Errors of a card whose files came later."""
    reader = backend.open().reader(OPTIONS)
    assert values(reader.read(0, []))["correctedMemoryErrors"] == 17
    card.write({"ras/umc_err_count": "ue: 900\nce: 900", "ras/features": "feature mask: 0x1"})
    reader._driver.units[0].card._due = 0  # type: ignore[attr-defined]
    rocm.behave({**mi300x(), "0.ecc.status": 30})
    silent = reader.read(0, [])
    assert "correctedMemoryErrors" not in values(silent)
    assert "correctedMemoryErrors" in silent.unavailable
