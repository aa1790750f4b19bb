from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from accelmetrics.backends.registry import BUILT_IN, load
from accelmetrics.schemas.catalogue import CATALOGUE, SECTIONS, expected_keys, expected_names, find, match, resolve, rows_for, sources_of
from accelmetrics.schemas.errors import UnknownNameError
from accelmetrics.schemas.metric import Metric, field_of, name_of, split_series

GOLDEN = Path(__file__).with_name("golden_keys.txt")
BACKENDS = {*BUILT_IN, "torch"}
PER_SECOND_BY_TRADITION = {"pcieTxBytes", "pcieRxBytes", "nvlinkTxBytes", "nvlinkRxBytes"}
UNSOURCED = {"gpu.{i}.pcieLinkSpeed", "wandb.memory.rssMB"}

# Derivable from other series, or told per process with labels of its own.
WITHOUT_PROMETHEUS = {
    "gpu.{i}.memoryAllocated",
    "gpu.{i}.memoryReadWriteActivity",
    "gpu.{i}.powerPercent",
    "wandb.memory.rssMB",
    "disk.{device}.readBps",
    "disk.{device}.writeBps",
    "network.sentBps",
    "network.recvBps",
    "tpu.{i}.hbmMemoryUsage",
}
AMD_NAMES = """gpu memory memoryReadWriteActivity memoryAllocated memoryAllocatedBytes memoryTotalBytes memoryFreeBytes memoryOverDrive
    temp memoryTemp hotspotTemp tempLimit.slowdown tempLimit.shutdown powerWatts enforcedPowerLimitWatts powerPercent fanSpeed smClock
    memoryClock maxSmClock maxMemoryClock energyJoules correctedMemoryErrors uncorrectedMemoryErrors unCorrectedMemoryErrors
    throttle.swPowerCap throttle.swThermalSlowdown throttle.hwThermalSlowdown throttle.currentLimit pcieLinkGen pcieLinkWidth
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


def test_the_keys_are_those_that_were_agreed() -> None:
    spellings = sorted(spelling for row in CATALOGUE for spelling in (row.key, *row.aliases))
    assert spellings == GOLDEN.read_text("utf-8").splitlines()


def test_no_spelling_is_used_twice() -> None:
    spellings = [spelling for row in CATALOGUE for spelling in (row.key, *row.aliases)]
    assert len(spellings) == len(set(spellings))


def test_sections_hold_each_row_once() -> None:
    assert [row for section in SECTIONS for row in section.rows] == list(CATALOGUE)


@rows
def test_each_row_is_complete(row: Metric) -> None:
    assert re.fullmatch(r"[A-Z1][^\n|]*\.", row.meaning), "one sentence that begins with a capital and ends with a full stop"
    assert row.meaning.count(". ") == 0
    assert set(sources_of(row)) <= BACKENDS
    assert bool(sources_of(row)) == (row.key not in UNSOURCED)
    assert all(words.strip() for words in sources_of(row).values())
    process = row.key.startswith("gpu.process.")
    assert bool(row.prometheus) == (row.key not in WITHOUT_PROMETHEUS and not process)
    of_program = row.key.startswith("torch.")
    one_of_several = "{label}" in row.key or "{link}" in row.key
    assert row.conditional == (process or of_program or one_of_several or row.key == "gpu.{i}.lastXid")
    assert all(name_of(alias) != row.name for alias in row.aliases)


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
}
UNIT_SUFFIXES = tuple(suffix for suffix, _ in SUFFIXES.values())
# What promtool's linter objects to.
ABBREVIATIONS = {
    "ms",
    "s",
    "us",
    "ns",
    "sec",
    "b",
    "kb",
    "mb",
    "gb",
    "tb",
    "pb",
    "m",
    "h",
    "d",
    "percent",
    "mhz",
    "ghz",
    "mw",
    "c",
    "w",
    "j",
}
METRIC_TYPES = {"counter", "gauge", "histogram", "summary", "info"}
RESERVED_ENDINGS = ("_count", "_sum", "_bucket", "_info")


@pytest.mark.parametrize("row", [row for row in CATALOGUE if row.prometheus], ids=lambda row: row.key)
def test_prometheus_names_pass_the_linter(row: Metric) -> None:
    name, labels = split_series(row.prometheus)
    assert re.fullmatch(r"accel_[a-z0-9]+(_[a-z0-9]+)*", name)
    assert not (ABBREVIATIONS | METRIC_TYPES) & set(name.split("_"))
    assert not name.endswith(RESERVED_ENDINGS)
    assert name.endswith("_total") == (row.kind == "counter")
    assert all(re.fullmatch(r"[a-z_]+", label) and label not in ("instance", "job", "accelerator", "uuid") for label in labels)
    if row.unit == "1":
        assert row.factor == 1
        assert not name.removesuffix("_total").endswith(UNIT_SUFFIXES)
    else:
        suffix, factor = SUFFIXES[row.unit]
        assert name.removesuffix("_total").endswith(suffix)
        assert row.factor == factor


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
    held = set(re.findall(r"\{\w+\}", row.name))
    for series in filter(None, (row.prometheus, row.otel)):
        assert set(split_series(series)[1].values()) & {"{i}", "{path}", "{device}", "{label}", "{link}"} == held


# Look-ups


def test_the_number_of_a_link_is_told() -> None:
    assert [getattr(resolve(key), "link", None) for key in ("gpu.3.nvlink.17.state", "gpu.3.temp")] == ["17", ""]
    assert [resolve(key) for key in ("gpu.3.nvlink.x.state", "gpu.3.nvlink.1.other", "gpu.3.mig.x.smActive", "gpu.3.mig.1")] == [None] * 4


def test_every_key_of_wandb_is_there() -> None:
    for name in WANDB_GPU_NAMES.split():
        assert name in expected_names("nvidia")
    for key in WANDB_HOST_KEYS.split():
        assert match(key), key


def test_amd_gives_exactly_what_its_sources_have() -> None:
    assert sorted(expected_names("amd")) == sorted(AMD_NAMES.split())


def test_process_keys_are_the_eight() -> None:
    found = [row for row in CATALOGUE if row.device_part == "gpu.process.{i}"]
    assert [row.name for row in found] == PROCESS_NAMES.split()
    assert not {row.key for row in found} & {f"gpu.process.{{i}}.{name}" for name in expected_names("nvidia") if name not in PROCESS_NAMES}


@pytest.mark.parametrize("backend", sorted(BUILT_IN))
def test_expected_names_are_owed_at_every_reading(backend: str) -> None:
    names, keys = expected_names(backend), expected_keys(backend)
    owed = (*names, *keys)
    assert len(owed) == len(set(owed)) > 0
    assert not [name for name in owed if "{" in name]
    assert (not names) == (backend == "host"), "the host has no devices"


def test_a_partition_owes_what_partitions_have() -> None:
    shares = {name for name in expected_names("nvidia") if name.startswith(("pipe", "sm", "dram")) and name != "smClock"}
    memory = {"memoryAllocated", "memoryAllocatedBytes", "memoryTotalBytes", "memoryFreeBytes"}
    assert set(expected_names("nvidia", True)) == shares | memory
    assert expected_names("graphcore", True) == ()


@pytest.mark.parametrize("backend", sorted(BUILT_IN))
def test_what_partitions_have_their_devices_have(backend: str) -> None:
    assert set(expected_names(backend, True)) <= set(expected_names(backend))


@pytest.mark.parametrize("backend", sorted(BUILT_IN))
def test_every_name_that_a_backend_gives_is_in_the_catalogue(backend: str) -> None:
    coverage, kind = load(backend).coverage(), BUILT_IN[backend].kind
    heads = {"devices": f"{kind}.{{i}}.", "partitions": f"{kind}.{{i}}.", "processes": f"{kind}.process.{{i}}."}
    for part, names in coverage._asdict().items():
        for name in names:
            assert match(heads.get(part, "") + name) or match(f"{kind}.{{i}}.{name}"), (part, name)
    assert expected_names(backend) == tuple(coverage.devices)
    assert expected_keys(backend) == tuple(coverage.machine)


def test_an_unknown_backend_owes_nothing() -> None:
    assert rows_for("acme") == ()
    assert expected_names("acme") == ()


@pytest.mark.parametrize(
    ("key", "template", "instance", "alias"),
    [
        ("gpu.3.powerWatts", "gpu.{i}.powerWatts", "3", False),
        ("gpu.12.tempLimit.slowdown", "gpu.{i}.tempLimit.slowdown", "12", False),
        ("gpu.0.unCorrectedMemoryErrors", "gpu.{i}.uncorrectedMemoryErrors", "0", True),
        ("gpu.process.3.temp", "gpu.process.{i}.temp", "3", False),
        ("cpu", "cpu", "", False),
        ("cpu.7.cpu_percent", "cpu.{i}.cpu_percent", "7", False),
        ("disk./.usagePercent", "disk.{path}.usagePercent", "/", False),
        ("disk./mnt/a.b/c.usageGB", "disk.{path}.usageGB", "/mnt/a.b/c", False),
        ("disk.in", "disk.in", "", False),
        ("disk.nvme0n1.in", "disk.{device}.in", "nvme0n1", False),
        ("gpu.{i}.temp", "gpu.{i}.temp", "{i}", False),
        ("gpu.0.mig.12.memoryAllocatedBytes", "gpu.{i}.memoryAllocatedBytes", "0.mig.12", False),
        ("gpu.3.nvlink.17.state", "gpu.{i}.nvlink.{link}.state", "3", False),
    ],
)
def test_concrete_keys_are_recognised(key: str, template: str, instance: str, alias: bool) -> None:
    sighting = resolve(key)
    assert sighting is not None
    assert (sighting.row.key, sighting.instance, sighting.alias) == (template, instance, alias)
    assert match(key) is sighting.row is find(key)


@pytest.mark.parametrize(
    "key",
    [
        "gpu",
        "gpu.",
        "gpu.0",
        "gpu.0.",
        "gpu..temp",
        "gpu.x.temp",
        "gpu.-1.temp",
        "gpu.².temp",
        "gpu.0.nothing",
        "tpu.0.temp",
        "gpu.process.0",
        "gpu.process.0.smClock",
        "gpu.process.temp",
        "cpu.x.cpu_percent",
        "disk",
        "disk..in",
        "disk./.usage",
        "Cpu",
    ],
)
def test_other_keys_are_not(key: str) -> None:
    assert resolve("") is None
    assert resolve(key) is None
    assert match(key) is None


@rows
def test_every_row_recognises_its_own_keys(row: Metric) -> None:
    for spelling in (row.key, *row.aliases):
        key = spelling.replace("{i}", "5").replace("{path}", "/data").replace("{device}", "sdb").replace("{label}", "64mb")
        assert match(key) is match(spelling) is row


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


def test_rows_travel_to_a_child_process() -> None:
    bare = Metric("gpu.{i}.own", "1", "gauge", "A plug-in's own.")
    assert pickle.loads(pickle.dumps((*CATALOGUE, bare))) == (*CATALOGUE, bare)


def test_importing_the_catalogue_and_the_snapshot_loads_nothing_heavy() -> None:
    code = (
        "import sys; import accelmetrics.schemas.catalogue, accelmetrics.schemas.snapshot;"
        "print(sorted({'pydantic', 'dataclasses', 'inspect', 'json', 'datetime', 'psutil', 'pynvml'} & set(sys.modules)))"
    )
    bare = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert bare.stdout.strip() == "[]"


def test_kinds_without_rows_of_their_own_have_those_of_gpus() -> None:
    for key, template in (
        ("npu.3.powerWatts", "npu.{i}.powerWatts"),
        ("hpu.0.memoryAllocatedBytes", "hpu.{i}.memoryAllocatedBytes"),
        ("dpu.1.utilization", "dpu.{i}.utilization"),
        ("npu.process.0.memoryAllocated", "npu.process.{i}.memoryAllocated"),
        ("npu.0.unCorrectedMemoryErrors", "npu.{i}.uncorrectedMemoryErrors"),
    ):
        found = resolve(key)
        assert found is not None
        assert found.row.key == template
        assert found.listed in CATALOGUE
        assert found.row._replace(key=found.listed.key, aliases=found.listed.aliases) == found.listed
    for key in ("npu.0.wafers", "npu.0.gpu", "tpu.0.powerWatts", "gpu.0.utilization", "cpu.0.powerWatts", "npu.x.powerWatts"):
        assert resolve(key) is None
