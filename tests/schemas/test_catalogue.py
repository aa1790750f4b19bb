from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections import defaultdict

import pytest

from accelmetrics.backends.built_in import BUILT_IN
from accelmetrics.schemas.catalogue import (
    CATALOGUE,
    SECTIONS,
    add,
    coverage_of,
    expected_keys,
    expected_names,
    find,
    given_by,
    match,
    recognise,
    resolve,
)
from accelmetrics.schemas.coverage import KINDS
from accelmetrics.schemas.errors import UnknownNameError
from accelmetrics.schemas.metric import BASE_UNITS, Metric, device_key, field_of, is_kind, name_of, split_series

PER_SECOND_BY_TRADITION = {"pcieTxBytes", "pcieRxBytes", "nvlinkTxBytes", "nvlinkRxBytes"}
UNSOURCED = {
    *("{kind}.{i}.pcieLinkSpeed", "wandb.memory.rssMB"),  # W&B's, described for documents that carry them
    # Given by a monitor in the program.
    *(f"torch.{{i}}.memory{name}" for name in ("AllocatedBytes", "ReservedBytes", "PeakBytes", "Fragmentation")),
}

# Derivable from other series, or told per process with labels of its own.
WITHOUT_PROMETHEUS = {
    *("{kind}.{i}.memoryAllocated", "gpu.{i}.memoryReadWriteActivity", "{kind}.{i}.powerPercent", "wandb.memory.rssMB"),
    *("proc.memory.rssBytes", "disk.{device}.readBps", "disk.{device}.writeBps", "ib.{port}.rxBps", "ib.{port}.txBps"),
    *("network.sentBps", "network.recvBps", "tpu.{i}.hbmMemoryUsage"),
}
AMD_NAMES = """gpu memory memoryReadWriteActivity memoryAllocated memoryAllocatedBytes memoryTotalBytes memoryFreeBytes memoryOverDrive
    temp memoryTemp hotspotTemp tempLimit.slowdown tempLimit.shutdown powerWatts enforcedPowerLimitWatts powerPercent fanSpeed smClock
    memoryClock maxSmClock maxMemoryClock energyJoules correctedMemoryErrors uncorrectedMemoryErrors unCorrectedMemoryErrors
    throttled throttle.swPowerCap throttle.swThermalSlowdown throttle.hwThermalSlowdown throttle.currentLimit pcieLinkGen pcieLinkWidth
    maxPcieLinkGen maxPcieLinkWidth pcieReplays xgmiTxBytesTotal xgmiRxBytesTotal"""
# What W&B's collector emits for an H100, and what its documentation lists besides.
WANDB_GPU_NAMES = """gpu memory memoryAllocated memoryAllocatedBytes temp powerWatts enforcedPowerLimitWatts powerPercent energyJoules
    smClock memoryClock correctedMemoryErrors uncorrectedMemoryErrors smActive smOccupancy dramActive pipeTensorActive
    pipeTensorHmmaActive pipeFp64Active pipeFp32Active pipeFp16Active pcieTxBytes pcieRxBytes nvlinkTxBytes nvlinkRxBytes fanSpeed
    unCorrectedMemoryErrors graphicsClock encoderUtilization"""
WANDB_HOST_KEYS = """cpu disk./.usageGB disk./.usagePercent disk.sda.in disk.sda.out disk.in disk.out memory_percent network.recv
    network.sent network.tcpRetransmits proc.cpu.threads proc.memory.availableMB proc.memory.percent proc.memory.rssMB cpu.0.cpu_percent
    swap.used_percent proc.cpu.throttledPercent proc.memory.oomKills wandb.memory.rssMB cpu.avg_temp cpu.powerWatts"""
PROCESS_NAMES = "gpu memory memoryAllocated memoryAllocatedBytes temp powerWatts enforcedPowerLimitWatts powerPercent"

rows = pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.key)


def test_no_spelling_is_used_twice() -> None:
    spellings = [spelling for row in CATALOGUE for spelling in (row.key, *row.aliases)]
    assert len(spellings) == len(set(spellings))


def test_sections_hold_each_row_once() -> None:
    assert [row for section in SECTIONS for row in section.rows] == list(CATALOGUE)


@rows
def test_each_row_is_complete(row: Metric) -> None:
    assert re.fullmatch(r"[A-Z1][^\n|]*\.", row.meaning), "one sentence that begins with a capital and ends with a full stop"
    assert row.meaning.count(". ") == 0
    assert bool(given_by().get(row.key)) == (row.key not in UNSOURCED)
    assert bool(row.prometheus) == (row.key not in WITHOUT_PROMETHEUS and not row.of_process)
    assert all(name_of(alias) != row.name for alias in row.aliases)


@pytest.mark.parametrize("backend", sorted(BUILT_IN))
def test_everything_that_a_backend_gives_is_described(backend: str) -> None:
    """Each name of its coverage has a row, words, and the other spellings of that row beside it."""
    kind = KINDS[backend]
    assert kind == (BUILT_IN[backend].kind or "")
    for part, names in coverage_of(backend).items():
        assert names
        head = "" if part == "machine" else f"{kind}.process.0." if part == "processes" else f"{kind}.0."
        for name, words in names.items():
            row = match(head + name) or match(name)
            assert row is not None, name
            assert words.strip()
            assert set(row.names) <= set(names), "every spelling is given"
            assert part != "partitions" or name in coverage_of(backend)["devices"]


@rows
def test_each_row_has_sound_bounds(row: Metric) -> None:
    assert row.minimum is not None
    if row.unit != "Cel":
        assert row.minimum >= 0
    assert row.maximum is None or row.minimum < row.maximum
    if row.kind == "counter":
        assert (row.minimum, row.maximum) == (0, None)


@rows
def test_bytes_are_bytes(row: Metric) -> None:
    for name in row.names:
        if name.endswith("Bytes"):
            assert row.unit == ("By/s" if name in PER_SECOND_BY_TRADITION else "By")
        if name.endswith("BytesTotal"):
            assert (row.unit, row.kind) == ("By", "counter")
    if row.unit == "By":
        assert row.integer


@rows
def test_units_stand_in_the_names(row: Metric) -> None:
    units = {"Watts": "W", "Percent": "%", "Joules": "J", "MB": "MiBy", "GB": "GiBy", "Bps": "By/s", "Clock": "MHz", "Temp": "Cel"}
    for suffix, unit in units.items():
        if row.key.endswith(suffix):
            assert row.unit == unit


def test_per_second_keys_have_no_counter_of_the_same_name() -> None:
    for name in PER_SECOND_BY_TRADITION:
        counter = find(f"gpu.0.{name}Total")
        assert counter.kind == "counter"
        assert find(f"gpu.0.{name}").kind == "gauge"


# Prometheus and OpenTelemetry

SUFFIXES = {
    "%": ("_ratio", 0.01),
    "By": ("_bytes", 1),
    "By/s": ("_bytes_per_second", 1),
    "MiBy": ("_bytes", 2**20),
    "GiBy": ("_bytes", 2**30),
    "W": ("_watts", 1),
    "J": ("_joules", 1),
    "Cel": ("_celsius", 1),
    "MHz": ("_hertz", 1e6),
    "s": ("_seconds", 1),
    "us": ("_seconds", 1e-6),
    "Mbit/s": ("_bytes_per_second", 125_000),
    "GT/s": ("_transfers_per_second", 1e9),
    "rpm": ("_rpm", 1),
}
UNIT_SUFFIXES = tuple(suffix for suffix, _ in SUFFIXES.values())
# What promtool's linter objects to.
ABBREVIATIONS = "ms s us ns sec b kb mb gb tb pb m h d percent mhz ghz mw c w j"
METRIC_TYPES = {"counter", "gauge", "histogram", "summary", "info"}
RESERVED_ENDINGS = ("_count", "_sum", "_bucket", "_info")


@pytest.mark.parametrize("row", [row for row in CATALOGUE if row.prometheus], ids=lambda row: row.key)
def test_prometheus_names_pass_the_linter(row: Metric) -> None:
    name, labels = split_series(row.prometheus)
    assert re.fullmatch(r"accel_[a-z0-9]+(_[a-z0-9]+)*", name)
    assert not ({*ABBREVIATIONS.split()} | METRIC_TYPES) & set(name.split("_"))
    assert not name.endswith(RESERVED_ENDINGS)
    assert name.endswith("_total") == (row.kind == "counter")
    assert all(re.fullmatch(r"[a-z_]+", label) and label not in ("instance", "job", "accelerator", "uuid") for label in labels)
    if row.unit == "1":
        assert not name.removesuffix("_total").endswith(UNIT_SUFFIXES)
    else:
        suffix, factor = SUFFIXES[row.unit]
        assert name.removesuffix("_total").endswith(suffix)
        assert BASE_UNITS[row.unit].times / BASE_UNITS[row.unit].over == pytest.approx(factor)
        assert BASE_UNITS[row.unit].suffix == suffix


@pytest.mark.parametrize("attribute", ["prometheus", "otel"])
def test_two_rows_never_share_a_series(attribute: str) -> None:
    series = [(row.device_part, getattr(row, attribute)) for row in CATALOGUE if getattr(row, attribute)]
    assert len(series) == len(set(series))


@pytest.mark.parametrize("attribute", ["prometheus", "otel"])
def test_series_of_one_name_agree(attribute: str) -> None:
    """The same kind, unit and labels, so that a sum over the name means something."""
    seen: dict[str, set[tuple[object, ...]]] = defaultdict(set)
    for row in CATALOGUE:
        if series := getattr(row, attribute):
            name, labels = split_series(series)
            base = SUFFIXES.get(row.unit, ("", 1))[0]
            seen[name].add((row.kind, base, tuple(labels) if attribute == "prometheus" else None))
    assert {name: shapes for name, shapes in seen.items() if len(shapes) > 1} == {}


@pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.key)
def test_placeholders_become_labels(row: Metric) -> None:
    """An instance that is not a device is a label; else two disks would be one series."""
    held = set(re.findall(r"\{\w+\}", row.name)) - ({"{i}"} if row.key.startswith("torch.") else set())
    for series in filter(None, (row.prometheus, row.otel if held else "")):
        assert set(split_series(series)[1].values()) & {"{i}", "{path}", "{device}", "{port}", "{label}", "{link}", "{code}"} == held


# Look-ups


def test_the_number_of_a_link_is_told() -> None:
    assert [getattr(resolve(key), "instance", None) for key in ("gpu.3.nvlink.17.state", "gpu.3.temp")] == ["17", ""]
    assert [resolve(key) for key in ("gpu.3.nvlink.x.state", "gpu.3.nvlink.1.other", "gpu.3.mig.x.smActive", "gpu.3.mig.1")] == [None] * 4


def test_every_key_of_wandb_is_there() -> None:
    for name in WANDB_GPU_NAMES.split():
        assert name in expected_names("nvidia")
    for key in WANDB_HOST_KEYS.split():
        assert match(key), key


def test_amd_gives_exactly_what_its_sources_have() -> None:
    assert sorted(expected_names("amd")) == sorted(AMD_NAMES.split())


def test_process_keys_are_the_eight() -> None:
    """As W&B has them; devices that are no GPUs have ``utilization`` in place of ``gpu``."""
    assert sorted(coverage_of("nvidia")["processes"]) == sorted(PROCESS_NAMES.split())
    assert sorted(row.name for row in CATALOGUE if row.of_process) == sorted([*PROCESS_NAMES.split(), "utilization"])


@pytest.mark.parametrize("backend", sorted(BUILT_IN))
def test_expected_names_are_owed_at_every_reading(backend: str) -> None:
    names, keys = expected_names(backend), expected_keys(backend)
    owed = (*names, *keys)
    assert len(owed) == len(set(owed)) > 0
    assert not [name for name in owed if "{" in name]
    assert (not names) == (backend == "host"), "the host has no devices"


def test_a_partition_owes_what_partitions_have() -> None:
    shares = {name for name in expected_names("nvidia") if name.startswith(("pipe", "sm", "dram", "grEngine")) and name != "smClock"}
    memory = {"memoryAllocated", "memoryAllocatedBytes", "memoryTotalBytes", "memoryFreeBytes"}
    assert set(expected_names("nvidia", True)) == shares | memory
    assert expected_names("graphcore", True) == ()


def test_an_unknown_backend_owes_nothing() -> None:
    assert expected_names("acme") == expected_keys("acme") == ()


@pytest.mark.parametrize(
    ("key", "template", "device", "instance", "alias"),
    [
        ("gpu.3.powerWatts", "{kind}.{i}.powerWatts", "gpu.3", "", False),
        ("npu.3.powerWatts", "{kind}.{i}.powerWatts", "npu.3", "", False),
        ("dpu2.3.powerWatts", "{kind}.{i}.powerWatts", "dpu2.3", "", False),
        ("gpu.3.gpu", "gpu.{i}.gpu", "gpu.3", "", False),
        ("tpu.3.dutyCycle", "tpu.{i}.dutyCycle", "tpu.3", "", False),
        ("gpu.12.tempLimit.slowdown", "{kind}.{i}.tempLimit.slowdown", "gpu.12", "", False),
        ("hpu.0.unCorrectedMemoryErrors", "{kind}.{i}.uncorrectedMemoryErrors", "hpu.0", "", True),
        ("tpu.8.memoryUsage", "tpu.{i}.hbmMemoryUsage", "tpu.8", "", True),
        ("gpu.process.3.temp", "{kind}.process.{i}.temp", "gpu.3", "", False),
        ("gpu.process.3.gpu", "gpu.process.{i}.gpu", "gpu.3", "", False),
        ("cpu", "cpu", "", "", False),
        ("cpu.7.cpu_percent", "cpu.{i}.cpu_percent", "", "7", False),
        ("disk./.usagePercent", "disk.{path}.usagePercent", "", "/", False),
        ("disk./mnt/a.b/c.usageGB", "disk.{path}.usageGB", "", "/mnt/a.b/c", False),
        ("disk.in", "disk.in", "", "", False),
        ("disk.nvme0n1.in", "disk.{device}.in", "", "nvme0n1", False),
        ("torch.2.memoryAllocatedBytes", "torch.{i}.memoryAllocatedBytes", "gpu.2", "2", False),
        ("trn.device.1.mem_ecc_corrected", "trn.device.{i}.mem_ecc_corrected", "", "1", False),
        ("gpu.{i}.temp", "{kind}.{i}.temp", "gpu.{i}", "", False),
        ("{kind}.{i}.temp", "{kind}.{i}.temp", "{kind}.{i}", "", False),
        ("gpu.0.mig.12.memoryAllocatedBytes", "{kind}.{i}.memoryAllocatedBytes", "gpu.0.mig.12", "", False),
        ("gpu.3.nvlink.17.state", "gpu.{i}.nvlink.{link}.state", "gpu.3", "17", False),
        ("gpu.3.xid.79.errors", "gpu.{i}.xid.{code}.errors", "gpu.3", "79", False),
    ],
)
def test_concrete_keys_are_recognised(key: str, template: str, device: str, instance: str, alias: bool) -> None:
    found = resolve(key)
    assert found is not None
    assert (found.row.key, found.device, found.instance, found.alias) == (template, device, instance, alias)
    assert match(key) is found.row is find(key)


OTHER_KEYS = """gpu gpu. gpu.0 gpu.0. gpu..temp gpu.x.temp gpu.-1.temp gpu.².temp gpu.0.nothing
    tpu.0.gpu npu.0.gpu npu.0.nvlinkTxBytes cpu.0.temp disk.0.temp Gpu.0.temp g-pu.0.temp gpu.process.0
    gpu.process.0.smClock gpu.process.temp cpu.x.cpu_percent disk disk..in disk./.usage Cpu"""


@pytest.mark.parametrize("key", OTHER_KEYS.split())
def test_other_keys_are_not(key: str) -> None:
    assert resolve("") is None
    assert resolve(key) is None
    assert match(key) is None


@rows
def test_every_row_recognises_its_own_keys(row: Metric) -> None:
    for spelling in (row.key, *row.aliases):
        key = spelling.replace("{i}", "5").replace("{path}", "/data").replace("{device}", "sdb").replace("{label}", "64mb")
        for kind in ("gpu", "npu") if "{kind}" in key else ("",):
            assert match(key.replace("{kind}", kind)) is match(spelling) is row


def test_an_unknown_key_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'gpu\.0\.powerWats'.*Did you mean 'gpu\.\{i\}\.powerWatts'"):
        find("gpu.0.powerWats")


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("powerWatts", "power_watts"),
        ("tempLimit.slowdown", "temp_limit_slowdown"),
        ("proc.memory.rssMB", "proc_memory_rss_mb"),
        ("usageGB", "usage_gb"),
        ("pipeFp64Active", "pipe_fp64_active"),
        ("bar1UsedBytes", "bar1_used_bytes"),
        ("swap.used_percent", "swap_used_percent"),
    ],
)
def test_fields_are_snake_case(name: str, field: str) -> None:
    assert field_of(name) == field


def test_names_leave_the_device_out_and_nothing_else() -> None:
    assert name_of("gpu.{i}.powerWatts") == "powerWatts"
    assert name_of("gpu.process.{i}.temp") == "temp"
    assert name_of("cpu.{i}.cpu_percent") == "cpu.{i}.cpu_percent"
    assert name_of("disk.{device}.in") == "disk.{device}.in"
    assert name_of("cpu") == "cpu"


def test_devices_of_any_kind_have_what_every_kind_may_have() -> None:
    """And nothing that one other kind alone has."""
    for kind in ("npu", "hpu", "dpu", "tpu"):
        for name in ("powerWatts", "memoryAllocatedBytes", "utilization", "unCorrectedMemoryErrors"):
            assert find(f"{kind}.3.{name}").device_part == "{kind}.{i}"
        assert find(f"{kind}.process.3.memoryAllocated").of_process
        for name in ("gpu", "nvlinkTxBytes", "wafers", "process.memory"):
            assert resolve(f"{kind}.3.{name}") is None


def test_the_first_word_of_other_keys_is_no_kind_of_device() -> None:
    """The words that numbers and names of other things follow are those that the tables have."""
    heads = {row.key.partition(".")[0] for row in CATALOGUE if row.templated and not row.device_part and row.key.split(".")[1][0] == "{"}
    kinds = {row.key.partition(".")[0] for row in CATALOGUE if row.device_part} - {"{kind}"}
    assert {head for head in heads if not is_kind(head)} == {"cpu", "disk", "ib", "torch"} == heads
    assert kinds == {"gpu", "tpu", "trn", "ipu"}
    assert all(map(is_kind, (*kinds, "npu", "hpu", "dpu", "x86")))
    assert not any(map(is_kind, ("", "GPU", "my gpu", "gpu.0", "a_b", "7up", "gpü", None, 3)))


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("gpu.0.temp", ("gpu.0", "gpu", "temp", False)),
        ("npu.12.tempLimit.slowdown", ("npu.12", "npu", "tempLimit.slowdown", False)),
        ("gpu.0.mig.1.smActive", ("gpu.0.mig.1", "gpu", "smActive", False)),
        ("gpu.0.mig.x.smActive", ("gpu.0", "gpu", "mig.x.smActive", False)),
        ("gpu.process.0.temp", ("gpu.0", "gpu", "temp", True)),
        ("gpu.0", None),
        ("gpu.0.", None),
        ("cpu.0.cpu_percent", None),
        ("memory_percent", None),
    ],
)
def test_keys_of_devices_are_taken_apart(key: str, parts: object) -> None:
    assert device_key(key) == parts


# Rows of plug-ins


def test_a_plug_in_s_rows_are_found_and_named() -> None:
    """Under any spelling; names in other systems follow from the key and the unit where the row has none."""
    pump = Metric("npu.{i}.pumpPower", "W", "gauge", "Power of the pump.", aliases=("npu.{i}.pump_power",))
    moved = Metric("{kind}.{i}.dmaBytesTotal", "By", "counter", "Bytes moved by DMA.", integer=True)
    busy = Metric("npu.{i}.coreBusyPercent", "%", "gauge", "Share of busy cores.", prometheus="accel_npu_cores_ratio", maximum=100)
    rack = Metric("rack.flow", "1", "gauge", "Litres a minute.")
    assert resolve("npu.0.pumpPower") is None
    add([pump, moved, busy, rack])
    found = resolve("npu.3.pump_power")
    assert found is not None
    assert (found.row.key, found.device, found.alias) == (pump.key, "npu.3", True)
    assert (found.row.prometheus, found.row.otel) == ("accel_pump_power_watts", "accel.pump_power")
    assert find("dpu.0.dmaBytesTotal").prometheus == "accel_dma_bytes_total"
    assert find("npu.0.coreBusyPercent").prometheus == "accel_npu_cores_ratio"
    assert find("rack.flow").prometheus == "accel_rack_flow"


def test_a_plug_in_cannot_change_what_a_key_means() -> None:
    add([Metric("npu.{i}.powerWatts", "1", "gauge", "Horse power."), Metric("gpu.{i}.temp", "1", "gauge", "Kelvin.")])
    add([Metric("npu.{i}.horses", "1", "gauge", "Horse power.", aliases=("npu.{i}.memoryTotalBytes",))])
    assert [find(key).unit for key in ("npu.0.powerWatts", "gpu.0.temp", "npu.0.memoryTotalBytes")] == ["W", "Cel", "By"]
    assert resolve("npu.0.horses") is None


def test_a_row_that_a_plug_in_has_changed_counts_as_it_is_now() -> None:
    """What was remembered of the key before is forgotten."""
    key = "npu.1.fill"
    assert recognise(key) is not None
    for meaning in ("Before.", "After."):
        add([Metric("npu.{i}.fill", "%", "gauge", meaning)])
        found = recognise(key)
        assert found is not None
        assert found.row.meaning == meaning


def test_a_device_s_key_that_nothing_describes_is_a_plain_number() -> None:
    found = recognise("npu.0.fooBar")
    assert found is not None
    assert (found.device, found.row.prometheus, found.row.otel, found.row.unit) == ("npu.0", "accel_foo_bar", "accel.foo_bar", "1")
    assert not found.row.meaning
    assert [recognise(key) for key in ("npu.process.0.fooBar", "fooBar", "rack.flow2")] == [None] * 3


def test_rows_travel_to_a_child_process() -> None:
    bare = Metric("gpu.{i}.own", "1", "gauge", "A plug-in's own.")
    assert pickle.loads(pickle.dumps((*CATALOGUE, bare))) == (*CATALOGUE, bare)


def test_importing_the_catalogue_and_the_snapshot_loads_nothing_heavy() -> None:
    code = (
        "import sys; import accelmetrics.schemas.catalogue, accelmetrics.schemas.snapshot;"
        "print(sorted({'pydantic', 'dataclasses', 'inspect', 'json', 'datetime', 'psutil', 'pynvml'} & set(sys.modules)),"
        "'accelmetrics.schemas.coverage' in sys.modules)"
    )
    bare = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert bare.stdout.strip() == "[] False"
