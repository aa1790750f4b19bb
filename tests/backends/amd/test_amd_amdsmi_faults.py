"""Whatever is wrong with the module ``amdsmi`` costs its own values alone, and is told."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from accelmetrics import Sampler, diagnose
from accelmetrics.backends.amd import amdsmi, backend, in_process
from accelmetrics.backends.amd.amdsmi import FIRST_PATIENCE, LATER_PATIENCE, Trust
from accelmetrics.backends.amd.in_process import RELIST, InProcessDriver
from accelmetrics.backends.contract import ReadOptions
from accelmetrics.sampling.sources import SourceRegistry
from accelmetrics.schemas.errors import Reason, SourceError, Unavailable
from accelmetrics.testing import FakeClock
from tests.sampling.conftest import until
from tests.simulators.amdgpu import Device, Tree, machines
from tests.support.readings import values
from tests.support.waiting import wait_for

OPTIONS = ReadOptions(pid=1)
THROWN = [TypeError("unexpected"), AttributeError("no amdsmi_get"), KeyError("libamd_smi.so"), OSError(5, "Input/output error")]
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
            "amdsmi_get_gpu_ecc_enabled": lambda handle: 0x1,
            **answers,
        }

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return self._answers.get(name, self._throw)

    def _throw(self, *_: object) -> Any:
        raise self._error


@pytest.fixture
def card(tree: Tree) -> Device:
    return machines.rx_7900(tree)


def install(monkeypatch: pytest.MonkeyPatch, made: Module) -> None:
    monkeypatch.setattr(amdsmi, "load", lambda: made)


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

    monkeypatch.setattr(amdsmi, "load", load)
    assert backend.open().source == "sysfs"


@pytest.mark.parametrize("text", ["raise TypeError('unexpected')", "import sys; sys.exit('bye')", "assert False, 'no'", "not Python"])
def test_a_module_that_does_not_load_leaves_the_files(card: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    package = tmp_path / "amdsmi"
    package.mkdir()
    (package / "__init__.py").write_text(text)
    (package / "_version.py").write_text('__version__ = "7.0.2"\n')
    installed = (tmp_path / "lib/libamd_smi.so", (7, 0, 2), ())
    monkeypatch.setattr(amdsmi, "find_library", lambda: installed)
    monkeypatch.setattr(amdsmi, "packages", lambda library: [package])
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
        progress: list[Any] = []
        reading = reader.read(0, progress)
        assert values(reading) == {"correctedMemoryErrors": 17, "uncorrectedMemoryErrors": 2, "unCorrectedMemoryErrors": 2}
        assert reading.unavailable["powerWatts"].reason == Reason.DRIVER_ERROR
        assert reading.unavailable["powerWatts"].detail.startswith(f"amdsmi, power: {type(error).__name__}")
        assert {"power", "ecc"} <= set(progress)


@pytest.mark.parametrize("answer", [None, [1, 2], 7, {"correctable_count": object()}])
def test_an_answer_of_another_form_costs_its_own_metrics_alone(card: Device, monkeypatch: pytest.MonkeyPatch, answer: object) -> None:
    install(monkeypatch, Module(card.address, TypeError("no"), amdsmi_get_gpu_total_ecc_count=lambda handle: answer))
    assert values(backend.open().reader(OPTIONS).read(0, [])) == of_files()


# Why it is not used


def test_doctor_says_that_there_is_no_library(card: Device) -> None:
    assert "; amdsmi is not used: libamd_smi.so was found in none of" in evidence()


def test_doctor_says_that_the_module_does_not_match(card: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = (tmp_path / "lib/libamd_smi.so", (7, 0, 2), ())
    monkeypatch.setattr(amdsmi, "find_library", lambda: installed)
    monkeypatch.setattr(amdsmi, "packages", lambda library: [tmp_path])
    assert f"{tmp_path} is of version unknown, which does not match {installed[0]} (version 7.0.2): it is not used" in evidence()


def test_doctor_says_that_a_card_sleeps(card: Device) -> None:
    card.write({"power/runtime_status": "suspended"})
    assert f"amdsmi is not used: opening amdsmi would wake {card.address}, which is suspended" in evidence()


def test_doctor_says_nothing_of_a_module_that_was_not_asked_for_or_is_used(card: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    (pinned,) = diagnose(["amd"], amd_source="sysfs").backends
    assert "amdsmi" not in pinned.evidence
    install(monkeypatch, Module(card.address, TypeError("no")))
    assert "amdsmi" not in evidence()


def test_without_any_source_both_say_why(root: Path, card: Device) -> None:
    for path in [*card.path.glob("*_*"), *card.path.glob("hwmon/*/*")]:
        path.unlink()
    (card.path / "hwmon/hwmon3").rmdir()
    (card.path / "hwmon").rmdir()
    with pytest.raises(SourceError) as caught:
        InProcessDriver(FakeClock())
    assert "files are not visible here" in caught.value.message
    assert "libamd_smi.so was found in none of" in caught.value.message


def test_a_module_that_waited_for_a_card_is_opened_when_all_are_awake(card: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    ecc = {"correctable_count": 17, "uncorrectable_count": 2}
    install(monkeypatch, Module(card.address, TypeError("no"), amdsmi_get_gpu_total_ecc_count=lambda handle: ecc))
    card.write({"power/runtime_status": "suspended"})
    clock = FakeClock()
    opened = InProcessDriver(clock)
    reader = opened.reader(OPTIONS)
    clock.advance(RELIST)
    assert values(reader.read(0, [])) == {}
    assert (opened.source, bool(opened.remark)) == ("sysfs", True)
    card.write({"power/runtime_status": "active"})
    assert "correctedMemoryErrors" not in values(reader.read(0, []))
    clock.advance(RELIST)
    assert values(reader.read(0, []))["correctedMemoryErrors"] == 17
    assert (opened.source, opened.remark) == ("sysfs+amdsmi", "")


def test_a_module_that_was_refused_is_not_looked_for_again(card: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    reader = InProcessDriver(clock).reader(OPTIONS)
    install(monkeypatch, Module(card.address, TypeError("no")))
    clock.advance(RELIST)
    progress: list[Any] = []
    reader.read(0, progress)
    assert "ecc" not in progress


# Calls that hang


def test_while_it_is_being_opened_the_files_are_read_and_the_rest_is_timed_out(card: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is opened once in a process, and used when that has returned."""
    goes_on, begun = threading.Event(), []

    def init() -> None:
        begun.append(1)
        goes_on.wait()

    ecc = {"correctable_count": 17, "uncorrectable_count": 2}
    install(monkeypatch, Module(card.address, TypeError("no"), amdsmi_init=init, amdsmi_get_gpu_total_ecc_count=lambda handle: ecc))
    monkeypatch.setattr(in_process, "FIRST_OPENING", 0.05)
    clock = FakeClock()
    opened, another = InProcessDriver(clock), InProcessDriver(clock)
    assert opened.source == another.source == "sysfs"
    reader = opened.reader(OPTIONS)
    reading = reader.read(0, [])
    assert values(reading) == of_files()
    why = reading.unavailable["correctedMemoryErrors"]
    assert (why.reason, why.detail[:30]) == (Reason.TIMED_OUT, "amdsmi has not answered since ")
    clock.advance(RELIST)
    assert another.reader(OPTIONS).read(0, []).unavailable["correctedMemoryErrors"].reason == Reason.TIMED_OUT
    assert begun == [1]
    goes_on.set()
    wait_for(lambda: values(reader.read(0, [])).get("correctedMemoryErrors") == 17)
    assert (opened.source, opened.remark) == ("sysfs+amdsmi", "")
    clock.advance(RELIST)
    assert values(another.reader(OPTIONS).read(0, []))["correctedMemoryErrors"] == 17


class Fans:
    """A module that knows how fast the fans of two cards turn, and of which one card's call can be made to hang.

    Attributes:
        asked: The cards whose fan was asked for.
    """

    def __init__(self, cards: Sequence[Device]) -> None:
        self.asked: list[str] = []
        self._goes_on = {card.address: threading.Event() for card in cards}
        self.release()
        self.module = Module(
            cards[0].address,
            TypeError("no"),
            amdsmi_get_processor_handles=lambda: [card.address for card in cards],
            amdsmi_get_gpu_device_bdf=lambda handle: handle,
            amdsmi_get_gpu_fan_speed_max=lambda handle, sensor: 200,
            amdsmi_get_gpu_fan_speed=self._speed,
        )

    def hang(self, card: Device) -> None:
        self._goes_on[card.address].clear()

    def release(self) -> None:
        for event in self._goes_on.values():
            event.set()

    def _speed(self, handle: str, sensor: int) -> int:
        self.asked.append(handle)
        self._goes_on[handle].wait()
        return 50


@pytest.fixture
def two(tree: Tree) -> tuple[Device, Device]:
    """Two cards, of whose fans the kernel driver says nothing."""
    return machines.mi250(tree)


@pytest.fixture
def fans(two: tuple[Device, Device], monkeypatch: pytest.MonkeyPatch) -> Iterator[Fans]:
    monkeypatch.setattr("accelmetrics.sampling.sampler.SHARED", SourceRegistry())  # no number was given out
    made = Fans(two)
    install(monkeypatch, made.module)
    yield made
    made.release()


def test_a_call_that_hangs_costs_what_the_module_alone_gives_of_its_card(two: tuple[Device, Device], fans: Fans) -> None:
    """The files of that card, and all of the other, are read in time, and the call is made once."""
    with Sampler(["amd"], timeout=10.0) as sampler:
        before = sampler.sample()
        assert before.backends[0].source == "sysfs+amdsmi"
        assert [before.metrics[f"gpu.{number}.fanSpeed"] for number in (0, 1)] == [25, 25]
        fans.hang(two[1])
        for number in range(3):
            two[1].write({"gpu_busy_percent": 11 + number})
            snapshot = sampler.sample()
            assert snapshot.backends[0].status == "ok"
            assert snapshot.unavailable["gpu.1.fanSpeed"] == Unavailable(Reason.TIMED_OUT, "a call into amdsmi has not returned")
            assert snapshot.metrics.keys() == before.metrics.keys() - {"gpu.1.fanSpeed"}
            assert snapshot.metrics["gpu.1.gpu"] == 11 + number
        assert fans.asked.count(two[1].address) == 2
        fans.release()
        until(lambda: sampler.sample().metrics.keys() == before.metrics.keys())


@pytest.mark.usefixtures("fans")
def test_without_a_thread_for_it_the_files_are_read_and_the_next_driver_opens_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "accelmetrics-amdsmi-opening":
            raise RuntimeError("can't start new thread")
        begin(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        opened = InProcessDriver()
        assert "cannot start a thread: can't start new thread" in opened.remark
        assert "fanSpeed" not in values(opened.reader(OPTIONS).read(0, []))
    assert InProcessDriver().source == "sysfs+amdsmi"


def test_doctor_says_that_a_call_hangs_and_that_it_returned(two: tuple[Device, Device], fans: Fans) -> None:
    opened = InProcessDriver()
    reader = opened.reader(OPTIONS)
    fans.hang(two[0])
    assert "fanSpeed" in reader.read(0, []).unavailable
    assert opened.remark == "a call into amdsmi has not returned"
    fans.release()
    until(lambda: values(reader.read(0, [])).get("fanSpeed") == 25)
    assert opened.remark == ""


def test_a_module_that_is_merely_slow_is_waited_for(two: tuple[Device, Device], fans: Fans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trust, "patience", 30.0)
    fans.hang(two[1])
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(backend.open().reader(OPTIONS).read, 1, [])
        until(lambda: two[1].address in fans.asked)
        fans.release()
        assert values(reading.result())["fanSpeed"] == 25


def test_a_module_that_hangs_for_all_cards_is_waited_for_as_long_by_the_first_alone(two: tuple[Device, Device], fans: Fans) -> None:
    opened = InProcessDriver()
    reader = opened.reader(OPTIONS)
    for card in two:
        fans.hang(card)
    assert opened._trust.patience == FIRST_PATIENCE
    assert reader.read(0, []).unavailable["fanSpeed"].reason == Reason.TIMED_OUT
    assert opened._trust.patience == LATER_PATIENCE
    assert reader.read(1, []).unavailable["fanSpeed"].reason == Reason.TIMED_OUT


def test_the_threads_end_when_the_driver_is_closed_and_the_calls_have_returned(two: tuple[Device, Device], fans: Fans) -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "accelmetrics-amdsmi" and thread not in others]

    others: list[threading.Thread] = []
    others = threads()
    opened = InProcessDriver()
    reader = opened.reader(OPTIONS)
    fans.hang(two[1])
    for unit in (0, 1):
        reader.read(unit, [])
    assert len(threads()) == 2
    opened.close()
    until(lambda: len(threads()) == 1)
    fans.release()
    until(lambda: not threads())
