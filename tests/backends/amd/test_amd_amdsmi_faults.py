"""Whatever is wrong with the module ``amdsmi`` costs its own values alone, and is told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accelmetrics import diagnose
from accelmetrics.backends.amd import amdsmi_library, backend
from accelmetrics.backends.amd.in_process import RELIST, InProcessDriver
from accelmetrics.backends.contract import Reading, ReadOptions
from accelmetrics.schemas.errors import SourceError
from accelmetrics.schemas.reasons import Reason
from tests.simulators.amdgpu import Device, Tree, machines

OPTIONS = ReadOptions(pid=1)
THROWN = [TypeError("nobody expects it"), AttributeError("no amdsmi_get"), KeyError("libamd_smi.so"), OSError(5, "Input/output error")]
every_error = pytest.mark.parametrize("error", THROWN, ids=lambda error: type(error).__name__)


class Module:
    """A module ``amdsmi`` that knows one card, and throws at every call of which the test says nothing else.

    Args:
        address: The card's.
        error: What is thrown.
        answers: By call, what it does instead.
    """

    class AmdSmiException(Exception):  # noqa: N818 - the module's own name
        """What the real one throws."""

    def __init__(self, address: str, error: BaseException, **answers: Callable[..., Any]) -> None:
        self._error = error
        self._answers: dict[str, Callable[..., Any]] = {
            "amdsmi_init": lambda: None,
            "amdsmi_get_processor_handles": lambda: ["card"],
            "amdsmi_get_gpu_device_bdf": lambda handle: address.upper(),
            **answers,
        }

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return self._answers.get(name, self._throw)

    def _throw(self, *_: object) -> Any:
        raise self._error


class FakeClock:
    """Time that passes when a test says so."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        raise NotImplementedError


@pytest.fixture
def card(system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A card on a machine without ROCm."""
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "rocm"))
    monkeypatch.delenv("ROCM_HOME", raising=False)
    monkeypatch.setattr(amdsmi_library, "DEFAULT_ROOT", str(tmp_path / "opt"))
    return machines.rx_7900(Tree(system))


def install(monkeypatch: pytest.MonkeyPatch, made: Module) -> None:
    monkeypatch.setattr(amdsmi_library, "load", lambda: made)


def values(reading: Reading) -> dict[str, float]:
    return {name: value for block in reading.blocks for name, value in zip(block.names, block.values, strict=True)}


def of_files() -> dict[str, float]:
    return values(backend.pinned("sysfs").open().reader(OPTIONS).read(0, []))


def evidence() -> str:
    (found,) = diagnose(["amd"]).backends
    return found.evidence


@every_error
@pytest.mark.parametrize("call", ["amdsmi_init", "amdsmi_get_processor_handles", "amdsmi_get_gpu_device_bdf"])
def test_a_module_that_throws_when_it_is_opened_leaves_the_files_and_its_words(
    card: Device, monkeypatch: pytest.MonkeyPatch, error: Exception, call: str
) -> None:
    made = Module(card.address, error)
    made._answers[call] = made._throw
    install(monkeypatch, made)
    opened = backend.open()
    assert opened.source == "sysfs"
    assert values(opened.reader(OPTIONS).read(0, [])) == of_files()
    assert f"amdsmi is not used: amdsmi cannot be used: {type(error).__name__}" in evidence()
    with pytest.raises(SourceError, match=type(error).__name__):
        backend.pinned("amdsmi").open()


@every_error
def test_a_module_that_cannot_even_be_looked_for_leaves_the_files(card: Device, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def load() -> Any:
        raise error

    monkeypatch.setattr(amdsmi_library, "load", load)
    assert backend.open().source == "sysfs"


@pytest.mark.parametrize(
    "text", ["raise TypeError('nobody expects it')", "import sys; sys.exit('bye')", "assert False, 'no'", "not Python"]
)
def test_a_module_that_does_not_load_leaves_the_files(card: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    package = tmp_path / "amdsmi"
    package.mkdir()
    (package / "__init__.py").write_text(text)
    (package / "_version.py").write_text('__version__ = "7.0.2"\n')
    installed = amdsmi_library.Installed(tmp_path / "lib/libamd_smi.so", (7, 0, 2), ())
    monkeypatch.setattr(amdsmi_library, "find_library", lambda: installed)
    monkeypatch.setattr(amdsmi_library, "packages", lambda library: iter([package]))
    assert backend.open().source == "sysfs"
    assert f"{package} cannot be imported" in evidence()


@every_error
def test_a_call_that_throws_costs_the_files_nothing(card: Device, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    install(monkeypatch, Module(card.address, error))
    opened = backend.open()
    assert opened.source == "sysfs+amdsmi"
    assert values(opened.reader(OPTIONS).read(0, [])) == of_files()


@every_error
def test_a_call_that_throws_costs_its_own_metrics_alone(card: Device, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    ecc = {"correctable_count": 17, "uncorrectable_count": 2}
    install(monkeypatch, Module(card.address, error, amdsmi_get_gpu_total_ecc_count=lambda handle: ecc))
    reader = backend.pinned("amdsmi").open().reader(OPTIONS)
    for _ in range(2):
        steps: list[Any] = []
        reading = reader.read(0, steps)
        assert values(reading) == {"correctedMemoryErrors": 17, "uncorrectedMemoryErrors": 2, "unCorrectedMemoryErrors": 2}
        assert reading.unavailable["powerWatts"].reason == Reason.DRIVER_ERROR
        assert reading.unavailable["powerWatts"].detail.startswith(f"amdsmi, power: {type(error).__name__}")
        assert {"power", "ecc"} <= set(steps)


@pytest.mark.parametrize("answer", [None, [1, 2], 7, {"correctable_count": object()}])
def test_an_answer_of_another_form_costs_its_own_metrics_alone(card: Device, monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    install(monkeypatch, Module(card.address, TypeError("no"), amdsmi_get_gpu_total_ecc_count=lambda handle: answer))
    assert values(backend.open().reader(OPTIONS).read(0, [])) == of_files()


# Why it is not used


def test_doctor_says_that_there_is_no_library(card: Device) -> None:
    assert "; amdsmi is not used: libamd_smi.so was found in none of" in evidence()


def test_doctor_says_that_the_module_does_not_match(card: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = amdsmi_library.Installed(tmp_path / "lib/libamd_smi.so", (7, 0, 2), ())
    monkeypatch.setattr(amdsmi_library, "find_library", lambda: installed)
    monkeypatch.setattr(amdsmi_library, "packages", lambda library: iter([tmp_path]))
    assert f"{tmp_path} is of version unknown, which does not match {installed.words()}: it is not used" in evidence()


def test_doctor_says_that_a_card_sleeps(card: Device) -> None:
    card.write({"power/runtime_status": "suspended"})
    assert f"amdsmi is not used: opening amdsmi would wake {card.address}, which is suspended" in evidence()


def test_doctor_says_nothing_of_a_module_that_was_not_asked_for_or_is_used(card: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    (pinned,) = diagnose(["amd"], amd_source="sysfs").backends
    assert "amdsmi" not in pinned.evidence
    install(monkeypatch, Module(card.address, TypeError("no")))
    assert "amdsmi" not in evidence()


def test_without_any_source_both_say_why(system: Path, card: Device) -> None:
    for path in [*card.path.glob("*_*"), *card.path.glob("hwmon/*/*")]:
        path.unlink()
    (card.path / "hwmon/hwmon3").rmdir()
    (card.path / "hwmon").rmdir()
    with pytest.raises(SourceError) as caught:
        InProcessDriver(FakeClock())
    assert "files are not to be seen here" in caught.value.message
    assert "libamd_smi.so was found in none of" in caught.value.message


def test_a_module_that_waited_for_a_card_is_opened_when_all_are_awake(card: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    ecc = {"correctable_count": 17, "uncorrectable_count": 2}
    install(monkeypatch, Module(card.address, TypeError("no"), amdsmi_get_gpu_total_ecc_count=lambda handle: ecc))
    card.write({"power/runtime_status": "suspended"})
    clock = FakeClock()
    opened = InProcessDriver(clock)
    reader = opened.reader(OPTIONS)
    clock.now += RELIST
    assert values(reader.read(0, [])) == {}
    assert (opened.source, bool(opened.remark)) == ("sysfs", True)
    card.write({"power/runtime_status": "active"})
    assert "correctedMemoryErrors" not in values(reader.read(0, []))
    clock.now += RELIST
    assert values(reader.read(0, []))["correctedMemoryErrors"] == 17
    assert (opened.source, opened.remark) == ("sysfs+amdsmi", "")


def test_a_module_that_was_refused_is_not_looked_for_again(card: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    reader = InProcessDriver(clock).reader(OPTIONS)
    install(monkeypatch, Module(card.address, TypeError("no")))
    clock.now += RELIST
    steps: list[Any] = []
    reader.read(0, steps)
    assert "ecc" not in steps
