"""Vastai cards, from a command that prints as ``vasmi`` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelmetrics import Sampler, Snapshot
from accelmetrics.backends import registry
from accelmetrics.backends.vastai import backend, parse
from accelmetrics.backends.visible import visibility
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.testing import FakeClock
from accelmetrics.visibility.doctor import diagnose
from tests.simulators.commands import CommandStandIn
from tests.simulators.vastai import document, memory, summary
from tests.support.fuzzing import fuzz

GIB = 2**30


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandStandIn:
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path / "root"))
    stand_in = CommandStandIn(tmp_path, "vasmi")
    monkeypatch.setenv("PATH", stand_in.path)
    stand_in.behave(document(memory(0), memory(1, "32 GiB", "Physical memory")), asked="getmem")
    stand_in.behave(document(summary(1, "50 W"), summary(0)), asked="summary")
    return stand_in


def sample() -> Snapshot:
    with Sampler(["vastai"], clock=FakeClock()) as sampler:
        return sampler.sample()


def test_every_metric_and_who_a_card_is(tool: CommandStandIn) -> None:
    """Documents are joined by the address, however many digits its domain has."""
    snapshot = sample()
    assert snapshot.metrics == {
        "npu.0.memoryTotalBytes": 16 * GIB,
        "npu.0.powerWatts": 45.5,
        "npu.0.enforcedPowerLimitWatts": 75,
        "npu.0.powerPercent": pytest.approx(60.67, abs=0.01),
        "npu.1.memoryTotalBytes": 32 * GIB,
        "npu.1.powerWatts": 50,
        "npu.1.enforcedPowerLimitWatts": 75,
        "npu.1.powerPercent": pytest.approx(66.67, abs=0.01),
    }
    assert snapshot.devices[0].identity == DeviceIdentity(
        "npu", "vastai", 0, pci_bus_id="0000:3b:00.0", serial="VA000", memory_total_bytes=16 * GIB
    )
    assert sorted(tool.calls) == [["getmem", "--display-format=json"], ["summary", "--display-format=json"]]


@pytest.mark.parametrize(
    ("draw", "reason"),
    [
        ("N/A", Reason.NOT_SUPPORTED),
        (None, Reason.NOT_SUPPORTED),
        ("45", Reason.PARSE_ERROR),
        (45, Reason.PARSE_ERROR),
        ("45 C", Reason.PARSE_ERROR),
        ("99999 W", Reason.INVALID_VALUE),
    ],
)
def test_a_number_needs_its_unit(tool: CommandStandIn, draw: object, reason: Reason) -> None:
    tool.behave(document(summary(0, draw), summary(1)), asked="summary")
    snapshot = sample()
    assert snapshot.unavailable["npu.0.powerWatts"].reason == reason
    assert snapshot.metrics["npu.1.powerWatts"] == 45.5


def test_one_document_that_fails_costs_only_its_own_values(tool: CommandStandIn) -> None:
    tool.behave('{"elem": null}', asked="summary")
    snapshot = sample()
    assert snapshot.metrics["npu.0.memoryTotalBytes"] == 16 * GIB
    assert snapshot.unavailable["npu.0.powerWatts"].reason == Reason.PARSE_ERROR


@pytest.mark.parametrize(
    ("stdout", "stderr", "status", "reason", "words"),
    [
        ("", "Permission denied", 1, Reason.NO_PERMISSION, "Permission denied"),
        ('{"elem": []}', "", 0, Reason.DRIVER_UNAVAILABLE, "lists no NPU"),
        ("no JSON at all", "", 0, Reason.PARSE_ERROR, "no JSON"),
    ],
)
def test_why_it_does_not_open(tool: CommandStandIn, stdout: str, stderr: str, status: int, reason: Reason, words: str) -> None:
    for asked in ("getmem", "summary"):
        tool.behave(stdout, stderr=stderr, status=status, asked=asked)
    with pytest.raises(SourceError, match=words) as caught:
        registry.load("vastai").open()
    assert caught.value.reason == reason


def test_doctor_says_that_it_is_experimental(tool: CommandStandIn) -> None:
    del tool
    (finding,) = diagnose(backends=["vastai"]).backends
    assert "experimental: its names are known from one program alone" in finding.evidence


def test_what_a_program_sees() -> None:
    devices = [DeviceIdentity("npu", "vastai", number) for number in range(2)]
    assert visibility({"VASTAI_VISIBLE_DEVICES": "1"}, devices).order == (1,)


def test_fuzz() -> None:
    fuzz(backend, parse, document(memory(0), memory(1)))
    fuzz(backend, parse, document(summary(0), summary(1)), source="vasmi summary")
