"""``diagnose``: the facts behind ``doctor``, as records."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from accelmetrics.backends.contract import Detection
from accelmetrics.schemas.errors import ADVICE, DriverGoneError, InvalidOptionError, Reason, SourceError, UnknownNameError
from accelmetrics.testing import FakeBackend
from accelmetrics.testing.fake import FakeDriver
from accelmetrics.visibility.doctor import BackendFinding, diagnose
from tests.sampling.node import job_environment, rank
from tests.simulators.tpu import TpuMachine
from tests.support.waiting import HANG


def finding(backend: FakeBackend, **options: Any) -> BackendFinding:
    """What is found out about one backend."""
    (found,) = diagnose([backend], **options).backends
    return found


def test_sources_are_opened_and_read_side_by_side() -> None:
    """Each waits in its opening, and in its first reading, until the other is there too."""
    together = threading.Barrier(2)

    class Waiting(FakeBackend):
        def open(self) -> FakeDriver:
            together.wait(HANG)
            return super().open()

    def utilization() -> int:
        together.wait(HANG)
        return 50

    backends = [Waiting(name) for name in ("one", "other")]
    for backend in backends:
        backend.device(0).set(utilization=utilization)
    found = diagnose(backends, timeout=HANG, open_timeout=HANG).backends
    assert [one.status for one in found] == ["ok", "ok"]


def test_a_backend_that_works(gpus: FakeBackend) -> None:
    """Evidence, source, durations, devices, and what they do not give."""
    gpus.device(0).miss("fanSpeed", Reason.NOT_SUPPORTED, "no fan").miss("smClock", Reason.NOT_SUPPORTED, "no fan")
    found = finding(gpus)
    assert (found.present, found.evidence, found.status, found.source) == (True, "4 scripted devices", "ok", "script")
    assert found.open_seconds is not None
    assert found.read_seconds is not None
    assert (found.reason, found.problem, found.advice, found.unreadable) == ("", "", "", 0)
    (gap,) = found.devices[0].gaps
    assert (gap["reason"], gap["detail"], set(gap["names"])) == ("not_supported", "no fan", {"fanSpeed", "smClock"})
    assert found.devices[0].metrics == 2
    assert all(device.readable for device in found.devices)


def test_it_leaves_nothing_open(gpus: FakeBackend) -> None:
    """Its sources are its own, and closed."""
    diagnose([gpus])
    assert (gpus.opened, gpus.closed) == (1, 1)


def test_absent(gpus: FakeBackend) -> None:
    """Named ones are opened in any case: what that said stands there, and nothing is missed."""
    gpus.detection = Detection(False, "nothing on the bus", advice="buy one")
    gpus.opening.fail(SourceError(Reason.DRIVER_UNAVAILABLE, "no library"))
    found = finding(gpus)
    assert (found.present, found.status, found.problem, found.advice) == (False, "absent", "no library", "buy one")
    assert found.unreadable == 0


def test_the_drivers_own_advice_goes_first(gpus: FakeBackend) -> None:
    """What fails knows best."""
    gpus.opening.fail(SourceError(Reason.NO_PERMISSION, "refused", advice="join the group"))
    assert finding(gpus).advice == "join the group"
    gpus.opening.fail(SourceError(Reason.NO_PERMISSION, "refused"))
    assert finding(gpus).advice == ADVICE[Reason.NO_PERMISSION]


def test_a_card_on_the_bus_whose_driver_does_not_open_is_unreadable(gpus: FakeBackend) -> None:
    """As many as the bus shows."""
    gpus.opening.fail(SourceError(Reason.DRIVER_UNAVAILABLE, "not loaded"))
    assert finding(gpus).unreadable == 4
    gpus.detection = Detection(True, "a library that loads", 0)
    assert finding(gpus).unreadable == 0
    gpus.opening.fail(SourceError(Reason.NO_PERMISSION, "refused"))
    assert finding(gpus).unreadable == 1


def test_one_device_fails(gpus: FakeBackend) -> None:
    """Its words and advice stand with it; the neighbours are readable."""
    gpus.device(2).fail(SourceError(Reason.DEVICE_LOST, "fell off the bus", advice="push it back"))
    found = finding(gpus)
    assert [device.readable for device in found.devices] == [True, True, False, True]
    assert (found.devices[2].problem, found.devices[2].advice) == ("device_lost: fell off the bus", "push it back")
    assert (found.problem, found.unreadable) == ("", 1)


def test_one_device_hangs(gpus: FakeBackend) -> None:
    """It has no answer and no error: the general advice."""
    gpus.device(1).hang()
    found = finding(gpus, timeout=0.3)
    assert [device.readable for device in found.devices] == [True, False, True, True]
    assert found.devices[1].advice == ADVICE[Reason.TIMED_OUT]


@pytest.mark.parametrize("reason", [Reason.SUSPENDED, Reason.NOT_IN_USE])
def test_a_device_at_rest_is_well(gpus: FakeBackend, reason: Reason) -> None:
    """Nothing can be read, and nothing is wrong."""
    gpus.device(0).fail(SourceError(reason, "asleep"))
    found = finding(gpus)
    assert found.devices[0].readable
    assert found.unreadable == 0


def test_a_device_whose_rates_wait_for_a_reading_is_readable() -> None:
    """Its counters have been read, though it gives nothing yet, nor anything else."""
    device = FakeBackend("rates", devices=1)
    device.device(0).miss("pcieTxBytes", Reason.NEEDS_INTERVAL, "a rate needs two readings")
    for name in ("temp", "powerWatts", "gpu"):
        device.device(0).miss(name, Reason.NOT_SUPPORTED, "not here")
    found = finding(device)
    assert found.devices[0].metrics == 0
    assert (found.devices[0].readable, found.unreadable) == (True, 0)


def test_what_detection_advises_is_said_first_however_the_driver_fares(gpus: FakeBackend) -> None:
    """It works, it fails with advice of its own, it fails with the same advice: once, and first."""
    gpus.detection = Detection(True, "4 cards, no nodes", 4, "pass the nodes")
    assert finding(gpus).advice == "pass the nodes"
    gpus.opening.fail(SourceError(Reason.DRIVER_ERROR, "it says no", advice="ask it by hand"))
    assert finding(gpus).advice == "pass the nodes; ask it by hand"
    gpus.opening.fail(SourceError(Reason.DRIVER_ERROR, "it says no", advice="pass the nodes; ask it by hand"))
    assert finding(gpus).advice == "pass the nodes; ask it by hand"
    gpus.opening.fail(SourceError(Reason.DRIVER_ERROR, "it says no", advice="pass the nodes"))
    assert finding(gpus).advice == "pass the nodes"


def test_a_driver_that_went_away(gpus: FakeBackend) -> None:
    """Its devices are known, and none is readable."""

    def vanish() -> int:
        raise DriverGoneError(Reason.DRIVER_UNAVAILABLE, "unloaded", advice="load it")

    gpus.device(0).set(temp=vanish)
    found = finding(gpus)
    assert found.status in ("failed", "degraded")
    assert found.unreadable >= 1


def test_opening_takes_too_long(gpus: FakeBackend) -> None:
    """It is not waited for, and it is said."""
    gpus.opening.hang()
    found = finding(gpus, timeout=0.2, open_timeout=0.2)
    assert (found.status, found.reason, found.advice, found.unreadable) == ("timed_out", "timed_out", ADVICE[Reason.TIMED_OUT], 4)


def test_a_host_counts_its_own_keys() -> None:
    """Whole keys, apart from any device's."""
    script = FakeBackend("script", None)
    script.device(0).set(tide=1, moon=2)
    found = diagnose([script, FakeBackend(devices=1)]).backends
    host = next(backend for backend in found if backend.name == "script")
    assert (host.metrics, host.devices, host.unreadable) == (2, (), 0)


def test_this_machine() -> None:
    """Everything that is registered, whatever is here."""
    found = diagnose(open_timeout=0.8, timeout=0.5)
    assert [backend.name for backend in found.backends][-1] == "host"


def test_options_are_checked() -> None:
    """As a sampler's."""
    with pytest.raises(InvalidOptionError, match="timeout"):
        diagnose(timeout=0)
    with pytest.raises(UnknownNameError, match="unheard-of"):
        diagnose(["unheard-of"])


def test_it_shows_which_process_reads_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: FakeBackend) -> None:
    """And of a file that is none of this release what is wrong; nothing is made where nobody shares."""
    for name, value in job_environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    assert diagnose([gpus]).shared == ()
    assert not list(tmp_path.iterdir())
    with rank("    monitor.start(); until(lambda: monitor.latest); tell(1); wait_to_go_on()", job_environment(tmp_path)) as program:
        program.told()
        (tmp_path / "accelmetrics" / "other.ring").write_text("x")
        own, other = sorted(diagnose([gpus]).shared, key=lambda one: one["problem"])
        assert (own["pid"], own["problem"]) == (program.pid, "")
        assert own["epoch"] > 0
        assert own["age_seconds"] is not None
        assert "not a file of shared readings" in other["problem"]


def test_what_to_do_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Detection and the backend both say to load the driver: the words that name it stand."""
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))
    TpuMachine(tmp_path).function("0000:81:00.0", "0xb140", kind="0x120000", vendor="0x1e52")
    (found,) = diagnose(["tenstorrent"]).backends
    assert found.advice.count("load the kernel driver") == 1
    assert "modprobe tenstorrent" in found.advice and "--device=/dev/tenstorrent/0" in found.advice
