"""Which keys a selection wants, what it leaves of a snapshot, and what it refuses."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from typing import Any

import pytest

from accelmetrics import Sampler
from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.schemas import catalogue
from accelmetrics.schemas.catalogue import CATALOGUE, coverage_of
from accelmetrics.schemas.catalogue.wandb import DOCUMENTED, EMITTED
from accelmetrics.schemas.errors import InvalidOptionError, Reason, Unavailable, UnknownNameError
from accelmetrics.schemas.metric import Metric
from accelmetrics.schemas.selection import PRESETS, MetricSelection, presets_of
from accelmetrics.schemas.vitals import EXPECTED_NAMES
from accelmetrics.testing import FakeBackend
from tests.schemas.samples import complete
from tests.support.waiting import HANG

KEYS = (
    *("gpu.0.powerWatts", "gpu.1.powerWatts", "gpu.0.temp", "gpu.0.mig.1.memoryTotalBytes", "gpu.process.0.temp", "gpu.0.smActive"),
    *("gpu.0.nvlinkTxBytesTotal", "gpu.0.nvlink.7.state", "npu.0.temp", "npu.0.dmaBytes", "cpu", "cpu.3.cpu_percent", "memory_percent"),
    *("gpu.0.uncorrectedMemoryErrors", "gpu.0.unCorrectedMemoryErrors", "disk./data.usageGB", "torch.0.memoryAllocatedBytes"),
)


def wanted(items: Any) -> list[str]:
    selection = MetricSelection(items)
    return [key for key in KEYS if selection.wants(key)]


@pytest.mark.parametrize(
    ("items", "keys"),
    [
        ("powerWatts", "gpu.0.powerWatts gpu.1.powerWatts"),
        ("gpu.0.powerWatts, cpu", "gpu.0.powerWatts cpu"),
        ("unCorrectedMemoryErrors", "gpu.0.unCorrectedMemoryErrors"),
        ("temp", "gpu.0.temp npu.0.temp"),
        ("process.temp", "gpu.process.0.temp"),
        ("gpu.process.*", "gpu.process.0.temp"),
        ("nvlink*", "gpu.0.nvlinkTxBytesTotal gpu.0.nvlink.7.state"),
        ("nvlink.7.state", "gpu.0.nvlink.7.state"),
        ("cpu.*", "cpu.3.cpu_percent"),
        ("gpu.1.*,disk./data.usageGB", "gpu.1.powerWatts disk./data.usageGB"),
        ("gpu.0.*,-nvlink*,-smActive,-*Errors", "gpu.0.powerWatts gpu.0.temp gpu.0.mig.1.memoryTotalBytes"),
        ("npu.0.neverHeardOf,xid.48.errors", ""),
    ],
)
def test_names_keys_and_patterns(items: str, keys: str) -> None:
    """A name is wanted of every device, a key of one, a pattern in either; what is excluded goes whatever chose it."""
    assert wanted(items) == keys.split()
    assert wanted(items.split(",")) == keys.split()


def test_with_exclusions_alone_the_rest_is_wanted() -> None:
    assert wanted("-gpu.*") == [key for key in KEYS if not key.startswith("gpu.")]
    assert wanted("-core,all") == wanted("-core") == [key for key in KEYS if key not in wanted("core")]


@pytest.mark.parametrize(
    ("items", "forms"),
    [
        ("powerWatts", "gpu.{i}.powerWatts"),
        (
            "gpu.1.powerWatts,gpu.2*,-gpu.1.powerWatts,-*nvlink*",
            "gpu.{i}.powerWatts gpu.{i}.temp gpu.{i}.mig.{i}.temp gpu.process.{i}.temp",
        ),
        ("nvlink.7.state", "gpu.{i}.nvlink.{link}.state"),
        ("gpu.2.temp,gpu.0.mig.3.temp,-gpu.2.temp", "gpu.{i}.temp gpu.{i}.mig.{i}.temp"),
        ("*,-gpu.*", ""),
        ("core,-powerWatts,-gpu.0.temp", "gpu.{i}.temp gpu.{i}.mig.{i}.temp"),
        ("standard,-process.*", "gpu.{i}.powerWatts gpu.{i}.temp gpu.{i}.mig.{i}.temp"),
        ("all", "gpu.{i}.powerWatts gpu.{i}.temp gpu.{i}.mig.{i}.temp gpu.process.{i}.temp gpu.{i}.nvlink.{link}.state"),
    ],
)
def test_keys_of_unknown_number(items: str, forms: str) -> None:
    """A form is wanted if a key of it may be, and is not if every key of it is excluded."""
    every = ["gpu.{i}.powerWatts", "gpu.{i}.temp", "gpu.{i}.mig.{i}.temp", "gpu.process.{i}.temp", "gpu.{i}.nvlink.{link}.state"]
    selection = MetricSelection(items)
    assert [form for form in every if selection.wants_some(form)] == [form for form in every if form in forms.split()]


def test_presets() -> None:
    """``standard`` leaves out detail and keeps what only a plug-in knows; aliases go with their row, partitions with their device."""
    assert wanted("all") == list(KEYS)
    assert [key for key in KEYS if key not in wanted("standard")] == ["gpu.0.smActive", "gpu.0.nvlink.7.state", "cpu.3.cpu_percent"]
    assert wanted("core") == ["gpu.0.powerWatts", "gpu.1.powerWatts", "gpu.0.temp", "gpu.0.mig.1.memoryTotalBytes", "npu.0.temp"]
    wandb = "gpu.0.powerWatts gpu.1.powerWatts gpu.0.temp gpu.process.0.temp gpu.0.smActive cpu memory_percent"
    errors = ("gpu.0.uncorrectedMemoryErrors", "gpu.0.unCorrectedMemoryErrors")
    assert wanted("wandb") == [*wandb.split(), *errors, "disk./data.usageGB"]


def test_core_is_the_same_few_of_every_device() -> None:
    """At most ten of a device, whatever its kind, and none of the host; some kernel drivers tell two."""
    core = [row for row in CATALOGUE if row.preset == "core"]
    for backend in BUILT_IN.keys() - {"host"}:
        covered = coverage_of(backend)
        given = [row.name for row in core if row.name in covered["devices"] or row.name in covered.get("machine", ())]
        assert 2 <= len(given) <= 10, (backend, given)
    assert not [row.key for row in core if row.key in coverage_of("host")["machine"]]


def test_wandb_has_what_its_tables_have() -> None:
    """Each of its keys is in the preset under that spelling, and each row of one is told to be in it."""
    selection = MetricSelection("wandb")
    for template in (*DOCUMENTED, *EMITTED):
        key = template.replace("{i}", "0").replace("{path}", "/x").replace("{device}", "sda").replace("{label}", "1mb")
        assert selection.wants(key), key
        row = catalogue.find(template)
        assert "wandb" in presets_of(row), row.key


def test_presets_of_a_row() -> None:
    rows = ("gpu.0.powerWatts", "gpu.0.fanSpeed", "gpu.0.smActive", "gpu.0.nvlink.7.state", "gpu.0.memoryTotalBytes")
    assert [presets_of(catalogue.find(key)) for key in rows] == [
        ("core", "wandb", "standard", "all"),
        ("wandb", "standard", "all"),
        ("wandb", "all"),
        ("all",),
        ("core", "standard", "all"),
    ]


def test_rows_of_plug_ins_are_names_and_standard(monkeypatch: pytest.MonkeyPatch) -> None:
    """A selection travels to a process that has not loaded the plug-in."""
    with pytest.raises(UnknownNameError, match="unknown metric or preset 'dmaPackets'"):
        MetricSelection("dmaPackets")
    catalogue.add([Metric("npu.{i}.dmaPackets", "1", "counter", "Packets that DMA moved.")])
    chosen = MetricSelection("dmaPackets")
    assert chosen.wants("npu.0.dmaPackets") and not chosen.wants("npu.0.temp")
    assert MetricSelection("standard").wants("npu.0.dmaPackets")
    monkeypatch.setattr(catalogue, "_added", {})
    assert pickle.loads(pickle.dumps(chosen)).wants("npu.1.dmaPackets")


@pytest.mark.parametrize(("items", "near"), [("powerWats", "powerWatts"), ("core,-nvlinkTxByte", "nvlinkTxBytes"), ("standrd", "standard")])
def test_what_no_metric_is_called_is_refused(items: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=f"Did you mean '{near}'"):
        MetricSelection(items)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("gpu.0.powerWats", "gpu.0.powerWatts"),
        ("-gpu.12.fanspeed", "gpu.12.fanSpeed"),
        ("gpu.process.0.tmp", "gpu.process.0.temp"),
        ("gpu.0.mig.1.smActve", "gpu.0.mig.1.smActive"),
        ("gpu.0.nvlink.7.stat", "gpu.0.nvlink.*.state"),
        ("npu.3.powerWatt", "npu.3.powerWatts"),
        ("tpu.0.dutyCicle", "tpu.0.dutyCycle"),
    ],
)
def test_a_misspelt_key_is_refused(key: str, near: str) -> None:
    """As a misspelt name is, with the key that was meant."""
    with pytest.raises(UnknownNameError, match=f"Did you mean '{re.escape(near)}'"):
        MetricSelection(f"core,{key}")


@pytest.mark.parametrize(
    "key",
    ["gpu.0.laneTemp", "npu.0.dmaBytes", "gpu.0.dutyCycle", "gpu.0.fanSpeedRpm", "dpu.0.powerWats", "gpu.0.powerWats*", "gpu.process.0.x"],
)
def test_a_key_that_a_plug_in_may_give_is_taken(key: str) -> None:
    """A name that is no metric's misspelt, a kind that only plug-ins have, and a pattern, which says that it is meant."""
    selection = MetricSelection(key)
    assert selection.wants(key.removesuffix("*"))


def test_a_plug_ins_own_row_is_no_misspelt_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_added", {})
    catalogue.add([Metric("gpu.{i}.hotspotTempp", "1", "gauge", "Something else.")])
    assert MetricSelection("gpu.0.hotspotTempp").wants("gpu.0.hotspotTempp")


def test_lists_of_processes_are_asked_for_by_their_word() -> None:
    """It has no key, and leaves the choice of keys as it is; only ``process.*`` can be excluded."""
    assert wanted("processes") == []
    assert wanted("core,processes") == wanted("core")
    for items in ("core", "-gpu.*", "standard,-nvlink*", "all"):
        chosen = MetricSelection(items)
        assert not chosen.processes
        assert chosen.with_processes().processes
        assert [key for key in KEYS if chosen.with_processes().wants(key)] == wanted(items)
        assert pickle.loads(pickle.dumps(chosen.with_processes())).processes
    with pytest.raises(UnknownNameError, match="'processes'"):
        MetricSelection("all,-processes")


@pytest.mark.parametrize("items", ["", " ", "core,", "-", [], ["core", ""], 5, ["core", 7], None, b"core"])
def test_what_is_no_list_of_items_is_refused(items: Any) -> None:
    with pytest.raises(InvalidOptionError, match="metrics is "):
        MetricSelection(items)


def test_equal_by_items() -> None:
    """A text, a list and another selection make the same one, which travels to another process."""
    made = [MetricSelection("core, -temp"), MetricSelection(["core", "-temp"]), MetricSelection(MetricSelection("core,-temp"))]
    assert len({*made, *pickle.loads(pickle.dumps(made))}) == 1
    assert made[0] != MetricSelection("core") and made[0] != "core,-temp"
    assert (str(made[0]), repr(made[0])) == ("core,-temp", "MetricSelection('core,-temp')")
    assert pickle.loads(pickle.dumps(made[0])).wants("gpu.0.powerWatts")


def test_a_selected_snapshot_has_wanted_metrics_and_reasons_alone() -> None:
    """Identities, backends and processes stay; ``all`` is the very object."""
    whole = complete()
    assert whole.selected(MetricSelection()) is whole.selected(MetricSelection("core,all")) is whole
    chosen = whole.selected(MetricSelection("fanSpeed,powerWatts"))
    assert chosen.metrics == {key: whole.metrics[key] for key in ("gpu.0.powerWatts", "gpu.1.powerWatts", "gpu.1.fanSpeed")}
    assert chosen.unavailable == whole.unavailable != whole.selected(MetricSelection("core")).unavailable == {}
    assert chosen == complete(metrics=chosen.metrics)
    assert [device.values.keys() for device in chosen.devices] == [{"powerWatts"}, {"powerWatts", "fanSpeed"}]


def test_keys_and_reasons_that_come_and_go_are_seen() -> None:
    """What is kept from the last snapshot is kept only while keys and reasons are the same."""
    selection = MetricSelection("core")
    gone = Unavailable(Reason.DEVICE_LOST)
    steps: list[tuple[dict[str, float], dict[str, Unavailable]]] = [
        ({"gpu.0.temp": 30, "cpu": 1}, {}),
        ({"gpu.0.temp": 31, "cpu": 2}, {}),
        ({"cpu": 2}, {"gpu.0.temp": gone, "gpu.0.fanSpeed": gone}),
        ({"cpu": 2, "gpu.0.temp": 31}, {}),
    ]
    found = [complete(metrics=metrics, unavailable=unavailable).selected(selection) for metrics, unavailable in steps]
    assert [one.metrics for one in found] == [{"gpu.0.temp": 30}, {"gpu.0.temp": 31}, {}, {"gpu.0.temp": 31}]
    assert [one.unavailable for one in found] == [{}, {}, {"gpu.0.temp": gone}, {}]
    again = complete(metrics={"gpu.0.temp": 5}, unavailable=steps[2][1])
    assert again.selected(selection).unavailable is again.selected(selection).unavailable


def test_all_loads_no_table() -> None:
    """A process that selects nothing does not pay for the catalogue."""
    code = "import sys; from accelmetrics.schemas.selection import MetricSelection as S; assert S().wants('x') and S().everything"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'accelmetrics.schemas.catalogue' not in sys.modules"], check=True, timeout=HANG)


def test_each_preset_is_described() -> None:
    assert list(PRESETS) == ["core", "wandb", "standard", "all"] and all(PRESETS.values())


@pytest.mark.parametrize("backend", [row.name for row in BUILT_IN.values() if row.kind is not None])
@pytest.mark.parametrize("spelling", range(2), ids=["python", "key"])
def test_common_names_select_on_every_vendor_in_both_spellings(backend: str, spelling: int) -> None:
    """Each gives a value or a reason, under the name that devices of the kind have for it."""
    generic = {row.name for row in CATALOGUE if row.device_part == "{kind}.{i}"}
    spelled = {attribute: next(name for name in names if name in generic) for attribute, names in EXPECTED_NAMES.items()}
    items = [attribute if spelling == 0 and attribute != "memory_percent" else key for attribute, key in spelled.items()]
    fake = FakeBackend(backend, kind=BUILT_IN[backend].kind, devices=2)
    given = set(coverage_of(backend)["devices"])
    for scripted in fake.all_devices():
        scripted.set(**dict.fromkeys(given, 1))
    with Sampler([fake], metrics=items) as sampler:
        snapshot = sampler.sample()
    for device in snapshot.devices:
        for attribute, names in EXPECTED_NAMES.items():
            assert set(device.values).isdisjoint(names) == given.isdisjoint(names), attribute
            assert not {*device.values, *device.unavailable}.isdisjoint(names), attribute
            assert (getattr(device.metrics, attribute) is None) == given.isdisjoint(names)
        assert {*device.values, *device.unavailable} <= {name for names in EXPECTED_NAMES.values() for name in names}


def test_attributes_names_select_as_keys_do() -> None:
    """Those of one vendor too; what is a whole key keeps its meaning."""
    assert MetricSelection("fan_speed").wants("gpu.0.fanSpeed")
    assert MetricSelection("-power_watts").wants("gpu.0.temp")
    assert not MetricSelection("-power_watts").wants("ipu.0.ipu power (W)")
    assert MetricSelection("temperature").wants_some("npu.{i}.temp")
    assert not MetricSelection("temperature").wants("gpu.process.0.temp")
    assert [MetricSelection("memory_percent").wants(key) for key in ("memory_percent", "gpu.0.memoryAllocated")] == [True, False]
    assert not MetricSelection("gpu").wants("tpu.0.dutyCycle")


def test_what_a_device_lacks_has_a_reason_where_it_was_asked_for_by_name() -> None:
    """Not where a pattern or a preset has it, or the key of another device; and none once it is given."""
    fake = FakeBackend(kind="npu", devices=2)
    fake.device(0).set(memory=1)
    with Sampler([fake], metrics=["temperature", "npu.1.fanSpeed", "power*", "core"]) as sampler:
        assert sorted(sampler.sample().unavailable) == ["npu.0.temp", "npu.1.fanSpeed", "npu.1.temp"]
        fake.device(0).set(temp=40)
        fake.device(1).lose()
        lost = sampler.sample()
    assert lost.metrics["npu.0.temp"] == 40
    assert {key: why.reason for key, why in lost.unavailable.items()} == dict.fromkeys(["npu.1.temp", "npu.1.fanSpeed"], "device_lost")


@pytest.mark.parametrize(
    ("backends", "metrics", "words"),
    [
        ("-host", "memory_percent", "which only the host has: backends= leaves the host out; that of devices is memoryAllocated"),
        ("-host", "cpu,powerWatts", "'cpu', which only the host has: backends= leaves the host out"),
        ("host", "power_watts", "'power_watts', which only devices have"),
        ("host", "gpu.0.powerWatts", "'gpu.0.powerWatts', which only devices have"),
    ],
)
def test_what_no_source_can_give_is_refused(backends: str, metrics: str, words: str) -> None:
    with pytest.raises(InvalidOptionError, match=re.escape(words)):
        Sampler(backends, metrics=metrics)


@pytest.mark.parametrize(
    ("backends", "metrics"), [("host", "core,cpu"), ("-host", "standard"), ("host", "power*"), ("-host", "-memory_percent")]
)
def test_presets_patterns_and_exclusions_may_give_nothing(backends: str, metrics: str) -> None:
    Sampler(backends, metrics=metrics)
