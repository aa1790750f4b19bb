"""Vastai cards, from a command that prints as ``vasmi`` does."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelmetrics.backends.vastai import backend, parse
from accelmetrics.schemas.errors import Reason
from accelmetrics.schemas.identity import DeviceIdentity
from tests.simulators.commands import CommandStandIn
from tests.simulators.vastai import document, memory, summary
from tests.support.fuzzing import fuzz
from tests.support.readings import read

GIB = 2**30


@pytest.fixture
def tool(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandStandIn:
    del root
    stand_in = CommandStandIn(tmp_path, "vasmi")
    monkeypatch.setenv("PATH", stand_in.path)
    stand_in.behave(document(memory(0), memory(1, "32 GiB", "Physical memory")), asked="getmem")
    stand_in.behave(document(summary(1, "50 W"), summary(0)), asked="summary")
    return stand_in


def test_every_metric_and_who_a_card_is(tool: CommandStandIn) -> None:
    """Documents are joined by the address, however many digits its domain has."""
    snapshot = read("vastai")
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
    snapshot = read("vastai")
    assert snapshot.unavailable["npu.0.powerWatts"].reason == reason
    assert snapshot.metrics["npu.1.powerWatts"] == 45.5


def test_one_document_that_fails_costs_only_its_own_values(tool: CommandStandIn) -> None:
    tool.behave('{"elem": null}', asked="summary")
    snapshot = read("vastai")
    assert snapshot.metrics["npu.0.memoryTotalBytes"] == 16 * GIB
    assert snapshot.unavailable["npu.0.powerWatts"].reason == Reason.PARSE_ERROR


def test_fuzz() -> None:
    fuzz(backend, parse, document(memory(0), memory(1)))
    fuzz(backend, parse, document(summary(0), summary(1)), source="vasmi summary")
