"""Detection goes by what the kernel says it is, starts nothing, and says what it found."""

import os

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.apple import backend
from accelmetrics.backends.contract import SYSTEM_CLOCK
from accelmetrics.schemas.errors import Reason, SourceError
from tests.simulators.apple import COMMANDS, XNU, MacStandIn, kernel

LINUX = kernel("Linux", "aarch64", "#1 SMP PREEMPT_DYNAMIC")
INTEL = kernel("Darwin", "x86_64", "Darwin Kernel Version 24.5.0: root:xnu-11417.121.6~2/RELEASE_X86_64")
TRANSLATED = kernel("Darwin", "x86_64", XNU)
NOT_CALLED: list[object] = [[]] * len(COMMANDS)


def test_a_mac_is_found_and_its_macmon_named(mac: MacStandIn) -> None:
    found = backend.detect()
    assert (found.present, found.devices, found.advice) == (True, 1, "")
    assert found.evidence == f"macOS on Apple silicon, {mac.directory}/macmon"
    assert [mac.calls(name) for name in COMMANDS] == NOT_CALLED


def test_without_macmon_it_says_what_that_costs(mac: MacStandIn) -> None:
    mac.remove("macmon")
    found = backend.detect()
    assert (found.present, found.devices) == (True, 1)
    assert found.evidence == "macOS on Apple silicon, no macmon: no power without root"
    assert "brew install macmon" in found.advice


def test_a_translated_program_is_on_apple_silicon_too(mac: MacStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    del mac
    monkeypatch.setattr(os, "uname", lambda: TRANSLATED)
    assert backend.detect().present


@pytest.mark.parametrize(
    ("here", "words"),
    [
        (LINUX, "Linux aarch64: not macOS on Apple silicon"),
        (INTEL, "a Mac with an Intel processor: only Apple silicon is read"),
        (None, "this system: not macOS on Apple silicon"),
    ],
    ids=["Linux", "Intel", "no uname"],
)
def test_other_machines_are_told_by_what_they_are(
    mac: MacStandIn, monkeypatch: pytest.MonkeyPatch, here: os.uname_result | None, words: str
) -> None:
    """The commands alone are no evidence."""
    if here is None:
        monkeypatch.delattr(os, "uname")
    else:
        monkeypatch.setattr(os, "uname", lambda: here)
    assert backend.detect() == (False, words, 0, "")
    with pytest.raises(SourceError) as caught:
        backend.open()
    assert (caught.value.reason, caught.value.message) == (Reason.DRIVER_UNAVAILABLE, words)
    assert [mac.calls(name) for name in COMMANDS] == NOT_CALLED


def test_the_kernel_is_asked() -> None:
    here = os.uname()
    assert backend.detect().present == (here.sysname == "Darwin" and here.machine == "arm64")


def test_asked_for_by_name_elsewhere_it_is_absent(mac: MacStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    del mac
    monkeypatch.setattr(os, "uname", lambda: LINUX)
    with Sampler(["apple"], clock=SYSTEM_CLOCK) as sampler:
        snapshot = sampler.sample()
    assert (snapshot.devices, snapshot.metrics, snapshot.unavailable) == ((), {}, {})
    assert snapshot.backends[0].status == "absent"
    assert snapshot.backends[0].detail == "Linux aarch64: not macOS on Apple silicon"


def test_it_is_a_source_of_gpus_with_a_pace_of_its_own() -> None:
    assert (backend.name, backend.kind, backend.interval, tuple(backend.own_metrics())) == ("apple", "gpu", 1.0, ())
