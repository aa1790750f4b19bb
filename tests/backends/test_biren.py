"""Biren GPUs, from a command that is queried as ``brsmi`` is."""

from __future__ import annotations

from pathlib import Path

import pytest

from accelmetrics.backends import registry
from accelmetrics.backends.biren import ASKED, backend
from accelmetrics.backends.kit import DeviceSample, rows
from accelmetrics.schemas.errors import Reason, SourceError
from accelmetrics.schemas.identity import DeviceIdentity
from accelmetrics.visibility.doctor import diagnose
from tests.simulators.biren import PROVEN, Brsmi, gpu
from tests.support.fuzzing import fuzz
from tests.support.readings import of, read

MIB = 2**20
VALUES = {
    "gpu": 63,
    "memoryTotalBytes": 32768 * MIB,
    "memoryAllocatedBytes": 1024 * MIB,
    "memoryFreeBytes": 31744 * MIB,
    "memoryAllocated": 3.125,
    "temp": 41,
    "powerWatts": 75.5,
    "enforcedPowerLimitWatts": 151,
    "powerPercent": 50,
}


@pytest.fixture
def tool(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Brsmi:
    del root
    made = Brsmi(tmp_path)
    monkeypatch.setenv("PATH", f"{made.directory}:/usr/bin:/bin")
    made.behave(gpu(1), gpu(0))
    return made


def test_every_metric_and_who_a_gpu_is(tool: Brsmi) -> None:
    del tool
    snapshot = read("biren")
    assert of(snapshot, 0) == VALUES
    assert snapshot.metrics["gpu.1.temp"] == 42
    assert snapshot.devices[0].identity == DeviceIdentity(
        "gpu",
        "biren",
        0,
        name="Biren106M",
        uuid="GPU-00000000",
        serial="BR000",
        pci_bus_id="0000:3b:00.0",
        memory_total_bytes=32768 * MIB,
    )


def test_fields_that_a_release_refuses_are_missing_in_its_words(tool: Brsmi) -> None:
    """Those that are proven are all that is left."""
    tool.behave(gpu(0), gpu(1), fields=PROVEN)
    snapshot = read("biren")
    assert of(snapshot, 0) == {name: VALUES[name] for name in ("memoryAllocatedBytes", "memoryFreeBytes", "temp")}
    assert 'refuses the field "power.draw"' in snapshot.unavailable["gpu.0.powerWatts"].detail


@pytest.mark.parametrize(
    ("field", "printed", "name", "reason"),
    [
        ("utilization_gpu", "63", "gpu", Reason.PARSE_ERROR),
        ("memory_used", "1024", "memoryAllocatedBytes", Reason.PARSE_ERROR),
        ("power_draw", "[N/A]", "powerWatts", Reason.NOT_SUPPORTED),
        ("temperature_gpu", "N/A", "temp", Reason.NOT_SUPPORTED),
        ("temperature_gpu", "65535", "temp", Reason.INVALID_VALUE),
    ],
)
def test_what_is_no_value(tool: Brsmi, field: str, printed: str, name: str, reason: Reason) -> None:
    tool.behave(gpu(0, **{field: printed}), gpu(1))
    snapshot = read("biren")
    assert snapshot.unavailable[f"gpu.0.{name}"].reason == reason
    assert of(snapshot, 1)["gpu"] == 63


@pytest.mark.parametrize(
    ("stderr", "reason"), [("Permission denied", Reason.NO_PERMISSION), ("brml: driver not loaded", Reason.DRIVER_ERROR)]
)
def test_why_it_does_not_open(tool: Brsmi, stderr: str, reason: Reason) -> None:
    tool.behave(stderr=stderr)
    with pytest.raises(SourceError, match=stderr) as caught:
        registry.load("biren").open()
    assert caught.value.reason == reason


def test_doctor_says_that_it_is_experimental(tool: Brsmi) -> None:
    del tool
    (finding,) = diagnose(backends=["biren"]).backends
    assert "experimental: half of its fields are named by analogy" in finding.evidence


def test_fuzz() -> None:
    printed = "".join(f"{', '.join(each[name] for name in ASKED)}\n" for each in (gpu(0), gpu(1)))
    fuzz(backend, lambda text: map(DeviceSample, rows(text, ASKED)), printed)
