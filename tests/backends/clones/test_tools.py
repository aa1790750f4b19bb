"""The vendors' tools, read where their libraries are missing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from accelmetrics import Sampler
from accelmetrics.backends import enflame, iluvatar, registry, thead
from accelmetrics.backends.contract import SYSTEM_CLOCK
from accelmetrics.backends.kit import DeviceSample, PolledBackend, rows
from accelmetrics.schemas.errors import SourceError
from tests.backends.clones import tools
from tests.backends.clones.tools import MIB
from tests.support.fuzzing import fuzz
from tests.support.waiting import sampled, wait_for

NAMES = {"iluvatar": "ixsmi", "thead": "ppu-smi", "enflame": "efsmi"}
VALUES: Mapping[str, Mapping[str, float]] = {
    "iluvatar": {
        **{"gpu.1.gpu": 31, "gpu.1.memory": 12, "gpu.1.temp": 41, "gpu.1.memoryTemp": 38, "gpu.1.powerWatts": 61},
        **{"gpu.1.enforcedPowerLimitWatts": 205, "gpu.1.memoryTotalBytes": 32768 * MIB, "gpu.1.memoryAllocatedBytes": 1024 * MIB},
        **{"gpu.1.smClock": 1500, "gpu.1.memoryClock": 1600, "gpu.1.correctedEccErrors": 3, "gpu.1.uncorrectedEccErrors": 0},
        **{"gpu.1.pcieLinkGen": 4, "gpu.1.pcieLinkWidth": 16, "gpu.1.performanceState": 0, "gpu.1.eccMode": 1},
        **{"gpu.0.boardPowerWatts": 153, "gpu.1.computeMode": 3},
    },
    "thead": {
        **{"gpu.1.gpu": 31, "gpu.1.memory": 12, "gpu.1.temp": 41, "gpu.1.powerWatts": 61, "gpu.1.enforcedPowerLimitWatts": 400},
        **{"gpu.1.memoryTotalBytes": 98304 * MIB, "gpu.1.memoryAllocatedBytes": 1024 * MIB, "gpu.1.smClock": 1500},
    },
    "enflame": {
        **{"npu.1.utilization": 31, "npu.1.temp": 41, "npu.1.powerWatts": 61, "npu.1.enforcedPowerLimitWatts": 300},
        **{"npu.1.memoryTotalBytes": 42976 * MIB, "npu.1.memoryAllocatedBytes": 1024 * MIB, "npu.1.memoryClock": 8000},
        **{"npu.1.pcieLinkGen": 5, "npu.1.pcieLinkWidth": 16},
    },
}
Behave = Callable[..., None]


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def behave(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Behave:
    """Makes the vendor's tool print something from its next run on."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ACCELMETRICS_SYSROOT", str(tmp_path))

    def change(*numbers: int, text: str | None = None, program: str = "", table: bool = False, old: bool = False, **changes: str) -> None:
        if text is not None:
            code = f"print({text!r})"
        elif program:
            code = program
        elif name == "thead":
            code = tools.ppu_smi(*numbers, **changes)
        else:
            printed = tools.ixsmi(*numbers, **changes) if name == "iluvatar" else tools.efsmi(*numbers, old=old, **changes)
            code = f"import sys; print({printed!r})"
            if table:
                code = f"import sys; print({tools.efsmi_table(*numbers)!r} if not sys.argv[1:] else 'unknown option -q')"
        draft = tmp_path / "draft"
        draft.write_text(f"#!{sys.executable} -IS\n{code}\n", encoding="utf-8")
        draft.chmod(0o755)
        draft.rename(tmp_path / NAMES[name])

    change(0, 1)
    return change


@pytest.fixture
def sampler(name: str, behave: Behave) -> Iterator[Sampler]:
    """One of the tool alone."""
    backend = getattr(registry.load(name), "pinned")(NAMES[name])  # noqa: B009
    with Sampler([backend], clock=SYSTEM_CLOCK, timeout=30.0) as made:
        yield made


def test_values(sampler: Sampler, name: str) -> None:
    snapshot = sampler.sample()
    assert {key: snapshot.metrics[key] for key in VALUES[name]} == VALUES[name]
    assert [slot.identity.vendor_index for slot in snapshot.identities] == [0, 1]
    assert len({slot.identity.uuid for slot in snapshot.identities} - {""}) == 2
    assert snapshot.identities[0].identity.pci_bus_id
    assert snapshot.backends[0].source.startswith(NAMES[name])


def test_rows_in_another_order_are_the_same_devices(sampler: Sampler, name: str, behave: Behave) -> None:
    behave(1, 0)
    assert VALUES[name].items() <= sampler.sample().metrics.items()


def test_where_the_library_is_missing_the_tool_is_read(name: str, behave: Behave, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: str) -> None:
        raise OSError(f"{path}: cannot open shared object file: No such file or directory")

    monkeypatch.setattr("accelmetrics.backends.nvidia.nvml.load_library", refuse)
    behave(0)
    driver = registry.load(name).open()
    assert driver.source.startswith(NAMES[name])
    driver.close()
    behave(text="")
    with pytest.raises(SourceError) as caught:
        registry.load(name).open()
    assert "LD_LIBRARY_PATH" in caught.value.advice
    assert f"check whether {NAMES[name]} lists any" in caught.value.advice


@pytest.mark.parametrize("nothing", ["N/A", "[N/A]", "[Not Supported]", "-", "Unknown"])
def test_a_value_that_is_not_there_is_a_reason(sampler: Sampler, name: str, behave: Behave, nothing: str) -> None:
    field = {"thead": {"power.draw": nothing, "power.limit": nothing}}.get(name, {"power": nothing, "limit": nothing})
    behave(0, 1, **field)
    snapshot, kind = sampler.sample(), "npu" if name == "enflame" else "gpu"
    for metric in ("powerWatts", "enforcedPowerLimitWatts", "powerPercent"):
        assert f"{kind}.0.{metric}" not in snapshot.metrics
        assert snapshot.unavailable[f"{kind}.0.{metric}"].reason in ("not_supported", "parse_error")
    assert snapshot.metrics[f"{kind}.0.temp"] == 40


@pytest.mark.parametrize("degrees", ["65535 C", "-300 C"])
def test_an_impossible_value_is_a_reason(sampler: Sampler, name: str, behave: Behave, degrees: str) -> None:
    behave(0, 1, **{"temperature.ppu" if name == "thead" else "temp": degrees})
    snapshot, kind = sampler.sample(), "npu" if name == "enflame" else "gpu"
    assert snapshot.unavailable[f"{kind}.0.temp"].reason in ("invalid_value", "parse_error")


@pytest.mark.parametrize("text", ["", "segmentation fault", "<gpu", "{}", "\x00\x01\x02"])
def test_garbage_is_no_device(name: str, behave: Behave, text: str) -> None:
    behave(text=text)
    with pytest.raises(SourceError) as caught:
        getattr(registry.load(name), "pinned")(NAMES[name]).open()  # noqa: B009
    assert caught.value.reason in ("parse_error", "driver_error")
    assert f"check whether {NAMES[name]} lists any" in caught.value.advice


def test_a_tool_that_this_user_may_not_ask(name: str, behave: Behave) -> None:
    behave(program="import sys; sys.exit('permission denied')")
    with pytest.raises(SourceError) as caught:
        getattr(registry.load(name), "pinned")(NAMES[name]).open()  # noqa: B009
    assert caught.value.reason == "no_permission"


def test_a_device_that_goes_is_lost_and_comes_back(sampler: Sampler, name: str, behave: Behave) -> None:
    kind = "npu" if name == "enflame" else "gpu"
    sampler.sample()
    behave(1)
    lost = sampled(sampler, lambda seen: f"{kind}.0.temp" not in seen.metrics)
    assert lost.unavailable[f"{kind}.0.temp"].reason == "device_lost"
    assert lost.metrics[f"{kind}.1.temp"] == 41
    behave(0, 1)
    assert wait_for(lambda: sampler.sample().metrics.get(f"{kind}.0.temp")) == 40


def test_a_tool_that_hangs_is_ended(name: str, behave: Behave) -> None:
    behave(program="import time; time.sleep(600)")
    with pytest.raises(SourceError) as caught:
        getattr(registry.load(name), "pinned")(NAMES[name]).open()  # noqa: B009
    assert caught.value.reason == "timed_out"


@pytest.mark.parametrize("name", ["iluvatar", "enflame"], indirect=True)
def test_of_output_that_is_cut_the_whole_devices_are_read(name: str, sampler: Sampler, behave: Behave) -> None:
    printed = tools.ixsmi(0, 1) if name == "iluvatar" else tools.efsmi(0, 1)
    behave(text=printed[: printed.rindex("Temp" if name == "enflame" else "<clocks>")])
    snapshot, kind = sampler.sample(), "npu" if name == "enflame" else "gpu"
    assert snapshot.metrics[f"{kind}.0.temp"] == 40
    assert f"{kind}.1.temp" not in snapshot.metrics


@pytest.mark.parametrize("name", ["thead"], indirect=True)
def test_a_release_with_other_names_of_fields(sampler: Sampler, behave: Behave, name: str) -> None:
    """Fields that it refuses are left out, and those that it has are read."""
    renamed = {"utilization.gpu": "55 %", "temperature.gpu": "66", "clocks.current.sm": "1111 MHz", "clocks.max.sm": "1700 MHz"}
    behave(0, 1, **renamed)
    assert sampler.sample().metrics["gpu.0.maxSmClock"] == 1700
    assert thead.TOOL.name == name


@pytest.mark.parametrize("name", ["enflame"], indirect=True)
def test_memory_of_driver_1_2(sampler: Sampler, behave: Behave, name: str) -> None:
    behave(0, 1, old=True)
    assert sampler.sample().metrics[f"npu.1.{'memoryAllocatedBytes' if name else ''}"] == 1024 * MIB


@pytest.mark.parametrize("name", ["enflame"], indirect=True)
def test_a_release_that_prints_its_table_alone(behave: Behave, name: str) -> None:
    """The number under Mem is what there is, not what is in use."""
    behave(0, 1, table=True)
    with Sampler([name], clock=SYSTEM_CLOCK, timeout=30.0) as sampler:
        snapshot = sampler.sample()
    names = ("utilization", "temp", "powerWatts", "enforcedPowerLimitWatts", "memoryTotalBytes", "eccMode")
    assert [snapshot.metrics[f"npu.1.{each}"] for each in names] == [31, 41, 61, 300, 147456 * MIB, 1]
    assert snapshot.identities[1].identity.firmware == "40.2.8.3"
    assert "npu.1.memoryAllocatedBytes" not in snapshot.metrics
    assert (snapshot.identities[1].identity.name, name) == ("Enflame L300", "enflame")


def _ppus(text: str) -> Iterator[DeviceSample]:
    return map(DeviceSample, rows(text))


@pytest.mark.parametrize(
    ("tool", "source", "parse", "sample"),
    [
        (iluvatar.TOOL, "", iluvatar.parse, tools.ixsmi(0, 1)),
        (enflame.TOOL, "", enflame.parse, tools.efsmi(0, 1)),
        (enflame.TOOL, "efsmi-table", enflame.parse_table, tools.efsmi_table(0, 1)),
        (thead.TOOL, "", _ppus, f"{','.join(tools.PPU)}\n{','.join(tools.PPU.values())}\n".replace("{n}", "0")),
    ],
    ids=["ixsmi", "efsmi", "efsmi-table", "ppu-smi"],
)
def test_fuzz(tool: PolledBackend, source: str, parse: Callable[[str], Iterator[DeviceSample]], sample: str) -> None:
    fuzz(tool, parse, sample, source=source)
